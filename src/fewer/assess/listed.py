"""A bare list of features, judged: what a line from them brings back on rows it has not seen."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import check_random_state

from fewer.assess.held_out import Rows

__all__ = ["FeatureScore", "score_features"]


@dataclass(frozen=True, eq=False)
class FeatureScore:
    """How well a list of features reconstructs held-out rows.

    Attributes
    ----------
    share : float
        Of the variance of all entries in the units of the data, as `Panel.score`.
    equal : float
        The same with every feature counting the same.
    errors, variances : ndarrays
        Mean squared error and variance of each feature on the held-out rows.
    features : list
        The list, in column order.
    names : list of str or None
        Of all features.
    rows_fitted, rows_judged : int
        How many rows the decoder was fitted on, and judged on, in each split.
    splits : int
        How many splits the numbers are means of.

    Examples
    --------
    >>> from sklearn.datasets import load_wine
    >>> found = score_features(load_wine(as_frame=True).data, ["alcohol", "hue"], random_state=0)
    >>> found.features, 0 < found.equal < 1
    (['alcohol', 'hue'], True)
    """

    share: float
    equal: float
    errors: NDArray[np.float64]
    variances: NDArray[np.float64]
    features: list[Any]
    names: list[str] | None
    rows_fitted: int
    rows_judged: int
    splits: int


def score_features(
    data: Any,
    features: Sequence[Any],
    *,
    held: float = 0.25,
    row_groups: Any = None,
    random_state: Any = None,
    device: str = "auto",
) -> FeatureScore:
    """Fit a linear decoder from a list of features on some rows and judge it on the others.

    Parameters
    ----------
    data : array, sparse matrix, table, path or source of shape (n, d)
        Whole rows.
    features : sequence of names or column numbers
        The list.
    held : float, default=0.25
        Share of rows held out; 5 folds instead where there are fewer than 100 rows a feature.
    row_groups : array of length n, default=None
        Rows with the same label are held out together.
    random_state : int, RandomState or None, default=None
        Of the split.
    device : str, default="auto"
        "auto" (CUDA, MPS or CPU), or any torch device.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> found = score_features(load_iris().data, [0, 2], random_state=0)
    >>> round(found.share, 2), found.errors.shape
    (0.97, (4,))
    """
    seed = int(check_random_state(random_state).randint(2**31 - 1))
    rows = Rows(data, "standard", row_groups, seed, device)
    columns = rows.columns(features)
    splits = rows.splits(len(columns), held, None)
    sizes = np.array([len(split.fold.held_index) for split in splits])
    weights = sizes / sizes.sum()
    errors = weights @ np.stack([split.errors(columns) for split in splits])
    variances = weights @ np.stack([split.variances for split in splits])
    return FeatureScore(
        share=1 - float(errors.sum()) / max(float(variances.sum()), 1e-300),
        equal=float(weights @ [split.share(columns) for split in splits]),
        errors=errors,
        variances=variances,
        features=rows.named(columns),
        names=rows.source.names,
        rows_fitted=len(splits[0].fold.train_index),
        rows_judged=len(splits[0].fold.held_index),
        splits=len(splits),
    )
