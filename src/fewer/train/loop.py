"""One epoch of training and one of evaluation; everything else is built on these two."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from fewer.data import Batches
from fewer.nn import ConcreteNetwork, Loss
from fewer.train.adam import Adam

__all__ = ["evaluate", "train_epoch"]


def train_epoch(
    network: ConcreteNetwork,
    batches: Batches,
    optimizer: Adam,
    loss: Loss,
    *,
    batch_size: int,
    generator: torch.Generator,
    before_step: Callable[[], None] | None = None,
    penalty: Callable[[], Tensor] | None = None,
) -> float:
    """Pass over all rows once in a fresh order; the mean loss over the batches."""
    network.train()
    total = torch.zeros((), device=batches.device)
    steps = 0
    for x, target, observed in batches.shuffled(batch_size, generator):
        if before_step is not None:
            before_step()
        optimizer.zero_grad()
        value = network.backward(x, target, observed, loss, penalty)
        optimizer.step()
        total += value  # no .item(): it would wait for the GPU at every step
        steps += 1
    return total.item() / steps


@torch.no_grad()
def evaluate(network: nn.Module, batches: Batches, loss: Loss) -> float:
    """Mean loss over all rows, the network in eval mode."""
    network.eval()
    total = weight = 0.0
    for x, target, observed in batches.in_order():
        entries = float(len(x) if observed is None else observed.sum())
        total += float(loss(network(x), target, observed)) * entries
        weight += entries
    return total / max(weight, 1.0)
