"""How proposed panels are compared: by the held-out error of the requested decoder, per fold.

Every rank computes the same numbers up to rounding; rank 0 broadcasts those that decide.
"""

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
from fewer.data.source import Source, read_blocks
from fewer.nn import MeasuredDecoder, make_loss
from fewer.nn.decoder import linear_layer
from fewer.reconstructor import explained_variance
from fewer.search.objective import worth
from fewer.selection.context import SelectionContext
from fewer.selection.strategies import Strategy
from fewer.selection.target import TargetData
from fewer.train import TrainingConfig, fit_linear, train_decoder
from fewer.validation import RIDGES, Fold, best_ridge

__all__ = ["Candidate", "Comparison", "LinearComparison", "NetworkComparison", "TargetComparison"]

CLOSE = 1.01  # candidates within this ratio of the best are retrained
REPEATS = 2
TIED = 1.02  # linear panels within this ratio on one held-out part: the training rows decide
FAR_BEHIND = 1.02  # networks with this ratio to the leader's error on the first fold are pruned
FINALIST = 1.02  # with folds: within this ratio, panels from all rows are compared as well

Columns = NDArray[np.int64]


@dataclass(eq=False)
class Candidate:
    """A strategy, the panel that it proposed on each fold, and how these did on held-out rows."""

    strategy: Strategy
    panels: list[Columns] = field(default_factory=list)
    errors: list[float] = field(default_factory=list)
    ridge: float = 0.0
    price: float = 0.0  # what the costs of its panels add to the objective
    seconds: float = 0.0
    train_residual: float | None = None  # on the training rows, where that breaks ties
    pruned_by: "tuple[Candidate, float] | None" = None  # the leader, and the ratio of errors

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
    def sort_key(self) -> tuple[bool, float]:
        """Smaller is better; candidates that the training rows decide between come first."""
        if self.train_residual is None:
            return True, self.objective
        return False, self.train_residual


class Comparison(Protocol):
    """How one kind of decoder is fitted and compared."""

    def measure(self, candidate: Candidate, folds: Sequence[Fold]) -> None:
        """Set the errors of a candidate that has a panel for each fold."""

    def prune(self, candidate: Candidate, folds: Sequence[Fold]) -> None:
        """Set ``pruned_by`` where the panel of the first fold is too far behind to win."""
        return  # only networks take so long to train that this pays

    def break_ties(self, candidates: Sequence[Candidate], folds: Sequence[Fold]) -> None:
        """Decide between candidates that are too close to call."""

    def fit(self, candidate: Candidate, columns: Columns, fold: Fold) -> MeasuredDecoder:
        """The decoder for scaled rows, fitted on the training rows of a fold."""


def mean_price(panels: Sequence[Columns], constraints: Constraints) -> float:
    """What the costs of panels add to their error, where they have weight."""
    return float(np.mean([constraints.price(panel) for panel in panels])) / constraints.d


@dataclass(frozen=True)
class LinearComparison(Comparison):
    """Linear decoders: exact, from fold covariances, with the penalty that does best."""

    context: SelectionContext

    def measure(self, candidate: Candidate, folds: Sequence[Fold]) -> None:
        """Errors with the penalty that does best over the folds."""
        ridges = RIDGES if len(folds) > 1 else (0.0,)
        found = best_ridge(folds, candidate.panels, ridges)
        candidate.ridge, candidate.errors = distributed.broadcast(found)
        candidate.price = mean_price(candidate.panels, self.context.constraints)

    def break_ties(self, candidates: Sequence[Candidate], folds: Sequence[Fold]) -> None:
        """With one held-out part, the training rows decide between candidates that are close.

        There are then so many rows that a linear decoder hardly overfits: the training rows, nine
        times as many, say more than a random tenth. With folds, all rows have been held out.
        """
        if len(folds) > 1:
            return
        C = folds[0].matrix()
        best = min(candidate.objective for candidate in candidates)
        for candidate in candidates:
            if candidate.objective <= TIED * best:
                panel = candidate.panels[0]
                residual = worth(C, panel, self.context.constraints, 0.0)
                candidate.train_residual = distributed.broadcast(residual)

    def fit(self, candidate: Candidate, columns: Columns, fold: Fold) -> MeasuredDecoder:
        """Least squares with the candidate's penalty."""
        mean = fold.scaled_mean
        if self.context.covariances.stats.has_missing:
            source = fold.train_source
            stats = moments(source)
            mean = torch.from_numpy(stats.mean)
            linear = fit_linear(source, columns, stats, ridge=candidate.ridge)
        else:
            weight = fold.decoder(columns, candidate.ridge).T
            linear = linear_layer(weight, mean - weight @ mean[columns])
        known = torch.from_numpy(columns)
        return MeasuredDecoder(linear, fill=mean[columns], known=known).eval()


