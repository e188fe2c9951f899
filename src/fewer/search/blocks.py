"""Units of several features: blocks of the residual covariance, and what each explains.

Without groups a unit is one feature, m is 1, and a block is a number.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from fewer.constraints import Constraints

__all__ = ["block_gain", "outer", "padded", "unit_blocks", "unit_table"]


def unit_table(constraints: Constraints, device: torch.device) -> Tensor:
    """Features of each unit (units x m), filled up with d, the number of no feature."""
    width = max(len(unit) for unit in constraints.units)
    table = np.full((len(constraints.units), width), constraints.d)
    for row, unit in zip(table, constraints.units, strict=True):
        row[: len(unit)] = unit
    return torch.as_tensor(table, device=device)


def padded(x: Tensor) -> Tensor:
    """`x` with one more last column of zeros, so that feature d reads as zero."""
    return torch.cat([x, x.new_zeros(*x.shape[:-1], 1)], dim=-1)


def outer(a: Tensor, b: Tensor) -> Tensor:
    """Outer products over the last axis: (..., m) and (..., m) to (..., m, m)."""
    return a[..., :, None] * b[..., None, :]


def unit_blocks(
    rows_of: Callable[[Tensor], Tensor], table: Tensor, d: int
) -> tuple[Tensor, Tensor]:
    """Blocks of a symmetric d x d matrix, and of its square, on each unit (units x m x m).

    `rows_of` gives rows of the matrix by number, so that it need not exist as a whole.
    """
    width = table.shape[1]
    blocks, squares = [], []
    for part in table.split(max(1, 2**22 // (d * width))):
        rows = rows_of(part.clamp_max(d - 1).flatten()).view(*part.shape, d)
        rows = rows * (part < d)[..., None]
        squares.append(rows @ rows.mT)
        blocks.append(padded(rows).gather(2, part[:, None].expand(-1, width, -1)))
    return torch.cat(blocks), torch.cat(squares)


def block_gain(E: Tensor, EE: Tensor, least: Tensor, ridge: float) -> tuple[Tensor, Tensor]:
    r"""What taking a whole unit J explains: :math:`tr((E_{JJ} + \lambda I)^{-1} (E^2)_{JJ})`.

    Features of the unit are eliminated one by one, largest rest first, as greedy would
    take them, so that features that depend on others of their unit add nothing.

    Parameters
    ----------
    E, EE : tensors, ... x m x m
        Blocks of the residual covariance and of its square.
    least : tensor, ... x m
        What must be left of each feature's variance for it not to count as dependent.
    ridge : float

    Returns
    -------
    gain : tensor
    informative : boolean tensor
        False where every feature of the unit depends on what was taken.

    Examples
    --------
    >>> E = torch.tensor([[[4.0]], [[0.0]]])
    >>> gain, informative = block_gain(E, E * E, torch.full((2, 1), 1e-9), 0.0)
    >>> gain.tolist(), informative.tolist()
    ([4.0, 0.0], [True, False])
    """
    if E.shape[-1] == 1:
        gain, useful, _ = _pivot(E[..., 0, 0], EE[..., 0, 0], least[..., 0], ridge)
        return gain, useful
    total = torch.zeros_like(E[..., 0, 0])
    informative = torch.zeros_like(total, dtype=torch.bool)
    for _ in range(E.shape[-1]):
        rest = E.diagonal(dim1=-2, dim2=-1)
        at = rest.masked_fill(rest <= least, -1.0).argmax(-1, keepdim=True)  # ... x 1
        column = at[..., None].expand(*E.shape[:-1], 1)
        e, ee = E.gather(-1, column)[..., 0], EE.gather(-1, column)[..., 0]  # ... x m
        e_j, ee_j, least_j = (x.gather(-1, at)[..., 0] for x in (e, ee, least))
        gain, useful, pivot = _pivot(e_j, ee_j, least_j, ridge)
        total = total + gain
        informative |= useful
        # With w = e / sqrt(pivot) and h = E w = ee / sqrt(pivot), E loses w w^T and its
        # square h w^T + w h^T - |w|^2 w w^T; all is 0 where nothing useful is left.
        w = e / pivot[..., None]
        X = outer(w, ee - gain[..., None] / 2 * e)
        EE = EE - X - X.mT
        E = E - outer(w, e)
    return total, informative


def _pivot(e: Tensor, ee: Tensor, least: Tensor, ridge: float) -> tuple[Tensor, Tensor, Tensor]:
    """Gain |E_j|^2 / (E_jj + ridge), whether E_jj is more than rounding, and the divisor."""
    useful = e > least
    pivot = (e + ridge).masked_fill(~useful, torch.inf)
    # |E_j| is at least E_jj; rounding may say otherwise when little is left.
    return torch.maximum(ee, e * e) / pivot, useful, pivot
