"""Training a decoder with every step replayed as one CUDA graph, and padded linear layers.

A step of a small network is some forty short kernels, and launching them one by one takes ten
times as long as running them; a recorded graph launches them together. The results are those of the
plain loop up to rounding.

Tensor cores read whole 16-byte words: with an odd number of features, a product in bfloat16 is five
times slower than with rows that are padded by zeros.
"""

from collections.abc import Callable
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fewer.data.batches import Batch
from fewer.nn.decoder import (
    ACTIVATIONS,
    NORMS,
    DecoderStack,
    DropoutStack,
    LinearStack,
    NormStack,
    linear_layer,
)

__all__ = ["GraphedEpochs", "Optimizer", "can_be_recorded", "padded", "recorded", "unpadded"]

WARM_UP = 3  # steps that let libraries choose their kernels before the recording
UNIT = 8  # numbers
LEAST = 512  # smaller layers gain nothing


class PaddedLinear(nn.Module):
    """A linear layer with zeros beyond its weights, which stay zero."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.inputs, self.outputs = linear.in_features, linear.out_features
        wider, higher = -self.inputs % UNIT, -self.outputs % UNIT
        with torch.no_grad():
            self.weight = nn.Parameter(F.pad(linear.weight, (0, wider, 0, higher)).clone())
            self.bias = None
            if linear.bias is not None:
                self.bias = nn.Parameter(F.pad(linear.bias, (0, higher)).clone())

    def forward(self, x: Tensor) -> Tensor:
        """Map the last axis from inputs to outputs."""
        extra = self.weight.shape[1] - self.inputs
        x = F.pad(x, (0, extra)) if extra else x
        return F.linear(x, self.weight, self.bias)[..., : self.outputs]

    def plain(self) -> nn.Linear:
        """The layer without its zeros."""
        weight = self.weight[: self.outputs, : self.inputs]
        bias = None if self.bias is None else self.bias[: self.outputs]
        return linear_layer(weight, bias).to(weight.device).train(self.training)


def padded(network: nn.Module) -> nn.Module:
    """Change large linear layers of odd size in a sequence, in place."""
    if isinstance(network, nn.Sequential):
        for at, layer in enumerate(network):
            if type(layer) is nn.Linear:
                sides = layer.in_features, layer.out_features
                if min(sides) >= LEAST and any(side % UNIT for side in sides):
                    network[at] = PaddedLinear(layer)
    return network


def unpadded(network: nn.Module) -> nn.Module:
    """Undo `padded`, in place."""
    if isinstance(network, nn.Sequential):
        for at, layer in enumerate(network):
            if isinstance(layer, PaddedLinear):
                network[at] = layer.plain()
    return network


class Optimizer(Protocol):
    """What is needed of `fewer.train.optimize.Adam`, which this folder may not import."""

    groups: list[dict[str, Any]]
    rates: list[float]

    def zero_grad(self) -> None: ...

    def step(self, rates: list[Tensor] | None = None) -> None: ...


def recorded(
    step: Callable[[], None], warm_up: Callable[[], None], device: torch.device
) -> torch.cuda.CUDAGraph:
    """A step as a graph, after a warm-up in which libraries choose their kernels."""
    here, side = torch.cuda.current_stream(device), torch.cuda.Stream(device)
    side.wait_stream(here)
    with torch.cuda.stream(side):
        warm_up()
    here.wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    # other threads may use the GPU meanwhile
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        step()
    return graph


def can_be_recorded(network: nn.Module) -> bool:
    """Whether no layer of the network synchronises with the GPU."""
    known = {nn.Sequential, nn.Linear, PaddedLinear, nn.Dropout}
    known |= {*ACTIVATIONS.values(), *NORMS.values()}
    known |= {DecoderStack, DropoutStack, LinearStack, NormStack, nn.ModuleList}
    return all(type(module) in known for module in network.modules())


class GraphedEpochs:
    """Graph and buffers for the steps of one network; ``backward`` leaves a batch's gradients."""

    def __init__(
        self,
        network: nn.Module,
        backward: Callable[[Batch], Tensor],
        x: Tensor,
        target: Tensor,
        optimizer: Optimizer,
        batch_size: int,
    ) -> None:
        self.network, self.backward, self.optimizer = network, backward, optimizer
        self.x, self.target, self.size = x, target, batch_size
        self.rows = torch.zeros(batch_size, dtype=torch.long, device=x.device)
        self.rates = [torch.zeros((), device=x.device) for _ in optimizer.groups]
        self.total = torch.zeros((), device=x.device)
        self.graph: torch.cuda.CUDAGraph | None = None

    def epoch(self, order: list[Tensor], temperatures: list[float] | None = None) -> float:
        """Train on these batches of row numbers; the mean loss."""
        whole = [part for part in order if len(part) == self.size]
        rest = [part for part in order if len(part) != self.size]
        for own, rate in zip(self.rates, self.optimizer.rates, strict=True):
            own.fill_(rate)
        if self.graph is None:
            self.graph = self._recorded()
        self.total.zero_()
        for rows in torch.stack(whole).to(self.rows.device):
            self.rows.copy_(rows)
            self.graph.replay()
        for part in rest:
            self._step(part.to(self.rows.device))
        return self.total.item() / len(order)

    def _step(self, rows: Tensor) -> None:
        self.optimizer.zero_grad()
        x, target = self.x.index_select(0, rows), self.target.index_select(0, rows)
        self.total += self.backward(Batch(x, target, None))
        self.optimizer.step(self.rates)

    @torch.no_grad()
    def _recorded(self) -> torch.cuda.CUDAGraph:
        """Record a step, and leave network and optimizer as they were before."""
        names = ("exp_avgs", "exp_avg_sqs", "state_steps")
        moments = [
            part for group in self.optimizer.groups for name in names for part in group[name]
        ]
        state = [*self.network.parameters(), *self.network.buffers(), *moments]
        before = [part.clone() for part in state]

        def step() -> None:
            self._step(self.rows)

        def warm_up() -> None:
            for _ in range(WARM_UP):
                step()

        with torch.enable_grad():
            graph = recorded(step, warm_up, self.rows.device)
        for part, value in zip(state, before, strict=True):
            part.copy_(value)
        return graph
