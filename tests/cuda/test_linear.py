"""The compiled step against autograd in float64 with the same noise.

What is compiled is plain PyTorch: on a CPU the same function is checked, uncompiled.
"""

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fewer.cuda import fast_epochs
from fewer.cuda.linear import CompiledEpochs
from fewer.data.batches import Batches
from fewer.data.source import array_source
from fewer.nn import ConcreteNetwork, ConcreteSelector, make_loss
from fewer.train.optimize import Adam

GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
DEVICES = ["cpu", pytest.param("cuda", marks=GPU)]
TOLERANCE = {"float32": 1e-4, "tf32": 5e-3, "bfloat16": 2e-2}


class Recorded(CompiledEpochs):
    """Keeps the noise of each step, which it draws before the epoch."""

    drawn = torch.zeros(0)

    def epoch(self, order, temperatures):
        drawn = torch.empty(len(order), *self.noise.shape).exponential_().to(self.noise.device)
        if self.drawn.shape == drawn.shape:
            self.drawn.copy_(drawn)  # a graph keeps its address
        else:
            self.drawn = drawn
        return super().epoch(order, temperatures)

    def _step(self):
        self.noise.exponential_ = lambda: self.noise.copy_(
            self.drawn.index_select(0, self.clock)[0]
        )
        super()._step()


def setting(seed, n, d, k, device, *, include=(), exclude=()):
    """Rows, a network and its optimizer."""
    torch.manual_seed(seed)
    allowed = torch.ones(d, dtype=torch.bool)
    allowed[list(exclude)] = False
    selector = ConcreteSelector(d, k, include=include, allowed=allowed, init_scale=1.0)
    network = ConcreteNetwork(selector, torch.nn.Linear(k, d)).to(device)
    optimizer = Adam((selector.parameters(), 0.1), (network.decoder.parameters(), 0.01))
    return torch.randn(n, d).to(device), network, optimizer


def plain_step(rows, network, temperature, exponential):
    """Gradients of one step in float64."""
    network.zero_grad()
    x, selector = rows.double(), network.selector
    noise = -exponential[: selector.k, : selector.d].double().log()
    choice = torch.softmax((selector.logits + noise) / temperature, dim=1)
    loss = F.mse_loss(network.decoder(x @ choice.T), x)
    loss.backward()
    return loss.item()


def relative(ours, exact):
    return ((ours.double() - exact).norm() / exact.norm()).item()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("precision", ["float32", "tf32", "bfloat16"])
@pytest.mark.parametrize(
    ("seed", "n", "d", "k", "include", "exclude"),
    [
        (0, 64, 300, 20, (), ()),
        (1, 50, 127, 65, (3, 90), (5, 6)),
        (2, 800, 128, 10, (7,), (0,)),  # a large batch makes its products one by one
    ],
)
def test_gradients_are_those_of_float64(device, precision, seed, n, d, k, include, exclude):
    rows, network, optimizer = setting(seed, n, d, k, device, include=include, exclude=exclude)
    exact = copy.deepcopy(network).double()
    engine = Recorded(
        network.selector, network.decoder, rows, optimizer, batch_size=n, precision=precision
    )
    found = engine.epoch([torch.arange(n)], [0.7])
    loss = plain_step(rows, exact, 0.7, engine.drawn[0])
    assert abs(found - loss) < TOLERANCE[precision] * loss
    one, two = optimizer.groups
    pairs = [
        (one["exp_avgs"][0], exact.selector.weight.grad),
        (two["exp_avgs"][0], exact.decoder.weight.grad),
        (two["exp_avgs"][1], exact.decoder.bias.grad),
    ]
    for moment, gradient in pairs:  # after one step the first moment is a tenth of the gradient
        assert relative(10 * moment, gradient) < TOLERANCE[precision]
    assert torch.isfinite(network.selector.weight).all()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_epochs_follow_the_plain_loop(device, precision):
    rows, network, optimizer = setting(5, 150, 170, 12, device)
    exact = copy.deepcopy(network).double()
    theirs = Adam((exact.selector.parameters(), 0.1), (exact.decoder.parameters(), 0.01))
    engine = Recorded(
        network.selector, network.decoder, rows, optimizer, batch_size=64, precision=precision
    )
    for epoch in range(3):
        order = list(torch.randperm(150).split(64))  # the last batch is smaller
        temperatures = [2.0 * 0.8**epoch * 0.95**at for at in range(3)]
        found = engine.epoch(order, temperatures)
        losses = []
        for at, batch in enumerate(order):
            losses.append(
                plain_step(rows[batch.to(device)], exact, temperatures[at], engine.drawn[at])
            )
            theirs.step()
        assert found == pytest.approx(np.mean(losses), rel=TOLERANCE[precision])
    assert network.selector.temperature == pytest.approx(temperatures[-1])
    # where a gradient is nearly 0 Adam steps by its sign, so single logits may differ
    tolerance = 1e-3 if precision == "float32" else 0.1
    assert relative(network.selector.weight, exact.selector.weight) < tolerance
    assert relative(network.decoder.weight, exact.decoder.weight) < tolerance
    assert [int(count) for count in optimizer.groups[1]["state_steps"]] == [9, 9]


@pytest.mark.parametrize("device", DEVICES)
def test_the_fast_path_is_used_on_a_gpu_where_it_is_equivalent(device):
    rows, network, optimizer = setting(0, 300, 784, 50, device)
    array, mean = rows.cpu().numpy(), torch.zeros(784)
    whole = Batches(
        array_source(array), np.arange(300), mean=mean, has_missing=False, device=device
    )
    gaps = Batches(array_source(array), np.arange(300), mean=mean, device=device)
    mse = make_loss("mse")

    def taken(batches=whole, loss=mse, **more):
        return fast_epochs(network, batches, optimizer, loss, batch_size=128, **more) is not None

    assert taken() == (device == "cuda")
    assert not taken(loss=make_loss("mae"))
    assert not taken(penalty=lambda: 0)
    assert not taken(batches=gaps)
    network.selector.draw = "row"
    assert not taken()


def test_without_a_compiler_the_plain_step_runs():
    rows, network, optimizer = setting(0, 64, 30, 5, "cpu")
    engine = CompiledEpochs(
        network.selector, network.decoder, rows, optimizer, batch_size=64, precision="float32"
    )

    def broken(*_):
        raise RuntimeError("no compiler")

    plain, engine.step = engine.step, broken
    with pytest.raises(RuntimeError, match="no compiler"):
        engine.epoch([torch.arange(64)], [1.0])
    with pytest.warns(UserWarning, match="no compiler.*uncompiled"):
        engine._warm_up()
    assert engine.step is plain
    assert engine.epoch([torch.arange(64)], [1.0]) > 0
