"""Comparison of proposed panels by the held-out error of the requested decoder, per fold.

Every rank computes the same numbers up to rounding; rank 0 broadcasts those that decide.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fewer import distributed
from fewer.constraints import Constraints
from fewer.data.moments import moments
from fewer.data.source import Source, array_source, is_remote, read_blocks
from fewer.estimate import penalties, sums_over_rows
from fewer.nn import Loss, MeasuredDecoder, make_loss
from fewer.nn.decoder import linear_layer
from fewer.search.objective import worth
from fewer.selection.context import SelectionContext
from fewer.selection.strategies import Strategy
from fewer.train import TrainingConfig, fit_linear, train_decoders
from fewer.validation import Fold, paired_interval, ridge_errors

__all__ = ["Candidate", "Comparison", "LinearComparison", "NetworkComparison"]

CLOSE = 1.01  # candidates within this ratio of the best are retrained
REPEATS = 2
MANY_ROWS = 20_000  # one repeat is enough
MOST_IN_MEMORY = 2**24  # values of held-out rows
SPLIT_PARTS = 10  # of the held-out rows of a single split, to correct a score for its choice
FULL = -1  # in place of the number of a repeat: the training that is in the result
TIED = 1.02  # linear panels within this ratio on one held-out part: the training rows decide
FAR_BEHIND = 1.02  # networks with this ratio to the leader's error on the first fold are pruned
RIVALS = 3  # candidates that may replace the linear search
LIKELY = 0.9  # level of the interval of a difference between panels from all rows
FINALIST = 1.02  # with folds: within this ratio, panels from all rows are compared as well

Columns = NDArray[np.int64]
Key = tuple[bytes, int | None, int]


@dataclass(eq=False)
class Candidate:
    """A strategy, the panel it proposed on each fold, and their held-out errors."""

    strategy: Strategy
    panels: list[Columns] = field(default_factory=list)
    errors: list[float] = field(default_factory=list)  # one per fold
    repeats: list[float] = field(default_factory=list)  # of further trainings, of close candidates
    ridge: float = 0.0
    fold_ridges: list[float] | None = None  # where each fold has the penalty of the others
    table: NDArray[np.float64] | None = None  # errors by fold and penalty
    # error on held-out rows where each part of them has the candidate that the others choose,
    # relative to the winner's
    optimism: float = 1.0
    price: float = 0.0  # what the costs of its panels add to the objective
    seconds: float = 0.0
    worst: float | None = None  # held-out error with the worst features missing
    train_residual: float | None = None  # on the training rows, where that breaks ties
    preferred: bool = False  # the linear search, or a candidate that is clearly better
    pruned_by: "tuple[Candidate, float] | None" = None  # the leader, and the ratio of errors

    def ridge_of(self, fold: Fold) -> float:
        """The penalty of the decoder on a fold."""
        if self.fold_ridges is None or fold.number is None:
            return self.ridge
        return self.fold_ridges[fold.number]

    @property
    def error(self) -> float:
        """Mean held-out error; estimated from one fold where the candidate was pruned."""
        if self.pruned_by is not None:
            leader, ratio = self.pruned_by
            return leader.error * ratio
        return float(np.mean(self.errors)) if self.errors else float("inf")

    @property
    def objective(self) -> float:
        """What decides: the error, plus the price of the panel where costs have weight."""
        return self.error + self.price

    @property
    def objective_of_repeats(self) -> float:
        """The same over all trainings, for candidates that were trained as often."""
        return float(np.mean([*self.errors, *self.repeats])) + self.price

    @property
    def sort_key(self) -> tuple[bool, int, float]:
        """Smaller is better; candidates that the training rows decide between come first.

        Or one that is preferred. Then those with the most trainings: others were behind before.
        Errors of another number of trainings, on other held-out rows, are not comparable. Those
        that were pruned come last.
        """
        if self.train_residual is not None:
            return False, 0, self.train_residual
        if self.preferred:
            return False, 0, self.objective
        if self.pruned_by is not None:
            return True, 1, self.objective
        if not self.repeats:
            return True, 0, self.objective
        return True, -len(self.repeats), self.objective_of_repeats


class Comparison(Protocol):
    """Fits and compares one kind of decoder."""

    def stages(self, folds: Sequence[Fold]) -> list[range]:
        """Numbers of the folds for which panels are proposed before they are compared."""
        return [range(len(folds))]

    def measure(self, candidates: Sequence[Candidate], folds: Sequence[Fold]) -> None:
        """Set the errors of candidates that have a panel for each of these folds."""

    def break_ties(self, candidates: Sequence[Candidate], folds: Sequence[Fold]) -> None:
        """Decide between candidates that are too close to call."""

    def scored(self, candidates: Sequence[Candidate], folds: Sequence[Fold]) -> Candidate:
        """The winner, the first of these, with a score corrected for selection bias."""
        return candidates[0]

    def fit(self, candidate: Candidate, columns: Columns, fold: Fold) -> MeasuredDecoder:
        """The decoder for scaled rows, fitted on the training rows of a fold."""


def mean_price(panels: Sequence[Columns], constraints: Constraints) -> float:
    """The weighted cost of panels, which is added to their error."""
    return float(np.mean([constraints.price(panel) for panel in panels])) / constraints.d


@dataclass(frozen=True)
class LinearComparison(Comparison):
    """Linear decoders: exact, from fold covariances, with the best penalty."""

    context: SelectionContext

    def measure(self, candidates: Sequence[Candidate], folds: Sequence[Fold]) -> None:
        """Errors with the penalty that does best over the folds."""
        n = self.context.source.shape[0]
        ridges = penalties(n, self.context.config.k, len(folds))
        for candidate in complete(candidates, folds):
            tried, table = distributed.broadcast(ridge_errors(folds, candidate.panels, ridges))
            best = int(table.mean(axis=0).argmin())
            candidate.ridge, candidate.errors = tried[best], table[:, best].tolist()
            candidate.table = table
            candidate.price = mean_price(candidate.panels, self.context.constraints)

    def break_ties(self, candidates: Sequence[Candidate], folds: Sequence[Fold]) -> None:
        """With one held-out part, the training rows decide between candidates that are close.

        There are then so many rows that a linear decoder hardly overfits: the training rows, nine
        times as many, say more than a random tenth. With folds, all rows have been held out.
        """
        if len(folds) > 1:
            return
        C = folds[0].matrix_for_choice()
        best = min(candidate.objective for candidate in candidates)
        for candidate in candidates:
            if candidate.objective <= TIED * best:
                panel = candidate.panels[0]
                penalty = folds[0].penalty_for_choice(C)
                residual = worth(C, panel, self.context.constraints, penalty)
                candidate.train_residual = distributed.broadcast(residual)

    def scored(self, candidates: Sequence[Candidate], folds: Sequence[Fold]) -> Candidate:
        """The winner, on each fold as the other folds choose it: its strategy and its penalty.

        So the rows that a decoder is scored on have no part in the choice between strategies and
        penalties, and the score is free of selection bias.
        """
        winner = candidates[0]
        tables = [(c, c.table) for c in candidates if c.table is not None]
        tables = [(c, table) for c, table in tables if len(table) == len(folds)]
        if len(folds) < 2 or not tables or tables[0][0] is not winner:
            return winner
        ridges = penalties(self.context.source.shape[0], self.context.config.k, len(folds))
        unit = float(np.mean(folds[0].variance))
        panels, chosen = [], []
        for at in range(len(folds)):
            others = [np.delete(table, at, axis=0).mean(axis=0) for _, table in tables]
            lowest = [part.min() + c.price for part, (c, _) in zip(others, tables, strict=True)]
            best = int(np.argmin(lowest))
            panels.append(tables[best][0].panels[at])
            chosen.append(ridges[int(others[best].argmin())] * unit)
        panels, chosen = distributed.broadcast((panels, chosen))
        return replace(winner, panels=panels, fold_ridges=chosen)

    def fit(self, candidate: Candidate, columns: Columns, fold: Fold) -> MeasuredDecoder:
        """Least squares with the candidate's penalty."""
        mean, noisy = fold.scaled_mean, fold.noise is not None
        exact = self.context.covariances.stats.has_missing and self.context.loss == "mse"
        exact = exact and self.context.covariances.row_weights is None
        if exact and fold.number is None:
            source = fold.train_source
            stats = moments(source)
            mean = torch.from_numpy(stats.mean)
            linear = fit_linear(source, columns, stats, ridge=candidate.ridge)
        else:
            weight = fold.decoder(columns, candidate.ridge_of(fold)).T
            linear = linear_layer(weight, mean - weight @ mean[columns])
        known = None if noisy else torch.from_numpy(columns)
        return MeasuredDecoder(linear, fill=mean[columns], known=known).eval()


