"""Which panels are allowed: include, exclude, costs with budgets, groups, counts of sets, and k.

`resolve` turns what a user writes (names, column numbers, mappings) into a `Constraints` of plain
arrays, and refuses what cannot be met.
"""

import difflib
import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fewer._checks import check_number, check_whole, join_names
from fewer.errors import InputError, TypeInputError

__all__ = ["Constraints", "Limit", "resolve"]

Indices = NDArray[np.int64]

# Sums of costs are compared with this relative slack, so that 0.1 + 0.2 fits into 0.3.
_ROUNDING = 1e-9


@dataclass(frozen=True, eq=False)
class Limit:
    """What some features of a panel may sum to: a further cost, or how many are of a set.

    Attributes
    ----------
    name : str
        The set, or the cost, as the user calls it.
    columns, weights : ndarray of int, ndarray of float
        Features that count, ascending, and how much; all others count 0.
    least, most : float
        The sum over the panel is within these.
    cost : bool
        Whether it is a cost: a group is paid once, at its highest. In a set every feature counts.

    Examples
    --------
    >>> limit = resolve(None, 4, 2, sets={"markers": [1, 3]}, at_least={"markers": 1}).limits[0]
    >>> limit.columns, limit.least, limit.most
    (array([1, 3]), 1, inf)
    """

    name: str
    columns: Indices
    weights: NDArray[np.float64]
    least: float = 0
    most: float = math.inf
    cost: bool = False

    def __str__(self) -> str:
        if self.cost:
            return f"budget={self.most:g} of {self.name!r}"
        bounds = [f"at_least={self.least:g}"] if self.least else []
        bounds += [f"at_most={self.most:g}"] if self.most < math.inf else []
        return f"{' and '.join(bounds)} of {self.name!r}"


