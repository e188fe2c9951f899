"""Linear decoders fitted on some rows and scored on others; the score of a list of features."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fewer._checks import check_number, check_observed, check_random_state, check_whole
from fewer._threads import entry_point
from fewer.constraints import resolve
from fewer.data import RowView, Source, moments
from fewer.data.columns import without_empty
from fewer.data.factored import Matrix
from fewer.data.open import as_source
from fewer.errors import InputError
from fewer.search.eigen import leading_eigenvectors
from fewer.train.device import float64_device, pick_device
from fewer.validation import (
    FOLDS,
    RIDGES,
    ROWS_PER_FEATURE,
    Fold,
    Scaling,
    check_row_groups,
    fold_covariances,
    split_rows,
)

Columns = NDArray[np.int64]
INNER = 0.2  # fraction of the training rows that the penalty is chosen on


@dataclass(frozen=True, eq=False)
class Split:
    """A split of the rows; linear decoders are fitted on one side and scored on the other."""

    fold: Fold
    inner: Fold | None  # a split of the training rows, to choose the penalty
    device: torch.device

    @property
    def train(self) -> Matrix:
        """Scaled covariance of the training rows, on the device of the search."""
        return self.fold.matrix().to(self.device)

    def ridge(self, columns: Columns) -> float:
        """The penalty that does best within the training rows."""
        if self.inner is None:
            return 0.0
        variance = float(self.fold.variance.mean())
        ridges = [ridge * variance for ridge in RIDGES]
        return min(ridges, key=partial(self.inner.error, columns))

    def explained_variance(self, columns: Columns) -> float:
        """Explained variance of the held-out rows, about the training means."""
        total = float(self.fold.held_diagonal.mean())
        return 1 - self.fold.error(columns, self.ridge(columns)) / max(total, 1e-300)

    def errors(self, columns: Columns) -> NDArray[np.float64]:
        """Mean squared error per feature on the held-out rows, in the units of the data."""
        left = self.fold.residuals(columns, self.fold.decoder(columns, self.ridge(columns)))
        return left.clamp_min(0.0).numpy() * self.fold.scale**2

    @property
    def variances(self) -> NDArray[np.float64]:
        """Per feature, on the held-out rows, about the training means, in the units of the data."""
        return self.fold.held_diagonal.numpy() * self.fold.scale**2

    def pca_explained_variance(self, k: int) -> NDArray[np.float64]:
        """Of the held-out rows, by 1, 2, ..., k principal components of the training rows."""
        vectors = leading_eigenvectors(self.fold.matrix(), k, device=self.device)
        kept = (vectors * self.fold.held_product(vectors)).sum(0).cumsum(0)
        return (kept / self.fold.held_diagonal.sum().clamp_min(1e-300)).numpy()


class Rows:
    """The data of an assessment, opened and checked, and how to split them."""

    def __init__(
        self, data: Any, scale: str, row_groups: Any, random_state: Any, device: str
    ) -> None:
        source = as_source(data, least_rows=4)
        self.source, self.stats = without_empty(source, moments(source))
        names = self.source.names
        check_observed(self.stats.observed, None if names is None else np.array(names))
        self.scaling = Scaling(scale)
        self.seed = int(check_random_state(random_state).randint(2**31 - 1))
        self.home = pick_device(device)
        self.n, self.d = self.source.shape
        self.groups = check_row_groups(row_groups, self.n)

    def splits(self, k: int, test_size: float, repeats: int | None) -> list[Split]:
        """``repeats`` random splits; by default one, or folds where rows are few."""
        check_number("test_size", test_size, above=0, below=1)
        check_whole("k", k, 1, self.d, ", the number of features")
        few = self.n < ROWS_PER_FEATURE * k
        if repeats is None and few:
            ways = [split_rows(self.n, min(FOLDS, self.n), self.seed, self.groups)]
        else:
            ways = [
                split_rows(self.n, float(test_size), self.seed + at, self.groups)
                for at in range(repeats or 1)
            ]
        folds = [
            fold
            for splits in ways
            for fold in fold_covariances(self.source, splits, self.scaling, self.home).folds
        ]
        device = float64_device(self.home)
        return [Split(fold, self._inner(fold) if few else None, device) for fold in folds]

    def train(self, split: Split) -> Source:
        """The training rows of a split, in the units of the data."""
        return RowView(self.source, split.fold.train_rows)

    def columns(self, features: Any) -> Columns:
        """Column numbers of features, which may be names or numbers."""
        features = list(features)
        if not features:
            raise InputError("the list of features is empty; give at least one")
        found = resolve(self.source.names, self.d, self.d, include=features)
        return found.include.copy()  # writable, as torch expects

    def named(self, columns: Columns) -> list[Any]:
        """Names of columns, or their numbers."""
        names = self.source.names
        return [int(j) if names is None else names[j] for j in columns]

    def _inner(self, fold: Fold) -> Fold | None:
        index = fold.train_rows
        labels = None if self.groups is None else self.groups[index]
        if len(index) < 5 or (labels is not None and len(np.unique(labels)) < 2):
            return None
        splits = split_rows(len(index), INNER, self.seed, labels)
        inner = fold_covariances(RowView(self.source, index), splits, self.scaling, self.home)
        return replace(inner.folds[0], center=fold.center, scale=fold.scale)


@dataclass(frozen=True, eq=False)
class FeatureScore:
    """How well a list of features reconstructs held-out rows.

    Attributes
    ----------
    explained_variance, explained_variance_standardized : float
        In the units of the data, as `Panel.score`, and with standardised features.
    errors, variances : ndarrays
        Mean squared error and variance per feature on the held-out rows.
    features, names : lists
        The features in column order, and the names of all of them if known.
    n_train, n_test, splits : int
        Rows that the decoder is fitted and scored on in each split, and the number of splits.

    Examples
    --------
    >>> from sklearn.datasets import load_wine
    >>> found = score_features(load_wine(as_frame=True).data, ["alcohol", "hue"], random_state=0)
    >>> found.features, 0 < found.explained_variance_standardized < 1
    (['alcohol', 'hue'], True)
    """

    explained_variance: float
    explained_variance_standardized: float
    errors: NDArray[np.float64]
    variances: NDArray[np.float64]
    features: list[Any]
    names: list[str] | None
    n_train: int
    n_test: int
    splits: int


@entry_point
def score_features(
    data: Any,
    features: Sequence[Any],
    *,
    test_size: float = 0.25,
    row_groups: Any = None,
    random_state: Any = None,
    device: str = "auto",
) -> FeatureScore:
    """Fit a linear decoder from a list of features on some rows and score it on the others.

    Parameters
    ----------
    features : sequence of names or column numbers
        The features to reconstruct from.
    test_size : float, default=0.25
        Fraction of rows held out; with fewer than 100 rows per feature, 5-fold cross-validation
        is used instead.
    data, row_groups, random_state, device
        As in `fewer.select`.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> found = score_features(load_iris().data, [0, 2], random_state=0)
    >>> round(found.explained_variance, 2), found.errors.shape
    (0.97, (4,))
    """
    rows = Rows(data, "standard", row_groups, random_state, device)
    columns = rows.columns(features)
    splits = rows.splits(len(columns), test_size, None)
    sizes = np.array([split.fold.n_held for split in splits])
    weights = sizes / sizes.sum()
    errors = weights @ np.stack([split.errors(columns) for split in splits])
    variances = weights @ np.stack([split.variances for split in splits])
    return FeatureScore(
        explained_variance=1 - float(errors.sum()) / max(float(variances.sum()), 1e-300),
        explained_variance_standardized=float(
            weights @ [split.explained_variance(columns) for split in splits]
        ),
        errors=errors,
        variances=variances,
        features=rows.named(columns),
        names=rows.source.names,
        n_train=splits[0].fold.n_train,
        n_test=splits[0].fold.n_held,
        splits=len(splits),
    )
