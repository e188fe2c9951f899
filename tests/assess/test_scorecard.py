"""A list of features against random panels, exchanges, permutations and another list."""

import numpy as np
import pytest
from scipy.stats import kstest
from sklearn.datasets import load_breast_cancer

import fewer
from fewer.constraints import resolve
from fewer.data.open import as_source
from fewer.errors import InputError
from fewer.selection.evidence.significance import PanelScores, random_panels
from fewer.validation import RIDGES, fold_covariances, paired_interval, split_rows

FRAME = load_breast_cancer(as_frame=True).data.iloc[:200, :10]


@pytest.mark.parametrize("wide", [False, True])
def test_many_panels_are_scored_as_one_by_one(wide):
    X = FRAME.to_numpy().copy()
    if wide:
        X = np.random.default_rng(0).normal(size=(20, 90))
    X[:, 3] = X[:, 2]  # a copy
    folds = fold_covariances(as_source(X), split_rows(len(X), 4, 0), "standard")
    assert folds.factored is wide
    scores, panels = PanelScores(folds), [np.array([0, 4, 7]), np.array([2, 3, 9])]
    fold = folds.folds[1]
    ridges = [ridge * float(fold.variance.mean()) for ridge in RIDGES]
    found = scores._errors(fold, panels, ridges)
    for at, panel in enumerate(panels):
        expected = np.array(fold.errors(panel, ridges, known=True)) * fold.n_held * X.shape[1]
        np.testing.assert_allclose(found[:, at], expected, rtol=1e-5, atol=1e-7)


def test_where_a_list_stands():
    good = fewer.select(FRAME, 3, strategies=["search"], random_state=0)
    poor = ["mean radius", "mean perimeter", "mean area"]
    high = fewer.score(good, FRAME, against=poor, draws=60, random_state=0)
    low = fewer.score(poor, FRAME, draws=60, random_state=0)
    assert high.percentile > 0.9
    assert low.percentile < 0.3
    assert high.p_value < 0.1 < low.p_value
    assert low.best > low.explained_variance
    assert high.explained_variance == pytest.approx(low.best, abs=0.03)
    assert high.pca > low.best > np.median(low.random)
    assert high.against["low"] > 0
    assert high.against["difference"] == pytest.approx(
        high.explained_variance - low.explained_variance, abs=0.02
    )
    assert low.exchanges[0]["out"] in poor
    assert low.exchanges[0]["gain"] > 0.03
    again = [name for name in poor if name != low.exchanges[0]["out"]] + [low.exchanges[0]["into"]]
    swapped = fewer.score(again, FRAME, draws=2, permutations=0, random_state=0)
    gain = swapped.explained_variance - low.explained_variance
    assert gain == pytest.approx(low.exchanges[0]["gain"], abs=1e-6)
    assert swapped.contributions[0]["p_value"] is None


def test_a_column_of_noise_contributes_nothing():
    random = np.random.default_rng(0)
    X = FRAME.to_numpy().copy()
    X[:, 5] = random.normal(size=len(X))
    found = fewer.score([0, 5, 8], X, draws=2, random_state=0)
    by = {row["feature"]: row for row in found.contributions}
    assert by[5]["p_value"] > 0.05
    assert by[0]["p_value"] == by[8]["p_value"] == 0.01
    assert by[5]["lost"] < by[8]["lost"]


def test_p_values_are_uniform_where_nothing_is_related():
    random = np.random.default_rng(1)
    found = [
        row["p_value"]
        for seed in range(12)
        for row in fewer.score(
            range(4), random.normal(size=(40, 8)), draws=1, permutations=19, random_state=seed
        ).contributions
    ]
    assert kstest(np.array(found) - 0.025, "uniform").pvalue > 0.01


def test_the_interval_of_a_difference_covers_rows_groups_and_folds():
    random = np.random.default_rng(0)
    folds = np.arange(400) % 5
    gaps = random.normal(0.1, 1, size=400)
    mean, low, high = paired_interval(gaps, folds)
    assert low < mean < high
    assert high - mean >= 1.9 * gaps.std() / 20
    groups = np.repeat(np.arange(40), 10)
    alike = np.repeat(random.normal(size=40), 10)
    alone = paired_interval(alike, folds * 0)
    together = paired_interval(alike, folds * 0, groups)
    assert together[2] - together[1] > 2 * (alone[2] - alone[1])
    shifted = gaps + 3 * (folds == 2)
    assert np.diff(paired_interval(shifted, folds)[1:]) > np.diff([low, high])


