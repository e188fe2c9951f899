"""Panels that tolerate missing features, against brute force."""

from itertools import combinations

import numpy as np
import pytest
import torch

from fewer.search import residual
from fewer.search.robust import robust_swaps


@pytest.fixture(scope="module")
def covariance():
    rng = np.random.default_rng(3)
    X = rng.normal(size=(400, 4)) @ rng.normal(size=(4, 12)) + 0.4 * rng.normal(size=(400, 12))
    return torch.from_numpy(np.cov(X.T))


def worst(C, panel, m):
    """The largest residual without m features of a panel, each computed anew."""
    lost = [np.delete(panel, out) for out in map(list, combinations(range(len(panel)), m))]
    return max(residual(C, rest) for rest in lost)


def run(C, start, m, **options):
    variance = C.diagonal().numpy()
    return robust_swaps(lambda j: C[torch.from_numpy(j)], variance, [np.array(start)], m, **options)


@pytest.mark.parametrize("m", [1, 2])
def test_errors_are_those_of_decoders_fitted_again(covariance, m):
    found = run(covariance, [0, 3, 5, 8], m)
    assert found.residual == pytest.approx(residual(covariance, found.columns), rel=1e-6)
    assert found.worst == pytest.approx(worst(covariance, found.columns, m), rel=1e-6)


@pytest.mark.parametrize("m", [1, 2])
@pytest.mark.parametrize("tolerance", [0.025, 0.2, 10.0])
def test_no_panel_within_the_tolerance_is_better(covariance, m, tolerance):
    panels = [np.array(panel) for panel in combinations(range(12), 4)]
    residuals = [residual(covariance, panel) for panel in panels]
    best = panels[int(np.argmin(residuals))]
    bound = (1 + tolerance) * min(residuals)
    allowed = [p for p, r in zip(panels, residuals, strict=True) if r <= bound]
    least = min(worst(covariance, panel, m) for panel in allowed)
    found = run(covariance, best, m, tolerance=tolerance)
    assert found.residual <= bound * (1 + 1e-9)
    assert found.worst == pytest.approx(least, rel=1e-6)


def test_fixed_and_excluded_features(covariance):
    options = {"include": np.array([2]), "exclude": np.array([0, 5, 9])}
    found = run(covariance, [2, 3, 6, 8], 1, tolerance=10.0, **options)
    assert 2 in found.columns
    assert not set(found.columns) & {0, 5, 9}
    assert len(set(found.columns)) == 4


def test_wide_data_are_searched_among_correlated_features(covariance, monkeypatch):
    monkeypatch.setattr("fewer.search.robust.POOL", 8)
    found = run(covariance, [0, 3, 5, 8], 1, tolerance=0.5)
    assert found.worst <= worst(covariance, np.array([0, 3, 5, 8]), 1) * (1 + 1e-9)


def test_dependent_features_are_no_error(covariance):
    C = torch.zeros(13, 13, dtype=torch.float64)
    C[:12, :12] = covariance
    C[12, :12], C[:12, 12], C[12, 12] = covariance[4], covariance[4], covariance[4, 4]
    found = run(C, [0, 4, 8], 1, tolerance=10.0)
    assert np.isfinite(found.worst)
