"""Panels that tolerate missing features: swaps on the error with the worst m of them missing.

With P the inverse of C_SS (plus a penalty) and B = C_S: C_:S, the weights of the linear decoder are
W = P C_S:, and G = W W' = P B P. Without the features M of the panel, the residual grows by
tr(inv(P_MM) G_MM): by G_ii / P_ii without feature i. So the errors of all patterns of one or two
missing features follow from k x k matrices. Features that are measured together, as a group, are
missing together.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fewer.constraints import Constraints, resolve
from fewer.search.objective import padded

__all__ = ["RobustPanel", "growth_without", "robust_swaps"]

TOLERANCE = 0.025  # by which the residual with all features present may grow
WEIGHTS = (
    0.02,
    0.05,
    0.1,
    0.2,
    0.5,
    1.0,
)  # of the growth, in objectives that lead to starting panels
KICKS, FEWEST = (
    32,
    2,
)  # times that features of the best panel are exchanged at random: so many, up to half
MOST_SWAPS = 2048  # that are evaluated at a time, those with the smallest residual
MOST_STEPS = 200
POOL = 2000  # features that are looked at in wide data
BEYOND = 1e6  # times the residual: what a panel beyond the tolerance is worth
LEAST = 1e-9  # of the mean variance, as panels may be dependent; and what is rounding elsewhere
AT_ONCE = 2**23  # numbers in the matrices of panels that are evaluated at a time

Columns = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class RobustPanel:
    """A panel, its residual, and its residual with the worst features missing."""

    columns: Columns
    residual: float
    worst: float


def growth_without(P: Tensor, G: Tensor, m: int) -> Tensor:
    """By how much the residual grows without the worst m (1 or 2) features of each panel.

    Examples
    --------
    >>> P, G = torch.tensor([[2.0, 0.0], [0.0, 1.0]]), torch.tensor([[4.0, 0.0], [0.0, 3.0]])
    >>> growth_without(P, G, 1), growth_without(P, G, 2)
    (tensor(3.), tensor(5.))
    """
    p, g = P.diagonal(dim1=-2, dim2=-1), G.diagonal(dim1=-2, dim2=-1)
    if m == 1:
        return (g / p).amax(-1)
    pairs = p[..., :, None] * p[..., None, :] - P**2  # determinants of P_MM
    found = p[..., None, :] * g[..., :, None] + p[..., :, None] * g[..., None, :] - 2 * P * G
    one = torch.eye(p.shape[-1], dtype=torch.bool, device=P.device)
    return (found / pairs).masked_fill(one, -torch.inf).amax((-2, -1))


def _growth_without_units(P: Tensor, G: Tensor, units: int, m: int) -> Tensor:
    """`growth_without` the worst m units of each panel, which have as many places each."""
    size = P.shape[-1] // units
    if size == 1:
        return growth_without(P, G, m)
    places = torch.arange(units * size).view(units, size)
    gone = torch.combinations(torch.arange(units), m)  # patterns x m
    out = places[gone].flatten(1)
    worst = torch.full(P.shape[:1], -torch.inf, dtype=P.dtype)
    for some in out.split(max(1, AT_ONCE // (len(P) * out.shape[1] ** 2))):
        at = some[:, :, None], some[:, None, :]
        left = torch.linalg.solve(P[:, *at], G[:, *at])
        worst = torch.maximum(worst, left.diagonal(dim1=-2, dim2=-1).sum(-1).amax(-1))
    return worst


class _Errors:
    """Residuals of panels of units, with all and with the worst m of them; prices are added.

    ``members`` are the places of each unit in C; those of smaller units end with the number of
    features, a place without variance.
    """

    def __init__(
        self,
        C: Tensor,
        B: Tensor,
        total: float,
        members: Tensor,
        prices: Tensor,
        m: int,
        ridge: float,
    ) -> None:
        self.C, self.B = (padded(padded(part).mT) for part in (C, B))
        self.total, self.members, self.prices, self.m = total, members, prices, m
        self.ridge = ridge + LEAST * float(C.diagonal().mean())

    def of(self, panels: Tensor) -> tuple[Tensor, Tensor]:
        """Residual and growth of b x k panels of units."""
        size = (panels.shape[1] * self.members.shape[1]) ** 2
        parts = [self._of_some(some) for some in panels.split(max(1, AT_ONCE // size))]
        residual, growth = (torch.cat(part) for part in zip(*parts, strict=True))
        return residual + self.prices[panels].sum(1), growth

    def _of_some(self, panels: Tensor) -> tuple[Tensor, Tensor]:
        places = self.members[panels].flatten(1)
        rows, columns = places[:, :, None], places[:, None, :]
        B, C = self.B[rows, columns], self.C[rows, columns]
        C.diagonal(dim1=1, dim2=2).add_(self.ridge)
        P = torch.cholesky_inverse(torch.linalg.cholesky(C))
        residual = self.total - (P * B).sum((1, 2))
        return residual, _growth_without_units(P, P @ B @ P, panels.shape[1], self.m)

    def after_swaps(self, panel: Tensor) -> Tensor:
        """At least the residual after every swap, k x p: of the unit at a place for another."""
        units = torch.arange(len(self.members))
        if self.members.shape[1] > 1:
            swaps = torch.zeros(len(panel), len(units), dtype=torch.float64)
        else:
            swaps = torch.stack([self._after_swaps_at(panel, place) for place in range(len(panel))])
        paid = self.prices[panel]
        swaps += paid.sum() - paid[:, None] + self.prices
        swaps[:, panel] = torch.inf
        return swaps

    def _after_swaps_at(self, panel: Tensor, place: int) -> Tensor:
        own = self.members[:, 0]
        rest = own[torch.cat([panel[:place], panel[place + 1 :]])]
        A, B = self.C[own][:, rest], self.B[rest][:, rest]
        gram = self.C[rest][:, rest]
        gram = gram + self.ridge * torch.eye(len(rest), dtype=A.dtype)
        P = torch.cholesky_inverse(torch.linalg.cholesky(gram))
        U = A @ P
        gain = self.B.diagonal()[own] - 2 * (U * self.B[own][:, rest]).sum(1)
        gain += ((U @ B) * U).sum(1)
        left = self.C.diagonal()[own] + self.ridge - (U * A).sum(1)
        residual = self.total - (P * B).sum()
        return residual - gain.clamp_min(0) / left.clamp_min(self.ridge)


class _Search:
    """Descents by swaps of units, from a panel to one that no swap improves."""

    def __init__(
        self, errors: _Errors, fixed: Tensor, limits: tuple[Tensor, Tensor, Tensor], deadline: float
    ) -> None:
        self.errors, self.fixed, self.deadline = errors, fixed, deadline
        self.amounts, self.least, self.most = limits  # of each limit: of every unit, of a panel
        self.bound = float("inf")

    def value(self, residual: Tensor, growth: Tensor, weight: float | None) -> Tensor:
        """The objective: residual and weighted growth, or their sum if within the tolerance."""
        if weight is not None:
            return residual + weight * growth
        return torch.where(residual > self.bound, BEYOND * residual, residual + growth)

    def descend(self, panel: Tensor, weight: float | None) -> tuple[Tensor, float]:
        """The best swap again and again."""
        best = float(self.value(*self.errors.of(panel[None]), weight)[0])
        for _ in range(MOST_STEPS):
            if time.monotonic() > self.deadline:
                break
            swaps = self.errors.after_swaps(panel)
            swaps[self.fixed[panel]] = torch.inf
            for amounts, least, most in zip(self.amounts, self.least, self.most, strict=True):
                sums = amounts[panel].sum() - amounts[panel][:, None] + amounts
                swaps[(sums < least) | (sums > most)] = torch.inf
            # growth only adds: no other swap can be better
            order = swaps.flatten().argsort(stable=True)[:MOST_SWAPS]
            order = order[swaps.flatten()[order] < best]
            if not len(order):
                break
            panels = panel.repeat(len(order), 1)
            panels[torch.arange(len(order)), order // swaps.shape[1]] = order % swaps.shape[1]
            values = self.value(*self.errors.of(panels), weight)
            at = int(values.argmin())
            if float(values[at]) >= best * (1 - LEAST):
                break
            panel, best = panels[at], float(values[at])
        return panel, best

    def kicked(self, panel: Tensor, random: np.random.Generator) -> Tensor:
        """A panel in which two units, or up to half of them, were exchanged at random."""
        places = np.flatnonzero(~self.fixed[panel].numpy())
        taken = torch.zeros_like(self.fixed)
        taken[panel] = True
        free = torch.nonzero(~taken).flatten().numpy()
        most = max(FEWEST, len(panel) // 2)
        count = int(random.integers(FEWEST, most, endpoint=True))
        count = min(count, len(places), len(free))
        found = panel.clone()
        found[random.choice(places, count, replace=False)] = torch.from_numpy(
            random.choice(free, count, replace=False)
        )
        sums = self.amounts[:, found].sum(1)
        return found if bool(((sums >= self.least) & (sums <= self.most)).all()) else panel


def _limits(rules: Constraints, units: Columns) -> tuple[Tensor, Tensor, Tensor]:
    """What units count in each limit, and the bounds of their sum, with room for rounding."""
    amounts = np.vstack([rules.unit_costs, rules.unit_limits.toarray()])[:, units]
    least = np.array([-np.inf, *(limit.least * (1 - LEAST) for limit in rules.limits)])
    most = np.array([rules.ceiling, *(limit.most * (1 + LEAST) for limit in rules.limits)])
    return torch.from_numpy(amounts), torch.from_numpy(least), torch.from_numpy(most)


def robust_swaps(
    cross: Callable[[Columns], Tensor],
    variance: NDArray[np.float64],
    starts: Sequence[Columns],
    m: int,
    constraints: Constraints | None = None,
    *,
    tolerance: float = TOLERANCE,
    ridge: float = 0.0,
    kicks: int = KICKS,
    seed: int = 0,
    time_limit: float | None = None,
) -> RobustPanel:
    """The panel with the smallest residual when the worst m of its features are missing.

    Its residual with all features present, plus its price where costs have weight, is at most
    ``1 + tolerance`` times that of the best of ``starts``. Swaps go down several objectives,
    residual plus weighted growth, and end with the constrained one; then features of the best panel
    are exchanged at random, again and again.

    Parameters
    ----------
    cross : callable
        Rows of the covariance: ``cross(columns)`` is len(columns) x d.
    variance : array of length d
        Its diagonal.
    starts : list of arrays
        Panels: the best one without missing features, and any others.
    m : int
        How many features, or groups of features, may be missing: 1 or 2.
    constraints : Constraints, default=None
        What panels have to obey, as the starts do; each keeps its number of features or groups.

    Examples
    --------
    A panel of two copies of one signal tolerates the loss of either:

    >>> x = torch.linspace(-1, 1, 50, dtype=torch.float64)
    >>> X = torch.stack([x, x + 0.01 * x**2, x**3, 0.2 * x**2], 1)
    >>> C = torch.cov(X.T)
    >>> start, spread = np.array([0, 3]), C.diagonal().numpy()
    >>> robust_swaps(lambda j: C[j], spread, [start], 1, tolerance=9.0).columns
    array([0, 1])
    """
    rules = resolve(None, len(variance), len(starts[0])) if constraints is None else constraints
    units = np.arange(len(rules.units))
    if len(variance) > POOL:  # what could stand in for a chosen feature is correlated with one
        near = cross(starts[0]).abs().amax(0) / torch.from_numpy(variance).clamp_min(1e-300).sqrt()
        known = np.concatenate([*starts, near.argsort(descending=True)[:POOL].numpy()])
        units = np.unique(rules.unit_of[known])
        units = units[units >= 0]
    pool = rules.features(units)
    members = np.full((len(units), max(len(rules.units[unit]) for unit in units)), len(pool))
    for row, unit in zip(members, units, strict=True):
        row[: len(rules.units[unit])] = np.searchsorted(pool, rules.units[unit])
    rows = cross(pool).double()
    C, B = rows[:, torch.from_numpy(pool)], rows @ rows.T
    prices = np.zeros(len(rules.units)) if rules.unit_prices is None else rules.unit_prices
    errors = _Errors(
        C,
        B,
        float(variance.sum()),
        torch.from_numpy(members),
        torch.from_numpy(prices[units]),
        m,
        ridge,
    )
    search = _Search(
        errors,
        torch.from_numpy(np.isin(units, rules.included_units)),
        _limits(rules, units),
        float("inf") if time_limit is None else time.monotonic() + time_limit,
    )
    panels = [
        torch.from_numpy(np.searchsorted(units, np.unique(rules.unit_of[panel])))
        for panel in starts
    ]
    residuals = [float(errors.of(panel[None])[0][0]) for panel in panels]
    search.bound = (1 + tolerance) * min(residuals)
    first = panels[int(np.argmin(residuals))]

    def candidates() -> Iterator[Tensor]:
        yield from panels
        current = first
        for weight in WEIGHTS:
            current, _ = search.descend(current, weight)
            yield current
            yield search.descend(first, weight)[0]
        random = np.random.default_rng(seed)
        for _ in range(kicks):
            # first towards panels that are good with all features, or there is no way back
            yield search.descend(search.kicked(best[0], random), random.choice(WEIGHTS))[0]

    best = first, float("inf")
    for panel in candidates():
        best = min(best, search.descend(panel, None), key=lambda found: found[1])
        if time.monotonic() > search.deadline:
            break
    residual, growth = (float(part[0]) for part in errors.of(best[0][None]))
    return RobustPanel(rules.features(units[best[0].numpy()]), residual, residual + growth)
