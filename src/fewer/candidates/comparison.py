"""The asked-for decoder, fitted on what each strategy proposes and checked on held-out rows."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fewer.candidates.clock import Clock
from fewer.candidates.helped import trained_together
from fewer.candidates.strategies import Choose
from fewer.constraints import Constraints, resolve
from fewer.data import Source, moments
from fewer.nn import Loss, MeasuredDecoder, make_loss
from fewer.search.objective import worth
from fewer.train import GradientSettings, fit_linear
from fewer.train.device import seeded
from fewer.train.explained import explained_variance
from fewer.train.folds import ScaledFold
from fewer.train.problem import prepare
from fewer.train.refit import refit_decoder

__all__ = [
    "Candidate",
    "Comparison",
    "LinearComparison",
    "NetworkComparison",
    "Rows",
    "repeat_close",
    "trained_decoder",
]

DECODER_RIDGES = (0.0, 1e-4, 1e-3, 1e-2, 3e-2, 1e-1, 0.3, 1.0)  # shares of the mean variance
CLOSE = 1.01  # candidates within this ratio of the best are measured again
LEVEL = 1.02  # lines within this ratio of the best on one held-out part: training rows decide
REPEATS = 2
FINAL = 1.02  # with folds: so near to the leader, panels from all rows are compared as well
BEHIND = 1.02  # networks whose error on the first fold is so many times the leader's are given up

Rows = Callable[[ScaledFold, NDArray[np.int64]], Source]  # scaled rows of a fold


@dataclass
class Candidate:
    """A strategy at work: how it chooses columns, what it chose in each fold, how that did."""

    strategy: str
    choose: Choose
    panels: list[NDArray[np.int64]] = field(default_factory=list)
    errors: list[float] = field(default_factory=list)
    ridge: float = 0.0
    price: float = 0.0  # what the costs of its panels add, where they have weight
    seconds: float = 0.0
    left: float | None = None  # unexplained on the training rows, where that decides
    behind: "tuple[Candidate, float] | None" = None  # whom it was given up for; ratio of errors

    @property
    def error(self) -> float:
        """Mean held-out error; estimated where the candidate was given up."""
        if self.behind is not None:
            return self.behind[0].error * self.behind[1]
        return float(np.mean(self.errors)) if self.errors else float("inf")

    @property
    def compared(self) -> bool:
        """Whether there is an error."""
        return bool(self.errors) or self.behind is not None

    @property
    def rank(self) -> float:
        """What decides: the error, and the price of the panel where costs have weight."""
        return self.error + self.price

    @property
    def place(self) -> tuple[bool, float]:
        """Smaller is better; those that the training rows decide between come first."""
        return (self.left is None, self.rank if self.left is None else self.left)


class Comparison(Protocol):
    """How a kind of decoder is fitted and compared."""

    def measure(self, candidate: Candidate, folds: Sequence[ScaledFold]) -> None:
        """Set the errors of a candidate that has its panels."""

    def gives_up(self, candidate: Candidate, folds: Sequence[ScaledFold]) -> bool:
        """Whether the panel of the first fold shows that the candidate will not win."""

    def settle(self, candidates: Sequence[Candidate], folds: Sequence[ScaledFold]) -> None:
        """Decide between those that are too close to call."""

    def fitted(
        self, candidate: Candidate, columns: NDArray[np.int64], fold: ScaledFold
    ) -> MeasuredDecoder:
        """The decoder for scaled rows, fitted on the training rows of a fold."""


class LinearComparison:
    """Linear decoders: exact, from the covariances of the folds, with the penalty that does best.

    Parameters
    ----------
    rows : callable
        Scaled rows of a fold.
    rule : Constraints
        For the price of panels.
    """

    def __init__(self, rows: Rows, rule: Constraints) -> None:
        self.rows, self.rule = rows, rule

    def measure(self, candidate: Candidate, folds: Sequence[ScaledFold]) -> None:
        """Errors with the penalty that does best over the folds."""
        variance = float(folds[0].train.diagonal().mean())
        penalties = DECODER_RIDGES if len(folds) > 1 else (0.0,)
        table = np.array(
            [
                [fold.error(panel, ridge * variance, known=True) for ridge in penalties]
                for fold, panel in zip(folds, candidate.panels, strict=True)
            ]
        )
        best = int(np.argmin(table.mean(axis=0)))
        candidate.errors = table[:, best].tolist()
        candidate.ridge = penalties[best] * variance
        candidate.price = _price(candidate, self.rule)

    def gives_up(self, candidate: Candidate, folds: Sequence[ScaledFold]) -> bool:
        """Never: lines cost nothing."""
        return False

    def settle(self, candidates: Sequence[Candidate], folds: Sequence[ScaledFold]) -> None:
        """One held-out part: of those that are about level there, the best on the training rows.

        Rows are held out once where there are so many that a line hardly fits their noise. The
        choice of the part is then more luck than the nine times as many rows that the panels are
        chosen from. Folds use all rows, and decide by themselves.
        """
        if len(folds) > 1:
            return
        C = folds[0].train
        best = min(candidate.rank for candidate in candidates)
        for candidate in candidates:
            if candidate.rank <= LEVEL * best:
                candidate.left = worth(C, candidate.panels[0], self.rule, 0.0)

    def fitted(
        self, candidate: Candidate, columns: NDArray[np.int64], fold: ScaledFold
    ) -> MeasuredDecoder:
        """Least squares with the candidate's penalty."""
        part = self.rows(fold, fold.train_index)
        stats = moments(part)
        linear = fit_linear(part, columns, stats, ridge=candidate.ridge)
        fill = torch.from_numpy(stats.mean[columns])
        return MeasuredDecoder(linear, fill=fill, known=torch.from_numpy(columns)).eval()


