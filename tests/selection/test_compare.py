"""What decides between candidates."""

import numpy as np
import pytest
from sklearn.linear_model import LinearRegression

import fewer
from fewer.search import residual
from fewer.selection import api
from fewer.selection.compare import Candidate, NetworkComparison, clearly_behind
from fewer.selection.context import WorkPlan
from fewer.selection.prepare import prepare
from fewer.selection.strategies import Strategy, greedy_panel
from fewer.validation import split_rows


def test_training_rows_break_ties_on_one_held_out_part():
    """Over seeds, a tenth of the rows would often prefer another candidate."""
    one, two, three = (np.random.default_rng(seed) for seed in (5, 6, 7))
    X = one.normal(size=(900, 3)) @ two.normal(size=(3, 20))
    X += 0.5 * three.normal(size=X.shape)
    overruled = 0
    for seed in range(6):
        panel = fewer.select(X, 4, random_state=seed)
        train = X[split_rows(900, 0.1, panel.settings["seed"]).train_rows(0)]
        C = np.corrcoef(train.T)
        best = min(row["error"] for row in panel.leaderboard)
        tied = [row for row in panel.leaderboard if row["error"] <= 1.02 * best]
        left = [residual(C, row["features"]) for row in tied]
        assert tied == panel.leaderboard[: len(tied)]
        assert left[0] == pytest.approx(min(left))
        overruled += panel.leaderboard[0]["error"] > best
    assert overruled  # else nothing was seen here


def test_folds_decide_without_training_rows(digits):
    panel = fewer.select(digits[0][:200, 20:36], 3, validation=3, random_state=0)
    errors = [row["error"] for row in panel.leaderboard]
    assert errors == sorted(errors)


def test_the_error_of_a_panel_is_that_of_a_regression(digits):
    X = digits[0][:400, 20:44]
    panel = fewer.select(X, 3, scale="none", validation=0.25, random_state=0)
    splits = split_rows(400, 0.25, panel.settings["seed"])
    train, held = X[splits.train_rows(0)], X[splits.held_rows(0)]
    for row in panel.leaderboard:
        columns = row["features"]
        predicted = LinearRegression().fit(train[:, columns], train).predict(held[:, columns])
        predicted[:, columns] = held[:, columns]  # what is measured is known
        assert row["error"] == pytest.approx(((predicted - held) ** 2).mean())


@pytest.mark.filterwarnings("ignore:the network does not clearly beat")
def test_networks_far_behind_on_the_first_fold_are_pruned(digits, monkeypatch):
    proposed = []
    propose = api.propose

    def count(context, strategy, fold):
        proposed.append((strategy.name, fold.number))
        return propose(context, strategy, fold)

    monkeypatch.setattr(api, "propose", count)
    messages = []
    panel = fewer.select(
        digits[0][:80, 26:40],
        3,
        decoder=(4,),
        scale="none",
        validation=2,
        random_state=0,
        device="cpu",
        progress=lambda message, fraction: messages.append(message),
    )
    winner, *others = panel.leaderboard
    assert proposed.count((winner["strategy"], 1)) == 1
    pruned = [row for row in others if (row["strategy"], 1) not in proposed]
    assert 0 < len(pruned) < len(others)
    for row in pruned:
        assert row["error"] > winner["error"]
        assert len(row["features"]) == 3
    # of those that are near the best, the panels from all rows are compared
    assert any(text.endswith("all rows ...") for text in messages)


def candidate(errors, repeats=()):
    return Candidate(Strategy("some", greedy_panel), errors=[*errors], repeats=[*repeats])


def test_repeats_end_when_it_is_clear():
    leader = candidate([1.0], [1.1, 1.06])
    assert clearly_behind(candidate([1.1], [1.2, 1.15]), leader)
    assert not clearly_behind(candidate([1.1], [0.9, 1.15]), leader)
    assert not clearly_behind(leader, leader)


def test_repeats_on_harder_rows_do_not_let_others_win():
    """Only close candidates are trained again; on other rows all errors may be larger."""
    close = [candidate([1.0], [1.2, 1.2]), candidate([1.005], [1.1, 1.1])]
    dropped = candidate([1.008], [1.25])  # after the first repeat
    behind = candidate([1.02])
    order = sorted([behind, dropped, *close], key=lambda one: one.sort_key)
    assert order == [close[1], close[0], dropped, behind]
    assert [one.error for one in order] == [1.005, 1.0, 1.008, 1.02]


def test_a_network_says_whether_it_beats_a_linear_decoder(tmp_path):
    random = np.random.default_rng(0)
    angles = random.uniform(-3, 3, size=(200, 2)) @ random.normal(size=(2, 6))
    X = np.sin(angles + random.uniform(0, 3, size=6)) + 0.05 * random.normal(size=(200, 6))
    panel = fewer.select(
        X, 2, decoder=(16,), strategies=["search"], validation=0.25, random_state=0, device="cpu"
    )
    gain = panel.settings["network_gain"]
    assert 0 < gain["low"] < gain["gain"] < gain["high"] < 1
    assert "The network beats a linear decoder" in repr(panel.leaderboard)
    panel.save(tmp_path / "p")
    assert fewer.Panel.load(tmp_path / "p").leaderboard.note == panel.leaderboard.note
    panel.report(tmp_path / "p.html")
    assert "The network beats a linear decoder" in (tmp_path / "p.html").read_text()


def network_comparison(validation):
    """Two noisy measurements of one hidden column, another one, what follows, and noise."""
    random = np.random.default_rng(0)
    x = random.normal(size=(240, 2))
    twice = x[:, :1] + 0.3 * random.normal(size=(240, 2))
    more = np.column_stack([x.sum(1), x[:, 0] - x[:, 1], x.prod(1)])
    X = np.hstack([twice, x[:, 1:], more, 0.3 * random.normal(size=(240, 1))])
    options = {"k": 2, "decoder": (8,), "scale": "none", "validation": validation, "device": "cpu"}
    options = api._defaults() | options
    del options["data"]
    return NetworkComparison(prepare(X, options, WorkPlan(), 0)[0])


ONE, OTHER, WORSE = np.array([0, 2]), np.array([1, 2]), np.array([0, 6])


@pytest.mark.parametrize(
    ("base", "other", "wins"),
    [(ONE, OTHER, False), (OTHER, ONE, False), (WORSE, ONE, True), (ONE, WORSE, False)],
)
def test_the_search_wins_unless_another_is_clearly_better(base, other, wins):
    comparison = network_comparison(0.25)
    folds = comparison.context.covariances.folds
    candidates = [
        Candidate(Strategy("search", greedy_panel, restarts=True), [base]),
        Candidate(Strategy("other", greedy_panel), [other]),
    ]
    comparison.measure(candidates, folds)
    comparison.break_ties(candidates, folds)
    assert min(candidates, key=lambda c: c.sort_key) is candidates[wins]


def test_panels_from_all_rows_have_to_be_clearly_better_than_the_first():
    comparison = network_comparison(3)
    folds = comparison.context.covariances.folds
    assert len(folds) == 3
    assert comparison.best_of([ONE, OTHER], folds, first_wins_ties=True) == 0
    assert comparison.best_of([OTHER, ONE], folds, first_wins_ties=True) == 0
    assert comparison.best_of([WORSE, ONE, OTHER], folds, first_wins_ties=True) > 0
    # without the rule, the one that is ahead by chance wins in either order
    assert {comparison.best_of(pair, folds) for pair in ([ONE, OTHER], [OTHER, ONE])} == {0, 1}
