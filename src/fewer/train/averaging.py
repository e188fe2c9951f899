"""Gradients of several ranks, averaged over the rows of a whole batch."""

from collections.abc import Sequence

import torch
from torch import Tensor

from fewer.data.batches import Batch
from fewer.distributed import all_reduce, broadcast_tensors

__all__ = ["GradientMean", "filled", "same_everywhere"]


class GradientMean:
    """Replace gradients of local means by those of the mean over all rows of all ranks.

    One exchange per step: gradients, loss and number of entries travel as one vector.

    Parameters
    ----------
    parameters : sequence of Tensor
        Whose gradients to average, in the same order on every rank.
    """

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self.parameters = parameters
        self.flat: Tensor | None = None

    def __call__(self, loss: Tensor, entries: float) -> Tensor:
        """Average after a backward pass on a batch part of so many entries; the mean loss."""
        used = [p for p in self.parameters if p.grad is not None]
        size = sum(p.numel() for p in used) + 2
        if self.flat is None or len(self.flat) != size:
            self.flat = torch.empty(size, device=loss.device)
        places = self.flat[2:].split([p.numel() for p in used])
        self.flat[0], self.flat[1] = entries, loss * entries
        for place, parameter in zip(places, used, strict=True):
            assert parameter.grad is not None
            torch.mul(parameter.grad.flatten(), entries, out=place)
        all_reduce(self.flat)
        for place, parameter in zip(places, used, strict=True):
            assert parameter.grad is not None
            torch.div(place.view_as(parameter.grad), self.flat[0], out=parameter.grad)
        return self.flat[1] / self.flat[0]


def filled(batch: Batch) -> Batch:
    """Two rows of zeros in place of no rows: a rank without rows must still draw the noise."""
    x, target, observed = batch
    rows = x.new_zeros(2, *x.shape[1:])
    return Batch(
        rows,
        rows if target is x else target.new_zeros(2, *target.shape[1:]),
        None if observed is None else observed.new_ones(2, *observed.shape[1:]),
    )


@torch.no_grad()
def same_everywhere(network: torch.nn.Module) -> None:
    """Give all ranks the parameters and buffers of rank 0."""
    broadcast_tensors(*network.state_dict().values())
