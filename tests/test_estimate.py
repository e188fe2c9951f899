"""Scores with standard errors, the protocol in words, and penalties chosen on other folds."""

import pickle

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer

import fewer
from fewer.data.open import as_source
from fewer.estimate import (
    Estimate,
    Score,
    describe_protocol,
    fold_ridges,
    held_out_squares,
    panel_sums,
    penalties,
    ratio_of_sums,
    ridge_of_others,
    scaled_estimate,
    shared_rows,
    sums_of_groups,
)
from fewer.validation import fold_covariances, split_rows

X = load_breast_cancer().data[:, :8]


def test_the_standard_error_is_that_of_repeated_draws():
    random = np.random.default_rng(0)
    total = random.gamma(4, size=(4000, 12))
    wrong = total * random.uniform(0.1, 0.3, size=total.shape)
    found = [ratio_of_sums(w, t) for w, t in zip(wrong, total, strict=True)]
    values = np.array([one.value for one in found])
    errors = np.array([one.standard_error for one in found])
    assert values.mean() == pytest.approx(0.8, abs=0.001)
    assert (errors**2).mean() ** 0.5 == pytest.approx(values.std(), rel=0.1)
    inside = [low < 0.8 < high for low, high in (one.interval(0.9) for one in found)]
    assert np.mean(inside) == pytest.approx(0.9, abs=0.03)


@pytest.mark.parametrize("new", [4, 40])
def test_the_score_of_new_rows_is_in_the_interval_for_so_many(new):
    random = np.random.default_rng(1)

    def draw(count):
        total = random.gamma(4, size=(2000, count))
        return total * random.uniform(0.1, 0.3, size=total.shape), total

    fresh = 1 - np.divide(*(part.sum(axis=1) for part in draw(new)))
    found = [ratio_of_sums(w, t, units=12) for w, t in zip(*draw(12), strict=True)]
    bounds = np.array([one.interval(0.9, new_rows=new) for one in found])
    assert np.mean((bounds[:, 0] < fresh) & (fresh < bounds[:, 1])) == pytest.approx(0.9, abs=0.03)
    only = np.array([one.interval(0.9) for one in found])  # of the score itself: too narrow here
    assert np.mean((only[:, 0] < fresh) & (fresh < only[:, 1])) < 0.88
    assert Estimate(0.5, 0.1, 3).interval(0.9, new_rows=new) is None  # how many rows is not known


def test_training_rows_that_folds_share_widen_the_error():
    folds = fold_covariances(as_source(X), split_rows(len(X), 5, 0), "none").folds
    wrong, total = np.array([1.0, 2.0, 1.5, 1.2, 1.1]), np.full(5, 6.0)
    plain, wider = ratio_of_sums(wrong, total), ratio_of_sums(wrong, total, shared_rows(folds))
    assert plain.standard_error == pytest.approx(wrong.std(ddof=1) / 5**0.5 / 6)
    assert wider.standard_error == pytest.approx(1.5 * plain.standard_error, rel=0.01)


def test_sums_that_say_nothing():
    assert ratio_of_sums(np.zeros(3), np.zeros(3)) == Estimate(1.0)
    assert ratio_of_sums(np.ones(3), np.zeros(3)).value == 0.0
    assert ratio_of_sums(np.array([1.0]), np.array([4.0])) == Estimate(0.75)
    assert Estimate(0.5).interval(0.9) is None


def test_rows_of_a_group_count_as_one():
    values, groups = np.array([1.0, 2.0, 4.0]), np.array(["b", "a", "b"])
    assert sums_of_groups(values, groups).tolist() == [2.0, 5.0]
    assert sums_of_groups(values, None) is values


def test_a_score_keeps_its_error_in_copies():
    score = Score(0.25, np.ones(2), 0.1, 4)
    again = pickle.loads(pickle.dumps(score))
    assert (again, again.standard_error, again.degrees) == (0.25, 0.1, 4)
    assert again.errors.tolist() == [1, 1]
    low, high = again.interval(0.9)
    assert high - low == pytest.approx(2 * 2.1318 * 0.1, rel=1e-3)
    assert Score(0.25, np.ones(2)).interval() is None
    assert Score(0.25, np.ones(2)).text() == "25.0%"


