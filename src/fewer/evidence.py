"""Data that explains a panel without access to the rows it was made from."""

from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fewer._stored import ANY, require_array

__all__ = ["Evidence", "Examined"]

ROWS_OF_TARGET = ("true", "predicted")
_TARGET: dict[Any, Any] = {  # what was predicted of one target
    "confusion?": [[int]],
    "classes?": [str],
    "true?": [[float]],
    "predicted?": [[float]],
    "survival?": {str: [[float]]},
    "rank_error?": float,
    "accuracy?": float,
}
#: The part of a saved panel's JSON that is evidence; see `fewer._stored.misfit`.
STORED: dict[Any, Any] = {
    "created": str,
    "version": str,
    "source": {
        "kind": str,
        "rows": int,
        "columns": int,
        "missing": float,
        "path?": (str, None),
        "metadata_columns?": [str],
        "config?": ({str: ANY}, None),
        "reading?": {str: ANY},
        "left_out?": [str],
        "held?": (int, None),
        "folds?": int,
        "draws?": int,
        "edited?": {"how": str, "k": int, "features": [(str, int)], "linear": bool},
    },
    "options": {str: ANY},
    "command?": (str, None),
    "explained": {str: {str: float}},
    "standard_errors?": (None, {str: {str: (float, None)}}),
    "curve": {"k?": [int], str: ([int], {str: [float]})},
    "history?": {str: [{str: (float, bool, str, None)}]},
    "size?": (
        None,
        {
            "rule": str,
            "chosen": int,
            "k": [int],
            "explained_variance": [float],
            "standard_error": [(float, None)],
            "pca": ([float], None),
            "one_standard_error?": int,
            "noise?": (int, None),
            "few_groups?": int,
            "elbow?": (int, None),
        },
    ),
    "stability?": (
        None,
        {
            "frequency": [float],
            "index": float,
            "interval": [float],
            "cluster_index": float,
            "cluster_interval": [float],
            "stable": int,
            "false_bound": float,
            "subsamples": int,
            "threshold": float,
            "clusters?": [{"features": [int], "frequency": float}],
        },
    ),
    "significance?": (
        None,
        {
            "random": [float],
            "panel": float,
            "p_value": float,
            "contributions": ([float], None),
            "few_groups?": int,
        },
    ),
    "target?": {
        "metric?": str,
        "note?": str,
        "scores?": {str: float},
        "rows?": int,
        "tradeoff?": {str: [float]},
        "parts?": [
            {"name": str, "kind": str, "metric": str, "weight": float, "score": float, **_TARGET}
        ],
        **_TARGET,
    },
}


