"""Eigenvectors of a symmetric matrix."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fewer._threads import for_matrix
from fewer.data.factored import FactoredCovariance, Matrix
from fewer.search.objective import ROUNDING

__all__ = [
    "largest_eigenvectors",
    "leading_eigenvectors",
    "smallest_eigenvectors",
    "without_chance",
]

Values = NDArray[np.float64]

WIDE = 2000  # columns, beyond which a few eigenvectors are found by subspace iteration
FEW = 5  # eigenvectors are few if there are so many columns for each
EXTRA, ROUNDS = 20, 5  # additional directions, and products, that make these precise enough
MOST_FACTORS = 200
RANK = 1e-12  # of the largest eigenvalue: smaller ones are rounding errors
CONSTANT = 1e-12  # of the largest variance: features with less do not vary
LEAST_NOISE = 0.05  # of the variance, as the unit of a feature
OWN = 0.5  # of the variance that a feature shares with no other: how much of it counts as signal


def smallest_eigenvectors(M: Values, count: int) -> tuple[Values, Values]:
    """The ``count`` smallest eigenvalues, ascending, and their vectors (d x count)."""
    return _eigenvectors(M, 0, count - 1)


def largest_eigenvectors(M: Values, count: int) -> tuple[Values, Values]:
    """The ``count`` largest eigenvalues, descending, and their vectors (d x count)."""
    values, vectors = _eigenvectors(M, len(M) - count, len(M) - 1)
    return values[::-1].copy(), vectors[:, ::-1].copy()


def leading_eigenvectors(
    C: Matrix, count: int, *, scale: Tensor | None = None, device: torch.device | None = None
) -> Tensor:
    """Eigenvectors (d x count) of the largest eigenvalues of a covariance, descending.

    With ``scale``, of the covariance of features multiplied by it. For a wide matrix, subspace
    iteration on ``device`` gives the sum of the eigenvalues, which reports show, to three digits;
    few rows give them exactly.
    """
    d = len(C)
    if isinstance(C, FactoredCovariance):
        rows = (C.rows if scale is None else C.rows * scale.to(C.device)).cpu()
        return _leading_of_rows(rows, min(count, d))
    unit = torch.ones(d, dtype=C.dtype) if scale is None else scale
    if d <= WIDE or FEW * (count + EXTRA) > d:
        matrix = (C.cpu() * (unit[:, None] * unit)).numpy()
        return torch.from_numpy(largest_eigenvectors(matrix, min(count, d))[1])
    rough = C.to(device=device, dtype=torch.float32)
    ratio = unit.to(rough)[:, None]
    axes = torch.randn(d, count + EXTRA, generator=torch.Generator().manual_seed(0)).to(rough)
    for _ in range(ROUNDS):
        axes = torch.linalg.qr(ratio * (rough @ (ratio * axes)))[0]
    inside = axes.T @ (ratio * (rough @ (ratio * axes)))
    turn = torch.linalg.eigh(inside + inside.T)[1].flip(1)[:, :count]
    return torch.linalg.qr((axes @ turn).cpu().double())[0]


def without_chance(C: Tensor, noise: Tensor, rows: int) -> Tensor:
    r"""The signal C behind measurement errors with its correlations shrunk to those of few factors.

    In units of the noise, the sample covariance of ``rows`` rows has eigenvalues up to
    :math:`\sigma^2 (1 + \sqrt{\gamma})^2`, :math:`\gamma = d / n`, by chance alone (Marchenko and
    Pastur, 1967). Larger ones, :math:`\lambda \sigma^2`, are shrunk as is best for the mean squared
    error (Donoho, Gavish and Johnstone, 2018), to :math:`(\ell - 1) c^2` with

    .. math:: \lambda = \ell \left(1 + \frac{\gamma}{\ell - 1}\right), \qquad
        c^2 = \frac{1 - \gamma / (\ell - 1)^2}{1 + \gamma / (\ell - 1)}.

    Others are dropped. Of the variance that a feature then shares with no other, half stays on the
    diagonal: it is known least, since whatever the noise is estimated too small by is part of it.
    """
    d, diagonal = len(C), C.diagonal().cpu()
    measured = (diagonal + noise).clamp_min(0.0)
    varies = measured > CONSTANT * measured.max()  # in a fold some features may not
    unit = torch.where(varies, torch.maximum(noise, LEAST_NOISE * measured).rsqrt(), 0.0)
    whole = C.cpu().clone()
    whole.diagonal().copy_(measured)
    vectors = leading_eigenvectors(whole, min(d, MOST_FACTORS), scale=unit)
    turned = (whole * (unit[:, None] * unit)) @ vectors
    values = (vectors * turned).sum(0)
    gamma, left = d / rows, float((measured * unit.square()).sum())
    count, level = 0, left / d
    while (found := int((values > level * (1 + gamma**0.5) ** 2).sum())) > count:
        # factors without noise leave nothing but rounding errors
        rest = max(left - float(values[:found].sum()), ROUNDING * left)
        count, level = found, rest / (d - found)
    vectors, ratio = vectors[:, :count], values[:count] / level
    middle = ratio + 1 - gamma
    spike = (middle + (middle.square() - 4 * ratio).clamp_min(0.0).sqrt()) / 2 - 1
    cosine = (1 - gamma / spike.square()).clamp_min(0.0) / (1 + gamma / spike)
    back = torch.where(varies, 1 / unit, 0.0)
    factors = vectors * back[:, None] * (level * spike * cosine).sqrt()
    shrunk = factors @ factors.T
    shared = shrunk.diagonal().clone()
    shrunk.diagonal().copy_(shared + OWN * (diagonal - shared).clamp_min(0.0))
    return shrunk.to(C.device)


def _leading_of_rows(X: Tensor, count: int) -> Tensor:
    """Leading eigenvectors of X' X from those of X X'; beyond its rank any orthogonal ones."""
    values, left = largest_eigenvectors((X @ X.T).numpy(), min(count, len(X)))
    kept = int((values > RANK * values[0]).sum())
    vectors = X.T @ torch.from_numpy(left[:, :kept])
    extra = torch.randn(
        X.shape[1], count - kept, generator=torch.Generator().manual_seed(0), dtype=X.dtype
    )
    # QR also removes what rounding has left of large eigenvectors in small ones
    found, triangle = torch.linalg.qr(torch.cat([vectors, extra], dim=1))
    return found * triangle.diagonal().sign()


def _eigenvectors(M: Values, first: int, last: int) -> tuple[Values, Values]:
    from scipy.linalg import eigh  # noqa: PLC0415 (8 MB, which a linear panel does not need)

    with for_matrix(len(M)):
        return eigh(M, subset_by_index=(first, last))
