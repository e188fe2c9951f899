"""Panels that tolerate missing features, against brute force."""

from itertools import combinations

import numpy as np
import pytest
import torch

from fewer.constraints import resolve
from fewer.search import residual
from fewer.search.robust import _Errors, _Search, robust_swaps
from tests.search.brute import explained


@pytest.fixture(scope="module")
def covariance():
    rng = np.random.default_rng(3)
    X = rng.normal(size=(400, 4)) @ rng.normal(size=(4, 12)) + 0.4 * rng.normal(size=(400, 12))
    return torch.from_numpy(np.cov(X.T))


def worst(C, panel, m):
    """The largest residual without m features of a panel, each computed anew."""
    lost = [np.delete(panel, out) for out in map(list, combinations(range(len(panel)), m))]
    return max(residual(C, rest) for rest in lost)


@pytest.fixture(scope="module")
def all_panels(covariance):
    """All panels of 4, their residuals, and the largest ones without 1 and without 2 features."""
    panels = np.array(list(combinations(range(12), 4)))
    C = covariance.numpy()

    def residuals(k):
        sets = np.array(list(combinations(range(12), k)))
        return dict(zip(map(tuple, sets), np.trace(C) - explained(C, sets, 0.0), strict=True))

    without = {
        m: np.array([max(known[p] for p in combinations(panel, 4 - m)) for panel in panels])
        for m, known in ((1, residuals(3)), (2, residuals(2)))
    }
    return panels, np.array(list(residuals(4).values())), without


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
def test_no_panel_within_the_tolerance_is_better(covariance, all_panels, m, tolerance):
    panels, residuals, without = all_panels
    bound = (1 + tolerance) * residuals.min()
    found = run(covariance, panels[residuals.argmin()], m, tolerance=tolerance)
    assert found.residual <= bound * (1 + 1e-9)
    assert found.worst == pytest.approx(without[m][residuals <= bound].min(), rel=1e-6)


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


@pytest.mark.parametrize("ridge", [0.0, 0.5])
def test_the_residual_after_every_swap(covariance, ridge):
    prices = torch.linspace(0, 2, 12).double()
    total, panel = float(covariance.trace()), torch.tensor([1, 4, 7])
    members = torch.arange(12)[:, None]
    B = covariance @ covariance
    errors = _Errors(covariance, B, total, members, prices, 1, ridge)
    found = errors.after_swaps(panel)
    for place in range(3):
        for unit in range(12):
            if unit in panel:
                assert found[place, unit] == torch.inf
                continue
            new = panel.clone()
            new[place] = unit
            wanted = residual(covariance, new.tolist(), ridge) + float(prices[new].sum())
            assert float(found[place, unit]) == pytest.approx(wanted, rel=1e-6)
            assert float(errors.of(new[None])[0]) == pytest.approx(wanted, rel=1e-6)


@pytest.mark.parametrize("m", [1, 2])
def test_groups_of_two(covariance, m):
    constraints = resolve(None, 12, 3, groups=np.arange(12) // 2)
    found = run(covariance, [0, 1, 4, 5, 8, 9], m, constraints=constraints, tolerance=0.3)
    own = worst_units(covariance, found.columns, constraints, m)
    assert found.worst == pytest.approx(own, rel=1e-6)
    assert found.residual == pytest.approx(residual(covariance, found.columns), rel=1e-6)


def test_what_is_required_stays(covariance, all_panels):
    # with every tolerance, the best panel has none of the set
    free = run(covariance, [0, 3, 5, 8], 1, tolerance=10.0).columns
    others = np.setdiff1d(np.arange(12), free)[:4]
    for limit, options in (("at_least", {"a": 2}), ("at_most", {"b": 1})):
        rules = resolve(
            None,
            12,
            4,
            sets={"a": others} if limit == "at_least" else {"b": free},
            **{limit: options},
        )
        start = rules.best(-np.arange(12.0))
        found = run(covariance, start, 1, constraints=rules, tolerance=10.0)
        rules.check(found.columns)
        within = [rules.within(panel) for panel in all_panels[0]]
        assert found.worst == pytest.approx(all_panels[2][1][within].min(), rel=1e-6)


def test_a_pool_of_correlated_features_has_the_first_one_and_the_starts(monkeypatch):
    # 0 stands in for 9; among the features that are less correlated there is nothing to find
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 12))
    X[:, 0] = X[:, 9] + 0.1 * rng.normal(size=200)
    X[:, 1:9] += 0.3 * X[:, [9]]
    C = torch.from_numpy(np.cov(X.T))
    monkeypatch.setattr("fewer.search.robust.POOL", 3)
    read = []

    def cross(columns):
        read.append(columns)
        return C[torch.from_numpy(columns)]

    start = np.array([9, 11])
    rules = resolve(None, 12, 2, exclude=[10])
    found = robust_swaps(cross, C.diagonal().numpy(), [start], 1, rules, tolerance=10.0)
    assert found.columns.tolist() == [0, 9]
    assert read[-1].tolist() == [0, 9, 11]
    monkeypatch.setattr("fewer.search.robust.POOL", 12)
    robust_swaps(cross, C.diagonal().numpy(), [start], 1, rules, tolerance=10.0)
    assert read[-1].tolist() == [*range(10), 11]  # all that are allowed


