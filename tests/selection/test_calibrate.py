"""Conformal intervals, and scores that are not those of the luckiest candidate."""

from dataclasses import replace

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from sklearn.datasets import load_breast_cancer, load_wine

import fewer
from fewer.errors import FewerWarning
from fewer.selection.calibrate import conformal_quantiles, own_factors
from fewer.selection.compare import crossfitted


def share_inside(panel, new):
    _, low, high = panel.reconstruct(new[:, panel.indices], interval=0.9)
    others = np.setdiff1d(np.arange(panel.d), panel.indices)
    return ((new >= low) & (new <= high))[:, others]


def test_ranks_leave_room_for_one_new_row():
    values = np.arange(1.0, 20.0)[:, None]  # of 19, the ranks 1 and 19 leave 5% on each side
    found = conformal_quantiles([values])[:, 0]
    assert (found[2], found[5], found[8]) == (1.0, 10.0, 19.0)
    gappy = np.append(values, [[np.nan]], axis=0)
    np.testing.assert_allclose(conformal_quantiles([gappy])[:, 0], found)


def test_every_group_counts_the_same():
    random = np.random.default_rng(0)
    values = np.append(random.normal(size=1000), 10 + random.normal(size=10))[:, None]
    groups = np.append(np.zeros(1000), np.ones(10))
    assert conformal_quantiles([values])[5, 0] < 1
    assert conformal_quantiles([values, values], np.append(groups, groups + 2))[7, 0] > 8
    alone = conformal_quantiles([values[:50]], np.arange(50))
    np.testing.assert_allclose(alone, conformal_quantiles([values[:50]]))


def test_intervals_hold_what_they_promise_and_widen_with_the_row():
    random = np.random.default_rng(1)
    hidden = random.normal(size=(900, 3)) * random.choice([0.3, 2.0], size=(900, 1))
    noise = np.linalg.norm(hidden, axis=1, keepdims=True)
    X = np.hstack([hidden, hidden @ random.normal(size=(3, 8))])
    X = X + 0.3 * noise * random.normal(size=X.shape)
    panel = fewer.select(X[:500], 3, strategies=["search"], random_state=0)
    inside = share_inside(panel, X[500:])
    assert inside.mean() == pytest.approx(0.9, abs=0.02)
    # without the difficulty of rows, calm rows would be covered nearly always, wild ones rarely
    far = np.argsort(panel.reconstructor.difficulty_of(X[500:][:, panel.indices]))
    easy, hard = inside[far[:130]].mean(), inside[far[-130:]].mean()
    assert hard > 0.82
    plain = fewer.reconstructor.Reconstructor(**{**vars(panel.reconstructor), "difficulty": None})
    _, low, high = plain.reconstruct(X[500:][far[-130:]][:, panel.indices], 0.9)
    before = (X[500:][far[-130:]] >= low) & (X[500:][far[-130:]] <= high)
    others = np.setdiff1d(np.arange(panel.d), panel.indices)
    assert before[:, others].mean() < hard
    assert easy < 0.98


def test_intervals_of_rows_in_groups():
    random = np.random.default_rng(2)
    groups = np.repeat(np.arange(100), 6)
    shift = random.normal(size=(100, 6))[groups]  # rows of a group are alike
    X = shift + 0.2 * random.normal(size=(600, 6))
    X[:, 3:] += X[:, :3]
    old = groups < 60
    panel = fewer.select(X[old], 3, row_groups=groups[old], strategies=["search"], random_state=0)
    assert share_inside(panel, X[~old]).mean() == pytest.approx(0.9, abs=0.04)


def test_the_difficulty_of_rows_is_saved(tmp_path):
    X = load_breast_cancer().data[:, :8]
    panel = fewer.select(X, 3, strategies=["search"], random_state=0)
    panel.save(tmp_path / "panel")
    again = fewer.Panel.load(tmp_path / "panel")
    for one, other in zip(*(p.reconstruct(X[:9, p.indices], interval=0.9) for p in (panel, again)),
                          strict=True):  # fmt: skip
        np.testing.assert_allclose(one, other)
    other = np.setdiff1d(np.arange(8), again.indices)[0]
    _, low, high = again.reconstruct(X[:200, again.indices], interval=0.9)
    widths = (high - low)[:, other]
    assert widths.max() > 1.2 * widths.min() > 0


def test_a_winner_is_scored_as_the_other_parts_choose_it():
    """Candidates that differ by chance alone: the best looks better than it is."""
    random = np.random.default_rng(0)
    lucky, honest = [], []
    for _ in range(200):
        losses = 1 + random.normal(size=(6, 50))
        parts = np.repeat(np.arange(5), 10)
        order = np.argsort(losses.mean(axis=1))
        losses = losses[order]
        chosen = crossfitted(losses, parts, np.zeros(6))
        lucky.append(losses[0].mean())
        honest.append(losses[chosen, np.arange(50)].mean())
    assert np.mean(lucky) < 0.85
    assert np.mean(honest) == pytest.approx(1.0, abs=0.03)
    assert crossfitted(losses, np.zeros(50, dtype=int), np.zeros(6)).tolist() == [0] * 50


