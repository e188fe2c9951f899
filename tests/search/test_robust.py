"""Panels that tolerate missing features, against brute force."""

from itertools import combinations

import numpy as np
import pytest
import torch

from fewer.constraints import resolve
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
    constraints = resolve(None, 12, 4, include=[2], exclude=[0, 5, 9])
    found = run(covariance, [2, 3, 6, 8], 1, constraints=constraints, tolerance=10.0)
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


GROUPS = [[0, 1], [2, 3, 4], [5, 6], [7, 8]]  # 9, 10 and 11 are measured alone


def worst_units(C, panel, constraints, m):
    """The largest residual without m units of a panel, each computed anew."""
    units = np.unique(constraints.unit_of[panel])
    lost = [constraints.features(np.setdiff1d(units, out)) for out in combinations(units, m)]
    return max(residual(C, rest) for rest in lost)


@pytest.mark.parametrize("m", [1, 2])
@pytest.mark.parametrize(
    "options",
    [
        {"k": 3, "groups": GROUPS},
        {"k": None, "groups": GROUPS, "costs": np.arange(12) + 4.0, "budget": 31.0},
        {"k": 4, "costs": np.arange(12) + 4.0, "budget": 36.0},
        {"k": 4, "costs": np.arange(12) + 4.0, "cost_weight": 0.01, "exclude": [3]},
        {
            "k": 4,
            "sets": {"a": [0, 1, 2, 3], "b": [4, 5]},
            "at_most": {"a": 1},
            "at_least": {"b": 1},
        },
    ],
    ids=["groups", "groups, budget", "budget", "cost weight", "sets"],
)
def test_groups_are_missing_together_and_budgets_are_kept(covariance, options, m):
    constraints = resolve(None, 12, **options)
    sizes = [options["k"]] if options["k"] else [3]
    panels = []
    for units in combinations(range(len(constraints.units)), sizes[0]):
        panel = constraints.features(units)
        if constraints.within(panel):
            panels.append(panel)
    values = [residual(covariance, panel) + constraints.price(panel) for panel in panels]
    start = panels[int(np.argmin(values))]
    allowed = [p for p, r in zip(panels, values, strict=True) if r <= 1.3 * min(values)]
    least = min(worst_units(covariance, p, constraints, m) + constraints.price(p) for p in allowed)
    found = run(covariance, start, m, constraints=constraints, tolerance=0.3)
    constraints.check(found.columns)
    assert found.worst == pytest.approx(least, rel=1e-6)
    own = worst_units(covariance, found.columns, constraints, m)
    assert found.worst == pytest.approx(own + constraints.price(found.columns), rel=1e-6)
