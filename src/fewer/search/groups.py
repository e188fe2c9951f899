"""Swap local search where features come in groups that are measured together."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fewer.constraints import Constraints
from fewer.search.blocks import block_gain, padded, unit_blocks, unit_table
from fewer.search.budget import Purse
from fewer.search.greedy import greedy
from fewer.search.objective import DEPENDENT, regular_inverse, worth

__all__ = ["GroupExchange", "GroupExplorer", "swap_groups"]

Found = tuple[NDArray[np.int64], float, int, bool]


def swap_groups(
    C: Tensor,
    panel: NDArray[np.int64],
    constraints: Constraints,
    ridge: float,
    deadline: float | None,
    least: float,
) -> Found:
    """Take the best exchange of two groups while it lowers `residual`.

    Returns the panel, its objective, the number of evaluations, and whether no single
    exchange helps.

    Examples
    --------
    >>> from fewer.constraints import resolve
    >>> C = torch.diag(torch.tensor([4.0, 1.0, 3.0, 3.0]).double())
    >>> constraints = resolve(None, 4, 1, groups=[[0, 1], [2, 3]])
    >>> panel, objective, *_ = swap_groups(C, np.array([0, 1]), constraints, 0.0, None, 1e-9)
    >>> panel, round(objective, 6)
    (array([2, 3]), 5.0)
    """
    exchange = GroupExchange(C, constraints, ridge)
    best, evaluations = worth(C, panel, constraints, ridge), 0
    while deadline is None or time.monotonic() < deadline:
        units = np.unique(constraints.unit_of[panel])
        gains = exchange.gains(units)
        evaluations += 1
        place, unit = divmod(int(gains.argmax()), len(constraints.units))
        if gains[place, unit] <= least:
            return panel, best, evaluations, True
        kept = np.delete(units, place) if place < len(units) else units
        new = np.sort(np.concatenate([constraints.units[u] for u in [*kept, unit]]))
        value = worth(C, new, constraints, ridge)
        if value > best - least:  # the promise was rounding
            return panel, best, evaluations, True
        panel, best = new, value
    return panel, best, evaluations, False


class GroupExchange:
    """The gain of exchanging each unit on a panel for each other unit.

    As `Exchange`, with m x m blocks in place of numbers, computed from scratch for each
    panel: with D the inverse of the block of P on the unit that leaves, taking it out adds
    V^T D V to the residual covariance E.

    Examples
    --------
    >>> from fewer.constraints import resolve
    >>> C = torch.diag(torch.tensor([4.0, 1.0, 3.0, 3.0]).double())
    >>> exchange = GroupExchange(C, resolve(None, 4, 1, groups=[[0, 1], [2, 3]]), 0.0)
    >>> [round(gain, 6) for gain in exchange.gains(np.array([0]))[0].tolist()]
    [-inf, 1.0]
    """

    def __init__(self, C: Tensor, constraints: Constraints, ridge: float) -> None:
        self.C, self.constraints, self.ridge = C, constraints, ridge
        self.table = unit_table(constraints, C.device)  # n x m
        self.least = DEPENDENT * padded(C.diagonal())[self.table]
        self.prices = None
        if constraints.unit_prices is not None:  # an empty place costs nothing
            self.prices = torch.as_tensor(np.append(constraints.unit_prices, 0.0), device=C.device)
        self.purse = None
        if constraints.budget is not None:
            self.purse = Purse(
                constraints.unit_costs, constraints.ceiling, constraints.k is not None, C.device
            )

    def gains(self, units: NDArray[np.int64]) -> Tensor:
        """Fall of the objective (places x n); -inf where the swap is not allowed.

        The last place is empty where the rules let another unit be added.
        """
        n, d = len(self.table), len(self.C)
        grows = len(units) < self.constraints.most_units
        S = torch.as_tensor(np.append(units, n) if grows else units, device=self.C.device)
        members = torch.cat([self.table, self.table.new_full((1, self.table.shape[1]), d)])[S]
        rows = torch.arange(members.numel(), device=S.device).view(members.shape)
        leaving = self._leaving(members.flatten())
        gains = torch.stack([leaving(place) for place in rows])
        if self.prices is not None:
            gains += self.prices[S][:, None] - self.prices[:n]
        shut = torch.zeros_like(gains, dtype=torch.bool)
        shut[:, torch.as_tensor(units, device=S.device)] = True
        shut[np.flatnonzero(np.isin(units, self.constraints.included_units))] = True
        if self.purse is not None:
            shut |= ~self.purse.exchangeable(S[None])[0]
        return gains.masked_fill(shut, -torch.inf)

    def _leaving(self, S: Tensor) -> Callable[[Tensor], Tensor]:
        """What a swap gains (n) for the unit in the given rows of S, a panel of K features."""
        full = len(self.C) > S
        C_S = self.C[S.clamp_max(len(self.C) - 1)] * full[:, None]
        A = padded(C_S)[:, S]
        P = regular_inverse(A[None], full[None], self.ridge)[0]
        V = P @ C_S  # K x d
        E = torch.addmm(self.C, C_S.T, V, alpha=-1)
        U, N = V @ E, V @ V.T
        E_JJ, EE_JJ = unit_blocks(E.__getitem__, self.table, len(E))  # n x m x m

        def gain(place: Tensor) -> Tensor:
            D = torch.linalg.inv(P[place][:, place])
            V_J = padded(V[place])[:, self.table].movedim(0, 1)  # n x m' x m
            U_J = padded(U[place])[:, self.table].movedim(0, 1)
            DV = D @ V_J
            cross = U_J.mT @ DV
            N_i = N[place][:, place]
            more, _ = block_gain(
                E_JJ + V_J.mT @ DV,
                EE_JJ + cross + cross.mT + DV.mT @ N_i @ DV,
                self.least,
                self.ridge,
            )
            return more - (D * N_i).sum()

        return gain


class GroupExplorer:
    """`Explorer` for groups: refills partial panels greedily, then swaps groups.

    Parameters
    ----------
    C : tensor, d x d
    constraints : Constraints
    ridge : float
    least : float
        Gain below which a swap counts as no help.

    Examples
    --------
    >>> from fewer.constraints import resolve
    >>> C = torch.diag(torch.tensor([4.0, 1.0, 3.0, 3.0]).double())
    >>> explorer = GroupExplorer(C, resolve(None, 4, 1, groups=[[0, 1], [2, 3]]), 0.0, 1e-9)
    >>> explorer.improve([np.array([0, 1])], 1, [np.arange(0)])
    [array([2, 3])]
    """

    batch = 4
    patience = 2**31  # swaps end by themselves, so a round is never too long to be repeated

    def __init__(self, C: Tensor, constraints: Constraints, ridge: float, least: float) -> None:
        self.C, self.constraints, self.ridge, self.least = C, constraints, ridge, least
        self.steps = 0

    def improve(
        self,
        panels: Sequence[NDArray[np.int64]],
        steps: int,
        barred: Sequence[NDArray[np.int64]],
        noise: float = 0.0,
        deadline: float | None = None,
    ) -> list[NDArray[np.int64]]:
        """Fill up each panel without what it is barred from, and swap to a local optimum."""
        del steps, noise  # swaps end by themselves, and which groups were thrown out varies
        found: list[NDArray[np.int64]] = []
        for panel, out in zip(panels, barred, strict=True):
            if deadline is not None and found and time.monotonic() > deadline:
                break
            full = self._fill(panel, out)
            full, _, evaluations, _ = swap_groups(
                self.C, full, self.constraints, self.ridge, deadline, self.least
            )
            self.steps += evaluations
            found.append(full)
        return found

    def _fill(self, panel: NDArray[np.int64], out: NDArray[np.int64]) -> NDArray[np.int64]:
        """Greedy from `panel` on, without the features `out` where the rules allow."""
        fewer = replace(
            self.constraints, include=panel, exclude=np.union1d(self.constraints.exclude, out)
        )
        if len(fewer.units) >= (self.constraints.k or 1):
            full = greedy(self.C, fewer, ridge=self.ridge).panel()
            if self.constraints.k in (None, len(np.unique(self.constraints.unit_of[full]))):
                return full
        return greedy(self.C, replace(self.constraints, include=panel), ridge=self.ridge).panel()
