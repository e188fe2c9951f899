"""What the steps of a selection share: the data, the folds, the constraints and the time."""

import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fewer import distributed
from fewer.constraints import Constraints
from fewer.data.source import Source
from fewer.selection.target import TargetData
from fewer.train import Checkpoint, TrainingConfig
from fewer.validation import Fold, FoldCovariances, Splits, split_rows

__all__ = ["SelectionCheckpoint", "SelectionContext", "TimeBudget"]

LEAST_SECONDS = 0.05  # what starts too late still gets this much

Columns = NDArray[np.int64]


class TimeBudget:
    """Seconds of a call, counted against its limit.

    Attributes
    ----------
    limit : float or None
        Seconds for the whole call.
    reserve : float
        Seconds before the limit that are kept for what has to follow.
    """

    def __init__(self, limit: float | None) -> None:
        self.limit = limit
        self.reserve = 0.0
        self.start = time.perf_counter()
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
        """Whether the slot has ended, by the clock of this process."""
        return self.limit is not None and self.seconds > self._slot_end

    def remaining(self) -> float | None:
        """Seconds left in the slot, never quite none; None without a limit."""
        return None if self.limit is None else max(LEAST_SECONDS, self._slot_end - self.seconds)

    def per_training(self, trainings: int) -> float | None:
        """Seconds for each of so many trainings: the same for all, or the first would win."""
        if self._per_training is None and self.limit is not None:
            self._per_training = max(LEAST_SECONDS, (self.limit - self.seconds) / trainings)
        return self._per_training


class SelectionCheckpoint:
    """Panels that need not be proposed again when an interrupted selection resumes.

    Parameters
    ----------
    checkpoint : Checkpoint
        The folder.
    facts : dict
        All that decides the result, by which another selection is told apart.
    """

    def __init__(self, checkpoint: Checkpoint, facts: dict[str, Any]) -> None:
        self.checkpoint = checkpoint
        checkpoint.begin(facts)
        found = checkpoint.load("choices")
        self.panels: dict[str, list[int]] = {} if found is None else found[0]

    def recall(self, strategy: str, fold: Fold) -> Columns | None:
        """The panel that a strategy proposed on a fold before; None if it has not."""
        found = self.panels.get(_key(strategy, fold))
        return None if found is None else np.array(found, dtype=np.int64)

    def record(self, strategy: str, fold: Fold, panel: Columns) -> None:
        """Keep the panel that a strategy proposed on a fold."""
        self.panels[_key(strategy, fold)] = panel.tolist()
        self.checkpoint.save("choices", self.panels, {})

    def for_training(self, strategy: str, fold: Fold) -> Checkpoint:
        """Where a strategy that trains on a fold keeps its state."""
        return self.checkpoint.part(f"{strategy}-{'all' if fold.number is None else fold.number}")

    def finish(self) -> None:
        """Delete everything: the selection is done."""
        self.checkpoint.finish()


def _key(strategy: str, fold: Fold) -> str:
    return f"{strategy}, {'all rows' if fold.number is None else f'fold {fold.number}'}"


def labels_digest(labels: NDArray | None) -> int | None:
    """A number by which row labels are told apart; None without any."""
    if labels is None:
        return None
    return zlib.crc32(np.unique(labels, return_inverse=True)[1].astype(np.int64).tobytes())


@dataclass(frozen=True, eq=False)
class SelectionContext:
    """Everything that stays the same during one call of `fewer.select`.

    Attributes
    ----------
    source : Source
        The rows, in the units of the data.
    constraints : Constraints
        What every panel obeys.
    config : TrainingConfig
        Decoder and training; ``config.k`` is the number of selector nodes.
    covariances : FoldCovariances
        Of every fold.
    validation : int, float or "time"
        How rows are held out.
    row_groups : array or None
        Rows with the same label are held out together.
    target : TargetData or None
        What panels are to predict, if not the other features.
    strategies : "auto" or list of str
        Which strategies may propose panels.
    device : torch.device
        Where to search: one that has float64.
    seed : int
        Fixes the result.
    budget : TimeBudget
        The time limit.
    checkpoint : SelectionCheckpoint or None
        Where panels are kept until the call is done.
    report_progress : callable
        Takes a text, and the fraction of the work that is done or None.
    found : dict
        Panels proposed so far, by strategy and fold number (None is all rows).
    history : dict
        Training history of each strategy that learns.
    """

    source: Source
    constraints: Constraints
    config: TrainingConfig
    covariances: FoldCovariances
    validation: int | float | str
    row_groups: NDArray | None
    target: TargetData | None
    strategies: Any
    device: torch.device
    seed: int
    budget: TimeBudget
    checkpoint: SelectionCheckpoint | None
    report_progress: Callable[[str, float | None], None]
    found: dict[tuple[str, int | None], Columns] = field(default_factory=dict)
    history: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    def groups_of(self, rows: Columns) -> NDArray | None:
        """Group labels of some rows."""
        return None if self.row_groups is None else self.row_groups[rows]

    def split(self, seed: int) -> Splits:
        """The rows, divided as ``validation`` asks."""
        return split_rows(self.source.shape[0], self.validation, seed, self.row_groups)

    def train_source(self, fold: Fold) -> Source:
        """Training rows of a fold in scaled units."""
        return fold.rows(fold.train_rows)

    def held_source(self, fold: Fold) -> Source:
        """Held-out rows of a fold in scaled units."""
        return fold.rows(fold.held_rows)