class NetworkComparison:
    """Networks: trained on the training rows of each fold, several times where it is close.

    Parameters
    ----------
    rows : callable
        Scaled rows of a fold.
    rule : Constraints
        For the price of panels.
    settings : GradientSettings
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
        rule: Constraints,
        settings: GradientSettings,
        seed: int,
        clock: Clock,
        labels: Callable[[ScaledFold], NDArray | None] = lambda fold: None,
        resplit: Callable[[int], NDArray[np.int64]] | None = None,
    ) -> None:
        self.rows, self.rule, self.settings = rows, rule, settings
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
        candidate.errors = self._errors(candidate, folds, 0)
        candidate.price = _price(candidate, self.rule)
        if self.leader is None or candidate.rank < self.leader.rank:
            self.leader = candidate
            mine = {(panel.tobytes(), id(fold)) for fold, panel in _pairs(candidate, folds)}
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
        ratio = self._errors(candidate, folds[:1], 0)[0] / leader.errors[0]
        price = _price(candidate, self.rule)
        if leader.error * ratio + price <= BEHIND * leader.rank:
            return False
        self.decoders = before
        candidate.behind, candidate.price = (leader, ratio), price
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
            return self._errors(candidate, [self._resplit(folds[0], repeat)], repeat)

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
        looked: list[Candidate] = []
        for panel in panels:
            if looked and self.clock.late:
                break
            one = Candidate("all rows", _given, panels=[panel] * len(folds))
            one.errors = self._errors(one, folds, 0)
            one.price = _price(one, self.rule)
            looked.append(one)
        if len(folds) > 1:
            repeat_close(looked, lambda c, more: self._errors(c, folds, more), self.clock)
        return int(np.argmin([one.rank for one in looked]))

    def _errors(self, candidate: Candidate, folds: Sequence[ScaledFold], more: int) -> list[float]:
        found = []
        for fold, panel in _pairs(candidate, folds):
            key = (panel.tobytes(), id(fold), more)
            if key not in self.known:
                decoder = self._trained(panel, fold, self.seed + more, self.settings)
                if decoder.epochs is not None:
                    rows = len(fold.train_index) * (1 - self.settings.validation_fraction)
                    self.epochs.setdefault(panel.tobytes(), []).append(decoder.epochs / rows)
                if not more:
                    self.decoders[key[:2]] = decoder
                part = self.rows(fold, fold.held_index)
                self.known[key] = float(explained_variance(decoder, part, panel)[1].mean())
            found.append(self.known[key])
        return found

    def _trained(
        self,
        columns: NDArray[np.int64],
        fold: ScaledFold,
        seed: int,
        settings: GradientSettings,
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


def trained_decoder(
    part: Source,
    columns: NDArray[np.int64],
    settings: GradientSettings,
    loss: Loss,
    seed: int,
    **more: Any,
) -> MeasuredDecoder:
    """The decoder that ``settings`` ask for, trained on these columns by all processes.

    ``more`` is what `train_here` takes besides.
    """
    return trained_together(train_here, part, columns, settings, loss, seed, **more)


def train_here(
    part: Source,
    columns: NDArray[np.int64],
    settings: GradientSettings,
    loss: Loss,
    seed: int,
    targets: Tensor | None = None,
    out: int | None = None,
    groups: NDArray | None = None,
    seconds: float | None = None,
) -> MeasuredDecoder:
    """A decoder trained by this process, as one of its team.

    What is measured is known: where the rows themselves are the target, the network spends
    nothing on these columns.
    """
    settings = replace(settings, k=len(columns))
    rule = resolve(None, part.shape[1], len(columns), include=columns)
    problem = prepare(part, moments(part), settings, loss, seed, targets, out, rule, groups)
    known = torch.from_numpy(columns)
    if targets is None:
        loss = problem.loss.apart_from(known.to(problem.device))
        problem = replace(problem, loss=loss)
    with seeded(seed, problem.device) as generator:
        decoder, history = refit_decoder(
            problem,
            nn.Identity(),
            columns,
            conflicts=0,
            generator=generator,
            groups=groups,
            seconds=seconds,
        )
    decoder = decoder.cpu().double().eval()
    decoder.known = known if targets is None else None
    if history and history[0]["val_loss"] is not None:
        decoder.epochs = min(history, key=lambda row: row["val_loss"])["trained"]
    return decoder


def repeat_close(
    candidates: Sequence[Candidate],
    errors: Callable[[Candidate, int], list[float]],
    clock: Clock,
) -> None:
    """Add the errors of further trainings to candidates that are closer than luck."""
    best = min(candidate.rank for candidate in candidates)
    close = [c for c in candidates if c.rank <= CLOSE * best]
    chosen = {b"".join(panel.tobytes() for panel in c.panels) for c in close}
    if len(chosen) < 2:
        return
    for repeat in range(1, REPEATS + 1):
        for candidate in close:
            if clock.late:
                return
            candidate.errors += errors(candidate, repeat)


def _given(fold: ScaledFold, seed: int) -> NDArray[np.int64]:
    raise AssertionError("the panel is there already")


def _pairs(
    candidate: Candidate, folds: Sequence[ScaledFold]
) -> Iterator[tuple[ScaledFold, NDArray[np.int64]]]:
    return zip(folds, candidate.panels, strict=True)


def _price(candidate: Candidate, rule: Constraints) -> float:
    return float(np.mean([rule.price(panel) for panel in candidate.panels])) / rule.d
