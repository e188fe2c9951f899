"""Fast training steps on a GPU; the plain PyTorch step is the reference and the fallback."""

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor, nn

from fewer.cuda.graphs import (
    GraphedEpochs,
    Optimizer,
    PaddedLinear,
    RecordedStep,
    can_be_recorded,
    padded,
    unpadded,
)
from fewer.cuda.linear import CompiledEpochs
from fewer.data.batches import Batch, Batches
from fewer.nn import ConcreteNetwork, Loss
from fewer.nn.concrete import linear_parts

__all__ = ["Epochs", "PaddedLinear", "RecordedStep", "fast_epochs", "padded", "unpadded"]

SMALLEST = 2**14  # k x d: below it, compiling takes longer than training


class Epochs(Protocol):
    """Epochs with a fast training step."""

    def epoch(self, order: list[Tensor], temperatures: list[float] | None = None) -> float:
        """Train on these batches of row numbers, each at its temperature; the mean loss."""


def fast_epochs(
    network: nn.Module,
    batches: Batches,
    optimizer: Optimizer,
    loss: Loss,
    *,
    batch_size: int,
    precision: str = "float32",
    backward: Callable[[Batch], Tensor] | None = None,
    penalty: Callable[[], Tensor] | None = None,
) -> Epochs | None:
    """The fastest way to train this network; None if only the plain step works.

    The step of a linear concrete autoencoder with squared error is compiled if it is large; the
    plain step of any other network (``backward`` and the optimizer's) is recorded if its layers
    allow that.
    """
    if batches.device.type != "cuda":
        return None
    temperature = None
    if isinstance(network, ConcreteNetwork):
        parts, rows = linear_parts(network, loss), batches.resident
        if (
            penalty is None
            and parts is not None
            and rows is not None
            and len(parts[0].weight)
            and parts[0].k * parts[0].d >= SMALLEST
            and torch.cuda.get_device_capability(batches.device) >= (8, 0)
        ):
            return CompiledEpochs(
                *parts, rows, optimizer, batch_size=batch_size, precision=precision
            )
        temperature = network.selector.get_buffer("_temperature")
    held = batches.tensors
    if (
        backward is None
        or held is None
        or loss.name.startswith("your")
        or not can_be_recorded(network)
    ):
        return None
    return GraphedEpochs(network, backward, *held, optimizer, temperature)
