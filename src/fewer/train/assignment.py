"""From the preferences of k nodes to a panel of distinct features that obeys the constraints."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fewer.constraints import Constraints
from fewer.data import Source
from fewer.data.factored import FactoredCovariance, Matrix
from fewer.data.moments import summarize
from fewer.distributed import on_rank0
from fewer.errors import InputError
from fewer.search import greedy
from fewer.validation import Scaling

__all__ = ["distinct_features", "eligible", "matched_nodes", "nodes_for", "obeying_features"]

LEAST = -1e6  # score of a forbidden feature: finite, because the assignment fails on infinities


def eligible(
    constraints: Constraints, variance: NDArray[np.float64], k: int
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Features of the fixed nodes, and a mask of those that the other nodes may take.

    Each included unit is represented by its feature of the largest variance; the others join when
    the decoder is fitted. Constant features are masked as long as enough others are left.
    """
    units = [constraints.units[u] for u in constraints.included_units]
    include = [unit[np.argmax(variance[unit])] for unit in units]
    allowed = constraints.allowed & ~np.isin(constraints.unit_of, constraints.included_units)
    useful = allowed & (variance > 0)
    left = len(np.unique(constraints.unit_of[useful]))
    mask = useful if left >= k - len(include) else allowed
    mask[include] = True
    return np.array(include, dtype=np.int64), mask


def nodes_for(
    constraints: Constraints,
    source: Source,
    scaling: Scaling | None = None,
    device: torch.device | None = None,
) -> int:
    """k, or without k the number of units that a greedy search buys with the budget."""
    if constraints.k is not None:
        return constraints.k
    summary = summarize(source, device)
    C = summary.matrix.cpu()
    if scaling is not None:
        fitted = scaling.fit(summary.mean.cpu().numpy(), C.diagonal().numpy())[1]
        scale = torch.from_numpy(fitted)
        if isinstance(C, FactoredCovariance):
            C = FactoredCovariance(C.rows / scale)
        else:
            C = C / scale / scale[:, None]
    panel = on_rank0(lambda: greedy(C, constraints).panel())
    return len(np.unique(constraints.unit_of[panel]))


def distinct_features(logits: Tensor) -> NDArray[np.int64]:
    """A different feature for each node, with the largest total log probability."""
    favourites = logits.argmax(dim=1).cpu().numpy()
    if len(np.unique(favourites)) == len(favourites):
        return favourites
    return _assigned(_scores(logits))


def _assigned(scores: NDArray[np.float64]) -> NDArray[np.int64]:
    """A different column for each row, with the largest sum of scores."""
    from scipy.optimize import linear_sum_assignment  # noqa: PLC0415 (20 MB, and rarely needed)

    found: NDArray[np.int64] = linear_sum_assignment(scores, maximize=True)[1]
    return found


def obeying_features(
    logits: Tensor, constraints: Constraints, C: Callable[[], Matrix] | None = None
) -> NDArray[np.int64]:
    """One feature for each node, from different units of ``constraints``, within its budget.

    A node's score for a unit (features measured together) is the log probability that it picks
    any of them. Over budget, units are exchanged for cheaper ones at the least loss of score per
    cost saved; without k, the rest of the budget buys the units that any node prefers most, so
    there may be more features than nodes. Where several nodes prefer the same group, and the
    covariance ``C()`` is given, a greedy search fills the places of all but one.
    """
    if constraints.groups is None and constraints.budget is None and not constraints.limits:
        return distinct_features(logits)
    scores = _scores(logits)
    if constraints.limits:
        liked = scores.max(axis=0)
        panel = constraints.best(np.array([liked[unit].max() for unit in constraints.units]))
        if panel is None:
            raise InputError("no panel meets all constraints; relax one of the limits")
        return matched_nodes(logits, panel, constraints)[0]
    if C is not None and constraints.groups is not None and constraints.budget is None:
        return _filled_up(scores, constraints, C)
    by_unit = np.stack(
        [np.logaddexp.reduce(scores[:, unit], axis=1) for unit in constraints.units], 1
    )
    units = _assigned(by_unit)
    if constraints.budget is not None:
        units = _affordable(units, by_unit, constraints)
    extra = [scores.max(axis=0)] * (len(units) - len(scores))
    members = [constraints.units[u] for u in units]
    nodes = zip(members, [*scores, *extra], strict=True)
    return np.array([unit[np.argmax(node[unit])] for unit, node in nodes])


