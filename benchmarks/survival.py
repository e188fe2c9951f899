"""Panels for times until an event: concordance on test rows, beside LassoNet's Cox regression.

    python benchmarks/survival.py [--data simulated,gbsg2] [--seeds 5] [--methods linear,LassoNet] \
        [--out results/cells/survival.json]

"simulated" has 60 features, of which four decide, two of them only by their product. The other sets
come with lifelines (gbsg2: breast cancer; actg175: HIV) and scikit-survival (gse7390: tumours,
76 genes and four clinical features); of these two packages only the data are read. Rows are split
70/30 at random by the seed, in the same way for all methods; features are standardised by the rows
to fit. "linear" and "network" are `fewer.select` with a linear predictor and with one hidden layer
of 32 units; LassoNet is taken along its path, with a fifth of its rows for validation, at the
largest number of features that is at most k; "LassoNet, features" are the k features that leave
its path last, with our linear predictor. "all" is that predictor of all features. Results that
--out already holds are not computed again.
"""

import argparse
import io
import json
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from rich.console import Console
from rich.table import Table
from scipy.io import arff
from sklearn.model_selection import train_test_split

import fewer
from fewer.errors import FewerWarning
from fewer.kinds import concordance

HIDDEN = (32,)
SIZES = {"simulated": 4, "gbsg2": 4, "actg175": 6, "gse7390": 10}


@dataclass(frozen=True, eq=False)
class Times:
    """Standardised rows to fit on and to test on, with (time, event)."""

    fit: np.ndarray
    times: np.ndarray
    test: np.ndarray
    test_times: np.ndarray


def package_file(package: str, name: str) -> Path:
    """A file of an installed package, which is not imported."""
    found = find_spec(package)
    if found is None or found.origin is None:
        raise SystemExit(f"{package} is not installed: pip install {package}")
    return Path(found.origin).parent / name


