"""What depends on each feature of a panel: the loss of every feature without it."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fewer.constraints import Constraints
from fewer.search.objective import check_penalty, covariance, penalty_at, regular_inverse

__all__ = ["dependence"]


def dependence(
    C: Any, S: Any, constraints: Constraints | None = None, ridge: Any = 0.0
) -> NDArray[np.float64]:
    r"""Increase of the residual of each feature without each feature of a panel (k x d).

    The decoder is fitted again. With :math:`P = (C_{SS} + \lambda I)^{-1}` and
    :math:`V = P C_S`, taking out the features u adds :math:`V_u^\top P_{uu}^{-1} V_u` to the
    covariance of the residuals. A feature of a group goes together with its group.

    Examples
    --------
    >>> dependence([[1.0, 0.5, 0.0], [0.5, 1.0, 0.0], [0.0, 0.0, 1.0]], [0, 2]).round(2)
    array([[1.  , 0.25, 0.  ],
           [0.  , 0.  , 1.  ]])
    """
    penalty = check_penalty(ridge, len(C))
    matrix = covariance(C, penalty=penalty)
    panel = np.asarray(S, dtype=np.int64)
    at = torch.as_tensor(panel, device=matrix.device)
    rows = matrix[at]  # k x d
    full = torch.ones_like(at, dtype=torch.bool)[None]
    P = regular_inverse(rows[:, at][None].clone(), full, penalty_at(penalty, at[None]))[0]
    V = P @ rows
    units = panel if constraints is None else constraints.unit_of[panel]
    found = torch.empty_like(V)
    for unit in np.unique(units):
        own = torch.from_numpy(np.flatnonzero(units == unit)).to(V.device)
        R = torch.linalg.inv(P[own][:, own])
        found[own] = (V[own] * (R @ V[own])).sum(0).clamp_min(0.0)
    return found.cpu().numpy()
