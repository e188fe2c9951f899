"""What of the fused way can be said without a GPU: when it is refused, and its small sums."""

import numpy as np
import torch

from fewer.data.batches import Batches
from fewer.data.source import array_source
from fewer.nn import ConcreteNetwork, ConcreteSelector, make_loss
from fewer.nn.philox import CountedGumbel
from fewer.train.adam import Adam
from fewer.train.fused import fused_epochs, plan_row, two_powers


def test_rows_on_a_cpu_are_trained_the_plain_way():
    X = np.random.default_rng(0).normal(size=(50, 400)).astype(np.float32)
    batches = Batches(array_source(X), np.arange(50), mean=torch.zeros(400), has_missing=False)
    assert batches.resident is not None
    selector = ConcreteSelector(400, 50)
    selector.noise = CountedGumbel(0)
    network = ConcreteNetwork(selector, torch.nn.Linear(50, 400))
    optimizer = Adam((selector.parameters(), 0.1), (network.decoder.parameters(), 0.01))
    options = {"batch_size": 16, "precision": "float32"}
    assert fused_epochs(network, batches, optimizer, make_loss("mse"), **options) is None


def test_blocks_cover_every_length_with_less_waste_than_the_next_power_of_two():
    for length in range(1, 5000):
        one, two = two_powers(length)
        assert one + two >= length
        assert one + two <= max(16, 1 << (length - 1).bit_length())
        assert all(size == 0 or size & (size - 1) == 0 for size in (one, two))


def test_adam_by_the_plan_is_adam():
    parameter = torch.nn.Parameter(torch.tensor([1.0], dtype=torch.float64))
    theirs = torch.optim.Adam([parameter], lr=0.1)
    p, m, v = 1.0, 0.0, 0.0
    for step in range(1, 6):
        gradient = 0.3 * step - 1
        parameter.grad = torch.tensor([gradient], dtype=torch.float64)
        theirs.step()
        _, _, rate, _, root, *_ = plan_row(step, 1.0, 0.1, 0.01, rows=1, d=1)
        m += 0.1 * (gradient - m)
        v = 0.999 * v + 0.001 * gradient**2
        p -= rate * m / (v**0.5 * root + 1e-8)
        assert abs(p - parameter.item()) < 1e-12