def load_times(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Features, and (time, event)."""
    if name == "simulated":
        random = np.random.default_rng(0)
        X = random.normal(size=(1000, 60))
        risk = X[:, 0] - 0.7 * X[:, 1] + X[:, 2] * X[:, 3]
        time, end = random.exponential(np.exp(-risk)), random.exponential(3, size=1000)
        return X, np.c_[np.minimum(time, end), time <= end]
    if name == "gse7390":
        text = package_file("sksurv", "datasets/data/breast_cancer_GSE7390-metastasis.arff")
        table = pd.DataFrame(arff.loadarff(io.StringIO(text.read_text()))[0])
        time, event = table.pop("t.tdm"), table.pop("e.tdm").astype(float)
    else:
        folder = package_file("lifelines", "datasets")
        table = pd.read_csv(folder / {"gbsg2": "gbsg2.csv", "actg175": "ACTG175.csv"}[name])
        if name == "gbsg2":
            time, event = table.pop("time"), table.pop("cens")
        else:  # without identifiers, and without what was measured after the start
            time, event = table.pop("days"), table.pop("cens")
            table = table.iloc[:, 2:].drop(columns=["cd496", "r", "offtrt", "cd420", "cd820"])
    codes = {
        column: table[column] if table[column].dtype.kind in "if" else table[column].factorize()[0]
        for column in table
    }
    return pd.DataFrame(codes).to_numpy(dtype=float), np.c_[time, event].astype(float)


@cache
def split(name: str, seed: int) -> Times:
    """Rows to fit on and to test on."""
    X, times = load_times(name)
    fit, test, own, others = train_test_split(
        X, times, test_size=0.3, random_state=seed, stratify=times[:, 1]
    )
    mean, spread = fit.mean(axis=0), fit.std(axis=0)
    spread = np.where(spread > 0, spread, 1.0)
    return Times((fit - mean) / spread, own, (test - mean) / spread, others)


def chosen(data: Times, k: int, seed: int, **options: Any) -> fewer.Panel:
    """The panel that a user gets."""
    options = {"target_kind": "survival", "random_state": seed, "device": "cpu"} | options
    return fewer.select(data.fit, k, target=data.times, **options)


def scored(data: Times, panel: fewer.Panel) -> float:
    """Concordance on the test rows."""
    return float(panel.score_target(data.test[:, panel.indices], data.test_times))


def ours(data: Times, k: int, seed: int, **options: Any) -> float:
    """`fewer.select`."""
    return scored(data, chosen(data, k, seed, **options))


def everything(data: Times, k: int, seed: int) -> float:
    """All features."""
    d = data.fit.shape[1]
    return scored(data, chosen(data, d, seed, include=range(d)))


def at_random(data: Times, k: int, seed: int) -> float:
    """Any features."""
    columns = np.random.default_rng(seed).choice(data.fit.shape[1], k, replace=False)
    return scored(data, chosen(data, k, seed, include=columns.tolist()))


@cache
def lassonet_path(data: Times, seed: int) -> tuple[Any, list[Any]]:
    """LassoNet's Cox regression, and its models with fewer and fewer features."""
    from lassonet import LassoNetCoxRegressor  # noqa: PLC0415 (optional)

    model = LassoNetCoxRegressor(
        tie_approximation="efron",
        hidden_dims=HIDDEN,
        val_size=0.2,
        torch_seed=seed,
        random_state=seed,
        device="cpu",
        verbose=0,
    )
    rows, times = data.fit.astype(np.float32), data.times.astype(np.float32)
    return model, model.path(rows, times, return_state_dicts=True)


def lassonet(data: Times, k: int, seed: int, *, features: bool = False) -> float:
    """LassoNet itself, or the features that leave its path last."""
    model, path = lassonet_path(data, seed)
    if features:
        last = np.argsort(-model.feature_importances_.numpy(), kind="stable")[:k]
        return scored(data, chosen(data, k, seed, include=last.tolist()))
    best = max((save for save in path if int(save.selected.sum()) <= k), key=_size)
    model.load(best.state_dict)
    risk = model.predict(data.test.astype(np.float32)).ravel()
    return concordance(torch.tensor(data.test_times), torch.tensor(risk).double())


def _size(save: Any) -> int:
    return int(save.selected.sum())


METHODS: dict[str, Callable[[Times, int, int], float]] = {
    "linear": ours,
    "network": lambda data, k, seed: ours(data, k, seed, decoder=HIDDEN),
    "LassoNet": lassonet,
    "LassoNet, features": lambda data, k, seed: lassonet(data, k, seed, features=True),
    "random": at_random,
    "all": everything,
}


def show(results: dict[str, float]) -> None:
    """Means and standard deviations over the seeds."""
    table = Table(title="Concordance on test rows: mean ± standard deviation over splits")
    names = list(dict.fromkeys(key.split("|")[0] for key in results))
    for column in ("data", "k", *METHODS):
        table.add_column(column, justify="right")
    for name in names:
        row = []
        for method in METHODS:
            cells = [
                value for key, value in results.items() if key.split("|")[:2] == [name, method]
            ]
            row.append(f"{np.mean(cells):.4f} ± {np.std(cells):.4f}" if cells else "-")
        table.add_row(name, str(SIZES[name]), *row)
    Console(width=150).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default=",".join(SIZES))
    parser.add_argument("--methods", default=",".join(METHODS).replace(",LassoNet, features", ""))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", default="results/cells/survival.json")
    options = parser.parse_args()
    warnings.simplefilter("ignore", FewerWarning)
    methods = options.methods.split(",")
    if "LassoNet" in methods:
        methods.insert(methods.index("LassoNet") + 1, "LassoNet, features")
    out = Path(options.out)
    out.parent.mkdir(parents=True, exist_ok=True)
    results: dict[str, float] = json.loads(out.read_text()) if out.exists() else {}
    for seed in range(options.seeds):
        for name in options.data.split(","):
            for method in methods:
                key = f"{name}|{method}|{seed}"
                if key in results:
                    continue
                results[key] = METHODS[method](split(name, seed), SIZES[name], seed)
                draft = out.with_name(out.name + ".part")
                draft.write_text(json.dumps(results, indent=1))
                draft.replace(out)
                print(key, f"{results[key]:.4f}", flush=True)
    show(results)


if __name__ == "__main__":
    main()
