"""The short way to the loss of a linear autoencoder, against autograd in float64."""

import pytest
import torch
import torch.nn.functional as F

from fewer.nn import ConcreteNetwork, ConcreteSelector, make_loss
from fewer.nn.fused import linear_reconstruction_loss


def inputs(seed, dtype, *, offset=0.0):
    generator = torch.Generator().manual_seed(seed)
    n, d, k = 33, 40, 7
    x = torch.randn(n, d, generator=generator, dtype=torch.float64) + offset
    choice = torch.softmax(torch.randn(k, d, generator=generator, dtype=torch.float64) * 3, dim=1)
    weight = torch.randn(d, k, generator=generator, dtype=torch.float64)
    bias = torch.randn(d, generator=generator, dtype=torch.float64)
    return tuple(part.to(dtype) for part in (x, choice, weight, bias))


def gradients(function, x, *parameters):
    leaves = [p.clone().requires_grad_() for p in parameters]
    loss = function(x, *leaves)
    (3 * loss).backward()  # a factor, so that an ignored upstream gradient shows
    return [loss.detach(), *(leaf.grad for leaf in leaves)]


def plain(x, choice, weight, bias):
    return F.mse_loss(F.linear(x @ choice.T, weight, bias), x)


@pytest.mark.parametrize("seed", range(5))
def test_exact_in_float64(seed):
    arguments = inputs(seed, torch.float64, offset=seed)
    pairs = zip(
        gradients(linear_reconstruction_loss, *arguments), gradients(plain, *arguments), strict=True
    )
    for ours, theirs in pairs:
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("seed", range(5))
def test_float32_is_within_its_tolerance_of_float64(seed):
    exact = gradients(plain, *inputs(seed, torch.float64))
    single = gradients(linear_reconstruction_loss, *inputs(seed, torch.float32))
    for ours, theirs in zip(single, exact, strict=True):
        error = (ours.double() - theirs).abs().max() / theirs.abs().max()
        assert error < 1e-5


def test_a_network_takes_the_short_way_only_where_it_is_the_same():
    network = ConcreteNetwork(ConcreteSelector(6, 2), torch.nn.Linear(2, 6)).train()
    x = torch.randn(9, 6, generator=torch.Generator().manual_seed(0))
    mse = make_loss("mse")

    def name(*arguments):
        torch.manual_seed(0)
        return type(network.loss(*arguments).grad_fn).__name__

    assert "LinearReconstruction" in name(x, x, None, mse)
    assert "LinearReconstruction" not in name(x, x.clone(), None, mse)
    assert "LinearReconstruction" not in name(x, x, None, make_loss("mae"))
    assert "LinearReconstruction" not in name(x, x, torch.ones(9, 6, dtype=torch.bool), mse)
    torch.manual_seed(0)
    short = network.loss(x, x, None, mse)
    torch.manual_seed(0)
    torch.testing.assert_close(short, mse(network(x), x))
