"""Choose k features that tell classes apart."""

from typing import Any, Self

import numpy as np
import torch
from sklearn.base import ClassifierMixin
from sklearn.utils import Tags
from sklearn.utils.multiclass import check_classification_targets
from torch import Tensor

from fewer.errors import InputError, translate_sklearn_errors
from fewer.estimators._parameters import documented
from fewer.estimators._supervised import SupervisedEstimator
from fewer.storage import describe_labels, restore_labels
from fewer.train.launch import shared

__all__ = ["ConcreteClassifier"]


@documented
class ConcreteClassifier(ClassifierMixin, SupervisedEstimator):
    """Choose the k features from which a class is best predicted.

    The decoder behind the selector is a classifier and the loss its cross-entropy. Features
    enter at their own scale: put a scaler in front where their units differ.

    Parameters
    ----------
    {parameters}

    Attributes
    ----------
    classes_ : ndarray
        The class labels.
    {attributes}

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> X, y = load_digits(return_X_y=True)
    >>> model = ConcreteClassifier(k=15, random_state=0).fit(X[:1400], y[:1400])
    >>> model.score(X[1400:], y[1400:]) > 0.8
    True
    >>> model.predict_measured(model.transform(X[1400:1402])).shape
    (2,)
    """

    _auto_loss = "cross_entropy"

    @shared
    def fit(self, X: Any, y: Any) -> Self:
        """Choose features of X and fit the classifier.

        Parameters
        ----------
        X : array, sparse matrix, table, path or source of shape (n, n_features)
            Rows to learn from, or where `fewer.data.open` finds them;
            missing values, NaN, take the mean of their column.
        y : array of shape (n,)
            A class label for each row.
        """
        X, y = self._validated_pair(X, y)
        with translate_sklearn_errors():
            check_classification_targets(y)
        self.classes_, codes = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise InputError(
                f"y has one class only, {self.classes_[0]!r}; a classifier needs at least 2"
            )
        return self._fit(X, torch.from_numpy(codes.astype(np.int64)), len(self.classes_))

    def predict_proba(self, X: Any) -> np.ndarray:
        """Probability of each class, for whole rows; only their chosen features are read."""
        return self._predict_rows(X)

    def predict(self, X: Any) -> np.ndarray:
        """Likeliest class, for whole rows; only their chosen features are read."""
        best = self.predict_proba(X).argmax(axis=1)
        return self.classes_[best]

    def predict_proba_measured(self, measured: Any) -> np.ndarray:
        """Probability of each class from the k measured values alone."""
        return self._decode_measured(measured)

    def predict_measured(self, measured: Any) -> np.ndarray:
        """Likeliest class from the k measured values alone."""
        best = self.predict_proba_measured(measured).argmax(axis=1)
        return self.classes_[best]

    def _extra_meta(self) -> dict[str, Any]:
        labels, dtype = describe_labels(self.classes_)
        return super()._extra_meta() | {"classes": labels, "classes_dtype": dtype}

    def _restore_extra(self, meta: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        super()._restore_extra(meta, tensors)
        self.classes_ = restore_labels(meta["classes"], meta["classes_dtype"])

    def __sklearn_tags__(self) -> Tags:
        """Say that labels are required."""
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        return tags
