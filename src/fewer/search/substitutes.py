"""What would take the place of each chosen feature, and at what loss."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fewer.search.objective import covariance, regular_inverse

__all__ = ["swap_losses"]


def swap_losses(C: Any, S: Any, ridge: float = 0.0) -> NDArray[np.float32]:
    """By how much `residual` rises when each chosen feature is replaced by any other.

    All exchanges follow from one factorisation: with P = (C_SS + ridge I)^-1, V = P C_S and the
    residual E = C - C_S' V, taking feature i out adds v_i v_i' / P_ii back to E.

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
    array (k, d)
        Row i for S[i]; 0 at S[i] itself, infinite at the other chosen features.

    Examples
    --------
    >>> losses = swap_losses([[4.0, 3.9, 0], [3.9, 4.0, 0], [0, 0, 9.0]], [0, 2])
    >>> losses.round(2)
    array([[0. , 0. , inf],
           [inf, 8.8, 0. ]], dtype=float32)
    """
    matrix = covariance(C)
    chosen = torch.as_tensor(np.asarray(S, dtype=np.int64), device=matrix.device)
    rows = matrix[chosen]
    full = torch.ones(1, len(chosen), dtype=torch.bool, device=matrix.device)
    P = regular_inverse(rows[:, chosen][None], full, ridge)[0]
    V = P @ rows
    E = matrix - rows.T @ V
    # gain of adding j to what is left without i: |E_j + v_i V_ij / P_ii|^2 over its variance
    weight = V / P.diagonal()[:, None]
    top = E.square().sum(0) + 2 * weight * (V @ E) + weight.square() * V.square().sum(1)[:, None]
    bottom = E.diagonal() + weight * V + ridge
    least = 1e-10 * float(matrix.diagonal().max())
    gain = torch.where(bottom > least, top / bottom.clamp_min(least), 0.0)
    place = torch.arange(len(chosen), device=matrix.device)
    losses = (gain[place, chosen][:, None] - gain).clamp_min(0.0)
    losses[:, chosen] = torch.inf
    losses[place, chosen] = 0.0
    return losses.cpu().numpy().astype(np.float32)
