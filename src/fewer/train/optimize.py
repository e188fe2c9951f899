"""What every training loop needs: the optimizer, its learning rate, and the best state so far."""

import copy
import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.adam import adam

__all__ = ["Adam", "CosineDecay", "KeepBest"]


class Adam:
    """Adam with betas 0.9 and 0.999, as in the paper, over groups with their own learning rates.

    `torch.optim.Adam` spends more time in Python hooks than in arithmetic when parameters are few;
    this calls the same fused kernel directly.

    Parameters
    ----------
    *groups : tuples (parameters, learning rate)
        Change a rate through ``rates[i]``.
    """

    def __init__(self, *groups: tuple[Iterable[Tensor], float]) -> None:
        self.groups: list[dict[str, Any]] = []
        self.rates: list[float] = []
        for parameters, rate in groups:
            params = list(parameters)
            self.groups.append(
                {
                    "params": params,
                    "exp_avgs": [torch.zeros_like(p) for p in params],
                    "exp_avg_sqs": [torch.zeros_like(p) for p in params],
                    "max_exp_avg_sqs": [],
                    "state_steps": [torch.zeros((), device=p.device) for p in params],
                }
            )
            self.rates.append(rate)

    @property
    def parameters(self) -> list[Tensor]:
        """Everything that it moves."""
        return [parameter for group in self.groups for parameter in group["params"]]

    def zero_grad(self) -> None:
        """Forget the gradients of the last step."""
        for group in self.groups:
            for parameter in group["params"]:
                parameter.grad = None

    @torch.no_grad()
    def step(self, rates: Sequence[Tensor] | None = None) -> None:
        """Move all parameters that have a gradient.

        ``rates`` replaces the learning rates by numbers that are read on the GPU, which a
        recorded graph of steps needs.
        """
        used: Sequence[float | Tensor] = self.rates if rates is None else rates
        for group, rate in zip(self.groups, used, strict=True):
            state, grads = _with_gradient(group)
            if not grads:
                continue
            fused = grads[0].device.type in ("cpu", "cuda")
            adam(
                **state,
                grads=grads,
                fused=fused,
                amsgrad=False,
                beta1=0.9,
                beta2=0.999,
                lr=rate,
                weight_decay=0.0,
                eps=1e-8,
                maximize=False,
            )


def _with_gradient(group: dict[str, Any]) -> tuple[dict[str, Any], list[Tensor]]:
    grads = [p.grad for p in group["params"]]
    used = [at for at, grad in enumerate(grads) if grad is not None]
    if len(used) < len(grads):  # a decoder may have parameters that this loss does not reach
        group = {name: [parts[at] for at in used] if parts else [] for name, parts in group.items()}
    return group, [grads[at] for at in used]


class CosineDecay:
    """Half a cosine from 1 to 0 over all epochs, or over fewer once the loss has stalled.

    A loss that stands still at a high rate falls once more when the rate does. So training that
    has stalled is not stopped but brought to its end.
    """

    def __init__(self, epochs: int) -> None:
        self.first, self.last = 0, epochs
        self.start = 1.0

    @property
    def shortened(self) -> bool:
        """Whether the end was brought forward."""
        return self.first > 0

    def factor(self, epoch: int, spent: float = 0.0) -> float:
        """Factor on the first rate in an epoch, after a fraction of the time was ``spent``."""
        done = (epoch - 1 - self.first) / max(1, self.last - self.first)
        return min(self.start * _fall(done), _fall(spent))

    def shorten(self, epoch: int, left: int) -> None:
        """After this epoch, end in so many more, or where it would have ended anyway."""
        start = self.factor(epoch + 1)
        self.first, self.last, self.start = epoch, min(self.last, epoch + left), start

    def state(self) -> list[float]:
        """What `restore` takes."""
        return [self.first, self.last, self.start]

    def restore(self, state: list[float]) -> None:
        """Go on as from another's `state`."""
        self.first, self.last, self.start = int(state[0]), int(state[1]), state[2]


def _fall(done: float) -> float:
    return (1 + math.cos(math.pi * min(1.0, max(0.0, done)))) / 2


class KeepBest:
    """Remember the network's state at the lowest loss seen, and how long ago that was."""

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