@pytest.mark.parametrize("gaps", [False, True])
def test_sums_over_folds_are_those_of_rows(gaps):
    rows = X.copy()
    if gaps:
        rows[::7, 3] = np.nan
        rows[::11, 0] = np.nan
    folds = fold_covariances(as_source(rows), split_rows(len(X), 4, 1), "standard")
    panels = [np.array([0, 5])] * 4
    sums = panel_sums(folds, panels, [0.0] * 4)
    wrong, middle = np.zeros(8), np.nanmean(rows, axis=0)
    for fold, part in zip(folds.folds, sums, strict=True):
        held, mean = rows[fold.held_rows], fold.mean.numpy()
        x = np.nan_to_num((held - mean) / fold.scale)[:, [0, 5]]
        guess = x @ fold.decoder(panels[0]).numpy() * fold.scale + mean
        guess[:, [0, 5]] = held[:, [0, 5]]
        wrong += np.nansum((guess - held) ** 2, axis=0)
        np.testing.assert_allclose(part.squares, np.nansum((held - middle) ** 2, axis=0))
    found = np.sum([part.wrong[0] for part in sums], axis=0)
    np.testing.assert_allclose(found, wrong, atol=1e-20)
    if not gaps:
        squares = held_out_squares(folds.folds)
        np.testing.assert_allclose(np.sum(squares, axis=0), X.var(axis=0) * len(X))
    assert 0 < scaled_estimate(folds.folds, sums).standard_error < 0.1


def test_constant_features_have_no_squares():
    rows = np.hstack([X, np.full((len(X), 1), 0.1)])
    folds = fold_covariances(as_source(rows), split_rows(len(X), 3, 0), "standard").folds
    assert sum(part[-1] for part in held_out_squares(folds)) == 0


def test_penalties_come_from_other_folds():
    errors = np.array([[[1.0], [9.0]], [[9.0], [1.0]], [[9.0], [1.0]]])  # folds x ridges x 1
    assert ridge_of_others(errors)[:, 0].tolist() == [1, 0, 0]
    assert penalties(1000, 10, 5) == (0.0,)
    assert len(penalties(999, 10, 5)) > 1
    assert penalties(20, 10, 1) == (0.0,)
    folds = fold_covariances(as_source(X), split_rows(len(X), 3, 0), "standard").folds
    assert fold_ridges(folds, [np.array([0, 1])] * 3, len(X)) == [0.0] * 3
    assert max(fold_ridges(folds, [np.array([0, 1])] * 3, 20)) >= 0


def test_the_protocol_in_words():
    groups = np.arange(100) // 2
    parts = split_rows(100, 5, 3, groups)
    said = describe_protocol(parts, 5, 3, "none", groups)
    assert said == "5 folds, seed 3, groups of rows kept together, features unscaled"
    single = describe_protocol(split_rows(100, 0.2), 0.2, None, "standard")
    assert single == "20% of the rows held out, random seed, each feature standardised"
    timed = describe_protocol(split_rows(100, "time"), "time", 0, "standard")
    assert timed == "5 folds in time order, each feature standardised"


def test_the_score_of_new_rows_has_a_standard_error_over_rows():
    panel = fewer.select(X[::2], 3, strategies=["search"], random_state=0)
    new = X[1::2]
    found = panel.score(new)
    random = np.random.default_rng(0)
    draws = [panel.score(new[random.integers(len(new), size=len(new))]) for _ in range(150)]
    assert found.standard_error == pytest.approx(np.std([float(d) for d in draws]), rel=0.25)
    assert found.degrees == len(new) - 1


def test_standard_errors_are_saved(tmp_path):
    panel = fewer.select(X, 3, strategies=["search"], random_state=0)
    panel.save(tmp_path / "panel")
    loaded = fewer.Panel.load(tmp_path / "panel")
    assert loaded.estimates == panel.estimates
    assert loaded.held_out.standard_error == panel.held_out.standard_error > 0
    assert loaded.held_out.interval(0.9) == panel.held_out.interval(0.9)
    assert loaded.settings["protocol"] == "5 folds, seed 0, each feature standardised"
