"""Epochs of a decoder on CUDA with every step replayed as one graph.

A step of a small network is some forty short kernels, and launching them one by one takes ten
times as long as running them. Recorded once and replayed, they are launched together. The numbers
are those of `fewer.train.loop.train_epoch` up to the rounding of its kernels.
"""

import torch
from torch import Tensor, nn

from fewer.data.batches import Batches
from fewer.nn import ConcreteNetwork, Loss
from fewer.nn.decoder import ACTIVATIONS, NORMS
from fewer.nn.padded import PaddedLinear
from fewer.train.adam import Adam

__all__ = ["GraphedEpochs", "graphed_epochs"]

WARM_UP = 3  # steps that let libraries choose their kernels before the recording
# layers that never wait for the GPU; a network with others is trained step by step
KNOWN = {
    nn.Sequential,
    nn.Linear,
    PaddedLinear,
    nn.Dropout,
    *ACTIVATIONS.values(),
    *NORMS.values(),
}


def graphed_epochs(
    network: ConcreteNetwork, batches: Batches, optimizer: Adam, loss: Loss, batch_size: int
) -> "GraphedEpochs | None":
    """Epochs by graph, or None where only the plain way will do."""
    rows = batches.tensors
    if not (
        batches.device.type == "cuda"
        and rows is not None
        and len(batches) >= 2 * batch_size
        and len(optimizer.groups) == 1
        and not loss.name.startswith("your")
        and all(type(module) in KNOWN for module in network.decoder.modules())
    ):
        return None
    return GraphedEpochs(network, batches, *rows, optimizer, loss, batch_size)


class GraphedEpochs:
    """`train_epoch` for a network whose inputs need no choice.

    Parameters
    ----------
    network : ConcreteNetwork
        On a CUDA device.
    batches : Batches
        For the order of rows.
    x, target : tensors
        All rows, on the same device.
    optimizer : Adam
        With one group of parameters.
    loss : Loss
        What is minimised.
    batch_size : int
        Rows a step.
    """

    def __init__(
        self,
        network: ConcreteNetwork,
        batches: Batches,
        x: Tensor,
        target: Tensor,
        optimizer: Adam,
        loss: Loss,
        batch_size: int,
    ) -> None:
        self.network, self.batches, self.optimizer, self.loss = network, batches, optimizer, loss
        self.x, self.target, self.size = x, target, batch_size
        self.rows = torch.zeros(batch_size, dtype=torch.long, device=x.device)
        self.rate = torch.zeros((), device=x.device)
        self.total = torch.zeros((), device=x.device)
        self.graph: torch.cuda.CUDAGraph | None = None

    def run(self, generator: torch.Generator) -> float:
        """Pass over all rows once in a fresh order; the mean loss over the batches."""
        self.network.train()
        parts = list(self.batches.shuffled_positions(self.size, generator))
        whole = [part for part in parts if len(part) == self.size]
        rest = [part for part in parts if len(part) != self.size]
        self.rate.fill_(self.optimizer.rates[0])
        if self.graph is None:
            self.graph = self._recorded()
        self.total.zero_()
        for rows in torch.stack(whole).to(self.rows.device):
            self.rows.copy_(rows)
            self.graph.replay()
        for part in rest:
            self._step(part.to(self.rows.device))
        return self.total.item() / len(parts)

    def _step(self, rows: Tensor) -> None:
        self.optimizer.zero_grad()
        x, target = self.x.index_select(0, rows), self.target.index_select(0, rows)
        self.total += self.network.backward(x, target, None, self.loss)
        self.optimizer.step([self.rate])

    def _recorded(self) -> torch.cuda.CUDAGraph:
        """Record a step, and leave network and optimizer as they were before."""
        kept = [(part, part.detach().clone()) for part in self._state()]
        side = torch.cuda.Stream(self.rows.device)
        side.wait_stream(torch.cuda.current_stream(self.rows.device))
        with torch.cuda.stream(side):
            for _ in range(WARM_UP):
                self._step(self.rows)
        torch.cuda.current_stream(self.rows.device).wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        # other threads may use the GPU meanwhile
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            self._step(self.rows)
        with torch.no_grad():
            for part, before in kept:
                part.copy_(before)
        return graph

    def _state(self) -> list[Tensor]:
        group = self.optimizer.groups[0]
        names = ("exp_avgs", "exp_avg_sqs", "state_steps")
        moments = [part for name in names for part in group[name]]
        return [*self.network.parameters(), *self.network.buffers(), *moments]
