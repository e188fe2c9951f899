"""Training that has stalled is brought to its end, not cut off."""

import numpy as np
import pytest

from fewer import ConcreteAutoencoder
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
