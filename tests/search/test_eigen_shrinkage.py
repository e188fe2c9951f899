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