@dataclass
class TrainedComparison(Comparison):
    """Decoders that are trained, those of all candidates together.

    ``errors`` and ``decoders`` are keyed by panel, fold number and repeat.
    """

    context: SelectionContext
    errors: dict[Key, float] = field(default_factory=dict)
    decoders: dict[Key, MeasuredDecoder] = field(default_factory=dict)

    def stages(self, folds: Sequence[Fold]) -> list[range]:
        """The first fold prunes candidates, to save time on the others."""
        found = [range(1), range(1, len(folds))]
        return found[: len(folds)]

    def measure(self, candidates: Sequence[Candidate], folds: Sequence[Fold]) -> None:
        """Errors of one training per fold, with the same seed for every candidate."""
        ready = complete(candidates, folds)
        # one for each fold here, the others, a last comparison, and the final fit
        self.context.budget.per_training(2 * len(self.context.covariances.folds) + 1)
        start = time.perf_counter()
        for at, fold in enumerate(folds):
            self.train([candidate.panels[at] for candidate in ready], fold)
        for candidate in ready:
            candidate.errors = [
                self.errors[panel.tobytes(), fold.number, 0]
                for panel, fold in zip(candidate.panels, folds, strict=False)
            ]
            candidate.price = mean_price(candidate.panels, self.context.constraints)
            candidate.seconds += (time.perf_counter() - start) / len(ready)

    def prune(self, ready: Sequence[Candidate], folds: Sequence[Fold], ratio: float) -> None:
        """After the first of several folds, drop candidates beyond this ratio to the best."""
        leader = min(ready, key=lambda candidate: candidate.objective)
        if len(folds) > 1 or len(self.context.covariances.folds) == 1 or not leader.errors[0]:
            return
        for candidate in ready:
            # the linear search is what the others have to beat in the end
            if candidate.objective > ratio * leader.objective and not candidate.strategy.restarts:
                candidate.pruned_by = leader, candidate.errors[0] / leader.errors[0]

    def fit(self, candidate: Candidate, columns: Columns, fold: Fold) -> MeasuredDecoder:
        """The decoder of these columns.

        Without held-out rows, the number of epochs is what did best on the folds, in proportion to
        the number of rows, since more rows are overfitted later.
        """
        folds, config = self.context.covariances.folds, self.context.config
        if fold.number is not None or config.linear:
            return self.train([columns], fold, FULL)[0]
        pairs = zip(candidate.panels, folds, strict=True)
        trained = [self.train([panel], one, FULL)[0] for panel, one in pairs]
        helped = [part.epochs for part in trained if part.epochs is not None]
        chosen = [part.tuned for part in trained if part.tuned is not None]
        if not helped and not chosen:
            return self.train([columns], fold, FULL)[0]
        config = replace(config, validation_fraction=0.0)
        if helped:
            grown = fold.n_train / folds[0].n_train / (1 - self.context.config.validation_fraction)
            config.refit_epochs = max(1, round(float(np.median(helped)) * grown))
        tuned = float(np.median(chosen)) if 2 * len(chosen) > len(trained) else None
        return self.train([columns], fold, FULL, config=config, tuned=tuned)[0]

    def retrain_close(self, candidates: Sequence[Candidate], folds: Sequence[Fold]) -> None:
        """Add further trainings to candidates that are too close to call, until it is clear."""
        best = min(candidate.objective for candidate in candidates)
        close = [c for c in candidates if c.objective <= CLOSE * best]
        repeats = REPEATS if folds[0].n_train < MANY_ROWS else 1
        for repeat in range(1, repeats + 1):
            chosen = {b"".join(panel.tobytes() for panel in c.panels) for c in close}
            if len(chosen) < 2 or self.context.budget.exhausted:
                return
            for at, fold in enumerate(folds):
                self.train([c.panels[at] for c in close], fold, repeat)
            for candidate in close:
                candidate.repeats += [
                    self.errors[panel.tobytes(), fold.number, repeat]
                    for panel, fold in zip(candidate.panels, folds, strict=True)
                ]
            leader = min(close, key=lambda candidate: candidate.objective_of_repeats)
            close = [c for c in close if not clearly_behind(c, leader)]

    def train(
        self,
        panels: Sequence[Columns],
        fold: Fold,
        repeat: int = 0,
        config: TrainingConfig | None = None,
        tuned: float | None = None,
    ) -> list[MeasuredDecoder]:
        """Train the panels that are not trained yet; the decoders of all of them.

        Repeats have other seeds. With held-out rows, their errors are recorded. Trainings that only
        compare are half as long as those that are in the result (FULL), but for many rows
        on a GPU.
        """
        many = fold.number is not None and fold.n_train >= MANY_ROWS
        many = many and self.context.device.type == "cuda"  # where all panels take as long as one
        if many and repeat == FULL:
            repeat = 0
        keys = [(panel.tobytes(), fold.number, repeat) for panel in panels]
        new = {key: panel for key, panel in zip(keys, panels, strict=True)}
        new = {key: panel for key, panel in new.items() if key not in self.decoders}
        if new:
            rows, held = self.rows(fold, repeat)
            seed = self.context.seed + max(repeat, 0)
            config, loss = self.recipe(config or self.context.config, len(rows))
            decoders = train_decoders(
                self.context.training_data(fold, rows, config, loss, seed),
                list(new.values()),
                seed,
                groups=self.context.groups_of(rows),
                seconds=self.context.budget.per_training(1),
                tuned=None if tuned is None else [tuned] * len(new),
                effort=1.0 if many or repeat == FULL else 0.5,
            )
            values = _read_once(fold.rows(held)) if len(new) > 1 else fold.rows(held)
            for (key, panel), decoder in zip(new.items(), decoders, strict=True):
                self.decoders[key] = self.in_units(decoder, rows)
                if len(held):
                    error = self.held_out_error(self.decoders[key], values, held, panel)
                    self.errors[key] = distributed.broadcast(error)
        return [self.decoders[key] for key in keys]

    def rows(self, fold: Fold, repeat: int) -> tuple[Columns, Columns]:
        """Training rows and held-out rows."""
        return fold.train_rows, fold.held_rows

    def recipe(self, config: TrainingConfig, rows: int) -> tuple[TrainingConfig, Loss]:
        """How decoders are trained on so many rows, and what they minimise."""
        return config, make_loss(self.context.loss)

    def in_units(self, decoder: MeasuredDecoder, rows: Columns) -> MeasuredDecoder:
        """The decoder for outputs in scaled units."""
        return decoder

    def held_out_error(
        self, decoder: MeasuredDecoder, values: Source, held: Columns, panel: Columns
    ) -> float:
        """Error on held-out rows, in scaled units."""
        if self.context.loss == "mse":
            return float(sums_over_rows(decoder, values, panel).errors.mean())
        total = 0.0
        with torch.no_grad():
            for rows, x in read_blocks(values):
                total += self.error_of(decoder(x[:, panel]), x, held[rows]) * len(x)
        return total / len(held)

    def error_of(self, output: Tensor, x: Tensor, held: Columns) -> float:
        """Error of outputs for held-out rows, whose values x are in scaled units."""
        seen = ~torch.isnan(x)
        return float(make_loss(self.context.loss)(output.double(), torch.nan_to_num(x), seen))


