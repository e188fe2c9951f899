import sys
import time
from itertools import combinations

import numpy as np
import pytest
import torch

from fewer.constraints import resolve
from fewer.data.factored import FactoredCovariance
from fewer.errors import FewerWarning, InputError
from fewer.search import greedy, residual, search, swap
from fewer.search.swap import Explorer
from tests.search.brute import KINDS, instance, optimum


def plain(rng, d, k):
    return resolve(None, d, k)


def fixed(rng, d, k):
    some = rng.permutation(d)
    return resolve(None, d, k, include=some[: k // 2], exclude=some[-2:])


def spend(rng, d, k):
    costs = rng.integers(1, 10, d)
    return resolve(None, d, None, costs=costs, budget=costs.min() + 0.3 * costs.sum())


def budget(rng, d, k):
    costs = rng.integers(1, 10, d)
    return resolve(None, d, k, costs=costs, budget=1.3 * np.sort(costs)[:k].sum())


def groups(rng, d, k):
    labels = rng.integers(0, d // 2, d)
    return resolve(None, d, min(k, len(set(labels))), groups=labels)


def priced(rng, d, k):
    return resolve(None, d, k, costs=rng.integers(1, 10, d), cost_weight=0.5 / d)


def priced_groups(rng, d, k):
    labels = rng.integers(0, d // 2, d)
    k = min(k, len(set(labels)))
    return resolve(None, d, k, groups=labels, costs=rng.integers(1, 10, d), cost_weight=0.5 / d)


def priced_budget(rng, d, k):
    costs = rng.integers(1, 10, d)
    limit = costs.min() + 0.3 * costs.sum()
    return resolve(None, d, None, costs=costs, budget=limit, cost_weight=0.5 / d)


@pytest.mark.parametrize(
    "rule_of", [plain, fixed, spend, budget, groups, priced, priced_groups, priced_budget]
)
def test_walks_find_the_optimum(rule_of, monkeypatch):
    """Against all panels: at least 95 in 100 instances, of every kind together."""
    monkeypatch.setattr("fewer.search.subset.MOST_PANELS", 0)
    hits = []
    for kind in KINDS:
        for seed in range(6 if rule_of is plain else 3):
            rng = np.random.default_rng(seed)
            d = int(rng.integers(6, 13))
            constraints = rule_of(rng, d, int(rng.integers(1, min(d - 2, 7))))
            C = instance(kind, d, seed)
            ridge = 0.05 * np.trace(C) / d if seed % 3 == 2 else 0.0
            found = search(C, constraints, ridge=ridge, seed=seed, stall=1)
            constraints.check(found.indices)
            price = constraints.price(found.indices)
            assert found.objective == residual(C, found.indices, ridge) + price
            hits.append(found.objective <= optimum(C, constraints, ridge) + 1e-7 * np.trace(C))
    assert np.mean(hits) >= 0.95


def test_every_chosen_feature_is_worth_its_price():
    rng = np.random.default_rng(0)
    for seed in range(5):
        C = instance("plain", 30, seed)
        costs = rng.integers(1, 10, 30)
        constraints = resolve(
            None, 30, None, costs=costs, budget=0.5 * costs.sum(), cost_weight=0.3
        )
        found = search(C, constraints, seed=seed, stall=1)
        for out in range(len(found.indices)):
            rest = np.delete(found.indices, out)
            assert residual(C, rest) + constraints.price(rest) >= found.objective * (1 - 1e-9)


@pytest.fixture(scope="module")
def C(digits):
    return np.cov(digits[0].T)


def test_it_beats_greedy_and_swaps(C):
    path = greedy(C, 10)
    swaps = search(C, 10, stall=0)
    found = search(C, 10)
    assert found.objective < 0.995 * swaps.objective < path.errors[-1]
    assert found.stopped == "stall"
    assert found.trace[0][1] == pytest.approx(path.errors[-1])
    assert [value for _, value in found.trace] == sorted(
        (value for _, value in found.trace), reverse=True
    )
    assert found.trace[-1][1] == found.objective == found.elite[0][0]
    values = [residual(C, panel) for _, panel in found.elite]
    assert values == sorted(values)
    assert len({tuple(panel) for _, panel in found.elite}) == len(found.elite) > 3


def test_the_same_seed_gives_the_same_panel(C):
    one, two = (search(C, 6, seed=3, stall=2) for _ in range(2))
    assert one.indices.tolist() == two.indices.tolist()
    assert [value for value, _ in one.elite] == [value for value, _ in two.elite]


def test_global_random_state_and_threads_are_unchanged(C):
    before, threads = torch.get_rng_state(), torch.get_num_threads()
    search(C, 6, stall=1)
    assert torch.equal(before, torch.get_rng_state())
    assert torch.get_num_threads() == threads


def test_a_given_panel_is_used(C):
    best = search(C, 10).indices
    found = search(C, 10, initial=[best], stall=0)
    assert found.indices.tolist() == best.tolist()
    with pytest.raises(InputError, match="9 units, k=10"):
        search(C, 10, initial=[best[:9]])


def test_time_runs_out(C):
    found = search(C, 10, time_limit=0.2, stall=10**6)
    assert found.stopped == "time"
    assert found.objective <= greedy(C, 10).errors[-1]
    assert search(C, 10, time_limit=0).stopped == "time"


def test_many_features_are_screened(C, monkeypatch):
    monkeypatch.setattr("fewer.search.subset.CANDIDATES", 40)
    assert search(C, 1).stopped == "stall"  # few panels, but the square of C would take too long
    found = search(C, 5)
    assert found.objective <= search(C, 5, stall=0).objective
    assert residual(C, found.indices) == found.objective


def test_there_is_only_one_choice():
    everything = search(np.eye(3), 3)
    assert everything.indices.tolist() == [0, 1, 2]
    assert everything.objective == 0
    constraints = resolve(None, 4, 2, exclude=[0, 3])
    rest = search(np.diag([4.0, 3.0, 2.0, 1.0]), constraints)
    assert rest.indices.tolist() == [1, 2]
    assert everything.stopped == rest.stopped == "only choice"


def test_k_beyond_the_rank_is_filled_up():
    X = np.random.default_rng(0).normal(size=(30, 3))
    C = np.cov(np.hstack([X, X, np.zeros((30, 4))]).T)  # rank 3, four constant columns
    found = search(C, 8)
    assert len(found.indices) == 8
    assert set(range(6)) <= set(found.indices.tolist())
    assert found.objective < 1e-9


@pytest.mark.parametrize("most", [20_000, 0])
def test_all_constant(most, monkeypatch):
    monkeypatch.setattr("fewer.search.subset.MOST_PANELS", most)
    found = search(np.zeros((5, 5)), 2)
    assert len(found.indices) == 2
    assert found.objective == 0
    assert found.stopped == ("optimal" if most else "stall")  # nothing is no progress


@pytest.mark.parametrize(
    ("options", "words"), [({"starts": 0}, "starts=0"), ({"stall": -1}, "stall=-1")]
)
def test_bad_options_are_refused(options, words):
    with pytest.raises(InputError, match=words):
        search(np.eye(3), 1, **options)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu(C):
    here, there = search(C, 10), search(C, 10, device="cuda")
    assert there.objective == pytest.approx(here.objective, rel=0.01)


def test_few_panels_are_all_judged(C):
    part = C[16:34, 16:34]
    costs = np.arange(1.0, 19.0)
    for constraints in (
        resolve(None, 18, 4),
        resolve(None, 18, 4, include=[3], exclude=[7]),
        resolve(None, 18, 4, costs=costs, cost_weight=1e-3),
    ):
        found = search(part, constraints)
        assert found.stopped == "optimal"
        constraints.check(found.indices)
        assert found.objective == pytest.approx(optimum(part, constraints, 0.0))
        assert found.elite[1][0] > found.objective


@pytest.mark.parametrize("limit", ["MOST_PANELS", "MOST_NUMBERS"])
def test_panels_are_enumerated_up_to_a_number(limit, monkeypatch):
    C = instance("plain", 6, 0)  # 15 panels of 2
    most = 15 if limit == "MOST_PANELS" else 15 * 2**2
    monkeypatch.setattr(f"fewer.search.subset.{limit}", most)
    assert search(C, 2).stopped == "optimal"
    monkeypatch.setattr(f"fewer.search.subset.{limit}", most - 1)
    assert search(C, 2).stopped == "stall"


@pytest.mark.parametrize("wide", [False, True])
def test_prices_decide_among_all_panels(wide):
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(20, 13))
    costs = rng.uniform(1, 10, size=13)
    C = rows.T @ rows
    constraints = resolve(None, 13, 3, costs=costs, cost_weight=0.4)
    matrix = FactoredCovariance(torch.from_numpy(rows)) if wide else C
    found = search(matrix, constraints)
    assert found.stopped == "optimal"
    assert found.objective == pytest.approx(optimum(C, constraints))
    worths = sorted(
        residual(C, panel) + constraints.price(np.array(panel))
        for panel in combinations(range(13), 3)
    )
    np.testing.assert_allclose([value for value, _ in found.elite], worths[:8])


def test_all_panels_within_limits_are_judged():
    C = instance("plain", 7, 3)
    sets = {"a": [1, 4], "b": [0, 1, 2, 3]}
    bounds = {"at_least": {"a": 1}, "at_most": {"b": 2}}
    found = search(C, resolve(None, 7, 3, include=[0], exclude=[6], sets=sets, **bounds))
    assert found.stopped == "optimal"
    allowed = [[0, 1, 4], [0, 1, 5], [0, 2, 4], [0, 3, 4], [0, 4, 5]]
    assert sorted(panel.tolist() for _, panel in found.elite) == allowed


def test_what_others_make_worthless_is_dropped():
    # five copies each of a and b, and their sum with an error: best alone, and useless with both
    rng = np.random.default_rng(0)
    a, b, error = np.linalg.qr(rng.normal(size=(50, 3)))[0].T
    rows = np.stack([*[a] * 5, *[b] * 5, a + b + error], axis=1)
    C = rows.T @ rows
    assert greedy(C, 1).order.tolist() == [10]
    for groups in (None, np.arange(11)):
        free = resolve(
            None, 11, None, costs=np.ones(11), budget=3, cost_weight=1.5 / 11, groups=groups
        )
        found = search(C, free, stall=0)
        assert len(found.indices) == 2  # not three, which cost 4.5 and leave nothing
        assert found.objective == pytest.approx(1 + 2 * 1.5)
    kept = resolve(None, 11, None, costs=np.ones(11), budget=3, cost_weight=1.5 / 11, include=[10])
    assert 10 in search(C, kept, stall=0).indices
    dear = resolve(None, 11, None, costs=np.ones(11), budget=3, cost_weight=9.0)
    assert len(search(C, dear, stall=0).indices) == 1  # of which none is worth its price
    both = resolve(None, 11, None, costs=np.ones(11), budget=3, cost_weight=9.0, include=[0, 5])
    assert search(C, both, stall=0).indices.tolist() == [0, 5]


def test_it_waits_so_many_rounds_for_progress(C, monkeypatch):
    better = search(C, 10).indices
    given, finds = [], {}

    def improve(self, panels, *_):
        given.append(len(panels))
        return finds.get(len(given), [])

    monkeypatch.setattr("fewer.search.subset.Explorer.improve", improve)
    found = search(C, 10, stall=3, starts=5)
    assert found.stopped == "stall"
    assert given == [5, 5, 5]
    assert residual(C, better) < 0.995 * found.objective
    given.clear()
    finds[2] = [better]
    assert search(C, 10, stall=2, starts=1).indices.tolist() == better.tolist()
    assert given == [1] * 4


def test_panels_are_improved_by_halves_if_memory_is_short(C, monkeypatch):
    done = []

    def improve(self, panels, *_):
        if len(panels) > 1:
            raise torch.OutOfMemoryError
        done.append(panels[0].tolist())
        return []

    monkeypatch.setattr("fewer.search.subset.Explorer.improve", improve)
    monkeypatch.setattr("fewer.search.subset.MOST_PANELS", 0)
    search(C, 6, stall=1, starts=5)
    assert len(done) == 5

    def fail(self, panels, *_):
        raise torch.OutOfMemoryError

    monkeypatch.setattr("fewer.search.subset.Explorer.improve", fail)
    with (
        pytest.warns(FewerWarning, match="does not fit"),
        pytest.raises(torch.OutOfMemoryError),
    ):
        search(C, 6, stall=1)


def test_rounds_start_from_parts_of_the_best_panels(C, monkeypatch):
    starts = []

    def improve(self, panels, steps, barred, noise, *_):
        starts.append((panels, barred, steps, noise))
        return []

    monkeypatch.setattr("fewer.search.subset.Explorer.improve", improve)
    monkeypatch.setattr("fewer.search.subset.MOST_PANELS", 0)
    rules = resolve(None, 64, 10, include=[20, 21])
    best = search(C, rules, stall=0).indices
    search(C, rules, stall=2, starts=6)
    (first, barred, steps, noise), (later, out, _, still) = starts
    assert steps == 100  # 10 per feature, of at most 110
    assert noise > 0 == still
    assert first[0].tolist() == best.tolist()
    assert [part.tolist() for part in first[2::2]] == [[20, 21]] * 2  # greedy choices anew
    assert [len(part) for part in barred[::2]] == [0] * 3
    for panel, gone in [
        *zip(first[1::2], barred[1::2], strict=True),
        *zip(later, out, strict=True),
    ]:
        assert len(gone) == 2  # a fifth of the eight that may go
        assert {20, 21} <= set(panel.tolist())
        assert len(np.union1d(panel, gone)) == 10


@pytest.fixture
def candidates_of_walks(monkeypatch):
    """The candidates of each walk, as soon as it begins."""
    seen = []
    real = Explorer.__init__

    def note(self, C, constraints, ridge, candidates, generator):
        seen.append(candidates)
        real(self, C, constraints, ridge, candidates, generator)

    monkeypatch.setattr(Explorer, "__init__", note)
    return seen


def test_candidates_for_walks(C, monkeypatch, candidates_of_walks):
    monkeypatch.setattr("fewer.search.subset.CANDIDATES", 12)
    monkeypatch.setattr("fewer.search.subset.MOST_PANELS", 0)
    seen = candidates_of_walks
    rules = resolve(None, 64, 3, exclude=[20], sets={"a": [0, 1]}, at_most={"a": 1})
    best = search(C, rules, stall=0).indices
    search(C, rules, stall=1)
    assert len(seen[-1]) == 12
    assert set(best.tolist()) <= set(seen[-1].tolist())
    assert 20 not in seen[-1]
    required = resolve(None, 64, 3, sets={"a": [0, 1]}, at_least={"a": 1})
    search(C, required, stall=1)
    assert {0, 1} <= set(seen[-1].tolist())
    informative = np.flatnonzero(C.diagonal() > 0)
    monkeypatch.setattr("fewer.search.subset.CANDIDATES", 64)
    search(C, 3, stall=1)
    assert seen[-1].tolist() == informative.tolist()  # constant pixels are left out


@pytest.fixture
def rounds(monkeypatch):
    """The panels and steps of each round, which finds nothing."""
    seen = []

    def improve(self, panels, steps, *_):
        seen.append((len(panels), steps))
        return []

    monkeypatch.setattr("fewer.search.subset.Explorer.improve", improve)
    monkeypatch.setattr("fewer.search.subset.MOST_PANELS", 0)
    return seen


@pytest.mark.parametrize(("k", "most", "steps"), [(3, 100, 6), (6, 100, 11), (6, 9, 9)])
def test_the_length_of_walks(C, rounds, k, most, steps, monkeypatch):
    for name, value in (("STEPS", 5), ("PER_UNIT", 2), ("MOST_STEPS", most)):
        monkeypatch.setattr(f"fewer.search.subset.{name}", value)
    search(C, k, stall=1, starts=2)
    assert rounds == [(2, steps)]


@pytest.mark.parametrize(("patience", "waited"), [(3, 3), (0, 1), (50, 6)])
def test_how_long_is_waited_for_progress_by_default(C, rounds, patience, waited, monkeypatch):
    size = 5 * int((C.diagonal() > 0).sum())  # 5 places for each candidate
    swaps = sys.modules["fewer.search.swap"]
    monkeypatch.setattr(swaps, "CPU_BATCH", 4 * size)
    monkeypatch.setattr(swaps, "CPU_STEPS", size * 50 * 4 * patience)  # walks of 50 steps
    search(C, 5)
    assert rounds == [(4, 50)] * waited


def test_small_improvements_are_no_progress(C, monkeypatch):
    better, calls = search(C, 10).indices, []

    def improve(self, panels, *_):
        calls.append(1)
        return [better] if len(calls) == 2 else []

    monkeypatch.setattr("fewer.search.subset.Explorer.improve", improve)
    for progress, rounds_ in ((1e-4, 4), (0.5, 2)):
        calls.clear()
        monkeypatch.setattr("fewer.search.subset.PROGRESS", progress)
        assert search(C, 10, stall=2, starts=1).indices.tolist() == better.tolist()
        assert len(calls) == rounds_


def test_evaluations_and_times_are_those_of_the_search(C, rounds):
    began = time.monotonic()
    found = search(C, 6, stall=1)
    took = time.monotonic() - began
    start = swap(C, greedy(C, 6).panel())
    assert found.evaluations == start.evaluations + swap(C, start.indices).evaluations
    assert 0 <= found.elapsed <= took
    times = [when for when, _ in found.trace]
    assert [0, *times, found.elapsed] == sorted([0, *times, found.elapsed])


def test_enumerated_panels_count_as_evaluations():
    C = instance("plain", 9, 1)
    start = swap(C, greedy(C, 3).panel())
    assert search(C, 3).evaluations == start.evaluations + 84


def test_matrices_up_to_a_size_are_squared(monkeypatch):
    C = instance("plain", 6, 0)
    monkeypatch.setattr("fewer.search.subset.CANDIDATES", 6)
    assert search(C, 2).stopped == "optimal"
    monkeypatch.setattr("fewer.search.subset.CANDIDATES", 5)
    assert search(C, 2, stall=1).stopped == "stall"


@pytest.mark.parametrize("scale", [1e-8, 1.0, 1e8])
def test_panels_of_equal_value_count_as_one(scale):
    C = scale * instance("plain", 6, 1)
    found = search(np.block([[C, C], [C, C]]), 3)
    values = [value for value, _ in found.elite]
    assert len(values) == 4  # the best 32 panels, of which 8 each are copies
    assert min(np.diff(values)) > 1e-9 * np.trace(C)


def test_swaps_have_the_time_that_is_left(C, monkeypatch):
    limits, together = [], []

    def noted(C, panel, constraints, *, ridge, time_limit):
        limits.append(time_limit)
        return swap(C, panel, constraints, ridge=ridge, time_limit=time_limit)

    def mapped(function, panels):
        together.append(len(panels))
        return map(function, panels)

    monkeypatch.setattr("fewer.search.subset.swap", noted)
    monkeypatch.setattr("fewer.search.subset.mapped", mapped)
    search(C, 4, stall=0)
    assert limits == [None]
    search(C, 4, stall=0, time_limit=100)
    assert 0 < limits[1] <= 100
    assert together == []
    rows = torch.from_numpy(np.random.default_rng(0).normal(size=(5, 30)))
    search(FactoredCovariance(rows), 4, stall=0, initial=[[0, 1, 2, 3]])
    assert together == [2]


def test_perturbations_start_from_the_best_panel_half_of_the_time(C, monkeypatch):
    starts = []

    def improve(self, panels, steps, barred, *_):
        starts.append([np.union1d(*pair).tolist() for pair in zip(panels, barred, strict=True)])
        assert {len(out) for out in barred} == {4}  # a fifth
        return []

    first = [np.sort(np.random.default_rng(seed).permutation(64)[:20]) for seed in range(4)]
    monkeypatch.setattr("fewer.search.subset.Explorer.improve", improve)
    monkeypatch.setattr("fewer.search.subset._Run._first", lambda self, n: self._kicked(n))
    found = search(C, 20, stall=1, starts=200, initial=first)
    elite = [panel.tolist() for _, panel in found.elite]
    assert len(elite) > 2
    counts = [sum(start == panel for start in starts[0]) for panel in elite]
    assert sum(counts) == 200
    assert 100 < counts[0] < 160
    assert min(counts) > 0


def test_candidates_are_four_for_each_place_and_vary(C, monkeypatch, candidates_of_walks):
    monkeypatch.setattr("fewer.search.subset.CANDIDATES", 12)
    seen = candidates_of_walks
    for scale in (1.0, 1e-9):
        search(scale * C, 4, stall=1, starts=2)
        assert len(seen[-1]) == 16
    monkeypatch.setattr("fewer.search.subset.CANDIDATES", 64)
    monkeypatch.setattr("fewer.search.subset.MOST_PANELS", 0)
    search(1e-9 * C, 3, stall=1, starts=2)
    assert seen[-1].tolist() == np.flatnonzero(C.diagonal() > 0).tolist()
