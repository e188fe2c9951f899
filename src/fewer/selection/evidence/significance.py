"""Whether a panel is better than chance: many random panels, and permuted columns."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fewer.constraints import Constraints
from fewer.estimate import (
    Estimate,
    held_out_squares,
    penalties,
    ratio_of_sums,
    ridge_of_others,
    shared_rows,
)
from fewer.search.eigen import leading_eigenvectors
from fewer.search.objective import DEPENDENT, regular_inverse
from fewer.selection.size import some_rows
from fewer.validation import Fold, FoldCovariances

__all__ = ["PanelScores", "contribution_p_values", "p_value_of", "random_draws", "random_panels"]

DENSE = 2048  # features up to which the square of the covariance is formed, to score many panels
BATCH = 2**24  # numbers in a batch of panels
DRAWS = 5  # random panels of each fold

Columns = NDArray[np.int64]
Vector = NDArray[np.float64]


def p_value_of(own: float, chance: Vector) -> float:
    """Fraction of draws, and itself, that do as well."""
    return float((1 + (chance >= own).sum()) / (1 + len(chance)))


def random_panels(
    constraints: Constraints, count: int, random: np.random.Generator
) -> list[Columns]:
    """Panels that meet the constraints, of units in random order as far as the budget goes."""
    if constraints.limits:
        drawn = (constraints.best(random.random(len(constraints.units))) for _ in range(count))
        return [panel for panel in drawn if panel is not None]
    costs, must = constraints.unit_costs, constraints.included_units
    most, budget = constraints.most_units, constraints.ceiling
    cheapest = np.argsort(costs, kind="stable")
    found = []
    for _ in range(count):
        chosen = [int(unit) for unit in must]
        for unit in random.permutation(np.setdiff1d(np.arange(len(costs)), must)).tolist():
            if len(chosen) == most:
                break
            spent = costs[[*chosen, unit]].sum()
            if np.isfinite(budget) and constraints.k is not None:  # all places must be filled
                left = cheapest[~np.isin(cheapest, [*chosen, unit])]
                spent += costs[left[: most - len(chosen) - 1]].sum()
            if spent <= budget:
                chosen.append(unit)
        found.append(constraints.features(chosen))
    return found


def random_draws(
    sizes: Sequence[int],
    free: Columns,
    seed: Any,
    must: Columns | None = None,
) -> list[list[Columns]]:
    """Random panels, one for each fold in every draw: the reference of `select` and `compare`.

    Every fold has panels of its own, so that a standard error over folds has their differences.
    """
    random = np.random.default_rng(seed)
    must = np.empty(0, dtype=np.int64) if must is None else must

    def draw(size: int) -> Columns:
        count = max(0, min(size - len(must), len(free)))
        return np.sort(np.concatenate([must, random.choice(free, count, replace=False)]))

    return [[draw(size) for size in sizes] for _ in range(DRAWS)]


class PanelScores:
    r"""Explained variance of many panels on the held-out rows of each fold.

    With C and H the second moments of training and held-out rows, A = C_SS + ridge I and P its
    inverse, the residual is tr H - 2 tr(P (CH)_SS) + tr(P H_SS P (CC)_SS): once CC and CH are
    known, a panel takes O(k^3). The last ``targets`` columns are a target, which alone counts then.
    """

    def __init__(self, covariances: FoldCovariances, targets: int = 0) -> None:
        self.covariances, self.folds = covariances, covariances.folds
        d = len(self.folds[0].scale)
        self.only = slice(d - targets, None) if targets else slice(None)
        self.dense = not covariances.factored and d <= DENSE
        self.unit = float(self.folds[0].variance.mean())
        pairs = zip(self.folds, held_out_squares(self.folds), strict=True)
        self.shared = shared_rows(self.folds)
        squares = [(own / fold.scale**2)[self.only] for fold, own in pairs]
        self.totals = np.array([float(one.sum()) for one in squares])

    def of(self, panels: Sequence[Columns]) -> Vector:
        """Squares left unexplained (folds x panels), with the penalty that suits other folds."""
        found = np.empty((len(self.folds), len(panels)))
        sizes = np.array([len(panel) for panel in panels])
        for size in np.unique(sizes):
            at = np.flatnonzero(sizes == size)
            found[:, at] = self._of_one_size([panels[int(i)] for i in at])
        return found

    def of_folds(self, panels: Sequence[Columns]) -> tuple[Vector, list[float]]:
        """The same for one panel per fold, and the penalty on each."""
        tried = self._tried(min(len(panel) for panel in panels))
        pairs = zip(self.folds, panels, strict=True)
        left, best = self._least(np.stack([self._errors(fold, [p], tried) for fold, p in pairs]))
        return left[:, 0], [tried[at] for at in best[:, 0]]

    def _of_one_size(self, panels: Sequence[Columns]) -> Vector:
        tried = self._tried(len(panels[0]))
        return self._least(np.stack([self._errors(f, panels, tried) for f in self.folds]))[0]

    def _tried(self, k: int) -> list[float]:
        ridges = penalties(self.covariances.splits.n, k, len(self.folds))
        return [ridge * self.unit for ridge in ridges]

    @staticmethod
    def _least(table: Vector) -> tuple[Vector, Columns]:
        """Of folds x ridges x panels: errors with the ridge that suits other folds, and which."""
        best = ridge_of_others(table)
        return np.take_along_axis(table, best[:, None], axis=1)[:, 0], best

    def explained(self, left: Vector) -> Estimate:
        """Explained variance from what is left unexplained on each fold."""
        return ratio_of_sums(left, self.totals, self.shared)

    def gain(self, left: Vector, other: Vector) -> Estimate:
        """Explained variance that another panel adds, with the paired standard error."""
        return ratio_of_sums(self.totals - (left - other), self.totals, self.shared)

    def pca(self, k: int, device: torch.device) -> Estimate:
        """Of as many principal components."""
        left = []
        for fold in self.folds:
            vectors = leading_eigenvectors(fold.matrix(), k, device=device)
            kept = float((vectors * fold.held_product(vectors)).sum())
            left.append(fold.held_weight * (float(fold.held_diagonal.sum()) - kept))
        return self.explained(np.array(left))

    def _errors(self, fold: Fold, panels: Sequence[Columns], ridges: Sequence[float]) -> Vector:
        """Sum of squared errors (ridges x panels)."""
        every = self.only == slice(None)
        if not self.dense and every:
            found = [fold.errors(panel, ridges, known=True) for panel in panels]
            return np.array(found).T * len(fold.scale) * fold.held_weight
        if not self.dense:
            left = [
                [float(fold.residuals(p, fold.decoder(p, r))[self.only].sum()) for p in panels]
                for r in ridges
            ]
            return np.maximum(np.array(left), 0.0) * fold.held_weight
        C = fold.matrix().cpu()
        assert isinstance(C, Tensor)
        H = fold.held_product(torch.eye(len(C), dtype=torch.float64))
        part = C[:, self.only]
        CC, CH, whole = part @ part.T, part @ H[self.only], float(H.diagonal()[self.only].sum())
        S = torch.from_numpy(np.stack(panels))
        some = max(1, BATCH // S.shape[1] ** 2)
        moments = C, H, CC, CH
        parts = [_batch_errors(moments, whole, some_S, ridges, every) for some_S in S.split(some)]
        return torch.cat(parts, 1).numpy() * fold.held_weight


def _batch_errors(
    moments: tuple[Tensor, ...], whole: float, S: Tensor, ridges: Sequence[float], measured: bool
) -> Tensor:
    C, H, CC, CH = moments
    at = S[:, :, None], S[:, None]
    A, held, square, cross = C[at], H[at], CC[at], CH[at]
    full = torch.ones_like(S, dtype=torch.bool)
    found = []
    for ridge in ridges:
        P = regular_inverse(A.clone(), full, ridge)
        left = whole - 2 * (P * cross).sum((1, 2)) + ((held @ P @ square) * P).sum((1, 2))
        if measured:  # what is known needs no decoder
            B = P @ A
            own = held - B.mT @ held - held @ B + B.mT @ held @ B
            left = left - own.diagonal(dim1=1, dim2=2).sum(1)
        found.append(left)
    return torch.stack(found).clamp_min(0.0)


def contribution_p_values(
    covariances: FoldCovariances,
    columns: Columns,
    permutations: int,
    random: np.random.Generator,
    groups: Any,
    *,
    constraints: Constraints | None = None,
    targets: int = 0,
) -> list[float]:
    """p-value of each feature: does it explain what is not measured?

    That is the features that are not on the panel or, where the last ``targets`` columns are a
    target, the target. Against the same column with its rows permuted (with ``constraints``, all
    columns of its group together); rows are exchangeable under the null hypothesis, and one row
    per group of rows is used.
    """
    rows = some_rows(covariances.splits.n, groups, random)
    x = covariances.everything.rows(rows).rows(slice(0, len(rows)), torch.float64)
    x = (x - x.nanmean(0)).nan_to_num_(nan=0.0)
    n, d = x.shape
    first = d - targets if targets else 0
    y = x[:, torch.from_numpy(np.setdiff1d(np.arange(first, d), columns))]
    gram = None if n >= y.shape[1] else y @ y.T
    units = columns if constraints is None else constraints.unit_of[columns]
    found = np.ones(len(columns))
    for unit in np.unique(units):
        mine = units == unit
        rest, own = x[:, torch.from_numpy(columns[~mine])], x[:, torch.from_numpy(columns[mine])]
        A = rest.T @ rest
        A.diagonal().mul_(1 + DEPENDENT).add_(1e-300)
        Q = torch.linalg.solve_triangular(torch.linalg.cholesky(A), rest.T, upper=False)
        orders = np.stack([np.arange(n), *(random.permutation(n) for _ in range(permutations))])
        p = own[torch.from_numpy(orders)].permute(1, 0, 2).reshape(n, -1)
        p = p - Q.T @ (Q @ p)  # what the other features of the panel leave of it
        M = y.T @ p - (y.T @ Q.T) @ (Q @ p) if gram is None else gram @ p
        # of each order: rows x features of the unit
        p, M = (part.view(-1, permutations + 1, own.shape[1]).transpose(0, 1) for part in (p, M))
        inner = p.mT @ p
        inner.diagonal(dim1=1, dim2=2).mul_(1 + DEPENDENT).add_(1e-300)
        explained = (M.mT @ M) if gram is None else p.mT @ M
        gain = torch.linalg.solve(inner, explained).diagonal(dim1=1, dim2=2).sum(1)
        least = gain[0] - 1e-9 * gain[0].abs()  # a constant column is as good as its permutations
        found[mine] = (1 + int((gain[1:] >= least).sum())) / (1 + permutations)
    return found.tolist()
