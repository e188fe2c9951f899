"""Swap local search: exchange features until no single exchange helps."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fewer.constraints import Constraints
from fewer.search.exchange import Places, WholeExchange, best_swap
from fewer.search.explore import swap_groups
from fewer.search.objective import (
    ROUNDING,
    check_ridge,
    constraints_for,
    covariance,
    on_cpu_if_short,
    worth,
)

__all__ = ["SwapResult", "swap"]

Panel = NDArray[np.int64]

# A look from scratch takes about as long as this many single swaps with their updates.
MANY = 16


@dataclass(frozen=True, eq=False)
class SwapResult:
    """Where swapping ended.

    Attributes
    ----------
    indices : ndarray of int
        Chosen features, ascending.
    objective : float
        `residual` of them; never above that of the start.
    evaluations : int
        How often all swaps were scored.
    optimal : bool
        True when no single swap helps; False when time ran out before.

    Examples
    --------
    >>> swap([[1.0, 0.0], [0.0, 4.0]], [0]).optimal
    True
    """

    indices: Panel
    objective: float
    evaluations: int
    optimal: bool


@on_cpu_if_short
def swap(
    C: Any,
    start: Iterable[int],
    constraints: Constraints | None = None,
    *,
    ridge: float = 0.0,
    time_limit: float | None = None,
    device: str | torch.device | None = None,
) -> SwapResult:
    """Exchange chosen features for others while that lowers `residual`.

    All k x d swaps are scored at once, in O(k d^2 + k^2 d) (see `Exchange`). While many help,
    many that concern different features are taken together, half as many when together they
    fail to help; then the best one at a time, which costs one read of C each.

    Parameters
    ----------
    C : array or tensor, d x d
        Covariance.
    start : iterable of int
        Features to start from; must obey the constraints.
    constraints : Constraints, optional
        Rules to obey; by default any panel of the size of `start`. Within a budget and
        without k, affordable features are also added.
    ridge : float
        The penalty of `residual`.
    time_limit : float, optional
        Seconds after which to stop where it stands.
    device : str or torch.device, optional
        Where to compute; by default where C is. The CPU takes over, with a warning, where
        the memory of a GPU is too small.

    Returns
    -------
    SwapResult

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.datasets import load_iris
    >>> found = swap(np.cov(load_iris().data.T), [0, 3])
    >>> found.indices, round(found.objective, 3)
    (array([0, 2]), 0.145)
    """
    C = covariance(C, device)
    panel = np.sort(np.fromiter(start, dtype=np.int64))
    constraints = constraints_for(C, len(panel) if constraints is None else constraints)
    constraints.check(panel)
    deadline = None if time_limit is None else time.monotonic() + time_limit
    ridge = check_ridge(ridge)
    with torch.inference_mode():
        if len(constraints.units) < int(constraints.allowed.sum()):
            least = ROUNDING * float(C.trace())
            return SwapResult(*swap_groups(C, panel, constraints, ridge, deadline, least))
        return _swap_features(C, panel, constraints, ridge, deadline)


def _swap_features(
    C: Tensor, panel: Panel, constraints: Constraints, ridge: float, deadline: float | None
) -> SwapResult:
    places = Places(constraints, C.device)
    state = WholeExchange(C, ridge, places.fill([panel]), places.closed, places.prices)
    best = worth(C, panel, constraints, ridge)
    least = ROUNDING * state.trace
    evaluations = 0
    # Together or one by one; how many before the exact objective is looked at again.
    together, count = True, places.K // 4
    while deadline is None or time.monotonic() < deadline:
        if together and count < MANY:
            together, count = False, places.K + 8
        if together:
            new = _several(places.gains(state), state.S, count, least, places)
            evaluations += 1
            if int((new != state.S).sum()) < MANY:  # too few help for a look from scratch
                count = 0
                continue
        else:
            evaluations += _one_by_one(state, places, count, least, deadline)
            new = state.S
        value = worth(C, places.panel(new[0]), constraints, ridge)
        if value < best - least:
            best, panel = value, places.panel(new[0])
            state.reset(new)
        elif together:
            count //= 2
        elif count > 1 and not np.array_equal(places.panel(new[0]), panel):
            # Where C_SS is nearly singular, rounding piles up: check every single swap.
            count = 1
            state.reset(places.fill([panel]))
        else:
            return SwapResult(panel, best, evaluations, True)
    return SwapResult(panel, best, evaluations, False)


def _one_by_one(
    state: WholeExchange, places: Places, count: int, least: float, deadline: float | None
) -> int:
    """Take the best swap, up to `count` times, and say how often all swaps were scored."""
    for done in range(count):
        gain, i, j = best_swap(places.gains(state))
        if gain <= least or (deadline is not None and time.monotonic() > deadline):
            return done + 1
        state.swap(i, j, gain, gain > least)
    return count


def _several(gains: Tensor, S: Tensor, batch: int, least: float, places: Places) -> Tensor:
    """The best `batch` swaps of different places and different features, taken together."""
    gain, j = gains[0].max(1)  # the best of each place
    gain, i = gain.sort(descending=True)
    j = j[i]
    repeated = torch.triu(j[:, None] == j, 1).any(0)  # a better swap brings the same feature
    take = (gain > least) & ~repeated
    if places.purse is not None:
        paid = places.purse.paid
        dearer = (paid[j] - paid[S[0, i]]).clamp_min(0) * take
        take &= dearer.cumsum(0) <= places.purse.slack(S)[0]
    take &= take.cumsum(0) <= batch
    new = S.clone()
    new[0, i[take]] = j[take]
    return new
