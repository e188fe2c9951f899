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
from fewer.data.moments import moments
from fewer.data.source import RowView, Source, is_remote, read_blocks
from fewer.estimate import (
    ErrorSums,
    Estimate,
    Score,
    pooled_squares,
    ratio_of_sums,
    shared_rows,
    sums_of_groups,
    sums_over_rows,
    without_noise,
)
from fewer.nn import MeasuredDecoder
from fewer.reconstructor import sample_size
from fewer.search import greedy, search, swap
from fewer.search.objective import worth
from fewer.selection.compare import Candidate, Comparison, LinearComparison, NetworkComparison
from fewer.selection.context import SelectionContext
from fewer.selection.strategies import (
    Strategy,
    folds_are_plain,
    propose,
    propose_on_folds,
    search_panel,
)
from fewer.train.linear_choice import choose_linear
from fewer.train.swaps import HeldOut, held_out_swaps
from fewer.validation import Fold, best_ridge, paired_interval

__all__ = [
    "HeldOutScore",
    "choose_on_other_folds",
    "gain_over_linear",
    "refit_on_all_rows",
    "score_on_held_out_rows",
    "to_data_units",
]

FEW_ROWS = 10  # per chosen feature: with fewer, final swaps lower the held-out error itself
POLISH_ROUNDS = 20
FEW_FEATURES = 32  # chosen from wide data: with fewer, final swaps only fit the folds
LONGEST_POLISH = 2**37  # multiplications per round: beyond, final swaps take minutes
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


