"""Optimizer, learning rate decay and best state of training loops."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.adam import adam

__all__ = ["Adam", "CosineDecay", "KeepBest", "KeepBestMembers"]

SETTINGS: dict[str, Any] = {
    "beta1": 0.9,
    "beta2": 0.999,
    "eps": 1e-8,
    "weight_decay": 0.0,
    "amsgrad": False,
    "maximize": False,
}


class Adam:
    """Adam with betas 0.9 and 0.999, as in the paper, for groups with separate learning rates.

    With few parameters, `torch.optim.Adam` spends more time in hooks than in arithmetic; this
    calls the same fused kernel directly. The learning rates are in ``rates``.
    """

    def __init__(self, *groups: tuple[Iterable[Tensor], float]) -> None:
        self.groups: list[dict[str, Any]] = []
        self.rates: list[float] = []
        self.shares: Tensor | None = None  # of a step that each member of a stack moves
        for parameters, rate in groups:
            params = list(parameters)
            self.groups.append(
                {
                    "params": params,
                    "exp_avgs": [torch.zeros_like(p) for p in params],
                    "exp_avg_sqs": [torch.zeros_like(p) for p in params],
                    "max_exp_avg_sqs": [],
                    "state_steps": [
                        torch.zeros((), dtype=torch.float32, device=p.device) for p in params
                    ],
                }
            )
            self.rates.append(rate)

    @property
    def parameters(self) -> list[Tensor]:
        """All parameters."""
        return [parameter for group in self.groups for parameter in group["params"]]

    def set_shares(self, rates: Sequence[float]) -> None:
        """Let each member of a stack move at its own rate; ``self.rates`` are for the highest."""
        found = torch.tensor(rates) / max(rates)
        if self.shares is None:
            self.shares = found.to(self.parameters[0].device)
        else:
            self.shares.copy_(found)  # in place, for CUDA graphs

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
            grads, state = [parameter.grad for parameter in group["params"]], group
            if any(grad is None for grad in grads):  # the loss may not depend on all parameters
                used = [at for at, grad in enumerate(grads) if grad is not None]
                state = {name: [parts[at] for at in used if parts] for name, parts in group.items()}
                grads = [grads[at] for at in used]
            if not grads:
                continue
            before = [] if self.shares is None else [part.clone() for part in state["params"]]
            _move(state, grads, rate)
            for part, old in zip(state["params"], before, strict=False):
                assert self.shares is not None
                part.copy_(torch.lerp(old, part, _for_members(self.shares, part)))


def _move(state: dict[str, Any], grads: list[Any], rate: float | Tensor) -> None:
    """One step of Adam, by the fused kernel where there is one."""
    first = state["params"][0]
    if first.is_cpu and all(part.dtype == first.dtype for part in state["params"]):
        # what `adam` does here, without its checks, which take longer than few parameters
        torch._foreach_add_(state["state_steps"], 1)
        torch._fused_adam_(
            state["params"],
            grads,
            state["exp_avgs"],
            state["exp_avg_sqs"],
            state["max_exp_avg_sqs"],
            state["state_steps"],
            lr=rate,
            **SETTINGS,
        )
    else:
        adam(**state, grads=grads, fused=first.device.type in ("cpu", "cuda"), lr=rate, **SETTINGS)


@dataclass
class CosineDecay:
    """Half a cosine from ``start`` to 0 between two epochs; the last is earlier after a stall.

    The rate rises in the first ``warm_up`` epochs.

    A loss that has stalled at a high rate falls again when the rate does, so training does not
    stop after a stall, but the decay is shortened.
    """

    first: int
    last: int
    start: float = 1.0
    warm_up: int = 0

    @property
    def shortened(self) -> bool:
        """Whether training has stalled."""
        return self.first > 0

    def factor(self, epoch: int, spent: float = 0.0) -> float:
        """Factor of the highest rate in an epoch, with a fraction of the time ``spent``."""
        if epoch <= self.warm_up and not self.shortened:
            return min((epoch - 0.5) / self.warm_up, _fall(spent))
        first = max(self.first, self.warm_up)
        done = (epoch - 1 - first) / max(1, self.last - first)
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
            self._keep(network.state_dict())
        elif counts:
            self.since += 1
        return self.patience is not None and self.since >= self.patience

    @torch.no_grad()
    def restore(self, network: nn.Module) -> None:
        """Restore the best state."""
        if self.state is not None:
            network.load_state_dict(self.state)

    @torch.no_grad()
    def _keep(self, state: dict[str, Tensor], members: Tensor | None = None) -> None:
        """Copy a state, or the part of it that belongs to some members."""
        if self.state is None:
            self.state = {name: part.clone() for name, part in state.items()}
            return
        for name, part in self.state.items():
            new = state[name]
            if members is not None:
                new = torch.where(_for_members(members, part), new, part)
            part.copy_(new)


def _for_members(values: Tensor, part: Tensor) -> Tensor:
    """One value for each member of a stack, to be used with a tensor of all members."""
    return values.to(part.device).view(-1, *[1] * (part.ndim - 1))


@dataclass
class KeepBestMembers(KeepBest):
    """The best state of every member of a `DecoderStack`, and how long ago each was seen."""

    lowest: Tensor | None = None
    epochs: list[int] = field(default_factory=list)  # of the lowest loss of each member
    stalls: list[int] = field(default_factory=list)  # epochs since then

    def seen_members(self, losses: Tensor, network: nn.Module, epochs: Sequence[int]) -> list[bool]:
        """Record the losses of an epoch; True for members whose patience has run out."""
        if self.lowest is None:
            self.lowest = torch.full_like(losses, self.loss)
            self.epochs, self.stalls = list(epochs), [self.since] * len(losses)
        better = losses < self.lowest
        if bool(better.any()):
            self._keep(network.state_dict(), None if bool(better.all()) else better)
        self.lowest = torch.minimum(losses, self.lowest)
        for at, now in enumerate(better.tolist()):
            self.epochs[at] = epochs[at] if now else self.epochs[at]
            self.stalls[at] = 0 if now else self.stalls[at] + 1
        self.loss, self.since = float(self.lowest.mean()), min(self.stalls)
        return [self.patience is not None and stall >= self.patience for stall in self.stalls]

    @torch.no_grad()
    def restore_members(self, network: nn.Module, members: Sequence[bool]) -> None:
        """Restore the best state of some members."""
        if self.state is None or all(members):
            self.restore(network)
            return
        chosen = torch.tensor(members)
        for name, part in network.state_dict().items():
            part.copy_(torch.where(_for_members(chosen, part), self.state[name], part))
