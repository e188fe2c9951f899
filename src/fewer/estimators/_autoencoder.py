"""Choose k features from which all features can be reconstructed."""

from typing import Any, Self

from fewer.estimators._concrete import ConcreteEstimator
from fewer.estimators._parameters import documented
from fewer.train.launch import shared

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

    @shared
    def fit(self, X: Any, y: Any = None) -> Self:
        """Choose features of X and fit the decoder.

        Parameters
        ----------
        X : array, sparse matrix, table, path or source of shape (n, n_features)
            Rows to learn from, or where `fewer.data.open` finds them;
            NaN marks missing values, which the loss leaves out.
        y : ignored
        """
        return self._fit(self._validated(X, reset=True))
