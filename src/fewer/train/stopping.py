"""When to stop, and what to keep."""

import copy
from typing import Any

import torch
from torch import nn

__all__ = ["KeepBest"]


class KeepBest:
    """Remember the network's state at the lowest loss seen, and how long ago that was.

    Examples
    --------
    >>> network = torch.nn.Linear(1, 1)
    >>> best = KeepBest(patience=2)
    >>> [best.seen(loss, network) for loss in (3.0, 1.0, 2.0, 2.0)]
    [False, False, False, True]
    >>> best.loss
    1.0
    """

    def __init__(self, patience: int | None = None) -> None:
        self.patience = patience
        self.loss = float("inf")
        self.since = 0
        self.state: dict[str, Any] | None = None

    def seen(self, loss: float, network: nn.Module, *, counts: bool = True) -> bool:
        """Take note of an epoch's loss; True when patience has run out."""
        if loss < self.loss:
            self.loss, self.since = loss, 0
            self.state = copy.deepcopy(network.state_dict())
        elif counts:
            self.since += 1
        return self.patience is not None and self.since >= self.patience

    @torch.no_grad()
    def restore(self, network: nn.Module) -> None:
        """Put the best state back."""
        if self.state is not None:
            network.load_state_dict(self.state)