@dataclass(frozen=True, eq=False)
class Constraints:
    """Constraints on a panel, with features as column numbers. Build it with `resolve`.

    A **unit** is a group of features that are measured together, or a single feature. Choosing a
    feature puts its whole unit on the panel, which counts once towards `k` and is paid once, at
    the price of its most expensive allowed feature.

    Attributes
    ----------
    d : int
        Number of features.
    k : int or None
        Exact number of units on the panel. None: as many as the budget buys.
    include : ndarray of int
        Features that must be on the panel, ascending, completed to whole groups.
    exclude : ndarray of int
        Features that must not be used, ascending. The rest of their groups may be chosen.
    costs : ndarray of float, or None
        Cost of each feature; no constraint without `budget`.
    budget : float or None
        Maximum total cost of the units of the panel.
    groups : ndarray of int, or None
        Unit of each feature, numbered by first appearance; None without groups.
    cost_weight : float
        How much each unit of cost adds to the mean squared error: a trade-off, not a limit.
    group_names : tuple of str, or None
        Group of each feature as the user calls it, "" for none; None without groups.
    limits : tuple of Limit
        Further costs with their budgets, and how many features of which sets.

    Examples
    --------
    >>> constraints = resolve(["a", "b", "c", "d"], 4, 2, include=["c"], exclude=["a"])
    >>> constraints.include, constraints.allowed
    (array([2]), array([False,  True,  True,  True]))
    """

    d: int
    k: int | None
    include: Indices
    exclude: Indices
    costs: NDArray[np.float64] | None = None
    budget: float | None = None
    groups: Indices | None = None
    cost_weight: float = 0.0
    group_names: tuple[str, ...] | None = None
    limits: tuple[Limit, ...] = ()

    @cached_property
    def allowed(self) -> NDArray[np.bool_]:
        """Mask over the d features: True where the feature may be on a panel."""
        mask = np.ones(self.d, dtype=bool)
        mask[self.exclude] = False
        return mask

    @cached_property
    def units(self) -> tuple[Indices, ...]:
        """The allowed features of each unit, ascending; units without any are left out."""
        allowed = np.flatnonzero(self.allowed)
        if self.groups is None or len(allowed) == 0:
            return tuple(allowed[:, None])
        label = self.groups[allowed]
        order = np.argsort(label, kind="stable")
        return tuple(np.split(allowed[order], np.flatnonzero(np.diff(label[order])) + 1))

    @cached_property
    def _single(self) -> Indices:
        """The only feature of each unit, where there are no groups."""
        return np.flatnonzero(self.allowed)

    @cached_property
    def unit_of(self) -> Indices:
        """Position in `units` of each feature; -1 for an excluded one."""
        out = np.full(self.d, -1)
        for position, unit in enumerate(self.units):
            out[unit] = position
        return out

    @cached_property
    def unit_costs(self) -> NDArray[np.float64]:
        """Price of each of `units`: its most expensive feature; 1 where no costs are given."""
        if self.costs is None:
            return np.ones(len(self.units))
        return np.array([self.costs[unit].max() for unit in self.units])

    @cached_property
    def unit_prices(self) -> NDArray[np.float64] | None:
        """Weighted cost of each unit as a sum over all d features; None without a weight."""
        return self.unit_costs * (self.cost_weight * self.d) if self.cost_weight else None

    @cached_property
    def unit_limits(self) -> Any:
        """What each of `units` counts in each of `limits`: a sparse matrix, limits x units."""
        from scipy import sparse  # noqa: PLC0415 (rarely needed)

        rows = []
        for limit in self.limits:
            weights = np.zeros(self.d)
            weights[limit.columns] = limit.weights
            if self.groups is None:
                weights = weights[self._single]
            else:
                combine = np.max if limit.cost else np.sum
                weights = np.array([combine(weights[unit]) for unit in self.units])
            rows.append(sparse.csr_array(weights[None]))
        return sparse.vstack(rows, format="csr") if rows else sparse.csr_array((0, len(self.units)))

    @cached_property
    def included_units(self) -> Indices:
        """Positions in `units` that every panel has, ascending."""
        return np.unique(self.unit_of[self.include])

    @property
    def only_choice(self) -> bool:
        """Whether k and the features to include leave a single panel."""
        return self.k in (len(self.units), len(self.included_units))

    @property
    def most_units(self) -> int:
        """The most units that a panel can have: k, or what the budget buys at the cheapest."""
        if self.k is not None or self.budget is None:
            return len(self.units) if self.k is None else self.k
        rest = np.sort(np.delete(self.unit_costs, self.included_units))
        paid = self.unit_costs[self.included_units].sum()
        bought = np.searchsorted(paid + np.cumsum(rest), self.ceiling, side="right")
        return len(self.included_units) + int(bought)

    @property
    def ceiling(self) -> float:
        """The budget, with room for rounding; infinite without a budget."""
        return math.inf if self.budget is None else self.budget * (1 + _ROUNDING) + 1e-300

    def cost(self, indices: Iterable[int]) -> float:
        """Cost of a panel with these features, every group paid once."""
        return float(self.unit_costs[self._units_on(indices)].sum())

    def sums(self, indices: Iterable[int]) -> NDArray[np.float64]:
        """What a panel with these features sums to in each of `limits`."""
        on = np.zeros(len(self.units))
        on[self._units_on(indices)] = 1
        return np.asarray(self.unit_limits @ on)

    def within(self, indices: Iterable[int]) -> bool:
        """Whether a panel with these features is within the budget and all limits."""
        panel = list(indices)
        if self.cost(panel) > self.ceiling:
            return False
        return not any(_violated(*each) for each in zip(self.limits, self.sums(panel), strict=True))

    def best(self, scores: NDArray[np.float64]) -> Indices | None:
        """Features, ascending, of the panel with the largest sum of ``scores`` of its `units`.

        An integer program over all constraints; None where no panel meets them.

        Examples
        --------
        >>> rule = resolve(None, 4, 2, sets={"twins": [0, 1]}, at_most={"twins": 1})
        >>> rule.best(np.array([9.0, 8.0, 1.0, 2.0]))
        array([0, 3])
        """
        from scipy.optimize import Bounds, LinearConstraint, milp  # noqa: PLC0415 (rarely needed)

        n = len(self.units)
        least = np.zeros(n)
        least[self.included_units] = 1
        few, many = (1, n) if self.k is None else (self.k, self.k)
        low = np.array([limit.least for limit in self.limits])
        high = np.array([limit.most for limit in self.limits])
        for shrunk in (1.0, 1 - 1e-5):  # a sum of costs may be above its limit by rounding
            rows = [LinearConstraint(np.ones(n), few, many)]
            if self.budget is not None:
                rows.append(LinearConstraint(self.unit_costs, -np.inf, shrunk * self.ceiling))
            if self.limits:
                most = np.where([limit.cost for limit in self.limits], shrunk * high, high)
                rows.append(LinearConstraint(self.unit_limits, low, most))
            found = milp(-scores, constraints=rows, bounds=Bounds(least, 1), integrality=np.ones(n))
            if found.x is None:
                return None
            panel = self.features(np.flatnonzero(found.x.round()))
            if self.within(panel):
                return panel
        return None

    def price(self, indices: Iterable[int]) -> float:
        """Sum of `unit_prices` over a panel: what its cost adds to the residual."""
        return self.cost(indices) * self.cost_weight * self.d if self.cost_weight else 0.0

    def complete(self, indices: Iterable[int]) -> Indices:
        """Features, ascending, of the whole groups that contain `indices`."""
        return self.features(self._units_on(indices))

    def features(self, units: Iterable[int]) -> Indices:
        """Features of some of `units`, ascending."""
        if self.groups is None:
            return np.sort(self._single[np.array([*units], dtype=np.int64)])
        return np.sort(np.concatenate([np.arange(0), *(self.units[unit] for unit in units)]))

    def followed_by(self, more: int) -> "Constraints":
        """The same constraints where ``more`` columns follow that cannot be chosen."""
        if not more:
            return self
        d = self.d + more
        groups, costs, following = self.groups, self.costs, np.arange(self.d, d)
        if groups is not None:
            groups = np.concatenate([groups, following])  # numbers of groups are below self.d
        if costs is not None:
            costs = np.concatenate([costs, np.zeros(more)])
        exclude = np.concatenate([self.exclude, following])
        return replace(self, d=d, exclude=exclude, costs=costs, groups=groups, group_names=None)

    def check(self, indices: Iterable[int]) -> None:
        """Raise `InputError` unless `indices` is a panel that meets every constraint."""
        panel = np.sort(np.fromiter(indices, dtype=np.int64))
        if len(np.unique(panel)) != len(panel):
            raise InputError(f"the panel repeats a feature: {panel.tolist()}")
        for feature in np.intersect1d(panel, self.exclude):
            raise InputError(f"feature {feature} is on the panel but excluded")
        for feature in np.setdiff1d(self.include, panel):
            raise InputError(f"feature {feature} must be included but is not on the panel")
        for feature in np.setdiff1d(self.complete(panel), panel):
            raise InputError(f"feature {feature} is missing though its group is on the panel")
        count = len(self._units_on(panel))
        if self.k is not None and count != self.k:
            raise InputError(f"the panel has {count} units, k={self.k} were asked for")
        if self.cost(panel) > self.ceiling:
            raise InputError(f"the panel costs {self.cost(panel):g}, budget={self.budget:g}")
        for limit, total in zip(self.limits, self.sums(panel), strict=True):
            if _violated(limit, total):
                raise InputError(f"the panel has {total:g}, but {limit}")

    def _units_on(self, indices: Iterable[int]) -> Indices:
        on = np.unique(self.unit_of[np.asarray(list(indices), dtype=np.int64)])
        return on[on >= 0]


