"""Noise by counter: the published test vectors, the right distribution, no dependence on splits."""

import pytest
import torch

from fewer.nn import ConcreteSelector
from fewer.nn.philox import CountedGumbel, counted_gumbel, philox

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("seed", "counter", "expected"),  # Random123's known answers for philox4x32, 10 rounds
    [
        (0, [0, 0, 0, 0], ["6627e8d5", "e169c58d", "bc57ac4c", "9b00dbd8"]),
        (2**64 - 1, [2**32 - 1] * 4, ["408f276d", "41c83b0e", "a20bc7c6", "6d5451fd"]),
        (
            0x299F31D0A4093822,
            [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
            ["d16cfe09", "94fdcceb", "5001e420", "24126ea1"],
        ),
    ],
)
def test_known_answers(seed, counter, expected):
    words = philox(seed, tuple(torch.tensor([word]) for word in counter))
    assert [f"{word.item():08x}" for word in words] == expected


def test_the_noise_is_gumbel():
    noise = counted_gumbel(7, 3, range(500), 1001, CPU).double().flatten()
    assert abs(noise.mean() - 0.5772) < 0.01
    assert abs(noise.var() - torch.pi**2 / 6) < 0.02
    for level in (-1.0, 0.0, 1.0, 3.0, 6.0):
        expected = torch.exp(-torch.exp(torch.tensor(-level))).item()
        assert abs((noise <= level).double().mean().item() - expected) < 0.003


def test_nodes_steps_and_seeds_have_their_own_noise():
    base = counted_gumbel(7, 3, range(4), 50, CPU)
    assert len(base.unique()) == base.numel()
    for other in (counted_gumbel(8, 3, range(4), 50, CPU), counted_gumbel(7, 4, range(4), 50, CPU)):
        assert (other == base).sum() == 0


def test_a_selector_draws_the_same_whatever_the_batch():
    selector = ConcreteSelector(30, 4, temperature=0.5)
    x = torch.randn(20, 30)
    selector.noise = CountedGumbel(5)
    whole = selector(x)
    parts = []
    for rows in x.split(7):
        selector.noise = CountedGumbel(5)
        parts.append(selector(rows))
    torch.testing.assert_close(torch.cat(parts), whole)
    assert not torch.equal(selector(x), whole)  # the next step has other noise
