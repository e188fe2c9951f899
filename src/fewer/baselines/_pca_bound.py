"""What k linear combinations of all features can hold: no linear panel of k can do better."""

import numpy as np
import torch
from torch import nn

from fewer.baselines._bound import Bound
from fewer.baselines._eigen import largest_eigenvectors
from fewer.data import Moments, Source, covariance

__all__ = ["PCABound"]


class PCABound(Bound):
    """Bound of every linear panel: reconstruct rows from their k leading principal components.

    Parameters
    ----------
    k : int, default=10
        How many components.

    Attributes
    ----------
    components_ : ndarray of shape (k, n_features)
        Orthonormal directions, the one of largest variance first.
    eigenvalues_ : ndarray of shape (k,)
        The variance along each.
    residual_ : float
        Sum over all features of the variance left unexplained on the training rows: the sum of
        all other eigenvalues. No k features leave less to a linear decoder.
    autoencoder_ : fewer.nn.MeasuredDecoder
        Whole rows in, whole rows out.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> X = load_iris().data
    >>> bound = PCABound(k=2).fit(X)
    >>> round(bound.residual_, 3), round(bound.score(X), 3)
    (0.101, 0.978)
    """

    components_: np.ndarray
    eigenvalues_: np.ndarray
    residual_: float

    def __init__(self, k: int = 10) -> None:
        self.k = k

    def _learn(
        self, source: Source, stats: Moments, rng: np.random.RandomState
    ) -> tuple[nn.Module, float]:
        C = covariance(source).matrix.numpy()
        self.eigenvalues_, vectors = largest_eigenvectors(C, self.k)
        self.components_ = vectors.T
        self.residual_ = max(0.0, float(C.trace() - self.eigenvalues_.sum()))
        return projection(self.components_), 1.0


def projection(components: np.ndarray) -> nn.Sequential:
    """Linear encoder to the components and linear decoder back, both d x k.

    Examples
    --------
    >>> projection(np.array([[1.0, 0.0]]))(torch.tensor([[3.0, 4.0]]).double())
    tensor([[3., 0.]], dtype=torch.float64, grad_fn=...)
    """
    k, d = components.shape
    # not initialised: that would draw from the caller's random numbers
    encoder = nn.utils.skip_init(nn.Linear, d, k, bias=False, dtype=torch.float64)
    decoder = nn.utils.skip_init(nn.Linear, k, d, bias=False, dtype=torch.float64)
    with torch.no_grad():
        encoder.weight.copy_(torch.from_numpy(components))
        decoder.weight.copy_(torch.from_numpy(components.T))
    return nn.Sequential(encoder, decoder)
