import numpy as np
import pytest
import torch

from fewer.search.eigen import without_chance


@pytest.mark.parametrize("d", [60, 300])
def test_shrunk_correlations_are_closer_to_the_truth(d):
    random = np.random.default_rng(0)
    loadings, noise = random.normal(size=(3, d)), random.uniform(2, 6, d)
    X = random.normal(size=(150, 3)) @ loadings + random.normal(size=(150, d)) * np.sqrt(noise)
    C = np.cov(X.T, bias=True) - np.diag(noise)
    shrunk = without_chance(torch.tensor(C), torch.tensor(noise), 150).numpy()
    off = ~np.eye(d, dtype=bool)
    truth = loadings.T @ loadings
    # half is dropped of what no other feature shares, which here is chance
    assert abs(np.diag(shrunk) - np.diag(truth)).mean() < abs(np.diag(C - truth)).mean()
    errors = [np.square(one - truth)[off].sum() for one in (shrunk, C)]
    assert errors[0] < 0.7 * errors[1]


def test_nothing_is_left_of_noise_alone():
    X = np.random.default_rng(1).normal(size=(100, 80))
    C = torch.tensor(np.cov(X.T, bias=True) - np.eye(80))
    shrunk = without_chance(C, torch.ones(80, dtype=torch.float64), 100)
    shrunk.diagonal().zero_()
    assert shrunk.abs().max() < 0.05


@pytest.mark.parametrize("factors", [1, 2, 3, 5])
@pytest.mark.parametrize(("d", "rows"), [(20, 40), (30, 10), (30, 200), (60, 40)])
def test_factors_without_noise_stay_as_they_are(d, rows, factors):
    random = np.random.default_rng(factors)
    X = random.normal(size=(rows, factors)) @ random.normal(size=(factors, d))
    C = torch.tensor(np.cov(X.T, bias=True))
    shrunk = without_chance(C, torch.zeros(d, dtype=torch.float64), rows)
    torch.testing.assert_close(shrunk, C, rtol=0, atol=1e-6 * float(C.abs().max()))