def resolve(
    names: Sequence[str] | None,
    d: int,
    k: int | None,
    include: Iterable[str | int] = (),
    exclude: Iterable[str | int] = (),
    costs: Mapping[Any, float] | Sequence[float] | NDArray[Any] | None = None,
    budget: float | None = None,
    groups: Mapping[Any, Any] | Sequence[Any] | NDArray[Any] | None = None,
    cost_weight: float = 0.0,
    sets: Mapping[str, Iterable[str | int]] | Iterable[Iterable[str | int]] | None = None,
    at_least: Mapping[str, int] | int | None = None,
    at_most: Mapping[str, int] | int | None = None,
) -> Constraints:
    """Turn the constraints that a user gives into `Constraints`; raise if no panel meets them.

    Parameters
    ----------
    names : sequence of str, or None
        Names of the d features, if any.
    d : int
        Number of features.
    k : int or None
        Number of features, or units (see `Constraints`), to choose; None to spend `budget`.
    include, exclude : iterable of str or int
        Features that must, or must not, be on the panel: names, column numbers from 0, or a
        boolean mask of length d. Including one feature of a group includes all.
    costs : sequence of d numbers, or mapping from feature to number, optional
        Cost of each feature, at least 0; a group is paid once, at its highest cost. Several costs
        with a budget each: a mapping from their names to such sequences or mappings.
    budget : float, or mapping from the names of costs to numbers, optional
        Maximum total cost. Together with `k`: exactly k units within budget.
    groups : sequence of d labels, mapping from feature to label, or list of lists, optional
        Features measured together. Equal labels are one group; a feature labelled None or NaN,
        or that no list or mapping names, stands alone.
    cost_weight : float, default=0.0
        Trade-off: how much each unit of cost adds to the mean squared error.
    sets : mapping from name to features, or list of lists of features, optional
        Sets of features, which may overlap; those of a list are called "0", "1", ...
    at_least, at_most : mapping from name of a set to int, or int for every set, optional
        How many features of a set a panel must have, and may have.

    Examples
    --------
    >>> constraints = resolve(["a", "b", "c"], 3, None, costs={"a": 1, "b": 5, "c": 2}, budget=3)
    >>> constraints.most_units, constraints.cost([0, 2])
    (2, 3.0)
    """
    look = _Lookup(names, d)
    number = None if k is None else check_k(k, d)
    if number is None and budget is None:
        raise InputError("k and budget are both None: give k=, or costs= with budget=")
    required = asked = look.several(include, "include")
    banned = look.several(exclude, "exclude")
    labels, titles = (None, None) if groups is None else _group_labels(groups, look)
    if labels is not None:
        required = np.flatnonzero(np.isin(labels, labels[asked]))
        # an excluded feature of an included group is only a conflict if it was itself included
        required = np.setdiff1d(required, np.setdiff1d(banned, asked))
    both = np.intersect1d(required, banned)
    if len(both):
        raise InputError(
            f"include and exclude overlap: {look.show(both)}; take them out of one of the two"
        )
    limits = _set_limits(sets, at_least, at_most, look)
    if isinstance(budget, Mapping):
        if cost_weight:
            raise InputError("cost_weight is for a single cost; leave it out, or give one budget")
        costs, budget, further = _several_costs(costs, budget, look)
        limits = [*further, *limits]
    price = None if costs is None else _prices(costs, look)
    check_number("cost_weight", cost_weight)
    if budget is not None:
        budget = budget.item() if hasattr(budget, "item") else budget  # NumPy's and torch's numbers
        check_number("budget", budget)
    if price is None and (budget is not None or cost_weight):
        what = f"cost_weight={cost_weight!r}" if budget is None else f"budget={budget!r}"
        raise InputError(f"{what} needs costs=, the cost of each feature")
    constraints = Constraints(
        d, number, required, banned, price, budget, labels, float(cost_weight), titles, (*limits,)
    )
    for array in (required, banned, price, labels):
        if array is not None:
            array.flags.writeable = False
    _feasible(constraints)
    return constraints


