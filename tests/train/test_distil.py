"""Small predictors that learn from wide ones."""

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

import fewer
from fewer.data import moments
from fewer.data.source import array_source
from fewer.nn import make_loss
from fewer.selection.compare_predictors import TargetComparison
from fewer.train import TrainingConfig, train_decoders
from fewer.train.distil import distil
from fewer.train.training_data import prepare


@pytest.fixture(scope="module")
def digits():
    X, y = load_digits(return_X_y=True)
    return X, y, np.random.default_rng(0).permutation(len(X))


def test_a_wide_network_teaches_what_labels_do_not(digits):
    X, y, order = digits
    x = X[:, 20:40:2].copy()
    x[order[:100], 3] = np.nan
    train, test = order[:900], order[900:]
    source, columns = array_source(x[train]), np.arange(x.shape[1])
    loss = make_loss("cross_entropy", smoothing=0.1)
    config = TrainingConfig(k=10, decoder=(12,), norm="batch", dropout=0.1, refit_epochs=10)
    weights = torch.ones(len(train), dtype=torch.float64)
    options = {"targets": torch.from_numpy(y[train]), "out": 10, "weights": weights}
    data = prepare(source, moments(source), config, loss, 0, **options)
    found = []
    for decoder in (train_decoders(data, [columns], 0)[0], distil(data, columns, 0, width=64)):
        assert decoder.net[0].out_features == 12
        likely = decoder(torch.from_numpy(x[test])).detach()
        found.append(float(-likely[range(len(test)), y[test]].log().mean()))
    assert found[1] < 0.95 * found[0]


@pytest.mark.parametrize("better", [True, False])
def test_held_out_rows_decide_whether_to_learn_from_it(digits, monkeypatch, better):
    X, y, order = digits
    taught = []

    def quick(data, columns, seed, *, tuned, width):
        taught.append(train_decoders(data, [columns], seed, effort=0.05)[0])
        return taught[-1]

    def error(self, decoder, *rest):
        return 1.0 if decoder not in taught else 0.5 if better else 2.0

    monkeypatch.setattr("fewer.train.network.MOST_CLASS_EPOCHS", 4)
    monkeypatch.setattr("fewer.selection.compare_predictors.distil", quick)
    monkeypatch.setattr(TargetComparison, "held_out_error", error)
    rows = order[:1000]
    x = X[rows][:, [21, 28, 36, 42]]
    panel = fewer.select(x, 4, target=y[rows], decoder=(8,), random_state=0)
    assert len(taught) == 1 + better  # on the training rows and, if that was better, on all
    used = panel.target.decoder.net[0].weight
    assert torch.equal(used, taught[-1].net[0].weight) == better
