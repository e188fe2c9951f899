"""Padded layers: the same map, the same training, and nothing left of the zeros afterwards."""

import copy

import torch
from torch import nn

from fewer.cuda.graphs import PaddedLinear, padded, unpadded
from fewer.train.optimize import Adam


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(515, 600), nn.LeakyReLU(), nn.Linear(600, 701))


def test_training_is_the_same_with_and_without_padding():
    plain, other = network(), padded(network())
    assert [type(layer) for layer in other][::2] == [PaddedLinear, PaddedLinear]
    x, y = torch.randn(8, 515), torch.randn(8, 701)
    for net in (plain, other):
        optimizer = Adam((net.parameters(), 1e-2))
        for _ in range(3):
            optimizer.zero_grad()
            (net(x) - y).square().mean().backward()
            optimizer.step()
    torch.testing.assert_close(other(x), plain(x), rtol=1e-3, atol=1e-4)
    assert not other[2].weight[701:].any()
    assert not other[2].weight[:, 600:].any()
    assert not other[0].bias[600:].any()
    restored = unpadded(other)
    assert [type(layer) for layer in restored][::2] == [nn.Linear, nn.Linear]
    for one, two in zip(restored.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-2, atol=1e-3)


def test_small_and_custom_layers_are_not_padded():
    for net in (
        nn.Sequential(nn.Linear(11, 13)),
        nn.Sequential(nn.Linear(1024, 512)),
        nn.Linear(1001, 1001),
        nn.Sequential(nn.Bilinear(2, 3, 4)),
    ):
        before = copy.deepcopy(net)
        assert repr(padded(net)) == repr(before)


def test_without_bias():
    layer = nn.Linear(513, 514, bias=False)
    x = torch.randn(4, 513)
    torch.testing.assert_close(PaddedLinear(layer)(x), layer(x), rtol=1e-4, atol=1e-5)
    assert PaddedLinear(layer).plain().bias is None
