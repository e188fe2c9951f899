"""Rows that count by Huber's loss of their error, so that few of them do not decide.

The loss of a row is squared up to a knee, in its root mean squared error over the standardised
features, and linear beyond: as if it had the weight knee / error. A row that is moved towards the
mean by the factor r leaves r**2 times its squared residual with any linear decoder, so that the
covariance of rows moved in this way is all that a search and a linear decoder need.
"""

from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fewer import distributed
from fewer._checks import check_choice
from fewer.constraints import Constraints
from fewer.data.source import Source, View, is_remote, read_blocks, shard_of_rank
from fewer.errors import InputError
from fewer.report.summarise import HEAVY
from fewer.search import greedy
from fewer.validation import Fold, FoldCovariances, fold_covariances

__all__ = ["check_loss", "weighted_by_loss"]

LOSSES = ("mse", "huber")
KNEE = 1.5  # times the median error of a row
ROUNDS = 2  # of weights and decoders
LEAST = 1e-6  # of the mean variance: panels may be dependent

Columns = NDArray[np.int64]
Vector = NDArray[np.float64]


class ShrunkRows(View):
    """Rows of another source, each moved towards a center by a factor of its own."""

    dtype = np.dtype(np.float64)
    is_sparse = False

    def __init__(self, source: Source, center: Tensor, factors: Vector) -> None:
        super().__init__(source)
        self.center, self.factors = center, torch.from_numpy(factors)

    def rows(self, index: np.ndarray | slice, dtype: torch.dtype = torch.float32) -> Tensor:
        rows = self.source.rows(index, torch.float64).sub_(self.center)
        return rows.mul_(self.factors[index][:, None]).add_(self.center).to(dtype)


def check_loss(loss: str, *, target: bool) -> None:
    """Refuse losses that are not known, or not for this task."""
    check_choice("loss", loss, LOSSES)
    if loss != "mse" and target:
        raise InputError(
            f"loss={loss!r} is for panels that reconstruct, and cannot be combined with target; "
            "drop one of them"
        )


def weighted_by_loss(
    loss: str,
    covariances: FoldCovariances,
    constraints: Constraints,
    device: torch.device,
    *,
    only_heavy: bool = False,
) -> FoldCovariances:
    """The same folds; for "huber", rows count by that loss of their error with a greedy panel.

    Weights are computed from all rows; a fold's decoder sees those of its training rows. Held-out
    rows that compare panels have weights, those that score the result have none. With
    ``only_heavy``, rows have weights only if one percent of them has much of the squared error.
    """
    if loss == "mse":
        return covariances
    if is_remote(covariances.source):
        raise InputError(
            f"loss={loss!r} cannot be used with rows on other machines; leave it out, or open the "
            "rows here"
        )
    source, found = covariances.source, covariances
    for _ in range(ROUNDS):
        fold = found.everything
        panel = distributed.on_rank0(partial(_greedy, fold, constraints))
        errors = _row_errors(fold, source, panel)
        if only_heavy and found is covariances and _share_of_worst(errors) < HEAVY:
            break
        knee = KNEE * float(np.median(errors))
        if not knee or errors.max() <= knee:
            break
        factors = np.sqrt(np.minimum(1.0, knee / np.maximum(errors, knee)))
        moved = ShrunkRows(source, fold.mean, factors)
        found = fold_covariances(moved, covariances.splits, covariances.scaling, device)
        found.source, found.stats = source, covariances.stats
    return found


def _greedy(fold: Fold, constraints: Constraints) -> Columns:
    return greedy(fold.matrix(), constraints).panel()


def _share_of_worst(errors: Vector) -> float:
    """Fraction of the squared error in the worst percent of the rows."""
    squares = np.sort(errors**2)
    total = float(squares.sum())
    return float(squares[len(squares) - len(squares) // 100 :].sum()) / total if total > 0 else 0.0


def _row_errors(fold: Fold, source: Source, panel: Columns) -> Vector:
    """Root mean squared error of each row, in scaled units."""
    weights = fold.decoder(panel, LEAST * float(fold.variance.mean()))
    center, scale = fold.mean, torch.from_numpy(fold.scale)
    found = []
    for _, x in read_blocks(shard_of_rank(source)):
        z = x.sub_(center).div_(scale)
        left = torch.nan_to_num(z[:, panel]) @ weights - z
        found.append(left.square_().nanmean(1).sqrt().nan_to_num().numpy())
    return np.concatenate(distributed.gather(np.concatenate(found)))
