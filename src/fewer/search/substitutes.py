"""Substitutes for each feature of a panel, within its constraints."""

import numpy as np
import torch
from numpy.typing import NDArray

from fewer.constraints import Constraints
from fewer.data.factored import Matrix
from fewer.search.exchange import Limits, Places, whole_exchange
from fewer.search.greedy import Deflation, block_gain
from fewer.search.objective import ROUNDING, Penalty, residual_of

__all__ = ["substitutes"]

Columns = NDArray[np.int64]


def substitutes(
    C: Matrix,
    panel: Columns,
    constraints: Constraints,
    *,
    ridge: Penalty = 0.0,
    count: int = 5,
) -> tuple[Columns, NDArray[np.float64]]:
    """Find the best substitutes of each feature of a panel, best first, and their losses.

    The covariance defines the objective: reconstruction of the features or, if columns of a
    target follow the d features of the constraints, of the target as well. Substitutes respect
    all constraints and are not in the panel. Features that must be included have none. A group is
    replaced as a whole, by another group or a single feature, given by its first feature. With a
    cost weight, costs affect the order but not the loss.

    Parameters
    ----------
    C : covariance
        Of d or more columns.
    panel : array of int
        Chosen columns, in any order.
    constraints : Constraints
        The constraints of the panel.
    ridge : float, default=0.0
        Penalty, in the units of C.
    count : int, default=5
        Number of substitutes per feature.

    Returns
    -------
    columns, losses : arrays (len(panel), count)
        Padded with -1 and NaN. A loss is the increase of `residual`; it can be negative if the
        panel was not chosen by C.

    Examples
    --------
    >>> from fewer.constraints import resolve
    >>> x = np.random.default_rng(0).normal(size=(200, 2))
    >>> twins = np.hstack([x, x + 0.1])
    >>> C = torch.from_numpy(np.cov(twins.T))
    >>> substitutes(C, np.array([0, 1]), resolve(None, 4, 2), count=1)[0]
    array([[2],
           [3]])
    >>> costs = {0: 1, 1: 1, 2: 3, 3: 1}
    >>> dear = resolve(None, 4, 2, costs=costs, budget=2)
    >>> substitutes(C, np.array([0, 1]), dear, count=1)[0]
    array([[3],
           [3]])
    """
    extended = constraints.followed_by(len(C) - constraints.d)
    losses = _unit_losses(C, panel, extended, ridge)
    prices = extended.unit_prices
    key = losses if prices is None else losses + prices[None]
    order = np.argsort(key, axis=1, kind="stable")[:, :count]
    found = np.take_along_axis(losses, order, axis=1)
    first = np.array([unit[0] for unit in extended.units], dtype=np.int64)
    columns = np.where(np.isfinite(found), first[order], -1)
    short = count - columns.shape[1]
    pad = ((0, 0), (0, max(short, 0)))
    columns = np.pad(columns, pad, constant_values=-1)
    found = np.pad(np.where(np.isfinite(found), found, np.nan), pad, constant_values=np.nan)
    return columns, found


def _unit_losses(
    C: Matrix, panel: Columns, constraints: Constraints, ridge: Penalty
) -> NDArray[np.float64]:
    """Loss of replacing the unit of each feature by every unit; infinite where not allowed."""
    units = constraints.unit_of[panel]  # -1: excluded, so it cannot be on a panel
    if all(len(unit) == 1 for unit in constraints.units):
        places = Places(constraints, C.device)
        state = whole_exchange(C, ridge, places.fill([panel]), places.closed)
        gains = places.gains(state)[0].cpu().numpy()  # places x features
        place_of = {int(column): at for at, column in enumerate(state.S[0].tolist())}
        rows = [place_of[int(column)] for column in panel]
        return _without_rounding(-gains[rows][:, np.concatenate(constraints.units)], C)
    known: dict[int, NDArray[np.float64]] = {}
    for unit in np.unique(units):
        known[int(unit)] = _losses_of_group(C, panel, constraints, ridge, int(unit))
    return np.stack([known[int(unit)] for unit in units])


def _losses_of_group(
    C: Matrix, panel: Columns, constraints: Constraints, ridge: Penalty, out: int
) -> NDArray[np.float64]:
    on = np.unique(constraints.unit_of[panel])
    rest = on[on != out]
    losses = np.full(len(constraints.units), np.inf)
    if out in constraints.included_units:
        return losses
    state = Deflation(C, constraints, ridge)
    for unit in rest.tolist():
        state.take(torch.tensor([unit], device=C.device))
    state.refresh()
    gain = block_gain(state.E, state.EE, state.least, state.unit_ridge)[0].cpu().numpy()
    losses[:] = _without_rounding(float(state.error) - gain - residual_of(C, panel, ridge), C)
    if constraints.budget is not None or constraints.limits:
        S = torch.as_tensor(np.append(out, rest), device=C.device)[None]
        fits = Limits(constraints, C.device).exchangeable(S)[0, 0]
        losses[~fits.cpu().numpy()] = np.inf
    losses[on] = np.inf
    return losses


def _without_rounding(losses: NDArray[np.float64], C: Matrix) -> NDArray[np.float64]:
    return np.where(np.abs(losses) < ROUNDING * float(C.trace()), 0.0, losses)