@dataclass(eq=False, kw_only=True)
class Evidence:
    """Statistics of a panel, saved with it and shown in its report.

    Row i of ``gains``, ``substitutes``, ``losses``, ``related``, ``related_correlation``,
    ``represents`` and ``correlation`` belongs to ``order[i]``. Explained variance is in two
    metrics: "units", of all entries in the units of the data, as in `Panel.score`; and "equal",
    every feature counting the same.

    Attributes
    ----------
    created : str
        When the panel was made, in UTC.
    version : str
        Of fewer.
    source : dict
        Kind, path, rows, columns and missing fraction of the data, and ignored columns.
    options : dict
        Arguments of `select` that are not the default.
    command : str or None
        The command line, if the panel was made by ``fewer select``.
    explained : dict of dict
        By metric, explained variance on held-out rows of the panel, of k principal components
        ("pca"), and of greedy and random selection.
    standard_errors : dict of dict, or None
        The standard errors of these; None for panels of earlier versions.
    curve : dict
        ``"k"``: sizes; and by metric, the same at each size with a linear decoder, adding the
        panel's features in their order.
    order : array of int (k)
        Chosen columns, most useful first: by what each adds to those before it. Of a target that a
        network predicts, by the surrogate, up to 24 columns; a column that adds nothing by itself
        may come before one that needs it.
    gains : array (k)
        Explained variance that each adds to those before it, on all rows, in scaled units; with a
        target, of the target, where each class counts the same. If a network predicts it, gains
        (and losses, below) are those of a surrogate of the network, on held-out rows.
    substitutes, losses : arrays (k, m)
        Best replacements of each chosen column that obey the constraints, and the explained
        variance that each loses, with a target that of the target; -1 and NaN if there are fewer.
        A group is replaced as a whole, by the group of the column that is named.
    related, related_correlation : arrays (k, m)
        Columns most correlated with each chosen one, and those correlations.
    represents : array of int (k)
        How many features correlate more with this chosen feature than with any other.
    correlation : array (k, k)
        Among the chosen features.
    errors, variance : arrays (d)
        Per feature on held-out rows: mean squared error from this panel's features, with a
        decoder fitted on the other rows; and variance. (For a network whose folds had panels of
        their own, it is the error of those.)
    rows, reconstructed : arrays (m, d)
        Some held-out rows, and their reconstructions from the chosen features.
    factors : array (r, d) or None
        The leading part of the covariance of what the panel leaves unexplained, F'F in scaled
        units: other features that were measured improve a reconstruction through it.
    history : dict of lists
        Training history of each strategy that is trained: temperature, loss,
        mean_max_probability and distinct.
    target : dict
        Of a panel with a target, on held-out rows: ``"metric"``; ``"scores"`` of the panel, of the
        panel that the search chooses without the target ("label_free"), of random panels, of the
        same predictor with all features ("all", unless that takes long) and of a constant
        prediction; and the ``"confusion"`` of ``"classes"`` (rows are true classes), or some
        ``"true"`` and ``"predicted"`` numbers, or the ``"survival"`` of thirds of the rows with
        low, medium and high hazard (Kaplan and Meier); of several targets, these for each of
        ``"parts"``. With ``reconstruct=``, ``"tradeoff"`` has the
        held-out score and explained variance of panels for other weights, found by the linear
        search and compared on one fold, and last that of the panel itself. Empty for other
        panels, and for those saved before.
    size : dict or None
        How k was chosen: the rule ("given" if it was given), and the explained variance of held-out
        rows (of the target, if there is one) with its standard error for each k. None for a k that
        was given where it would take long: `fewer.assess.curve` computes it.
    stability : dict or None
        How often each chosen feature (``"frequency"``, as in ``order``) is chosen again from half
        of the rows, by a linear decoder or, with a target, a linear map to it; the ``"index"`` of
        Nogueira and others with its ``"interval"``, also with interchangeable features as one
        (``"cluster_index"``), the ``"clusters"`` that have a chosen feature; and a bound on falsely
        chosen ones. None where it would take long: `fewer.assess.stability` computes it.
    significance : dict or None
        Tests with linear decoders, or linear maps to the target: explained variance of ``"random"``
        panels on held-out rows, of the panel with the same features on all folds (``"panel"``), the
        ``"p_value"``, and for each chosen feature, as in ``order``, that of its contribution
        (``"contributions"``). None where it would take long: `fewer.score` computes it.
    without : array (k) or None
        Explained variance that is lost without each chosen feature (and its group), the linear
        decoder fitted again; on all rows, in scaled units; with a target, of the target.
    coverage : array (d) or None
        Fraction of held-out values of each feature in 90% prediction intervals that were calibrated
        on other rows; NaN for features that are measured or constant.
    dependents, dependent_losses : arrays (k, m) or None
        The other features that lose most without each chosen one, and the R² that each loses.

    Examples
    --------
    >>> import fewer
    >>> from sklearn.datasets import load_digits
    >>> X = load_digits(as_frame=True).data
    >>> known = fewer.select(X, k=3, scale="none", random_state=0).evidence
    >>> X.columns[known.order[0]], round(float(known.gains[0]), 2)
    ('pixel_4_2', 0.11)
    >>> known.explained["units"]["random"] < known.explained["units"]["panel"]
    True
    >>> known.without_rows().rows.shape
    (0, 64)
    """

    created: str
    version: str
    source: dict[str, Any]
    options: dict[str, Any]
    command: str | None = None
    explained: dict[str, dict[str, float]]
    standard_errors: dict[str, dict[str, float | None]] | None = None
    curve: dict[str, Any]
    order: NDArray[np.int64]
    gains: NDArray[np.float64]
    substitutes: NDArray[np.int64]
    losses: NDArray[np.float32]
    related: NDArray[np.int64]
    related_correlation: NDArray[np.float32]
    represents: NDArray[np.int64]
    correlation: NDArray[np.float32]
    errors: NDArray[np.float64]
    variance: NDArray[np.float64]
    rows: NDArray[np.float32]
    reconstructed: NDArray[np.float32]
    factors: NDArray[np.float32] | None = None
    history: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    target: dict[str, Any] = field(default_factory=dict)
    size: dict[str, Any] | None = None
    stability: dict[str, Any] | None = None
    significance: dict[str, Any] | None = None
    without: NDArray[np.float64] | None = None
    dependents: NDArray[np.int64] | None = None
    dependent_losses: NDArray[np.float32] | None = None
    coverage: NDArray[np.float32] | None = None

    def without_rows(self) -> "Evidence":
        """A copy without rows of the data, for panels to be shared."""
        target = _without_rows(self.target)
        if "parts" in target:
            target["parts"] = [_without_rows(part) for part in target["parts"]]
        return replace(
            self, rows=self.rows[:0], reconstructed=self.reconstructed[:0], target=target
        )


def _without_rows(about: dict[str, Any]) -> dict[str, Any]:
    return {name: part for name, part in about.items() if name not in ROWS_OF_TARGET}


