"""Panels that tolerate missing features: chosen on every fold and on all rows, and measured."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import combinations

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from fewer import distributed
from fewer._checks import check_whole
from fewer.data.source import is_remote
from fewer.errors import InputError
from fewer.search.robust import robust_swaps
from fewer.selection.compare import (
    Candidate,
    Comparison,
    LinearComparison,
    TrainedComparison,
)
from fewer.selection.compare_predictors import TargetComparison
from fewer.selection.context import SelectionContext
from fewer.selection.huber import weighted_by_loss
from fewer.selection.missing import check_missing, completed_inputs, held_out_values
from fewer.selection.strategies import Strategy, features_weight, joint_covariance
from fewer.validation import Fold, FoldCovariances

__all__ = ["check_robust", "make_robust"]

MOST_MISSING = 2
FOLD_KICKS, FINAL_KICKS = 8, 32  # of the search on a fold, and on all rows
MOST_LOST = 1.1  # ratio of held-out errors that is more than chance
LEAST_ERROR = 1e-300

Columns = NDArray[np.int64]


def check_robust(context: SelectionContext) -> None:
    """Refuse missing features that leave nothing of a panel, and rates that are none."""
    m = check_whole("robust_to", context.robust_to, 0, MOST_MISSING)
    if m and context.constraints.most_units <= m:
        raise InputError(f"robust_to={m} needs a panel of at least k={m + 1} features")
    check_missing(context)


def make_robust(
    context: SelectionContext,
    comparison: Comparison,
    candidates: list[Candidate],
    winner: Candidate,
    columns: Columns,
    folds: Sequence[Fold],
) -> tuple[Candidate, Columns]:
    """Add a candidate whose panels tolerate missing features; the winner, and its columns.

    Held-out rows have a veto: where rows are few, a panel may tolerate missing features on the rows
    that it was chosen from only. With folds it must do better by more than one standard error. A
    single held-out part is a tenth of many rows, which say more than it does; it counts only where
    it is clearly against the panel.

    Where tails are heavy, few rows would decide both the search and the veto, so that rows count by
    Huber's loss in both. Errors that are reported are those of the squared error.
    """
    if len(winner.errors) < len(folds):  # compared on one of them, since rows are many
        comparison.measure([winner], folds)
    judges = _without_tails(context, comparison)
    found, final = _robust(context, comparison, winner, columns, folds, judges)
    candidates.append(found)
    measured = [c for c in candidates if c.pruned_by is None and len(c.panels) == len(folds)]
    worst = {c: _worst_missing(context, comparison, c, folds) for c in measured}
    for candidate in measured:
        candidate.worst = float(worst[candidate].mean())
    pair = [winner, found]
    if judges is not context.covariances:
        pair = [replace(candidate) for candidate in pair]
        comparison.measure(pair, judges.folds)
        worst = {c: _worst_missing(context, comparison, c, judges.folds) for c in pair}
    # of each fold: one of them may have most of the squared error of all
    gains = -_log_ratio(worst[pair[1]], worst[pair[0]])
    lost = _log_ratio(pair[1].errors, pair[0].errors)
    least = -float(np.log(MOST_LOST))
    if len(folds) > 1:
        least = float(gains.std(ddof=1)) / len(folds) ** 0.5
    better = gains.mean() > least and lost.mean() <= np.log(MOST_LOST)
    return (found, final) if better else (winner, columns)


def _log_ratio(errors: ArrayLike, others: ArrayLike) -> NDArray[np.float64]:
    """Logarithm of the ratio of errors, 0 where there are none."""
    logs = (np.log(np.maximum(part, LEAST_ERROR)) for part in (errors, others))
    found: NDArray[np.float64] = np.subtract(*logs)
    return found


def _without_tails(context: SelectionContext, comparison: Comparison) -> FoldCovariances:
    """The folds that linear decoders are judged on: few rows with most of the error count less."""
    own = context.covariances
    plain = context.loss == "mse" and own.noise is None and own.row_weights is None
    if not isinstance(comparison, LinearComparison) or not plain or is_remote(context.source):
        return own
    return weighted_by_loss("huber", own, context.constraints, context.device, only_heavy=True)


def _robust(
    context: SelectionContext,
    comparison: Comparison,
    winner: Candidate,
    columns: Columns,
    folds: Sequence[Fold],
    judges: FoldCovariances,
) -> tuple[Candidate, Columns]:
    strategy = Strategy(
        f"{winner.strategy.name}, robust to {context.robust_to}", lambda *_: columns
    )
    context.budget.allocate(2)
    pairs = zip(judges.folds, winner.panels, strict=True)
    panels = [_panel(context, fold, [panel], winner.ridge, FOLD_KICKS) for fold, panel in pairs]
    found = replace(winner, strategy=strategy, panels=panels, errors=[], repeats=[])
    columns = _panel(context, judges.everything, [columns, *panels], winner.ridge, FINAL_KICKS)
    comparison.measure([found], folds)
    return found, columns


def _panel(
    context: SelectionContext, fold: Fold, starts: Sequence[Columns], ridge: float, kicks: int
) -> Columns:
    """The robust panel on a fold, for a linear decoder of the features or of the target."""

    def work() -> Columns:
        constraints, variance = context.constraints, fold.variance
        cross: Callable[[Columns], Tensor] = fold.cross
        if context.target is not None:
            joint = joint_covariance(context, fold, features_weight(context, fold)).cpu()
            cross, variance = joint.__getitem__, joint.diagonal().numpy()
            constraints = constraints.followed_by(len(joint) - constraints.d)
        found = robust_swaps(
            cross,
            variance,
            starts,
            context.robust_to,
            constraints,
            ridge=ridge,
            kicks=kicks,
            seed=context.seed,
            time_limit=context.budget.remaining(),
        )
        return found.columns

    return distributed.on_rank0(work)


def _worst_missing(
    context: SelectionContext, comparison: Comparison, candidate: Candidate, folds: Sequence[Fold]
) -> NDArray[np.float64]:
    """Held-out error of each fold with the worst features of its panel missing."""
    found = []
    for fold, panel in zip(folds, candidate.panels, strict=True):
        gone = _patterns(context, panel)
        if isinstance(comparison, LinearComparison):
            each = [fold.error(np.delete(panel, out), candidate.ridge) for out in gone]
        else:
            assert isinstance(comparison, TrainedComparison)
            each = _errors_of_inputs(comparison, candidate, fold, panel, gone)
        found.append(max(each))
    return np.array(distributed.broadcast(found))


def _patterns(context: SelectionContext, panel: Columns) -> list[Columns]:
    """Places on a panel of the features, or groups of features, that may be missing at once."""
    units = context.constraints.unit_of[panel]
    chosen = combinations(np.unique(units).tolist(), context.robust_to)
    return [np.flatnonzero(np.isin(units, gone)) for gone in chosen]


def _errors_of_inputs(
    comparison: TrainedComparison,
    candidate: Candidate,
    fold: Fold,
    panel: Columns,
    patterns: Sequence[Columns],
) -> list[float]:
    """Held-out errors with missing inputs, completed by their linear prediction as on a panel."""
    decoder = comparison.fit(candidate, panel, fold)
    held, x = held_out_values(comparison, fold)
    found = []
    with torch.no_grad():
        for gone in patterns:
            measured = x[:, panel].clone()
            measured[:, gone] = torch.nan
            output = decoder(completed_inputs(measured, panel, fold, candidate.ridge))
            error = comparison.error_of(output, x, held)
            if isinstance(comparison, TargetComparison):
                error = comparison.beside_features(error, np.delete(panel, gone), fold)
            found.append(error)
    return found
