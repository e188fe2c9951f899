"""Networks and tables of the experiments."""

import numpy as np
import torch

from paper.figures import markdown, spread
from paper.isolet import widths
from paper.network import (
    Recipe,
    best_epochs,
    train_module,
    train_network,
    train_on_panel,
    train_on_panels,
)


def test_a_network_learns_a_product():
    x = np.random.default_rng(0).normal(size=(400, 2))
    before = torch.random.get_rng_state()
    predict = train_network(x, x[:, :1] * x[:, 1:], (32,), Recipe(epochs=60, rate=1e-2), 0)
    assert np.mean((predict(x)[:, 0] - x[:, 0] * x[:, 1]) ** 2) < 0.1
    assert torch.equal(before, torch.random.get_rng_state())


def test_training_on_noise_stops_early():
    noise = torch.randn(80, 8, generator=torch.Generator().manual_seed(0))
    train, held = noise[:40].split([3, 5], 1), noise[40:].split([3, 5], 1)
    assert best_epochs(train, held, (32,), Recipe(epochs=30), 0) < 10


def test_networks_trained_together_are_those_trained_alone():
    x = np.random.default_rng(0).normal(size=(300, 3))
    rows = np.hstack([x, x[:, :1] * x[:, 1:2], np.abs(x)])
    panels = [np.array([0, 1]), np.array([1, 2])]
    together = train_on_panels(rows, panels, (16,), 0)
    for columns, predict in zip(panels, together, strict=True):
        alone = train_on_panel(rows, columns, (16,), 0)
        np.testing.assert_allclose(predict(rows), alone(rows), atol=1e-3)
    assert np.mean((together[0](rows)[:, 3] - rows[:, 3]) ** 2) < 0.1


def test_no_hidden_layer_is_linear():
    x = torch.linspace(-1, 1, 64)[:, None]
    net = train_module(x, 2 * x, (), Recipe(epochs=300, rate=0.1), 0)
    assert (net(x) - 2 * x).abs().max() < 0.01


def test_tables():
    assert markdown(["method", "error"], [["greedy", ".018"]]).splitlines() == [
        "| method | error |",
        "| ------ | ----: |",
        "| greedy |  .018 |",
    ]
    assert (spread([0.02, 0.03], 3), spread([0.02], 3)) == ("0.025 ± 0.007", "0.020")


def test_widths_of_the_paper():
    assert widths(90) == (40, 60, 90, 135)
