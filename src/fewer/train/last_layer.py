"""Last layers of trained networks: solved exactly, or scaled so that classes are most likely."""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from fewer.data.batches import Batches
from fewer.distributed import all_reduce
from fewer.nn.decoder import DecoderStack

__all__ = ["calibrate", "solve_last"]

LAST_RIDGES = 10.0 ** np.arange(-6, 1)  # of a last layer, relative to the mean variance
SPREAD = 0.25  # of the logarithm of the factor of outputs, before any row is seen

Outputs = Callable[[Tensor], Tensor]


@torch.no_grad()
def solve_last(
    network: nn.Module,
    train: Batches,
    held_out: Callable[[Outputs], Tensor] | None,
    lowest: Tensor | None,
    tuned: Sequence[float | None] | None,
) -> tuple[list[float | None], Tensor | None]:
    """Replace last layers by ridge regression on what they take, if that lowers the loss.

    The penalty, relative to the mean variance, is what does best on held-out rows, or is given in
    ``tuned``; it is returned for each network, None where the layer stays, with the lowest losses.
    ``held_out`` has the loss of each network on held-out rows.
    """
    stack, hidden, last = _last_layer(network)
    if held_out is None and tuned is None:
        return [None] * len(last[0]), lowest
    members, out, width = last[0].shape
    zeros = partial(torch.zeros, dtype=torch.float64, device=train.device)
    gram, cross = zeros(members, width, width), zeros(members, width, out)
    first, means, count = zeros(members, width), zeros(out), zeros(())
    for batch in train.in_order():  # a rank may have no rows
        h, y = hidden(batch.x).double(), batch.target.double()
        rows = y.new_ones(len(y)) if batch.observed is None else batch.observed[:, 0].double()
        weighted = (h * rows[:, None]).mT
        gram += weighted @ h
        cross += weighted @ y
        first += weighted.sum(2)
        means += rows @ y
        count += rows.sum()
    for part in (gram, cross, first, means, count):
        all_reduce(part)
    first, means = first / count, means / count
    gram = gram / count - first[:, :, None] * first[:, None]
    cross = cross / count - first[:, :, None] * means
    unit = gram.diagonal(dim1=1, dim2=2).mean(1)

    def layer(penalty: Tensor) -> tuple[Tensor, Tensor]:
        system = gram.clone()
        system.diagonal(dim1=1, dim2=2).add_((penalty * unit).clamp_min(1e-12)[:, None])
        root = torch.linalg.cholesky_ex(system)[0]
        half = torch.linalg.solve_triangular(root, cross, upper=False)
        weight = torch.linalg.solve_triangular(root.mT, half, upper=True)  # m x width x out
        bias = means - (first[:, None] @ weight)[:, 0]
        return weight.mT.float(), bias[:, None].float()

    weight, bias = last
    if held_out is None or lowest is None:
        given = [None] * len(unit) if tuned is None else tuned
        use = torch.tensor([-1.0 if r is None else r for r in given], dtype=torch.float64)
        use = use.to(unit.device)
        found = layer(use.clamp_min(0))
        for own, other in zip((weight, bias), found, strict=True):
            own.copy_(torch.where((use >= 0)[:, None, None], other, own))
        return list(given), lowest
    best = lowest.to(unit.device)
    kept = [weight.clone(), bias.clone()]
    chosen = torch.full_like(unit, -1.0)
    for ridge in LAST_RIDGES.tolist():
        for own, other in zip((weight, bias), layer(torch.full_like(unit, ridge)), strict=True):
            own.copy_(other)
        error = held_out(stack).to(unit.device)
        better = error < best
        best, chosen = torch.minimum(error, best), torch.where(better, ridge, chosen)
        for at, own in enumerate((weight, bias)):
            kept[at] = torch.where(better[:, None, None], own, kept[at])
    weight.copy_(kept[0])
    bias.copy_(kept[1])
    return [None if ridge < 0 else ridge for ridge in chosen.tolist()], best


def _last_layer(
    network: nn.Module,
) -> tuple[Outputs, Outputs, tuple[Tensor, Tensor]]:
    """Outputs of all members, what their last layers take, and the weights of those, in place."""
    if isinstance(network, DecoderStack):
        return network, network.hidden, (network.last.weight, network.last.bias)
    assert isinstance(network, nn.Sequential)
    *body, last = network
    before = nn.Sequential(*body)
    assert isinstance(last, nn.Linear)
    return (
        lambda x: network(x)[None],
        lambda x: before(x)[None],
        (last.weight[None], last.bias[None, None]),
    )


@torch.no_grad()
def calibrate(
    network: nn.Module, valid: Batches | None, tuned: Sequence[float | None] | None
) -> list[float | None]:
    """Multiply outputs so that held-out classes are most likely; hardly, where rows are few."""
    outputs, _, (weight, bias) = _last_layer(network)
    if valid is not None:
        parts = [(outputs(one.x), one.target, one.observed) for one in valid.in_order()]
        logits = torch.cat([part for part, _, _ in parts], dim=1)  # m x n x classes
        classes = torch.cat([target for _, target, _ in parts]).expand(len(logits), -1)[..., None]
        rows = torch.cat([torch.ones(len(y)) if w is None else w.cpu() for _, y, w in parts])
        rows = rows.to(logits)  # their weights
        factors = torch.logspace(-0.6, 0.6, 49, device=logits.device)
        likely = [
            torch.log_softmax(logits * one, dim=-1).gather(2, classes)[..., 0] @ rows
            - one.log().square() / (2 * SPREAD**2)
            for one in factors
        ]
        tuned = factors[torch.stack(likely).argmax(0)].tolist()
    elif tuned is None:
        return [None] * len(weight)
    factor = weight.new_tensor([one or 1.0 for one in tuned])[:, None, None]
    weight.mul_(factor)
    bias.mul_(factor)
    return list(tuned)
