"""Panels as places for an `Exchange`, and which swaps the rules allow."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fewer.constraints import Constraints
from fewer.search.budget import Purse
from fewer.search.exchange import Exchange

__all__ = ["Places"]


class Places:
    """Translates between panels (features 0..d-1) and places (candidates 0..c-1, c empty).

    Included features sit in the first places and stay there.

    Parameters
    ----------
    constraints : Constraints
        Without groups.
    device : torch.device
    candidates : ndarray of int, optional
        Features that may be on a panel, ascending; by default all d.

    Examples
    --------
    >>> from fewer.constraints import resolve
    >>> constraints = resolve(None, 4, 2, include=[3])
    >>> places = Places(constraints, torch.device("cpu"), np.array([1, 3]))
    >>> S = places.fill([[1, 3]])
    >>> S, places.panel(S[0])
    (tensor([[1, 0]]), array([1, 3]))
    """

    def __init__(
        self,
        constraints: Constraints,
        device: torch.device,
        candidates: NDArray[np.int64] | None = None,
    ) -> None:
        self.device = device
        self.candidates = np.arange(constraints.d) if candidates is None else candidates
        self.c, self.K = len(self.candidates), constraints.most_units
        self.position = np.full(constraints.d, self.c)
        self.position[self.candidates] = np.arange(self.c)
        self.closed = torch.as_tensor(~constraints.allowed[self.candidates], device=device)
        self.include = constraints.include
        self.fixed = torch.arange(self.K, device=self.device) < len(constraints.include)
        self.exact = constraints.k is not None
        self.prices = None
        if constraints.unit_prices is not None:
            prices = constraints.unit_prices[constraints.unit_of[self.candidates]]
            prices[constraints.unit_of[self.candidates] < 0] = 0.0  # excluded: never on a panel
            self.prices = torch.as_tensor(prices, device=device)
        self.purse = None
        if constraints.budget is not None and constraints.costs is not None:
            costs = constraints.costs[self.candidates]
            self.purse = Purse(costs, constraints.ceiling, self.exact, self.device)

    def fill(self, panels: Sequence[Iterable[int]]) -> Tensor:
        """Panels in places (B x K): included features first, empty places last."""
        S = np.full((len(panels), self.K), self.c)
        for row, panel in zip(S, panels, strict=True):
            rest = np.setdiff1d(np.fromiter(panel, dtype=np.int64), self.include)
            features = np.concatenate([self.include, rest])
            row[: len(features)] = self.position[features]
        return torch.as_tensor(S, device=self.device)

    def panel(self, places: Tensor) -> NDArray[np.int64]:
        """Features in the K places of one panel, ascending."""
        filled = places[places < self.c].cpu().numpy()
        return np.sort(self.candidates[filled])

    def gains(
        self, state: Exchange, fixed: Tensor | None = None, shut: Tensor | None = None
    ) -> Tensor:
        """`Exchange.gains` for the swaps that the rules allow."""
        keep = self.fixed.expand_as(state.S) if fixed is None else self.fixed | fixed
        gains = state.gains(keep, shut)
        if self.purse is None:
            return gains
        return gains.masked_fill_(~self.purse.exchangeable(state.S), -torch.inf)

    def addable(self, state: Exchange) -> Tensor:
        """Which candidates (B x c) may be put into an empty place."""
        open_ = ~state.shut[:, : self.c]
        return open_ if self.purse is None else self.purse.addable(open_, state.S)
