"""Sets of which at least or at most so many are chosen, and several costs."""

from itertools import combinations

import numpy as np
import pytest
import torch

from fewer.constraints import resolve
from fewer.errors import InputError
from fewer.search import greedy, search, swap
from fewer.search.exchange import Limits
from fewer.search.objective import residual_of
from fewer.search.substitutes import substitutes

D, K = 12, 4


def problem(seed, groups=None):
    """Random limits, tight enough to matter; None where no panel meets them."""
    draw = np.random.default_rng(seed)
    X = draw.normal(size=(50, 5)) @ draw.normal(size=(5, D)) + 0.3 * draw.normal(size=(50, D))
    cost = draw.uniform(1, 3, D)
    options = {
        "sets": {
            name: draw.choice(D, size, replace=False)
            for name, size in zip("abc", (4, 4, 5), strict=True)
        },
        "at_least": {"a": 2},
        "at_most": {"b": 1, "c": 2},
        "costs": {"x": cost, "y": cost[::-1]},
        "budget": {"x": 9, "y": 9},
        "groups": groups,
    }
    try:
        return np.cov(X.T), resolve(None, D, K, **options)
    except InputError:
        return np.cov(X.T), None


def every_panel(rule):
    panels = (rule.features(units) for units in combinations(range(len(rule.units)), K))
    return [panel for panel in panels if rule.within(panel)]


@pytest.mark.parametrize("groups", [None, [[0, 1], [5, 6]]])
@pytest.mark.parametrize("seed", range(6))
def test_search_obeys_and_a_refusal_is_right(seed, groups):
    C, rule = problem(seed, groups)
    if rule is None:
        return
    found = search(C, rule)
    rule.check(found.indices)
    assert found.objective <= residual_of(torch.as_tensor(C), greedy(C, rule).panel(), 0.0) + 1e-9
    if groups is None:
        best = min(residual_of(torch.as_tensor(C), p, 0.0) for p in every_panel(rule))
        assert found.objective == pytest.approx(best, rel=1e-6)


def test_the_random_problems_are_solvable_but_for_some():
    solvable = [problem(seed)[1] is not None for seed in range(6)]
    assert 3 <= sum(solvable) <= 6


@pytest.mark.parametrize("seed", range(3))
def test_no_swap_within_the_limits_helps_in_the_end(seed):
    draw = np.random.default_rng(seed)
    X = draw.normal(size=(200, 15)) @ draw.normal(size=(15, 60)) + draw.normal(size=(200, 60))
    C = np.cov(X.T)
    families = [list(range(start, start + 3)) for start in range(0, 60, 3)]
    sets = dict(enumerate(families)) | {"markers": [50, 53, 56, 59]}
    rule = resolve(None, 60, 12, sets=sets, at_most=dict.fromkeys(range(20), 1),
                   at_least={"markers": 3}, costs={"n": np.ones(60), "y": np.arange(60.0)},
                   budget={"n": 12, "y": 400})  # fmt: skip
    found = search(C, rule, seed=seed)
    rule.check(found.indices)
    for out in found.indices:
        for into in np.setdiff1d(np.arange(60), found.indices):
            other = np.append(np.setdiff1d(found.indices, [out]), into)
            if rule.within(other):
                value = residual_of(torch.as_tensor(C), np.sort(other), 0.0)
                assert value >= found.objective - 1e-6 * np.trace(C)
    assert swap(C, found.indices, rule).objective == pytest.approx(found.objective)
    columns, losses = substitutes(torch.as_tensor(C), found.indices, rule, count=3)
    for place, row in enumerate(columns):
        for into in row[row >= 0]:
            assert rule.within(np.append(np.delete(found.indices, place), into))
    assert np.isfinite(losses).any()


def test_where_greedy_gets_stuck_a_panel_is_found_all_the_same():
    # the best features of "a" shut out "b", of which two are required
    C = np.diag([9.0, 8, 1, 1, 1, 1])
    sets = {"one": [0, 2, 3], "two": [1, 2, 3], "b": [2, 3, 4]}
    rule = resolve(None, 6, 3, sets=sets, at_most={"one": 1, "two": 1}, at_least={"b": 2})
    path = greedy(C, rule)
    rule.check(path.panel())
    rule.check(search(C, rule).indices)


def test_a_budget_without_k_buys_what_is_required():
    draw = np.random.default_rng(0)
    C = np.cov(draw.normal(size=(100, 10)).T) * np.arange(1, 11)[:, None] ** 0.5
    C = C * np.arange(1, 11) ** 0.5
    rule = resolve(None, 10, None, costs=np.arange(1.0, 11), budget=15, sets=[[8, 9]], at_least=1)
    found = search(C, rule).indices
    rule.check(found)
    assert {8, 9} & {*found.tolist()}


@pytest.mark.parametrize("groups", [None, [[0, 1]]])
@pytest.mark.parametrize("k", [3, 4])
def test_swaps_and_additions_that_limits_allow(k, groups):
    sets = {"a": [0, 1, 2], "b": [3, 4]}
    rule = resolve(
        None, 7, k, sets=sets, at_least={"a": 2}, at_most={"a": 3, "b": 1}, groups=groups
    )
    limits, n = Limits(rule, torch.device("cpu")), len(rule.units)
    panels = [p for p in combinations(range(n), k) if rule.within(rule.features(p))]
    S = torch.tensor(panels)
    fits = limits.exchangeable(S)
    for b, panel in enumerate(panels):
        for i in range(k):
            for unit in set(range(n)) - set(panel):
                after = [unit if at == i else one for at, one in enumerate(panel)]
                assert bool(fits[b, i, unit]) == rule.within(rule.features(after))
    assert limits.met(S).all()
    if groups is not None:  # a group may bring more than is required: only a bound then
        return
    for begun in [p for size in range(k) for p in combinations(range(n), size)]:
        finished = [set(p) for p in panels if {*begun} <= {*p}]
        if not finished:
            continue
        S = torch.tensor([[*begun, *[n] * (k - len(begun))]])
        open_ = torch.tensor([[unit not in begun for unit in range(n)]])
        wanted = [unit not in begun and any(unit in p for p in finished) for unit in range(n)]
        assert limits.addable(open_, S)[0].tolist() == wanted
        assert not limits.met(S).any()
