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
        # the draw, and for an explicit step bias and transposed weights of the decoder below it
        self.stacked = torch.empty(2 * k + 1 if self.linear else k, d)
        self.sides = torch.empty(2 * k + 2 if self.linear else k, d)
        self.fixed = 0 if selector.certain is None else len(selector.certain)
        if selector.certain is not None:
            self.stacked[: self.fixed] = selector.certain.exp()
        self.noise = SampledGumbel(*selector.weight.shape)
        if self.linear is not None:
            self.squares = torch.linalg.vector_norm(self.x, dim=1).square_()  # |x|^2 of each row
            self.both: dict[int, Tensor] = {}  # memory of a step, by the rows of its batch
            self._stack(self.linear[1])

    def _stack(self, decoder: nn.Linear) -> None:
        """An optimizer of the decoder as one matrix [b; W'], which shares all other state."""
        self.own = self.stacked[self.selector.k :]
        first, second = self.optimizer.groups
        self.transposed = Adam(([], 0.0), ([self.own], 0.0))
        group = self.transposed.groups[1]
        self.transposed.groups[0], group["state_steps"] = first, second["state_steps"][:1]
        self.transposed.rates = self.optimizer.rates
        state = [second[name] for name in ("exp_avgs", "exp_avg_sqs")]
        self.pairs = [(self.own, decoder.weight.detach(), decoder.bias.detach())]
        self.pairs += [(group["exp_avgs"][0], *state[0]), (group["exp_avg_sqs"][0], *state[1])]

    def epoch(self, order: list[Tensor], temperatures: list[float] | None = None) -> float:
        """Train on these batches of row numbers, each at its temperature; the mean loss."""
        assert temperatures is not None
        total = self._load(order)
        for rows, temperature in zip(order, temperatures, strict=True):
            x = torch.index_select(self.x, 0, rows, out=self.batch[: len(rows)])
            self._draw(temperature)
            step = self._step if self.linear is None else self._explicit
            total += step(x, rows, temperature)
        self.selector.temperature = temperatures[-1]
        self._store()
        return total.item() / len(order)

    @torch.no_grad()
    def _load(self, order: list[Tensor]) -> Tensor:
        """Put weights and moments of a linear decoder into one matrix each; the sum of mean |x|^2.

        Losses of explicit steps lack that sum.
        """
        if self.linear is None:
            return torch.zeros(())
        for own, weight, bias in self.pairs:
            own[0], own[1:] = bias, weight.T
        sizes = torch.tensor([len(rows) for rows in order])
        weights = (1 / (sizes * self.x.shape[1])).repeat_interleave(sizes)
        return weights @ self.squares[torch.cat(order)]

    @torch.no_grad()
    def _store(self) -> None:
        if self.linear is not None:
            for own, weight, bias in self.pairs:
                bias.copy_(own[0])
                weight.copy_(own[1:].T)
            steps = self.optimizer.groups[1]["state_steps"]
            steps[1].copy_(steps[0])

    @torch.no_grad()
    def _draw(self, temperature: float) -> None:
        selector = self.selector
        noise = self.noise.draw().add_(selector.weight)
        if selector.forbidden is not None:
            noise.masked_fill_(selector.forbidden, -torch.inf)
        choice = self.stacked[self.fixed : selector.k]
        torch.softmax(noise.div_(temperature), dim=1, out=choice)

    @torch.no_grad()
    def _explicit(self, x: Tensor, _rows: Tensor, temperature: float) -> Tensor:
        n, k = len(x), self.selector.k
        if n not in self.both:
            self.both[n] = torch.ones(2 * k + 2, n)
        value, d_choice, self.own.grad = linear_reconstruction_gradients(
            x, self.stacked, temperature=temperature, both=self.both[n], out=self.sides
        )
        self.selector.accumulate(self.stacked[:k], d_choice)
        self.transposed.step()
        return value.div_(x.numel())

    def _step(self, x: Tensor, rows: Tensor, temperature: float) -> Tensor:
        self.optimizer.zero_grad()
        target = x if self.target is self.x else self.target.index_select(0, rows)
        chosen = (x @ self.stacked.T).requires_grad_()
        value = self.loss(self.decoder(chosen), target)
        value.backward()
        assert chosen.grad is not None
        with torch.no_grad():
            torch.mm(chosen.grad.div_(temperature).T, x, out=self.sides)
            self.selector.accumulate(self.stacked, self.sides)
        self.optimizer.step()
        return value.detach()
