"""Local search by swaps of features and groups, and tabu search beyond its local optima."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fewer._threads import for_operations
from fewer.constraints import Constraints
from fewer.data.factored import WIDE, FactoredCovariance, Matrix, symmetric_product
from fewer.search.exchange import Exchange, Limits, Places, WholeExchange, best_swap, whole_exchange
from fewer.search.greedy import (
    block_gain,
    factored_blocks,
    greedy,
    unit_blocks,
    unit_table,
)
from fewer.search.objective import (
    DEPENDENT,
    ROUNDING,
    Penalty,
    check_problem,
    on_cpu_if_short,
    padded,
    penalty_at,
    regular_inverse,
    total_variance,
    worth,
)

if TYPE_CHECKING:
    from fewer.cuda import RecordedStep

__all__ = ["Explorer", "GroupExplorer", "SwapResult", "swap"]

Panel = NDArray[np.int64]

FIRST_CANDIDATES = 1024  # that swaps of wide data start with
MANY = 16  # scoring all swaps from scratch takes about as long as this many single swaps
# Steps during which a feature that left may not return, and one that entered may not leave;
# randomly up to twice as long.
STAY_OUT, STAY_IN = 10, 5
MORE = 8  # single swaps, besides one per place, until the objective is computed again
# Swaps of all panels at a time, and in some ten seconds; the fewest and most panels at a time
CPU_BATCH, GPU_BATCH, CPU_STEPS, GPU_STEPS, BATCHES = 2**17, 2**23, 2**31, 2**37, (2, 32)
GROUP_BATCH, GROUP_STEPS = 4, 2**31  # of panels of groups; rounds are short
SOMETIMES = 8  # steps of a walk between looks at the clock
REFRESH = 100  # steps after which everything is recomputed, because updates round
CHANGING = ("Z", "e", "f", "objective", "shut")  # of an exchange, apart from the panels


@dataclass(frozen=True, eq=False)
class SwapResult:
    """Result of `swap`.

    Attributes
    ----------
    indices, objective : ndarray of int, float
        Chosen features, ascending, and their `residual`, never above that of the start.
    evaluations : int
        How often all swaps were scored.
    optimal : bool
        Whether no single swap helps; False if time ran out.

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
    ridge: Any = 0.0,
    time_limit: float | None = None,
    thorough: bool = True,
    device: str | torch.device | None = None,
) -> SwapResult:
    """Swap chosen features for others as long as that lowers `residual`.

    All k x d swaps are scored at once, in O(k d^2 + k^2 d) (see `Exchange`). While many help,
    swaps of different features are made in batches, halved when a batch does not help; then the
    best one is made at a time, which reads C once each.

    Parameters
    ----------
    C, ridge, device
        As in `greedy`.
    start : iterable of int
        Features to start from; they must meet the constraints.
    constraints : Constraints, optional
        By default any panel of the size of `start`. With a budget and without k, affordable
        features are also added.
    time_limit : float, optional
        Seconds after which to stop.
    thorough : bool, default=True
        Whether to continue until no swap helps. With few rows and many features, False stops when
        none of the most promising features helps, in a third of the time.

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
    panel = np.sort(np.fromiter(start, dtype=np.int64))
    k = len(panel) if constraints is None else constraints
    C, constraints, ridge = check_problem(C, k, ridge, device)
    constraints.check(panel)
    deadline = None if time_limit is None else time.monotonic() + time_limit
    with torch.inference_mode():
        if len(constraints.units) < int(constraints.allowed.sum()):
            least = ROUNDING * float(C.trace())
            return SwapResult(*swap_groups(C, panel, constraints, ridge, deadline, least))
        evaluations = 0
        if isinstance(C, FactoredCovariance) and len(C) > 2 * FIRST_CANDIDATES:
            found = _swap_promising(C, panel, constraints, ridge, deadline, thorough)
            if not thorough:
                return found
            panel, evaluations = found.indices, found.evaluations
        found = _swap_features(C, panel, constraints, ridge, deadline)
        return replace(found, evaluations=found.evaluations + evaluations)


def _swap_promising(
    C: FactoredCovariance,
    panel: Panel,
    constraints: Constraints,
    ridge: Penalty,
    deadline: float | None,
    thorough: bool,
) -> SwapResult:
    """Swap to a local optimum among the most promising features.

    A swap of all features reads all rows; among some of them it does not.
    """
    places = Places(constraints, C.device)
    best, evaluations = worth(C, panel, constraints, ridge), 0
    while True:
        state = whole_exchange(C, ridge, places.fill([panel]), places.closed, places.prices)
        gains = places.gains(state)[0].amax(0)
        gains[state.S[0][state.S[0] < places.c]] = torch.inf
        some = gains.topk(FIRST_CANDIDATES + places.K).indices.sort().values.cpu().numpy()
        least = ROUNDING * state.trace
        del state, gains  # what follows takes as much memory
        explorer = Explorer(C, constraints, ridge, some, torch.Generator())
        near = explorer.descend(panel)
        evaluations += explorer.steps + 1
        value = worth(C, near, constraints, ridge)
        moved = len(np.setdiff1d(near, panel)) if value < best - least else 0
        if moved:
            best, panel = value, near
        if moved < MANY or not thorough or over(deadline):
            return SwapResult(panel, best, evaluations, False)


def _swap_features(
    C: Matrix, panel: Panel, constraints: Constraints, ridge: Penalty, deadline: float | None
) -> SwapResult:
    places = Places(constraints, C.device)
    state = whole_exchange(C, ridge, places.fill([panel]), places.closed, places.prices)
    best = worth(C, panel, constraints, ridge)
    least = ROUNDING * state.trace
    evaluations = 0
    # together or one by one; how many before the exact objective is computed again
    together, count = True, places.K // 4
    if places.limits is not None and places.limits.sets:
        together, count = False, places.K + MORE  # swaps depend on each other
    while not over(deadline):
        settled = False
        if together and count < MANY:
            together, count = False, places.K + MORE
        if together:
            new = _several(places.gains(state), state.S, count, least, places)
            evaluations += 1
            if int((new != state.S).sum()) < MANY:  # too few to be worth a reset
                count = 0
                continue
        else:
            scored, settled = _one_by_one(state, places, count, least, deadline)
            evaluations += scored
            new = state.S
        value = worth(C, places.panel(new[0]), constraints, ridge)
        if value < best - least:
            best, panel = value, places.panel(new[0])
            # no other swap helps, and rounding has not accumulated
            if settled and abs(value - float(state.objective[0])) < least:
                return SwapResult(panel, best, evaluations, True)
            state.reset(new)
        elif together:
            count //= 2
        elif count > 1 and not np.array_equal(places.panel(new[0]), panel):
            # where C_SS is nearly singular, rounding accumulates: check every single swap
            count = 1
            state.reset(places.fill([panel]))
        else:
            return SwapResult(panel, best, evaluations, True)
    return SwapResult(panel, best, evaluations, False)


def over(deadline: float | None) -> bool:
    """Whether time has run out."""
    return deadline is not None and time.monotonic() >= deadline


def _one_by_one(
    state: WholeExchange, places: Places, count: int, least: float, deadline: float | None
) -> tuple[int, bool]:
    """Make the best swap up to `count` times; how often all were scored, and whether none helps."""
    for done in range(count):
        gain, i, j = places.best(state)
        late, helps = over(deadline), gain > least
        if late or not helps:
            return done + 1, not late
        state.swap(i, j, gain, helps)
    return count, False


def _several(gains: Tensor, S: Tensor, batch: int, least: float, places: Places) -> Tensor:
    """Places after the best `batch` swaps of different places and different features."""
    gain, j = gains[0].max(1)  # the best of each place
    gain, i = gain.sort(descending=True)
    j = j[i]
    repeated = torch.triu(j[:, None] == j, 1).any(0)  # a better swap brings the same feature
    take = (gain > least) & ~repeated
    for purse in () if places.limits is None else places.limits.purses:
        dearer = (purse.paid[j] - purse.paid[S[0, i]]).clamp_min(0) * take
        take &= dearer.cumsum(0) <= purse.slack(S)[0]
    take &= take.cumsum(0) <= batch
    new = S.clone()
    new[0, i[take]] = j[take]
    return new


class Explorer:
    """Walks several panels at once, each by the best swap, whether it helps or not.

    A feature that has just left may not return for some steps, and one that has just entered may
    not leave, so that each panel escapes its local optimum.
    """

    def __init__(
        self,
        C: Matrix,
        constraints: Constraints,
        ridge: Penalty,
        candidates: NDArray[np.int64],
        generator: torch.Generator,
    ) -> None:
        self.places = Places(constraints, C.device, candidates)
        self.generator, self.device = generator, C.device
        at = torch.as_tensor(candidates, device=C.device)
        self.part: Matrix  # of C, for the candidates
        self.square: Tensor | None = None  # the same part of C squared, where that is a matrix
        few = isinstance(C, FactoredCovariance) and WIDE * len(C.rows) < len(candidates)
        if isinstance(C, FactoredCovariance) and few and not C.is_cuda:  # less memory, little time
            self.part = C.among(at)
        elif isinstance(C, FactoredCovariance):
            x = C.columns(at)  # c x r
            self.part, self.square = symmetric_product(x, x), symmetric_product(x @ C.gram, x)
        elif len(candidates) == len(C):
            self.part, self.square = C, C @ C.T
        else:
            rows = C[at]
            self.part, self.square = rows[:, at].contiguous(), rows @ rows.T
        self.trace, self.ridge = total_variance(C, ridge), penalty_at(ridge, at)
        free = self.places.K - len(constraints.include)
        self.stay_out = min(STAY_OUT, (len(candidates) - self.places.K) // 3)
        self.stay = self.stay_out, min(STAY_IN, free // 3)
        self.steps = 0
        # enough panels to keep the processor busy, at least two; and how many steps of all panels
        # take some ten seconds
        size, fast = self.places.K * len(candidates), C.device.type != "cpu"
        self.batch = int(np.clip((GPU_BATCH if fast else CPU_BATCH) // size, *BATCHES))
        self.patience = (GPU_STEPS if fast else CPU_STEPS) // size

    def improve(
        self,
        panels: Sequence[NDArray[np.int64]],
        steps: int,
        barred: Sequence[NDArray[np.int64]],
        noise: float = 0.0,
        deadline: float | None = None,
        safe: NDArray[np.int64] | None = None,
    ) -> list[NDArray[np.int64]]:
        """Fill partial panels, walk `steps` swaps from there, and return the best of each walk.

        The features `barred` of each panel are not used to fill it and may not enter at once.
        `noise` scatters the gains by which places are filled. If time runs out before that, the
        result is empty. Where limits stop the filling half way, the walk starts from `safe`.
        """
        with for_operations(len(panels) * self.places.K * self.places.c):
            B, c = len(panels), self.places.c
            state = self._state(panels)
            # the steps from which candidates may enter
            back = torch.zeros(B, c + 1, dtype=torch.long, device=self.device)
            for row, features in zip(back, barred, strict=True):
                row[self.places.position[features]] = 1 + self.stay_out
            if not self._fill(state, back[:, :c] > 0, noise, deadline):
                return []
            self._replace_stuck(state, safe)
            tenures = [self._tenure(least, B) for _ in range(steps) for least in self.stay]
            walk = Walk(self.places, state, back, torch.stack(tenures).view(steps, 2, B))
            for step in range(1, steps + 1):
                walk.step(fresh=step % REFRESH == 0)
                if step % SOMETIMES == 0 and over(deadline):
                    break
            self.steps += step * B
            state.reset(walk.found)
            self._descend(state)
            return [self.places.panel(row) for row in state.S]

    def descend(self, panel: NDArray[np.int64]) -> NDArray[np.int64]:
        """Swap to a local optimum among the candidates."""
        with for_operations(self.places.K * self.places.c):
            state = self._state([panel])
            self._descend(state)
            return self.places.panel(state.S[0])

    def _state(self, panels: Sequence[NDArray[np.int64]]) -> Exchange:
        state = self.places.fill(panels), self.places.closed, self.places.prices
        if self.square is None:
            return whole_exchange(self.part, self.ridge, *state)
        return Exchange(self.part, self.square, self.trace, self.ridge, *state)

    def _descend(self, state: Exchange) -> None:
        """Swap to a local optimum, with the swaps that the walk did not allow."""
        for _ in range(self.places.K):
            gain, i, j = self.places.best(state)
            moves = gain > ROUNDING * self.trace
            self.steps += len(moves)
            if not moves.any():
                return
            state.swap(i, j, gain, moves)

    def _fill(self, state: Exchange, barred: Tensor, noise: float, deadline: float | None) -> bool:
        """Put the best candidates into empty places within the constraints; False if late."""
        weight = self._thrift(len(state.S))
        while True:
            empty = state.S.eq(self.places.c)
            addable = self.places.addable(state) & empty.any(1, keepdim=True)
            if not addable.any():
                return True
            if over(deadline):
                return False
            usable = addable & ~barred
            usable = torch.where(usable.any(1, keepdim=True), usable, addable)
            gains = state.gains(~empty, ~usable)
            draw = torch.randn(weight.shape, generator=self.generator, dtype=torch.float64)
            scatter = (noise * draw).exp().to(self.device)
            factor = (weight * scatter)[:, None]
            # with a price a gain may be below 0, and a larger factor must not lower it further
            _, i, j = best_swap(torch.where(gains > 0, gains * factor, gains / factor))
            state.swap(i, j, gains[state.at, i, j], usable.any(1))

    def _replace_stuck(self, state: Exchange, safe: NDArray[np.int64] | None) -> None:
        limits = self.places.limits
        if limits is None or not limits.sets or safe is None:
            return
        good = limits.met(state.S)
        if not bool(good.all()):
            state.reset(torch.where(good[:, None], state.S, self.places.fill([safe])))

    def _thrift(self, B: int) -> Tensor:
        """Factors of gains (B x c): cost ** -power, from gain to gain per cost at random."""
        if self.places.limits is None or not self.places.limits.budgeted:
            return torch.ones(B, self.places.c, dtype=torch.float64, device=self.device)
        power = torch.rand(B, 1, generator=self.generator, dtype=torch.float64) * 1.5 - 0.25
        costs = self.places.limits.purses[0].costs
        least = float(costs[costs > 0].min()) if bool((costs > 0).any()) else 1.0
        return costs.clamp_min(least / 10) ** -power.clamp(0, 1).to(self.device)

    def _tenure(self, least: int, B: int) -> Tensor:
        return least + torch.randint(0, least + 1, (B,), generator=self.generator)


class Walk:
    """One walk of B panels; the best of each is in ``found``. On a GPU, a step is a CUDA graph.

    ``back`` (B x c + 1) has the steps from which candidates may enter, ``tenures`` (steps x 2 x B)
    for how long what leaves stays out, and what enters stays in.
    """

    def __init__(self, places: Places, state: Exchange, back: Tensor, tenures: Tensor) -> None:
        self.places, self.state, self.back = places, state, back
        self.tenures = tenures.to(back.device)
        self.leave = torch.zeros_like(state.S)
        self.best, self.found = state.objective.clone(), state.S.clone()
        self.now = torch.zeros((), dtype=torch.long, device=back.device)  # number of the step
        self.recorded: RecordedStep | None = None
        if back.is_cuda:
            from fewer.cuda import RecordedStep  # noqa: PLC0415 (a CPU does not need it)

            self.fixed = {name: getattr(state, name) for name in CHANGING}
            changed = [*self.fixed.values(), state.S, back, self.leave, self.best, self.found]
            self.recorded = RecordedStep(self._in_place, [*changed, self.now], back.device)

    def step(self, fresh: bool) -> None:
        """Swap once; ``fresh``: without the rounding errors of the swaps so far."""
        if self.recorded is None or fresh:
            self._step(fresh)
            self._settle()
        else:
            self.recorded()

    def _in_place(self) -> None:
        self._step(False)
        self._settle()

    def _settle(self) -> None:
        """On a GPU, keep the state where the recorded step expects it."""
        if self.recorded is not None:
            for name, own in self.fixed.items():
                if getattr(self.state, name) is not own:
                    own.copy_(getattr(self.state, name))
                    setattr(self.state, name, own)

    def _step(self, fresh: bool) -> None:
        state, now = self.state, self.now.add_(1)
        shut = self.back[:, : self.places.c] >= now
        gain, i, j = self.places.best(state, self.leave >= now, shut)
        moves, i1 = gain > -torch.inf, i[:, None]
        out = state.S.gather(1, i1)
        state.swap(i, j, gain, moves)
        # recording makes some steps too many
        at_step = (now[None] - 1).clamp_max_(len(self.tenures) - 1)
        # what did not move gets no tenure
        until = torch.where(moves, now + self.tenures.index_select(0, at_step)[0], 0)[..., None]
        self.back.scatter_reduce_(1, out, until[0], "amax")
        self.leave.scatter_reduce_(1, i1, until[1], "amax")
        if fresh:
            state.refresh()
        better = state.objective < self.best
        self.best.copy_(torch.where(better, state.objective, self.best))
        self.found.copy_(torch.where(better[:, None], state.S, self.found))


Found = tuple[NDArray[np.int64], float, int, bool]


def swap_groups(
    C: Matrix,
    panel: NDArray[np.int64],
    constraints: Constraints,
    ridge: Penalty,
    deadline: float | None,
    least: float,
) -> Found:
    """Swap two groups as long as that lowers the objective; as in `SwapResult`."""
    exchange = GroupExchange(C, constraints, ridge)
    best, evaluations = worth(C, panel, constraints, ridge), 0
    while not over(deadline):
        units = np.unique(constraints.unit_of[panel])
        gains = exchange.gains(units)
        evaluations += 1
        place, unit = divmod(int(gains.argmax()), len(constraints.units))
        if gains[place, unit] <= least:
            return panel, best, evaluations, True
        kept = np.delete(units, place) if place < len(units) else units
        new = constraints.features([*kept, unit])
        value = worth(C, new, constraints, ridge)
        if value > best - least:  # the gain was rounding
            return panel, best, evaluations, True
        panel, best = new, value
    return panel, best, evaluations, False


class GroupExchange:
    """The gain of exchanging each unit on a panel for each other unit.

    As `Exchange`, with m x m blocks instead of numbers, computed from scratch for each panel: with
    D the inverse of the block of P on the unit that leaves, removing it adds V^T D V to E.
    """

    def __init__(self, C: Matrix, constraints: Constraints, ridge: Penalty) -> None:
        self.C, self.constraints, self.ridge = C, constraints, ridge
        self.table = unit_table(constraints, C.device)  # n x m
        self.least = DEPENDENT * padded(C.diagonal())[self.table]
        self.prices = None
        if constraints.unit_prices is not None:  # an empty place costs nothing
            self.prices = torch.as_tensor(np.append(constraints.unit_prices, 0.0), device=C.device)
        self.limits = None
        if constraints.budget is not None or constraints.limits:
            self.limits = Limits(constraints, C.device)

    def gains(self, units: NDArray[np.int64]) -> Tensor:
        """Decrease of the objective (places x n); -inf where a swap is not allowed.

        The last place is empty where another unit may be added.
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
        if self.limits is not None:
            shut |= ~self.limits.exchangeable(S[None])[0]
        return gains.masked_fill(shut, -torch.inf)

    def _leaving(self, S: Tensor) -> Callable[[Tensor], Tensor]:
        """A function from the rows of S (K features) of a leaving unit to the gains (n)."""
        C, full = self.C, len(self.C) > S
        C_S = C[S.clamp_max(len(C) - 1)] * full[:, None]
        A = padded(C_S)[:, S]
        P = regular_inverse(A[None], full[None], penalty_at(self.ridge, S[None]))[0]
        V = P @ C_S  # K x d
        N = V @ V.T
        if isinstance(C, FactoredCovariance):
            Z = C.columns(S.clamp_max(len(C) - 1)) * full[:, None]
            Y = torch.addmm(C.rows, Z.T, V, alpha=-1)  # E = X' Y
            U = (V @ C.rows.T) @ Y
            E_JJ, EE_JJ = factored_blocks(C, Y, self.table)  # n x m x m
        else:
            E = torch.addmm(C, C_S.T, V, alpha=-1)
            U = V @ E
            E_JJ, EE_JJ = unit_blocks(E.__getitem__, self.table, len(E))

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
                penalty_at(self.ridge, self.table),
            )
            return more - (D * N_i).sum()

        return gain


