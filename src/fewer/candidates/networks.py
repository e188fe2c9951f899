"""Networks, trained on what each strategy proposes and compared on held-out rows."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fewer.candidates.clock import Clock
from fewer.candidates.comparison import Candidate, Rows, price, repeat_close
from fewer.candidates.training import trained_decoder
from fewer.constraints import Constraints
from fewer.distributed import broadcast
from fewer.nn import MeasuredDecoder, make_loss
from fewer.train import TrainingConfig
from fewer.train.explained import explained_variance
from fewer.train.folds import ScaledFold

__all__ = ["NetworkComparison"]

FINAL = 1.02  # with folds: so near to the leader, panels from all rows are compared as well
BEHIND = 1.02  # networks whose error on the first fold is so many times the leader's are given up


class NetworkComparison:
    """Networks: trained on the training rows of each fold, several times where it is close.

    Parameters
    ----------
    rows : callable
        Scaled rows of a fold.
    constraints : Constraints
        For the price of panels.
    settings : TrainingConfig
        Of the decoder and its training.
    seed : int
        Of the first training; later ones count on from it.
    clock : Clock
        Ends trainings that take too long.
    labels : callable, default=None
        Groups of the training rows of a fold, which are held out as a whole inside trainings.
    resplit : callable, default=None
        Other rows to hold out, by a number; for candidates that are close on the first ones.
    """

    def __init__(
        self,
        rows: Rows,
        constraints: Constraints,
        settings: TrainingConfig,
        seed: int,
        clock: Clock,
        labels: Callable[[ScaledFold], NDArray | None] = lambda fold: None,
        resplit: Callable[[int], NDArray[np.int64]] | None = None,
    ) -> None:
        self.rows, self.constraints, self.settings = rows, constraints, settings
        self.seed, self.clock, self.labels, self.resplit = seed, clock, labels, resplit
        self.known: dict[tuple[bytes, int, int], float] = {}  # strategies may agree on a panel
        # how long each panel's trainings helped: epochs for each row that was trained on
        self.epochs: dict[bytes, list[float]] = {}
        # first trainings on each fold, of the best candidate so far
        self.leader: Candidate | None = None
        self.others: dict[int, ScaledFold] = {}
        self.decoders: dict[tuple[bytes, int], MeasuredDecoder] = {}

    def measure(self, candidate: Candidate, folds: Sequence[ScaledFold]) -> None:
        """Errors of one training on each fold, the same start for every candidate."""
        self.clock.training(len(folds) + 1)
        before = dict(self.decoders)
        candidate.errors = self._errors(candidate.panels, folds, 0)
        candidate.price = price(candidate.panels, self.constraints)
        if self.leader is None or candidate.rank < self.leader.rank:
            self.leader = candidate
            pairs = zip(candidate.panels, folds, strict=True)
            mine = {(panel.tobytes(), id(fold)) for panel, fold in pairs}
            self.decoders = {key: self.decoders[key] for key in mine if key in self.decoders}
        else:
            self.decoders = before

    def gives_up(self, candidate: Candidate, folds: Sequence[ScaledFold]) -> bool:
        """Whether it is far behind on the first fold, which spares the work for the others.

        Its error is then taken to be the leader's, times as much as it was worse there.
        """
        leader = self.leader
        if leader is None or len(folds) == 1 or not leader.errors[0]:
            return False
        before = dict(self.decoders)
        self.clock.training(len(folds) + 1)
        ratio = self._errors(candidate.panels, folds[:1], 0)[0] / leader.errors[0]
        extra = price(candidate.panels, self.constraints)
        if leader.error * ratio + extra <= BEHIND * leader.rank:
            return False
        self.decoders = before
        candidate.behind, candidate.price = (leader, ratio), extra
        return True

    def settle(self, candidates: Sequence[Candidate], folds: Sequence[ScaledFold]) -> None:
        """Train again where candidates are closer than luck: other starts, other held-out rows.

        These rows took part in the choice of the panel, of every panel alike; they help to
        decide, and are not in the score that a panel reports. With folds it is the panels from
        all rows that decide, see `best_of`.
        """
        if len(folds) > 1:
            return

        def again(candidate: Candidate, repeat: int) -> list[float]:
            return self._errors(candidate.panels, [self._resplit(folds[0], repeat)], repeat)

        self.others = {}
        repeat_close(candidates, again, self.clock)

    def _resplit(self, fold: ScaledFold, more: int) -> ScaledFold:
        if self.resplit is None:
            return fold
        if more not in self.others:
            held = self.resplit(more)
            everything = np.concatenate([fold.train_index, fold.held_index])
            rest = np.setdiff1d(everything, held)
            self.others[more] = replace(fold, train_index=rest, held_index=held)
        return self.others[more]

    def fitted(
        self, candidate: Candidate, columns: NDArray[np.int64], fold: ScaledFold
    ) -> MeasuredDecoder:
        """A network that reads these columns.

        Where no row is held out, all of them train it, for as long as helped in the comparison;
        the more rows, the more epochs, since more rows are overfitted later.
        """
        found = self.decoders.get((columns.tobytes(), id(fold)))
        if found is not None:
            return found
        compared = {panel.tobytes() for panel in (columns, *candidate.panels)}
        helped = [epochs for panel in compared for epochs in self.epochs.get(panel, [])]
        settings = self.settings
        if helped and not len(fold.held_index):
            epochs = max(1, round(np.median(helped) * len(fold.train_index)))
            settings = replace(settings, validation_fraction=0.0, refit_epochs=epochs)
        return self._trained(columns, fold, self.seed, settings)

    def finalists(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        """Those whose panels from all rows may turn out to be the best."""
        best = min(candidate.rank for candidate in candidates)
        return [c for c in candidates if c.behind is None and c.rank <= FINAL * best]

    def best_of(self, panels: Sequence[NDArray[np.int64]], folds: Sequence[ScaledFold]) -> int:
        """Which of these panels, each the same for all folds, does best on the held-out rows.

        A search may end far from where it ended with a few rows less, and a stand-in for the
        network may like what the network does not: what is to be the panel is looked at by the
        network itself. Of equals the first is taken.
        """
        if len({panel.tobytes() for panel in panels}) == 1 or self.clock.late:
            return 0
        ranks: list[float] = []
        before = dict(self.decoders)
        for panel in panels:
            if ranks and self.clock.late:
                break
            errors = self._errors([panel] * len(folds), folds, 0)
            ranks.append(float(np.mean(errors)) + price([panel], self.constraints))
        self.decoders = before
        return int(np.argmin(ranks))

    def _errors(
        self, panels: Sequence[NDArray[np.int64]], folds: Sequence[ScaledFold], more: int
    ) -> list[float]:
        found = []
        for panel, fold in zip(panels, folds, strict=True):
            key = (panel.tobytes(), id(fold), more)
            if key not in self.known:
                decoder = self._trained(panel, fold, self.seed + more, self.settings)
                if decoder.epochs is not None:
                    rows = len(fold.train_index) * (1 - self.settings.validation_fraction)
                    self.epochs.setdefault(panel.tobytes(), []).append(decoder.epochs / rows)
                if not more:
                    self.decoders[key[:2]] = decoder
                part = self.rows(fold, fold.held_index)
                error = float(explained_variance(decoder, part, panel)[1].mean())
                self.known[key] = broadcast(error)  # what follows depends on it, on every rank
            found.append(self.known[key])
        return found

    def _trained(
        self,
        columns: NDArray[np.int64],
        fold: ScaledFold,
        seed: int,
        settings: TrainingConfig,
    ) -> MeasuredDecoder:
        part = self.rows(fold, fold.train_index)
        return trained_decoder(
            part,
            columns,
            settings,
            make_loss("mse"),
            seed,
            groups=self.labels(fold),
            seconds=self.clock.training(1),
        )