def test_no_time_returns_a_start(covariance):
    start = [0, 1, 2, 3]
    found = run(covariance, start, 1, tolerance=10.0, time_limit=0.0)
    assert found.columns.tolist() == start
    longer = run(covariance, start, 1, tolerance=10.0, time_limit=60.0)
    assert longer.worst == run(covariance, start, 1, tolerance=10.0).worst < found.worst


def test_kicks_exchange_features_that_are_not_fixed(covariance):
    members, none = torch.arange(12)[:, None], torch.zeros(12).double()
    errors = _Errors(covariance, covariance @ covariance, 1.0, members, none, 1, 0.0)
    fixed = torch.arange(12) == 3
    open_ = torch.ones(1, 12).double(), torch.tensor([-torch.inf]), torch.tensor([torch.inf])
    search = _Search(errors, fixed, open_, float("inf"))
    panel, random, moved = torch.tensor([1, 3, 5, 7, 8, 10]), np.random.default_rng(0), []
    for _ in range(60):
        new = search.kicked(panel, random).tolist()
        assert len(set(new)) == 6
        assert new[1] == 3
        moved.append(len(set(new) - set(panel.tolist())))
    assert set(moved) == {2, 3}
    few = torch.tensor([1, 3, 5, 7])
    found = [search.kicked(few, random).tolist() for _ in range(20)]
    assert {len(set(new) - set(few.tolist())) for new in found} == {2}
    shut = torch.arange(12)[None].double(), torch.tensor([34.0]), torch.tensor([34.0])
    search = _Search(errors, fixed, shut, float("inf"))
    found = [search.kicked(panel, random).tolist() for _ in range(60)]
    assert {sum(new) for new in found} == {34}
    assert any(new != panel.tolist() for new in found)


def test_so_many_panels_and_patterns_are_evaluated_at_a_time(covariance, monkeypatch):
    members, none = torch.arange(12).view(6, 2), torch.zeros(6).double()
    errors = _Errors(covariance, covariance @ covariance, 1.0, members, none, 2, 0.1)
    panels = torch.combinations(torch.arange(6), 3)
    wanted, patterns, solve = errors.of(panels), [], torch.linalg.solve

    def noted(P, G):
        patterns.append((len(P), P.shape[1]))
        return solve(P, G)

    monkeypatch.setattr(torch.linalg, "solve", noted)
    one_by_one = [(1, 1)] * 20 * 3
    # 6 x 6 numbers of a panel, and 4 x 4 of two of its three pairs of features
    for at_once, calls in ((1, one_by_one), (7 * 36, [(7, 2), (7, 1)] * 2 + [(6, 2), (6, 1)])):
        monkeypatch.setattr("fewer.search.robust.AT_ONCE", at_once)
        patterns.clear()
        for found, value in zip(errors.of(panels), wanted, strict=True):
            torch.testing.assert_close(found, value)
        assert patterns == calls