def test_a_list_for_a_target():
    """Of four features, two make the target."""
    random = np.random.default_rng(0)
    Z = random.normal(size=(400, 9))
    y = Z[:, 0] + Z[:, 1] + 0.5 * random.normal(size=400)
    y[::15] = np.nan  # rows without a label do not count
    found = fewer.score([0, 1, 2, 3], Z, target=y, against=[0, 5], draws=99, random_state=0)
    assert found.explained_variance == pytest.approx(2 / 2.25, abs=0.04)
    assert found.best == pytest.approx(found.explained_variance, abs=0.02)
    assert found.all_features == pytest.approx(found.best, abs=0.02)
    assert found.pca is None
    assert found.p_value < 0.25  # one in six random panels has both
    by = {row["feature"]: row["p_value"] for row in found.contributions}
    assert by[0] == by[1] == 0.01
    assert min(by[2], by[3]) > 0.05
    assert found.against["low"] > 0.2
    assert "of the target, better than" in found.sentence()
    classes = fewer.score([2, 3], Z, target=np.where(y > 0, "high", "low"), random_state=0)
    assert {row["into"] for row in classes.exchanges[:2]} == {0, 1}
    assert "all features" in str(classes.table())


def test_constraints_of_what_a_list_is_compared_with():
    costs = np.ones(10)
    costs[7] = 9
    groups = [[0, 2, 3]]
    found = fewer.score(
        [0, 2, 3, 5], FRAME, groups=groups, exclude=[6], costs=costs, budget=3, include=[5],
        draws=30, random_state=0,
    )  # fmt: skip
    for row in found.exchanges:
        assert row["out"] != FRAME.columns[5]
        assert row["into"] not in FRAME.columns[[6, 7]]
    lost = [row["lost"] for row in found.contributions]
    assert lost[0] == lost[1] == lost[2] > 0
    together = [row["p_value"] for row in found.contributions[:3]]
    assert together == [0.01] * 3
    rules = resolve(None, 10, 2, include=[5], exclude=[6], costs=costs, budget=3, groups=groups)
    for panel in random_panels(rules, 50, np.random.default_rng(0)):
        rules.check(panel)
    with pytest.raises(InputError, match="is on the list and in exclude"):
        fewer.score([0, 1], FRAME, exclude=[1])


def test_a_budget_that_just_buys_k_is_met_by_random_panels():
    costs = np.array([1.0, 1.0, 2.0, 5.0, 9.0])
    tight = resolve(None, 5, 3, costs=costs, budget=4)
    assert {tuple(p) for p in random_panels(tight, 20, np.random.default_rng(0))} == {(0, 1, 2)}


def test_panels_are_compared_as_they_are_on_new_rows():
    """A panel whose decoder was spoilt loses, though refitted it would be the same."""
    rows = np.arange(200) % 2 == 0
    good = fewer.select(FRAME[rows], 3, strategies=["search"], random_state=0)
    wrong = FRAME[rows].copy()
    wrong.iloc[:, -1] = wrong.iloc[::-1, -1].to_numpy()
    bad = fewer.select(wrong, 3, include=good.features, strategies=["search"], random_state=0)
    found = fewer.score(good, FRAME[~rows], against=bad, draws=2, random_state=0).against
    assert found["how"] == "as they are"
    assert found["low"] > 0
    score = [panel.score(FRAME[~rows]).errors / FRAME[~rows].var(ddof=0) for panel in (good, bad)]
    assert found["difference"] == pytest.approx(float((score[1] - score[0]).mean()), rel=1e-6)
    here = fewer.score(good, FRAME[rows], against=bad, draws=2, random_state=0).against
    assert here["how"] == "refitted"
    assert here["difference"] == 0


@pytest.mark.parametrize("kind", ["class", "number"])
def test_predictions_are_compared_as_they_are(kind):
    rows = np.arange(200) % 2 == 0
    y = load_breast_cancer().target[:200] if kind == "class" else FRAME["mean area"].to_numpy()
    X = FRAME.drop(columns=["mean area"])
    options = {"target": y[rows], "strategies": ["search"], "random_state": 0}
    pair = [fewer.select(X[rows], k, **options) for k in (3, 1)]
    found = fewer.score(pair[0], X[~rows], target=y[~rows], against=pair[1], draws=2)
    scores = [one.score_target(X[~rows][one.features], y[~rows]) for one in pair]
    assert found.against["difference"] == pytest.approx(scores[0] - scores[1])
    assert found.against["what"] in found.sentence()


def test_bad_requests_are_named():
    with pytest.raises(InputError, match="the list of features is empty"):
        fewer.score([], FRAME)
    with pytest.raises(InputError, match="draws=0 must be a whole number of at least 1"):
        fewer.score([0], FRAME, draws=0)
