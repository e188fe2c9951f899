import numpy as np
import pytest

from fewer.constraints import resolve
from fewer.search import greedy, residual
from tests.search.brute import KINDS, instance, optimum


def slow_greedy(C, k, ridge, first=()):
    """By the definition: try every feature, keep the one with the lowest residual."""
    chosen, errors = [], []
    for place in range(k):
        pool = [first[place]] if place < len(first) else range(len(C))
        values = {j: residual(C, [*chosen, j], ridge) for j in pool if j not in chosen}
        chosen.append(min(values, key=values.get))
        errors.append(values[chosen[-1]])
    return chosen, errors


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("share", [0.0, 0.1])
def test_it_takes_the_best_feature_each_time(kind, share):
    C = instance(kind, 14, 5)
    ridge = share * np.trace(C) / 14
    path = greedy(C, 6, ridge=ridge)
    _, errors = slow_greedy(C, 6, ridge)
    np.testing.assert_allclose(path.errors, errors, atol=1e-7 * np.trace(C))


def test_errors_are_the_residuals_of_the_nested_panels(digits):
    C = np.cov(digits[0].T)
    path = greedy(C, 20)
    for size in (1, 5, 20):
        assert path.panel(size).tolist() == sorted(path.order[:size])
        assert path.errors[size - 1] == pytest.approx(residual(C, path.panel(size)), rel=1e-9)
    assert (np.diff(path.errors) < 0).all()
    assert path.panel(0).size == 0


def test_dependent_columns_come_after_informative_ones_and_constants_last():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 4))
    X = np.hstack([np.zeros((60, 2)), X, X[:, :3], X @ rng.normal(size=(4, 2))])  # rank 4, d 11
    C = np.cov(X.T)
    path = greedy(C, 11)
    assert sorted(path.order) == list(range(11))
    assert residual(C, path.order[:4]) < 1e-12
    assert path.errors[3:] == pytest.approx(np.zeros(8), abs=1e-9)
    assert set(path.order[-2:]) == {0, 1}


def test_small_residuals_keep_their_order():
    """Smooth spectra: after 8 of 200 features almost nothing is left, and still it counts."""
    t = np.linspace(0, 1, 200)
    rng = np.random.default_rng(0)
    centres, weights = rng.uniform(size=(2, 300, 12))
    X = sum(
        w[:, None] * np.exp(-(((t - c[:, None]) / 0.3) ** 2))
        for c, w in zip(centres.T, weights.T, strict=True)
    )
    C = np.cov(X.T)
    path = greedy(C, 8)
    _, errors = slow_greedy(C, 8, 0.0)
    assert errors[-1] < 1e-5 * errors[0]
    np.testing.assert_allclose(path.errors, errors, rtol=1e-3)


def test_included_come_first_and_excluded_never(digits):
    C = np.cov(digits[0].T)
    constraints = resolve(None, 64, 5, include=[20, 44], exclude=[36, 21])
    path = greedy(C, constraints)
    assert set(path.order[:2]) == {20, 44}
    order, _ = slow_greedy(C, 2, 0.0, first=path.order[:2])
    assert order == path.order[:2].tolist()
    constraints.check(path.panel())


def test_groups_are_taken_whole(digits):
    C = np.cov(digits[0].T)
    constraints = resolve(None, 64, 3, groups=np.arange(64) // 4)
    path = greedy(C, constraints)
    assert path.sizes.tolist() == [4, 8, 12]
    best = min((residual(C, unit), tuple(unit)) for unit in constraints.units)
    assert tuple(path.order[:4]) == best[1]
    assert path.errors == pytest.approx([residual(C, path.panel(p)) for p in (1, 2, 3)], rel=1e-9)


def test_a_budget_is_spent_by_gain_or_by_gain_per_cost():
    # one dear feature explains most, three cheap ones together explain more
    C = np.diag([10.0, 6.0, 6.0, 6.0])
    cheap = greedy(C, resolve(None, 4, None, costs=[3, 1, 1, 1], budget=3))
    assert cheap.panel().tolist() == [1, 2, 3]
    C = np.diag([10.0, 2.0, 2.0, 2.0])
    dear = greedy(C, resolve(None, 4, None, costs=[3, 0.9, 0.9, 0.9], budget=3))
    assert dear.panel().tolist() == [0]


def test_a_budget_with_k_leaves_money_for_the_last_place():
    C = np.diag([10.0, 6.0, 5.0, 1.0])
    constraints = resolve(None, 4, 3, costs=[5, 4, 1, 1], budget=7)
    path = greedy(C, constraints)
    constraints.check(path.panel())
    assert path.errors[-1] == pytest.approx(optimum(C, constraints))


def test_a_budget_alone_adds_no_useless_feature():
    C = np.diag([3.0, 1.0, 0.0, 0.0])
    path = greedy(C, resolve(None, 4, None, costs=np.ones(4), budget=4))
    assert path.panel().tolist() == [0, 1]