@dataclass
class NetworkComparison(Comparison):
    """Networks, trained on the training rows of each fold, several times where it is close.

    ``errors`` and ``decoders`` are keyed by panel, fold number and repeat; only the decoders of
    the leading candidate's first trainings are kept.
    """

    context: SelectionContext
    errors: dict[tuple[bytes, int, int], float] = field(default_factory=dict)
    decoders: dict[tuple[bytes, int], MeasuredDecoder] = field(default_factory=dict)
    # by panel: epochs after which each training did best, over the number of training rows
    epochs_per_row: dict[bytes, list[float]] = field(default_factory=dict)
    leader: Candidate | None = None

    def measure(self, candidate: Candidate, folds: Sequence[Fold]) -> None:
        """Errors of one training per fold, with the same seed for every candidate."""
        self.context.budget.per_training(len(folds) + 1)
        before = dict(self.decoders)
        candidate.errors = self._errors(candidate.panels, folds)
        candidate.price = mean_price(candidate.panels, self.context.constraints)
        if self.leader is None or candidate.objective < self.leader.objective:
            self.leader = candidate
            pairs = zip(candidate.panels, folds, strict=True)
            own = {(panel.tobytes(), fold.number) for panel, fold in pairs}
            self.decoders = {key: part for key, part in self.decoders.items() if key in own}
        else:
            self.decoders = before

    def prune(self, candidate: Candidate, folds: Sequence[Fold]) -> None:
        """Prune a candidate that is far behind on the first fold, to save time on the others."""
        leader = self.leader
        if leader is None or len(folds) == 1 or not leader.errors[0]:
            return
        before = dict(self.decoders)
        self.context.budget.per_training(len(folds) + 1)
        ratio = self._errors(candidate.panels, folds[:1])[0] / leader.errors[0]
        price = mean_price(candidate.panels, self.context.constraints)
        if leader.error * ratio + price > FAR_BEHIND * leader.objective:
            self.decoders = before
            candidate.pruned_by, candidate.price = (leader, ratio), price

    def break_ties(self, candidates: Sequence[Candidate], folds: Sequence[Fold]) -> None:
        """Retrain candidates that are close, with other seeds and other held-out rows.

        The panels were chosen with these rows, which is the same for all candidates; they do not
        count in the score of a panel. With folds, panels from all rows decide: see `best_of`.
        """
        if len(folds) == 1:
            retrain_close(
                candidates, lambda c, repeat: self._errors(c.panels, folds, repeat), self.context
            )

    def fit(self, candidate: Candidate, columns: Columns, fold: Fold) -> MeasuredDecoder:
        """A network that decodes these columns.

        Without held-out rows, the number of epochs is what did best in the comparison, in
        proportion to the number of rows, since more rows are overfitted later.
        """
        if fold.number is not None:
            found = self.decoders.get((columns.tobytes(), fold.number))
            if found is not None:
                return found
        config = self.context.config
        compared = {panel.tobytes() for panel in (columns, *candidate.panels)}
        helped = [epochs for panel in compared for epochs in self.epochs_per_row.get(panel, [])]
        if helped and fold.number is None:
            epochs = max(1, round(np.median(helped) * fold.n_train))
            config = replace(config, validation_fraction=0.0, refit_epochs=epochs)
        return self._train(columns, fold, fold.train_rows, self.context.seed, config)

    def finalists(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        """Candidates whose panels from all rows may turn out to be the best."""
        best = min(candidate.objective for candidate in candidates)
        return [c for c in candidates if c.pruned_by is None and c.objective <= FINALIST * best]

    def best_of(self, panels: Sequence[Columns], folds: Sequence[Fold]) -> int:
        """Which of these panels does best on the held-out rows of all folds; the first of equals.

        A search may end elsewhere with a few rows more, and a surrogate may prefer what the
        network does not, so that the network itself has to judge the final panels.
        """
        budget = self.context.budget
        if len({panel.tobytes() for panel in panels}) == 1 or budget.exhausted:
            return 0
        objectives: list[float] = []
        before = dict(self.decoders)
        for panel in panels:
            if objectives and budget.exhausted:
                break
            errors = self._errors([panel] * len(folds), folds)
            price = mean_price([panel], self.context.constraints)
            objectives.append(float(np.mean(errors)) + price)
        self.decoders = before
        return int(np.argmin(objectives))

    def _errors(
        self, panels: Sequence[Columns], folds: Sequence[Fold], repeat: int = 0
    ) -> list[float]:
        """Held-out error of each panel on its fold; strategies may agree on a panel."""
        found = []
        for panel, fold in zip(panels, folds, strict=True):
            assert fold.number is not None
            key = (panel.tobytes(), fold.number, repeat)
            if key not in self.errors:
                self.errors[key] = distributed.broadcast(self._error(panel, fold, repeat))
            found.append(self.errors[key])
        return found

    def _error(self, panel: Columns, fold: Fold, repeat: int) -> float:
        context = self.context
        train, held = fold.train_rows, fold.held_rows
        if repeat:  # other held-out rows, in the same units
            others = context.split(context.seed + repeat)
            train, held = others.train_rows(0), others.held_rows(0)
        decoder = self._train(panel, fold, train, context.seed + repeat, context.config)
        if decoder.epochs is not None:
            rows = len(train) * (1 - context.config.validation_fraction)
            self.epochs_per_row.setdefault(panel.tobytes(), []).append(decoder.epochs / rows)
        if not repeat and fold.number is not None:
            self.decoders[panel.tobytes(), fold.number] = decoder
        return float(explained_variance(decoder, fold.rows(held), panel)[1].mean())

    def _train(
        self, columns: Columns, fold: Fold, rows: Columns, seed: int, config: TrainingConfig
    ) -> MeasuredDecoder:
        part = fold.rows(rows)
        return train_decoder(
            part,
            moments(part),
            columns,
            config,
            make_loss("mse"),
            seed,
            groups=self.context.groups_of(rows),
            seconds=self.context.budget.per_training(1),
        )


def retrain_close(
    candidates: Sequence[Candidate],
    errors: Callable[[Candidate, int], list[float]],
    context: SelectionContext,
) -> None:
    """Add the errors of further trainings to candidates that are too close to call."""
    best = min(candidate.objective for candidate in candidates)
    close = [c for c in candidates if c.objective <= CLOSE * best]
    chosen = {b"".join(panel.tobytes() for panel in c.panels) for c in close}
    if len(chosen) < 2:
        return
    for repeat in range(1, REPEATS + 1):
        for candidate in close:
            if context.budget.exhausted:
                return
            candidate.errors += errors(candidate, repeat)


@dataclass
class TargetComparison(Comparison):
    """Predictors of the target, trained on each panel and compared on held-out rows."""

    context: SelectionContext
    target: TargetData
    decoders: dict[tuple[bytes, int | None, int], MeasuredDecoder] = field(default_factory=dict)

    def measure(self, candidate: Candidate, folds: Sequence[Fold]) -> None:
        """Held-out loss: cross-entropy, or mean squared error."""
        self.context.budget.per_training(len(folds) + 1)
        candidate.errors = self._errors(candidate, folds)

    def break_ties(self, candidates: Sequence[Candidate], folds: Sequence[Fold]) -> None:
        """Retrain candidates that are close with other seeds, unless training is exact."""
        if not self.context.config.linear:
            retrain_close(
                candidates, lambda c, repeat: self._errors(c, folds, repeat), self.context
            )

    def fit(self, candidate: Candidate, columns: Columns, fold: Fold) -> MeasuredDecoder:
        """The predictor for scaled rows."""
        return self._trained(columns, fold)

    def score(self, candidate: Candidate, folds: Sequence[Fold]) -> float:
        """Accuracy, or R squared, on held-out rows."""
        outputs, truths = [], []
        for fold, panel in zip(folds, candidate.panels, strict=True):
            decoder = self._trained(panel, fold)
            outputs.append(_outputs(decoder, fold.rows(fold.held_rows), panel))
            truths.append(self.target.values[torch.from_numpy(fold.held_rows)])
        output, truth = torch.cat(outputs), torch.cat(truths)
        if self.target.classes is not None:
            return float((output.argmax(1) == truth).double().mean())
        spread = (truth - truth.mean(0)).square().sum(0).clamp_min(1e-300)
        return 1.0 - float(((output - truth).square().sum(0) / spread).mean())

    def _errors(self, candidate: Candidate, folds: Sequence[Fold], repeat: int = 0) -> list[float]:
        target = self.target
        # several numbers count the same, whatever their units; a single one keeps its unit
        several = target.classes is None and target.outputs > 1
        unit = target.values.var(0) if several else torch.ones(1)
        found = []
        for fold, panel in zip(folds, candidate.panels, strict=True):
            decoder = self._trained(panel, fold, repeat)
            output = _outputs(decoder, fold.rows(fold.held_rows), panel)
            truth = target.values[torch.from_numpy(fold.held_rows)]
            if target.classes is None:
                found.append(float(((output - truth).square() / unit).mean()))
            else:
                likelihood = output.gather(1, truth[:, None]).clamp_min(1e-9)
                found.append(float(-likelihood.log().mean()))
        return distributed.broadcast(found)

    def _trained(self, columns: Columns, fold: Fold, repeat: int = 0) -> MeasuredDecoder:
        key = (columns.tobytes(), fold.number, repeat)
        if key not in self.decoders:
            rows = fold.train_rows
            part = fold.rows(rows)
            decoder = train_decoder(
                part,
                moments(part),
                columns,
                self.context.config,
                self.target.loss,
                self.context.seed + repeat,
                targets=self.target.in_units_of(rows),
                out=self.target.outputs,
                groups=self.context.groups_of(rows),
                seconds=self.context.budget.per_training(1),
            )
            spread = self.target.spread(rows)
            decoder.out_center = decoder.out_center * spread
            decoder.out_scale = decoder.out_scale * spread
            self.decoders[key] = decoder
        return self.decoders[key]


@torch.no_grad()
def _outputs(decoder: MeasuredDecoder, source: Source, panel: Columns) -> Tensor:
    return torch.cat([decoder(x[:, panel]) for _, x in read_blocks(source)])
