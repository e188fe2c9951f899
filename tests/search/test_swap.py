import time

import numpy as np
import pytest
import torch

from fewer.constraints import resolve
from fewer.data.factored import FactoredCovariance
from fewer.errors import InputError
from fewer.search import greedy, residual, swap
from fewer.search.swap import Explorer, GroupExchange
from tests.search.brute import KINDS, instance


def neighbours(C, constraints, panel):
    """Objectives of all allowed panels that differ by one unit."""
    units = np.unique(constraints.unit_of[panel])
    for out in units:
        for new in set(range(len(constraints.units))) - set(units.tolist()):
            swapped = [new if unit == out else unit for unit in units]
            other = np.concatenate([constraints.units[unit] for unit in swapped])
            try:
                constraints.check(other)
            except InputError:
                continue
            yield residual(C, other)


RULES = {
    "plain": {"k": 4},
    "include": {"k": 4, "include": [0, 3], "exclude": [1, 5]},
    "budget": {"k": 4, "costs": np.arange(12) % 5 + 1, "budget": 10},
    "spend": {"k": None, "costs": np.arange(12) % 5 + 1, "budget": 10},
    "groups": {"k": 3, "groups": np.arange(12) // 2},
    "included group": {"k": 3, "groups": np.arange(12) // 2, "include": [4]},
    "dear groups": {
        "k": None,
        "groups": np.arange(12) // 2,
        "costs": np.arange(12) % 5 + 1,
        "budget": 10,
    },
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", RULES)
def test_it_ends_where_no_swap_helps(kind, name):
    C = instance(kind, 12, 1)
    constraints = resolve(None, 12, **RULES[name])
    start = greedy(C, constraints).panel()
    found = swap(C, start, constraints)
    constraints.check(found.indices)
    assert found.optimal
    assert found.objective == pytest.approx(residual(C, found.indices), abs=1e-12 * np.trace(C))
    assert found.objective <= residual(C, start)
    best = min(neighbours(C, constraints, found.indices), default=np.inf)
    assert best >= found.objective - 1e-7 * np.trace(C)


def test_many_simultaneous_swaps_end_in_a_local_optimum(digits):
    """With k = 64 of 128 the first rounds take up to 16 swaps together."""
    X = np.hstack([digits[0], digits[0] ** 2])
    C = np.cov(X.T) + 1e-6 * np.eye(128)
    start = np.arange(64)
    found = swap(C, start)
    again = swap(C, found.indices)
    assert found.objective < 0.9 * residual(C, start)
    assert found.evaluations < 64
    assert again.indices.tolist() == found.indices.tolist()


def test_a_singular_start_is_abandoned(digits):
    C = np.cov(digits[0].T)
    C = np.block([[C, C], [C, C]])
    duplicates = [10, 74, 20, 84, 30, 94, 0, 64]
    found = swap(C, duplicates)
    assert found.objective < 0.7 * residual(C, duplicates)
    assert found.objective < 1.05 * greedy(C, 8).errors[-1]


def test_the_start_must_obey_the_rules():
    with pytest.raises(InputError, match="3 units, k=2"):
        swap(np.eye(4), [0, 1, 2], resolve(None, 4, 2))


def test_no_time_returns_the_start():
    C = instance("plain", 12, 0)
    found = swap(C, [0, 1, 2], time_limit=0)
    assert found.indices.tolist() == [0, 1, 2]
    assert not found.optimal


def test_an_optimum_is_scored_once():
    C = np.diag([4.0, 3, 2, 1])
    assert swap(C, [0, 1]).evaluations == 1
    assert swap(C, [0, 2]).evaluations == 2
    rules = resolve(None, 4, 1, groups=[[0, 1], [2, 3]])
    assert swap(C, [0, 1], rules).evaluations == 1
    assert swap(C, [2, 3], rules).evaluations == 2
    explorer = Explorer(
        torch.from_numpy(C), resolve(None, 4, 2), 0.0, np.arange(4), torch.Generator()
    )
    assert explorer.descend(np.array([0, 1])).tolist() == [0, 1]
    assert explorer.steps == 1
    found = explorer.improve([np.array([2, 3]), np.array([0, 3])], 12, [np.arange(0)] * 2)
    assert [panel.tolist() for panel in found] == [[0, 1], [0, 1]]
    assert explorer.steps == 1 + 2 * 12 + 2  # a walk each, and no swap helps in the end


SETS = {"a": range(12), "b": range(6, 20), "c": range(20, 30)}


@pytest.mark.parametrize(
    "options",
    [
        {"sets": SETS, "at_least": {"a": 3}, "at_most": {"b": 2, "c": 3}},
        {"costs": np.arange(40) % 7 + 1.0, "budget": 20.0},
        {
            "costs": np.arange(40) % 7 + 1.0,
            "budget": 20.0,
            "sets": {"c": range(30)},
            "at_most": {"c": 4},
        },
    ],
    ids=["sets", "budget", "both"],
)
@pytest.mark.parametrize("wide", [False, True])
def test_a_bad_start_within_limits_ends_where_no_swap_helps(options, wide):
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(30, 40)) @ rng.normal(size=(40, 40))
    C = rows.T @ rows
    rules = resolve(None, 40, 6, **options)
    start = rules.best(-C.diagonal())
    found = swap(FactoredCovariance(torch.from_numpy(rows)) if wide else C, start, rules)
    rules.check(found.indices)
    assert found.optimal
    assert found.objective < 0.9 * residual(C, start)
    best = min(neighbours(C, rules, found.indices))
    assert best >= found.objective - 1e-7 * np.trace(C)


@pytest.mark.parametrize(
    "options",
    [
        {"sets": {"b": range(64, 128)}, "at_most": {"b": 20}},
        {"costs": np.arange(128) % 7 + 1.0, "budget": 190.0},
    ],
    ids=["sets", "budget"],
)
def test_many_simultaneous_swaps_keep_within_limits(digits, options):
    X = np.hstack([digits[0], digits[0] ** 2])
    C = np.cov(X.T) + 1e-6 * np.eye(128)
    rules = resolve(None, 128, 64, **options)
    start = rules.best(-C.diagonal())
    found = swap(C, start, rules)
    rules.check(found.indices)
    assert found.optimal
    assert found.objective < 0.9 * residual(C, start)


def test_a_start_that_is_filled_avoids_what_is_barred():
    C = instance("plain", 12, 5)
    explorer = Explorer(
        torch.from_numpy(C), resolve(None, 12, 3), 0.0, np.arange(12), torch.Generator()
    )
    path = greedy(C, 3).order
    state = explorer._state([path[:1], path[:1]])
    barred = torch.zeros(2, 12, dtype=torch.bool)
    barred[1, path[1]] = True
    assert explorer._fill(state, barred, 0.0, None)
    first, second = (explorer.places.panel(row) for row in state.S)
    assert sorted(first) == sorted(path)
    rules = resolve(None, 12, 3, include=path[:1], exclude=path[1:2])
    assert sorted(second) == sorted(greedy(C, rules).order)
    assert not explorer._fill(explorer._state([path[:1]]), barred[:1], 0.0, time.monotonic() - 1)


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("ridge", [0.0, 0.3])
@pytest.mark.parametrize(
    "options",
    [
        {"k": 3, "groups": np.arange(10) // 2, "include": [2]},
        {"k": None, "groups": np.arange(10) // 3, "costs": np.arange(10) % 3 + 1, "budget": 11},
        {"k": 2, "groups": np.arange(10) // 3, "costs": np.arange(10.0), "cost_weight": 0.1},
    ],
    ids=["include", "budget", "prices"],
)
def test_gains_of_swapping_groups_are_those_of_the_residual(wide, ridge, options):
    rng = np.random.default_rng(1)
    rows = rng.normal(size=(8, 10))
    matrix = torch.from_numpy(rows.T @ rows)
    rules = resolve(None, 10, **options)
    exchange = GroupExchange(
        FactoredCovariance(torch.from_numpy(rows)) if wide else matrix, rules, ridge
    )
    units = np.array([1, 2]) if rules.k != 3 else np.array([0, 1, 3])
    panel = rules.features(units)
    before = residual(matrix, panel, ridge) + rules.price(panel)
    gains = exchange.gains(units).numpy()
    grows = len(units) < rules.most_units
    assert gains.shape == (len(units) + grows, len(rules.units))
    allowed = 0
    for place, row in enumerate(gains):
        rest = np.delete(units, place) if place < len(units) else units
        for unit, gain in enumerate(row):
            new = rules.features([*rest, unit])
            fixed = place < len(units) and units[place] in rules.included_units
            if unit in units or fixed or not rules.within(new):
                assert gain == -np.inf
            else:
                after = residual(matrix, new, ridge) + rules.price(new)
                assert gain == pytest.approx(before - after, rel=1e-6, abs=1e-6)
                allowed += 1
    assert allowed >= 4
