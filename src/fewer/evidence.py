"""What `fewer.select` knew when it made a panel: enough to explain the panel without the data."""

from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["Evidence", "Examined"]


@dataclass(eq=False, kw_only=True)
class Evidence:
    """Numbers behind a panel, saved with it; `fewer.report` shows them.

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
        What the data were: kind, path, rows, columns, fraction missing, columns left out.
    options : dict
        What `select` was called with, where that is not the default.
    command : str or None
        The command line, where one was typed.
    explained : dict of dict
        By metric, the fraction of the variance of held-out rows that the panel explains, and what
        k principal components ("pca"), greedy choice and random choice reach on the same rows.
    curve : dict
        ``"k"``: sizes; and by metric, the same fractions at each size with a linear decoder. The
        panel's features are taken in their order.
    order : array of int (k)
        Chosen columns, most useful first.
    gains : array (k)
        Fraction of the variance that each adds to those before it, on all rows, in scaled units.
    substitutes, losses : arrays (k, m)
        Columns that would take the place of each chosen one at the least loss, and the fraction
        of the variance that this costs; -1 and NaN where there are fewer.
    related, related_correlation : arrays (k, m)
        Columns that correlate most with each chosen one, and those correlations.
    represents : array of int (k)
        How many features correlate more with this chosen feature than with any other.
    correlation : array (k, k)
        Among the chosen features.
    errors, variance : arrays (d)
        Of each feature on held-out rows: mean squared error from this panel's features, with a
        decoder fitted on the other rows; and variance. (A network is not trained again for this:
        where folds had panels of their own, it is the error of those.)
    rows, reconstructed : arrays (m, d)
        Some held-out rows, and what was reconstructed from their chosen features.
    history : dict of lists
        Training of each strategy that learns: rows with temperature, loss, mean_max_probability
        and distinct.

    Examples
    --------
    >>> import fewer
    >>> from sklearn.datasets import load_digits
    >>> X = load_digits(as_frame=True).data
    >>> known = fewer.select(X, k=10, scale="none", random_state=0).evidence
    >>> X.columns[known.order[0]], round(float(known.gains[0]), 2)
    ('pixel_5_4', 0.1)
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
    history: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    def without_rows(self) -> "Evidence":
        """The same without the rows of data in it, for panels that go to others."""
        return replace(self, rows=self.rows[:0], reconstructed=self.reconstructed[:0])


class Examined(NamedTuple):
    """How a panel does on rows that a user gave; returned by `Panel.examine`.

    Attributes
    ----------
    score : Score
        1 - SSE / SST, with ``.errors`` by feature.
    n : int
        Rows that were looked at.
    variance : array (d)
        Of each feature there.
    rows, reconstructed : arrays (m, d)
        Some of the rows, and what was reconstructed from their chosen features.

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
