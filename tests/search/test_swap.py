import numpy as np
import pytest

from fewer.constraints import resolve
from fewer.errors import InputError
from fewer.search import greedy, residual, swap
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
