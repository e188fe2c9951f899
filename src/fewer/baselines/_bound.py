"""What the two bounds share: k numbers computed from all features, not k of the features."""

from abc import abstractmethod
from typing import Any, Self

import numpy as np
import torch
from scipy import sparse
from sklearn.base import BaseEstimator
from sklearn.utils import Tags, check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import nn

from fewer._checks import check_observed
from fewer.constraints import check_k
from fewer.data import Moments, Source, as_array, check_values, moments, open_source
from fewer.errors import NotFittedError, translate_sklearn_errors
from fewer.nn import MeasuredDecoder
from fewer.reconstructor import run_decoder
from fewer.train.explained import explained_variance

__all__ = ["Bound"]


class Bound(BaseEstimator):
    """Base of the bounds; a subclass learns ``autoencoder_``, whole rows in and out.

    There is no ``transform``: a bound chooses no features, it shows what k numbers can hold.
    """

    k: int
    autoencoder_: MeasuredDecoder

    def fit(self, X: Any, y: Any = None) -> Self:
        """Learn from the rows of X.

        Parameters
        ----------
        X : array, sparse matrix or table of shape (n, n_features)
            Rows to learn from; as input, NaN counts as its column's mean.
        y : ignored
        """
        X = self._validated(X, reset=True)
        self._check_options(X.shape[1])
        source = open_source(X)
        stats = moments(source)
        check_observed(stats.observed, getattr(self, "feature_names_in_", None))
        with translate_sklearn_errors():
            rng = check_random_state(getattr(self, "random_state", None))
        net, scale = self._learn(source, stats, rng)
        mean = torch.from_numpy(stats.mean)
        self.autoencoder_ = MeasuredDecoder(
            net.double(),
            fill=mean,
            center=mean,
            scale=torch.full_like(mean, scale),
            out_center=mean,
            out_scale=torch.tensor(scale, dtype=torch.float64),
        ).eval()
        return self

    def _check_options(self, d: int) -> None:
        check_k(self.k, d)

    @abstractmethod
    def _learn(
        self, source: Source, stats: Moments, rng: np.random.RandomState
    ) -> tuple[nn.Module, float]:
        """Learn a network on rows less their mean, divided by a number; and that number."""

    def reconstruct(self, X: Any) -> np.ndarray:
        """Whole rows from whole rows, by way of k numbers for each."""
        self._check_fitted()
        X = self._validated(X, reset=False)
        return run_decoder(self.autoencoder_, X.toarray() if sparse.issparse(X) else X)

    def score(self, X: Any, y: Any = None) -> float:
        """1 - SSE / SST over all observed entries: 1 is perfect, 0 as good as the means of X.

        Parameters
        ----------
        X : array, sparse matrix or table of shape (n, n_features)
            Whole rows.
        y : ignored
        """
        self._check_fitted()
        source = open_source(self._validated(X, reset=False))
        return explained_variance(self.autoencoder_, source, np.arange(source.shape[1]))[0]

    def _validated(self, X: Any, *, reset: bool) -> Any:
        with translate_sklearn_errors():
            X = validate_data(
                self,
                as_array(X),
                reset=reset,
                accept_sparse=("csr", "csc"),
                dtype="numeric",
                ensure_all_finite=False,
                ensure_min_samples=2 if reset else 1,
            )
        check_values(X, getattr(self, "feature_names_in_", None))
        return X

    def _check_fitted(self) -> None:
        if not hasattr(self, "autoencoder_"):
            raise NotFittedError(f"this {type(self).__name__} is not fitted yet; call fit(X) first")
        check_is_fitted(self)

    def __sklearn_tags__(self) -> Tags:
        """Say that sparse input and missing values are welcome."""
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.input_tags.allow_nan = True
        return tags
