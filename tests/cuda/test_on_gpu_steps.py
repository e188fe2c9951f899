"""On a GPU: covariance, closed form and training against the CPU and float64."""

import gc
import warnings
from importlib import import_module

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fewer import ConcreteAutoencoder
from fewer.cuda import RecordedStep
from fewer.data import covariance, moments
from fewer.data.source import array_source
from fewer.search import residual, search
from fewer.train import closed_form, gradient
from fewer.train.closed_form import (
    Products,
    _residual_and_gradient,
    fit_closed_form,
    fit_random_features,
)

swap_module = import_module("fewer.search.swap")

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

CUDA = torch.device("cuda")


def relative(ours, exact):
    return ((ours.double() - exact).norm() / exact.norm()).item()


def test_compiled_and_plain_steps_are_as_good(monkeypatch):
    random = np.random.default_rng(0)
    X = random.normal(size=(2000, 12)) @ random.normal(size=(12, 600))
    X += 0.5 * random.normal(size=X.shape)
    options = {"k": 30, "solver": "gradient", "random_state": 0, "device": "cuda"}
    options |= {"precision": "float32", "epochs": 40, "stop_probability": 0.9}
    fused = ConcreteAutoencoder(**options).fit(X)
    monkeypatch.setattr(gradient, "fast_epochs", lambda *_, **__: None)
    plain = ConcreteAutoencoder(**options).fit(X)
    first = [row["loss"] for row in fused.history_][:5]
    assert first == pytest.approx(
        [row["loss"] for row in plain.history_][:5], rel=0.02
    )  # with other noise
    assert fused.score(X) == pytest.approx(plain.score(X), abs=0.01)


@pytest.mark.parametrize(("exact", "tolerance"), [(True, 1e-12), (False, 1e-6)])
def test_the_covariance_within_its_tolerance_of_float64(exact, tolerance, monkeypatch):
    monkeypatch.setattr(import_module("fewer.data.moments"), "fast_float64", lambda device: exact)
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


def test_networks_of_odd_width_are_unchanged():
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


def test_too_little_memory_warns_and_falls_back_to_the_cpu(monkeypatch):
    X = np.random.default_rng(0).normal(size=(50, 30))
    module = import_module("fewer.data.moments")
    monkeypatch.setattr(module, "free_bytes", lambda device: 1000)
    with pytest.warns(UserWarning, match="does not fit into the memory of cuda"):
        found = covariance(array_source(X), device="cuda").matrix
    assert torch.equal(found, covariance(array_source(X)).matrix)


def planes(n=900, d=40):
    random = np.random.default_rng(5)
    hidden = random.normal(size=(n, 6))
    return np.tanh(hidden @ random.normal(size=(6, d))) + 0.1 * random.normal(size=(n, d))


@pytest.mark.parametrize("changes", [{}, {"draw": "row"}, {"dropout": 0.2, "norm": "batch"}])
def test_recorded_steps_of_a_concrete_network_are_the_plain_ones(changes, monkeypatch):
    X = planes()
    options = {"k": 5, "decoder": (32,), "solver": "gradient", "refit": "none", "epochs": 12}
    options |= {"tries": 1, "stop_probability": 0.05, "batch_size": 50, "random_state": 0}
    quick = ConcreteAutoencoder(**options, **changes, device="cuda").fit(X)
    monkeypatch.setattr(gradient, "fast_epochs", lambda *_, **__: None)
    slow = ConcreteAutoencoder(**options, **changes, device="cuda").fit(X)
    ours, theirs = ([row["loss"] for row in model.history_] for model in (quick, slow))
    assert ours == pytest.approx(theirs, rel=1e-3)


@pytest.mark.parametrize("include", [None, np.array([3, 8])])
def test_the_closed_form_by_graph_is_as_good_as_step_by_step(include, monkeypatch):
    X = planes()
    C = torch.from_numpy(np.cov(X.T))
    quick = fit_closed_form(C, 6, include=include, device="cuda")
    monkeypatch.setattr(closed_form, "SMALL_STEP", 0)
    slow = fit_closed_form(C, 6, include=include, device="cuda")
    left = [residual(C, np.sort(fit.features[0])) for fit in (quick, slow)]
    assert left[0] == pytest.approx(left[1], rel=0.05)
    assert [row["step"] for row in quick.history] == [row["step"] for row in slow.history]


def test_failed_steps_of_the_closed_form_are_repeated(monkeypatch):
    X = planes()
    X = np.hstack([X, X, X])  # singular as soon as two nodes agree
    C = torch.from_numpy(np.cov(X.T))
    plain, repeated = closed_form._Training._one_by_one, []

    def counted(self, temperatures):
        repeated.append(len(temperatures))
        return plain(self, temperatures)

    monkeypatch.setattr(closed_form._Training, "_one_by_one", counted)
    fit = fit_closed_form(C, 6, device="cuda", ridge=0.0, noise=0.0, end_temperature=0.001)
    assert np.isfinite(fit.logits.numpy()).all()
    assert set(repeated) <= {10}
    assert len(set(fit.features[0].tolist())) == 6


def test_random_features_by_graph_choose_as_well(monkeypatch):
    X = planes()
    C, source = np.cov(X.T), array_source(X)
    quick = fit_random_features(source, 6, steps=200, learning_rate=0.2, device="cuda")
    monkeypatch.setattr(closed_form, "SMALL_STEP", 0)
    slow = fit_random_features(source, 6, steps=200, learning_rate=0.2, device="cuda")
    left = [residual(C, np.sort(fit.features[0])) for fit in (quick, slow)]
    assert left[0] == pytest.approx(left[1], rel=0.1)


def test_walks_by_graph_are_those_step_by_step(monkeypatch):
    C = torch.from_numpy(np.cov(planes(d=300).T)).cuda()
    quick = search(C, 20, stall=1, seed=0)
    init = swap_module.Walk.__init__

    def plain(self, *args):
        init(self, *args)
        self.recorded = None

    monkeypatch.setattr(swap_module.Walk, "__init__", plain)
    slow = search(C, 20, stall=1, seed=0)
    np.testing.assert_array_equal(quick.indices, slow.indices)
    assert quick.evaluations == slow.evaluations
    assert quick.objective <= search(C.cpu(), 20, stall=1, seed=0).objective * 1.01


def test_memory_of_graphs_is_returned():
    X = planes()
    options = {"k": 5, "decoder": (32,), "solver": "gradient", "epochs": 3, "tries": 1}
    options |= {"stop_probability": 0.01, "device": "cuda", "random_state": 0}
    gc.disable()
    try:
        ConcreteAutoencoder(**options).fit(X)
        before = torch.cuda.memory_allocated()
        for _ in range(3):
            ConcreteAutoencoder(**options).fit(X)
        assert torch.cuda.memory_allocated() <= before + 2**20
    finally:
        gc.enable()


def test_a_step_is_recorded_where_pytorch_keeps_the_memory_that_it_needs():
    free, _ = torch.cuda.mem_get_info()
    values, total = torch.ones(free // 32, device=CUDA), torch.zeros((), device=CUDA)

    def step():
        total.add_((values * 2).sum() / len(values))

    kept = torch.empty(int(0.85 * free), dtype=torch.uint8, device=CUDA)
    del kept
    recorded = RecordedStep(step, [total], CUDA, warm_up=lambda: None)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # such as that it is run as it is
        for _ in range(3):
            recorded()
    assert float(total) == pytest.approx(6)
    assert recorded.run is not step
