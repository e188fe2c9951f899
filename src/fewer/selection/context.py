"""State of a selection: data, folds, constraints, time budget and checkpoint."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fewer import distributed
from fewer._stored import misfit
from fewer.constraints import Constraints
from fewer.data.factored import Matrix
from fewer.data.moments import moments
from fewer.data.source import Source
from fewer.nn import Loss
from fewer.selection.target import TargetData
from fewer.train import Checkpoint, TrainingConfig
from fewer.train.device import pick_device
from fewer.train.training_data import TrainingData, prepare
from fewer.validation import (
    ROWS_PER_FEATURE,
    Fold,
    FoldCovariances,
    Splits,
    Validation,
    split_rows,
)

__all__ = ["SelectionCheckpoint", "SelectionContext", "TimeBudget", "WorkPlan"]

SMALL_SEARCH = 2048  # features
SHORT_SEARCH = 2**14  # chosen features times all features
PREPARED_BYTES = 2**28  # of the training rows of all folds, in float32
LEAST_SECONDS = 0.05  # what starts too late still gets this much

Columns = NDArray[np.int64]


class TimeBudget:
    """Seconds of a call, counted against its limit."""

    def __init__(self, limit: float | None) -> None:
        self.limit = limit
        self.reserve = 0.0  # seconds before the limit, for what has to follow
        self.start = time.perf_counter()
        self.cancelled = False  # by an error or Ctrl-C
        self._slot_end = 0.0 if limit is None else limit
        self._per_training: float | None = None

    @property
    def seconds(self) -> float:
        """Seconds since the call began."""
        return time.perf_counter() - self.start

    @property
    def exhausted(self) -> bool:
        """Whether it is too late to start anything new, by the clock of rank 0."""
        if self.limit is None:
            return False
        return distributed.broadcast(self.seconds > self.limit - self.reserve)

    def allocate(self, slots: int) -> None:
        """Give the next step one of so many equal slots of the remaining time."""
        if self.limit is not None:
            spare = max(0.0, self.limit - self.reserve - self.seconds)
            self._slot_end = self.seconds + spare / slots

    @property
    def slot_over(self) -> bool:
        """Whether the slot has ended, by the clock of this process, or the call was cancelled."""
        return self.cancelled or (self.limit is not None and self.seconds > self._slot_end)

    def cancel(self) -> None:
        """Stop what polls `slot_over`."""
        self.cancelled = True

    def remaining(self) -> float | None:
        """Seconds left in the slot, always above 0; None without a limit."""
        return None if self.limit is None else max(LEAST_SECONDS, self._slot_end - self.seconds)

    def per_training(self, trainings: int) -> float | None:
        """Seconds for each of so many trainings: the same for all, or the first would win."""
        if self._per_training is None and self.limit is not None:
            self._per_training = max(LEAST_SECONDS, (self.limit - self.seconds) / trainings)
        return self._per_training


class WorkPlan:
    """The steps of a call and the fraction of the work done, based on measured times.

    Steps of a kind that has been seen are expected to take as long as those did; others in
    proportion to their weight. The fraction never falls, and is below 1 until the call returns.
    """

    def __init__(
        self,
        report: Callable[[str, float], object] | None = None,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self._report = report
        self._clock = clock or time.perf_counter
        self._start = self._last = self._clock()
        self._ahead: dict[str, int] = {}  # steps to come, of each kind
        self._weight: dict[str, float] = {}
        self._took: dict[str, list[float]] = {}
        self._now: tuple[str, float] | None = None  # the current step, and when it began
        self._inside, self._message, self._reached = 0.0, "", 0.0
        self._thread = threading.get_ident()

    def expect(self, kind: str, steps: int, weight: float = 1.0) -> None:
        """Say how many steps of a kind are to come."""
        self._ahead[kind] = steps
        self._weight.setdefault(kind, weight)

    def begin(self, kind: str, message: str | None = None) -> None:
        """Begin a step, which ends the one before; show the message, if any."""
        now = self._clock()
        if self._now is not None:
            self._took.setdefault(self._now[0], []).append(max(0.0, now - self._now[1]))
        self._now, self._inside = (kind, now), 0.0
        self._ahead[kind] = max(0, self._ahead.get(kind, 0) - 1)
        if message is not None:
            self.say(message)

    def say(self, message: str) -> None:
        """Show a message within the current step."""
        self._message, self._last = message, self._clock()
        if self._report is not None:
            self._report(message, self.fraction())

    def inside(self, fraction: float) -> None:
        """Take the fraction of the current step that is done; shown once per second.

        Strategies that run in parallel are one step, of which none knows the fraction.
        """
        if threading.get_ident() != self._thread:
            return
        self._inside = fraction
        if self._clock() - self._last >= 1:
            self.say(self._message)

    def fraction(self) -> float:
        """Fraction of the work that is done."""
        now = self._clock()
        kind, began = self._now or ("", now)
        current = now - began
        if self._inside > 0:
            current /= self._inside
        took = {name: sum(times) / len(times) for name, times in self._took.items()}
        weights = sum(len(times) * self._weight_of(name) for name, times in self._took.items())
        total = sum(map(sum, self._took.values()))
        if self._inside > 0 and kind not in took:
            weights, total = weights + self._weight_of(kind), total + current
        if total <= 0:
            return self._reached  # nothing measured yet
        unit = total / weights
        if kind and (self._inside > 0 or current > took.get(kind, unit * self._weight_of(kind))):
            took[kind] = current  # it takes longer than those before, or this is known better
        left = sum(
            steps * took.get(name, unit * self._weight_of(name))
            for name, steps in self._ahead.items()
        )
        if kind:
            left += took.get(kind, unit * self._weight_of(kind)) - (now - began)
        spent = max(now - self._start, 1e-9)
        self._reached = max(self._reached, min(spent / (spent + max(left, 0.0)), 0.99))
        return self._reached

    def _weight_of(self, kind: str) -> float:
        return self._weight.get(kind, 1.0)


class SelectionCheckpoint:
    """Panels that need not be proposed again when an interrupted selection resumes."""

    def __init__(self, checkpoint: Checkpoint, facts: dict[str, Any], d: int) -> None:
        self.checkpoint = checkpoint
        checkpoint.begin(facts)
        found = checkpoint.load("choices")
        self.panels: dict[str, list[int]] = {} if found is None else found[0]
        with checkpoint.reading("choices"):
            if reason := misfit(self.panels, {str: [int]}, "panels"):
                raise ValueError(reason)
            for name, panel in self.panels.items():
                if not panel or len({j for j in panel if 0 <= j < d}) < len(panel):
                    raise ValueError(f"{name!r} is not a panel of {d} features")

    def recall(self, strategy: str, fold: Fold) -> Columns | None:
        """The panel that a strategy proposed on a fold before the interruption, if any."""
        found = self.panels.get(_key(strategy, fold))
        return None if found is None else np.array(found, dtype=np.int64)

    def record(self, strategy: str, fold: Fold, panel: Columns) -> None:
        """Save the panel that a strategy proposed on a fold."""
        self.panels[_key(strategy, fold)] = panel.tolist()
        self.checkpoint.save("choices", self.panels, {})

    def for_training(self, strategy: str, fold: Fold) -> Checkpoint:
        """Where a strategy that trains on a fold saves its state."""
        return self.checkpoint.part(f"{strategy}-{'all' if fold.number is None else fold.number}")


def _key(strategy: str, fold: Fold) -> str:
    return f"{strategy}, {'all rows' if fold.number is None else f'fold {fold.number}'}"


@dataclass(frozen=True, eq=False, kw_only=True)
class SelectionContext:
    """Everything that stays constant during one call to `fewer.select`."""

    source: Source  # in the units of the data
    constraints: Constraints
    config: TrainingConfig  # its k is the number of selector nodes
    covariances: FoldCovariances
    validation: Validation
    row_groups: NDArray | None  # rows with the same label are held out together
    target: TargetData | None  # what panels predict, if not the other features
    reconstruct: float  # how much reconstructing the features counts beside the target, below 1
    strategies: Any  # "auto", or the names of those that may propose panels
    device: torch.device  # supports float64
    seed: int
    protocol: str  # how rows are held out and features scaled, in words
    budget: TimeBudget
    checkpoint: SelectionCheckpoint | None
    plan: WorkPlan  # how far the call is
    robust_to: int = 0  # features that may be missing
    expect_missing: float = 0.0  # fraction of inputs of a network that will be missing
    loss: str = "mse"  # what decoders minimise
    size: dict[str, Any] | None = None  # how k was chosen, unless it was given
    chooses_predictor: bool = False  # whether held-out rows choose the predictor of the target
    # panels proposed so far, by strategy and fold number (None is all rows)
    found: dict[tuple[str, int | None], Columns] = field(default_factory=dict)
    history: dict[str, list[dict[str, Any]]] = field(default_factory=dict)  # by strategy
    # covariance of features and target, by fold number
    joint: dict[int | None, Matrix] = field(default_factory=dict)
    # covariance of features with the target, and of weighted features, by fold number
    products: dict[int | None, tuple[Tensor, Tensor | None]] = field(default_factory=dict)
    reading: threading.Lock = field(default_factory=threading.Lock)  # rows that several need
    # what a panel can explain of each class, by fold number
    told: dict[int | None, Tensor] = field(default_factory=dict)
    # training rows, by fold number and device
    prepared: dict[tuple[int | None, str], TrainingData] = field(default_factory=dict)

    @property
    def search_device(self) -> torch.device:
        """Where panels are searched: a GPU starts the short steps of small problems too slowly."""
        small = self.source.shape[1] <= SMALL_SEARCH
        return torch.device("cpu") if small else self.device

    @property
    def many_rows(self) -> bool:
        """Whether rows are so many that strategies of a linear decoder are compared on one fold.

        The winner is then chosen again on the others, by a short search, for its score.
        """
        enough = self.source.shape[0] >= ROWS_PER_FEATURE * self.config.k
        linear = self.config.linear and self.target is None
        return linear and enough and isinstance(self.validation, (int, float))

    @property
    def compared_folds(self) -> list[Fold]:
        """The folds on which strategies are compared."""
        folds = self.covariances.folds
        return folds[:1] if self.many_rows else folds

    @property
    def short_search(self) -> bool:
        """Whether the steps of a search are so short that Python takes most of the time."""
        return self.config.k * self.source.shape[1] < SHORT_SEARCH

    def groups_of(self, rows: Columns) -> NDArray | None:
        """Group labels of some rows."""
        return None if self.row_groups is None else self.row_groups[rows]

    def training_data(
        self, fold: Fold, rows: Columns, config: TrainingConfig, loss: Loss, seed: int
    ) -> TrainingData:
        """Rows of a fold, and their target, if any, prepared for training.

        The training rows of a fold are kept where they take little memory: several trainings use
        them, and differ only in ``config`` and ``loss``.
        """
        key, d = (fold.number, str(pick_device(config.device))), self.source.shape[1]
        own = np.array_equal(rows, fold.train_rows)
        few = 4 * len(rows) * d * len(self.covariances.folds) <= PREPARED_BYTES
        keeps = own and few and config.validation_fraction == self.config.validation_fraction
        keeps = keeps and loss.link != "exp"  # of which the loss depends on the rows
        if keeps and key in self.prepared:
            return replace(self.prepared[key], config=config, loss=loss, given_loss=loss)
        part, target = fold.rows(rows), self.target
        data = prepare(
            part,
            fold.moments(self.device) if own else moments(part, self.device),
            config,
            loss,
            seed,
            targets=None if target is None else target.in_units_of(rows),
            out=None if target is None else target.outputs,
            groups=self.groups_of(rows),
            weights=None if target is None else target.weights_of(rows),
        )
        if keeps:
            self.prepared[key] = data
        return data

    def split(self, seed: int) -> Splits:
        """The splits for another seed."""
        return split_rows(self.source.shape[0], self.validation, seed, self.row_groups)
