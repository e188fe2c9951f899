"""The gradient trainer: convergence, tries, stopping, distinct features, refits."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import LinearRegression

from fewer import PAPER
from fewer.data import moments
from fewer.data.source import array_source
from fewer.errors import InputError, NotConvergedWarning
from fewer.nn import make_loss
from fewer.train import TrainingConfig, fit_gradient
from fewer.train.assignment import distinct_features
from fewer.train.optimize import KeepBest


def fit(X, *, seed=0, loss="mse", **options):
    source = array_source(X)
    config = TrainingConfig(device="cpu", **options)
    return fit_gradient(source, moments(source), config, loss=make_loss(loss), seed=seed)


def error(found, X):
    with torch.no_grad():
        output = found.decoder(torch.tensor(X[:, np.sort(found.features)], dtype=torch.float64))
    return float(((output.numpy() - X) ** 2).mean())


@pytest.fixture(scope="module")
def sums():
    """Six sources and sums of them: only the sources 0..5 reconstruct everything."""
    rng = np.random.default_rng(0)
    base = rng.normal(size=(600, 6))
    mixed = base @ rng.normal(size=(6, 14)) * 0.5 + 0.3 * rng.normal(size=(600, 14))
    return np.hstack([3 * base, mixed])


def test_it_finds_the_features_that_carry_the_others(sums):
    found = fit(sums, k=6, n_init=4)
    assert sorted(found.features) == [0, 1, 2, 3, 4, 5]
    assert found.converged
    assert found.conflicts == 0


def test_history_has_a_row_per_epoch(sums):
    seen = []
    found = fit(sums, k=6, epochs=300, on_epoch=seen.append)
    assert seen == found.history
    assert [row["epoch"] for row in found.history] == list(range(1, len(found.history) + 1))
    temperatures = [row["temperature"] for row in found.history]
    assert temperatures == sorted(temperatures, reverse=True)
    assert found.history[-1]["mean_max_probability"] >= 0.99
    assert all(row["mean_max_probability"] < 0.99 for row in found.history[:-1])
    assert found.history[-1]["distinct"] == 6


def test_a_selector_that_does_not_converge_gets_twice_the_epochs_then_a_warning(sums):
    with pytest.warns(NotConvergedWarning, match=r"after 3 tries, the last of 12 epochs.*raise"):
        found = fit(sums, k=6, epochs=3, tries=3, selector_learning_rate=1e-3)
    assert [row["try"] for row in found.history] == [1] * 3 + [2] * 6 + [3] * 12
    assert len(set(found.features)) == 6
    assert not found.converged


@pytest.mark.filterwarnings("ignore::fewer.errors.NotConvergedWarning")
def test_patience_stops_in_the_second_half(sums):
    options = {"k": 3, "epochs": 40, "tries": 1, "schedule": "constant", "start_temperature": 20}
    whole = fit(sums, **options, end_temperature=20)
    short = fit(sums, **options, end_temperature=20, patience=2)
    assert len(whole.history) == 40
    assert 20 < len(short.history) < 40


@pytest.mark.parametrize("options", [{"draw": "row"}, {"logits": "indirect", "embedding": 10}])
def test_the_variants_of_the_selector_find_them_too(sums, options):
    small = sums[:300]
    found = fit(small, k=6, batch_size=64, n_init=2, **options)
    assert len({*found.features} & set(range(6))) >= 4
    assert found.converged


@pytest.mark.filterwarnings("ignore::fewer.errors.NotConvergedWarning")
@pytest.mark.parametrize("anneal", ["step", "epoch"])
def test_the_temperature_falls_by_step_or_epoch(sums, anneal):
    found = fit(sums, k=2, epochs=10, batch_size=54, tries=1, anneal=anneal, stop_probability=1.0)
    # 540 training rows: 10 steps per epoch; the last temperature of epoch e
    last = [9 + 10 * e if anneal == "step" else 10 * e for e in range(10)]
    expected = [3 * (0.1 / 3) ** (step / 100) for step in last]
    assert [row["temperature"] for row in found.history] == pytest.approx(expected, rel=1e-5)


def test_distinct_features_is_the_best_assignment():
    rng = np.random.default_rng(0)
    for _ in range(20):
        logits = torch.tensor(rng.normal(size=(3, 4)) * 3)
        scores = torch.log_softmax(logits, dim=1).numpy()
        found = distinct_features(logits)
        assert len(set(found)) == 3
        total = scores[range(3), found].sum()
        best = max(
            scores[0, a] + scores[1, b] + scores[2, c]
            for a in range(4)
            for b in range(4)
            for c in range(4)
            if len({a, b, c}) == 3
        )
        assert total == pytest.approx(best)


def test_nodes_that_prefer_the_same_feature_get_distinct_ones_and_a_new_decoder():
    """Only feature 3 matters to the loss, so several nodes want it."""
    X = np.random.default_rng(0).normal(size=(400, 8))
    X[:, 3] *= 100
    with pytest.warns(NotConvergedWarning):
        found = fit(X, k=4, epochs=100, tries=1, refit="none")
    assert len(found.logits.argmax(dim=1).unique()) < 4
    assert found.conflicts > 0
    assert len(set(found.features)) == 4
    assert found.refit_history  # "none" was overruled
    assert 3 in found.features
    assert error(found, X) < 0.02 * X.var(axis=0).mean()


@pytest.mark.parametrize("decoder", ["linear", (32,)])
def test_refits_are_no_worse_than_the_trained_decoder(sums, decoder):
    train, test = sums[:400], sums[400:]
    errors = {
        mode: error(fit(train, k=6, epochs=80, decoder=decoder, refit=mode), test)
        for mode in ("none", "finetune", "scratch")
    }
    floor = 0.09 * 14 / 20 * 0.8
    assert floor < errors["scratch"] <= errors["none"] * 1.02
    assert errors["finetune"] <= errors["none"] * 1.02


def test_several_starts_keep_the_best_held_out_loss(sums):
    order = np.random.default_rng(5).permutation(600)
    held, train = order[:60], order[60:]

    def held_out(found):
        chosen = np.sort(found.features)
        reference = LinearRegression().fit(sums[train][:, chosen], sums[train])
        return ((reference.predict(sums[held][:, chosen]) - sums[held]) ** 2).mean()

    errors = [held_out(fit(sums, k=6, seed=5, n_init=starts)) for starts in (1, 3)]
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < errors[0]


def test_the_global_random_state_is_unchanged(sums):
    torch.manual_seed(123)
    before = torch.get_rng_state()
    fit(sums, k=2, epochs=20, stop_probability=0.2, refit_epochs=5, decoder=(4,), dropout=0.5)
    assert torch.equal(before, torch.get_rng_state())


def test_units_do_not_matter(sums):
    """The same choice and error for X and for 1000 X + 77: learning rates are unit-free."""
    plain, scaled = fit(sums, k=4), fit(1000 * sums + 77, k=4)
    assert sorted(plain.features) == sorted(scaled.features)
    assert error(scaled, 1000 * sums + 77) == pytest.approx(1e6 * error(plain, sums), rel=1e-6)
    assert scaled.history[-1]["loss"] == pytest.approx(1e6 * plain.history[-1]["loss"], rel=1e-2)


def test_constant_columns_are_never_chosen_over_informative_ones(sums):
    X = np.hstack([np.full((600, 9), 5.0), sums[:, :5]])
    assert min(fit(X, k=5).features) >= 9
    with_constants = fit(X, k=7)
    assert len(set(with_constants.features)) == 7
    assert {9, 10, 11, 12, 13} <= {*with_constants.features}


def test_a_loss_that_blows_up_is_reported(sums):
    with pytest.raises(InputError, match=r"the loss became (nan|inf).*lower learning_rate"):
        fit(sums, k=3, learning_rate=1e30, normalize=False)


def test_converged_describes_the_returned_state(sums, monkeypatch):
    plain = KeepBest.seen
    options = {"k": 3, "epochs": 150}
    assert fit(sums, **options).converged

    def first_only(self, loss, network, **options):
        return plain(self, loss if self.loss == float("inf") else 1e9, network, **options)

    monkeypatch.setattr(KeepBest, "seen", first_only)
    found = fit(sums, **options)
    assert found.history[-1]["mean_max_probability"] >= 0.99
    assert not found.converged


def test_where_training_stops_by_itself_depends_on_the_number_of_nodes():
    stops = [TrainingConfig(k=k).stop_at for k in (2, 10, 20, 50, 400)]
    assert stops == pytest.approx([0.99, 0.99, 0.98, 0.95, 0.95])
    paper = TrainingConfig(k=50, **{name: PAPER[name] for name in ("epochs", "stop_probability")})
    assert paper.stop_at == paper.enough_at_end == 0.99
    for fixed in ({"epochs": 30}, {"stop_probability": 0.99}):
        config = TrainingConfig(k=50, **fixed)
        assert config.stop_at == config.enough_at_end == 0.99
    with pytest.raises(InputError, match="stop_probability=2"):
        TrainingConfig(k=5, stop_probability=2)


def test_a_little_doubt_at_the_end_of_the_schedule_is_no_reason_for_another_try(sums, monkeypatch):
    monkeypatch.setattr("fewer.train.config.SELECTOR_STEPS", 150)
    found = fit(sums, k=6, refit="none")
    assert [row["try"] for row in found.history] == [1] * 50
    assert 0.95 <= found.history[-1]["mean_max_probability"] < 0.99
    assert found.converged
    monkeypatch.setattr("fewer.train.config.SELECTOR_STEPS", 60)
    assert {row["try"] for row in fit(sums, k=6, refit="none").history} >= {1, 2}


def test_many_rows_take_no_more_steps():
    few, many = (TrainingConfig(k=5).epochs_for(rows) for rows in (6_000, 54_000))
    assert (few, many) == (100, 12)
    assert TrainingConfig(k=5).epochs_for(10_000_000) == 5
    assert TrainingConfig(k=5).refit_epochs_for(10_000_000) == 20
