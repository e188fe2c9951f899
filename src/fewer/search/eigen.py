"""Eigenvectors of a symmetric matrix."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fewer._threads import for_matrix
from fewer.data.factored import FactoredCovariance, Matrix

__all__ = ["largest_eigenvectors", "leading_eigenvectors", "smallest_eigenvectors"]

Values = NDArray[np.float64]

WIDE = 2000  # columns, beyond which a few eigenvectors are found by subspace iteration
EXTRA, ROUNDS = 20, 5  # additional directions, and products, that make these precise enough


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
    if d <= WIDE or 5 * (count + EXTRA) > d:
        matrix = (C.cpu() * (unit[:, None] * unit)).numpy()
        return torch.from_numpy(largest_eigenvectors(matrix, min(count, d))[1])
    home = C.device if device is None else device
    rough = C.to(device=home, dtype=torch.float32)
    ratio = unit.to(device=home, dtype=torch.float32)[:, None]
    axes = torch.randn(d, count + EXTRA, generator=torch.Generator().manual_seed(0)).to(home)
    for _ in range(ROUNDS):
        axes = torch.linalg.qr(ratio * (rough @ (ratio * axes)))[0]
    inside = axes.T @ (ratio * (rough @ (ratio * axes)))
    turn = torch.linalg.eigh(inside + inside.T)[1].flip(1)[:, :count]
    return torch.linalg.qr((axes @ turn).cpu().double())[0]


def _leading_of_rows(X: Tensor, count: int) -> Tensor:
    """Leading eigenvectors of X' X from those of X X'; beyond its rank any orthogonal ones."""
    values, left = largest_eigenvectors((X @ X.T).numpy(), min(count, len(X)))
    kept = int((values > max(values[0], 1e-300) * len(X) * np.finfo(float).eps).sum())
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
