"""The final panel: the winner rerun on all rows, its decoder and its held-out score."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fewer import distributed
from fewer._threads import mapped
from fewer.data.moments import moments
from fewer.data.source import RowView, Source, is_remote, read_blocks
from fewer.joint import (
    JointCovariance,
    TrainingStatistics,
    distances_of,
    errors_from_others,
    precision_of,
)
from fewer.nn import MeasuredDecoder
from fewer.reconstructor import QUANTILE_LEVELS, Score, explained_variance, sample_size
from fewer.search import greedy, swap
from fewer.search.objective import worth
from fewer.selection.compare import Candidate, Comparison, LinearComparison, NetworkComparison
from fewer.selection.context import SelectionContext
from fewer.selection.strategies import Strategy, propose, search_panel
from fewer.train.swaps import HeldOut, held_out_swaps
from fewer.validation import Fold, best_ridge, paired_interval

__all__ = [
    "HeldOutScore",
    "gain_over_linear",
    "joint_covariance",
    "refit_on_all_rows",
    "score_on_held_out_rows",
    "to_data_units",
    "training_statistics",
]

FEW_ROWS = 10  # per chosen feature: with fewer, final swaps lower the held-out error itself
POLISH_ROUNDS = 20
FEW_FEATURES = 32  # chosen from wide data: with fewer, final swaps only fit the folds
LONGEST_POLISH = 2**37  # multiplications per round: beyond, final swaps take minutes
SOME_FEATURES = 1024  # whose quantiles are computed at a time
TAIL = 0.01  # of the held-out rows, those with the largest error
MOST_RESIDUALS = 4000  # rows kept for prediction intervals

Columns = NDArray[np.int64]


def refit_on_all_rows(
    context: SelectionContext,
    candidates: Sequence[Candidate],
    comparison: Comparison,
    folds: Sequence[Fold],
) -> tuple[Candidate, Columns]:
    """The winner, and the columns that it chooses from all rows."""
    everything = context.covariances.everything
    winner = candidates[0]
    if context.target is not None:
        # the panel that was compared; chosen again on all rows where every fold has its own
        if len(winner.panels) == 1 or context.budget.exhausted:
            return winner, winner.panels[0]
        context.budget.allocate(2)
        if winner.strategy.improves_found:
            _start_from_compared(context, winner)
        return winner, propose(context, winner.strategy, everything)
    if isinstance(comparison, NetworkComparison):
        return _for_networks(context, candidates, comparison, folds, everything)
    return winner, distributed.on_rank0(lambda: _for_linear(context, winner, everything))


def _for_linear(context: SelectionContext, winner: Candidate, everything: Fold) -> Columns:
    """The winning strategy on all rows, started from what it found before."""
    context.budget.allocate(2)  # the other half is for the final swaps
    if context.covariances.factored and winner.strategy.searches:
        # with the penalty of the decoder: where rows are few, it matters
        unit = float(everything.variance.mean()) or 1.0
        panel = search_panel(context, everything, winner.panels, winner.ridge / unit)
    elif winner.strategy.restarts:
        panel = search_panel(context, everything, winner.panels)
    else:
        panel = propose(context, winner.strategy, everything)
        # its objective is another one, but it must not be worse than greedy on all rows
        C, constraints = everything.matrix().to(context.search_device), context.constraints
        base = greedy(C, constraints).panel()
        if worth(C, panel, constraints, 0.0) > worth(C, base, constraints, 0.0):
            panel = base
    return _polish(context, panel, winner.ridge, everything)


def _for_networks(
    context: SelectionContext,
    candidates: Sequence[Candidate],
    comparison: NetworkComparison,
    folds: Sequence[Fold],
    everything: Fold,
) -> tuple[Candidate, Columns]:
    """The winner and its columns, judged by the network itself.

    With one held-out part, the winner's panel from all rows or the one that was compared; with
    folds, the best of the panels that the finalists choose from all rows.
    """
    budget, winner = context.budget, candidates[0]
    if len(folds) == 1:
        budget.allocate(2)
        panels = [_network_panel(context, winner, everything), winner.panels[0]]
        return winner, panels[comparison.best_of(panels, folds)]
    # those that build on others last, as in the comparison
    finalists = sorted(comparison.finalists(candidates), key=lambda c: c.strategy.improves_found)
    panels = []
    for at, candidate in enumerate(finalists):
        context.plan.begin(candidate.strategy.name, f"{candidate.strategy.name}, all rows ...")
        budget.allocate(2 * (len(finalists) - at))
        panels.append(_network_panel(context, candidate, everything))
    best = comparison.best_of(panels, folds)
    return finalists[best], panels[best]


def _network_panel(context: SelectionContext, candidate: Candidate, everything: Fold) -> Columns:
    """A strategy on all rows, started from what it found before.

    A strategy that depends much on its random numbers is not rerun where a single panel was
    compared: that one is known to be good.
    """
    strategy = candidate.strategy
    if context.budget.exhausted:
        return candidate.panels[0]
    if strategy.restarts:
        return _search_again(context, strategy, everything, candidate.panels)
    if strategy.improves_found:  # starts from the search, and from what was compared
        known = [context.found[key] for key in context.found if key[0] == "search"]
        _search_again(context, Strategy("search", search_panel), everything, known)
        _start_from_compared(context, candidate)
    elif len(candidate.panels) == 1:
        return candidate.panels[0]
    return propose(context, strategy, everything)


def _start_from_compared(context: SelectionContext, candidate: Candidate) -> None:
    """Let a strategy that improves panels start from those that it found on the folds."""
    for number, panel in enumerate(candidate.panels):
        context.found[f"compared on fold {number}", None] = panel


def _search_again(
    context: SelectionContext, strategy: Strategy, everything: Fold, initial: list[Columns]
) -> Columns:
    """The search on all rows, from panels that it found before, if it has not been done.

    From there only swaps: the network has the last word.
    """
    key = (strategy.name, None)
    if key not in context.found:
        if initial:
            context.found[key] = distributed.on_rank0(
                lambda: _swapped(context, everything, initial)
            )
        else:
            propose(context, strategy, everything)
    return context.found[key]


def _swapped(context: SelectionContext, everything: Fold, panels: Sequence[Columns]) -> Columns:
    """The best of these panels after swaps on the covariance of all rows."""
    C, constraints = everything.matrix().to(context.search_device), context.constraints
    left = context.budget.remaining()
    found = [swap(C, panel, constraints, time_limit=left) for panel in panels]
    return min(found, key=lambda one: one.objective).indices


def _polish(context: SelectionContext, panel: Columns, ridge: float, everything: Fold) -> Columns:
    """Where rows are few, lower the held-out error itself by swaps."""
    constraints, splits = context.constraints, context.covariances.splits
    n, d = context.source.shape
    plain = constraints.groups is None and constraints.budget is None
    plain = plain and not constraints.cost_weight
    many = n >= FEW_ROWS * len(panel)
    partition = len(splits) == len(splits.parts) > 1
    long = n * min(n, d) * d > LONGEST_POLISH
    small = context.covariances.factored and len(panel) < FEW_FEATURES
    if many or long or small or not plain or not partition:
        return panel
    context.plan.begin("swaps on held-out error", "swaps on held-out error ...")
    rows, mean = everything.train_source, everything.scaled_mean
    if context.covariances.stats.has_missing:
        mean = torch.from_numpy(moments(rows).mean)
    values = rows.rows(slice(0, n), torch.float64).sub_(mean).nan_to_num_(nan=0.0).float()
    context.budget.allocate(1)
    left = context.budget.remaining()
    least = 1e-6 * float(everything.variance.mean())  # panels may be dependent
    return held_out_swaps(
        HeldOut.of(values.numpy(), splits.parts, max(ridge, least)),
        panel,
        POLISH_ROUNDS,
        keep=constraints.include,
        shut=constraints.exclude,
        deadline=None if left is None else time.monotonic() + left,
    )


@torch.no_grad()
def gain_over_linear(
    comparison: NetworkComparison, winner: Candidate, folds: Sequence[Fold]
) -> dict[str, float] | None:
    """By which fraction a network has a lower held-out error than the linear decoder.

    Both reconstruct the same held-out rows from the same features, so that the 95% interval is one
    of paired differences, over rows (or groups of rows) and folds. Only in a single process.
    """
    if distributed.world_size() > 1 or is_remote(comparison.context.source):
        return None
    ridge = best_ridge(folds, winner.panels)[0]
    gaps, labels, rows, total = [], [], [], 0.0
    for number, (fold, panel) in enumerate(zip(folds, winner.panels, strict=True)):
        network = comparison.train([panel], fold)[0]
        weights, mean = fold.decoder(panel, ridge), fold.scaled_mean
        others = np.setdiff1d(np.arange(len(fold.scale)), panel)
        for part, x in read_blocks(fold.rows(fold.held_rows)):
            seen = (~torch.isnan(x))[:, others]
            known = torch.where(torch.isnan(x), mean, x) - mean
            linear = (known[:, panel] @ weights + mean - x)[:, others]
            ours = (network(x[:, panel]).double() - x)[:, others]
            left = [torch.where(seen, one, 0.0).square().sum(1) for one in (linear, ours)]
            total += float(left[0].sum())
            gaps.append((left[0] - left[1]).numpy())
            labels.append(np.full(len(x), number))
            rows.append(fold.held_rows[part])
    if total <= 0:
        return None
    each, index = np.concatenate(gaps), np.concatenate(rows)
    groups = comparison.context.groups_of(index)
    unit = total / len(each)
    found = paired_interval(each, np.concatenate(labels), groups)
    return {name: part / unit for name, part in zip(("gain", "low", "high"), found, strict=True)}


def to_data_units(
    decoder: MeasuredDecoder, columns: Columns, fold: Fold, *, outputs: bool = True
) -> MeasuredDecoder:
    """Fold the scaling into a decoder that was fitted on scaled rows, of its outputs optionally."""
    center, scale = torch.from_numpy(fold.center), torch.from_numpy(fold.scale)
    inside, spread = center[columns], scale[columns]
    out_center, out_scale = decoder.out_center, decoder.out_scale
    if outputs:
        out_center, out_scale = out_center.double() * scale + center, out_scale.double() * scale
    return (
        MeasuredDecoder(
            decoder.net,
            fill=decoder.fill.double() * spread + inside,
            center=decoder.center.double() * spread + inside,
            scale=decoder.scale.double() * spread,
            order=decoder.order,
            out_center=out_center,
            out_scale=out_scale,
            offset=decoder.offset,
            link=decoder.link,
            known=decoder.known if outputs else None,
        )
        .double()
        .eval()
    )


@dataclass(frozen=True, eq=False)
class HeldOutScore:
    """How a candidate did on held-out rows, in the units of the data."""

    score: Score
    quantiles: NDArray[np.float64]  # of residuals, by level and feature
    fold_errors: list[NDArray[np.float64]]  # mean squared error of each feature, per fold
    rows: list[NDArray[np.float64]]  # some of the held-out rows of each fold
    reconstructed: list[NDArray[np.float64]]
    chosen: list[NDArray[np.float64]]  # of more rows, the columns of the final panel
    row_errors: list[NDArray[np.float64]]  # of these, mean squared error per standardised feature
    row_totals: list[NDArray[np.float64]]  # the same about the training mean

    def tails(self) -> dict[str, float] | None:
        """How much of the error is in few rows, and what is explained without those."""
        errors, totals = np.concatenate(self.row_errors), np.concatenate(self.row_totals)
        cut = int(TAIL * len(errors))
        if cut < 1 or not errors.sum() > 0 or not totals.sum() > 0:
            return None
        order = np.argsort(errors)
        inner = order[:-cut]
        return {
            "rows": len(errors),
            "share": float(errors[order[-cut:]].sum() / errors.sum()),
            "explained": float(1 - errors.sum() / totals.sum()),
            "trimmed": float(1 - errors[inner].sum() / max(totals[inner].sum(), 1e-300)),
            "median_error": float(np.median(errors)),
            "mean_error": float(errors.mean()),
        }


def score_on_held_out_rows(
    context: SelectionContext,
    winner: Candidate,
    folds: Sequence[Fold],
    comparison: Comparison,
    columns: Columns,
) -> HeldOutScore:
    """Score, residual quantiles and some reconstructions, in one pass over the held-out rows.

    ``columns`` are those of the final panel.
    """
    source = context.source
    per_fold = max(1, MOST_RESIDUALS // len(folds))
    examples = max(1, sample_size(source.shape[1]) // len(folds))
    values, errors, sizes, samples = [], [], [], []
    for fold, panel in zip(folds, winner.panels, strict=True):
        decoder = to_data_units(comparison.fit(winner, panel, fold), panel, fold)
        held = fold.held_rows
        # examples spread over all rows, since files are often sorted
        spread = np.unique(np.linspace(0, len(held) - 1, examples).astype(int))
        sample = _Sample(per_fold, spread, columns, fold.mean)
        if not np.array_equal(panel, columns):
            known = LinearComparison(context)  # a network is not trained again for this
            again = to_data_units(known.fit(winner, columns, fold), columns, fold)
            linear = isinstance(comparison, LinearComparison)
            sample.final = again, slice(None) if linear else np.setdiff1d(panel, columns)
        rows = RowView(source, held)
        if is_remote(source):  # scored where the rows are; only the sample is fetched
            value, error = explained_variance(decoder, rows, panel)
            sample.fetch(decoder, rows, panel)
        else:
            value, error = explained_variance(decoder, rows, panel, visit=sample.visit)
        values.append(value)
        errors.append(error)
        sizes.append(len(held))
        samples.append(sample.gathered())
    residuals, shown, reconstructed, chosen, centred = zip(*samples, strict=True)
    weights = np.array(sizes) / np.sum(sizes)
    per_feature = weights @ np.stack(errors)
    value = float(weights @ values)
    if min(sizes) == 1:  # a single row has no variance of its own
        together = RowView(source, np.concatenate([fold.held_rows for fold in folds]))
        total = float(moments(together).variance.sum())
        value = 1.0 - float(per_feature.sum()) / total if total > 0 else value
    return HeldOutScore(
        Score(value, per_feature),
        _quantiles(residuals),
        errors,
        list(shown),
        list(reconstructed),
        list(chosen),
        [_row_errors(part, context.covariances.stats.variance) for part in residuals],
        [_row_errors(part, context.covariances.stats.variance) for part in centred],
    )


def _row_errors(residuals: NDArray[np.float64], variance: NDArray[np.float64]) -> NDArray:
    use = variance > 0
    return np.nansum(residuals[:, use] ** 2 / variance[use], axis=1) / max(int(use.sum()), 1)


def _shortened(values: NDArray[np.float64]) -> NDArray[np.floating]:
    """In float32, unless the values are too large for it."""
    large = np.abs(values).max(initial=0.0) > np.finfo(np.float32).max
    return values.copy() if large else values.astype(np.float32)


def joint_covariance(
    context: SelectionContext, columns: Columns, ridge: float, held: HeldOutScore
) -> JointCovariance:
    """What the panel keeps of all rows, for rows of which only some features are measured."""
    errors = []
    for fold, values in zip(context.covariances.folds, held.chosen, strict=True):
        gram = fold.cross(columns)[:, columns]
        precision = precision_of(gram, ridge, torch.from_numpy(fold.scale[columns]))
        errors.append(errors_from_others(values, fold.mean[columns], precision))
    everything = context.covariances.everything
    cross = everything.cross(columns)
    return JointCovariance(
        columns,
        everything.mean.numpy().copy(),
        everything.scale.copy(),
        everything.variance,
        cross[:, columns].numpy().copy(),
        _shortened(cross.numpy()),
        ridge,
        _quantiles(errors),
    )


def training_statistics(
    context: SelectionContext, columns: Columns, ridge: float, held: HeldOutScore
) -> TrainingStatistics:
    """What the chosen features look like, to compare new rows with."""
    stats, distances = context.covariances.stats, []
    for fold, values in zip(context.covariances.folds, held.chosen, strict=True):
        gram = fold.cross(columns)[:, columns]
        precision = precision_of(gram, ridge, torch.from_numpy(fold.scale[columns]))
        distances.append(distances_of(values, fold.mean[columns], precision).normal)
    sample = np.concatenate(held.chosen)
    lowest, highest = np.nanmin(sample, axis=0), np.nanmax(sample, axis=0)
    known = np.isfinite(stats.minimum[columns])  # else the rows were not read for their range
    return TrainingStatistics.of(
        stats.n,
        (
            stats.mean[columns],
            np.sqrt(stats.variance[columns]),
            np.where(known, stats.minimum[columns], lowest),
            np.where(known, stats.maximum[columns], highest),
            1 - stats.observed[columns] / stats.n,
        ),
        sample,
        np.concatenate(distances),
        np.concatenate(held.row_errors),
    )


def _quantiles(residuals: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
    """Quantiles of residuals, by level and feature, some features at a time.

    "weibull": a fraction i / (n + 1) of new values lies below the i-th of n.
    """

    def of_some(at: int) -> NDArray[np.float64]:
        part = np.concatenate([rows[:, at : at + SOME_FEATURES] for rows in residuals])
        # each feature in one piece is twice as fast, and without gaps much faster
        part = np.ascontiguousarray(part.T)
        quantile = np.nanquantile if np.isnan(part).any() else np.quantile
        found: NDArray[np.float64] = quantile(part, QUANTILE_LEVELS, axis=1, method="weibull")
        return found

    return np.hstack(mapped(of_some, range(0, residuals[0].shape[1], SOME_FEATURES)))


class _Sample:
    """Residuals of the first rows, and some rows with their reconstructions.

    A fold may have another panel than the final one, whose features it would take as known:
    ``final`` is a decoder from the final panel, and the features whose residuals are its own.
    """

    final: tuple[MeasuredDecoder, Any] | None = None

    def __init__(self, residuals: int, examples: Columns, columns: Columns, mean: Tensor) -> None:
        self.most, self.examples, self.columns = residuals, examples, torch.from_numpy(columns)
        self.mean = mean
        self.parts: tuple[list[Tensor], ...] = ([], [], [], [], [])

    def visit(self, rows: slice, x: Tensor, reconstructed: Tensor) -> None:
        """Take the sampled rows of a block."""
        some = self.examples[(self.examples >= rows.start) & (self.examples < rows.stop)]
        at = torch.from_numpy(some - rows.start)
        first = max(0, self.most - rows.start)
        self.parts[0].append(self._residuals(x[:first], reconstructed[:first]))
        self.parts[1].append(x[at])
        self.parts[2].append(reconstructed[at])
        self.parts[3].append(x[:first, self.columns])
        self.parts[4].append(x[:first] - self.mean)

    def _residuals(self, x: Tensor, reconstructed: Tensor) -> Tensor:
        found = x - reconstructed
        if self.final is not None and len(x):
            decoder, features = self.final
            found[:, features] = (x - decoder(x[:, self.columns]))[:, features]
        return found

    @torch.no_grad()
    def fetch(self, decoder: MeasuredDecoder, source: Source, panel: Columns) -> None:
        """Read only the sampled rows."""
        first = source.rows(slice(0, self.most), torch.float64)
        some = source.rows(self.examples, torch.float64)
        self.parts[0].append(self._residuals(first, decoder(first[:, panel])))
        self.parts[1].append(some)
        self.parts[2].append(decoder(some[:, panel]))
        self.parts[3].append(first[:, self.columns])
        self.parts[4].append(first - self.mean)

    def gathered(self) -> list[NDArray[np.float64]]:
        """Residuals, rows and reconstructions of all processes, in order."""
        own = [(part[0] if len(part) == 1 else torch.cat(part)).numpy() for part in self.parts]
        if distributed.world_size() == 1:
            return own
        return [np.concatenate(found) for found in zip(*distributed.gather(own), strict=True)]