def matched_nodes(
    logits: Tensor, columns: NDArray[np.int64], constraints: Constraints
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """One feature of a panel for each node, and the nodes that get one, ascending.

    Nodes and units are matched so that the sum of log probabilities is largest. Units beyond the
    number of nodes follow in the order of their columns.
    """
    from scipy.optimize import linear_sum_assignment  # noqa: PLC0415 (20 MB, and rarely needed)

    scores = _scores(logits)
    units = np.unique(constraints.unit_of[columns])
    members = [constraints.units[unit] for unit in units]
    by_unit = np.stack([np.logaddexp.reduce(scores[:, own], axis=1) for own in members], 1)
    nodes, taken = linear_sum_assignment(by_unit, maximize=True)
    features = [
        members[at][np.argmax(scores[node, members[at]])]
        for node, at in zip(nodes, taken, strict=True)
    ]
    liked = scores.max(axis=0)
    rest = [own for at, own in enumerate(members) if at not in taken]
    features += [own[np.argmax(liked[own])] for own in rest]
    return np.array(features, dtype=np.int64), nodes


def _filled_up(
    scores: NDArray[np.float64], constraints: Constraints, C: Callable[[], Matrix]
) -> NDArray[np.int64]:
    chosen = scores.argmax(axis=1)
    holder: dict[int, int] = {}  # unit -> the node that prefers it most
    for node in np.argsort(-scores.max(axis=1), kind="stable"):
        holder.setdefault(int(constraints.unit_of[chosen[node]]), int(node))
    losers = [node for node in range(len(scores)) if node not in holder.values()]
    if losers:
        taken = constraints.complete(chosen[list(holder.values())])
        path = greedy(C(), replace(constraints, include=np.union1d(constraints.include, taken)))
        extra = [
            u for u in dict.fromkeys(constraints.unit_of[path.order].tolist()) if u not in holder
        ]
        for node, unit in zip(losers, extra, strict=True):
            members = constraints.units[unit]
            chosen[node] = members[np.argmax(scores[node, members])]
    return chosen


def _affordable(
    units: NDArray[np.int64], scores: NDArray[np.float64], constraints: Constraints
) -> NDArray[np.int64]:
    units, costs = units.copy(), constraints.unit_costs
    fixed = np.isin(units, constraints.included_units)
    while costs[units].sum() > constraints.ceiling:
        saved = costs[units][:, None] - costs[None]
        lost = np.take_along_axis(scores, units[:, None], axis=1) - scores
        # exchanges that lose nothing first, then the least score per cost saved
        price = np.where(saved > 0, np.maximum(lost, 0) / np.maximum(saved, 1e-300), np.inf)
        price[fixed] = np.inf
        price[:, units] = np.inf
        node, unit = np.unravel_index(np.argmin(price), price.shape)
        units[node] = unit
    if constraints.k is not None:
        return units
    liked = scores.max(axis=0)
    extra: list[int] = []
    for unit in np.argsort(-liked, kind="stable"):
        panel = np.concatenate([units, extra]).astype(np.int64)
        if unit not in panel and costs[panel].sum() + costs[unit] <= constraints.ceiling:
            extra.append(int(unit))
    return np.concatenate([units, np.array(extra, dtype=np.int64)])


def _scores(logits: Tensor) -> NDArray[np.float64]:
    return np.maximum(torch.log_softmax(logits.double(), dim=1).cpu().numpy(), LEAST)
