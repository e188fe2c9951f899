"""Splits, and held-out errors from covariances, which equal those from rows."""

import numpy as np
import pytest
import torch
from scipy import sparse
from sklearn.linear_model import LinearRegression, Ridge
from sklearn.model_selection import KFold

import fewer
from fewer.data.source import Source, array_source
from fewer.errors import InputError
from fewer.validation import fold_covariances, paired_interval, split_rows

RNG = np.random.default_rng(0)
X = RNG.normal(size=(90, 4)) @ RNG.normal(size=(4, 8)) + 0.5 * RNG.normal(size=(90, 8)) + 3
COLUMNS = np.array([1, 6])


def folds_of(rows, validation, scaling="none"):
    return fold_covariances(array_source(rows), split_rows(len(X), validation), scaling).folds


@pytest.mark.parametrize("rows", [X, X[:20].repeat(20, axis=1)])  # narrow, and wide
def test_errors_of_several_penalties_at_once(rows):
    rows = rows + 0.1 * np.random.default_rng(1).normal(size=rows.shape)
    fold = fold_covariances(array_source(rows), split_rows(len(rows), 4)).folds[1]
    for known in (False, True):
        found = fold.errors(COLUMNS, [0.0, 0.3, 2.0], known=known)
        wanted = [fold.error(COLUMNS, ridge, known=known) for ridge in (0.0, 0.3, 2.0)]
        np.testing.assert_allclose(found, wanted, rtol=1e-12)
    assert len(set(found)) == 3


@pytest.mark.parametrize(("n", "count"), [(23, 5), (20, 4), (3, 3)])
def test_folds_are_as_large_as_those_of_scikit_learn(n, count):
    wanted = [len(held) for _, held in KFold(count).split(np.zeros(n))]
    splits = split_rows(n, count)
    assert [len(part) for part in splits.parts] == wanted
    assert sorted(np.concatenate(splits.parts).tolist()) == list(range(n))


@pytest.mark.parametrize("validation", [5, 0.3, "time"])
@pytest.mark.parametrize("form", [np.asarray, sparse.csr_array])
@pytest.mark.parametrize("scaling", ["none", "standard"])
def test_errors_equal_those_of_a_regression(validation, form, scaling):
    for fold in folds_of(form(X), validation, scaling):
        train, held = X[fold.train_rows], X[fold.held_rows]
        if scaling == "standard":
            spread = train.std(axis=0)
            train, held = train / spread, held / spread
        plain = LinearRegression().fit(train[:, COLUMNS], train)
        expected = ((plain.predict(held[:, COLUMNS]) - held) ** 2).mean()
        assert fold.error(COLUMNS) == pytest.approx(expected)
        ridge = Ridge(alpha=0.2 * len(train)).fit(train[:, COLUMNS], train)
        expected = ((ridge.predict(held[:, COLUMNS]) - held) ** 2).mean()
        assert fold.error(COLUMNS, 0.2) == pytest.approx(expected)
        np.testing.assert_allclose(fold.matrix(), np.cov(train.T, bias=True), atol=1e-12)


@pytest.mark.parametrize("validation", [4, 0.2])
def test_all_rows_are_the_sum_of_the_parts(validation):
    found = fold_covariances(array_source(X), split_rows(90, validation), "standard")
    everything = found.everything
    np.testing.assert_allclose(everything.matrix(), np.corrcoef(X.T), atol=1e-12)
    np.testing.assert_allclose(everything.mean, X.mean(axis=0))
    np.testing.assert_allclose(found.stats.variance, X.var(axis=0))
    assert everything.n_train == 90
    assert len(everything.held_rows) == 0


def test_missing_values_take_the_mean_of_their_part():
    gaps = np.where(RNG.random(X.shape) < 0.1, np.nan, X)
    found = fold_covariances(array_source(gaps), split_rows(90, 0.3))
    fold = found.folds[0]
    train = gaps[fold.train_rows]
    filled = np.where(np.isnan(train), np.nanmean(train, axis=0), train)
    np.testing.assert_allclose(fold.matrix(), np.cov(filled.T, bias=True), atol=1e-12)
    filled = np.where(np.isnan(gaps), np.nanmean(gaps, axis=0), gaps)
    np.testing.assert_allclose(found.everything.matrix(), np.cov(filled.T, bias=True), atol=1e-12)


def test_groups_stay_together():
    groups = np.repeat(np.arange(9), 10)
    splits = split_rows(90, 3, seed=0, groups=groups)
    assert sorted(np.concatenate(splits.parts)) == list(range(90))
    for fold in range(3):
        held, train = splits.held_rows(fold), splits.train_rows(fold)
        assert not set(groups[held]) & set(groups[train])
        assert len(held) + len(train) == 90


def test_rows_in_time_order_are_predicted_from_their_past():
    splits = split_rows(31, "time")
    assert len(splits) == 5
    for fold in range(5):
        train, held = splits.train_rows(fold), splits.held_rows(fold)
        assert train.max() < held.min()
        assert list(held) == list(range(held[0], held[-1] + 1))
    assert splits.held_rows(4)[-1] == 30


