"""Small calls of the public API, each with the results that must not change.

Every case is a function without arguments that returns a JSON-able dict. `differences` compares
whole numbers, text and order exactly, and floating-point numbers within `TOLERANCE`. Public names
are only used in this module: when one is renamed, change it here and leave ``expected.json`` alone.
"""

import tempfile
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy import sparse
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits, load_wine

import fewer

TOLERANCE = 1e-8  # relative
ROUNDING = 1e-14  # relative to the largest entry of an array, for entries that are zero but for it
SEEDED = {"random_state": 0, "device": "cpu"}
CASES: dict[str, Callable[[], dict[str, Any]]] = {}
# one split, folds and the last held-out swaps, missing values, sparse rows, a target, an estimator
ON_TWO_RANKS = [
    "linear_automatic_split",
    "linear_few_rows_per_feature",
    "missing_values",
    "sparse_rows",
    "target_numbers",
    "column_subset",
    "autoencoder_swaps",
]


def case(function: Callable[[], dict[str, Any]]) -> Callable[[], dict[str, Any]]:
    """Add a function to the cases, under its own name."""
    CASES[function.__name__] = function
    return function


def run(name: str) -> dict[str, Any]:
    """Results of one case; warnings are not part of them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return CASES[name]()


def differences(found: Any, expected: Any, where: str = "result") -> list[str]:
    """Say where two results differ; an empty list if nowhere."""
    if isinstance(expected, dict):
        if not isinstance(found, dict) or found.keys() != expected.keys():
            return [f"{where}: {found!r} instead of keys {list(expected)}"]
        parts = [differences(found[key], expected[key], f"{where}.{key}") for key in expected]
        return [line for part in parts for line in part]
    if not _is_fractional(expected):
        if isinstance(expected, list) and isinstance(found, list) and len(found) == len(expected):
            pairs = enumerate(zip(found, expected, strict=True))
            parts = [differences(*pair, f"{where}[{at}]") for at, pair in pairs]
            return [line for part in parts for line in part]
        return [] if found == expected else [f"{where}: {found!r} instead of {expected!r}"]
    return _far_apart(np.asarray(found, dtype=float), np.asarray(expected), where)


def _is_fractional(value: Any) -> bool:
    """Whether a value is a float, or an array of them as nested lists."""
    if not isinstance(value, list):
        return isinstance(value, float)
    return bool(value) and all(_is_fractional(item) for item in value)


def _far_apart(found: np.ndarray, expected: np.ndarray, where: str) -> list[str]:
    if found.shape != expected.shape:
        return [f"{where}: shape {found.shape} instead of {expected.shape}"]
    size = np.abs(expected)
    # rows of a table: each column has its own unit
    near = size.max(axis=-2, keepdims=True) if size.ndim > 1 else size
    allowed = TOLERANCE * near + ROUNDING * size.max()
    wrong = ~(np.abs(found - expected) <= allowed)
    if not wrong.any():
        return []
    at = tuple(int(i) for i in np.argwhere(wrong)[0])
    return [
        f"{where}: {wrong.sum()} of {wrong.size} numbers differ, the first at {at}: "
        f"{found[at]!r} instead of {expected[at]!r}"
    ]


# -- data ------------------------------------------------------------------------------------


def digits(rows: int, columns: slice = slice(0, 64)) -> np.ndarray:
    """The first images of handwritten digits."""
    return load_digits().data[:rows, columns]


def tumours(rows: int = 300) -> pd.DataFrame:
    """Thirty named measurements of very different units."""
    return load_breast_cancer(as_frame=True).data.iloc[:rows]


def factors(rows: int, columns: int, rank: int, seed: int, noise: float = 0.3) -> np.ndarray:
    """Synthetic rows with a few latent factors."""
    rng = np.random.default_rng(seed)
    common = rng.normal(size=(rows, rank)) @ rng.normal(size=(rank, columns))
    return common + noise * rng.normal(size=(rows, columns))


def curved(rows: int, columns: int, seed: int) -> np.ndarray:
    """Synthetic rows on a curved surface, which a linear decoder cannot follow."""
    rng = np.random.default_rng(seed)
    angles = rng.uniform(-1.5, 1.5, size=(rows, 2)) @ rng.normal(size=(2, columns))
    return np.sin(angles + rng.uniform(0, 3, size=columns)) + 0.05 * rng.normal(size=angles.shape)


def with_gaps(X: np.ndarray, share: float, seed: int) -> np.ndarray:
    """The same rows, a share of their values missing."""
    gaps = np.random.default_rng(seed).random(X.shape) < share
    return np.where(gaps, np.nan, X)


# -- results ---------------------------------------------------------------------------------


def numbers(values: Any) -> list[Any]:
    """An array or a table as nested lists."""
    return np.asarray(values).tolist()


def describe(panel: Any, rows: Any) -> dict[str, Any]:
    """Panel, leaderboard, held-out errors and some reconstructions.

    ``rows`` are whole rows: the first three are reconstructed, all of them are scored.
    """
    table = hasattr(rows, "iloc")
    first = rows.iloc[:3][panel.features] if table else rows[:3, panel.indices]
    return {
        "indices": numbers(panel.indices),
        "features": panel.features,
        "held_out": float(panel.held_out),
        "held_out_errors": numbers(panel.held_out.errors),
        "leaderboard": [
            {name: row[name] for name in ("strategy", "error", "price", "ridge", "features")}
            for row in panel.leaderboard
        ],
        "reconstruction": numbers(panel.reconstruct(first)),
        "score": float(panel.score(rows)),
    }


def select(data: Any, k: int | None, rows: Any = None, **options: Any) -> dict[str, Any]:
    """What `fewer.select` finds in data, described on the data itself or on other rows."""
    panel = fewer.select(data, k, **SEEDED, **options)
    return describe(panel, data if rows is None else rows)


# -- linear decoders -------------------------------------------------------------------------


@case
def linear_one_split() -> dict[str, Any]:
    return select(digits(300), 6, validation=0.2)


@case
def linear_automatic_split() -> dict[str, Any]:
    """A hundred rows per feature and more: a tenth of the rows is held out."""
    return select(digits(400, slice(16, 48)), 4)


@case
def linear_automatic_folds() -> dict[str, Any]:
    """Fewer than a hundred rows per feature: five folds and ridge penalties."""
    return select(tumours(150).iloc[:, :20], 3, strategies=["search"])


@case
def linear_few_rows_per_feature() -> dict[str, Any]:
    """Fewer than ten rows per feature: the last swaps lower the held-out error itself."""
    X = digits(120, slice(34, 58))
    return select(X[:36], 4, X, scale="none", validation=2, strategies=["search"])


@case
def linear_fewer_rows_than_features() -> dict[str, Any]:
    return select(factors(20, 24, 4, seed=1), 4, validation=2, strategies=["search"])


@case
def linear_leave_one_out() -> dict[str, Any]:
    """Held-out parts of a single row are scored together."""
    return select(digits(6, slice(18, 26)), 2, validation=6, strategies=["closed_form"])


@case
def linear_scale_none() -> dict[str, Any]:
    return select(tumours(), 3, scale="none", validation=0.2)


@case
def strategy_search() -> dict[str, Any]:
    return select(digits(300, slice(8, 40)), 5, validation=0.2, strategies=["search"])


@case
def strategy_closed_form() -> dict[str, Any]:
    return select(digits(300, slice(8, 40)), 5, validation=0.2, strategies=["closed_form"])


@case
def strategy_gradient() -> dict[str, Any]:
    X = digits(100, slice(18, 34))
    return select(X, 3, validation=0.2, strategies=["gradient"])


# -- constraints -----------------------------------------------------------------------------


@case
def include_and_exclude() -> dict[str, Any]:
    names = list(tumours().columns)
    return select(
        tumours(), 5, validation=0.2, include=[names[3], names[20]], exclude=[names[0], *names[6:9]]
    )


@case
def include_is_the_whole_panel() -> dict[str, Any]:
    return select(digits(200), 4, include=[10, 21, 36, 53], validation=0.2)


@case
def costs_and_budget() -> dict[str, Any]:
    costs = {name: 1.0 + j % 4 for j, name in enumerate(tumours().columns)}
    return select(tumours(), None, costs=costs, budget=9, validation=0.2)


@case
def costs_and_budget_in_folds() -> dict[str, Any]:
    costs = 1.0 + np.arange(30) % 4
    return select(tumours(), 5, costs=costs, budget=8, validation=3, strategies=["closed_form"])


@case
def cost_weight() -> dict[str, Any]:
    costs = 1.0 + np.arange(30) % 5
    return select(tumours(), 4, costs=costs, cost_weight=0.02, validation=0.2)


@case
def groups_as_lists() -> dict[str, Any]:
    X = digits(300, slice(8, 40))
    return select(X, 3, groups=[list(range(8)), [9, 12, 20]], validation=0.2)


@case
def groups_as_labels() -> dict[str, Any]:
    """Thirty measurements in groups of three, in folds."""
    labels = np.arange(30) % 10
    return select(tumours(), 3, groups=labels, validation=3, strategies=["closed_form"])


# -- rows ------------------------------------------------------------------------------------


@case
def row_groups() -> dict[str, Any]:
    X = digits(240, slice(8, 40))
    return select(X, 4, row_groups=np.arange(240) // 12, validation=3, strategies=["closed_form"])


@case
def row_groups_one_split() -> dict[str, Any]:
    labels = [f"patient {i // 7}" for i in range(300)]
    return select(tumours(), 4, row_groups=labels, validation=0.25)


@case
def missing_values() -> dict[str, Any]:
    X = digits(300, slice(8, 40))
    return select(with_gaps(X, 0.05, seed=2), 5, X, validation=0.2)


@case
def missing_values_in_folds() -> dict[str, Any]:
    """Intervals and gaps among the measured values besides."""
    X = with_gaps(factors(120, 15, 4, seed=3), 0.1, seed=4)
    panel = fewer.select(X, 4, validation=3, strategies=["closed_form"], **SEEDED)
    bounds = panel.reconstruct(X[:4, panel.indices], interval=0.8)
    return describe(panel, X) | {"intervals": [numbers(np.nan_to_num(part)) for part in bounds]}


@case
def sparse_rows() -> dict[str, Any]:
    X = digits(300, slice(8, 40))
    return select(sparse.csr_array(X), 5, X, validation=0.2)


@case
def sparse_rows_in_folds() -> dict[str, Any]:
    X = digits(240, slice(8, 40))
    return select(sparse.csr_array(X), 4, X, scale="none", validation=2, strategies=["closed_form"])


@case
def constant_and_rare_columns() -> dict[str, Any]:
    """A column that never varies, and one that varies in a few rows only."""
    X = factors(150, 12, 4, seed=7)
    X = np.column_stack([X, np.full(150, 3.0), np.arange(150) % 40 == 0])
    return select(X, 4, validation=0.2)


@case
def float32_rows() -> dict[str, Any]:
    return select(digits(300, slice(8, 40)).astype(np.float32), 5, validation=0.2)


@case
def csv_file() -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tumours.csv"
        tumours().to_csv(path, index=False)
        panel = fewer.select(path, 4, validation=0.2, **SEEDED)
        panel.transform(tumours().iloc[:5]).to_csv(Path(folder) / "measured.csv", index=False)
        out = panel.reconstruct(Path(folder) / "measured.csv", out=Path(folder) / "all.csv")
        written = pd.read_csv(out)
        return describe(panel, tumours()) | {
            "score_of_file": float(panel.score(path)),
            "written_columns": list(written.columns),
            "written": numbers(written.iloc[:2]),
        }


# -- network decoders ------------------------------------------------------------------------


@case
def network_one_split() -> dict[str, Any]:
    """Swaps that a surrogate of the network judges win."""
    X = digits(100, slice(18, 34)) / 16
    return select(X, 3, decoder=(6,), validation=0.2, strategies=["search"])


@case
def network_every_strategy() -> dict[str, Any]:
    return select(curved(60, 6, seed=24), 2, decoder=(6,), validation=0.2)


@case
def network_folds() -> dict[str, Any]:
    X = curved(80, 8, seed=20)
    return select(X, 2, decoder=(6,), strategies=["search"], validation=2)


@case
def network_with_constraints() -> dict[str, Any]:
    """Costs, features that must and must not be measured, row groups and missing values."""
    X = with_gaps(curved(120, 8, seed=10), 0.05, seed=11)
    return select(
        X,
        3,
        curved(120, 8, seed=10),
        decoder=(6,),
        include=[1],
        exclude=[4],
        costs=1.0 + np.arange(8) % 3,
        budget=7,
        row_groups=np.arange(120) // 5,
        strategies=["gradient"],
        validation=0.2,
    )


# -- targets ---------------------------------------------------------------------------------


def with_target(panel: Any, rows: Any) -> dict[str, Any]:
    """What a panel with a target predicts, besides its reconstructions."""
    first = rows.iloc[::40] if hasattr(rows, "iloc") else rows[::40]
    measured = panel.transform(first)
    found = describe(panel, rows) | {
        "target_held_out": float(panel.target.held_out),
        "predictions": numbers(panel.predict(measured)),
    }
    if panel.target.classes is not None:
        found["classes"] = numbers(panel.target.classes)
        found["probabilities"] = numbers(panel.predict_proba(measured))
    return found


@case
def target_classes() -> dict[str, Any]:
    data = load_breast_cancer(as_frame=True)
    kinds = np.where(data.target[:300] == 0, "malignant", "benign")
    table = tumours().assign(diagnosis=kinds)
    panel = fewer.select(
        table, 3, target="diagnosis", strategies=["search"], validation=0.2, **SEEDED
    )
    return with_target(panel, tumours())


@case
def target_classes_every_strategy() -> dict[str, Any]:
    X, y = load_wine(return_X_y=True)
    panel = fewer.select(X, 3, target=y, validation=0.25, **SEEDED)
    return with_target(panel, X)


@case
def target_classes_network() -> dict[str, Any]:
    X, y = load_wine(return_X_y=True)
    X, y = X[::2], y[::2]
    panel = fewer.select(
        X, 2, target=y, decoder=(6,), strategies=["search"], validation=0.25, **SEEDED
    )
    return with_target(panel, X)


@case
def target_numbers() -> dict[str, Any]:
    X, y = load_diabetes(return_X_y=True, as_frame=True)
    panel = fewer.select(X, 3, target=y, strategies=["search"], validation=0.2, **SEEDED)
    return with_target(panel, X)


@case
def target_numbers_in_folds() -> dict[str, Any]:
    """Two targets at once."""
    X, y = load_diabetes(return_X_y=True)
    X, y = X[:120], y[:120]
    both = np.column_stack([y, X[:, 2] * y])
    panel = fewer.select(X, 3, target=both, strategies=["search"], validation=2, **SEEDED)
    return with_target(panel, X)


# -- what a panel knows ----------------------------------------------------------------------


def known(panel: Any) -> dict[str, Any]:
    """The parts of the evidence that the report shows first."""
    evidence = panel.evidence
    return {
        "order": numbers(evidence.order),
        "gains": numbers(evidence.gains),
        "substitutes": numbers(evidence.substitutes),
        "losses": numbers(np.nan_to_num(evidence.losses)),
        "related": numbers(evidence.related),
        "stands_for": numbers(evidence.represents),
        "explained_variance": evidence.explained,
        "curve": evidence.curve,
        "errors": numbers(evidence.errors),
        "variance": numbers(evidence.variance),
    }


@cache
def tumour_panel() -> Any:
    """A panel that more than one case looks at."""
    return fewer.select(tumours(), 4, validation=0.2, **SEEDED)


@case
def evidence_one_split() -> dict[str, Any]:
    return known(tumour_panel())


@case
def evidence_in_folds() -> dict[str, Any]:
    X = factors(90, 16, 4, seed=12)
    options = {"scale": "none", "validation": 3, "strategies": ["closed_form"]}
    return known(fewer.select(X, 4, **options, **SEEDED))


@case
def panel_on_new_rows() -> dict[str, Any]:
    """Intervals, gaps among the measured values, columns in any order, errors per feature."""
    panel, new = tumour_panel(), tumours(500)[300:]
    measured = new.iloc[:4][panel.features[::-1]].copy()
    measured.iloc[1, 2] = np.nan
    score, seen = panel.score(new), panel.examine(new)
    intervals = {
        str(share): [
            numbers(part.fillna(0.0)) for part in panel.reconstruct(measured, interval=share)
        ]
        for share in (0.5, 0.9)
    }
    return {
        "reconstruction": numbers(panel.reconstruct(measured)),
        "intervals": intervals,
        "score": float(score),
        "errors": numbers(score.errors),
        "transformed": numbers(panel.transform(new.iloc[:2])),
        "examined_rows": seen.n,
        "examined_score": float(seen.score),
    }


# -- assessment ------------------------------------------------------------------------------


@case
def assess_curve() -> dict[str, Any]:
    X = digits(200, slice(16, 40))
    found = fewer.assess.curve(X, [2, 4, 8], exact=False, **SEEDED)
    exact = fewer.assess.curve(X, [1, 2], scale="none", exact=True, **SEEDED)
    return {
        "sizes": found.k,
        "explained_variance": found.explained_variance,
        "pca": found.pca,
        "order": found.order,
        "standard_error": found.standard_error,
        "protocol": found.protocol,
        "exact_explained_variance": exact.explained_variance,
        "exact_order": exact.order,
    }


@case
def assess_compare() -> dict[str, Any]:
    found = fewer.assess.compare(
        tumours(569).iloc[:, :16],
        3,
        scale="none",
        methods=["select", "search", "concrete autoencoder", "greedy", "pivoted QR", "random"],
        panels={"mine": ["mean radius", "mean texture"]},
        folds=2,
        **SEEDED,
    )
    return {
        "rows": [
            {
                "method": row["method"],
                "k": row["k"],
                "explained_variance": row["explained_variance"],
                "standard_error": row["standard_error"],
                "overlap": row["overlap"],
                "features": row["features"],
            }
            for row in found.rows
        ],
    }


@case
def assess_score_features() -> dict[str, Any]:
    found = fewer.assess.score_features(
        tumours(), ["mean area", "mean texture", "worst symmetry"], **SEEDED
    )
    return {
        "explained_variance": found.explained_variance,
        "equally_weighted": found.explained_variance_standardized,
        "errors": numbers(found.errors),
        "standard_errors": [found.standard_error, found.standard_error_standardized],
        "protocol": found.protocol,
    }


# -- estimators ------------------------------------------------------------------------------


def describe_estimator(model: Any, X: Any) -> dict[str, Any]:
    """Columns, groups and the reconstruction of the first three rows."""
    return {
        "columns": numbers(model.columns_),
        "groups": model.feature_groups(3),
        "reconstruction": numbers(model.reconstruct(X[:3])),
        "inverse_transform": numbers(model.inverse_transform(model.transform(X[3:5]))),
        "last_loss": [row["loss"] for row in model.history_ if "loss" in row][-1:],
    }


TRAINED = {"epochs": 40, "tries": 1, "refit_epochs": 10, **SEEDED}
SELECTOR = {"refine": None, **TRAINED}  # without swaps


@case
def column_subset() -> dict[str, Any]:
    X = digits(300)
    model = fewer.ColumnSubset(6, **SEEDED).fit(X)
    return describe_estimator(model, X) | {
        "residual": float(model.residual_),
        "order": numbers(model.order_),
        "residuals": numbers(model.residuals_),
        "score": model.score(X),
    }


@case
def column_subset_with_ridge() -> dict[str, Any]:
    X = with_gaps(factors(60, 20, 5, seed=13), 0.05, seed=14)
    model = fewer.ColumnSubset(
        5, ridge="auto", include=[3], costs=1.0 + np.arange(20) % 3, budget=9, **SEEDED
    ).fit(X)
    return describe_estimator(model, X) | {"ridge": float(model.ridge_), "score": model.score(X)}


@case
def autoencoder_closed_form() -> dict[str, Any]:
    X = digits(300) / 16
    model = fewer.ConcreteAutoencoder(5, refine=None, **SEEDED).fit(X)
    return describe_estimator(model, X) | {"score": model.score(X)}


@case
def autoencoder_closed_form_network() -> dict[str, Any]:
    X = curved(80, 8, seed=15)
    model = fewer.ConcreteAutoencoder(
        3, decoder=(8,), solver="closed_form", refit_epochs=10, refine=None, **SEEDED
    ).fit(X)
    return describe_estimator(model, X) | {"score": model.score(X)}


@case
def autoencoder_gradient() -> dict[str, Any]:
    X = digits(200) / 16
    model = fewer.ConcreteAutoencoder(5, solver="gradient", **SELECTOR).fit(X)
    return describe_estimator(model, X) | {"score": model.score(X)}


@case
def autoencoder_gradient_network() -> dict[str, Any]:
    X = with_gaps(curved(200, 14, seed=16), 0.03, seed=17)
    model = fewer.ConcreteAutoencoder(4, decoder=(10, 8), norm="batch", include=[2], **SELECTOR)
    return describe_estimator(model.fit(X), X) | {"score": model.score(X)}


@case
def autoencoder_paper() -> dict[str, Any]:
    """The settings of the paper, for fewer epochs."""
    X = digits(200) / 16
    model = fewer.ConcreteAutoencoder(5, **(fewer.PAPER | TRAINED)).fit(X)
    return describe_estimator(model, X) | {"score": model.score(X)}


@case
def autoencoder_counts() -> dict[str, Any]:
    X = np.random.default_rng(18).poisson(np.exp(factors(200, 12, 3, seed=18) / 3))
    model = fewer.ConcreteAutoencoder(3, loss="poisson", **SELECTOR).fit(X)
    return describe_estimator(model, X) | {"score": model.score(X)}


@case
def classifier() -> dict[str, Any]:
    X, y = load_digits(return_X_y=True)
    X, y = X[:300] / 16, y[:300]
    model = fewer.ConcreteClassifier(6, decoder=(16,), **SELECTOR).fit(X, y)
    return describe_estimator(model, X) | {
        "classes": numbers(model.classes_),
        "predictions": numbers(model.predict(X[:20])),
        "probabilities": numbers(model.predict_proba(X[:3])),
        "score": model.score(X, y),
    }


@case
def regressor() -> dict[str, Any]:
    X, y = load_diabetes(return_X_y=True)
    model = fewer.ConcreteRegressor(3, decoder=(8,), **SELECTOR).fit(X, y)
    return describe_estimator(model, X) | {
        "predictions": numbers(model.predict(X[:5])),
        "predictions_from_measured": numbers(model.predict_measured(model.transform(X[:5]))),
        "score": model.score(X, y),
    }


# -- swaps after the selector ----------------------------------------------------------------


def describe_swaps(model: Any, X: Any) -> dict[str, Any]:
    """What swaps changed, besides the rest."""
    return describe_estimator(model, X) | {
        "nodes": numbers(model.nodes_),
        "swapped": model.n_swapped_,
        "conflicts": model.n_conflicts_,
    }


@case
def autoencoder_swaps() -> dict[str, Any]:
    X = digits(300) / 16
    model = fewer.ConcreteAutoencoder(5, **SEEDED).fit(X)
    return describe_swaps(model, X) | {"score": model.score(X)}


@case
def autoencoder_network_swaps() -> dict[str, Any]:
    X = with_gaps(curved(120, 10, seed=16), 0.03, seed=17)
    model = fewer.ConcreteAutoencoder(3, decoder=(8,), include=[2], **TRAINED).fit(X)
    return describe_swaps(model, X) | {"score": model.score(X)}


@case
def classifier_swaps() -> dict[str, Any]:
    X, y = load_wine(return_X_y=True)
    model = fewer.ConcreteClassifier(3, decoder=(8,), **TRAINED).fit(X, y)
    return describe_swaps(model, X) | {"probabilities": numbers(model.predict_proba(X[:3]))}


@case
def regressor_swaps() -> dict[str, Any]:
    X, y = load_diabetes(return_X_y=True)
    model = fewer.ConcreteRegressor(3, decoder="linear", **TRAINED).fit(X, y)
    return describe_swaps(model, X) | {"score": model.score(X, y)}
