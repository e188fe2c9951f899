"""Swaps that trained networks judge."""

import numpy as np
import pytest
import torch

import fewer
from fewer.constraints import resolve
from fewer.data import moments
from fewer.data.source import array_source
from fewer.nn import make_loss
from fewer.train import TrainingConfig, referee, train_decoders
from fewer.train.network import held_out_losses
from fewer.train.referee import Referee, clearly_best, trained_swaps
from fewer.train.training_data import prepare

D = 6  # features of `curved`: two hidden ones, and four that follow from them


def curved(rows=400, seed=0):
    """Two hidden features, of which the others are functions; no line tells the first two."""
    x = np.random.default_rng(seed).normal(size=(rows, 2))
    return np.column_stack([x, x**2, np.abs(x)])


def judge(rows=400, k=2, **options):
    config = TrainingConfig(k=k, decoder=(12,), device="cpu", refit_epochs=15)
    return Referee(array_source(curved(rows)), resolve(None, D, k, **options), config)


def test_losses_are_those_of_the_decoders(digits):
    source = array_source(digits[0][:300])
    config = TrainingConfig(k=3, decoder=(8,), device="cpu", refit_epochs=8)
    data = prepare(source, moments(source), config, make_loss("mse"), 0)
    panels = [np.array([20, 34, 43]), np.array([5, 12, 50]), np.array([7])]
    x = source.rows(data.valid.index, torch.float64)
    with torch.no_grad():
        decoders = train_decoders(data, panels, 3)
        errors = [
            float((d(x[:, p]) - x).square().mean()) for d, p in zip(decoders, panels, strict=True)
        ]
    np.testing.assert_allclose(held_out_losses(data, panels, 3), errors, rtol=1e-3)


def test_finds_the_features_that_tell_the_others():
    assert trained_swaps(judge(), np.array([2, 5]), rounds=3).tolist() == [0, 1]


def test_obeys_constraints():
    options = {"include": [4], "exclude": [1], "costs": [9, 1, 1, 1, 1, 1], "budget": 4}
    panel = trained_swaps(judge(**options), np.array([2, 4]), rounds=3)
    assert 4 in panel
    assert not {0, 1} & set(panel)
    assert {*panel} - {4} < {3, 5}  # what tells the second hidden feature


def test_a_surrogate_chooses_most_of_what_is_tried():
    tried = []

    def rank(panels):
        tried.extend(panel.tolist() for panel in panels)
        return np.array([float(0 not in panel) for panel in panels])

    panel = trained_swaps(judge(), np.array([2, 5]), rank=rank, rounds=1, count=4)
    assert tried
    assert 0 in panel


def test_no_round_starts_late():
    assert trained_swaps(judge(), np.array([2, 5]), time_limit=-1.0).tolist() == [2, 5]


def test_only_what_is_clearly_better_replaces_a_panel():
    random, x = np.random.default_rng(1), curved(seed=1)
    rows = np.column_stack([x, x[:, :1] + 0.1 * random.normal(size=(400, 2))])
    source, rules = array_source(rows), resolve(None, 8, 2)
    config = TrainingConfig(k=2, decoder=(12,), device="cpu", refit_epochs=15)
    data = prepare(source, moments(source), config, make_loss("mse"), 0)
    worse, best = np.array([2, 5]), np.array([0, 1])
    assert clearly_best(data, rules, worse, [np.array([2, 3]), best], 0) is best
    assert clearly_best(data, rules, best, [worse, np.array([0, 3])], 0) is best
    # two noisy copies of the first column: whichever is ahead, it is by chance
    one, other = np.array([1, 6]), np.array([1, 7])
    assert clearly_best(data, rules, one, [other], 0) is one
    assert clearly_best(data, rules, other, [one], 0) is other


@pytest.fixture
def anywhere(monkeypatch):
    """Referees on a CPU, with little to do."""
    monkeypatch.setattr(Referee, "judges", lambda *_: True)
    monkeypatch.setattr(referee, "MOST_ROWS", 400)
    monkeypatch.setitem(trained_swaps.__kwdefaults__, "rounds", 2)
    monkeypatch.setitem(trained_swaps.__kwdefaults__, "count", 8)


def test_select_lets_networks_judge(anywhere):
    rows = curved(700)
    panel = fewer.select(rows, 2, decoder=(12,), scale="none", random_state=0)
    assert "search, trained networks" in [row["strategy"] for row in panel.leaderboard]
    assert panel.indices.tolist() == [0, 1]


def test_the_estimator_ends_with_a_panel_that_networks_prefer(anywhere):
    model = fewer.ConcreteAutoencoder(2, decoder=(12,), random_state=0)
    assert model.fit(curved(700)).columns_.tolist() == [0, 1]


def test_only_judges_where_it_takes_little():
    cuda = torch.device("cuda")
    config = TrainingConfig(k=10, decoder=(64, 64))
    assert Referee.judges(config, (1000, 200), cuda)
    assert not Referee.judges(config, (1000, 200), torch.device("cpu"))
    assert not Referee.judges(config, (999, 200), cuda)
    assert not Referee.judges(config, (1000, 5000), cuda)
    assert not Referee.judges(TrainingConfig(k=10), (1000, 200), cuda)
    assert not Referee.judges(TrainingConfig(k=10, decoder=(64, 9999)), (1000, 200), cuda)
    assert not Referee.judges(TrainingConfig(k=50, decoder=(64,)), (9999, 200), cuda)
