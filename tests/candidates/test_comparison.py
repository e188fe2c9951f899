"""What decides between candidates that are about level on the held-out rows."""

from dataclasses import replace

import numpy as np
import pytest

import fewer
from fewer.candidates.clock import Clock
from fewer.candidates.comparison import Candidate
from fewer.candidates.lines import LEVEL, LinearComparison
from fewer.candidates.networks import NetworkComparison
from fewer.constraints import resolve
from fewer.data import RowView, ScaledSource, as_source
from fewer.train import TrainingConfig
from fewer.train.folds import make_folds, scaled_fold, split_rows

D, K = 12, 3


def held_out(parts, seed=0):
    random = np.random.default_rng(seed)
    X = random.normal(size=(600, 4)) @ random.normal(size=(4, D))
    X += 3 * random.normal(size=(600, D))  # no panel is far ahead
    source = as_source(X)
    center, scale = np.zeros(D), np.ones(D)
    folds = make_folds(source, split_rows(600, parts, seed))
    comparison = LinearComparison(
        lambda fold, index: ScaledSource(RowView(source, index), fold.center, fold.scale),
        resolve(None, D, K),
    )
    return comparison, [scaled_fold(fold, center, scale) for fold in folds]


def never(fold, seed):
    raise AssertionError("the panels are given")


def candidates_of(comparison, folds, panels):
    found = []
    for panel in panels:
        candidate = Candidate(str(panel), never)
        candidate.panels = [np.array(panel) for _ in folds]
        comparison.measure(candidate, folds)
        found.append(candidate)
    return found


def every_panel():
    return [(i, j, h) for i in range(D) for j in range(i) for h in range(j)]


def left(fold, candidate):
    return float(fold.train.diagonal().sum()) - explained(fold, candidate.panels[0])


def explained(fold, columns):
    rows = fold.train[columns]
    return float((rows * fold.decoder(columns)).sum())


@pytest.mark.parametrize("seed", range(3))
def test_training_rows_tell_lines_apart_that_are_level_on_one_held_out_part(seed):
    comparison, folds = held_out(0.1, seed)
    candidates = candidates_of(comparison, folds, every_panel())
    best = min(c.rank for c in candidates)
    level = [c for c in candidates if c.rank <= LEVEL * best]
    comparison.settle(candidates, folds)
    ordered = sorted(candidates, key=lambda c: c.place)
    assert len(level) > 1
    assert set(map(id, ordered[: len(level)])) == set(map(id, level))
    assert ordered[0] is min(level, key=lambda c: left(folds[0], c))
    rest = [c.rank for c in ordered[len(level) :]]
    assert rest == sorted(rest)


def test_folds_decide_by_themselves():
    comparison, folds = held_out(5)
    candidates = candidates_of(comparison, folds, every_panel())
    comparison.settle(candidates, folds)
    assert min(candidates, key=lambda c: c.place) is min(candidates, key=lambda c: c.rank)


def test_with_many_rows_the_search_is_not_given_up_for_luck():
    """Over seeds, a tenth of the rows would often prefer another candidate."""
    X = np.random.default_rng(5).normal(size=(900, 3)) @ np.random.default_rng(6).normal(
        size=(3, 20)
    )
    X += 0.5 * np.random.default_rng(7).normal(size=X.shape)
    lost = 0
    for seed in range(6):
        panel = fewer.select(X, 4, random_state=seed)
        errors = {row["strategy"]: row["error"] for row in panel.leaderboard}
        lost += errors["search"] > min(errors.values())
        if errors["search"] <= LEVEL * min(errors.values()):
            assert panel.leaderboard[0]["strategy"] == "search"
    assert lost  # else nothing was seen here


def test_networks_that_are_far_behind_on_the_first_fold_are_not_trained_on_the_others(digits):
    said = []
    panel = fewer.select(
        digits[0][:900],
        10,
        decoder=(40,),
        scale="none",
        random_state=0,
        device="cpu",
        progress=lambda text, share: said.append(text),
    )
    winner, *others = panel.leaderboard
    tried = {
        row["strategy"]: {t for t in said if t.startswith(f"{row['strategy']}, fold")}
        for row in panel.leaderboard
    }
    assert len(tried[winner["strategy"]]) == 3
    assert {len(tried[row["strategy"]]) for row in others} == {1, 3}
    for row in others:
        if len(tried[row["strategy"]]) == 1:
            assert row["error"] > winner["error"]
            assert len(row["features"]) == 10


