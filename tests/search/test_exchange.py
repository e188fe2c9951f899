from itertools import combinations

import numpy as np
import pytest
import torch

from fewer.constraints import resolve
from fewer.data.factored import FactoredCovariance
from fewer.search import residual
from fewer.search.exchange import (
    Exchange,
    Limits,
    Purse,
    WholeExchange,
    best_swap,
    swap_losses,
    whole_exchange,
)
from tests.search.brute import KINDS, instance

PANELS = torch.tensor([[0, 3, 5, 7], [1, 2, 12, 8], [12, 4, 12, 11]])  # 12 marks an empty place


def exchange(C, whole, ridge, S=PANELS):
    C = torch.as_tensor(C)
    if whole:
        return WholeExchange(C, ridge, S)
    return Exchange(C, C @ C, float(C.trace()), ridge, S)


def value(C, places, ridge):
    return residual(C, [s for s in places.tolist() if s < len(C)], ridge)


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("share", [0.0, 0.2])
def test_every_gain_is_the_fall_of_the_residual(kind, whole, share):
    C = instance(kind, 12, 2)
    C /= np.trace(C)
    ridge = share / 12
    state = exchange(C, whole, ridge)
    gains = state.gains()
    for b, S in enumerate(PANELS):
        before = value(C, S, ridge)
        for i in range(4):
            for j in range(12):
                if j in S:
                    assert gains[b, i, j] == -torch.inf
                    continue
                after = S.clone()
                after[i] = j
                gain = before - value(C, after, ridge)
                # a panel with a duplicate is inverted with a trace of ridge
                assert gains[b, i, j] == pytest.approx(
                    gain, abs=1e-4 if kind == "duplicates" else 1e-7
                )


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("ridge", [0.0, 0.5])
def test_updates_equal_a_fresh_start(whole, ridge):
    C = instance("plain", 12, 4)
    state = exchange(C, whole, ridge)
    for step in range(12):
        gain, i, j = best_swap(state.gains())
        moves = torch.tensor([True, step % 3 > 0, step % 2 > 0])
        before = state.S.clone()
        state.swap(i, j, gain, moves)
        assert torch.equal(state.S[~moves], before[~moves])
        fresh = exchange(C, whole, ridge, state.S)
        for name in ("Z", "e", "f", "objective"):
            torch.testing.assert_close(
                getattr(state, name), getattr(fresh, name), rtol=1e-6, atol=1e-6
            )
        assert torch.equal(state.shut[:, :12], fresh.shut[:, :12])


@pytest.mark.parametrize("kind", KINDS)
def test_the_best_swap_is_that_of_all_gains(kind):
    state = exchange(instance(kind, 12, 3), False, 0.0)
    fixed = torch.zeros(3, 4, dtype=torch.bool)
    fixed[0, 2], fixed[1, :] = True, True  # nothing may leave the second panel
    shut = torch.zeros(3, 12, dtype=torch.bool)
    shut[2, :6] = True
    for _ in range(4):
        wanted = [part.clone() for part in best_swap(state.gains(fixed, shut))]
        found = gain, i, j = state.best(fixed, shut)
        for part, other in zip(found, wanted, strict=True):
            assert torch.equal(part[[0, 2]], other[[0, 2]])
        assert gain[1] == -torch.inf
        state.swap(i, j, gain, gain > -torch.inf)


def test_candidates_suffice():
    """Walking over some columns gives the gains that all columns would give."""
    C = torch.as_tensor(instance("plain", 12, 6))
    pick = torch.tensor([1, 2, 4, 7, 9, 10])
    S = torch.tensor([[0, 3, 5]])
    part = Exchange(C[pick][:, pick], (C @ C)[pick][:, pick], float(C.trace()), 0.0, S)
    whole = WholeExchange(C, 0.0, pick[S])
    every = torch.tensor([True])
    for _ in range(3):
        torch.testing.assert_close(part.gains(), whole.gains()[:, :, pick], rtol=1e-6, atol=1e-6)
        gain, i, j = best_swap(part.gains())
        part.swap(i, j, gain, every)
        whole.swap(i, pick[j], gain, every)
    torch.testing.assert_close(part.objective, whole.objective)


def test_fixed_places_and_excluded_candidates():
    C = instance("plain", 12, 8)
    fixed = torch.zeros(3, 4, dtype=torch.bool)
    fixed[:, 1] = True
    shut = torch.zeros(3, 12, dtype=torch.bool)
    shut[:, 10] = True
    gains = exchange(C, False, 0.0).gains(fixed, shut)
    assert (gains[:, 1] == -torch.inf).all()
    assert (gains[:, :, 10] == -torch.inf).all()
    assert torch.isfinite(gains[:, 0, 6]).all()


@pytest.mark.parametrize("left", [1e-8, 1e-2])
@pytest.mark.parametrize("scale", [1.0, 1e6])
def test_what_is_left_is_precise_however_little_it_is(left, scale):
    random = np.random.default_rng(2)
    X = random.normal(size=(9, 3)) @ random.normal(size=(3, 30))
    X = scale * torch.from_numpy(X + left**0.5 * random.normal(size=X.shape))
    C, S, prices = X.T @ X, torch.tensor([[1, 15, 29]]), torch.linspace(0, 2, 30).double()
    Q = torch.linalg.qr(X[:, S[0]])[0]
    Y = X - Q @ (Q.T @ X)
    E = Y.T @ Y
    others = [j for j in range(30) if j not in (1, 15, 29)]
    found = []
    for M in (C, FactoredCovariance(X)):
        state = whole_exchange(M, 0.0, S, prices=prices)
        found.append(state.f[0, others])
        value = float(E.trace() + prices[S[0]].sum())
        assert float(state.objective[0]) == pytest.approx(value, abs=1e-8 * float(C.trace()))
    torch.testing.assert_close(found[0], (E @ E).diagonal()[others], rtol=0.2, atol=0)
    torch.testing.assert_close(*found, rtol=1e-4, atol=0)


