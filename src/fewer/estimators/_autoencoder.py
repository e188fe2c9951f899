"""Choose k features from which all features can be reconstructed."""

from typing import Any, Self

import numpy as np
import torch

from fewer.data import blocks, open_source
from fewer.estimators._concrete import ConcreteEstimator
from fewer.estimators._parameters import documented

__all__ = ["ConcreteAutoencoder"]


@documented
class ConcreteAutoencoder(ConcreteEstimator):
    """Choose the k features from which all others are best reconstructed.

    A selector layer and a decoder are trained together; the temperature of the selector falls
    until each of its k nodes passes on a single feature (Abid, Balin and Zou, 2019). The choice
    is made distinct, and the decoder fitted anew on it. Features enter at their own scale: put
    a scaler in front where their units differ.

    Parameters
    ----------
    {parameters}

    Attributes
    ----------
    {attributes}

    See Also
    --------
    fewer.PAPER : the settings of the paper, as ``ConcreteAutoencoder(k, **fewer.PAPER)``.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> X = load_digits().data
    >>> cae = ConcreteAutoencoder(k=10, random_state=0).fit(X[:1400])
    >>> measured = cae.transform(X[1400:])
    >>> measured.shape, cae.inverse_transform(measured).shape
    ((397, 10), (397, 64))
    >>> cae.score(X[1400:]) > 0.5
    True
    """

    def fit(self, X: Any, y: Any = None) -> Self:
        """Choose features of X and fit the decoder.

        Parameters
        ----------
        X : array, sparse matrix or table of shape (n, n_features)
            Rows to learn from; NaN marks missing values, which the loss leaves out.
        y : ignored
        """
        return self._fit(self._validated(X, reset=True))

    def score(self, X: Any, y: Any = None) -> float:
        """1 - SSE / SST over all observed entries: 1 is perfect, 0 as good as the means of X.

        Parameters
        ----------
        X : array, sparse matrix or table of shape (n, n_features)
            Whole rows; they are reconstructed from their chosen features alone.
        y : ignored
        """
        self._check_fitted()
        X = self._validated(X, reset=False)
        source, columns = open_source(X), self._columns
        n, d = source.shape
        count, first, second = (torch.zeros(d, dtype=torch.float64) for _ in range(3))
        wrong = 0.0
        with torch.no_grad():
            for rows in blocks(n, d):
                x = source.rows(rows, torch.float64)
                seen = ~torch.isnan(x)
                error = self.decoder_(x[:, columns]) - x
                wrong += float(torch.where(seen, error, 0.0).square().sum())
                # about the training means, so that the sums stay accurate
                shifted = torch.where(seen, x - self._shift(), 0.0)
                count += seen.sum(0)
                first += shifted.sum(0)
                second += shifted.square().sum(0)
        total = float((second - first.square() / count.clamp_min(1)).sum())
        if total <= 0:
            return float(wrong == 0)
        return 1.0 - wrong / total

    def _shift(self) -> torch.Tensor:
        middle = self.decoder_(self.decoder_.fill[None])[0]
        return torch.nan_to_num(middle)

    def reconstruct(self, X: Any) -> np.ndarray:
        """Whole rows from whole rows, by way of the chosen features alone."""
        return self._predict_rows(X)
