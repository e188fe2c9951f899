"""The search for the best column subset: greedy, swaps, then tabu search from perturbed panels."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import comb
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from fewer._threads import mapped
from fewer.constraints import Constraints
from fewer.data.factored import FactoredCovariance, Matrix
from fewer.errors import InputError
from fewer.search.exchange import Places, whole_exchange
from fewer.search.greedy import greedy
from fewer.search.objective import (
    ROUNDING,
    Penalty,
    check_problem,
    on_cpu_if_short,
    penalty_at,
    regular_inverse,
    worth,
)
from fewer.search.swap import Explorer, GroupExplorer, SwapResult, over, swap

__all__ = ["SearchResult", "search"]

Panel = NDArray[np.int64]

ELITE = 8  # best panels, from which perturbation starts
KICK = 0.2  # fraction of a panel that perturbation replaces
FROM_BEST = 0.5  # fraction of perturbations that start from the best one
STEPS, PER_UNIT, MOST_STEPS = 100, 10, 250  # of a walk: the least of 100 + k, 10 k and 250
STALLS = (1, 6)  # rounds without progress that are waited for, by default
NOISE = 0.3  # of the gains in the first round
CONSTANT = -1e300  # value of features that do not vary, below that of all others
PROGRESS = 1e-4  # minimum relative improvement of a round
MOST_PANELS, MOST_NUMBERS = 20_000, 2**20  # that are all judged, and entries of their matrices
CANDIDATES = 2048  # maximum number for walks; the final swaps consider all features


@dataclass(frozen=True, eq=False)
class SearchResult:
    """The best panel that `search` found.

    Attributes
    ----------
    indices, objective : ndarray of int, float
        Chosen features, ascending, and their `residual`.
    trace : list of (float, float)
        Seconds since the start and best objective so far, at each improvement.
    elapsed, evaluations : float, int
        Seconds in total, and how often all swaps of a panel were scored.
    stopped : {"stall", "time", "only choice", "optimal"}
        Why the search ended; "optimal" if all panels were enumerated.
    elite : list of (float, ndarray of int)
        The best panels and their objectives, best first; held-out rows may separate near-ties.

    Examples
    --------
    >>> found = search([[1.0, 0.0], [0.0, 4.0]], 1)
    >>> found.indices, found.objective, found.stopped
    (array([1]), 1.0, 'optimal')
    """

    indices: Panel
    objective: float
    trace: list[tuple[float, float]]
    elapsed: float
    evaluations: int
    stopped: Literal["stall", "time", "only choice", "optimal"]
    elite: list[tuple[float, Panel]]


@on_cpu_if_short
def search(
    C: Any,
    k: int | Constraints,
    *,
    ridge: Any = 0.0,
    starts: int | None = None,
    stall: int | None = None,
    time_limit: float | None = None,
    seed: int | None = 0,
    initial: Sequence[Iterable[int]] = (),
    device: str | torch.device | None = None,
) -> SearchResult:
    """Find the k features that best explain all features of a covariance.

    `greedy` and `swap` are followed by rounds of tabu search: several of the best panels so far,
    with a fifth of their features replaced, take the best swap at each step in parallel, even one
    that increases the error. If there are at most a few thousand panels, all of them are
    enumerated instead. The result is at least as good as greedy's, and no single swap
    improves it unless time ran out.

    Parameters
    ----------
    C, ridge, device
        As in `greedy`.
    k : int or Constraints
        Number of features, or the constraints to obey.
    starts : int, optional
        Number of panels improved in parallel; by default, as many as use the whole processor.
    stall : int, optional
        Rounds without progress after which to stop; 0 for greedy and swaps only. By default 6,
        down to 1 if a round takes tens of seconds.
    time_limit : float, optional
        Seconds after which to stop with the best panel so far; the greedy start always finishes.
    seed : int, optional
        Makes the result reproducible on the same device, unless time runs out; None is random.
    initial : sequence of panels
        Additional panels to start from.

    Returns
    -------
    SearchResult

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.datasets import load_breast_cancer
    >>> C = np.corrcoef(load_breast_cancer().data.T)
    >>> found = search(C, 5, seed=0)
    >>> found.indices
    array([ 4, 15, 21, 22, 25])
    >>> round(found.objective, 2), round(float(greedy(C, 5).errors[-1]), 2)
    (6.53, 7.41)
    """
    C, constraints, ridge = check_problem(C, k, ridge, device)
    begin = time.monotonic()
    if starts is not None and starts < 1:
        raise InputError(f"starts={starts} must be at least 1")
    if stall is not None and stall < 0:
        raise InputError(f"stall={stall}; give the rounds to wait, 0 for greedy and swaps only")
    run = _Run(C, constraints, ridge, begin, time_limit, seed)
    with torch.inference_mode():
        stopped = run.search([np.sort(np.fromiter(p, np.int64)) for p in initial], starts, stall)
    return SearchResult(
        indices=run.elite[0][1],
        objective=run.elite[0][0],
        trace=run.trace,
        elapsed=time.monotonic() - begin,
        evaluations=run.evaluations,
        stopped=stopped,
        elite=run.elite,
    )


class _Run:
    """State of one search: the best panels so far, and the time."""

    def __init__(
        self,
        C: Matrix,
        constraints: Constraints,
        ridge: Penalty,
        begin: float,
        time_limit: float | None,
        seed: int | None,
    ) -> None:
        self.C, self.constraints, self.ridge, self.begin = C, constraints, ridge, begin
        self.deadline = None if time_limit is None else begin + time_limit
        self.random = np.random.default_rng(seed)
        self.elite: list[tuple[float, Panel]] = []
        self.trace: list[tuple[float, float]] = []
        self.evaluations = 0
        self.same = 1e-12 * float(C.trace())

    def search(
        self, initial: Sequence[Panel], starts: int | None, stall: int | None
    ) -> Literal["stall", "time", "only choice", "optimal"]:
        constraints = self.constraints
        self._keep(greedy(self.C, constraints, ridge=self.ridge).panel())
        if len(constraints.units) == constraints.most_units:
            self._trim()
            return "only choice"
        for panel in initial:
            constraints.check(panel)
        self._swap([self.elite[0][1], *initial])
        self._trim()
        if stall == 0 or self._late():
            return "time" if self._late() else "stall"
        if self._enumerate():
            return "optimal"
        explorer = self._explorer()
        batch = explorer.batch if starts is None else starts
        steps = min(STEPS + constraints.most_units, PER_UNIT * constraints.most_units, MOST_STEPS)
        if stall is None:
            stall = int(np.clip(explorer.patience // (steps * batch), *STALLS))
        panels, barred = self._first(batch)
        noise, idle = NOISE, 0
        while idle < stall and not self._late():
            mark = self.elite[0][0]
            for panel in self._improved(explorer, panels, steps, barred, noise):
                self._keep(panel)
            idle = 0 if self.elite[0][0] < mark * (1 - PROGRESS) - self.same else idle + 1
            noise = 0.0
            panels, barred = self._kicked(batch)
        self.evaluations += explorer.steps
        self._swap([self.elite[0][1]])
        self._trim()
        return "time" if self._late() else "stall"

    def _enumerate(self) -> bool:
        """Score every panel if there are few; False if there are too many."""
        constraints, include = self.constraints, self.constraints.include
        k, wide = constraints.k, len(self.C) > CANDIDATES  # whose square takes too long
        if k is None or wide or constraints.budget is not None or constraints.groups is not None:
            return False
        free = np.setdiff1d(np.flatnonzero(constraints.allowed), include)
        count = comb(len(free), k - len(include))
        if count > MOST_PANELS or count * k**2 > MOST_NUMBERS:
            return False
        chosen = np.array(list(combinations(free, k - len(include))), dtype=np.int64)
        panels = np.hstack([np.tile(include, (count, 1)), chosen])
        for limit in constraints.limits:  # counts, since without a budget there is no further cost
            weights = np.zeros(constraints.d)
            weights[limit.columns] = limit.weights
            total = weights[panels].sum(1)
            panels = panels[(total >= limit.least) & (total <= limit.most)]
        C = self.C
        S = torch.as_tensor(panels, device=C.device)
        if isinstance(C, FactoredCovariance):
            Z = C.columns(S)  # panels x k x r
            A, M = Z @ Z.mT, Z @ C.gram @ Z.mT
        else:
            at = S[:, :, None], S[:, None]
            A, M = C[at], (C @ C)[at]
        P = regular_inverse(A, torch.ones_like(S, dtype=torch.bool), penalty_at(self.ridge, S))
        values = -(P * M).sum((1, 2))
        if constraints.costs is not None:
            prices = constraints.cost_weight * constraints.d * constraints.costs
            values += torch.as_tensor(prices, device=values.device)[S].sum(1)
        self.evaluations += count
        for best in values.argsort()[: 4 * ELITE].tolist():  # some may be ties
            self._keep(np.sort(panels[best]))
        return True

    def _trim(self) -> None:
        """If the size is free, drop features that are not worth their cost from the best panel."""
        constraints = self.constraints
        while constraints.k is None and constraints.unit_prices is not None and not self._late():
            mark, panel = self.elite[0]
            units = np.unique(constraints.unit_of[panel])
            free = np.setdiff1d(units, constraints.included_units)
            if len(units) < 2 or len(free) == 0:
                return
            smaller = [self.constraints.features(np.setdiff1d(units, [unit])) for unit in free]
            best = min(smaller, key=lambda other: worth(self.C, other, constraints, self.ridge))
            self._keep(best)
            self._swap([best])
            if self.elite[0][0] >= mark - self.same:
                return

    def _improved(
        self,
        explorer: Explorer | GroupExplorer,
        panels: list[Panel],
        steps: int,
        barred: list[Panel],
        noise: float,
    ) -> list[Panel]:
        """Panels improved by the explorer, half of them at a time if memory is short."""
        try:
            best = self.elite[0][1]
            return explorer.improve(panels, steps, barred, noise, self.deadline, best)
        except torch.OutOfMemoryError:
            if len(panels) == 1:
                raise
        torch.cuda.empty_cache()
        half = len(panels) // 2
        return [
            *self._improved(explorer, panels[:half], steps, barred[:half], noise),
            *self._improved(explorer, panels[half:], steps, barred[half:], noise),
        ]

    def _explorer(self) -> Explorer | GroupExplorer:
        seed = int(self.random.integers(2**62))
        if len(self.constraints.units) < int(self.constraints.allowed.sum()):
            return GroupExplorer(
                self.C, self.constraints, self.ridge, ROUNDING * float(self.C.trace())
            )
        generator = torch.Generator().manual_seed(seed)
        return Explorer(self.C, self.constraints, self.ridge, self._candidates(), generator)

    def _late(self) -> bool:
        return over(self.deadline)

    def _swap(self, panels: Sequence[Panel]) -> None:
        def swapped(panel: Panel) -> SwapResult:
            left = None if self.deadline is None else self.deadline - time.monotonic()
            return swap(self.C, panel, self.constraints, ridge=self.ridge, time_limit=left)

        # steps of a matrix are too short for threads of Python, those of rows are not
        wide = isinstance(self.C, FactoredCovariance) and not self.C.is_cuda
        for found in mapped(swapped, panels) if wide else map(swapped, panels):
            self.evaluations += found.evaluations
            self._keep(found.indices)

    def _keep(self, panel: Panel) -> None:
        """Keep a panel if it is among the best; panels of equal value count as one."""
        value = worth(self.C, panel, self.constraints, self.ridge)
        if any(abs(value - other) <= self.same for other, _ in self.elite):
            return
        if not self.elite or value < self.elite[0][0]:
            self.trace.append((time.monotonic() - self.begin, value))
        self.elite = sorted([*self.elite, (value, panel)], key=lambda pair: pair[0])[:ELITE]

    def _first(self, batch: int) -> tuple[list[Panel], list[Panel]]:
        """The best panel, then alternately perturbations of it and randomised greedy choices."""
        panels, barred = self._kicked(batch)
        nothing = np.arange(0)
        panels[0], barred[0] = self.elite[0][1], nothing
        panels[2::2] = [self.constraints.include for _ in panels[2::2]]
        barred[2::2] = [nothing for _ in barred[2::2]]
        return panels, barred

    def _kicked(self, batch: int) -> tuple[list[Panel], list[Panel]]:
        """Some of the best panels without some of their features, and those features."""
        panels, barred = [], []
        for _ in range(batch):
            rank = 0 if self.random.random() < FROM_BEST else self.random.integers(len(self.elite))
            units = np.unique(self.constraints.unit_of[self.elite[rank][1]])
            free = np.setdiff1d(units, self.constraints.included_units)
            count = min(len(free), max(2, round(KICK * len(free))))
            out = self.random.choice(free, count, replace=False)
            panels.append(self.constraints.features(np.setdiff1d(units, out)))
            barred.append(self.constraints.features(out))
        return panels, barred

    def _candidates(self) -> Panel:
        """Candidates for walks: the features with the best swaps into the best panel."""
        constraints, best = self.constraints, self.elite[0][1]
        most = max(CANDIDATES, 4 * constraints.most_units)
        varies = self.C.diagonal().cpu().numpy() > 0
        value = np.where(varies, 0.0, CONSTANT)
        if int(varies.sum()) > most:
            places = Places(constraints, self.C.device)
            state = whole_exchange(
                self.C, self.ridge, places.fill([best]), places.closed, places.prices
            )
            value = places.gains(state)[0].amax(0).cpu().numpy()
        value[best] = value[constraints.include] = np.inf
        for limit in constraints.limits:
            if limit.least:
                value[limit.columns] = np.inf
        value[constraints.exclude] = -np.inf
        order = np.argsort(-value, kind="stable")
        useful = max(int((value > CONSTANT).sum()), constraints.most_units)
        return np.sort(order[: min(most, useful)])
