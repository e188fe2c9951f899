"""Fused training steps on a GPU, against the plain way in float64 with the same noise."""

import copy
from importlib import import_module

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fewer import ConcreteAutoencoder
from fewer.data import covariance, moments
from fewer.data import moments as on_device
from fewer.data.batches import Batches
from fewer.data.source import array_source
from fewer.nn import ConcreteNetwork, ConcreteSelector, kernels, make_loss
from fewer.nn.philox import CountedGumbel, counted_gumbel
from fewer.train import gradient
from fewer.train.adam import Adam
from fewer.train.closed_form import Products, _residual_and_gradient
from fewer.train.fused import FusedEpochs, fused_epochs

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

TOLERANCE = {"float32": 1e-4, "tf32": 5e-3, "bfloat16": 2e-2}
CUDA = torch.device("cuda")


def problem(seed, n, d, k, *, include=(), exclude=(), temperature=0.7):
    """Rows, a network and its optimizer, on the GPU."""
    torch.manual_seed(seed)
    allowed = torch.ones(d, dtype=torch.bool)
    allowed[list(exclude)] = False
    selector = ConcreteSelector(
        d, k, temperature=temperature, include=include, allowed=allowed, init_scale=1.0
    )
    selector.noise = CountedGumbel(seed + 2**40)
    network = ConcreteNetwork(selector, torch.nn.Linear(k, d)).cuda()
    optimizer = Adam((selector.parameters(), 0.1), (network.decoder.parameters(), 0.01))
    return torch.randn(n, d, device=CUDA), network, optimizer


def plain_step(rows, network, temperature, step):
    """Gradients of one step in float64, with the noise of that step."""
    selector = network.selector
    selector.noise = CountedGumbel(selector.noise.seed, step)
    selector.temperature = temperature
    network.zero_grad()
    x = rows.double()
    loss = F.mse_loss(network.decoder(x @ selector.sample().T), x)
    loss.backward()
    return loss.item()


def relative(ours, exact):
    return ((ours.double() - exact).norm() / exact.norm()).item()


@pytest.mark.parametrize("precision", ["float32", "tf32", "bfloat16"])
@pytest.mark.parametrize(
    ("seed", "n", "d", "k", "include", "exclude"),
    [
        (0, 256, 784, 50, (), ()),
        (1, 100, 1001, 130, (3, 900), (5, 6)),
        (2, 333, 2500, 64, (), (0,)),
        (3, 1000, 1500, 150, (7,), ()),  # a large batch has other tiles
    ],
)
def test_gradients_are_those_of_float64(precision, seed, n, d, k, include, exclude):
    rows, network, optimizer = problem(seed, n, d, k, include=include, exclude=exclude)
    exact = copy.deepcopy(network).double()
    loss = plain_step(rows, exact, 0.7, 0)
    engine = FusedEpochs(
        network.selector, network.decoder, rows, optimizer, batch_size=n, precision=precision
    )
    found = engine.epoch([torch.arange(n)], [0.7])
    assert abs(found - loss) < TOLERANCE[precision] * loss
    one, two = optimizer.groups
    pairs = [
        (one["exp_avgs"][0], exact.selector.weight.grad),
        (two["exp_avgs"][0], exact.decoder.weight.grad),
        (two["exp_avgs"][1], exact.decoder.bias.grad),
    ]
    for moment, gradient_ in pairs:  # after one step the first moment is a tenth of the gradient
        assert relative(10 * moment, gradient_) < TOLERANCE[precision]
    assert torch.isfinite(network.selector.weight).all()


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_epochs_follow_the_plain_loop(precision):
    rows, network, optimizer = problem(5, 600, 700, 40)
    exact = copy.deepcopy(network).double()
    theirs = Adam((exact.selector.parameters(), 0.1), (exact.decoder.parameters(), 0.01))
    engine = FusedEpochs(
        network.selector, network.decoder, rows, optimizer, batch_size=256, precision=precision
    )
    step = 0
    for epoch in range(3):
        order = torch.randperm(600).split(256)  # the last batch is smaller
        temperatures = [2.0 * 0.8**epoch * 0.95**at for at in range(3)]
        found = engine.epoch(list(order), temperatures)
        losses = []
        for batch, temperature in zip(order, temperatures, strict=True):
            losses.append(plain_step(rows[batch.cuda()], exact, temperature, step))
            theirs.step()
            step += 1
        assert found == pytest.approx(np.mean(losses), rel=TOLERANCE[precision])
    assert network.selector.noise.step == step
    # where a gradient is nearly 0 Adam steps by its sign, so single logits may differ
    tolerance = 1e-3 if precision == "float32" else 0.1
    assert relative(network.selector.weight, exact.selector.weight) < tolerance
    assert relative(network.decoder.weight, exact.decoder.weight) < tolerance
    assert [int(count) for count in optimizer.groups[1]["state_steps"]] == [step, step]