def test_losses_of_swaps_with_copies_and_with_the_feature_itself():
    C = instance("plain", 8, 1)
    C = np.block([[C, C], [C, C]])
    for panel in ([0, 3, 6], [0, 3, 8], [15, 2, 4]):  # 8 is a copy of 0
        losses = swap_losses(C, panel)
        before = residual(C, panel)
        for i, out in enumerate(panel):
            for j in range(16):
                if j == out:
                    assert losses[i, j] == 0
                elif j in panel:
                    assert losses[i, j] == np.inf
                else:
                    after = residual(C, [j if one == out else one for one in panel])
                    wanted = max(0.0, after - before)
                    assert losses[i, j] == pytest.approx(wanted, abs=1e-5 * np.trace(C))


@pytest.mark.parametrize("exact", [False, True])
def test_what_a_budget_allows(exact):
    random = np.random.default_rng(0)
    for _ in range(30):
        costs, K = random.integers(0, 5, size=6).astype(float), 3
        ceiling = float(random.integers(3, 9))
        purse = Purse(costs, ceiling, exact, torch.device("cpu"))
        for begun in [p for size in range(K) for p in combinations(range(6), size)]:
            paid = costs[list(begun)].sum()
            if paid > ceiling:
                continue
            S = torch.tensor([[*begun, *[6] * (K - len(begun))]])
            assert purse.slack(S).tolist() == [[ceiling - paid]]
            left = [j for j in range(6) if j not in begun and j != 2]  # 2 may not be used
            open_ = torch.tensor([[j in left for j in range(6)]])
            more = K - len(begun) if exact else 1
            wanted = [
                j in left
                and any(
                    paid + costs[list(rest)].sum() <= ceiling
                    for rest in combinations(left, more)
                    if j in rest
                )
                for j in range(6)
            ]
            if exact and not any(wanted):
                continue  # no panel can be completed
            assert purse.addable(open_, S)[0].tolist() == wanted
            fits = purse.exchangeable(S)[0]
            for i, one in enumerate(S[0].tolist()):
                rest = paid - (costs[one] if one < 6 else 0)
                assert fits[i].tolist() == [rest + cost <= ceiling for cost in costs]


def test_limits_among_candidates():
    """Candidates are some of the features, in any order; -1 is one that is never chosen."""
    options = {
        "sets": {"a": [0, 1, 2], "b": [3, 4]},
        "at_most": {"a": 1, "b": 1},
        "costs": {
            "x": [0.0, 1, 0, 0, 0, 0],
            "y": [3.0, 1, 2, 1, 2, 1],
            "z": [0.0, 0, 1, 0, 0, 0],
        },
        "budget": {"x": 1, "y": 6, "z": 0},
    }
    rule = resolve(None, 6, 3, **options)
    units = np.array([5, -1, 0, 3, 4])
    limits = Limits(rule, torch.device("cpu"), units)
    panels = [p for p in combinations((0, 2, 3, 4), 3) if rule.within(units[list(p)])]
    assert [units[list(p)].tolist() for p in panels] == [[5, 0, 3], [5, 0, 4]]
    for panel in panels:
        fits = limits.exchangeable(torch.tensor([panel]))[0]
        for i in range(3):
            for j in {0, 2, 3, 4} - set(panel):
                after = [units[j if at == i else one] for at, one in enumerate(panel)]
                assert bool(fits[i, j]) == rule.within(np.array(after))


def test_what_is_required_comes_first_where_a_budget_decides():
    rule = resolve(None, 6, None, costs=np.ones(6), budget=5, sets={"a": [0, 1, 2], "b": [2, 3]},
                   at_least={"a": 1, "b": 1})  # fmt: skip
    limits, n = Limits(rule, torch.device("cpu")), 6
    empty = torch.tensor([[n] * rule.most_units])

    def addable(*features):
        S = empty.clone()
        S[0, : len(features)] = torch.tensor(features, dtype=torch.long)
        open_ = torch.tensor([[j not in features for j in range(n)]])
        found = limits.addable(open_, S)[0]
        return torch.nonzero(found).flatten().tolist(), bool(limits.met(S)[0])

    assert addable() == ([0, 1, 2, 3], False)
    assert addable(0) == ([2, 3], False)
    assert addable(3) == ([0, 1, 2], False)
    assert addable(2) == ([0, 1, 3, 4, 5], True)
    assert addable(0, 3) == ([1, 2, 4, 5], True)


def test_groups_with_several_features_of_a_set():
    rule = resolve(None, 6, 3, groups=[[0, 1]], sets={"a": [0, 1, 2], "b": [3]},
                   at_most={"a": 2}, at_least={"b": 1})  # fmt: skip
    limits = Limits(rule, torch.device("cpu"))
    group, two, three, four = (int(rule.unit_of[j]) for j in (0, 2, 3, 4))
    n = len(rule.units)

    def addable(*units):
        S = torch.tensor([[*units, *[n] * (3 - len(units))]])
        open_ = torch.tensor([[unit not in units for unit in range(n)]])
        return limits.addable(open_, S)[0]

    assert addable().all()
    assert not addable(two)[group]  # three of which two are allowed
    assert not addable(group)[two]
    assert addable(group)[four]
    assert addable(two, four).tolist() == [unit == three for unit in range(n)]
    fits = limits.exchangeable(torch.tensor([[group, three, four]]))[0]
    assert fits[2].tolist() == [unit not in (group, two) for unit in range(n)]
    assert fits[0, two]
