"""Tabu search in batches: past the local optima of single swaps."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fewer.constraints import Constraints
from fewer.search.exchange import Exchange, best_swap
from fewer.search.objective import ROUNDING
from fewer.search.places import Places

__all__ = ["Explorer"]

# Steps for which a feature that left may not come back, and one that came may not leave;
# up to twice as long, at random.
STAY_OUT, STAY_IN = 10, 5
# Updates round: look from scratch after this many steps.
REFRESH = 100


class Explorer:
    """Improves several panels at once, each by the best swap, whether it helps or not.

    A feature that has just left may not come back for some steps, nor leave when it has
    just come, so that each panel climbs out of its local optimum and walks on to others.

    Parameters
    ----------
    C : tensor, d x d
    constraints : Constraints
        Without groups.
    ridge : float
    candidates : ndarray of int
        Features that may be on a panel, ascending; includes those that must be.
    generator : torch.Generator
        On the CPU, so that the same seed draws the same numbers on every device.

    Examples
    --------
    >>> from fewer.constraints import resolve
    >>> C = torch.tensor([[2.0, 1.0, 0.0], [1.0, 1.0, 0.0], [0.0, 0.0, 3.0]]).double()
    >>> draw = torch.Generator().manual_seed(0)
    >>> explorer = Explorer(C, resolve(None, 3, 1), 0.0, np.arange(3), draw)
    >>> explorer.improve([np.array([1])], 2, [np.arange(0)])
    [array([2])]
    """

    def __init__(
        self,
        C: Tensor,
        constraints: Constraints,
        ridge: float,
        candidates: NDArray[np.int64],
        generator: torch.Generator,
    ) -> None:
        self.places = Places(constraints, C.device, candidates)
        self.generator, self.device = generator, C.device
        at = torch.as_tensor(candidates, device=C.device)
        if len(candidates) == len(C):
            self.part, self.square = C, C @ C.T
        else:
            rows = C[at]
            self.part, self.square = rows[:, at].contiguous(), rows @ rows.T
        self.trace, self.ridge = float(C.trace()), ridge
        free = self.places.K - len(constraints.include)
        self.stay_out = min(STAY_OUT, (len(candidates) - self.places.K) // 3)
        self.stay_in = min(STAY_IN, free // 3)
        self.steps = 0
        # Enough panels to keep the processor busy, at least two; and how many steps, over
        # all panels, are worth waiting for: some ten seconds.
        size, fast = self.places.K * len(candidates), C.device.type != "cpu"
        self.batch = int(np.clip((2**23 if fast else 2**17) // size, 2, 32))
        self.patience = (2**37 if fast else 2**31) // size

    def improve(
        self,
        panels: Sequence[NDArray[np.int64]],
        steps: int,
        barred: Sequence[NDArray[np.int64]],
        noise: float = 0.0,
        deadline: float | None = None,
    ) -> list[NDArray[np.int64]]:
        """Fill up partial panels, walk `steps` swaps from there, return the best of each walk.

        The features `barred` of each panel are not used to fill it up and may not come
        back at once. `noise` scatters the gains by which places are filled. Where time
        runs out before they are, nothing is returned.
        """
        with _threads(len(panels) * self.places.K * self.places.c, self.device):
            return self._walk(panels, steps, barred, noise, deadline)

    def _walk(
        self,
        panels: Sequence[NDArray[np.int64]],
        steps: int,
        barred: Sequence[NDArray[np.int64]],
        noise: float,
        deadline: float | None,
    ) -> list[NDArray[np.int64]]:
        B, c, at = len(panels), self.places.c, torch.arange(len(panels), device=self.device)
        state = Exchange(
            self.part,
            self.square,
            self.trace,
            self.ridge,
            self.places.fill(panels),
            self.places.closed,
            self.places.prices,
        )
        back = torch.zeros(B, c + 1, dtype=torch.long, device=self.device)  # free from this step
        for row, features in zip(back, barred, strict=True):
            row[self.places.position[features]] = 1 + self.stay_out
        if not self._fill(state, back[:, :c] > 0, noise, deadline):
            return []
        leave = torch.zeros_like(state.S)
        best, found = state.objective.clone(), state.S.clone()
        for step in range(1, steps + 1):
            gains = self.places.gains(state, leave >= step, back[:, :c] >= step)
            gain, i, j = best_swap(gains)
            moves = gain > -torch.inf
            out = state.S[at, i]
            state.swap(i, j, gain, moves)
            back[at, out] = torch.where(moves, step + self._tenure(self.stay_out, B), back[at, out])
            leave[at, i] = torch.where(moves, step + self._tenure(self.stay_in, B), leave[at, i])
            if step % REFRESH == 0:
                state.refresh()
            better = state.objective < best
            best = torch.where(better, state.objective, best)
            found = torch.where(better[:, None], state.S, found)
            if deadline is not None and step % 8 == 0 and time.monotonic() > deadline:
                break
        self.steps += step * B
        state.reset(found)
        self._descend(state)
        return [self.places.panel(row) for row in state.S]

    def _descend(self, state: Exchange) -> None:
        """Swap to a local optimum: the best of a walk may lack a swap that was not allowed."""
        for _ in range(self.places.K):
            gain, i, j = best_swap(self.places.gains(state))
            moves = gain > ROUNDING * self.trace
            self.steps += len(moves)
            if not moves.any():
                return
            state.swap(i, j, gain, moves)

    def _fill(self, state: Exchange, barred: Tensor, noise: float, deadline: float | None) -> bool:
        """Put the best candidates into empty places as far as the rules allow; False if late."""
        weight = self._thrift(len(state.S))
        while True:
            empty = state.S.eq(self.places.c)
            addable = self.places.addable(state) & empty.any(1, keepdim=True)
            if not addable.any():
                return True
            if deadline is not None and time.monotonic() > deadline:
                return False
            usable = addable & ~barred
            usable = torch.where(usable.any(1, keepdim=True), usable, addable)
            gains = state.gains(~empty, ~usable)
            draw = torch.randn(weight.shape, generator=self.generator, dtype=torch.float64)
            scatter = (noise * draw).exp().to(self.device)
            factor = (weight * scatter)[:, None]
            # a price can leave a gain below 0, where a larger factor must not count against it
            _, i, j = best_swap(torch.where(gains > 0, gains * factor, gains / factor))
            state.swap(i, j, gains[state.at, i, j], usable.any(1))

    def _thrift(self, B: int) -> Tensor:
        """By what to multiply gains (B x c): cost ** -power, each panel with its own power.

        Neither gain nor gain per cost fills a budget best, so some panels try one, some
        the other, some between.
        """
        if self.places.purse is None:
            return torch.ones(B, self.places.c, dtype=torch.float64, device=self.device)
        power = torch.rand(B, 1, generator=self.generator, dtype=torch.float64) * 1.5 - 0.25
        costs = self.places.purse.costs
        least = float(costs[costs > 0].min()) if bool((costs > 0).any()) else 1.0
        return costs.clamp_min(least / 10) ** -power.clamp(0, 1).to(self.device)

    def _tenure(self, least: int, B: int) -> Tensor:
        extra = torch.randint(0, least + 1, (B,), generator=self.generator)
        return (least + extra).to(self.device)


@contextmanager
def _threads(work: int, device: torch.device) -> Iterator[None]:
    """One thread for small tensors.

    A step is dozens of short operations. Shared between threads they gain nothing, and on
    a busy machine every one of them waits for the slowest thread: minutes, not seconds.
    """
    before = torch.get_num_threads()
    if device.type == "cpu" and work < 2**20:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