def test_select_holds_out_the_future():
    steps = np.cumsum(RNG.normal(size=(300, 12)), axis=0)
    panel = fewer.select(steps, 3, validation="time", strategies=["search"], random_state=0)
    assert panel.evidence.source["held"] == 250
    assert panel.evidence.source["folds"] == 5
    with pytest.raises(InputError, match="row_groups cannot be combined with validation='time'"):
        fewer.select(steps, 3, validation="time", row_groups=np.arange(300) % 7)


class Counted(Source):
    """Rows that count how often they are read."""

    def __init__(self, array):
        self.array, self.read = torch.from_numpy(array), 0

    @property
    def shape(self):
        return self.array.shape

    def rows(self, index, dtype=torch.float32):
        found = self.array[index].to(dtype)
        self.read += len(found)
        return found.clone()


@pytest.mark.parametrize(
    "options",
    [
        {"validation": 0.2},
        {"validation": 5},
        {"costs": np.arange(1.0, 13.0), "budget": 15.0, "validation": 2},
    ],
    ids=str,
)
def test_a_linear_panel_reads_the_rows_at_most_three_times(options):
    rows = RNG.normal(size=(400, 12)) @ RNG.normal(size=(12, 12))
    source = Counted(rows)
    k = None if "budget" in options else 3
    source.on_disk = True
    panel = fewer.select(source, k, strategies=["search"], random_state=0, **options)
    assert source.read <= 3 * 400
    assert panel.evidence.rows.shape[1] == 12  # the evidence reads nothing more from a file
    assert source.read <= 3 * 400
    assert panel.evidence.stability is None


def test_errors_of_wide_data_equal_those_of_a_regression():
    wide = X[:20].repeat(20, axis=1) + 0.1 * np.random.default_rng(1).normal(size=(20, 160))
    fold = fold_covariances(array_source(wide), split_rows(20, 4)).folds[1]
    assert fold.covariances.factored
    train, held = wide[fold.train_rows], wide[fold.held_rows]
    others = np.setdiff1d(np.arange(160), COLUMNS)
    for ridge in (0.0, 0.3, 2.0):
        fitted = Ridge(alpha=max(ridge, 1e-12) * len(train)).fit(train[:, COLUMNS], train)
        wrong = (fitted.predict(held[:, COLUMNS]) - held) ** 2
        assert fold.error(COLUMNS, ridge) == pytest.approx(wrong.mean())
        known = wrong[:, others].sum() / wrong.size
        assert fold.error(COLUMNS, ridge, known=True) == pytest.approx(known)


def test_errors_behind_noise_by_hand():
    noise = np.linspace(0.05, 0.1, 8)
    folds = fold_covariances(array_source(X), split_rows(90, 3), noise=noise).folds
    for fold in folds:
        train, held = X[fold.train_rows], X[fold.held_rows]
        np.testing.assert_allclose(fold.noise, noise)
        np.testing.assert_allclose(fold.measured_variance, train.var(axis=0))
        np.testing.assert_allclose(fold.variance, train.var(axis=0) - noise)
        measured = train.var(axis=0)
        wanted = noise + 0.2 * measured / measured.mean()
        np.testing.assert_allclose(fold.penalty(0.2), wanted)
        # a decoder of measured values, judged by what is behind the noise of held-out rows
        C, M = (
            np.cov(train.T, bias=True),
            (held - train.mean(axis=0)).T @ (held - train.mean(axis=0)),
        )
        M /= len(held)
        G, S = M - np.diag(noise), COLUMNS
        B = np.linalg.solve(C[np.ix_(S, S)], (C - np.diag(noise))[S])
        wrong = G.diagonal() - 2 * (B * G[S]).sum(0) + (B * (M[np.ix_(S, S)] @ B)).sum(0)
        assert fold.error(S) == pytest.approx(wrong.mean())


def test_intervals_of_paired_differences_by_hand():
    one, five = np.zeros(5), np.array([1.0, 2.0, 4.0, 3.0, 0.0])
    mean, low, high = paired_interval(five, one)
    half = 2.7764451 * five.std(ddof=1) / 5**0.5  # Student's t with 4 degrees of freedom
    assert (mean, low, high) == pytest.approx((2.0, 2.0 - half, 2.0 + half))
    # rows that repeat a group add nothing
    alike = paired_interval(five.repeat(3), one.repeat(3), np.arange(5).repeat(3))
    assert alike == pytest.approx((mean, low, high))
    # folds differ by more than their rows: t with 1 degree, and the rows that folds share
    mean, low, high = paired_interval(np.array([1.0, 1, 3, 3]), np.array([0, 0, 1, 1]))
    half = 12.7062047 * 2**0.5 * (1 / 2 + 1) ** 0.5
    assert (mean, low, high) == pytest.approx((2.0, 2.0 - half, 2.0 + half))
    assert paired_interval(np.array([2.0]), np.array([0])) == (2.0, 2.0, 2.0)
