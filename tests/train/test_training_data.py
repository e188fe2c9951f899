"""Which rows are held out inside a training."""

import numpy as np
import pytest

import fewer
from fewer.data import moments
from fewer.data.source import array_source
from fewer.nn import make_loss
from fewer.train import TrainingConfig
from fewer.train.training_data import prepare


def held(labels, share=0.1, seed=0):
    X = np.random.default_rng(0).random((len(labels), 5))
    source = array_source(X)
    config = TrainingConfig(k=2, validation_fraction=share, device="cpu")
    data = prepare(source, moments(source), config, make_loss("mse"), seed, groups=labels)
    valid = np.array([], dtype=int) if data.valid is None else data.valid.index
    assert sorted([*data.train.index, *valid]) == list(range(len(labels)))
    return valid


@pytest.mark.parametrize("seed", range(5))
def test_groups_are_held_out_whole(seed):
    labels = np.repeat([f"patient {i}" for i in range(30)], np.arange(1, 31))
    out = held(labels, seed=seed)
    assert not set(labels[out]) & set(np.delete(labels, out))
    assert 0.03 * len(labels) < len(out) < 0.16 * len(labels)


def test_without_groups_the_share_is_exact():
    assert len(held(np.arange(200))) == 20


def test_two_large_groups_leave_one_to_train_on():
    assert sorted(held(np.repeat([0, 1], [60, 40]))) == list(range(60, 100))


def test_one_group_cannot_be_split():
    assert len(held(np.zeros(50))) == 0


@pytest.mark.filterwarnings("ignore:the network does not clearly beat")
def test_select_passes_groups_on(monkeypatch):
    """Every training of a network holds out whole groups of its training rows."""
    seen = []
    plain = fewer.train.training_data._split

    def noted(n, share, seed, groups):
        train, valid = plain(n, share, seed, groups)
        seen.append((groups, valid))
        return train, valid

    monkeypatch.setattr("fewer.train.training_data._split", noted)
    rng = np.random.default_rng(0)
    X = np.repeat(rng.random((30, 6)), 4, axis=0) + 0.01 * rng.random((120, 6))
    fewer.select(
        X,
        2,
        decoder=(4,),
        strategies=["gradient"],
        row_groups=np.repeat(np.arange(30), 4),
        validation=0.2,
        time_limit=4,
        random_state=0,
        device="cpu",
    )
    assert len(seen) >= 2
    for groups, valid in seen:
        assert groups is not None
        assert not set(groups[valid]) & set(np.delete(groups, valid))


@pytest.mark.parametrize("device", ["cuda:97", "abacus"])
def test_a_device_that_is_not_there(device):
    X = np.random.default_rng(0).random((60, 5))
    message = f"device='{device}' cannot be used here .*; use 'auto' or 'cpu'"
    for fit in (
        lambda: fewer.select(X, 2, device=device),
        lambda: fewer.ColumnSubset(2, device=device).fit(X),
        lambda: fewer.ConcreteAutoencoder(2, device=device).fit(X),
    ):
        with pytest.raises(fewer.errors.InputError, match=message):
            fit()