def check_k(k: Any, d: int) -> int:
    """The number of features to choose from d."""
    number = check_whole("k", k, hint=", such as k=50")
    if number > d:
        raise InputError(f"k={number} is more than the n_features={d} of X; choose k from 1 to {d}")
    return number


def find_column(names: Sequence[str] | None, d: int, feature: Any, role: str) -> int:
    """The column of a name or number, or an error that names it and its ``role``."""
    return _Lookup(names, d).one(feature, role)


class _Lookup:
    """Finds the column of a name or number, or raises an error that names it."""

    def __init__(self, names: Sequence[str] | None, d: int) -> None:
        if names is not None and len(names) != d:
            raise InputError(f"there are {len(names)} names for {d} features; give one for each")
        self.d = d
        self.names = None if names is None else [str(name) for name in names]
        self.at: dict[str, int] = {}
        self.repeated: set[str] = set()
        for number, name in enumerate(self.names or ()):
            if self.at.setdefault(name, number) != number:
                self.repeated.add(name)

    def one(self, feature: Any, role: str) -> int:
        if isinstance(feature, str):
            return self._by_name(str(feature), role)
        try:
            if isinstance(feature, (bool, np.bool_)):
                raise TypeError
            number = operator.index(feature)
        except TypeError:
            raise TypeInputError(
                f"{role} has {feature!r}, which is neither a name nor a column number"
            ) from None
        if not 0 <= number < self.d:
            raise InputError(f"{role} has column {number}; columns go from 0 to {self.d - 1}")
        return number

    def _by_name(self, name: str, role: str) -> int:
        if self.names is None:
            raise InputError(f"{role} has {name!r}, but the features have no names; use numbers")
        if name in self.repeated:
            raise InputError(f"{role} has {name!r}, which names several columns; use its number")
        if name not in self.at:
            close = difflib.get_close_matches(name, self.at)
            hint = f"did you mean {join_names(close)}?" if close else "no name is close"
            raise InputError(f"{role} has {name!r}, which is not a feature; {hint}")
        return self.at[name]

    def several(self, features: Any, role: str) -> Indices:
        if isinstance(features, (str, bytes)) or not isinstance(features, Iterable):
            raise TypeInputError(f"{role}={features!r} is not a list; write {role}=[{features!r}]")
        if isinstance(features, np.ndarray) and features.dtype == bool:
            if features.shape != (self.d,):
                raise InputError(f"{role} is a mask of shape {features.shape}, not ({self.d},)")
            return np.flatnonzero(features)
        return np.unique(np.array([self.one(f, role) for f in features], dtype=np.int64))

    def show(self, numbers: Indices) -> str:
        some = [int(n) if self.names is None else self.names[n] for n in numbers[:5]]
        more = f" and {len(numbers) - 5} more" if len(numbers) > 5 else ""
        return join_names(some) + more


