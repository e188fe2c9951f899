"""Greedy forward selection: the feature that explains most of what is left, k times."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fewer.constraints import Constraints
from fewer.search.blocks import block_gain, outer, padded, unit_blocks, unit_table
from fewer.search.budget import Purse
from fewer.search.objective import DEPENDENT, check_ridge, constraints_for, covariance, residual_of

__all__ = ["GreedyPath", "greedy"]

# Blocks are recomputed when the residual has fallen to this share of what it was.
STALE = 1e-3


@dataclass(frozen=True, eq=False)
class GreedyPath:
    """Nested choices for every size up to k, from one run.

    Attributes
    ----------
    order : ndarray of int
        Features in the order in which they were taken (included ones first).
    errors : ndarray of float
        Residual (see `residual`) after each pick.
    sizes : ndarray of int
        Number of features after each pick: 1, 2, ... unless groups are taken whole.

    Examples
    --------
    >>> path = greedy([[4.0, 0, 0], [0, 9.0, 0], [0, 0, 1.0]], 2)
    >>> path.order, path.errors
    (array([1, 0]), array([5., 1.]))
    >>> path.panel(2)
    array([0, 1])
    """

    order: NDArray[np.int64]
    errors: NDArray[np.float64]
    sizes: NDArray[np.int64]

    def panel(self, picks: int | None = None) -> NDArray[np.int64]:
        """Features, ascending, after the first `picks` picks; all of them by default."""
        end = len(self.order) if picks is None else (self.sizes[picks - 1] if picks else 0)
        return np.sort(self.order[:end])


def greedy(
    C: Any,
    k: int | Constraints,
    *,
    ridge: float = 0.0,
    device: str | torch.device | None = None,
) -> GreedyPath:
    r"""Choose features one by one, each time the one that lowers `residual` most.

    With E the covariance of what the features so far leave unexplained, taking feature j
    lowers the residual by :math:`|E_j|^2 / (E_{jj} + \lambda)` (Farahat, Ghodsi and Kamel,
    2011). Neither E nor its square is formed: with :math:`E = C - W^\top W`, W one row for
    each pick, the criterion of all features follows from one product of C with a vector,
    so k picks read C k times.

    Parameters
    ----------
    C : array or tensor, d x d
        Covariance. Constant, duplicate and dependent columns are fine: they are taken only
        when nothing informative is left, constant ones last.
    k : int or Constraints
        How many, or the rules to obey. Included features come first. With groups, a pick
        is a whole group. With a budget two runs are made, one by gain and one by gain per
        cost, and the better one is returned; without k, buying stops when nothing
        informative is affordable.
    ridge : float
        The penalty of `residual`.
    device : str or torch.device, optional
        Where to compute; by default where C is.

    Returns
    -------
    GreedyPath

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.datasets import load_iris
    >>> path = greedy(np.cov(load_iris().data.T), 2)
    >>> path.order, path.errors.round(3)
    (array([2, 0]), array([0.362, 0.145]))
    """
    C = covariance(C, device)
    rule = constraints_for(C, k)
    ridge = check_ridge(ridge)
    if rule.budget is None:
        return _run(C, rule, ridge, 0.0)
    paths = [_run(C, rule, ridge, power) for power in (0.0, 1.0)]
    return min(paths, key=lambda path: residual_of(C, path.order, ridge))


def _run(C: Tensor, rule: Constraints, ridge: float, power: float) -> GreedyPath:
    """One greedy run that ranks by gain / cost ** power."""
    left = Deflation(C, rule, ridge)
    picks: list[Tensor] = []
    errors: list[Tensor] = []
    for unit in _picks(left, rule, power):
        left.take(unit)
        picks.append(unit)
        errors.append(left.error)
    chosen = torch.stack(picks).cpu().numpy() if picks else np.arange(0)
    units = [rule.units[u] for u in chosen]
    return GreedyPath(
        order=np.concatenate([*units, np.arange(0)]),
        errors=torch.stack(errors).cpu().numpy() if errors else np.zeros(0),
        sizes=np.cumsum([len(unit) for unit in units], dtype=np.int64),
    )


def _picks(left: Deflation, rule: Constraints, power: float) -> Iterator[Tensor]:
    """Units to take, one at a time, each judged after the last one was taken."""
    must = torch.as_tensor(rule.included_units, device=left.table.device)
    open_ = torch.zeros(len(rule.units), dtype=torch.bool, device=left.table.device)
    open_[must] = True
    for _ in range(len(must)):
        pick = left.ranking().masked_fill(~open_, -torch.inf).argmax()
        open_[pick] = False
        yield pick
    open_.fill_(True)
    open_[must] = False
    if rule.budget is None:
        for _ in range(rule.most_units - len(must)):
            pick = left.ranking().masked_fill(~open_, -torch.inf).argmax()
            open_[pick] = False
            yield pick
        return
    purse = Purse(rule.unit_costs, rule.ceiling, rule.k is not None, left.table.device)
    S = torch.full((1, rule.most_units), len(open_), device=left.table.device)
    S[0, : len(must)] = must
    weight = purse.costs.clamp_min(1e-300) ** power  # a free unit comes first
    for place in range(len(must), rule.most_units):
        value = left.ranking()
        rank = torch.where(value > 0, value / weight, value)
        rank = rank.masked_fill(~purse.addable(open_[None], S)[0], -torch.inf)
        pick = rank.argmax()
        # Without k there is no need to buy what explains nothing, nor always money.
        if rank[pick] == -torch.inf or (rule.k is None and place > 0 and rank[pick] <= 0):
            return
        S[0, place], open_[pick] = pick, False
        yield pick


class Deflation:
    """What the units taken so far leave: the blocks of E and of E squared on each unit.

    A unit of m features needs the m x m blocks of both; without groups m is 1 and the
    blocks are the two numbers of the criterion.
    """

    def __init__(self, C: Tensor, rule: Constraints, ridge: float) -> None:
        self.C, self.ridge = C, ridge
        self.table = unit_table(rule, C.device)  # units x m
        self.start = padded(C.diagonal())[self.table]
        self.last = self.start.sum(1) / self.start.sum(1).max().clamp_min(1e-300) - 2
        self.W = C.new_zeros(min(len(C), rule.most_units * self.table.shape[1]), len(C))
        self.count = 0
        self.error = C.trace()
        self.refresh()

    def refresh(self) -> None:
        """Compute the blocks from scratch, which sheds the rounding of the updates."""
        W = self.W[: self.count]
        self.E, self.EE = unit_blocks(
            lambda at: self.C[at] - W[:, at].T @ W, self.table, len(self.C)
        )
        self.fresh = self.error

    def ranking(self) -> Tensor:
        """Gain of each unit; uninformative ones below 0, by variance, so that they come last."""
        gain, informative = block_gain(self.E, self.EE, self.start, self.ridge)
        return torch.where(informative, gain, self.last)

    def take(self, unit: Tensor) -> None:
        """Put a unit on the panel, feature by feature."""
        features = self.table[unit]
        if len(features) > 1:
            features = features[features < len(self.C)]
        for j in features:
            self._take_feature(j)
        # Squares lose twice the digits: renew them before they are all rounding.
        if self.error < STALE * self.fresh and self.error > 0:
            self.refresh()

    def _take_feature(self, j: Tensor) -> None:
        W = self.W[: self.count]
        w = self.C[j] - W[:, j] @ W  # the column E_j
        pivot = torch.where(w[j] > DEPENDENT * self.C[j, j], w[j] + self.ridge, torch.inf)
        w = w * pivot.rsqrt()  # a dependent column explains nothing: w = 0
        Ew = torch.mv(self.C, w) - (W @ w) @ W
        norm = w @ w
        self.W[self.count] = w
        self.count += 1
        a, b = padded(w)[self.table], padded(Ew)[self.table]  # units x m
        self.EE -= outer(a, b) + outer(b, a) - norm * outer(a, a)
        self.E -= outer(a, a)
        self.error = (self.error - norm).clamp_min(0)
