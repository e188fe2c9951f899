"""What features cost, against objectives written out by hand."""

from itertools import combinations, product

import numpy as np
import pytest
import torch

import fewer
from fewer.constraints import resolve
from fewer.search import greedy, search
from fewer.search.exchange import Exchange, WholeExchange
from fewer.search.swap import swap
from tests.search.brute import instance

D, K, WEIGHT = 7, 3, 0.04


def mean_squared_error(C, S):
    """Of linear regression on S, per feature."""
    S = list(S)
    left = C - C[:, S] @ np.linalg.pinv(C[np.ix_(S, S)], hermitian=True) @ C[S]
    return np.trace(left) / len(C)


@pytest.mark.parametrize("seed", range(4))
def test_each_unit_of_cost_adds_its_weight_to_the_mean_squared_error(seed):
    C = instance("plain", D, seed)
    C /= np.trace(C) / D
    costs = np.random.default_rng(seed).uniform(0, 5, D).round(1)
    constraints = resolve(None, D, K, costs=costs, cost_weight=WEIGHT)

    def total(S):
        return mean_squared_error(C, S) + WEIGHT * costs[list(S)].sum()

    panels = list(combinations(range(D), K))
    best = min(panels, key=total)
    found = search(C, constraints, seed=0)
    assert tuple(found.indices) == best
    assert found.objective == pytest.approx(D * total(best))
    # from every start, swaps end where no single one helps, and say where that is
    for start in panels[::6]:
        ended = swap(C, start, constraints)
        assert ended.objective == pytest.approx(D * total(ended.indices))
        for out in ended.indices:
            for into in set(range(D)) - set(ended.indices.tolist()):
                other = sorted({*ended.indices.tolist(), into} - {int(out)})
                assert total(other) >= total(ended.indices) - 1e-12
    # greedy takes the feature with the lowest sum first
    first = greedy(C, resolve(None, D, 1, costs=costs, cost_weight=WEIGHT)).order[0]
    assert first == min(range(D), key=lambda j: total([j]))


@pytest.mark.parametrize("whole", [True, False])
def test_prices_are_part_of_the_objective_and_of_every_gain(whole):
    C = torch.as_tensor(instance("plain", D, 6))
    S, prices = torch.tensor([[0, 2, 5], [1, 3, 4]]), torch.linspace(0.5, 3, D, dtype=C.dtype)
    options = {"prices": prices}
    state = (
        WholeExchange(C, 0.0, S, **options)
        if whole
        else Exchange(C, C @ C, float(C.trace()), 0.0, S, **options)
    )

    def total(panel):
        return D * mean_squared_error(C.numpy(), panel) + float(prices[list(panel)].sum())

    gains = state.gains()
    for b, panel in enumerate(S.tolist()):
        assert float(state.objective[b]) == pytest.approx(total(panel))
        for i, j in product(range(3), set(range(D)) - set(panel)):
            after = [j if at == i else s for at, s in enumerate(panel)]
            assert float(gains[b, i, j]) == pytest.approx(total(panel) - total(after), abs=1e-6)


def test_prices_count_once_per_group():
    C = instance("plain", D, 5)
    C /= np.trace(C) / D
    costs = [1, 4, 2, 2, 6, 1, 3]
    constraints = resolve(None, D, 2, costs=costs, cost_weight=0.1, groups=[[0, 1], [2, 3, 4]])
    assert constraints.cost([0, 1, 2, 3, 4]) == 4 + 6
    assert constraints.price([0, 1, 5]) == pytest.approx((4 + 1) * 0.1 * D)


def test_select_trades_error_for_cost_in_scaled_units():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 2)) @ rng.normal(size=(2, 6)) + 0.1 * rng.normal(size=(200, 6))
    options = {"strategies": ["search"], "validation": 0.2, "random_state": 0, "device": "cpu"}
    free = fewer.select(X, 2, **options)
    costs = np.where(np.isin(np.arange(6), free.indices), 1.0, 0.0)
    assert fewer.select(X, 2, costs=costs, cost_weight=1e-9, **options).features == free.features
    dear = fewer.select(X, 2, costs=costs, cost_weight=10.0, **options)
    assert not set(dear.features) & set(free.features)
    assert dear.leaderboard[0]["price"] == 0
