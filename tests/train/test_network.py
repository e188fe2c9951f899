"""Training that has stalled is brought to its end, not cut off."""

import numpy as np
import pytest
import torch

from fewer import ConcreteAutoencoder
from fewer.data import moments
from fewer.data.source import array_source
from fewer.nn import make_loss
from fewer.train import TrainingConfig
from fewer.train.network import MemberLosses, train_decoder
from fewer.train.optimize import CosineDecay


def test_without_a_stall_it_is_half_a_cosine():
    decay = CosineDecay(0, 40)
    factors = [decay.factor(epoch) for epoch in range(1, 41)]
    expected = (1 + np.cos(np.pi * np.arange(40) / 40)) / 2
    np.testing.assert_allclose(factors, expected)
    assert not decay.shortened


@pytest.mark.parametrize(("stalled", "left", "last"), [(10, 5, 15), (38, 5, 40), (40, 5, 40)])
def test_after_a_stall_the_rate_decays_from_its_current_value(stalled, left, last):
    decay = CosineDecay(0, 40)
    before = decay.factor(stalled + 1)
    decay.shorten(stalled, left)
    assert decay.last == last
    factors = [decay.factor(epoch) for epoch in range(stalled + 1, last + 1)]
    assert factors == sorted(factors, reverse=True)
    if factors:
        assert factors[0] == before
    assert decay.factor(last + 1, 1.0) == 0


def test_the_rate_falls_with_the_time():
    decay = CosineDecay(0, 40)
    assert decay.factor(1, 0.5) == pytest.approx(0.5)
    assert decay.factor(31, 0.1) == decay.factor(31)


def test_the_end_begins_with_the_best_network_and_lowers_the_held_out_loss(digits):
    model = ConcreteAutoencoder(
        10,
        decoder=(64,),
        solver="gradient",
        include=range(10, 60, 5),
        learning_rate=0.03,  # far too high to settle at
        patience=5,
        refit_epochs=300,
        random_state=0,
        device="cpu",
    ).fit(digits[0])
    rows = model.refit_history_
    losses = [row["val_loss"] for row in rows]
    first = next(row["epoch"] for row in rows if row["trained"] < row["epoch"])
    stalled = first - 1
    best = 1 + int(np.argmin(losses[:stalled]))
    assert stalled == best + 5
    assert rows[stalled]["trained"] == best + 1
    assert len(rows) == min(300, stalled + max(5, best // 2)) < 300
    assert min(losses[stalled:]) < 0.99 * losses[best - 1]


@pytest.mark.parametrize("classes", [True, False])
def test_rows_of_little_weight_hardly_matter(classes):
    """Half of the rows have a wrong target, and next to no weight."""
    random = np.random.default_rng(0)
    x = random.normal(size=(400, 2))
    y = torch.from_numpy((x[:, 0] > 0).astype(int)) if classes else torch.from_numpy(x[:, :1] ** 2)
    wrong = torch.arange(400) % 2 == 0
    target = torch.where(wrong if classes else wrong[:, None], 1 - y, y)
    weights = torch.where(wrong, 1e-4, 1.0).double()
    config = TrainingConfig(k=2, decoder=(16,), refit_epochs=300, device="cpu")
    loss = make_loss("cross_entropy" if classes else "mse")
    source, both = array_source(x), np.arange(2)
    rest = (source, moments(source), both, config, loss, 0)
    options = {"targets": target, "out": 2 if classes else 1}
    decoder = train_decoder(*rest, **options, weights=weights)
    with torch.no_grad():
        found = decoder(torch.from_numpy(x))
    if classes:
        assert (found.argmax(1) == y).double().mean() > 0.93
    else:
        assert (found - y).square().mean() < 0.1 * y.var()


def test_weighted_losses_of_several_networks_are_those_of_each():
    torch.manual_seed(0)
    output, codes, weights = torch.randn(3, 5, 4), torch.tensor([0, 3, 1, 1, 2]), torch.rand(5)
    loss = make_loss("cross_entropy", smoothing=0.1)
    found = MemberLosses(loss, None, 4, torch.device("cpu"))(output, codes, weights)
    expected = [(loss.entries(part, codes) * weights).sum() / weights.sum() for part in output]
    torch.testing.assert_close(found, torch.stack(expected))
    torch.testing.assert_close(loss(output[0], codes, weights), expected[0])
