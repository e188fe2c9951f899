"""What all baselines share: rows in, k columns out, and the exact linear decoder for them."""

from abc import abstractmethod
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray

from fewer._threads import entry_point
from fewer.constraints import check_k
from fewer.data import Moments, Source
from fewer.data.source import blocks
from fewer.estimators import FeatureSelector

Columns = NDArray[np.int64]
Values = NDArray[np.float64]


CHOSEN = """columns_ : ndarray of int
    The chosen columns, ascending.
order_ : ndarray of int
    The chosen columns in the order of the method, most important first.
decoder_ : fewer.nn.MeasuredDecoder
    Least squares from the k measured values to all features."""
RANKED = f"""{CHOSEN}
ranking_ : ndarray of shape (n_features,)
    All columns, best first; of equal ones, the one of larger variance."""


class Baseline(FeatureSelector):
    """Base of all baselines; a subclass says which columns, by `_choose`."""

    _shared_texts = FeatureSelector._shared_texts | {
        "k": "k : int, default=10\n    Number of features to choose.",
        "chosen": CHOSEN,
        "ranked": RANKED,
    }
    _saved: ClassVar[dict[str, str]] = {"order_": "array"}

    @entry_point
    def fit(self, X: Any, y: Any = None) -> Self:
        """Choose features of X and fit the linear decoder by least squares.

        Parameters
        ----------
        X : array, sparse matrix or table of shape (n, n_features)
            Rows to learn from; NaN counts as its column's mean.
        y : ignored
        """
        X = self._validated(X, reset=True)
        self._check_options(*X.shape)
        source, stats = self._opened(X)
        self.order_ = self._choose(source, stats, self._rng())
        columns = np.sort(self.order_)
        self.decoder_ = self._linear_decoder(source, stats, columns)
        self.columns_ = columns  # last, since it marks the estimator as fitted
        return self

    def _check_options(self, n: int, d: int) -> None:
        """Refuse options that cannot be used with n rows of d features."""
        check_k(self.k, d)

    @abstractmethod
    def _choose(self, source: Source, stats: Moments, rng: np.random.RandomState) -> Columns:
        """Choose columns, all different, most important first."""


class RankingBaseline(Baseline):
    """Base of methods that give each feature a score and take the k best."""

    _saved: ClassVar[dict[str, str]] = Baseline._saved | {
        "scores_": "tensor",
        "ranking_": "tensor",
    }
    smallest_is_best: ClassVar[bool] = False

    def _choose(self, source: Source, stats: Moments, rng: np.random.RandomState) -> Columns:
        self.scores_ = self._scores(source, stats, rng)
        descending = self.scores_ if self.smallest_is_best else -self.scores_
        self.ranking_ = np.lexsort((-stats.variance, descending))  # ties by variance
        return self.ranking_[: self.k]

    @abstractmethod
    def _scores(self, source: Source, stats: Moments, rng: np.random.RandomState) -> Values:
        """Score all d features."""


class RowRankingBaseline(RankingBaseline):
    """Base of methods that score the columns of dense rows."""

    def _scores(self, source: Source, stats: Moments, rng: np.random.RandomState) -> Values:
        # constant features get the worst score that there is
        scores = np.full(source.shape[1], np.inf if self.smallest_is_best else 0.0)
        rows, varying = varying_rows(source, stats)
        if len(varying):
            scores[varying] = self._row_scores(rows, rng)
        return scores

    @abstractmethod
    def _row_scores(self, rows: Values, rng: np.random.RandomState) -> Values:
        """Score the columns of dense centred rows."""


class SubsetBaseline(Baseline):
    """Base of methods that choose a set of columns of dense rows."""

    def _choose(self, source: Source, stats: Moments, rng: np.random.RandomState) -> Columns:
        rows, varying = varying_rows(source, stats)
        size = min(int(self.k or 0), len(varying))
        chosen = varying[self._subset(rows, size, rng)] if size else varying
        # where fewer features differ than are asked for, the rest of the panel is free
        rest = np.argsort(-stats.variance, kind="stable")
        return np.concatenate([chosen, rest[~np.isin(rest, chosen)]])[: self.k]

    @abstractmethod
    def _subset(self, rows: Values, k: int, rng: np.random.RandomState) -> Columns:
        """At most k columns of dense centred rows, all different, most important first."""


def varying_rows(source: Source, stats: Moments) -> tuple[Values, Columns]:
    """Centred rows of the columns that vary, gaps filled with the column's mean, and which."""
    # a constant column has undefined graph scores (0 / 0), and is a perfect direction for methods
    # that look for small variance within neighbourhoods
    varying = np.flatnonzero(~stats.constant)
    n, d = source.shape
    rows = np.empty((n, len(varying)))
    for part in blocks(n, d):
        x = source.rows(part, torch.float64).numpy()[:, varying]
        rows[part] = np.nan_to_num(x - stats.mean[varying], nan=0.0)
    return rows, varying


def row_lengths(W: Values) -> Values:
    """Length of each row; their sum is the l2,1 norm."""
    return np.sqrt(np.einsum("dc,dc->d", W, W))
