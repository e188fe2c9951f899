"""Prediction of the missing values of a row from those that are present.

With P the inverse of the covariance of the columns, M the missing values of a row and O the others,
the best linear prediction is

    x_M = mean_M - (P_MM)^-1 P_MO (x_O - mean_O),

and the covariance of its error is (P_MM)^-1: what has to be solved is as large as the number of
missing values, not as the number of those present.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["complete", "complete_row", "gap_patterns"]

Values = NDArray[np.float64]

SOLVED = 2**22  # numbers in the matrices that are solved at a time


def complete(values: Tensor, mean: Tensor, precision: Tensor) -> Tensor:
    """Replace NaN by the best linear prediction from the other values of its row.

    Every pattern of missing values is solved once, those of the same size together.

    Examples
    --------
    >>> mean, covariance = torch.zeros(2), torch.tensor([[1.0, 0.8], [0.8, 1.0]])
    >>> complete(torch.tensor([[float("nan"), 2.0], [1.0, 3.0]]), mean, covariance.inverse())
    tensor([[1.6000, 2.0000],
            [1.0000, 3.0000]])
    """
    gaps = torch.isnan(values)
    if not gaps.any():
        return values
    if len(values) == 1 and values.dtype == torch.float64:
        parts = (part.detach().numpy() for part in (values[0], mean, precision))
        return torch.from_numpy(complete_row(*parts))[None]
    rows = torch.nonzero(gaps.any(1))[:, 0]
    patterns, which = (torch.from_numpy(part) for part in gap_patterns(gaps[rows].numpy()))
    pull = torch.where(gaps[rows], 0.0, values[rows] - mean) @ precision  # (P (x - mean))
    found = values.clone()
    sizes = patterns.sum(1)
    for size in sizes.unique().tolist():
        some = torch.nonzero(sizes == size)[:, 0]
        step = max(1, SOLVED // size**2)
        for chosen in some.split(step):
            gone = torch.nonzero(patterns[chosen])[:, 1].reshape(len(chosen), size)
            block = precision[gone[:, :, None], gone[:, None, :]]  # P_MM of each pattern
            inverse = torch.cholesky_inverse(torch.linalg.cholesky(block))
            place = torch.full((len(patterns),), -1)
            place[chosen] = torch.arange(len(chosen))
            for at in torch.nonzero(place[which] >= 0)[:, 0].split(step):
                own = place[which[at]]
                columns = gone[own]
                guess = -(inverse[own] @ pull[at[:, None], columns][:, :, None])[:, :, 0]
                found[rows[at][:, None], columns] = guess + mean[columns]
    return found


def complete_row(values: Values, mean: Values, precision: Values) -> Values:
    """`complete` for one row, in NumPy: torch takes longer to start than this to compute."""
    gaps = np.isnan(values)
    gone = np.flatnonzero(gaps)
    found = np.where(gaps, mean, values)
    if len(gone):
        columns = precision[:, gone]
        found[gone] -= np.linalg.solve(columns[gone], (found - mean) @ columns)
    return found


def gap_patterns(gaps: NDArray[np.bool_]) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    """The distinct rows of a mask, and which of them each row is."""
    if len(gaps) == 1:
        return gaps, np.zeros(1, dtype=np.int64)
    packed = np.ascontiguousarray(np.packbits(gaps, axis=1))
    keys = packed.view(np.dtype((np.void, packed.shape[1])))[:, 0]
    _, first, which = np.unique(keys, return_index=True, return_inverse=True)
    return gaps[first], which.astype(np.int64)