class Examined(NamedTuple):
    """Score and examples of a panel on given rows; returned by `Panel.examine`.

    Attributes
    ----------
    score : Score
        Explained variance, with ``.errors`` per feature.
    n : int
        Number of rows.
    variance : array (d)
        Per feature.
    rows, reconstructed : arrays (m, d)
        Some of the rows, and their reconstructions from the chosen features.
    standardised : Score or None
        As ``score``, with features standardised.
    target : float, dict or None
        Score of the target, as from `Panel.score_target`, if its true values are known.

    Examples
    --------
    >>> import fewer
    >>> from sklearn.datasets import load_iris
    >>> X = load_iris().data
    >>> seen = fewer.select(X[::2], 2, strategies=["search"], random_state=0).examine(X[1::2])
    >>> seen.n, seen.reconstructed.shape == seen.rows.shape
    (75, True)
    """

    score: Any
    n: int
    variance: NDArray[np.float64]
    rows: NDArray[np.float32]
    reconstructed: NDArray[np.float32]
    standardised: Any = None
    target: Any = None


def _check_size(size: dict[str, Any]) -> None:
    lines = [size[name] for name in ("explained_variance", "standard_error", "pca")]
    known = [line for line in lines if line is not None]
    if any(len(line) != len(size["k"]) for line in known) or size["chosen"] not in size["k"]:
        raise ValueError("the lines of evidence.size do not fit its sizes")
    rule = size["rule"].split()
    if rule in (["auto"], ["given"]) and "one_standard_error" in size and "noise" in size:
        return
    if len(rule) != 2 or not 0 < float(rule[1]) <= 1:
        raise ValueError(f"evidence.size has the rule {size['rule']!r}, which is unknown")


def _check_stability(stability: dict[str, Any], k: int, d: int) -> None:
    if len(stability["frequency"]) != k:
        raise ValueError("evidence.stability is not that of the chosen features")
    named = [j for part in stability.get("clusters", []) for j in part["features"]]
    if not all(0 <= j < d for j in named):
        raise ValueError("evidence.stability has numbers that are not columns")


def _check_optional(found: Evidence, k: int, d: int) -> None:
    shapes: dict[str, tuple[tuple[int | None, ...], str]] = {
        "without": ((k,), "f"),
        "dependents": ((k, None), "i"),
        "dependent_losses": ((k, None), "f"),
        "factors": ((None, d), "f"),
        "coverage": ((d,), "f"),
    }
    gaps = ("dependent_losses", "coverage")
    for name, (shape, kind) in shapes.items():
        if getattr(found, name) is not None:
            array = getattr(found, name)
            require_array(f"evidence.{name}", array, shape, kind, finite=name not in gaps)
    if (found.dependents is None) != (found.dependent_losses is None):
        raise ValueError("evidence has dependents or their losses, but not both")


def check_evidence(found: Evidence, indices: NDArray[np.int64], d: int) -> None:
    """Refuse evidence of a saved panel whose parts do not fit each other, by a ValueError."""
    k, m = len(indices), len(found.rows)
    if sorted(found.order.tolist()) != indices.tolist():
        raise ValueError("evidence.order is not an order of the chosen features")
    shapes: dict[str, tuple[tuple[int | None, ...], str]] = {
        "order": ((k,), "i"),
        "gains": ((k,), "f"),
        "substitutes": ((k, None), "i"),
        "losses": ((k, found.substitutes.shape[-1]), "f"),
        "related": ((k, None), "i"),
        "related_correlation": ((k, found.related.shape[-1]), "f"),
        "represents": ((k,), "i"),
        "correlation": ((len(found.correlation),) * 2, "f"),
        "errors": ((d,), "f"),
        "variance": ((d,), "f"),
        "rows": ((m, d), "f"),
        "reconstructed": ((m, d), "f"),
    }
    gaps = ("losses", "related_correlation", "correlation", "rows", "reconstructed")
    for name, (shape, kind) in shapes.items():
        array = getattr(found, name)
        require_array(f"evidence.{name}", array, shape, kind, finite=name not in gaps)
        if np.isinf(array).any():
            raise ValueError(f"evidence.{name} holds infinite values")
    _check_optional(found, k, d)
    for name in ("substitutes", "related", "dependents"):
        array = getattr(found, name)
        if array is None:
            continue
        if array.size and not (array.min() >= -1 and array.max() < d):
            raise ValueError(f"evidence.{name} has numbers that are not columns")
    if len(found.correlation) > k:
        raise ValueError(f"evidence.correlation is of {len(found.correlation)} features, not {k}")
    if found.size is not None:
        _check_size(found.size)
    if found.stability is not None:
        _check_stability(found.stability, k, d)
    tests = None if found.significance is None else found.significance["contributions"]
    if tests is not None and len(tests) != k:
        raise ValueError("evidence.significance is not that of the chosen features")
    sizes = found.curve.get("k", [])
    for lines in (part for name, part in found.curve.items() if name != "k"):
        if not isinstance(lines, dict) or any(len(line) != len(sizes) for line in lines.values()):
            raise ValueError("the lines of evidence.curve are not of the same length")
