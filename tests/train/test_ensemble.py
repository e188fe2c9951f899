"""Several networks of a target as one."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from fewer.data import moments
from fewer.data.source import array_source
from fewer.nn import build_decoder, make_loss
from fewer.nn.decoder import averaged, skip_connected
from fewer.train import TrainingConfig
from fewer.train.ensemble import Ensemble, train_ensemble
from fewer.train.network import train_decoders
from fewer.train.training_data import prepare

COLUMNS = np.array([19, 20, 26, 28, 34, 36, 42, 43])
SMALL = Ensemble((16,), 4)


@pytest.fixture(scope="module")
def data():
    digits = load_digits()
    source = array_source(digits.data[:1000] / 16)
    config = TrainingConfig(k=8, decoder=(16,), norm="batch", device="cpu", refit_epochs=20)
    targets = torch.from_numpy(digits.target[:1000].astype(np.int64))
    loss = make_loss("cross_entropy", smoothing=0.1)
    return prepare(source, moments(source), config, loss, 0, targets=targets, out=10)


@pytest.fixture(scope="module")
def ensemble(data):
    return train_ensemble(data, COLUMNS, SMALL, seed=0)


def new_rows():
    digits = load_digits()
    rows = torch.from_numpy(digits.data[1000:, COLUMNS] / 16)
    return rows, torch.from_numpy(digits.target[1000:].astype(np.int64))


@torch.no_grad()
def log_loss(decoder):
    x, y = new_rows()
    return float(torch.nn.functional.nll_loss(decoder(x).log(), y))


@pytest.mark.parametrize("hidden", [(5,), (5, 4), (6, 3, 2)])
def test_one_network_has_the_mean_output_of_several(hidden):
    members = [build_decoder(hidden, 3, 2) for _ in range(3)]
    x = torch.randn(7, 3)
    mean = torch.stack([member(x) for member in members]).mean(0)
    one = averaged(members)
    torch.testing.assert_close(one(x), mean)
    # and it has the layers that it is saved as
    widths = Ensemble(hidden, 3).widths
    build_decoder(widths, 3, 2).load_state_dict(one.state_dict())


@pytest.mark.parametrize("hidden", [(5,), (5, 4)])
def test_members_may_have_skip_connections(hidden):
    members = [build_decoder(hidden, 3, 2) for _ in range(3)]
    for at in (0, 2):
        members[at] = skip_connected(members[at])
        torch.nn.init.normal_(members[at][-1].weight)
    x = torch.randn(7, 3)
    mean = torch.stack([member(x) for member in members]).mean(0)
    torch.testing.assert_close(averaged(members)(x), mean)


def test_an_ensemble_predicts_better_than_its_members(data, ensemble):
    own = replace(data, config=replace(data.config, decoder=SMALL.hidden))
    single = train_decoders(own, [COLUMNS] * SMALL.members, 0, distinct=True)
    losses = [log_loss(one) for one in single]
    assert len(set(losses)) == SMALL.members  # each started from its own weights
    assert log_loss(ensemble) < min(losses)


def test_the_mean_is_calibrated(data, ensemble):
    plain = train_ensemble(replace(data, valid=None), COLUMNS, SMALL, seed=0)
    assert plain.tuned is None
    assert ensemble.tuned > 1  # smoothed labels and averaging make it too cautious
    assert log_loss(ensemble) < log_loss(plain)
    given = train_ensemble(replace(data, valid=None), COLUMNS, SMALL, 0, tuned=ensemble.tuned)
    x, _ = new_rows()
    torch.testing.assert_close(given(x), ensemble(x))


def test_numbers_are_predicted_by_the_mean_of_networks_with_solved_last_layers():
    digits = load_digits().data / 16
    source = array_source(digits[:1000])
    config = TrainingConfig(k=8, decoder=(8,), device="cpu", refit_epochs=20)
    y = torch.from_numpy(digits[:, [21]])
    data = prepare(source, moments(source), config, make_loss("mse"), 0, targets=y[:1000], out=1)
    found = train_ensemble(data, COLUMNS, Ensemble((8,), 3), seed=0)
    members = train_decoders(data, [COLUMNS] * 3, 0, distinct=True)
    x, _ = new_rows()
    with torch.no_grad():
        outputs = torch.stack([member(x) for member in members])
        torch.testing.assert_close(found(x), outputs.mean(0))
        assert (found(x) - y[1000:]).square().mean() < (outputs - y[1000:]).square().mean()
    assert found.epochs is not None