def choose_on_other_folds(
    context: SelectionContext, winner: Candidate, folds: Sequence[Fold]
) -> None:
    """Give the winner a panel for each fold on which it was not compared."""
    strategy = winner.strategy
    if strategy.name not in ("greedy", "only choice"):
        strategy = Strategy("search", search_panel)
    winner.panels += propose_on_folds(context, strategy, folds[len(winner.panels) :])


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
        penalty = everything.penalty(0.0)
        base = greedy(C, constraints, ridge=penalty).panel()
        if worth(C, panel, constraints, penalty) > worth(C, base, constraints, penalty):
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
    folds, the best of the panels that the finalists choose from all rows, unless that of the linear
    search is about as good.
    """
    budget, winner = context.budget, candidates[0]
    if len(folds) == 1:
        budget.allocate(2)
        panels = [_network_panel(context, winner, everything), winner.panels[0]]
        return winner, panels[comparison.best_of(panels, folds)]
    # those that build on others last, as in the comparison
    finalists = sorted(comparison.finalists(candidates), key=lambda c: c.strategy.improves_found)
    linear = _linear_candidate(context, candidates, folds)
    panels = [] if linear is None else [_linear_panel(context, everything)]
    for at, candidate in enumerate(finalists):
        context.plan.begin(candidate.strategy.name, f"{candidate.strategy.name}, all rows ...")
        budget.allocate(2 * (len(finalists) - at))
        panels.append(_network_panel(context, candidate, everything))
    if linear is None:
        best = comparison.best_of(panels, folds)
        return finalists[best], panels[best]
    best = comparison.best_of(panels, folds, first_wins_ties=True)
    return [linear, *finalists][best], panels[best]


def _linear_candidate(
    context: SelectionContext, candidates: Sequence[Candidate], folds: Sequence[Fold]
) -> Candidate | None:
    """The linear search among the candidates, whose panel from all rows wins ties."""
    if not folds_are_plain(context) or context.budget.exhausted:
        return None
    known = (c for c in candidates if c.strategy.restarts and len(c.errors) == len(folds))
    return next(known, None)


def _linear_panel(context: SelectionContext, everything: Fold) -> Columns:
    """What `fewer.ColumnSubset` chooses from all rows: a search as far as folds trust it."""
    source, constraints = everything.train_source, context.constraints
    device, seed = context.search_device, context.seed
    choice = choose_linear(source, moments(source), constraints, seed=seed, device=device)
    C = everything.matrix().to(device)
    if choice.trust == "greedy":
        return distributed.on_rank0(lambda: greedy(C, constraints).panel())
    options: dict[str, Any] = {"ridge": choice.ridge, "seed": seed}
    options["stall"] = 0 if choice.trust == "swaps" else None
    options["time_limit"] = context.budget.remaining()
    return distributed.on_rank0(lambda: search(C, constraints, **options).indices)


def _network_panel(context: SelectionContext, candidate: Candidate, everything: Fold) -> Columns:
    """A strategy on all rows, started from what it found before.

    A strategy that depends much on its random numbers is not rerun where a single panel was
    compared: that one is known to be good.
    """
    strategy = candidate.strategy
    if context.budget.exhausted or not strategy.reruns:
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
    plain = plain and not constraints.cost_weight and not constraints.limits
    plain = plain and context.loss == "mse"
    plain = plain and folds_are_plain(context)
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
    ridge = best_ridge(folds, winner.panels)
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
    fold_mean: float  # mean of the scores of folds, each about its own mean: outliers lower it
    # explained variance by metric: "units", and "equal", where each feature counts the same
    explained: dict[str, Estimate]
    sampled: list[Columns]  # numbers of the rows whose residuals are kept, per fold
    residuals: list[NDArray[np.float64]]  # of these, truth less reconstruction
    rows: list[NDArray[np.float64]]  # some of the held-out rows of each fold
    reconstructed: list[NDArray[np.float64]]
    chosen: list[NDArray[np.float64]]  # of the sampled rows, the columns of the final panel
    row_errors: list[NDArray[np.float64]]  # of these, mean squared error per standardised feature
    # squared error of each and the same about the training mean, in the metric of the panel's score
    row_squares: list[NDArray[np.float64]]
    metric: str  # that one
    noisy: bool  # whether the noise of features is known

    def tails(self) -> dict[str, Any] | None:
        """How much of the error is in few rows, and what is explained without those.

        None where the noise is known: most of the error of single rows is then noise.
        """
        if self.noisy:
            return None
        errors, totals = np.concatenate(self.row_squares).T
        cut = int(TAIL * len(errors))
        if cut < 1 or not errors.sum() > 0 or not totals.sum() > 0:
            return None
        order = np.argsort(errors)
        inner = order[:-cut]
        return {
            "rows": len(errors),
            "metric": self.metric,
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

    ``columns`` are those of the final panel. Standard errors are over folds; of a single split, and
    of networks, which have few folds, over rows or groups of rows.
    """
    source = context.source
    per_fold = max(1, MOST_RESIDUALS // len(folds))
    examples = max(1, sample_size(source.shape[1]) // len(folds))
    by_row = len(folds) < 2 or not isinstance(comparison, LinearComparison)
    sums, samples, sampled = [], [], []
    noise = context.covariances.noise
    for fold, panel in zip(folds, winner.panels, strict=True):
        decoder = to_data_units(comparison.fit(winner, panel, fold), panel, fold)
        held = fold.held_rows
        # spread over all rows, since files are often sorted
        spread, kept = (
            np.unique(np.linspace(0, len(held) - 1, count).astype(int))
            for count in (examples, per_fold)
        )
        variance = torch.from_numpy(context.covariances.stats.variance)
        sample = _Sample(kept, spread, columns, fold, variance, by_row=by_row)
        sampled.append(held[kept])
        if not np.array_equal(panel, columns):
            known = LinearComparison(context)  # a network is not trained again for this
            again = to_data_units(known.fit(winner, columns, fold), columns, fold)
            linear = isinstance(comparison, LinearComparison)
            sample.final = again, slice(None) if linear else np.setdiff1d(panel, columns)
        rows = RowView(source, held)
        if is_remote(source):  # scored where the rows are; only the sample is fetched
            sums.append(sums_over_rows(decoder, rows, panel))
            sample.fetch(decoder, rows, panel)
        else:
            own = fold.weights_of(held)
            sums.append(sums_over_rows(decoder, rows, panel, visit=sample.visit, weights=own))
        if noise is not None:
            sums[-1] = without_noise(sums[-1], noise, decoder, panel)
        samples.append(sample.gathered())
    residuals, shown, reconstructed, chosen, row_errors, squares = zip(*samples, strict=True)
    counts = np.stack([part.count for part in sums])
    per_feature = np.sum([part.wrong for part in sums], axis=0) / counts.sum(axis=0)
    standard = context.covariances.scaling.how != "none"
    explained = {}
    seen = sampled if is_remote(source) and by_row else [fold.held_rows for fold in folds]
    labels = context.groups_of(np.concatenate(seen))
    units = sum(len(part) for part in seen) if labels is None else len(np.unique(labels))
    for at, metric in enumerate(("units", "equal") if standard else ("units",)):
        explained[metric] = _explained(sums, folds, metric, units)
        if by_row:
            of_rows = np.concatenate(squares)[:, 2 * at : 2 * at + 2]
            weights = folds[0].weights_of(np.concatenate(seen))
            each = np.ones((len(of_rows), 1)) if weights is None else weights[:, None]
            of_rows = of_rows * each
            if noise is not None:  # the same for every row, but for its weight
                of_rows = of_rows - each * _noise_of_rows(
                    sums, folds, metric, noise, of_rows.sum(0) / each.sum()
                )
            wrong, total = (sums_of_groups(column, labels) for column in of_rows.T)
            over_rows = ratio_of_sums(wrong, total, shared_rows(folds), units)
            explained[metric] = over_rows._replace(value=explained[metric].value)
    if winner.optimism > 1:  # the winner was lucky
        explained = {name: _raised(one, winner.optimism) for name, one in explained.items()}
    value = explained["units"]
    return HeldOutScore(
        Score(value.value, per_feature.clip(min=0), *value[1:]),
        float(np.average([part.score() for part in sums], weights=[f.held_weight for f in folds])),
        explained,
        sampled,
        list(residuals),
        list(shown),
        list(reconstructed),
        list(chosen),
        [part[:, 0] for part in row_errors],
        [part[:, 1:] for part in row_errors],
        "equal" if standard else "units",
        noise is not None,
    )


def _noise_of_rows(
    sums: list[ErrorSums],
    folds: Sequence[Fold],
    metric: str,
    noise: NDArray[np.float64],
    mean: NDArray[np.float64],
) -> NDArray[np.float64]:
    """What measurement errors add to the squared error of a row, and to its squares.

    ``mean`` is that of both over rows.
    """
    units = [fold.unit(metric) ** 2 for fold in folds]
    wrong = sum(float((part.wrong / unit).sum()) for part, unit in zip(sums, units, strict=True))
    total = float(np.mean([(noise / unit).sum() for unit in units]))
    rows = sum(fold.held_weight for fold in folds)
    return np.array([mean[0] - wrong / rows, total])


def _raised(score: Estimate, factor: float) -> Estimate:
    """Explained variance where errors are larger by a factor."""
    error, own = (
        None if one is None else one * factor
        for one in (score.standard_error, score.sampling_error)
    )
    return Estimate(1 - factor * (1 - score.value), error, score.degrees, own, score.units)


def _explained(sums: list[ErrorSums], folds: Sequence[Fold], metric: str, units: int) -> Estimate:
    """Explained variance over folds, in the units of the data or in scaled units."""
    scales = [fold.unit(metric) ** 2 for fold in folds]
    pairs = list(zip(sums, pooled_squares(sums), scales, strict=True))
    wrong = np.array([float((part.wrong / scale).sum()) for part, _, scale in pairs])
    total = np.array([float((squares / scale).sum()) for _, squares, scale in pairs])
    return ratio_of_sums(wrong, total, shared_rows(folds), units)


class _Sample:
    """Residuals of some rows, and fewer rows with their reconstructions.

    A fold may have another panel than the final one, whose features it would take as known:
    ``final`` is a decoder from the final panel, and the features whose residuals are its own.
    """

    final: tuple[MeasuredDecoder, Any] | None = None

    def __init__(
        self,
        sampled: Columns,
        examples: Columns,
        columns: Columns,
        fold: Fold,
        variance: Tensor,
        *,
        by_row: bool,
    ) -> None:
        self.sampled, self.examples, self.columns = sampled, examples, torch.from_numpy(columns)
        self.fold, self.by_row = fold, by_row  # whether squares of each row are needed
        self.weights = torch.where(variance > 0, 1 / variance, 0.0)
        self.weights /= (variance > 0).sum().clamp_min(1)
        scaling = fold.covariances.scaling
        unit = torch.from_numpy(fold.unit("units"))
        self.metric_weights = self.weights if scaling.how != "none" else unit**-2.0
        self.parts: tuple[list[Tensor], ...] = ([], [], [], [], [], [])

    def visit(self, rows: slice, x: Tensor, reconstructed: Tensor) -> None:
        """Take the sampled rows of a block."""
        kept, at = (
            torch.from_numpy(some[(some >= rows.start) & (some < rows.stop)] - rows.start)
            for some in (self.sampled, self.examples)
        )
        some = slice(None) if len(kept) == len(x) else kept
        self._take(x[some], reconstructed[some])
        self.parts[1].append(x[at])
        self.parts[2].append(reconstructed[at])
        self.parts[5].append(self._squares(x, reconstructed))

    def _take(self, x: Tensor, reconstructed: Tensor) -> None:
        """Residuals of rows, their chosen features, and their errors over variances."""
        residuals = self._residuals(x, reconstructed)
        self.parts[0].append(residuals)
        self.parts[3].append(x[:, self.columns])
        squares = residuals.square().nan_to_num_(nan=0.0)
        about_mean = (x - self.fold.mean).square().nan_to_num_(nan=0.0)
        both = squares @ self.metric_weights, about_mean @ self.metric_weights
        self.parts[4].append(torch.stack([squares @ self.weights, *both], 1))

    def _squares(self, x: Tensor, reconstructed: Tensor) -> Tensor:
        """Squared error of each row and its squares about the training mean, in both metrics."""
        if not self.by_row:
            return x.new_zeros(0, 4)
        gaps, parts = torch.isnan(x), []
        for unit in (torch.from_numpy(self.fold.unit(metric)) for metric in ("units", "equal")):
            for other in (reconstructed, self.fold.mean):
                left = ((x - other) / unit).masked_fill_(gaps, 0.0)
                parts.append(left.square_().sum(1))
        return torch.stack(parts, 1)

    def _residuals(self, x: Tensor, reconstructed: Tensor) -> Tensor:
        found = x - reconstructed
        if self.final is not None and len(x):
            decoder, features = self.final
            found[:, features] = (x - decoder(x[:, self.columns]))[:, features]
        return found

    @torch.no_grad()
    def fetch(self, decoder: MeasuredDecoder, source: Source, panel: Columns) -> None:
        """Read only the sampled rows."""
        kept = source.rows(self.sampled, torch.float64)
        some = source.rows(self.examples, torch.float64)
        reconstructed = decoder(kept[:, panel])
        self._take(kept, reconstructed)
        self.parts[1].append(some)
        self.parts[2].append(decoder(some[:, panel]))
        self.parts[5].append(self._squares(kept, reconstructed))

    def gathered(self) -> list[NDArray[np.float64]]:
        """Residuals, rows and reconstructions of all processes, in order."""
        own = [(part[0] if len(part) == 1 else torch.cat(part)).numpy() for part in self.parts]
        if distributed.world_size() == 1:
            return own
        return [np.concatenate(found) for found in zip(*distributed.gather(own), strict=True)]
