"""Panels that tolerate missing features: chosen on every fold and on all rows, and measured."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations

import numpy as np
import torch
from numpy.typing import NDArray

from fewer import distributed
from fewer._checks import check_whole
from fewer.errors import InputError
from fewer.joint import precision_of
from fewer.nn.completion import complete
from fewer.search.robust import robust_swaps
from fewer.selection.compare import Candidate, Comparison, LinearComparison
from fewer.selection.context import SelectionContext
from fewer.selection.strategies import Strategy
from fewer.validation import Fold

__all__ = ["check_robust", "make_robust"]

MOST_MISSING = 2
FOLD_KICKS, FINAL_KICKS = 8, 32  # of the search on a fold, and on all rows
MOST_LOST = 1.1  # ratio of held-out errors that is more than chance
MOST_ROWS = 2000  # held-out rows that a network reconstructs with every pattern missing

Columns = NDArray[np.int64]


def check_robust(context: SelectionContext) -> None:
    """Refuse what cannot be combined with missing features."""
    m = check_whole("robust_to", context.robust_to, 0, MOST_MISSING)
    if not m:
        return
    constraints = context.constraints
    if context.target is not None:
        raise InputError(f"robust_to={m} cannot be combined with target; drop one of them")
    limited = constraints.budget is not None or bool(constraints.limits)
    if constraints.groups is not None or limited or constraints.cost_weight:
        raise InputError(
            f"robust_to={m} cannot be combined with groups, sets, budget or cost_weight; drop them"
        )
    if constraints.k is None or constraints.k <= m:
        raise InputError(f"robust_to={m} needs a panel of at least k={m + 1} features")


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
    """
    if len(winner.errors) < len(folds):  # compared on one of them, since rows are many
        comparison.measure([winner], folds)
    found, final = _robust(context, comparison, winner, columns, folds)
    candidates.append(found)
    measured = [c for c in candidates if c.pruned_by is None and len(c.panels) == len(folds)]
    worst = {c: _worst_missing(context, comparison, c, folds) for c in measured}
    for candidate in measured:
        candidate.worst = float(worst[candidate].mean())
    gains = worst[winner] - worst[found]  # of each fold
    least = (1 - MOST_LOST) * float(worst[winner].mean())
    if len(folds) > 1:
        least = float(gains.std(ddof=1)) / len(folds) ** 0.5
    better = gains.mean() > least and found.error <= MOST_LOST * winner.error
    return (found, final) if better else (winner, columns)


def _robust(
    context: SelectionContext,
    comparison: Comparison,
    winner: Candidate,
    columns: Columns,
    folds: Sequence[Fold],
) -> tuple[Candidate, Columns]:
    strategy = Strategy(
        f"{winner.strategy.name}, robust to {context.robust_to}", lambda *_: columns
    )
    context.budget.allocate(2)
    pairs = zip(folds, winner.panels, strict=True)
    panels = [_panel(context, fold, [panel], winner.ridge, FOLD_KICKS) for fold, panel in pairs]
    found = replace(winner, strategy=strategy, panels=panels, errors=[], repeats=[])
    everything = context.covariances.everything
    columns = _panel(context, everything, [columns, *panels], winner.ridge, FINAL_KICKS)
    comparison.measure([found], folds)
    return found, columns


def _panel(
    context: SelectionContext, fold: Fold, starts: Sequence[Columns], ridge: float, kicks: int
) -> Columns:
    constraints = context.constraints
    return distributed.on_rank0(
        lambda: (
            robust_swaps(
                fold.cross,
                fold.variance,
                starts,
                context.robust_to,
                ridge=ridge,
                include=constraints.include,
                exclude=constraints.exclude,
                kicks=kicks,
                seed=context.seed,
                time_limit=context.budget.remaining(),
            ).columns
        )
    )


def _worst_missing(
    context: SelectionContext, comparison: Comparison, candidate: Candidate, folds: Sequence[Fold]
) -> NDArray[np.float64]:
    """Held-out error of each fold with the worst features of its panel missing."""
    pairs = zip(folds, candidate.panels, strict=True)
    if isinstance(comparison, LinearComparison):
        found = [
            _worst_linear(fold, panel, context.robust_to, candidate.ridge) for fold, panel in pairs
        ]
    else:
        found = [
            _worst_network(comparison, candidate, fold, panel, context.robust_to)
            for fold, panel in pairs
        ]
    return np.array(distributed.broadcast(found))


def _worst_linear(fold: Fold, panel: Columns, m: int, ridge: float) -> float:
    gone = combinations(range(len(panel)), m)
    return max(fold.error(np.delete(panel, list(out)), ridge) for out in gone)


@torch.no_grad()
def _worst_network(
    comparison: Comparison, candidate: Candidate, fold: Fold, panel: Columns, m: int
) -> float:
    """Missing inputs are completed by their linear prediction, as in a saved panel."""
    decoder = comparison.fit(candidate, panel, fold)
    held = fold.held_rows[:: max(1, fold.n_held // MOST_ROWS)]
    x = fold.rows(held).rows(slice(0, len(held)), torch.float64)
    mean = fold.scaled_mean[panel]
    ones = torch.ones(len(panel), dtype=torch.float64)
    precision = precision_of(fold.cross(panel)[:, panel], candidate.ridge, ones)
    worst = 0.0
    for out in combinations(range(len(panel)), m):
        measured = x[:, panel].clone()
        measured[:, list(out)] = torch.nan
        measured = complete(measured, mean, precision)
        gap = decoder(measured).double() - x
        worst = max(worst, float(gap.square().nanmean(0).mean()))
    return worst
