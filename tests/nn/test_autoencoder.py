"""The short way to the loss of a linear autoencoder, against autograd in float64."""

import pytest
import torch
import torch.nn.functional as F

from fewer.nn import ConcreteNetwork, ConcreteSelector, concrete, make_loss
from fewer.nn.concrete import linear_reconstruction_gradients


def inputs(seed, dtype, *, offset=0.0):
    generator = torch.Generator().manual_seed(seed)
    n, d, k = 33, 40, 7
    x = torch.randn(n, d, generator=generator, dtype=torch.float64) + offset
    choice = torch.softmax(torch.randn(k, d, generator=generator, dtype=torch.float64) * 3, dim=1)
    weight = torch.randn(k, d, generator=generator, dtype=torch.float64)
    bias = torch.randn(1, d, generator=generator, dtype=torch.float64)
    return tuple(part.to(dtype) for part in (x, torch.cat([choice, bias, weight])))


def by_autograd(x, stacked):
    k = len(stacked) // 2
    choice, decoder = (p.clone().requires_grad_() for p in (stacked[:k], stacked[k:]))
    loss = F.mse_loss(x @ choice.T @ decoder[1:] + decoder[0], x)
    loss.backward()
    return [x.numel() * loss.detach() - x.square().sum(), choice.grad, decoder.grad]


@pytest.mark.parametrize("seed", range(5))
def test_exact_in_float64(seed):
    arguments = inputs(seed, torch.float64, offset=seed)
    ours, theirs = linear_reconstruction_gradients(*arguments), by_autograd(*arguments)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)


def test_memory_can_be_reused_and_a_gradient_divided():
    x, stacked = inputs(0, torch.float64)
    both, out = torch.ones(16, len(x), dtype=x.dtype), torch.empty(16, 40, dtype=x.dtype)
    for _ in range(2):
        value, choice, decoder = linear_reconstruction_gradients(
            x, stacked, temperature=0.5, both=both, out=out
        )
        assert choice.untyped_storage().data_ptr() == out.untyped_storage().data_ptr()
        wanted = by_autograd(x, stacked)
        for one, other in zip((value, choice * 0.5, decoder), wanted, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("seed", range(5))
def test_float32_is_within_its_tolerance_of_float64(seed):
    exact = by_autograd(*inputs(seed, torch.float64))
    single = linear_reconstruction_gradients(*inputs(seed, torch.float32))
    for ours, theirs in zip(single, exact, strict=True):
        error = (ours.double() - theirs).abs().max() / theirs.abs().max()
        assert error < 1e-5


@pytest.mark.parametrize("include", [None, [4, 1]])
def test_a_network_gets_the_same_gradients_either_way(include):
    allowed = torch.tensor([True, True, False, True, True, True])
    network = ConcreteNetwork(
        ConcreteSelector(6, 3, include=include, allowed=allowed, temperature=0.7),
        torch.nn.Linear(3, 6),
    )
    network.double().train()
    x = torch.randn(9, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    results = []
    for target in (x, x.clone()):  # a copy is not recognised, so autograd does the work
        network.zero_grad()
        torch.manual_seed(0)
        loss = network.backward(x, target, None, make_loss("mse"))
        results.append([loss, *(p.grad for p in network.parameters())])
    assert all(torch.isfinite(part).all() for part in results[0])
    for short, long in zip(*results, strict=True):
        torch.testing.assert_close(short, long, rtol=1e-9, atol=1e-12)


def test_the_fast_path_is_used_only_where_it_is_equivalent(monkeypatch):
    calls = []
    plain = concrete.linear_reconstruction_gradients
    monkeypatch.setattr(
        concrete,
        "linear_reconstruction_gradients",
        lambda *arguments: calls.append(1) or plain(*arguments),
    )
    x = torch.randn(9, 6)
    seen = torch.ones(9, 6, dtype=torch.bool)
    linear = ConcreteNetwork(ConcreteSelector(6, 2), torch.nn.Linear(2, 6))
    linear.backward(x, x, None, make_loss("mse"))
    assert len(calls) == 1
    linear.backward(x, x, None, make_loss("mae"))
    linear.backward(x, x, seen, make_loss("mse"))
    linear.backward(x, x, None, make_loss("mse"), penalty=linear.selector.weight.sum)
    for other in (
        ConcreteNetwork(ConcreteSelector(6, 2, draw="row"), torch.nn.Linear(2, 6)),
        ConcreteNetwork(ConcreteSelector(6, 2, logits="indirect"), torch.nn.Linear(2, 6)),
        ConcreteNetwork(ConcreteSelector(6, 2), torch.nn.Linear(2, 6, bias=False)),
    ):
        other.backward(x, x, None, make_loss("mse"))
    assert len(calls) == 1
