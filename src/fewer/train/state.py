"""All that an epoch leaves for the next one, as tensors and JSON, and back."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from fewer.nn.concrete import gumbel_noise
from fewer.nn.philox import CountedGumbel
from fewer.train.adam import Adam
from fewer.train.checkpoint import Checkpoint, State, flat_state, taken_state
from fewer.train.stopping import KeepBest

__all__ = ["SharedGumbel", "Training"]

MOMENTS = ("exp_avgs", "exp_avg_sqs", "state_steps")


@dataclass
class Training:
    """A network in training, with everything that the next epoch depends on.

    Parameters
    ----------
    network, optimizer, best : nn.Module, Adam, KeepBest
        What is trained.
    generator : torch.Generator
        Of the order of rows.
    noise : CountedGumbel or SharedGumbel, default=None
        Of the selector, where that is not torch's own.
    history : list of dict
        A row an epoch.
    """

    network: nn.Module
    optimizer: Adam
    best: KeepBest
    generator: torch.Generator
    device: torch.device
    noise: "CountedGumbel | SharedGumbel | None" = None
    history: list[dict[str, Any]] = field(default_factory=list)

    def save(self, kept: Checkpoint, name: str, **notes: Any) -> None:
        """Keep the state as it is after an epoch."""
        tensors = flat_state("network", self.network.state_dict())
        tensors |= {"order": self.generator.get_state(), "random": torch.get_rng_state()}
        if self.device.type == "cuda":
            tensors["cuda"] = torch.cuda.get_rng_state(self.device)
        if isinstance(self.noise, SharedGumbel):
            tensors["noise"] = self.noise.get_state()
        if self.best.state is not None:
            tensors |= flat_state("best", self.best.state)
        for at, group in enumerate(self.optimizer.groups):
            for moment in MOMENTS:
                parts = {str(i): part for i, part in enumerate(group[moment])}
                tensors |= flat_state(f"adam.{at}.{moment}", parts)
        notes |= {
            "history": self.history,
            "best": [self.best.loss, self.best.since],
            "rates": self.optimizer.rates,
            "noise": self.noise.step if isinstance(self.noise, CountedGumbel) else None,
        }
        kept.save(name, notes, tensors)

    @torch.no_grad()
    def restore(self, state: State) -> None:
        """Put everything back as it was when `save` was called."""
        notes, tensors = state
        self.network.load_state_dict(taken_state("network", tensors))
        self.generator.set_state(tensors["order"])
        # several processes have a generator for the noise; one takes it from torch's own
        random = tensors.get("noise", tensors["random"])
        torch.set_rng_state(random)
        if isinstance(self.noise, SharedGumbel):
            self.noise.set_state(random)
        if "cuda" in tensors and self.device.type == "cuda":
            torch.cuda.set_rng_state(tensors["cuda"], self.device)
        if isinstance(self.noise, CountedGumbel):
            self.noise.step = notes["noise"]
        for at, group in enumerate(self.optimizer.groups):
            for moment in MOMENTS:
                stored = taken_state(f"adam.{at}.{moment}", tensors)
                for i, part in enumerate(group[moment]):
                    part.copy_(stored[str(i)])
        self.optimizer.rates[:] = notes["rates"]
        self.best.loss, self.best.since = notes["best"]
        best = taken_state("best", tensors)
        self.best.state = {name: part.to(self.device) for name, part in best.items()} or None
        self.history[:] = notes["history"]


class SharedGumbel(torch.Generator):
    """Noise that is the same in all processes, whatever else each of them draws.

    It goes on from the state of torch's own generator, so that it is the noise of one process.

    Examples
    --------
    >>> _ = torch.manual_seed(0)
    >>> noise = SharedGumbel()
    >>> torch.equal(noise(torch.zeros(3)), gumbel_noise(torch.zeros(3)))
    True
    """

    def __init__(self) -> None:
        self.set_state(torch.get_rng_state())

    def __call__(self, like: torch.Tensor) -> torch.Tensor:
        """Noise in the shape, dtype and device of ``like``."""
        return gumbel_noise(like, self)