def test_the_kernels_noise_is_the_plain_noise():
    rows, network, optimizer = problem(7, 64, 1003, 33, temperature=1.0)
    engine = FusedEpochs(
        network.selector, network.decoder, rows, optimizer, batch_size=64, precision="float32"
    )
    with torch.no_grad():
        network.selector.weight.zero_()
    network.selector.noise.step = 11
    engine.epoch([torch.arange(64)], [1.0])
    noise = counted_gumbel(7 + 2**40, 11, range(33), 1003, torch.device("cpu"))
    there = counted_gumbel(7 + 2**40, 11, range(33), 1003, CUDA).cpu()
    torch.testing.assert_close(there, noise, rtol=2e-5, atol=2e-5)
    expected = torch.softmax(noise.double(), dim=1)
    assert relative(engine.low.cpu()[0, :33, :1003], expected) < 5e-5


def test_a_seed_means_the_same_at_any_batch_split():
    draws = []
    for size in (32, 64):
        rows, network, optimizer = problem(7, 64, 500, 40)
        engine = FusedEpochs(
            network.selector, network.decoder, rows, optimizer, batch_size=size, precision="tf32"
        )
        engine.epoch([torch.arange(size)], [0.5])
        draws.append(engine.low[0].clone())
    assert torch.equal(*draws)


def test_the_fused_way_is_taken_only_where_it_is_the_same():
    rows, network, optimizer = problem(0, 300, 784, 50)
    d, array = rows.shape[1], rows.cpu().numpy()
    whole = Batches(
        array_source(array), np.arange(300), mean=torch.zeros(d), has_missing=False, device=CUDA
    )
    options = {"batch_size": 128, "precision": "bfloat16"}
    mse = make_loss("mse")
    assert kernels.available()
    assert fused_epochs(network, whole, optimizer, mse, **options) is not None
    assert fused_epochs(network, whole, optimizer, make_loss("mae"), **options) is None
    assert fused_epochs(network, whole, optimizer, mse, penalty=lambda: 0, **options) is None
    gaps = Batches(array_source(array), np.arange(300), mean=torch.zeros(d), device=CUDA)
    assert fused_epochs(network, gaps, optimizer, mse, **options) is None
    network.selector.noise = None
    assert fused_epochs(network, whole, optimizer, mse, **options) is None


def test_with_and_without_kernels_the_same_features(monkeypatch):
    random = np.random.default_rng(0)
    X = random.normal(size=(2000, 12)) @ random.normal(size=(12, 600))
    X += 0.5 * random.normal(size=X.shape)
    options = {"k": 30, "solver": "gradient", "random_state": 0, "device": "cuda"}
    options |= {"precision": "float32", "epochs": 40, "stop_probability": 0.9}
    fused = ConcreteAutoencoder(**options).fit(X)
    monkeypatch.setattr(gradient, "fused_epochs", lambda *_, **__: None)
    plain = ConcreteAutoencoder(**options).fit(X)
    first = [row["loss"] for row in fused.history_][:5]
    assert first == pytest.approx([row["loss"] for row in plain.history_][:5], rel=1e-3)
    assert fused.score(X) == pytest.approx(plain.score(X), abs=0.01)


