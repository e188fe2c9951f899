"""Rows to fit on and rows to judge on, with nothing of the latter in the former."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse.linalg import eigsh
from torch import Tensor

from fewer.candidates.lines import DECODER_RIDGES
from fewer.candidates.scaling import Scaling, scaled_folds
from fewer.constraints import resolve
from fewer.data import RowView, Source, as_source, moments, without_empty
from fewer.errors import InputError
from fewer.train.device import float64_device, pick_device
from fewer.train.folds import ScaledFold, make_folds, scaled_fold, split_rows

__all__ = ["Columns", "Rows", "Split"]

Columns = NDArray[np.int64]
FEW_ROWS = 100  # a feature: with fewer, decoders are penalised and folds are used
FOLDS = 5
WIDE = 2000  # features: with more, all eigenvectors take long
INNER = 0.2  # of the training rows: what the penalty is chosen on


@dataclass(frozen=True, eq=False)
class Split:
    """One way to part the rows; linear decoders are fitted on one side and judged on the other."""

    fold: ScaledFold
    inner: ScaledFold | None  # inside the training rows: says how much to penalise
    device: torch.device

    @property
    def train(self) -> Tensor:
        """Covariance of the training rows, scaled, where searches run."""
        return self.fold.train.to(self.device)

    def ridge(self, columns: Columns) -> float:
        """The penalty of the decoder that does best inside the training rows."""
        if self.inner is None:
            return 0.0
        variance = float(self.fold.train.diagonal().mean())
        errors = [self.inner.error(columns, share * variance) for share in DECODER_RIDGES]
        return DECODER_RIDGES[int(np.argmin(errors))] * variance

    def share(self, columns: Columns) -> float:
        """Share of the variance of the held-out rows, about training means, that comes back."""
        error = self.fold.error(columns, self.ridge(columns)) * len(self.fold.held)
        return 1 - error / max(float(self.fold.held.trace()), 1e-300)

    def errors(self, columns: Columns) -> NDArray[np.float64]:
        """Mean squared error of each feature on the held-out rows, in the units of the data."""
        B = self.fold.decoder(columns, self.ridge(columns))
        rows = self.fold.held[columns]
        left = self.fold.held.diagonal() - 2 * (B * rows).sum(0)
        left = left + (B * (rows[:, columns] @ B)).sum(0)
        return left.clamp_min(0.0).numpy() * self.fold.scale**2

    @property
    def variances(self) -> NDArray[np.float64]:
        """Of each feature on the held-out rows, about training means, in the units of the data."""
        return self.fold.held.diagonal().numpy() * self.fold.scale**2

    def pca_shares(self, most: int) -> NDArray[np.float64]:
        """What 1, 2, ..., ``most`` principal components of the training rows bring back."""
        vectors = self._leading(most)
        kept = (vectors * (self.fold.held @ vectors)).sum(0).cumsum(0)
        return (kept / self.fold.held.trace().clamp_min(1e-300)).numpy()

    def _leading(self, most: int) -> Tensor:
        """Leading eigenvectors; of wide matrices from products with them alone."""
        d = len(self.fold.train)
        if self.device.type != "cpu" or d <= WIDE or most > d // 4:
            return torch.linalg.eigh(self.train)[1].flip(1)[:, :most].cpu()
        values, vectors = eigsh(self.fold.train.numpy(), most, v0=np.ones(d))
        return torch.from_numpy(vectors[:, np.argsort(-values)].copy())


class Rows:
    """The data of an assessment, opened and checked, and how to part them.

    Parameters
    ----------
    data : array, sparse matrix, table, path or source
        Whatever `fewer.select` takes.
    scale : {"standard", "none"}
        "standard": every feature counts the same. "none": by its own variance.
    row_groups : array or None
        Rows with the same label stay on one side.
    seed : int
        Of the parting.
    device : str
        Where covariances are computed.
    """

    def __init__(self, data: Any, scale: str, row_groups: Any, seed: int, device: str) -> None:
        source = as_source(data, least_rows=4)
        self.source, self.stats = without_empty(source, moments(source))
        if (self.stats.observed == 0).any():
            raise InputError("there are columns without any value; drop them")
        self.scaling, self.seed = Scaling(scale), seed
        self.home = pick_device(device)
        self.n, self.d = self.source.shape
        self.groups = None if row_groups is None else np.asarray(row_groups)
        if self.groups is not None and len(self.groups) != self.n:
            raise InputError(f"row_groups has {len(self.groups)} labels for {self.n} rows")
        if self.groups is not None and len(np.unique(self.groups)) < 2:
            raise InputError("row_groups has one label only; give at least 2, or leave it out")

    def splits(self, k: int, held: float, repeats: int | None) -> list[Split]:
        """Partings: ``repeats`` random ones, or by default one, or folds where rows are few."""
        if not 0 < held < 1:
            raise InputError(f"held={held!r} must be a share between 0 and 1, such as 0.2")
        if k > self.d:
            raise InputError(f"k={k} is more than the {self.d} features; lower k")
        few = self.n < FEW_ROWS * k
        if repeats is None and few:
            parts = split_rows(self.n, min(FOLDS, self.n), self.seed, self.groups)
        else:
            parts = [
                split_rows(self.n, float(held), self.seed + at, self.groups)[0]
                for at in range(repeats or 1)
            ]
        if repeats is None:
            folds = scaled_folds(self.source, parts, self.scaling, self.home)
        else:
            folds = [
                scaled_folds(self.source, [part], self.scaling, self.home)[0] for part in parts
            ]
        device = float64_device(self.home)
        return [Split(fold, self._inner(fold) if few else None, device) for fold in folds]

    def train(self, split: Split) -> Source:
        """The training rows of a parting, in the units of the data."""
        return RowView(self.source, split.fold.train_index)

    def columns(self, features: Any) -> Columns:
        """Column numbers of names or numbers."""
        features = list(features)
        if not features:
            raise InputError("the list of features is empty; give at least one")
        return resolve(
            self.source.names, self.d, self.d, include=features
        ).include.copy()  # torch wants to write

    def named(self, columns: Columns) -> list[Any]:
        """Names of columns, or their numbers."""
        names = self.source.names
        return [int(j) if names is None else names[j] for j in columns]

    def _inner(self, fold: ScaledFold) -> ScaledFold | None:
        index = fold.train_index
        labels = None if self.groups is None else self.groups[index]
        if len(index) < 5 or (labels is not None and len(np.unique(labels)) < 2):
            return None
        part = split_rows(len(index), INNER, self.seed, labels)
        raw = make_folds(RowView(self.source, index), part, self.home)[0]
        return scaled_fold(raw, fold.center, fold.scale)
