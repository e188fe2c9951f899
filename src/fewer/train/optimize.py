"""Optimizer, learning rate decay and best state of training loops."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.adam import adam

__all__ = ["Adam", "CosineDecay", "KeepBest"]


class Adam:
    """Adam with betas 0.9 and 0.999, as in the paper, for groups with separate learning rates.

    With few parameters, `torch.optim.Adam` spends more time in hooks than in arithmetic; this
    calls the same fused kernel directly. The learning rates are in ``rates``.
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
        """All parameters."""
        return [parameter for group in self.groups for parameter in group["params"]]

    def zero_grad(self) -> None:
        """Clear the gradients of the last step."""
        for group in self.groups:
            for parameter in group["params"]:
                parameter.grad = None

    @torch.no_grad()
    def step(self, rates: Sequence[Tensor] | None = None) -> None:
        """Update all parameters with a gradient; a CUDA graph needs ``rates`` on the GPU."""
        all_rates: Sequence[float | Tensor] = self.rates if rates is None else rates
        for group, rate in zip(self.groups, all_rates, strict=True):
            grads = [parameter.grad for parameter in group["params"]]
            used = [at for at, grad in enumerate(grads) if grad is not None]
            if not used:
                continue
            state: dict[str, Any] = group
            if len(used) < len(grads):  # the loss may not depend on all parameters
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
    """Half a cosine from ``start`` to 0 between two epochs; the last is earlier after a stall.

    A loss that has stalled at a high rate falls again when the rate does, so training does not
    stop after a stall, but the decay is shortened.
    """

    first: int
    last: int
    start: float = 1.0

    @property
    def shortened(self) -> bool:
        """Whether training has stalled."""
        return self.first > 0

    def factor(self, epoch: int, spent: float = 0.0) -> float:
        """Factor of the initial rate in an epoch, with a fraction of the time ``spent``."""
        done = (epoch - 1 - self.first) / max(1, self.last - self.first)
        return min(self.start * _fall(done), _fall(spent))

    def shorten(self, epoch: int, left: int) -> None:
        """End ``left`` epochs after this one, if that is earlier."""
        start = self.factor(epoch + 1)
        self.first, self.last, self.start = epoch, min(self.last, epoch + left), start


def _fall(done: float) -> float:
    return (1 + math.cos(math.pi * min(1.0, max(0.0, done)))) / 2


@dataclass
class KeepBest:
    """The state of a network at its lowest loss, and how many epochs ago that was."""

    patience: int | None = None
    loss: float = math.inf
    since: int = 0
    state: dict[str, Any] | None = None

    def seen(self, loss: float, network: nn.Module, *, counts: bool = True) -> bool:
        """Record the loss of an epoch; True when patience has run out."""
        if loss < self.loss:
            self.loss, self.since = loss, 0
            self.state = {name: part.clone() for name, part in network.state_dict().items()}
        elif counts:
            self.since += 1
        return self.patience is not None and self.since >= self.patience

    @torch.no_grad()
    def restore(self, network: nn.Module) -> None:
        """Restore the best state."""
        if self.state is not None:
            network.load_state_dict(self.state)
