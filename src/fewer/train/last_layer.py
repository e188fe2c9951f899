"""Last layers of trained networks: solved exactly, or scaled so that classes are most likely."""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor

from fewer.data.batches import Batches
from fewer.distributed import all_reduce
from fewer.nn.decoder import DecoderStack

__all__ = ["best_factors", "calibrate", "solve_last"]

LAST_RIDGES = 10.0 ** np.arange(-6, 1)  # of a last layer, relative to the mean variance
SPREAD = 0.25  # of the logarithm of the factor of outputs, before any row is seen

Outputs = Callable[[Tensor], Tensor]


@torch.no_grad()
def solve_last(
    stack: DecoderStack,
    train: Batches,
    held_out: Callable[[Outputs], Tensor] | None,
    lowest: Tensor | None,
    tuned: Sequence[float | None] | None,
    *,
    skip: bool,
) -> tuple[list[float | None], Tensor | None]:
    """Replace last layers by ridge regression on what they take, if that lowers the loss.

    With ``skip``, they then take the inputs of the network, too. The penalty, relative to the mean
    variance, is what does best on held-out rows, or is given in ``tuned``; it is returned for each
    network, None where the layer stays, with the lowest losses. ``held_out`` has the loss of each
    network on held-out rows.
    """
    if held_out is None and tuned is None:
        return [None] * len(stack.last.weight), lowest
    if skip:
        stack.add_skip()
    weight, bias = stack.last.weight, stack.last.bias
    members, out, width = weight.shape
    zeros = partial(torch.zeros, dtype=torch.float64, device=train.device)
    gram, cross = zeros(members, width, width), zeros(members, width, out)
    first, means, count = zeros(members, width), zeros(out), zeros(())
    for batch in train.in_order():  # a rank may have no rows
        h, y = stack.hidden(batch.x).double(), batch.target.double()
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


@torch.no_grad()
def calibrate(
    stack: DecoderStack, valid: Batches | None, tuned: Sequence[float | None] | None
) -> list[float | None]:
    """Multiply outputs so that held-out classes are most likely; hardly, where rows are few."""
    weight, bias = stack.last.weight, stack.last.bias
    if valid is not None:
        parts = [(stack(one.x), one.target, one.observed) for one in valid.in_order()]
        logits = torch.cat([part for part, _, _ in parts], dim=1)  # m x n x classes
        classes = torch.cat([target for _, target, _ in parts]).expand(len(logits), -1)[..., None]
        rows = torch.cat([torch.ones(len(y)) if w is None else w.cpu() for _, y, w in parts])
        tuned = best_factors(logits, classes, rows.to(logits))
    elif tuned is None:
        return [None] * len(weight)
    factor = weight.new_tensor([one or 1.0 for one in tuned])[:, None, None]
    weight.mul_(factor)
    bias.mul_(factor)
    return list(tuned)


def best_factors(logits: Tensor, classes: Tensor, weights: Tensor) -> list[float]:
    """For each network, the factor of its logits (m x n x classes) that makes classes likely.

    ``classes`` is m x n x 1. Factors are normal about 1 on a logarithmic scale, before any row.
    """
    factors = torch.logspace(-0.6, 0.6, 49, device=logits.device, dtype=logits.dtype)
    likely = [
        torch.log_softmax(logits * one, dim=-1).gather(2, classes)[..., 0] @ weights
        - one.log().square() / (2 * SPREAD**2)
        for one in factors
    ]
    found: list[float] = factors[torch.stack(likely).argmax(0)].tolist()
    return found
