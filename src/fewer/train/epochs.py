"""Epochs of a concrete network on a CPU, in memory that is taken once.

With batches of images, a plain step spends up to a tenth of its time on memory that is returned to
the system and taken again. The plain step of `ConcreteNetwork.backward` is the reference, and the
fallback where rows are incomplete, on disk or in several processes.
"""

import torch
from torch import Tensor, nn

from fewer.data.batches import Batches
from fewer.nn import ConcreteNetwork, ConcreteSelector, Loss
from fewer.nn.concrete import SampledGumbel, linear_parts, linear_reconstruction_gradients
from fewer.train.optimize import Adam

__all__ = ["ReusedMemoryEpochs", "epochs_on_cpu"]


def epochs_on_cpu(
    network: ConcreteNetwork, batches: Batches, optimizer: Adam, loss: Loss, batch_size: int
) -> "ReusedMemoryEpochs | None":
    """Epochs with a fast step; None if only the plain step works."""
    selector = network.selector
    if (
        batches.device.type != "cpu"
        or batches.tensors is None
        or network.mixed
        or not isinstance(selector, ConcreteSelector)
        or not selector.trains_directly
    ):
        return None
    return ReusedMemoryEpochs(network, batches.tensors, optimizer, loss, batch_size)


class ReusedMemoryEpochs:
    """Buffers for the steps of one network; between epochs its parameters are up to date."""

    def __init__(
        self,
        network: ConcreteNetwork,
        rows: tuple[Tensor, Tensor],
        optimizer: Adam,
        loss: Loss,
        batch_size: int,
    ) -> None:
        selector = network.selector
        assert isinstance(selector, ConcreteSelector)
        self.selector, self.decoder, self.loss = selector, network.decoder, loss
        self.optimizer = optimizer
        self.x, self.target = rows
        k, d = selector.k, selector.d
        own = self.x is self.target
        self.linear = linear_parts(network, loss) if own else None
        self.batch = torch.empty(batch_size + 1, d)  # a single row left over joins a batch
        # the draw, and for an explicit step the transposed weights of the decoder below it
        self.stacked = torch.empty(2 * k if self.linear else k, d)
        self.sides = torch.empty_like(self.stacked)
        self.fixed = 0 if selector.certain is None else len(selector.certain)
        if selector.certain is not None:
            self.stacked[: self.fixed] = selector.certain.exp()
        self.noise = SampledGumbel(*selector.weight.shape)
        if self.linear is not None:
            self._transpose(self.linear[1])

    def _transpose(self, decoder: nn.Linear) -> None:
        """An optimizer of the transposed weights, which shares all other state."""
        self.weight = self.stacked[self.selector.k :]
        first, second = self.optimizer.groups
        self.transposed = Adam(([], 0.0), ([self.weight, decoder.bias], 0.0))
        group = self.transposed.groups[1]
        for name in ("exp_avgs", "exp_avg_sqs"):
            group[name][1] = second[name][1]
        group["state_steps"] = second["state_steps"]
        self.transposed.groups[0] = first
        self.transposed.rates = self.optimizer.rates
        self.pairs = [(self.weight, decoder.weight.detach())]
        self.pairs += [(group[name][0], second[name][0]) for name in ("exp_avgs", "exp_avg_sqs")]

    def epoch(self, order: list[Tensor], temperatures: list[float] | None = None) -> float:
        """Train on these batches of row numbers, each at its temperature; the mean loss."""
        assert temperatures is not None
        total = torch.zeros(())
        if self.linear is not None:
            for own, theirs in self.pairs:
                own.copy_(theirs.T)
        for rows, temperature in zip(order, temperatures, strict=True):
            x = torch.index_select(self.x, 0, rows, out=self.batch[: len(rows)])
            self._draw(temperature)
            total += self._explicit(x) if self.linear is not None else self._step(x, rows)
        if self.linear is not None:
            for own, theirs in self.pairs:
                theirs.copy_(own.T)
        return total.item() / len(order)

    @torch.no_grad()
    def _draw(self, temperature: float) -> None:
        selector = self.selector
        selector.temperature = temperature
        noise = self.noise.draw().add_(selector.weight)
        if selector.forbidden is not None:
            noise.masked_fill_(selector.forbidden, -torch.inf)
        choice = self.stacked[self.fixed : selector.k]
        torch.softmax(noise.div_(temperature), dim=1, out=choice)

    @torch.no_grad()
    def _explicit(self, x: Tensor) -> Tensor:
        selector, k = self.selector, self.selector.k
        assert self.linear is not None
        bias = self.linear[1].bias
        loss, d_choice, self.weight.grad, bias.grad = linear_reconstruction_gradients(
            x, self.stacked, bias, self.sides
        )
        selector.accumulate(self.stacked[:k], d_choice)
        self.transposed.step()
        return loss

    def _step(self, x: Tensor, rows: Tensor) -> Tensor:
        self.optimizer.zero_grad()
        target = x if self.target is self.x else self.target.index_select(0, rows)
        chosen = (x @ self.stacked.T).requires_grad_()
        value = self.loss(self.decoder(chosen), target)
        value.backward()
        assert chosen.grad is not None
        with torch.no_grad():
            torch.mm(chosen.grad.T, x, out=self.sides)
            self.selector.accumulate(self.stacked, self.sides)
        self.optimizer.step()
        return value.detach()
