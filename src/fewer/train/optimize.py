"""What every training loop needs: the optimizer, its learning rate, and the best state so far."""

import copy
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.adam import adam

__all__ = ["Adam", "CosineDecay", "KeepBest"]


class Adam:
    """Adam with betas 0.9 and 0.999, as in the paper, over groups with their own learning rates.

    `torch.optim.Adam` spends more time in Python hooks than in arithmetic when parameters are few;
    this calls the same fused kernel directly. Change a rate through ``rates[i]``.
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
        """Move all parameters that have a gradient; ``rates`` on the GPU suit a recorded graph."""
        all_rates: Sequence[float | Tensor] = self.rates if rates is None else rates
        for group, rate in zip(self.groups, all_rates, strict=True):
            grads = [parameter.grad for parameter in group["params"]]
            used = [at for at, grad in enumerate(grads) if grad is not None]
            if not used:
                continue
            state: dict[str, Any] = group
            if len(used) < len(grads):  # a decoder may have parameters that this loss misses
                state = {name: [parts[at] for at in used if parts] for name, parts in group.items()}
            adam(
                **state,
                grads=[grads[at] for at in used],
                fused=grads[used[0]].device.type in ("cpu", "cuda"),
                amsgrad=False,
                beta1=0.9,
                beta2=0.999,
                lr=rate,
                weight_decay=0.0,
                eps=1e-8,
                maximize=False,
            )


@dataclass
class CosineDecay:
    """Half a cosine from ``start`` to 0 between two epochs, which end sooner after a stall.

    A loss that has stalled at a high rate falls once more when the rate does. So training that
    has stalled is not stopped but brought to its end.
    """

    first: int
    last: int
    start: float = 1.0

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


def _fall(done: float) -> float:
    return (1 + math.cos(math.pi * min(1.0, max(0.0, done)))) / 2


@dataclass
class KeepBest:
    """Remember the network's state at the lowest loss seen, and how long ago that was."""

    patience: int | None = None
    loss: float = math.inf
    since: int = 0
    state: dict[str, Any] | None = None

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