def test_a_linear_score_is_not_that_of_the_luckiest_penalty():
    """Of noise, nothing can be explained beyond the measured features themselves."""
    random = np.random.default_rng(3)
    gaps = []
    for seed in range(3):
        X = random.normal(size=(30, 8))
        panel = fewer.select(X, 2, scale="none", strategies=["search"], random_state=seed)
        gaps.append(float(panel.held_out) - 2 / 8)
        assert len(panel.fold_panels) == 5
    assert np.mean(gaps) < 0.05


def test_a_network_that_won_by_chance_is_corrected():
    X = load_breast_cancer().data[:90, :6]
    with pytest.warns(FewerWarning, match="does not clearly beat a linear decoder"):
        panel = fewer.select(
            X, 2, decoder=(4,), strategies=["search"], validation=2, random_state=0
        )
    assert panel.held_out.standard_error > 0
    assert panel.held_out.degrees == 89  # over rows
    assert panel.estimates["equal"].standard_error > 0


@pytest.mark.parametrize("numbers", [False, True])
def test_the_score_of_a_prediction_has_a_standard_error(numbers, tmp_path):
    X, y = load_breast_cancer(return_X_y=True)
    X = X[:300, :8]
    y = X @ np.linspace(0, 1, 8) / X.std(axis=0).sum() if numbers else y[:300]
    panel = fewer.select(
        X, 2, target=y, strategies=["search"], validation=2, random_state=0, device="cpu"
    )
    found = panel.target
    if numbers:
        assert 0 < found.standard_error < 0.1
    else:
        # of two folds, each of which is as large as the rest
        binomial = (3 * found.held_out * (1 - found.held_out) / 300) ** 0.5
        assert found.standard_error == pytest.approx(binomial, rel=0.5)
    panel.save(tmp_path / "panel")
    assert fewer.Panel.load(tmp_path / "panel").target.standard_error == found.standard_error
    # the score of the winner itself, or less
    assert found.held_out <= panel.evidence.target["scores"]["panel"] + 1e-9
    assert panel.evidence.stability["index"] > 0
    tests = panel.evidence.significance
    assert len(tests["random"]) == 199
    assert len(tests["contributions"]) == 2


def test_bounds_with_missing_features_are_calibrated_and_saved(tmp_path):
    X = load_breast_cancer().data[:, :14]
    panel = fewer.select(X[::2], 6, strategies=["search"], random_state=0)
    joint = panel.reconstructor.joint
    assert joint.factors.shape == (2,)
    assert not np.allclose(joint.factors, 1, atol=1e-3)
    panel.save(tmp_path / "panel")
    again = fewer.Panel.load(tmp_path / "panel").reconstructor
    np.testing.assert_array_equal(again.joint.factors, joint.factors)
    np.testing.assert_array_equal(again.joint.by_pattern, joint.by_pattern)

    before = replace(joint, factors=np.ones(2), by_pattern=None)
    plain = replace(panel.reconstructor, joint=before)
    rows = X[1::2][:, panel.indices].copy()
    own = joint.by_pattern
    np.testing.assert_array_equal(own, own.T)
    for gone, factor in (
        ([0], joint.factors[0] * own[0, 0]),
        ([0, 1], joint.factors[1] * own[0, 1]),
        ([0, 1, 2], joint.factors[1]),
    ):
        gappy = rows.copy()
        gappy[:, gone] = np.nan
        _, low, high = panel.reconstruct(gappy, interval=0.9)
        _, before, after = plain.reconstruct(gappy, interval=0.9)
        wide = after > before
        np.testing.assert_allclose((high - low)[wide], factor * (after - before)[wide])


def test_patterns_of_missing_features_have_factors_of_their_own_where_they_differ():
    random = np.random.default_rng(0)
    kind, side = np.repeat(np.arange(20), 400), random.random(8000) < 0.5
    scores = np.abs(random.normal(size=8000))
    planted = np.exp(0.3 * random.normal(size=20))
    planted /= np.exp(np.log(planted).mean())
    found = own_factors(scores * planted[kind], np.ones(8000), kind, side, 20, 1.0)
    np.testing.assert_allclose(found, planted, rtol=0.2)
    chance = own_factors(scores, np.ones(8000), kind, side, 20, 1.0)
    unshrunk = [np.quantile(scores[kind == at], 0.9) for at in range(20)]
    assert np.log(chance).std() < 0.5 * np.log(unshrunk).std()


def test_files_without_factors_of_missing_features_load(tmp_path):
    X = load_breast_cancer().data
    panel = fewer.select(X, 3, strategies=["search"], validation=0.2, random_state=0)
    panel.save(tmp_path / "panel")
    file = tmp_path / "panel" / "tensors.safetensors"
    tensors = load_file(file)
    del tensors["joint.factors"], tensors["joint.by_pattern"]
    save_file(tensors, file, safe_open(file, "pt").metadata())
    old = fewer.Panel.load(tmp_path / "panel")
    np.testing.assert_array_equal(old.reconstructor.joint.factors, 1)


def test_a_score_lowered_for_the_choice_is_not_certain():
    """No held-out row is predicted wrongly, but other rows would have chosen worse panels."""
    frame = load_wine(as_frame=True).frame
    frame["copy"] = frame["target"]
    with pytest.warns(FewerWarning, match="equal to the target"):
        panel = fewer.select(frame, 2, target="target", strategies=["search"], random_state=0)
    uncorrected = panel.evidence.target["scores"]["panel"]
    assert uncorrected == pytest.approx(1.0)
    assert panel.target.held_out < 1.0
    assert panel.target.standard_error >= uncorrected - panel.target.held_out
