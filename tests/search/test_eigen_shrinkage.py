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


def reference(C, noise, n):
    """The docstring, step by step."""
    d = len(C)
    gamma, measured = d / n, np.diag(C) + noise
    unit = 1 / np.sqrt(np.maximum(noise, 0.05 * measured))
    M = C.copy()
    np.fill_diagonal(M, measured)
    values, vectors = np.linalg.eigh(unit[:, None] * M * unit)
    values, vectors = values[::-1], vectors[:, ::-1]
    count, sigma2 = 0, values.mean()
    while (more := int((values / sigma2 > (1 + np.sqrt(gamma)) ** 2).sum())) > count:
        count, sigma2 = more, values[more:].mean()
    shrunk = np.zeros((d, d))
    for value, vector in zip(values[:count] / sigma2, vectors.T, strict=False):
        # lambda (l - 1) = l (l - 1 + gamma), of which the larger root
        spike = np.roots([1, gamma - 1 - value, value]).real.max() - 1
        cosine2 = (1 - gamma / spike**2) / (1 + gamma / spike)
        shrunk += sigma2 * spike * cosine2 * np.outer(vector, vector)
    shrunk = shrunk / unit[:, None] / unit
    shared = np.diag(shrunk)
    np.fill_diagonal(shrunk, shared + 0.5 * np.maximum(np.diag(C) - shared, 0))
    return shrunk, count


@pytest.mark.parametrize(("d", "rows"), [(20, 90), (30, 25), (40, 40)])
def test_shrinkage_is_that_of_the_formula(d, rows):
    for seed in range(4):
        random = np.random.default_rng(seed)
        loadings = random.normal(size=(3, d)) * np.array([[3], [1.5], [0.8]])
        noise = random.uniform(0.02, 2, d)  # some below 5% of the variance
        X = random.normal(size=(rows, 3)) @ loadings
        X += random.normal(size=(rows, d)) * np.sqrt(noise)
        C = 7.0 * (np.cov(X.T, bias=True) - np.diag(noise))
        wanted, count = reference(C, 7 * noise, rows)
        assert 1 <= count <= 6
        found = without_chance(torch.tensor(C), torch.tensor(7 * noise), rows).numpy()
        np.testing.assert_allclose(found, wanted, rtol=1e-9, atol=1e-9)


def test_a_feature_that_does_not_vary_changes_nothing():
    """In a fold of few rows a rare gene may be absent; its noise is known from other rows."""
    draw = np.random.default_rng(3)
    X = draw.normal(size=(60, 3)) @ draw.normal(size=(3, 30)) + draw.normal(size=(60, 30))
    C = np.cov(X.T) - np.eye(30)
    wanted = without_chance(torch.tensor(C), torch.ones(30, dtype=torch.float64), 60)
    padded, noise = np.zeros((31, 31)), np.ones(31)
    padded[:30, :30], noise[30] = C, 0.0
    for value in (0.0, -1e-17):
        padded[30, 30] = value
        found = without_chance(torch.tensor(padded), torch.tensor(noise), 60)
        assert torch.isfinite(found).all()
        assert found[30].abs().max() == 0
        gap = (found[:30, :30] - wanted).abs().max()
        assert gap < 0.05 * wanted.abs().max()