def network_comparison(clock, parts=3):
    random = np.random.default_rng(0)
    factors = random.normal(size=(500, 3))
    X = np.c_[factors, factors @ random.normal(size=(3, 6)), random.normal(size=(500, 3))]
    source = as_source(X)
    folds = [
        scaled_fold(fold, np.zeros(D), np.ones(D))
        for fold in make_folds(source, split_rows(500, parts, 0))
    ]
    comparison = NetworkComparison(
        lambda fold, index: ScaledSource(RowView(source, index), fold.center, fold.scale),
        resolve(None, D, K),
        TrainingConfig(k=K, decoder=(16,), device="cpu", progress=False, refit_epochs=20),
        0,
        clock,
    )
    return comparison, folds


@pytest.mark.parametrize("parts", [0.1, 3])
def test_what_is_to_be_the_panel_is_looked_at_by_the_network(parts):
    clock = Clock(None)
    comparison, folds = network_comparison(clock, parts)
    right, noise = np.array([0, 1, 2]), np.array([9, 10, 11])
    assert comparison.best_of([right, noise], folds) == 0
    assert comparison.best_of([noise, right], folds) == 1
    assert comparison.best_of([noise, noise.copy()], folds) == 0
    clock.limit = -1.0  # no time for another look
    assert comparison.best_of([noise, right], folds) == 0


def test_only_those_that_are_near_the_leader_are_looked_at_again():
    comparison, _ = network_comparison(Clock(None))
    leader = Candidate("a", never, errors=[1.0, 1.0])
    near = Candidate("b", never, errors=[1.0, 1.02])
    far = Candidate("c", never, errors=[1.0, 1.1])
    given_up = Candidate("d", never, behind=(leader, 1.015))
    assert comparison.finalists([given_up, far, near, leader]) == [near, leader]


@pytest.mark.filterwarnings("ignore:the network does not beat")
def test_with_folds_the_panel_is_the_best_of_those_from_all_rows(digits, monkeypatch):
    final = []

    def last(self, panels, folds):
        final.extend(panels)
        return len(panels) - 1

    monkeypatch.setattr(NetworkComparison, "best_of", last)
    said = []
    panel = fewer.select(
        digits[0][:300],
        5,
        decoder=(8,),
        scale="none",
        validation=2,
        random_state=0,
        device="cpu",
        progress=lambda text, share: said.append(text),
    )
    from_all = [text.split(",")[0] for text in said if text.endswith("all rows ...")]
    assert len(from_all) == len(final) > 1
    assert panel.leaderboard[0]["strategy"].startswith(from_all[-1])
    np.testing.assert_array_equal(panel.indices, final[-1])


def test_all_rows_are_trained_on_for_longer_than_a_part_of_them(monkeypatch):
    """As many epochs a row as helped where rows were held out, for the final panel first of all."""
    comparison, folds = network_comparison(Clock(None))
    right = np.array([0, 1, 2])
    winner = Candidate("search", never, panels=[right] * 3)
    comparison.measure(winner, folds)
    helped = [decoder.epochs for decoder in comparison.decoders.values()]
    asked = []
    monkeypatch.setattr(
        comparison, "_trained", lambda columns, fold, seed, settings: asked.append(settings)
    )
    everything = np.arange(500)
    whole = replace(folds[0], train_index=everything, held_index=everything[:0])
    comparison.fitted(winner, np.array([0, 1, 3]), whole)
    rows = np.median([len(fold.train_index) for fold in folds]) * 0.9
    assert asked[0].validation_fraction == 0
    assert asked[0].refit_epochs == pytest.approx(np.median(helped) * 500 / rows, rel=0.02)
    assert asked[0].refit_epochs > max(helped)