def _violated(limit: Limit, total: float) -> bool:
    return total < limit.least - _ROUNDING or total > limit.most * (1 + _ROUNDING) + 1e-300


def _set_limits(sets: Any, at_least: Any, at_most: Any, look: _Lookup) -> list[Limit]:
    if sets is None:
        for role, bound in (("at_least", at_least), ("at_most", at_most)):
            if bound is not None:
                raise InputError(f"{role}={bound!r} needs sets=, the features of each set")
        return []
    if not isinstance(sets, (Mapping, Sequence)) or isinstance(sets, (str, bytes)):
        raise TypeInputError(f"sets={sets!r} is neither a mapping from name to features nor a list")
    items = sets.items() if isinstance(sets, Mapping) else enumerate(sets)
    members = {str(name): look.several(own, f"sets[{name!r}]") for name, own in items}
    bounds: dict[str, dict[str, int]] = {}
    for role, bound in (("at_least", at_least), ("at_most", at_most)):
        asked = bound if isinstance(bound, Mapping) else dict.fromkeys(members, bound)
        if bound is None:
            asked = {}
        for name in asked:
            if str(name) not in members:
                have = join_names(list(members), 12) or "no set"
                raise InputError(f"{role} has {name!r}, which is not one of sets: {have}")
        bounds[role] = {
            str(name): check_whole(f"{role}[{name!r}]", count, 0) for name, count in asked.items()
        }
    free = [name for name in members if not any(name in bound for bound in bounds.values())]
    if free:
        raise InputError(f"sets has {free[0]!r}, but neither at_least nor at_most says how many")
    return [
        Limit(
            name,
            own,
            np.ones(len(own)),
            bounds["at_least"].get(name, 0),
            bounds["at_most"].get(name, math.inf),
        )
        for name, own in members.items()
    ]


def _several_costs(costs: Any, budget: Mapping[Any, Any], look: _Lookup) -> tuple[Any, Any, Any]:
    """The first cost and its budget, and all further ones as limits."""
    if not isinstance(costs, Mapping) or {*costs} != {*budget} or not budget:
        raise InputError(
            f"budget names {join_names([*budget]) or 'nothing'}; give costs= as a mapping with the "
            "same names, each with the cost of every feature"
        )
    first, *others = budget
    limits = []
    for name in others:
        check_number(f"budget[{name!r}]", budget[name])
        prices = _prices(costs[name], look)
        columns = np.flatnonzero(prices)
        most = float(budget[name])
        limits.append(Limit(str(name), columns, prices[columns], most=most, cost=True))
    return costs[first], budget[first], limits


def _prices(costs: Any, look: _Lookup) -> NDArray[np.float64]:
    if hasattr(costs, "items") and hasattr(costs, "index"):
        costs = dict(costs.items())  # a pandas Series is read by its labels, not by position
    if isinstance(costs, Mapping):
        price = np.full(look.d, np.nan)
        for feature, cost in costs.items():
            price[look.one(feature, "costs")] = _as_floats(cost)
        missing = np.flatnonzero(np.isnan(price))
        if len(missing):
            raise InputError(f"costs has no number for {look.show(missing)}; give each feature one")
    else:
        price = np.array(_as_floats(costs), dtype=np.float64)
        if price.shape != (look.d,):
            raise InputError(f"costs has shape {price.shape}; give one cost for each of {look.d}")
    bad = np.flatnonzero(~(np.isfinite(price) & (price >= 0)))
    if len(bad):
        raise InputError(
            f"the cost of {look.show(bad[:1])} is {price[bad[0]]:g}; "
            "costs are finite and at least 0"
        )
    return price


