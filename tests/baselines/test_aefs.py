"""AEFS: what the penalty on the first layer does."""

import numpy as np
import pytest
import torch

from fewer.baselines import AEFS, RandomSubset
from fewer.baselines._aefs import first_layer
from fewer.train.device import seeded


def signals_and_noise(seed=0):
    """Columns 0, 1, 2 drive the next nine; the last six are faint noise of their own."""
    rng = np.random.default_rng(seed)
    drivers = rng.normal(size=(400, 3))
    driven = drivers @ rng.normal(size=(3, 9)) + 0.1 * rng.normal(size=(400, 9))
    return np.hstack([drivers, driven, 0.3 * rng.normal(size=(400, 6))])


def fit(X, **options):
    settings = {"alpha": 0.1, "beta": 1e-3, "max_iter": 100} | options
    with seeded(0, torch.device("cpu")):
        return first_layer(torch.from_numpy(X).float(), 6, **settings)


def test_the_objective_is_that_of_the_paper_and_falls():
    X = signals_and_noise()
    _, objective = fit(X, max_iter=1)
    assert objective[-1] < objective[0]
    with seeded(0, torch.device("cpu")):
        encoder, decoder = torch.nn.Linear(18, 6), torch.nn.Linear(6, 18)
    hidden = 1 / (1 + np.exp(-(X @ encoder.weight.detach().numpy().T + _bias(encoder))))
    back = hidden @ decoder.weight.detach().numpy().T + _bias(decoder)
    W1, W2 = (layer.weight.detach().numpy() for layer in (encoder, decoder))
    expected = (
        ((back - X) ** 2).sum() / (2 * len(X))
        + 0.1 * np.linalg.norm(W1, axis=0).sum()
        + 1e-3 / 2 * ((W1**2).sum() + (W2**2).sum())
    )
    assert objective[0] == pytest.approx(expected, rel=1e-4)


def _bias(layer):
    return layer.bias.detach().numpy()


def test_the_penalty_removes_features():
    X = signals_and_noise()
    free, bound = (np.linalg.norm(fit(X, alpha=alpha)[0], axis=1) for alpha in (0.0, 0.3))
    assert (free > 0.02 * free.max()).all()
    assert (bound[12:] < 0.02 * bound.max()).all()
    assert (bound[:12] > 0.02 * bound.max()).sum() >= 3


def test_noise_is_left_out_and_the_rest_reconstructed():
    X = signals_and_noise()
    model = AEFS(k=3, hidden=6, alpha=0.3, random_state=0, device="cpu").fit(X[:300])
    assert model.columns_.max() < 12
    assert model.score(X[300:]) > 0.8
    assert np.isfinite(model.objective_)


def test_units_do_not_matter_as_long_as_all_change():
    X = signals_and_noise()
    models = [
        AEFS(k=4, hidden=6, random_state=0, device="cpu").fit(factor * X + 5.0)
        for factor in (1.0, 1024.0)
    ]
    assert models[0].columns_.tolist() == models[1].columns_.tolist()


def test_better_than_random_on_digits(digits):
    model = AEFS(k=10, hidden=32, max_iter=60, random_state=0, device="cpu").fit(digits[0])
    lot = [RandomSubset(10, random_state=s).fit(digits[0]).score(digits[1]) for s in range(5)]
    assert model.score(digits[1]) > max(lot)
