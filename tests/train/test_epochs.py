"""Epochs in memory that is taken once: the same training as the plain step, and its noise."""

import numpy as np
import pytest
import torch
from torch import nn

from fewer.data.batches import Batches
from fewer.data.source import array_source
from fewer.nn import ConcreteNetwork, ConcreteSelector, make_loss
from fewer.nn.concrete import SampledGumbel
from fewer.train.epochs import epochs_on_cpu
from fewer.train.optimize import Adam

K, D, ROWS, SIZE = 4, 11, 130, 32  # the last batch has two rows


class Replayed(ConcreteSelector):
    """A selector whose draws take their noise from a list."""

    def sample(self, rows=None, generator=None):
        noise = self.noise.pop(0).to(self.weight.dtype)
        if self.certain is not None:
            noise = torch.cat([torch.zeros(len(self.certain), self.d), noise])
        return torch.softmax((self.logits + noise) / self._temperature, dim=-1)


def decoder_of(kind, outputs):
    if kind == "linear":
        return nn.Linear(K, outputs)
    return nn.Sequential(nn.Linear(K, 6), nn.LeakyReLU(), nn.Linear(6, outputs))


def prepared(seed, classes):
    random = np.random.default_rng(seed)
    rows = random.normal(size=(ROWS, D)) @ random.normal(size=(D, D))
    labels = torch.from_numpy(random.integers(0, 3, ROWS)) if classes else None
    source = array_source(rows)
    return Batches(source, np.arange(ROWS), mean=torch.zeros(D), targets=labels, has_missing=False)


def trained(train, batches, selector, decoder, loss, dtype):
    """Parameters, losses and Adam's moments after three epochs of ``train``."""
    network = ConcreteNetwork(selector, decoder).to(dtype).train()
    optimizer = Adam((selector.parameters(), 0.1), (decoder.parameters(), 0.01))
    losses = train(network, batches, optimizer, loss)
    moments = [part for group in optimizer.groups for part in group["exp_avgs"]]
    return [torch.tensor(losses), *(p.detach() for p in network.parameters()), *moments]


@pytest.mark.parametrize("kind", ["linear", "network", "classes"])
@pytest.mark.parametrize("include", [None, [7, 2]])
@pytest.mark.parametrize("seed", range(2))
def test_the_same_training_as_the_plain_step_in_float64(kind, include, seed, monkeypatch):
    classes = kind == "classes"
    batches = prepared(seed, classes)
    loss = make_loss("cross_entropy" if classes else "mse")
    options = {"include": include, "allowed": torch.arange(D) != 5}
    noise = []

    def fast(network, batches, optimizer, loss):
        epochs = epochs_on_cpu(network, batches, optimizer, loss, SIZE)
        plain = SampledGumbel.draw

        def recorded(self, generator=None):
            noise.append(plain(self, generator).clone())
            return self.noise

        monkeypatch.setattr(SampledGumbel, "draw", recorded)
        generator = torch.Generator().manual_seed(0)
        losses = []
        for epoch in range(3):
            order = list(batches.shuffled_positions(SIZE, generator))
            losses.append(epochs.epoch(order, [1.0 / (epoch + 1)] * len(order)))
        monkeypatch.undo()
        return losses

    def plain(network, batches, optimizer, loss):
        network.selector.noise = list(noise)
        generator = torch.Generator().manual_seed(0)
        losses = []
        for epoch in range(3):
            network.selector.temperature = 1.0 / (epoch + 1)
            values = []
            for x, target, _ in batches.shuffled(SIZE, generator):
                optimizer.zero_grad()
                x = x.double()  # noqa: PLW2901
                # a copy is not recognised as the rows themselves, so autograd does the work
                target = target if classes else x.clone()  # noqa: PLW2901
                values.append(float(network.backward(x, target, None, loss)))
                optimizer.step()
            losses.append(np.mean(values))
        return losses

    results = []
    for train, dtype in ((fast, torch.float32), (plain, torch.float64)):
        torch.manual_seed(seed)
        selector = Replayed(D, K, **options)
        decoder = decoder_of("linear" if kind == "linear" else "network", 3 if classes else D)
        results.append(trained(train, batches, selector, decoder, loss, dtype))
    assert len(noise) == 15
    for ours, exact in zip(*results, strict=True):
        torch.testing.assert_close(ours.double(), exact.double(), rtol=2e-3, atol=2e-4)


def test_the_plain_step_remains_where_memory_cannot_be_reused():
    batches, loss = prepared(0, False), make_loss("mse")

    def found(batches=batches, mixed=False, **options):
        selector, decoder = ConcreteSelector(D, K, **options), nn.Linear(K, D)
        network = ConcreteNetwork(selector, decoder, mixed=mixed)
        optimizer = Adam((selector.parameters(), 0.1), (decoder.parameters(), 0.01))
        return epochs_on_cpu(network, batches, optimizer, loss, SIZE)

    assert found() is not None
    assert found(draw="row") is None
    assert found(logits="indirect") is None
    assert found(mixed=True) is None
    rows = np.random.default_rng(0).normal(size=(ROWS, D))
    rows[3, 4] = np.nan
    incomplete = Batches(array_source(rows), np.arange(ROWS), mean=torch.zeros(D))
    assert found(incomplete) is None


def test_the_quick_noise_is_gumbel_noise():
    noise = SampledGumbel(500, 1999)
    drawn = noise.draw(torch.Generator().manual_seed(0)).clone()
    again = SampledGumbel(500, 1999).draw(torch.Generator().manual_seed(0))
    assert torch.equal(drawn, again)
    assert not torch.equal(drawn, noise.draw())
    values = drawn.double().flatten().sort().values
    n = len(values)
    expected = torch.exp(-torch.exp(-values))  # the distribution function
    rank = (torch.arange(n, dtype=torch.float64) + 0.5) / n
    assert (expected - rank).abs().max() < 1.95 / n**0.5 + 2**-16  # one time in a thousand
    # the maximum of 1999 is Gumbel, too, shifted by log 1999: the upper tail is right
    assert drawn.amax(dim=1).mean() == pytest.approx(np.log(1999) + 0.5772, abs=0.25)
    rows = drawn.double()
    neighbours = torch.corrcoef(torch.stack([rows[:, :-1].flatten(), rows[:, 1:].flatten()]))[0, 1]
    assert abs(neighbours) < 0.005
