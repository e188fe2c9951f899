"""What the strategies of an unfinished selection have chosen so far, on disk."""

import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fewer.train import Checkpoint
from fewer.train.folds import ScaledFold

__all__ = ["KeptChoices"]


class KeptChoices:
    """Choices that need not be made again when a selection goes on after a crash.

    Parameters
    ----------
    checkpoint : Checkpoint
        Where to keep them.
    facts : dict
        All that decides the result, by which another selection is told apart.
    """

    def __init__(self, checkpoint: Checkpoint, facts: dict[str, Any]) -> None:
        self.checkpoint = checkpoint
        checkpoint.begin(facts)
        found = checkpoint.load("choices")
        self.choices: dict[str, list[int]] = {} if found is None else found[0]

    def recall(self, name: str, fold: ScaledFold, seed: int) -> NDArray[np.int64] | None:
        """What a strategy chose on a fold before; None if it has not got there."""
        found = self.choices.get(_key(name, fold, seed))
        return None if found is None else np.array(found, dtype=np.int64)

    def note(self, name: str, fold: ScaledFold, seed: int, columns: NDArray[np.int64]) -> None:
        """Keep what a strategy chose."""
        self.choices[_key(name, fold, seed)] = columns.tolist()
        self.checkpoint.save("choices", self.choices, {})

    def training(self, name: str, fold: ScaledFold) -> Checkpoint:
        """Where a strategy that trains on a fold keeps its state."""
        return self.checkpoint.part(f"{name}-{_number(fold):08x}")

    def finish(self) -> None:
        """Forget everything: the selection is done."""
        self.checkpoint.finish()


def _key(name: str, fold: ScaledFold, seed: int) -> str:
    return f"{name}, rows {_number(fold):08x}, seed {seed}"


def _number(fold: ScaledFold) -> int:
    """Which training rows a fold has, as one number."""
    return zlib.crc32(np.ascontiguousarray(fold.train_index).tobytes())