@dataclass
class NetworkComparison(TrainedComparison):
    """Networks that reconstruct the features."""

    def measure(self, candidates: Sequence[Candidate], folds: Sequence[Fold]) -> None:
        """Errors on these folds; candidates that are far behind on the first are pruned."""
        super().measure(candidates, folds)
        ready = complete(candidates, folds)
        leader = min(ready, key=lambda candidate: candidate.objective)
        close = [c for c in ready if c.objective <= FINALIST * leader.objective]
        own = {panel.tobytes() for candidate in close for panel in candidate.panels}
        self.decoders = {key: part for key, part in self.decoders.items() if key[0] in own}
        self.prune(ready, folds, FAR_BEHIND)

    def break_ties(self, candidates: Sequence[Candidate], folds: Sequence[Fold]) -> None:
        """Retrain candidates that are close, with other seeds and other held-out rows.

        The panels were chosen with these rows, which is the same for all candidates; they do not
        count in the score of a panel. The linear search wins if no other is clearly better then:
        what networks prefer by chance does not last. With folds, panels from all rows decide: see
        `best_of`.
        """
        if len(folds) > 1:
            return
        self.retrain_close(candidates, folds)
        ordered = sorted(complete(candidates, folds), key=lambda candidate: candidate.sort_key)
        for base in ordered:
            if base.strategy.restarts:
                ahead = ordered[: min(ordered.index(base), RIVALS)]
                # those that were trained less often are clearly behind the first
                ahead = [c for c in ahead if len(c.repeats) == len(ordered[0].repeats)]
                better = (candidate for candidate in ahead if self._beats(candidate, base, folds))
                next(better, base).preferred = True
                return

    def _beats(self, candidate: Candidate, base: Candidate, folds: Sequence[Fold]) -> bool:
        """Whether a candidate has clearly less error, by rows held out from as many trainings."""
        context, fold = self.context, folds[0]
        if distributed.world_size() > 1 or is_remote(context.source):
            return True
        price = base.price - candidate.price
        gaps, rows = [], []
        for repeat in range(REPEATS + 1):
            if context.budget.exhausted:
                return True
            self.train([candidate.panels[0], base.panels[0]], fold, repeat)  # as one
            losses = [self._row_losses(one, folds, repeat) for one in (base, candidate)]
            gaps.append(losses[0] - losses[1] + price)
            rows.append(self.rows(fold, repeat)[1])
            index = np.concatenate(rows)
            same = np.zeros_like(index)
            if paired_interval(np.concatenate(gaps), same, context.groups_of(index))[1] > 0:
                return True
        return False

    def scored(self, candidates: Sequence[Candidate], folds: Sequence[Fold]) -> Candidate:
        """The winner, and by which factor its error is too low because it won.

        Each part of the held-out rows (each fold; of a single split, a tenth of its rows) is scored
        with the candidate that does best on the other parts.
        """
        winner = candidates[0]
        if distributed.world_size() > 1 or is_remote(self.context.source):
            return winner
        close = [c for c in candidates if c is winner or self._is_trained(c, folds)]
        if len(close) < 2:
            return winner
        losses = np.stack([self._row_losses(c, folds) for c in close])
        prices = np.array([c.price for c in close])
        held = [fold.held_rows for fold in folds]
        labels = parts_of(held, self.context.groups_of, self.context.seed)
        chosen = crossfitted(losses, labels, prices)
        wrong = float(losses[chosen, np.arange(len(chosen))].sum())
        own = float(losses[0].sum())
        return replace(winner, optimism=max(1.0, wrong / own)) if own > 0 else winner

    def _is_trained(self, candidate: Candidate, folds: Sequence[Fold]) -> bool:
        if candidate.pruned_by is not None or len(candidate.panels) < len(folds):
            return False
        pairs = zip(candidate.panels, folds, strict=True)
        return all((panel.tobytes(), fold.number, 0) in self.decoders for panel, fold in pairs)

    def _row_losses(
        self, candidate: Candidate, folds: Sequence[Fold], repeat: int = 0
    ) -> NDArray[np.float64]:
        """Mean squared error of each held-out row of all folds, in scaled units."""
        return self._losses_of(candidate.panels, folds, repeat)

    @torch.no_grad()
    def _losses_of(
        self, panels: Sequence[Columns], folds: Sequence[Fold], repeat: int = 0
    ) -> NDArray[np.float64]:
        """The same of a panel for each fold."""
        found = []
        for panel, fold in zip(panels, folds, strict=True):
            decoder = self.train([panel], fold, repeat)[0]
            for _, x in read_blocks(fold.rows(self.rows(fold, repeat)[1])):
                gap = (decoder(x[:, panel]).double() - x).masked_fill_(torch.isnan(x), 0.0)
                found.append(gap.square_().mean(1).numpy())
        return np.concatenate(found)

    def rows(self, fold: Fold, repeat: int) -> tuple[Columns, Columns]:
        """Training rows and held-out rows; others for each repeat, in the same units."""
        if repeat in (0, FULL):
            return fold.train_rows, fold.held_rows
        others = self.context.split(self.context.seed + repeat)
        return others.train_rows(0), others.held_rows(0)

    def finalists(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        """Candidates whose panels from all rows may turn out to be the best."""
        left = [candidate for candidate in candidates if candidate.pruned_by is None]
        best = min(candidate.objective for candidate in left)
        return [candidate for candidate in left if candidate.objective <= FINALIST * best]

    def best_of(
        self, panels: Sequence[Columns], folds: Sequence[Fold], *, first_wins_ties: bool = False
    ) -> int:
        """Which of these panels does best on the held-out rows of all folds; the first of equals.

        A search may end elsewhere with a few rows more, and a surrogate may prefer what the
        network does not, so that the network itself has to judge the final panels. If the first
        wins ties, another has to be clearly better on paired rows and folds.
        """
        if len({panel.tobytes() for panel in panels}) == 1 or self.context.budget.exhausted:
            return 0
        for fold in folds:
            self.train(panels, fold)
        prices = [mean_price([panel], self.context.constraints) for panel in panels]
        errors = [
            np.mean([self.errors[panel.tobytes(), fold.number, 0] for fold in folds]) + price
            for panel, price in zip(panels, prices, strict=True)
        ]
        best = int(np.argmin(errors))
        alone = distributed.world_size() == 1 and not is_remote(self.context.source)
        if not best or not first_wins_ties or not alone:
            return best
        losses = [self._losses_of([panels[at]] * len(folds), folds) for at in (0, best)]
        held = [self.rows(fold, 0)[1] for fold in folds]
        number = np.repeat(np.arange(len(folds)), [len(rows) for rows in held])
        groups = self.context.groups_of(np.concatenate(held))
        gaps = losses[0] - losses[1] + prices[0] - prices[best]
        return best if paired_interval(gaps, number, groups, level=LIKELY)[1] > 0 else 0


def parts_of(
    held: Sequence[Columns], groups_of: Callable[[Columns], NDArray | None], seed: int
) -> Columns:
    """The part of each held-out row of all folds: its fold or, of a single split, one of ten."""
    if len(held) > 1:
        return np.repeat(np.arange(len(held)), [len(rows) for rows in held])
    return random_parts(len(held[0]), groups_of(held[0]), SPLIT_PARTS, seed)


def random_parts(n: int, groups: NDArray | None, count: int, seed: int) -> Columns:
    """Divide n rows at random into parts of nearly the same size; groups stay together."""
    units = np.arange(n) if groups is None else np.unique(groups, return_inverse=True)[1]
    drawn = np.random.default_rng(seed).permutation(int(units.max()) + 1) % count
    return drawn[units]


def crossfitted(
    losses: NDArray[np.float64], parts: Columns, prices: NDArray[np.float64]
) -> Columns:
    """For each row, the candidate that does best on the other parts (candidates x rows).

    The first candidate wins ties.
    """
    numbers = np.unique(parts)
    if len(numbers) < 2:
        return np.zeros(losses.shape[1], dtype=np.int64)
    best = {
        number: int((losses[:, parts != number].mean(axis=1) + prices).argmin())
        for number in numbers.tolist()
    }
    return np.array([best[part] for part in parts.tolist()], dtype=np.int64)


def complete(candidates: Sequence[Candidate], folds: Sequence[Fold]) -> list[Candidate]:
    """Candidates with a panel for each of these folds that have not been pruned."""
    return [c for c in candidates if c.pruned_by is None and len(c.panels) >= len(folds)]


def clearly_behind(candidate: Candidate, leader: Candidate) -> bool:
    """Whether paired errors differ by more than two standard errors of their mean difference."""
    gaps = np.subtract(candidate.errors + candidate.repeats, leader.errors + leader.repeats)
    return bool(gaps.mean() > 2 * gaps.std(ddof=1) / len(gaps) ** 0.5)


def _read_once(source: Source) -> Source:
    """The same rows in memory, if they take little, for several decoders."""
    n, d = source.shape
    if is_remote(source) or n * d > MOST_IN_MEMORY:
        return source
    return array_source(source.rows(slice(0, n), torch.float64).numpy())


@torch.no_grad()
def outputs_of(decoder: MeasuredDecoder, source: Source, panel: Columns) -> Tensor:
    """What a decoder makes of the chosen columns of all rows."""
    return torch.cat([decoder(x[:, panel]) for _, x in read_blocks(source)])
