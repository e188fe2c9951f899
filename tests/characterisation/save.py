"""How the folders in ``saved`` were written, by fewer 0.1.0.

Kept as a record: later versions must load what that one wrote, so the folders are not written
again. Next to each saved model is ``outputs.npz``, the rows that it was given and its outputs.
"""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits, load_wine

import fewer

SAVED = Path(__file__).with_name("saved")
SEEDED = {"random_state": 0, "device": "cpu"}
SPLIT = {"validation": 0.2, "strategies": ["search"], **SEEDED}
TRAINED = {"epochs": 15, "tries": 1, "refit_epochs": 5, **SEEDED}


def save_panel(name: str, panel: Any, rows: Any) -> None:
    """Save a panel and its outputs for some rows, with one measured value missing."""
    measured = panel.transform(rows)
    gap = np.array(measured, dtype=np.float64)
    gap[1, 0] = np.nan
    middle, low, high = panel.reconstruct(gap, interval=0.9)
    outputs = {
        "rows": np.asarray(rows, dtype=np.float64),
        "transform": np.asarray(measured),
        "measured": gap,
        "reconstruct": middle,
        "lower": low,
        "upper": high,
        "score": panel.score(rows),
        "score_errors": panel.score(rows).errors,
        "indices": panel.indices,
        "held_out": panel.held_out,
        "held_out_errors": panel.held_out.errors,
        "strategies": np.array([row["strategy"] for row in panel.leaderboard]),
        "errors": np.array([row["error"] for row in panel.leaderboard]),
        "order": panel.evidence.order,
        "gains": panel.evidence.gains,
    }
    if panel.names is not None:
        outputs["names"] = np.array(panel.names)
    if panel.target is not None:
        outputs |= {"predict": panel.predict(gap), "target_held_out": panel.target.held_out}
        if panel.target.classes is not None:
            outputs |= {
                "classes": panel.target.classes.astype(panel.predict(gap).dtype),
                "predict_proba": panel.predict_proba(gap),
            }
    panel.save(SAVED / "panels" / name / "model")
    np.savez_compressed(SAVED / "panels" / name / "outputs.npz", **plain(outputs))


def save_estimator(name: str, model: Any, rows: Any) -> None:
    """Save a fitted estimator and its outputs for some rows."""
    measured = model.transform(rows)
    outputs = {
        "rows": rows,
        "names": getattr(model, "feature_names_in_", np.array([], dtype=str)),
        "columns": model.columns_,
        "groups": np.array(model.feature_groups(2)),
        "transform": measured,
        "inverse_transform": model.inverse_transform(measured),
        "reconstruct": model.reconstruct(rows),
    }
    for method in ("predict", "predict_proba"):
        if hasattr(model, method):
            outputs[method] = getattr(model, method)(rows)
            outputs[f"{method}_measured"] = getattr(model, f"{method}_measured")(measured)
    folder = SAVED / "estimators" / f"{type(model).__name__}-{name}"
    model.save(folder / "model")
    np.savez_compressed(folder / "outputs.npz", **plain(outputs))


def plain(outputs: dict[str, Any]) -> dict[str, np.ndarray]:
    """Arrays of numbers and text: nothing that NumPy would have to pickle."""
    arrays = {name: np.asarray(value) for name, value in outputs.items()}
    return {name: a.astype(str) if a.dtype == object else a for name, a in arrays.items()}


def panels() -> None:
    tumours = load_breast_cancer(as_frame=True)
    table = tumours.data.iloc[:150, :10]
    new = tumours.data.iloc[150:155, :10]
    save_panel("linear", fewer.select(table, 3, **SPLIT), new)
    folds = fewer.select(table, 3, scale="none", validation=3, **SEEDED)
    save_panel("linear-scale-none", folds, new)
    X = load_digits().data[:160, 18:30]
    save_panel("network", fewer.select(X[:120], 3, decoder=(6,), **SPLIT), X[120:125])
    two = fewer.select(X[:120], 3, decoder=(5, 4), **SPLIT)
    save_panel("network-two-layers", two, X[120:125])
    gaps = np.where(np.random.default_rng(0).random((120, 12)) < 0.05, np.nan, X[:120])
    save_panel("missing-values", fewer.select(gaps, 4, validation=3, **SEEDED), X[120:125])
    costs = dict(zip(table.columns, 1.0 + np.arange(10) % 3, strict=True))
    bought = fewer.select(table, None, costs=costs, budget=5, include=[table.columns[1]], **SPLIT)
    save_panel("costs", bought, new)

    kinds = np.where(tumours.target[:150] == 0, "malignant", "benign")
    named = table.assign(diagnosis=kinds)
    save_panel("target-text", fewer.select(named, 3, target="diagnosis", **SPLIT), new)
    wine, grower = load_wine(return_X_y=True)
    classes = fewer.select(wine[::2], 3, target=grower[::2], decoder=(5,), **SPLIT)
    save_panel("target-classes-network", classes, wine[1:100:20])
    truth = fewer.select(wine[::2], 2, target=grower[::2] == 1, **SPLIT)
    save_panel("target-booleans", truth, wine[1:100:20])
    body, progression = load_diabetes(return_X_y=True)
    number = fewer.select(body[:150], 3, target=progression[:150], **SPLIT)
    save_panel("target-number", number, body[150:155])
    both = np.column_stack([progression, body[:, 2] * progression])[:150]
    save_panel("target-numbers", fewer.select(body[:150], 3, target=both, **SPLIT), body[150:155])


def estimators() -> None:
    X, y = load_digits(return_X_y=True)
    X = X[:, 18:30] / 16
    X, y, new = X[:150], y[:150], X[150:155]
    subset = fewer.ColumnSubset(3, **SEEDED).fit(X)
    save_estimator("linear", subset, new)
    table = pd.DataFrame(X, columns=[f"pixel {j}" for j in range(12)])
    ridge = fewer.ColumnSubset(
        3,
        ridge="auto",
        include=["pixel 2"],
        costs={name: 1.0 + j % 2 for j, name in enumerate(table)},
        budget=4.0,
        **SEEDED,
    ).fit(table)
    save_estimator("ridge", ridge, table.iloc[:5])
    autoencoders = {
        "linear": {"epochs": 60, **SEEDED},
        "gradient": {"solver": "gradient", **TRAINED},
        "network": {"decoder": (6,), **TRAINED},
        "network-batch-norm": {"decoder": (6, 5), "norm": "batch", "dropout": 0.1, **TRAINED},
        "poisson": {"loss": "poisson", **TRAINED},
    }
    for name, options in autoencoders.items():
        save_estimator(name, fewer.ConcreteAutoencoder(3, **options).fit(X), new)
    for name, decoder in {"linear": "linear", "network": (6,)}.items():
        options = {"decoder": decoder, **TRAINED}
        save_estimator(name, fewer.ConcreteClassifier(3, **options).fit(X, y), new)
        save_estimator(name, fewer.ConcreteRegressor(3, **options).fit(X, 1.0 * y), new)
    text = fewer.ConcreteClassifier(3, decoder=(6,), **TRAINED).fit(X, np.where(y > 4, "b", "a"))
    save_estimator("text", text, new)
    both = np.column_stack([y, -2.0 * y])
    save_estimator("two-targets", fewer.ConcreteRegressor(3, **options).fit(X, both), new)


if __name__ == "__main__":
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    panels()
    estimators()
