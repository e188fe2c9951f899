"""Walks over panels, against simulations that compute every residual anew."""

import sys
import time

import numpy as np
import pytest
import torch

from fewer.constraints import resolve
from fewer.data.factored import FactoredCovariance
from fewer.search import greedy, residual, swap
from fewer.search.exchange import Places
from fewer.search.swap import Explorer, GroupExplorer, Walk, swap_groups
from tests.search.brute import instance

swap_module = sys.modules["fewer.search.swap"]  # fewer.search.swap is the function
NOTHING = np.arange(0)


def explorer_of(C, rules, ridge=0.0, candidates=None, seed=0):
    at = np.arange(len(C)) if candidates is None else candidates
    return Explorer(C, rules, ridge, at, torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(("d", "longest"), [(8, 2), (6, 8)])  # in the second, some steps are barred
def test_a_walk_takes_the_best_swap_that_is_not_barred(d, longest):
    C, random = instance("plain", d, 3), np.random.default_rng(1)
    rules = resolve(None, d, 3, include=[2])
    explorer = explorer_of(torch.from_numpy(C), rules)
    state = explorer._state([[2, 0, 1], [2, 3, 5]])
    steps, tenures = 14, torch.from_numpy(random.integers(0, longest, size=(14, 2, 2)))
    back = torch.zeros(2, d + 1, dtype=torch.long)
    back[0, 4] = 3
    panels, until, leave = state.S.clone().numpy(), back.clone().numpy(), np.zeros((2, 3))
    best = [residual(C, panel) for panel in panels]
    found, stuck = panels.copy(), 0
    walk = Walk(explorer.places, state, back, tenures)
    for now in range(1, steps + 1):
        walk.step(fresh=now % 4 == 0)
        for b in range(2):
            values = {}
            for i in range(1, 3):  # the first place has the included feature
                for j in set(range(d)) - set(panels[b].tolist()):
                    if leave[b, i] < now and until[b, j] < now:
                        other = panels[b].copy()
                        other[i] = j
                        values[i, j] = residual(C, other)
            if not values:
                stuck += 1
                continue
            i, j = min(values, key=lambda pair: values[pair])
            until[b, panels[b, i]] = now + tenures[now - 1, 0, b]
            leave[b, i] = now + tenures[now - 1, 1, b]
            panels[b, i] = j
            if values[i, j] < best[b]:
                best[b], found[b] = values[i, j], panels[b]
        np.testing.assert_array_equal(walk.state.S, panels)
    assert bool(stuck) == (d == 6)
    np.testing.assert_array_equal(walk.found, found)
    np.testing.assert_allclose(walk.best, best)
    np.testing.assert_array_equal(walk.back, until)
    np.testing.assert_array_equal(walk.leave, leave)


@pytest.mark.parametrize("share", [60, 600])
@pytest.mark.parametrize("noise", [0.0, 0.5])
def test_empty_places_are_filled_by_weighted_gains(noise, share, monkeypatch):
    C = instance("plain", 9, 4)
    random = np.random.default_rng(0)
    rules = resolve(None, 9, 4, costs=random.uniform(0, 4, size=9), cost_weight=np.trace(C) / share)
    explorer = explorer_of(torch.from_numpy(C), rules, 0.1, seed=5)
    weight = torch.from_numpy(random.uniform(0.2, 5, size=(2, 9)))
    monkeypatch.setattr(explorer, "_thrift", lambda B: weight)
    state = explorer._state([[0], []])
    barred = torch.zeros(2, 9, dtype=torch.bool)
    barred[0, :6] = True  # more than can be done without
    assert explorer._fill(state, barred, noise, time.monotonic() + 1000)
    generator = torch.Generator().manual_seed(5)
    panels, negative = [[0], []], 0
    for _ in range(4):
        draw = torch.randn(2, 9, generator=generator, dtype=torch.float64)
        factor = (weight * (noise * draw).exp()).numpy()
        for b, panel in enumerate(panels):
            if len(panel) == 4:
                continue
            left = [j for j in range(9) if j not in panel]
            before = residual(C, panel, 0.1) + rules.price(panel)
            gains = {j: before - residual(C, [*panel, j], 0.1) - rules.price([*panel, j])
                     for j in ([j for j in left if not barred[b, j]] or left)}  # fmt: skip
            pick = max(gains, key=lambda j: gains[j] * factor[b, j] ** (1 if gains[j] > 0 else -1))
            negative += gains[pick] < 0
            panel.append(pick)
    assert bool(negative) == (share == 60)
    assert [set(row.tolist()) for row in state.S] == [set(panel) for panel in panels]


def test_budgets_weigh_gains_by_costs_to_random_powers():
    costs = np.array([0.0, 2.0, 5.0, 1.0])
    rules = resolve(None, 4, None, costs=costs, budget=6.0)
    weights = explorer_of(torch.eye(4).double(), rules)._thrift(4000).numpy()
    powers = -np.log(weights[:, 2]) / np.log(5)
    assert powers.min() == 0
    assert powers.max() == pytest.approx(1)
    for bound in (0, 1):
        assert np.isclose(powers, bound).mean() == pytest.approx(1 / 6, abs=0.03)
    inside = powers[(powers > 0.001) & (powers < 0.999)]
    assert np.quantile(inside, [0.25, 0.5, 0.75]) == pytest.approx([0.25, 0.5, 0.75], abs=0.05)
    assert weights == pytest.approx(np.maximum(costs, 0.1) ** -powers[:, None])
    free = resolve(None, 4, None, costs=np.zeros(4), budget=6.0)
    assert (explorer_of(torch.eye(4).double(), free)._thrift(20) >= 1).all()
    plain = explorer_of(torch.eye(4).double(), resolve(None, 4, 2))
    assert plain._thrift(3).tolist() == [[1.0] * 4] * 3


@pytest.fixture
def walks(monkeypatch):
    """What each walk starts with, and which of its steps are fresh."""
    seen = []

    class Noted(Walk):
        def __init__(self, places, state, back, tenures):
            self.fresh = []
            seen.append((state.S.clone(), back.clone(), tenures, self.fresh))
            super().__init__(places, state, back, tenures)

        def step(self, fresh):
            self.fresh.append(fresh)
            super().step(fresh)

    monkeypatch.setattr(swap_module, "Walk", Noted)
    return seen


def test_walks_begin_without_what_was_taken_out(walks, monkeypatch):
    monkeypatch.setattr(swap_module, "REFRESH", 3)
    C = instance("plain", 40, 5)
    explorer = explorer_of(torch.from_numpy(C), resolve(None, 40, 12, include=[7]))
    assert explorer.stay == (9, 3)  # (40 - 12) // 3, and 11 // 3
    full = greedy(C, resolve(None, 40, 12, include=[7])).panel()
    out = np.setdiff1d(full, [7])[:3]
    explorer.improve([np.setdiff1d(full, out), full], 200, [out, NOTHING])
    S, back, tenures, fresh = walks[0]
    assert back.shape[0] == 2
    wanted = np.zeros(40)
    wanted[out] = 1 + 9
    np.testing.assert_array_equal(back[0, :40], wanted)
    assert not back[1].any()
    assert not set(S[0].tolist()) & set(out.tolist())
    assert sorted(S[1].tolist()) == full.tolist()
    assert tenures.shape == (200, 2, 2)
    assert set(tenures[:, 0].flatten().tolist()) == {*range(9, 19)}
    assert set(tenures[:, 1].flatten().tolist()) == {*range(3, 7)}
    assert fresh == [step % 3 == 0 for step in range(1, 201)]


@pytest.mark.parametrize(("d", "k", "stay"), [(80, 20, (10, 5)), (20, 14, (2, 4)), (9, 2, (2, 0))])
def test_how_long_features_stay(d, k, stay):
    assert explorer_of(torch.eye(d).double(), resolve(None, d, k)).stay == stay


def test_how_much_work_is_done_at_a_time(monkeypatch):
    monkeypatch.setattr(swap_module, "CPU_BATCH", 4 * 30 * 7)
    monkeypatch.setattr(swap_module, "CPU_STEPS", 4 * 30 * 11)
    C, rules = torch.eye(30).double(), resolve(None, 30, 4)
    explorer = explorer_of(C, rules)
    assert (explorer.batch, explorer.patience) == (7, 11)
    half = explorer_of(C, rules, candidates=np.arange(15))
    assert (half.batch, half.patience) == (14, 22)


def test_walks_end_when_time_is_over():
    C = torch.from_numpy(instance("plain", 12, 2))
    rules = resolve(None, 12, 3)
    best = swap(C, greedy(C, rules).panel()).indices
    panels = [best, np.array([0, 1, 2])]
    now = time.monotonic()
    for deadline, made in ((None, 20), (now + 1000, 20), (now - 1, 8)):
        explorer = explorer_of(C, rules)
        found = explorer.improve(panels, 20, [NOTHING] * 2, deadline=deadline)
        assert len(found) == 2
        swaps = explorer.steps - 2 * made  # of the descents at the end
        assert swaps % 2 == 0
        assert 2 <= swaps <= 6
    assert explorer_of(C, rules).improve([best[:2]], 20, [best[2:]], deadline=-1.0) == []


@pytest.mark.parametrize("wide", [1, 5, 1e9])
def test_walks_among_some_features(wide, monkeypatch):
    random = np.random.default_rng(0)
    rows = torch.from_numpy(random.normal(size=(9, 5)) @ random.normal(size=(5, 60)))
    rows = rows + 0.3 * torch.from_numpy(random.normal(size=(9, 60)))
    rules, some = resolve(None, 60, 4), np.arange(0, 60, 60 // 45 + 1)
    monkeypatch.setattr(swap_module, "WIDE", wide if wide != 5 else len(some) / 9)
    starts, out = [some[:4], some[5:8]], [NOTHING, some[9:12]]
    found = []
    for C in (FactoredCovariance(rows), rows.T @ rows):
        explorer = explorer_of(C, rules, 0.1, some)
        if isinstance(C, FactoredCovariance):
            assert (explorer.square is None) == (wide == 1)
        found.append([panel.tolist() for panel in explorer.improve(starts, 12, out)])
    assert found[0] == found[1]
    assert {feature for panel in found[0] for feature in panel} <= set(some.tolist())


def test_a_panel_that_lacks_what_is_required_is_replaced():
    rules = resolve(None, 6, 3, sets={"a": [0, 1]}, at_least={"a": 1})
    explorer = explorer_of(torch.eye(6).double(), rules)
    safe = np.array([0, 4, 5])
    for given, kept in ((safe, [[1, 2, 3], [0, 4, 5]]), (None, [[1, 2, 3], [2, 3, 4]])):
        state = explorer._state([[1, 2, 3], [2, 3, 4]])
        explorer._replace_stuck(state, given)
        assert [sorted(row.tolist()) for row in state.S] == kept


@pytest.mark.parametrize("slack", [2.0, 3.0])
@pytest.mark.parametrize(("batch", "least"), [(3, 0.5), (2, 0.5), (3, 2.0), (0, 0.5)])
def test_several_swaps_at_once(slack, batch, least):
    gains = torch.full((1, 5, 8), -torch.inf, dtype=torch.float64)
    for place, (feature, gain) in enumerate([(5, 5.0), (5, 4.0), (6, 3.0), (7, 2.0), (7, 0.1)]):
        gains[0, place, feature] = gain
    costs = [1.0, 1, 1, 1, 1, 3, 2, 0]
    for limited in (False, True):
        options = {"costs": costs, "budget": 5 + slack} if limited else {}
        places = Places(resolve(None, 8, 5, **options), torch.device("cpu"))
        new = swap_module._several(gains, places.fill([range(5)]), batch, least, places)
        # the second brings the same feature as the first; the third costs one more
        wanted, third = [0, 1, 2, 3, 4], slack == 3 or not limited
        if batch:
            wanted[0] = 5
        if batch and third:
            wanted[2] = 6
        if batch == 3 and third and least < 2:
            wanted[3] = 7
        assert new[0].tolist() == wanted


@pytest.mark.parametrize(("first", "few"), [(44, True), (45, False)])
def test_wide_data_start_with_promising_features(first, few, monkeypatch):
    rows = torch.from_numpy(np.random.default_rng(0).normal(size=(8, 90)))
    C = FactoredCovariance(rows)
    monkeypatch.setattr(swap_module, "FIRST_CANDIDATES", first)
    best = swap(C, np.arange(4)).indices
    assert swap(C, best).evaluations == 1 + 2 * few  # all, those among the best, and all again
    assert swap(C, best, thorough=False).optimal == (not few)


def test_groups_are_swapped_until_time_is_over_or_gains_are_rounding(monkeypatch):
    C = torch.from_numpy(instance("plain", 8, 1))
    rules = resolve(None, 8, 2, groups=np.arange(8) // 2)
    start, late = np.array([0, 1, 2, 3]), time.monotonic() - 1
    panel, value, evaluations, optimal = swap_groups(C, start, rules, 0.0, late, 0.0)
    assert (panel.tolist(), evaluations, optimal) == (start.tolist(), 0, False)
    assert value == residual(C, start)
    assert swap_groups(C, start, rules, 0.0, late + 1000, 0.0)[3]
    other = residual(C, [0, 1, 4, 5])
    gains = torch.full((2, 4), -torch.inf)
    gains[1, 2] = 2 * abs(other - value) + 1
    monkeypatch.setattr(swap_module.GroupExchange, "gains", lambda *_: gains)
    least = (value - other) * 2 if other < value else 2 * (other - value)
    found = swap_groups(C, start, rules, 0.0, time.monotonic() + 5, least)
    assert (found[0].tolist(), found[2], found[3]) == (start.tolist(), 1, True)


def test_groups_are_filled_and_swapped_from_each_panel():
    C = instance("plain", 10, 2)
    rules = resolve(None, 10, 3, groups=np.arange(10) // 2, include=[4])
    explorer = GroupExplorer(torch.from_numpy(C), rules, 0.0, 0.0)
    starts, out = [np.array([4, 5]), np.array([2, 3, 4, 5])], [np.array([0, 1]), NOTHING]
    late = time.monotonic() - 1
    assert len(explorer.improve(starts, 1, out, deadline=late)) == 1
    assert len(explorer.improve(starts, 1, out, deadline=late + 1000)) == 2
    explorer.steps = 0
    found = explorer.improve(starts, 1, out)
    assert len(found) == 2
    for panel in found:
        assert swap(C, panel, rules).evaluations == 1
        rules.check(panel)
    full = explorer._fill(starts[0], out[0])
    without = resolve(None, 10, 3, groups=np.arange(10) // 2, include=[4], exclude=[0, 1])
    assert full.tolist() == greedy(C, without).panel().tolist()
    # also within limits
    bounds = {"include": [4], "sets": {"a": [6]}, "at_most": {"a": 0}}
    limited = resolve(None, 10, 3, groups=np.arange(10) // 2, **bounds)
    within = GroupExplorer(torch.from_numpy(C), limited, 0.0, 0.0)._fill(
        starts[0], np.array([8, 9])
    )
    assert within.tolist() == [0, 1, 2, 3, 4, 5]
    every = np.setdiff1d(np.arange(10), [4, 5])
    assert explorer._fill(starts[0], every).tolist() == greedy(C, rules).panel().tolist()
    again = GroupExplorer(torch.from_numpy(C), rules, 0.0, 0.0)
    again.improve([found[0]], 1, [NOTHING])
    assert again.steps == 1


@pytest.fixture
def script(monkeypatch):
    """Outcomes of rounds of swaps instead of the real ones, and how many each may make."""
    several, single, batches, counts = [], [], [], []
    real = swap_module._one_by_one

    def all_at_once(gains, S, batch, least, places):
        batches.append(batch)
        new = S.clone()
        for out, into in several.pop(0).items():
            new[out == S] = into
        return new

    def one_by_one(state, places, count, least, deadline):
        counts.append(count)
        if not single:
            return real(state, places, count, least, deadline)
        state.reset(places.fill([single.pop(0)]))
        return 1, False

    monkeypatch.setattr(swap_module, "MANY", 2)
    monkeypatch.setattr(swap_module, "_several", all_at_once)
    monkeypatch.setattr(swap_module, "_one_by_one", one_by_one)
    return several, single, batches, counts


VARIANCES = np.diag(np.arange(24.0, 0, -1))  # the first features are the best


def with_swaps(**swaps):
    """The features 4 to 19, of which some are swapped."""
    return sorted({*range(4, 20), *swaps.get("into", ())} - {*swaps.get("out", ())})


def test_fewer_swaps_are_made_at_once_when_they_do_not_help(script):
    several, _, batches, counts = script
    several += [{18: 0, 19: 1}, {4: 22, 5: 23}, {4: 22, 5: 23}]
    found = swap(VARIANCES, with_swaps())
    assert batches == [4, 4, 2]  # a quarter of the places, then half of that
    assert counts == [16 + swap_module.MORE]
    assert found.indices.tolist() == [*range(16)]
    assert found.evaluations == 3 + 3  # two more swaps, and that none helps
    assert found.optimal


def test_one_swap_at_a_time_where_few_help(script):
    several, _, batches, counts = script
    several += [{19: 0}]
    assert swap(VARIANCES, with_swaps()).indices.tolist() == [*range(16)]
    assert (batches, counts) == ([4], [16 + swap_module.MORE])
    batches.clear(), counts.clear()
    rules = resolve(None, 24, 16, sets={"a": [0, 1]}, at_most={"a": 1})
    swap(VARIANCES, with_swaps(), rules)  # sets make swaps depend on each other
    assert (batches, counts) == ([], [16 + swap_module.MORE])
    batches.clear(), counts.clear()
    assert swap(VARIANCES, [0, 1, 2, 3, 7]).evaluations == 2  # too few places
    assert (batches, counts) == ([], [5 + swap_module.MORE])
    several += [{}]
    late = swap(VARIANCES, with_swaps(), time_limit=0)
    assert (late.optimal, late.evaluations) == (False, 0)


def test_swaps_that_made_it_worse_are_undone_and_made_one_by_one(script):
    several, single, _, counts = script
    several += [{}]
    single += [with_swaps(into=(23,), out=(4,)), with_swaps(into=(22,), out=(5,))]
    found = swap(VARIANCES, with_swaps())
    assert counts == [16 + swap_module.MORE, 1]
    assert found.indices.tolist() == with_swaps()
    several += [{}]
    single += [with_swaps(into=(23,), out=(4,)), with_swaps(into=(0,), out=(19,))]
    assert swap(VARIANCES, with_swaps()).indices.tolist() == [*range(16)]
    assert counts[2:4] == [16 + swap_module.MORE, 1]
