"""Comparison of predictors of a target by their held-out loss; see `fewer.kinds`."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fewer import distributed
from fewer.data.source import Source
from fewer.estimate import Estimate, shared_rows
from fewer.kinds import Classes, Several, Survival
from fewer.nn import Loss, MeasuredDecoder
from fewer.nn.decoder import hidden_widths, without_norms
from fewer.selection.compare import (
    FULL,
    MANY_ROWS,
    Candidate,
    Columns,
    TrainedComparison,
    complete,
    crossfitted,
    outputs_of,
    parts_of,
    random_parts,
)
from fewer.selection.target import TargetData
from fewer.train import TrainingConfig
from fewer.train.config import CLASS_DROPOUT, CLASS_SMOOTHING
from fewer.train.device import pick_device
from fewer.train.distil import WIDTH, distil
from fewer.train.ensemble import Ensemble, train_ensemble
from fewer.validation import Fold

__all__ = ["TargetComparison"]

LARGE_BATCH = 1024  # of many rows: classes are trained as well
RISK_SET = 1024  # rows of a batch of times until an event
MOST_MISSES = 2000  # held-out predictions that are kept for conformal prediction
JACKKNIFE_PARTS = 20  # of the held-out rows, for the standard error of a prediction's score
FEWEST_TO_DISTIL = 1000  # rows
NARROW = 32  # hidden units: wider networks learn from the labels about as well
DISTILLED = -2  # as FULL: taught by a wide network if held-out rows prefer that
# predictors with this ratio to the leader's loss on the first fold are pruned, unless they are
# linear and soon trained: with at most so many values (rows x features chosen x outputs)
PREDICTS_WORSE, SOON_TRAINED = 1.25, 1_000_000
# hidden units of ensembles, which predict the target where that is left open, for each chosen
# feature, also of those for many rows; their members with one and with two layers; and the ratio to
# the lowest loss on the first fold beyond which an ensemble is not tried on the others
UNITS, UNIT_LIMITS = 5, (64, 256)
MANY_UNITS, MANY_UNIT_LIMITS = 10, (64, 512)
WIDE_MEMBERS, DEEP_MEMBERS = 6, 4
BEHIND = 1.02
LONG_TRAINING, SHORTER = 1200, 0.5  # rows from which a processor trains ensembles half as long


@dataclass
class TargetComparison(TrainedComparison):
    """Predictors of the target, compared by their held-out loss; see `fewer.kinds`."""

    target: TargetData = field(kw_only=True)
    # lowest loss and lowest error of a linear decoder on each fold, where both count
    lowest: dict[int | None, tuple[float, float]] = field(default_factory=dict)
    distils: bool | None = None  # whether held-out rows prefer predictors that wide ones teach
    # the ensemble that held-out rows prefer, where the predictor is left open, and all that were
    # trained
    predictor: Ensemble | None = None
    ensembles: dict[tuple[Ensemble, bytes, int | None], MeasuredDecoder] = field(
        default_factory=dict
    )

    def measure(self, candidates: Sequence[Candidate], folds: Sequence[Fold]) -> None:
        """Errors on these folds.

        Candidates that are far behind on the first are pruned, where training takes long.
        """
        super().measure(candidates, folds)
        if not self._is_soon_trained:
            self.prune(complete(candidates, folds), folds, PREDICTS_WORSE)

    @property
    def _is_soon_trained(self) -> bool:
        """Whether all folds take so little time that none has to be left out."""
        config, target = self.context.config, self.target
        values = len(target.known) * config.k * target.outputs
        return config.linear and values <= SOON_TRAINED

    def train(
        self,
        panels: Sequence[Columns],
        fold: Fold,
        repeat: int = 0,
        config: TrainingConfig | None = None,
        tuned: float | None = None,
    ) -> list[MeasuredDecoder]:
        """As `TrainedComparison.train`.

        Where reconstructing the features counts as well, the errors that are recorded are the
        weighted mean of the loss and of the error of a linear decoder, both relative to the lowest
        of the panels that were trained first on this fold. Predictors of classes that are in the
        result learn from wide networks where that lowers the loss of the held-out part.
        """
        if repeat == FULL and self.predictor is not None:
            return [self._ensemble(self.predictor, one, fold, config, tuned) for one in panels]
        if repeat == FULL and self._may_distil():
            return [self._distilled(panel, fold, config, tuned) for panel in panels]
        known = set(self.errors)
        found = super().train(panels, fold, repeat, config, tuned)
        new = self.errors.keys() - known
        if self.context.reconstruct and new:
            panels_of = {key: np.frombuffer(key[0], np.int64).copy() for key in new}
            if fold.number not in self.lowest:
                left = min(fold.error(panel, known=True) for panel in panels_of.values())
                self.lowest[fold.number] = min(self.errors[key] for key in new), left
            for key, panel in panels_of.items():
                error = self.beside_features(self.errors[key], panel, fold)
                self.errors[key] = distributed.broadcast(error)
        return found

    @property
    def offered(self) -> tuple[Ensemble, ...]:
        """Ensembles that may predict the target: wide or deep networks, larger for many rows."""
        k = self.context.config.k
        if self._has_many_rows:
            width = int(np.clip(MANY_UNITS * k, *MANY_UNIT_LIMITS))
            return (Ensemble((width, width // 2), DEEP_MEMBERS),)
        width = int(np.clip(UNITS * k, *UNIT_LIMITS))
        return Ensemble((width,), WIDE_MEMBERS), Ensemble((width, width // 2), DEEP_MEMBERS)

    @property
    def _has_many_rows(self) -> bool:
        """Whether deep networks predict classes better than wide ones, and soon overfit."""
        return self.target.classes is not None and len(self.target.known) >= MANY_ROWS

    def choose_predictor(self, winner: Candidate, folds: Sequence[Fold]) -> None:
        """Let held-out rows choose the ensemble that is in the result, if that is left open."""
        if not self.context.chooses_predictor or self.context.budget.exhausted:
            return
        errors: dict[Ensemble, list[float]] = {one: [] for one in self.offered}
        for fold, panel in zip(folds, winner.panels, strict=True):
            if len(errors) == 1:
                break
            held = self.rows(fold, FULL)[1]
            for one, found in errors.items():
                decoder = self._ensemble(one, panel, fold)
                found.append(self.held_out_error(decoder, fold.rows(held), held, panel))
            least = BEHIND * min(found[0] for found in errors.values())
            left = {one: found for one, found in errors.items() if found[0] <= least}
            errors = left or errors  # none, where a network has diverged
        self.predictor = min(errors, key=lambda one: sum(errors[one]))

    def _ensemble(
        self,
        ensemble: Ensemble,
        panel: Columns,
        fold: Fold,
        config: TrainingConfig | None = None,
        tuned: float | None = None,
    ) -> MeasuredDecoder:
        """An ensemble for a panel, trained on the training rows of a fold.

        With several folds, which multiply the time, each ensemble has half of the members: enough
        to compare ensembles, and for a score that is slightly too low.
        """
        key = (ensemble, panel.tobytes(), fold.number)
        if key not in self.ensembles:
            context, rows = self.context, self.rows(fold, FULL)[0]
            config, loss = self.recipe(config or context.config, len(rows))
            data = context.training_data(fold, rows, config, loss, context.seed)
            if fold.number is not None and len(context.covariances.folds) > 1:
                ensemble = replace(ensemble, members=max(2, ensemble.members // 2))
            on_cpu = pick_device(config.device).type == "cpu"
            shorter = self._has_many_rows or (on_cpu and len(rows) >= LONG_TRAINING)
            found = train_ensemble(
                data,
                panel,
                ensemble,
                context.seed,
                seconds=context.budget.per_training(1),
                tuned=tuned,
                effort=SHORTER if shorter else 1.0,
            )
            self.ensembles[key] = self.in_units(found, rows)
        return self.ensembles[key]

    def _may_distil(self) -> bool:
        """Whether predictors may learn from wide ones: narrow ones of classes, with enough rows."""
        context, decoder = self.context, self.context.config.decoder
        if isinstance(decoder, str) or callable(decoder) or context.config.linear:
            return False
        narrow = max(hidden_widths(decoder)) <= NARROW
        several = len(context.covariances.folds) > 1 or distributed.world_size() > 1
        plain = self.target.kind.name == Classes.name and context.budget.limit is None
        enough = len(self.target.known) >= FEWEST_TO_DISTIL
        return narrow and plain and enough and not several

    def _distilled(
        self, panel: Columns, fold: Fold, config: TrainingConfig | None, tuned: float | None
    ) -> MeasuredDecoder:
        """The predictor of a panel that learns from wide networks, or the plain one."""
        key = (panel.tobytes(), fold.number, DISTILLED)
        if key in self.decoders:
            return self.decoders[key]
        if fold.number is None and not self.distils:
            found = super().train([panel], fold, FULL, config, tuned)[0]
        else:
            rows, held = self.rows(fold, FULL)
            seed = self.context.seed
            config, loss = self.recipe(config or self.context.config, len(rows))
            data = self.context.training_data(fold, rows, config, loss, seed)
            long = len(rows) >= MANY_ROWS and self.context.device.type == "cpu"
            width = WIDTH // 2 if long else WIDTH
            found = self.in_units(distil(data, panel, seed, tuned=tuned, width=width), rows)
            if fold.number is not None:
                plain = super().train([panel], fold, FULL)[0]
                losses = [
                    self.held_out_error(one, fold.rows(held), held, panel) for one in (plain, found)
                ]
                self.distils = losses[1] < losses[0]
                found = found if self.distils else plain
        self.decoders[key] = found
        return found

    def beside_features(self, error: float, panel: Columns, fold: Fold) -> float:
        """The error of the target and, where it counts, that of a linear decoder of features."""
        share = self.context.reconstruct
        if not share:
            return error
        loss, least = self.lowest[fold.number]
        left = fold.error(panel, known=True)
        return (1 - share) * error / (loss or 1.0) + share * left / (least or 1.0)

    def rows(self, fold: Fold, repeat: int) -> tuple[Columns, Columns]:
        """Training rows and held-out rows, those with a label."""
        return self.target.rows(fold.train_rows), self.target.rows(fold.held_rows)

    def break_ties(self, candidates: Sequence[Candidate], folds: Sequence[Fold]) -> None:
        """Retrain candidates that are close with other seeds, unless training is exact."""
        if not self.context.config.linear:
            self.retrain_close(candidates, folds)

    def estimate(
        self, candidates: Sequence[Candidate], folds: Sequence[Fold], *, given: bool = False
    ) -> Estimate:
        """Score of the winner on held-out rows (see `fewer.kinds`), with its standard error.

        That is the jackknife's over 20 parts of the rows, or of groups of rows. Unless the first
        candidate was ``given``, the score is lowered by what it loses where each fold (or tenth of
        a single split) has the candidate that does best on the others, among those compared; and
        by what it loses where it has the ensemble that does best there. The standard error is at
        least what the score is lowered by, which is known no better than that.
        """
        winner, context = candidates[0], self.context
        output, rows = self.predictions(winner.panels, folds)
        luck = 0.0 if given else self._luck(candidates, folds)
        luck += self._luck_of_ensemble(winner, folds)
        value = self.score_of(output, rows) + luck
        parts = random_parts(len(rows), context.groups_of(rows), JACKKNIFE_PARTS, context.seed)
        numbers = np.unique(parts)
        if len(numbers) < 2:
            return Estimate(value)
        without = []
        for number in numbers:
            kept = np.flatnonzero(parts != number)
            without.append(self.score_of(output[torch.from_numpy(kept)], rows[kept]))
        count = len(numbers)
        square = (1 + shared_rows(folds)) * (count - 1) * float(np.var(without))
        return Estimate(value, max(square**0.5, -luck), count - 1)

    def _luck(self, candidates: Sequence[Candidate], folds: Sequence[Fold]) -> float:
        """What the score loses where other rows choose between candidates; at most 0."""
        ready = complete(candidates, folds)
        if len(ready) < 2 or ready[0] is not candidates[0]:
            return 0.0
        found = [self.predictions(c.panels, folds, 0) for c in ready]
        prices = np.array([c.price for c in ready])
        return self._loss_of_choice([output for output, _ in found], folds, 0, prices)

    def _luck_of_ensemble(self, winner: Candidate, folds: Sequence[Fold]) -> float:
        """The same for the choice between ensembles."""
        panels = list(zip(folds, winner.panels, strict=True))
        tried = [
            one
            for one in sorted(self.offered, key=lambda one: one != self.predictor)
            if all((one, panel.tobytes(), fold.number) in self.ensembles for fold, panel in panels)
        ]
        if len(tried) < 2 or tried[0] != self.predictor:
            return 0.0
        outputs = [
            torch.cat(
                [
                    outputs_of(
                        self._ensemble(one, panel, fold),
                        fold.rows(self.rows(fold, FULL)[1]),
                        panel,
                    )
                    for fold, panel in panels
                ]
            )
            for one in tried
        ]
        return self._loss_of_choice(outputs, folds, FULL, np.zeros(len(tried)))

    def _loss_of_choice(
        self,
        found: Sequence[Tensor],
        folds: Sequence[Fold],
        repeat: int,
        prices: NDArray[np.float64],
    ) -> float:
        """What the score of the first outputs loses where other rows choose between all."""
        held = [self.rows(fold, repeat)[1] for fold in folds]
        outputs, rows = torch.stack(list(found)), np.concatenate(held)  # choices x rows x outputs
        labels = parts_of(held, self.context.groups_of, self.context.seed)
        target, losses = self.target, np.zeros((len(outputs), len(rows)))
        for part in np.unique(labels):
            at = np.flatnonzero(labels == part)
            some = torch.from_numpy(at)
            truth, weights = target.values[torch.from_numpy(rows[at])], target.weights_of(rows[at])
            for number, output in enumerate(outputs):
                error = target.judge.error(output[some], truth, weights, target.unit)
                losses[number, at] = error  # of the part as a whole
        chosen = torch.from_numpy(crossfitted(losses, labels, prices))
        mixed = outputs[chosen, torch.arange(len(chosen))]
        return min(0.0, self.score_of(mixed, rows) - self.score_of(outputs[0], rows))

    def predictions(
        self, panels: Sequence[Columns], folds: Sequence[Fold], repeat: int = FULL
    ) -> tuple[Tensor, Columns]:
        """Outputs for the held-out rows of all folds from a panel for each, and their numbers."""
        outputs, rows = [], []
        for fold, panel in zip(folds, panels, strict=True):
            decoder, held = self.train([panel], fold, repeat)[0], self.rows(fold, repeat)[1]
            outputs.append(outputs_of(decoder, fold.rows(held), panel))
            rows.append(held)
        return torch.cat(outputs), np.concatenate(rows)

    def misses(self, candidate: Candidate, folds: Sequence[Fold]) -> NDArray[np.float64] | None:
        """How far held-out predictions miss, ascending, per number; see `fewer.target.Target`."""
        output, rows = self.predictions(candidate.panels, folds)
        missed = self.target.kind.misses(output, self.target.values[torch.from_numpy(rows)])
        if missed is None:
            return None
        found = missed.sort(0).values
        if len(found) > MOST_MISSES:  # quantiles, such that ranks keep their meaning
            at = np.ceil(np.arange(1, MOST_MISSES + 1) * (len(found) + 1) / (MOST_MISSES + 1))
            found = found[torch.from_numpy(np.minimum(at, len(found)).astype(int) - 1)]
        return found.double().numpy()

    def score_of(self, output: Tensor, rows: Columns) -> float:
        """Score of outputs for these rows; see `fewer.kinds`."""
        return self.target.judge.score(output, *self._truth(rows))

    def scores_of_parts(self, output: Tensor, rows: Columns) -> list[float]:
        """The scores of several targets."""
        kind = self.target.judge
        return kind.scores(output, *self._truth(rows)) if isinstance(kind, Several) else []

    def _truth(self, rows: Columns) -> tuple[Tensor, Tensor | None]:
        return self.target.values[torch.from_numpy(rows)], self.target.score_weights(rows)

    def recipe(self, config: TrainingConfig, rows: int) -> tuple[TrainingConfig, Loss]:
        """With classes, what predicts best; the norm becomes part of the layer before it.

        Rows at risk are those of a batch, so batches of times until an event are large.
        """
        target = self.target
        if target.kind.name == Survival.name:
            config = replace(config, batch_size=max(config.batch_size, min(rows, RISK_SET)))
        if target.classes is None or config.linear or callable(config.decoder):
            return config, target.loss
        size, dropout = config.batch_size, CLASS_DROPOUT
        if rows >= MANY_ROWS:
            size, dropout = LARGE_BATCH, 0.0
        config = replace(config, norm="batch", dropout=dropout, batch_size=size)
        return config, target.kind.loss(smoothing=CLASS_SMOOTHING)

    def in_units(self, decoder: MeasuredDecoder, rows: Columns) -> MeasuredDecoder:
        """Outputs in the units of the target, and the layers that were asked for."""
        if not callable(self.context.config.decoder):
            decoder.net = without_norms(decoder.net)
        return self.target.restore_units(decoder, rows)

    def held_out_error(
        self, decoder: MeasuredDecoder, values: Source, held: Columns, panel: Columns
    ) -> float:
        """Held-out loss; several numbers count the same, and a single one keeps its unit."""
        return self.error_of(outputs_of(decoder, values, panel), torch.empty(0), held)

    def error_of(self, output: Tensor, x: Tensor, held: Columns) -> float:
        """Loss of outputs for held-out rows."""
        target = self.target
        truth, weights = target.values[torch.from_numpy(held)], target.weights_of(held)
        return target.judge.error(output, truth, weights, target.unit)
