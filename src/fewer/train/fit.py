"""What training leaves behind, whichever solver did it."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from fewer.nn import MeasuredDecoder

__all__ = ["Fit"]


@dataclass(frozen=True)
class Fit:
    """What training leaves: the choice, the decoder for it, and how it got there."""

    features: np.ndarray  # of each node, all distinct
    columns: np.ndarray  # what is measured, ascending: these features and their groups
    logits: Tensor  # k x d
    decoder: MeasuredDecoder  # takes measured values in ascending column order
    history: list[dict[str, Any]]
    refit_history: list[dict[str, Any]]
    converged: bool
    conflicts: int  # nodes that wanted a feature which another node got
