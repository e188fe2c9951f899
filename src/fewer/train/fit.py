"""What training leaves behind, whichever solver did it."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from fewer.nn import MeasuredDecoder

__all__ = ["Fit"]


@dataclass(frozen=True)
class Fit:
    """What training leaves: the choice, the decoder for it, and how it got there.

    Examples
    --------
    >>> import numpy as np
    >>> from fewer.constraints import resolve
    >>> from fewer.data import moments
    >>> from fewer.data.source import array_source
    >>> from fewer.train import TrainingConfig, fit_covariance
    >>> source = array_source(np.random.default_rng(0).normal(size=(200, 3)) * [1, 5, 3])
    >>> settings = TrainingConfig(k=2)
    >>> any_two = resolve(None, 3, 2)
    >>> fit = fit_covariance(source, moments(source), settings, seed=0, constraints=any_two)
    >>> fit.columns, fit.converged
    (array([1, 2]), True)
    """

    features: np.ndarray  # of each node, all distinct
    columns: np.ndarray  # what is measured, ascending: these features and their groups
    logits: Tensor  # k x d
    decoder: MeasuredDecoder  # takes measured values in ascending column order
    history: list[dict[str, Any]]
    refit_history: list[dict[str, Any]]
    converged: bool
    conflicts: int  # nodes that wanted a feature which another node got