@pytest.mark.parametrize(("exact", "tolerance"), [(True, 1e-12), (False, 1e-6)])
def test_the_covariance_within_its_tolerance_of_float64(exact, tolerance, monkeypatch):
    monkeypatch.setattr(on_device, "fast_float64", lambda device: exact)
    random = np.random.default_rng(3)
    X = (random.normal(size=(9000, 700)) * random.uniform(0.1, 9, 700) + 100).astype(np.float32)
    wanted = covariance(array_source(X))
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        found = covariance(array_source(X), device="cuda")
    finally:
        torch.backends.cuda.matmul.allow_tf32 = False
    spread = wanted.matrix.diagonal().sqrt()
    error = (found.matrix.cpu() - wanted.matrix) / torch.outer(spread, spread)
    assert found.matrix.is_cuda
    assert error.abs().max() < tolerance
    torch.testing.assert_close(found.mean.cpu(), wanted.mean, rtol=1e-12, atol=0)


@pytest.mark.parametrize("fixed", [[], [4, 17]])
def test_closed_form_gradients_are_those_of_float64(fixed):
    torch.manual_seed(1)
    X = torch.randn(900, 60, device=CUDA) @ torch.randn(60, 333, device=CUDA)
    C = torch.cov((X + 2 * torch.randn(900, 333, device=CUDA)).T) / 60
    M = torch.softmax(3 * torch.randn(2, 21, 333, device=CUDA), -1)
    at = torch.tensor(fixed, dtype=torch.int64, device=CUDA)
    times = Products(C)
    wide = F.pad(M, (0, times.width - 333))
    loss, gradient_ = _residual_and_gradient(times, wide, at, 1e-4)
    exact, wanted = _residual_and_gradient(Products(C.cpu()), M.cpu(), at.cpu(), 1e-4)
    torch.testing.assert_close(loss.cpu(), exact, rtol=1e-4, atol=0)
    assert relative(gradient_[..., :333].cpu(), wanted.double()) < 5e-3
    product = times(wide.view(-1, times.width))[:, :333]
    assert relative(product, M.view(-1, 333).double() @ C.double()) < 2e-6


def test_networks_of_odd_width_come_back_as_they_were():
    random = np.random.default_rng(0)
    X = random.normal(size=(700, 20)) @ random.normal(size=(20, 601))
    options = {"k": 10, "decoder": (520,), "solver": "gradient", "random_state": 0}
    options |= {"epochs": 30, "tries": 1, "stop_probability": 0.05, "refit_epochs": 30}
    model = ConcreteAutoencoder(**options, device="cuda").fit(X)
    shapes = [tuple(p.shape) for p in model.decoder_.parameters()]
    assert shapes == [(520, 10), (520,), (601, 520), (601,)]
    assert model.score(X) > 0.35


def test_gaps_and_moments_on_the_gpu():
    random = np.random.default_rng(4)
    X = random.normal(size=(500, 40)) + 5
    X[random.random(X.shape) < 0.1] = np.nan
    for missing in ("mean", "pairwise"):
        there = covariance(array_source(X), missing, device="cuda").matrix.cpu()
        torch.testing.assert_close(there, covariance(array_source(X), missing).matrix)
    ours, theirs = moments(array_source(X), "cuda"), moments(array_source(X))
    for name in ("observed", "mean", "variance", "minimum", "maximum"):
        np.testing.assert_allclose(getattr(ours, name), getattr(theirs, name), rtol=1e-12)


def test_too_little_memory_is_said_and_left_to_the_cpu(monkeypatch):
    X = np.random.default_rng(0).normal(size=(50, 30))
    module = import_module("fewer.data.moments")
    monkeypatch.setattr(module, "free_bytes", lambda device: 1000)
    with pytest.warns(UserWarning, match="does not fit the memory of cuda"):
        found = covariance(array_source(X), device="cuda").matrix
    assert torch.equal(found, covariance(array_source(X)).matrix)
