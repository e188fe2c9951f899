"""In which order the features of a panel earn their place."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fewer.search.objective import DEPENDENT, check_ridge, covariance

__all__ = ["nested"]


def nested(C: Any, S: Any, ridge: float = 0.0) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Put chosen features in order, each the best next step inside the panel.

    The same order as `greedy` gives where all other features are excluded, but only the k rows of
    C that belong to the panel are worked on.

    Parameters
    ----------
    C : array or tensor, d x d
        Covariance.
    S : sequence of int
        The chosen columns.
    ridge : float
        The penalty of `residual`.

    Returns
    -------
    order : array of int (k)
        The columns, most useful first.
    gains : array (k)
        By how much each lowers the residual after those before it.

    Examples
    --------
    >>> order, gains = nested([[4.0, 0, 0], [0, 9.0, 0], [0, 0, 1.0]], [0, 1])
    >>> order, gains
    (array([1, 0]), array([9., 4.]))
    """
    matrix, ridge = covariance(C), check_ridge(ridge)
    columns = torch.as_tensor(np.asarray(S, dtype=np.int64), device=matrix.device)
    places = torch.arange(len(columns), device=matrix.device)
    left = matrix[columns]  # k x d: rows of what the features so far leave
    floor = DEPENDENT * left[places, columns]
    free = torch.ones(len(columns), dtype=torch.bool, device=matrix.device)
    order, gains = [], []
    for _ in range(len(columns)):
        own = left[places, columns]
        gain = torch.where(own > floor, left.square().sum(1) / (own + ridge), 0.0)
        pick = int(gain.masked_fill(~free, -torch.inf).argmax())
        order.append(pick)
        gains.append(float(gain[pick]))
        free[pick] = False
        if gains[-1] > 0:  # a dependent column changes nothing
            taken = left[pick] / (own[pick] + ridge)
            left = left - left[:, columns[pick], None] * taken
    return columns.cpu().numpy()[order], np.array(gains)
