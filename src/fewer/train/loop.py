"""One epoch of training and one of evaluation; everything else is built on these two."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from fewer.data.batches import Batch, Batches
from fewer.distributed import all_reduce
from fewer.nn import ConcreteNetwork, Loss
from fewer.train.adam import Adam
from fewer.train.averaging import GradientMean, filled

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
    """Pass over all rows once in a fresh order; the mean loss over the batches.

    Each rank takes its rows of a batch; gradients are averaged over all rows, so that every rank
    makes the step that one process would make.
    """
    network.train()
    average = GradientMean(optimizer.parameters) if batches.several else None
    total = torch.zeros((), device=batches.device)
    steps = 0
    for batch in batches.shuffled(batch_size, generator):
        x, target, observed = batch if len(batch.x) else filled(batch)
        if before_step is not None:
            before_step()
        optimizer.zero_grad()
        value = network.backward(x, target, observed, loss, penalty)
        if average is not None:
            value = average(value, _entries(batch))
        optimizer.step()
        total += value  # no .item(): it would wait for the GPU at every step
        steps += 1
    return total.item() / steps


@torch.no_grad()
def evaluate(network: nn.Module, batches: Batches, loss: Loss) -> float:
    """Mean loss over all rows, the network in eval mode."""
    network.eval()
    total = weight = 0.0
    for batch in batches.in_order():
        entries = _entries(batch)
        total += float(loss(network(batch.x), batch.target, batch.observed)) * entries
        weight += entries
    sums = torch.tensor([total, weight], dtype=torch.float64)
    all_reduce(sums)
    total, weight = sums.tolist()
    return total / max(weight, 1.0)


def _entries(batch: Batch) -> float:
    """What a batch's mean loss is a mean of: its rows, or the values observed in them."""
    return float(len(batch.x) if batch.observed is None else batch.observed.sum())
