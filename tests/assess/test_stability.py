"""Which features are chosen again from half of the rows."""

import numpy as np
import pytest

import fewer
from fewer.assess.stability import nogueira, stability
from fewer.data.open import as_source
from fewer.errors import InputError
from fewer.selection.evidence.stability import _halves


def planted(n=200, seed=0):
    """Three sources: one with a clear feature, one with twins, one with none but noise beside."""
    random = np.random.default_rng(seed)
    z = random.normal(size=(n, 2))
    clear = np.hstack([z[:, :1], 0.7 * z[:, :1] + 0.7 * random.normal(size=(n, 4))])
    twins = np.hstack([z[:, 1:]] * 2) + 0.2 * random.normal(size=(n, 2))
    seen = 0.7 * z[:, 1:] + 0.7 * random.normal(size=(n, 4))
    return np.hstack([clear, twins, seen, random.normal(size=(n, 9))])


@pytest.fixture(scope="module")
def found():
    return stability(planted(), 2, subsamples=40, random_state=0, device="cpu")


def test_twins_share_their_votes(found):
    by = dict(zip(found.features, found.frequency, strict=True))
    assert by[0] > 0.9
    assert by[5] < 0.9 or by[6] < 0.9
    assert by[5] + by[6] == pytest.approx(1, abs=0.1)
    assert {tuple(c["features"]) for c in found.clusters} == {(5, 6)}
    assert found.clusters[0]["frequency"] > 0.9
    assert found.cluster_index > max(0.8, found.index + 0.05)
    assert found.interval[0] < found.index < found.interval[1]
    assert found.stable == [0]
    assert found.false_bound == pytest.approx(2**2 / (0.5 * 20))


def test_the_index_of_random_choices_is_zero():
    random = np.random.default_rng(0)
    chosen = np.array([np.isin(np.arange(30), random.choice(30, 6, False)) for _ in range(200)])
    index, (low, high) = nogueira(chosen)
    assert abs(index) < 0.02
    assert low < 0 < high
    always = np.tile(chosen[0], (20, 1))
    assert nogueira(always)[0] == pytest.approx(1)
    assert nogueira(always | True) == (1.0, (1.0, 1.0))


def test_the_interval_covers_the_index_of_many_choices():
    random = np.random.default_rng(1)
    chance = random.uniform(0.05, 0.95, size=20)
    truth = nogueira(random.random((20_000, 20)) < chance)[0]
    inside = []
    for _ in range(200):
        low, high = nogueira(random.random((60, 20)) < chance)[1]
        inside.append(low <= truth <= high)
    assert np.mean(inside) > 0.88


def test_halves_are_complements_and_keep_groups_together():
    groups = np.arange(200) // 8
    splits = _halves(as_source(planted()), groups, 10, 0)
    for at in range(0, 10, 2):
        one, other = splits.train_rows(at), splits.train_rows(at + 1)
        assert len(np.intersect1d(groups[one], groups[other])) == 0
        assert abs(len(one) - len(other)) <= 24
        assert len(one) + len(other) >= 180


def test_wide_rows_are_halved_one_by_one():
    X = np.random.default_rng(0).normal(size=(16, 80))
    splits = _halves(as_source(X), None, 4, 0)
    assert len(splits.parts) == 16
    assert stability(X, 3, subsamples=4, random_state=0, device="cpu").index < 0.5


@pytest.mark.parametrize("numbers", [False, True])
def test_features_for_a_target_are_those_that_come_back(numbers):
    """Two columns make the target; to the other features they say nothing."""
    X, random = planted(), np.random.default_rng(1)
    score = X[:, 11] + X[:, 12] + 0.3 * random.normal(size=len(X))
    y = score if numbers else np.where(score > 0, "high", "low").astype(object)
    found = stability(X, 2, subsamples=20, target=y, random_state=0, device="cpu")
    assert set(found.features[:2]) == {11, 12}
    assert min(found.frequency[:2]) > 0.9
    assert found.sentence().startswith("Stability for the target")
    plain = stability(X, 2, subsamples=20, random_state=0, device="cpu")
    assert not {11, 12} & set(plain.stable)
    y[:50] = np.nan if numbers else None  # rows without a label do not count
    again = stability(X, 2, subsamples=20, target=y, random_state=0, device="cpu")
    assert set(again.features[:2]) == {11, 12}
    with pytest.raises(InputError, match="target has 150 values for 200 rows"):
        stability(X, 2, target=y[:150])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"subsamples": 5}, "subsamples=5 must be even"),
        ({"subsamples": 2}, "subsamples=2 must be a whole number of at least 4"),
        ({"threshold": 0.5}, "threshold=0.5 must be a number above 0.5"),
        ({"row_groups": np.arange(200) // 100}, "there are 2 groups of rows"),
    ],
)
def test_bad_requests_are_named(options, message):
    with pytest.raises(InputError, match=message):
        stability(planted(), 2, **options)


def test_classes_that_half_of_the_rows_lack_are_no_obstacle():
    random = np.random.default_rng(0)
    X = random.normal(size=(120, 6))
    rare = random.permutation(np.repeat(np.arange(40), 3))  # every half lacks some
    found = stability(X, 2, subsamples=8, target=rare.astype(str), random_state=0)
    assert len(found.frequency) <= 6
    panel = fewer.select(X, 2, target=rare.astype(str), validation=0.2, random_state=0)
    assert panel.evidence.stability is not None


def test_features_that_vary_in_few_rows_are_no_obstacle():
    X = planted()
    X[:, -3:] = 0.3
    X[[0, 7, 9], -3:] = np.eye(3)
    assert stability(X, 2, subsamples=8, random_state=0).frequency[0] > 0.5