def _as_floats(costs: Any) -> NDArray[np.float64]:
    try:
        return np.asarray(costs, dtype=np.float64)
    except (TypeError, ValueError):
        raise TypeInputError(f"costs has {costs!r}, which is not a number") from None


def _group_labels(groups: Any, look: _Lookup) -> tuple[Indices, tuple[str, ...]]:
    """The number and the name of the group of each feature."""
    if isinstance(groups, (str, bytes)) or not isinstance(groups, (Iterable, Mapping)):
        raise TypeInputError(f"groups={groups!r} is neither labels nor a list of lists")
    label: list[Any] = [None] * look.d
    if isinstance(groups, Mapping):
        for feature, name in groups.items():
            label[look.one(feature, "groups")] = name
    else:
        items = list(groups)
        if items and all(_is_list(item) for item in items):
            for number, members in enumerate(items):
                for feature in look.several(members, "groups"):
                    if label[feature] is not None:
                        raise InputError(
                            f"groups lists {look.show(np.array([feature]))} twice; keep one"
                        )
                    label[feature] = number
        elif len(items) != look.d:
            raise InputError(f"groups has {len(items)} labels; give one for each of {look.d}")
        else:
            label = items
    seen: dict[Any, int] = {}
    # a feature without a label gets a unique key, which no label can equal
    keys = [(i,) if _is_blank(name) else ("", name) for i, name in enumerate(label)]
    numbers = np.array([seen.setdefault(key, len(seen)) for key in keys], dtype=np.int64)
    return numbers, tuple("" if _is_blank(name) else str(name) for name in label)


def _is_list(item: Any) -> bool:
    return isinstance(item, Iterable) and not isinstance(item, (str, bytes, Mapping))


def _is_blank(label: Any) -> bool:
    return label is None or (isinstance(label, (float, np.floating)) and math.isnan(label))


def _feasible(constraints: Constraints) -> None:
    """Refuse constraints that no panel can meet."""
    what = "features" if constraints.groups is None else "groups of features"
    must, available = len(constraints.included_units), len(constraints.units)
    if available == 0:
        raise InputError("exclude leaves no feature to choose from; shorten it")
    if constraints.k is not None and must > constraints.k:
        raise InputError(
            f"include has {must} {what} but k={constraints.k}; raise k or shorten include"
        )
    if constraints.k is not None and constraints.k > available:
        raise InputError(
            f"k={constraints.k} is more than the {available} {what} that may be chosen; lower k"
        )
    _affordable(constraints)
    for limit in constraints.limits:
        own = int(constraints.allowed[limit.columns].sum())
        if limit.least > min(limit.most, constraints.k or math.inf):
            raise InputError(f"{limit}: no panel of k={constraints.k} can have that many")
        if not limit.cost and limit.least > own:
            raise InputError(f"{limit}, but only {own} of its features may be chosen")
    if constraints.limits and constraints.best(np.zeros(available)) is None:
        raise InputError(f"no panel meets all constraints: {_conflict(constraints)}; relax one")


def _conflict(constraints: Constraints) -> str:
    """Constraints that cannot all be met, though any of them fewer could."""
    kept = list(constraints.limits)
    for limit in constraints.limits:
        fewer = replace(constraints, limits=tuple(other for other in kept if other is not limit))
        if fewer.best(np.zeros(len(fewer.units))) is None:
            kept.remove(limit)
    said = [str(limit) for limit in kept]
    if constraints.k is not None:
        said.append(f"k={constraints.k}")
    for name in ("include", "exclude"):
        if len(getattr(constraints, name)):
            said.append(f"{name} of {len(getattr(constraints, name))} features")
    if constraints.budget is not None:
        said.append(f"budget={constraints.budget:g}")
    return ", ".join(said)


def _affordable(constraints: Constraints) -> None:
    """Refuse a budget that no panel can meet."""
    if constraints.budget is None:
        return
    must = len(constraints.included_units)
    paid = float(constraints.unit_costs[constraints.included_units].sum())
    if paid > constraints.ceiling:
        raise InputError(f"include costs {paid:g}, budget={constraints.budget:g}; raise the budget")
    rest = np.sort(np.delete(constraints.unit_costs, constraints.included_units))
    need = int(must == 0) if constraints.k is None else constraints.k - must
    cheapest = paid + float(rest[:need].sum())
    if cheapest > constraints.ceiling:
        raise InputError(
            f"the cheapest panel costs {cheapest:g}, budget={constraints.budget:g}; "
            + ("raise the budget" if constraints.k is None else "raise the budget or lower k")
        )
