"""Which rows are held out, and how well a candidate does on them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fewer.candidates.comparison import Candidate, Comparison
from fewer.candidates.scaling import in_units
from fewer.data import RowView, Source, moments
from fewer.distributed import on_rank0
from fewer.errors import InputError
from fewer.evidence import Evidence
from fewer.nn import MeasuredDecoder
from fewer.reconstructor import QUANTILE_LEVELS, Score
from fewer.train.explained import explained_variance
from fewer.train.folds import ScaledFold, split_rows

__all__ = ["HeldScore", "held_rows", "held_score"]

FOLDS, NETWORK_FOLDS = 5, 3
FEW_ROWS = 100  # a feature: with fewer rows than this times k, folds and penalties are tried
MOST_RESIDUALS = 4000  # rows kept for prediction intervals


def held_rows(
    n: int, k: int, validation: Any, row_groups: Any, *, linear: bool, seed: int
) -> list[NDArray[np.int64]]:
    """Held-out rows of each fold, as ``validation`` asks; rows of a group stay together."""
    labels = row_groups
    if labels is not None:
        labels = np.asarray(labels)
        if labels.ndim != 1:
            raise InputError(f"row_groups has shape {labels.shape}; give {n} labels")
        if len(labels) != n:
            raise InputError(f"row_groups has {len(labels)} labels for {n} rows; give one a row")
        blank = [at for at, label in enumerate(labels.tolist()) if label is None or _is_nan(label)]
        if blank:
            raise InputError(
                f"row_groups of row {blank[0]} is {labels[blank[0]]!r}; give every row a label, "
                "one of its own where it stands alone"
            )
        labels = labels.astype(str) if labels.dtype.kind == "O" else labels
        if len(np.unique(labels)) < 2:
            raise InputError("row_groups has one label only; give at least 2, or leave it out")
    wanted = validation
    if isinstance(wanted, str) and wanted == "auto":
        wanted = min(FOLDS if linear else NETWORK_FOLDS, n) if n < FEW_ROWS * k else 0.1
    wanted = wanted.item() if isinstance(wanted, (np.integer, np.floating)) else wanted
    fine = isinstance(wanted, (int, float)) and not isinstance(wanted, bool)
    if not fine or not (2 <= wanted <= n if isinstance(wanted, int) else 0 < wanted < 1):
        raise InputError(
            f"validation={wanted!r} must be a share between 0 and 1, or from 2 to {n} "
            "folds, no more than there are rows"
        )
    return split_rows(n, wanted, seed, labels)


def _is_nan(label: Any) -> bool:
    return isinstance(label, float) and math.isnan(label)


@dataclass(frozen=True, eq=False)
class HeldScore:
    """How a candidate did on held-out rows, in the units of the data."""

    score: Score
    quantiles: NDArray[np.float64]  # of residuals, by level and feature
    fold_errors: list[NDArray[np.float64]]  # mean squared error of each feature, fold by fold
    rows: list[NDArray[np.float64]]  # some of the held-out rows of each fold, on rank 0
    rebuilt: list[NDArray[np.float64]]


def held_score(
    winner: Candidate, folds: Sequence[ScaledFold], comparison: Comparison, source: Source
) -> HeldScore:
    """Score, residual quantiles and some reconstructions on rows that took no part in the fit."""
    kept: list[Tensor] = []
    shown: list[NDArray[np.float64]] = []
    rebuilt: list[NDArray[np.float64]] = []
    values, errors, rows = [], [], []
    quota = max(1, MOST_RESIDUALS // len(folds))
    examples = max(1, Evidence.sample_size(source.shape[1]) // len(folds))

    def keep(held: Source, decoder: MeasuredDecoder, panel: NDArray[np.int64]) -> None:
        x = held.rows(slice(0, quota), torch.float64)
        # from everywhere: files are often sorted
        spread = np.unique(np.linspace(0, held.shape[0] - 1, examples).astype(int))
        some = held.rows(spread, torch.float64)
        with torch.no_grad():
            kept.append(x - decoder(x[:, panel]))
            rebuilt.append(decoder(some[:, panel]).numpy())
        shown.append(some.numpy())

    def quantiles() -> NDArray[np.float64]:
        # i of n + 1: so many of new values lie below the i-th of n
        return np.nanquantile(torch.cat(kept).numpy(), QUANTILE_LEVELS, axis=0, method="weibull")

    for fold, panel in zip(folds, winner.panels, strict=True):
        decoder = in_units(comparison.fitted(winner, panel, fold), panel, fold).double().eval()
        held = RowView(source, fold.held_index)
        value, error = explained_variance(decoder, held, panel)
        values.append(value)
        errors.append(error)
        rows.append(len(fold.held_index))
        on_rank0(partial(keep, held, decoder, panel))
    weights = np.array(rows) / np.sum(rows)
    by_feature = weights @ np.stack(errors)
    value = float(weights @ values)
    if min(rows) == 1:  # a single row has no variance of its own
        together = RowView(source, np.concatenate([fold.held_index for fold in folds]))
        total = float(moments(together).variance.sum())
        value = 1.0 - float(by_feature.sum()) / total if total > 0 else value
    return HeldScore(
        Score(value, by_feature),
        on_rank0(quantiles),
        errors,
        shown,
        rebuilt,
    )