class GroupExplorer:
    """`Explorer` for groups: refills partial panels greedily, then swaps groups."""

    batch, patience = GROUP_BATCH, GROUP_STEPS

    def __init__(self, C: Matrix, constraints: Constraints, ridge: Penalty, least: float) -> None:
        self.C, self.constraints, self.ridge, self.least = C, constraints, ridge, least
        self.steps = 0

    def improve(
        self,
        panels: Sequence[NDArray[np.int64]],
        steps: int,
        barred: Sequence[NDArray[np.int64]],
        noise: float = 0.0,
        deadline: float | None = None,
        safe: NDArray[np.int64] | None = None,
    ) -> list[NDArray[np.int64]]:
        """Fill each panel without its barred features, and swap to a local optimum."""
        del steps, noise, safe  # swaps end on their own, and perturbations are random already
        found: list[NDArray[np.int64]] = []
        for panel, out in zip(panels, barred, strict=True):
            if found and over(deadline):
                break
            full = self._fill(panel, out)
            full, _, evaluations, _ = swap_groups(
                self.C, full, self.constraints, self.ridge, deadline, self.least
            )
            self.steps += evaluations
            found.append(full)
        return found

    def _fill(self, panel: NDArray[np.int64], out: NDArray[np.int64]) -> NDArray[np.int64]:
        """Greedy completion of `panel`, without the features `out` where that is possible."""
        fewer = replace(
            self.constraints, include=panel, exclude=np.union1d(self.constraints.exclude, out)
        )
        zero = np.zeros(len(fewer.units))
        open_ = not fewer.limits or fewer.best(zero) is not None
        if open_ and len(fewer.units) >= (self.constraints.k or 1):
            full = greedy(self.C, fewer, ridge=self.ridge).panel()
            if self.constraints.k in (None, len(np.unique(self.constraints.unit_of[full]))):
                return full
        return greedy(self.C, replace(self.constraints, include=panel), ridge=self.ridge).panel()
