"""Held-out error of linear panels from covariances alone, fold by fold."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fewer.data import Covariance, RowView, Source, covariance
from fewer.train.least_squares import solve_normal

__all__ = [
    "Fold",
    "ScaledFold",
    "choose_ridge",
    "make_folds",
    "scaled_fold",
    "split_rows",
    "whole_fold",
]

# penalties that are tried, as shares of the mean variance
RIDGES = (0.0, 1e-4, 1e-3, 1e-2, 3e-2, 1e-1, 3e-1)
WORTH = 0.995  # a penalty must lower the held-out error to this share to be preferred to none


@dataclass(frozen=True)
class Fold:
    """Rows to fit on and rows to check on, each as one matrix."""

    train: Tensor  # covariance, d x d
    held: Tensor  # second moments about the training mean, d x d
    mean: Tensor  # of the training rows, d
    train_index: NDArray[np.int64]
    held_index: NDArray[np.int64]

    def decoder(self, columns: NDArray[np.int64], ridge: float = 0.0) -> Tensor:
        """Best linear map (k x d) from these columns on the training rows."""
        rows = self.train[columns]
        return solve_normal(rows[:, columns], rows, ridge)

    def error(
        self, columns: NDArray[np.int64], ridge: float = 0.0, *, known: bool = False
    ) -> float:
        """Mean squared residual on the held-out rows, over all features.

        With ``known`` the chosen features have none: their values are measured.
        """
        B = self.decoder(columns, ridge)
        rows = self.held[columns]
        each = self.held.diagonal() - 2 * (B * rows).sum(0) + (B * (rows[:, columns] @ B)).sum(0)
        if known:
            each[columns] = 0.0
        return float(each.sum()) / len(self.held)


@dataclass(frozen=True)
class ScaledFold(Fold):
    """A fold whose matrices are in scaled units."""

    center: NDArray[np.float64]
    scale: NDArray[np.float64]


def scaled_fold(fold: Fold, center: NDArray[np.float64], scale: NDArray[np.float64]) -> ScaledFold:
    """A fold in the units of (x - center) / scale."""
    ratio = torch.from_numpy(1 / scale)
    weight = ratio[:, None] * ratio
    return ScaledFold(
        fold.train * weight,
        fold.held * weight,
        fold.mean,
        fold.train_index,
        fold.held_index,
        center,
        scale,
    )


def split_rows(
    n: int, folds: int | float, seed: int, groups: NDArray | None = None
) -> list[NDArray[np.int64]]:
    """Held-out rows of each fold: ``folds`` parts of all rows, or one part of that share.

    Rows of one group stay together.

    Examples
    --------
    >>> [len(part) for part in split_rows(10, 5, seed=0)]
    [2, 2, 2, 2, 2]
    >>> [len(part) for part in split_rows(10, 0.3, seed=0)]
    [3]
    """
    random = np.random.default_rng(seed)
    labels = np.arange(n) if groups is None else np.unique(groups, return_inverse=True)[1]
    order = random.permutation(int(labels.max()) + 1)
    if isinstance(folds, float):
        parts = [order[: max(1, min(round(folds * len(order)), len(order) - 1))]]
    else:
        parts = np.array_split(order, min(folds, len(order)))
    return [np.flatnonzero(np.isin(labels, part)) for part in parts]


def make_folds(
    source: Source,
    held: list[NDArray[np.int64]],
    device: torch.device | str | None = None,
) -> list[Fold]:
    """Covariances of every fold, reading each row once where the parts cover all rows.

    They are computed on ``device``, the CPU by default, and kept on the CPU.
    """
    n = source.shape[0]
    everything = np.arange(n)
    if len(held) == 1:
        rest = np.setdiff1d(everything, held[0])
        parts = [_part(source, index, device) for index in (held[0], rest)]
        return [_fold(parts[1], parts[0], rest, held[0])]
    parts = [_part(source, index, device) for index in held]
    folds = []
    for at, index in enumerate(held):
        train = _merged([part for other, part in enumerate(parts) if other != at])
        folds.append(_fold(train, parts[at], np.setdiff1d(everything, index), index))
    return folds


def whole_fold(source: Source, device: torch.device | str | None = None) -> Fold:
    """All rows to fit on, none to check on."""
    index = np.arange(source.shape[0])
    whole = _part(source, index, device)
    return Fold(whole.matrix, whole.matrix, whole.mean, index, np.arange(0))


def choose_ridge(folds: list[Fold], panels: dict[float, NDArray[np.int64]]) -> float:
    """The penalty (a share of the mean variance) whose panel does best on held-out rows.

    Parameters
    ----------
    folds : list of Fold
        Where to check.
    panels : dict from penalty to columns
        The choice that each penalty leads to.
    """
    mean_variance = float(folds[0].train.diagonal().mean())
    errors = {
        ridge: float(np.mean([fold.error(columns, ridge * mean_variance) for fold in folds]))
        for ridge, columns in panels.items()
    }
    best = min(errors, key=errors.__getitem__)
    none = errors.get(0.0, np.inf)
    return best if errors[best] < WORTH * none else 0.0


def _part(
    source: Source, index: NDArray[np.int64], device: torch.device | str | None
) -> Covariance:
    found = covariance(RowView(source, index), device=device)
    return Covariance(found.n, found.mean.cpu(), found.matrix.cpu())


def _fold(
    train: Covariance, held: Covariance, rest: NDArray[np.int64], index: NDArray[np.int64]
) -> Fold:
    gap = held.mean - train.mean
    return Fold(train.matrix, held.matrix + torch.outer(gap, gap), train.mean, rest, index)


def _merged(parts: list[Covariance]) -> Covariance:
    n = sum(part.n for part in parts)
    mean = sum((part.mean * (part.n / n) for part in parts), torch.zeros_like(parts[0].mean))
    matrix = torch.zeros_like(parts[0].matrix)
    for part in parts:
        gap = part.mean - mean
        matrix += (part.matrix + torch.outer(gap, gap)) * (part.n / n)
    return Covariance(n, mean, matrix)
