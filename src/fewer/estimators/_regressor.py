"""Choose k features that predict numbers."""

from typing import Any, Self

import numpy as np
import torch
from sklearn.base import RegressorMixin
from sklearn.utils import Tags
from torch import Tensor

from fewer.errors import translate_sklearn_errors
from fewer.estimators._parameters import documented
from fewer.estimators._supervised import SupervisedEstimator
from fewer.train.launch import shared

__all__ = ["ConcreteRegressor"]


@documented
class ConcreteRegressor(RegressorMixin, SupervisedEstimator):
    """Choose the k features from which one or many targets are best predicted.

    Features enter at their own scale: put a scaler in front where their units differ. Many
    targets count by their own variance, as in squared error over all of them.

    Parameters
    ----------
    {parameters}

    Attributes
    ----------
    {attributes}

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> X, y = load_diabetes(return_X_y=True)
    >>> model = ConcreteRegressor(k=4, decoder="linear", random_state=0).fit(X[:300], y[:300])
    >>> model.score(X[300:], y[300:]) > 0.4
    True
    """

    @shared
    def fit(self, X: Any, y: Any) -> Self:
        """Choose features of X and fit the predictor.

        Parameters
        ----------
        X : array, sparse matrix, table, path or source of shape (n, n_features)
            Rows to learn from, or where `fewer.data.open` finds them;
            missing values, NaN, take the mean of their column.
        y : array of shape (n,) or (n, m)
            One target or many.
        """
        X, y = self._validated_pair(X, y, multi_output=True, y_numeric=True)
        self._one_target = y.ndim == 1
        with translate_sklearn_errors():
            targets = torch.from_numpy(np.array(y.reshape(len(y), -1), dtype=np.float64))
        return self._fit(X, targets, targets.shape[1])

    def predict(self, X: Any) -> np.ndarray:
        """Targets for whole rows; only their chosen features are read."""
        return self._shaped(self._predict_rows(X))

    def predict_measured(self, measured: Any) -> np.ndarray:
        """Targets from the k measured values alone."""
        return self._shaped(self._decode_measured(measured))

    def _shaped(self, values: np.ndarray) -> np.ndarray:
        return values[:, 0] if self._one_target else values

    def _extra_meta(self) -> dict[str, Any]:
        return super()._extra_meta() | {"one_target": self._one_target}

    def _restore_extra(self, meta: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        super()._restore_extra(meta, tensors)
        self._one_target = meta["one_target"]

    def __sklearn_tags__(self) -> Tags:
        """Say that targets are required and may be many."""
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        tags.target_tags.multi_output = True
        tags.target_tags.single_output = True
        return tags
