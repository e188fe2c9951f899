"""Candidates, and what any comparison of them has to do."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fewer.candidates.clock import Clock
from fewer.candidates.strategies import Choose
from fewer.constraints import Constraints
from fewer.data import Source
from fewer.nn import MeasuredDecoder
from fewer.train.folds import ScaledFold

__all__ = ["Candidate", "Comparison", "Rows", "price", "repeat_close"]

CLOSE = 1.01  # candidates within this ratio of the best are measured again
REPEATS = 2

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


def price(panels: Sequence[NDArray[np.int64]], constraints: Constraints) -> float:
    """What the costs of panels add to their error, where they have weight."""
    return float(np.mean([constraints.price(panel) for panel in panels])) / constraints.d
