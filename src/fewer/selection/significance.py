"""Whether a panel is better than chance: many random panels, and permuted columns."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

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

__all__ = ["PanelScores", "contribution_p_values", "p_value_of"]

DENSE = 2048  # features up to which the square of the covariance is formed, to score many panels
BATCH = 2**24  # numbers in a batch of panels

Columns = NDArray[np.int64]
Vector = NDArray[np.float64]


def p_value_of(own: float, chance: Vector) -> float:
    """Fraction of draws, and itself, that do as well."""
    return float((1 + (chance >= own).sum()) / (1 + len(chance)))


class PanelScores:
    r"""Explained variance of many panels of one size on the held-out rows of each fold.

    With C and H the second moments of training and held-out rows, A = C_SS + ridge I and P its
    inverse, the residual is tr H - 2 tr(P (CH)_SS) + tr(P H_SS P (CC)_SS): once CC and CH are
    known, a panel takes O(k^3).
    """

    def __init__(self, covariances: FoldCovariances) -> None:
        self.covariances, self.folds = covariances, covariances.folds
        d = len(self.folds[0].scale)
        self.dense = not covariances.factored and d <= DENSE
        self.unit = float(self.folds[0].variance.mean())
        pairs = zip(self.folds, held_out_squares(self.folds), strict=True)
        self.shared = shared_rows(self.folds)
        self.totals = np.array([float((own / fold.scale**2).sum()) for fold, own in pairs])

    def of(self, panels: Sequence[Columns]) -> Vector:
        """Squares left unexplained (folds x panels), with the penalty that suits other folds."""
        ridges = penalties(self.covariances.splits.n, len(panels[0]), len(self.folds))
        tried = [ridge * self.unit for ridge in ridges]
        table = np.stack([self._errors(fold, panels, tried) for fold in self.folds])
        best = ridge_of_others(table)  # of folds x ridges x panels
        found: Vector = np.take_along_axis(table, best[:, None], axis=1)[:, 0]
        return found

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
            left.append(fold.n_held * (float(fold.held_diagonal.sum()) - kept))
        return self.explained(np.array(left))

    def _errors(self, fold: Fold, panels: Sequence[Columns], ridges: Sequence[float]) -> Vector:
        """Sum of squared errors (ridges x panels)."""
        if not self.dense:
            found = [fold.errors(panel, ridges, known=True) for panel in panels]
            return np.array(found).T * len(fold.scale) * fold.n_held
        C = fold.matrix().cpu()
        assert isinstance(C, Tensor)
        H = fold.held_product(torch.eye(len(C), dtype=torch.float64))
        CC, CH = C @ C, C @ H
        S = torch.from_numpy(np.stack(panels))
        some = max(1, BATCH // S.shape[1] ** 2)
        parts = [_batch_errors(C, H, CC, CH, part, ridges) for part in S.split(some)]
        return torch.cat(parts, 1).numpy() * fold.n_held


def _batch_errors(
    C: Tensor, H: Tensor, CC: Tensor, CH: Tensor, S: Tensor, ridges: Sequence[float]
) -> Tensor:
    at = S[:, :, None], S[:, None]
    A, held, square, cross = C[at], H[at], CC[at], CH[at]
    full = torch.ones_like(S, dtype=torch.bool)
    found = []
    for ridge in ridges:
        P = regular_inverse(A.clone(), full, ridge)
        left = H.trace() - 2 * (P * cross).sum((1, 2)) + ((held @ P @ square) * P).sum((1, 2))
        B = P @ A  # measured features are known
        own = held - B.mT @ held - held @ B + B.mT @ held @ B
        found.append(left - own.diagonal(dim1=1, dim2=2).sum(1))
    return torch.stack(found).clamp_min(0.0)


def contribution_p_values(
    covariances: FoldCovariances,
    columns: Columns,
    permutations: int,
    random: np.random.Generator,
    groups: Any,
) -> list[float]:
    """p-value of each feature: does it explain the features that are not measured?

    Against the same column with its rows permuted; rows are exchangeable under the null hypothesis,
    and one row per group is used.
    """
    rows = some_rows(covariances.splits.n, groups, random)
    x = covariances.everything.rows(rows).rows(slice(0, len(rows)), torch.float64)
    x = (x - x.nanmean(0)).nan_to_num_(nan=0.0)
    others = torch.from_numpy(np.setdiff1d(np.arange(x.shape[1]), columns))
    y = x[:, others]
    tall = len(x) >= len(others)
    gram = None if tall else y @ y.T
    found: list[float] = []
    for j in columns:
        rest = x[:, torch.from_numpy(columns[columns != j])]
        A = rest.T @ rest
        A.diagonal().mul_(1 + DEPENDENT).add_(1e-300)
        Q = torch.linalg.solve_triangular(torch.linalg.cholesky(A), rest.T, upper=False)
        own = x[:, int(j), None].numpy()
        drawn = random.permuted(np.repeat(own, permutations, axis=1), axis=0)
        p = torch.from_numpy(np.hstack([own, drawn]))
        p = p - Q.T @ (Q @ p)  # what the other features of the panel leave of it
        if gram is None:
            explained = (y.T @ p - (y.T @ Q.T) @ (Q @ p)).square().sum(0)
        else:
            explained = (p * (gram @ p)).sum(0)
        gain = explained / p.square().sum(0).clamp_min(1e-300)
        least = gain[0] * (1 - 1e-9)  # a constant column is as good as its permutations
        found.append((1 + int((gain[1:] >= least).sum())) / (1 + permutations))
    return found
