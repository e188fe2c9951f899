"""Splits, and held-out errors from covariances, which equal those from rows."""

from dataclasses import dataclass
from functools import partial

import numpy as np
import pytest
import torch
from scipy import sparse
from sklearn.linear_model import LinearRegression, Ridge
from sklearn.model_selection import KFold

import fewer
from fewer.data.source import Source, array_source
from fewer.errors import InputError
from fewer.search.eigen import without_chance
from fewer.validation import (
    Scaling,
    best_ridge,
    check_row_groups,
    choose_validation,
    fold_covariances,
    paired_interval,
    ridge_errors,
    split_rows,
)

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


@dataclass
class Rows:
    """What a fold should be, from its rows."""

    mean: np.ndarray
    scale: np.ndarray
    noise: np.ndarray  # in scaled units
    train: np.ndarray  # second moments about the training mean, of what is behind the noise
    held: np.ndarray

    def error(self, panel, ridge):
        """Per feature, of the decoder with the least penalised error on the training rows."""
        S = np.ix_(panel, panel)
        B = np.linalg.solve(self.train[S] + np.diag(ridge[panel]), self.train[panel])
        inner = self.held[S] + np.diag(self.noise[panel])
        return self.held.diagonal() - 2 * (B * self.held[panel]).sum(0) + (B * (inner @ B)).sum(0)


def by_hand(fold, rows, scaling, weights, row_weights, noise) -> Rows:
    train, held = fold.train_rows, fold.held_rows
    mean = np.average(rows[train], axis=0, weights=row_weights[train])

    def moments(index):
        around = (rows[index] - mean) * np.sqrt(row_weights[index])[:, None]
        return around.T @ around / max(row_weights[index].sum(), 1) - np.diag(noise)

    own, out = moments(train), moments(held)
    n, m = row_weights[train].sum(), row_weights[held].sum()
    both = (n * own.diagonal() + m * out.diagonal()) / (n + m)
    spread = np.maximum(own.diagonal(), 0.1 * both) if len(held) else own.diagonal()
    scale = np.sqrt(spread + noise) if scaling == "standard" else np.ones(len(mean))
    scale = scale / np.sqrt(weights)
    # few rows may vary less than the noise: 1/1000 of what is measured is signal
    measured = (own.diagonal() + noise) / scale**2
    less = np.minimum(noise / scale**2, 0.999 * measured)
    more = np.diag(noise / scale**2 - less)
    unit = np.outer(scale, scale)
    return Rows(mean, scale, less, own / unit + more, out / unit + more)


@pytest.mark.parametrize("validation", [3, 0.3])
@pytest.mark.parametrize("scaling", ["none", "standard"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("noisy", [False, True])
def test_folds_equal_what_their_rows_say(validation, scaling, weighted, noisy):
    rng = np.random.default_rng(2)
    rows = X.copy()
    splits = split_rows(90, validation)
    rows[:, 3] = 2 + 0.01 * rng.normal(size=90)
    rows[splits.held_rows(0), 3] += rng.normal(size=len(splits.held_rows(0)))  # hardly varies
    weights = rng.uniform(0.5, 2, size=8) if weighted else np.ones(8)
    row_weights = rng.uniform(0.1, 2, size=90) if weighted else np.ones(90)
    row_weights /= row_weights.mean()
    noise = np.append(rng.uniform(0.1, 0.3, size=7), 100.0) if noisy else np.zeros(8)
    found = fold_covariances(
        array_source(rows),
        splits,
        Scaling(scaling, weights if weighted else None),
        noise=noise if noisy else None,
        row_weights=row_weights if weighted else None,
    )
    panel, axes = np.array([6, 0, 7, 3]), torch.from_numpy(rng.normal(size=(8, 2)))
    for fold in [*found.folds, found.everything, found.folds[0]]:
        wanted = by_hand(fold, rows, scaling, weights, row_weights, noise)
        close = partial(np.testing.assert_allclose, rtol=1e-6, atol=1e-9)
        close(fold.mean, wanted.mean)
        close(fold.center, wanted.mean if scaling == "standard" else np.zeros(8))
        close(fold.scaled_mean, (wanted.mean - fold.center) / fold.scale)
        close(fold.scale, wanted.scale)
        close(fold.matrix(), wanted.train)
        close(fold.variance, wanted.train.diagonal())
        close(fold.measured_variance, wanted.train.diagonal() + wanted.noise)
        close(fold.cross(panel), wanted.train[panel])
        close(fold.gram(panel), wanted.train[np.ix_(panel, panel)] + np.diag(wanted.noise[panel]))
        if fold.number is None:
            continue
        held = fold.held_rows
        close(fold.weights_of(held) if weighted else np.ones(len(held)), row_weights[held])
        assert fold.held_weight == pytest.approx(row_weights[held].sum())
        close(fold.held_mean, np.average(rows[held], axis=0, weights=row_weights[held]))
        close(fold.held_diagonal, wanted.held.diagonal())
        close(fold.held_product(axes), wanted.held @ axes.numpy())
        away = wanted.mean + 1
        squares = np.average((rows[held] - away) ** 2, axis=0, weights=row_weights[held])
        close(fold.held_squares(torch.from_numpy(away)), squares - wanted.noise * fold.scale**2)
        ridge = 0.2 * weights
        if noisy:
            measured = wanted.train.diagonal() + wanted.noise
            ridge = wanted.noise + 0.2 * measured / measured.mean()
        each = wanted.error(panel, ridge)
        close(fold.residuals(panel, fold.decoder(panel, 0.2)), each)
        assert fold.error(panel, 0.2) == pytest.approx(each.mean())
        path = fold.path_residuals(panel, 0.2)
        for size in range(1, 5):
            each = wanted.error(panel[:size], ridge)
            if not noisy:
                each[panel[:size]] = 0.0  # once measured
            close(path[size - 1], each)
        known = 0.0 if noisy else wanted.error(panel, ridge)[panel].sum()
        wanted_known = (wanted.error(panel, ridge).sum() - known) / 8
        assert fold.error(panel, 0.2, known=True) == pytest.approx(wanted_known)


def test_weighted_rows_with_gaps():
    rng = np.random.default_rng(3)
    gaps = np.where(rng.random(X.shape) < 0.2, np.nan, X)
    weights = rng.uniform(0.1, 2, size=90)
    weights /= weights.mean()
    found = fold_covariances(array_source(gaps), split_rows(90, 3), row_weights=weights)
    seen = ~np.isnan(gaps)
    center = np.nansum(weights[:, None] * gaps, axis=0) / (weights[:, None] * seen).sum(0)
    filled = np.where(seen, gaps, center)
    for fold in [*found.folds, found.everything]:
        wanted = np.cov(filled[fold.train_rows].T, aweights=weights[fold.train_rows], ddof=0)
        np.testing.assert_allclose(fold.matrix(), wanted, atol=1e-12)
    np.testing.assert_allclose(found.stats.mean, center)
    np.testing.assert_allclose(found.stats.variance, wanted.diagonal())


def test_what_features_look_like_in_a_fold():
    rows = X.copy()
    rows[:, 2] = 7.0
    fold = folds_of(rows, 3, "standard")[0]
    found = fold.moments()
    assert found.n == fold.n_train == 60
    assert found.observed.tolist() == [60] * 8
    np.testing.assert_allclose(found.mean, 0, atol=1e-12)
    np.testing.assert_allclose(found.variance, np.where(np.arange(8) == 2, 0, 1), atol=1e-12)
    assert (found.minimum[2], found.maximum[2]) == (0.0, 0.0)  # constant
    others = np.arange(8) != 2
    assert np.isneginf(found.minimum[others]).all()
    assert np.isposinf(found.maximum[others]).all()
    gaps = X.copy()
    gaps[::3, 1] = np.nan
    fold = folds_of(gaps, 3)[0]
    train = gaps[fold.train_rows]
    found = fold.moments()
    np.testing.assert_allclose(found.observed, (~np.isnan(train)).sum(0))
    np.testing.assert_allclose(found.maximum, np.nanmax(train, axis=0), rtol=1e-6)


def test_columns_that_repeat_others_add_nothing_along_a_path():
    rows = np.concatenate([X, 2 * X[:, :1], np.zeros((90, 1))], axis=1)
    fold = folds_of(rows, 3)[0]
    once = fold.path_residuals(np.array([0, 5, 1]))
    again = fold.path_residuals(np.array([0, 8, 9, 5, 1]))
    np.testing.assert_allclose(again[[0, 3, 4]], once, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(again[2], once[0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("factor", [1e-30, 1.0, 1e30])
def test_columns_that_vary_by_rounding_alone_add_nothing_along_a_path(factor):
    rows = factor * np.concatenate([X, 2 * X[:, :1], np.full((90, 1), 3.3)], axis=1)
    for fold in folds_of(rows, 5):
        once = fold.path_residuals(np.array([0, 5, 1]))
        again = fold.path_residuals(np.array([0, 8, 9, 5, 1]))
        np.testing.assert_allclose(again[[0, 3, 4]] / factor**2, once / factor**2, atol=1e-6)


@pytest.mark.parametrize("factor", [1e-60, 1e60])
def test_folds_are_the_same_in_any_unit(factor):
    one, other = (folds_of(rows, 3, "standard")[1] for rows in (X, factor * X))
    np.testing.assert_allclose(other.matrix(), one.matrix())
    assert other.error(COLUMNS) == pytest.approx(one.error(COLUMNS))
    plain = folds_of(factor * X, 3)[1]
    np.testing.assert_allclose(
        plain.path_residuals(COLUMNS) / factor**2, folds_of(X, 3)[1].path_residuals(COLUMNS)
    )


def test_the_best_penalty_counts_what_is_not_measured():
    folds = folds_of(X, 3, "standard")
    panels, ridges = [COLUMNS] * 3, [0.0, 0.01, 0.3, 3.0]
    wanted = []
    for ridge in ridges:
        unit = float(folds[0].variance.mean())
        wanted.append([fold.error(COLUMNS, ridge * unit, known=True) for fold in folds])
    tried, table = ridge_errors(folds, panels, ridges)
    np.testing.assert_allclose(tried, np.array(ridges) * unit)
    np.testing.assert_allclose(table, np.array(wanted).T)
    best = int(np.mean(wanted, axis=1).argmin())
    assert best_ridge(folds, panels, ridges) == tried[best]


def test_fractions_hold_out_at_least_one_row_and_train_on_one():
    assert [len(part) for part in split_rows(10, 0.26).parts] == [3, 7]
    assert [len(part) for part in split_rows(10, 0.01).parts] == [1, 9]
    assert [len(part) for part in split_rows(10, 0.99).parts] == [9, 1]
    groups = np.repeat([3, 1, 2], [5, 3, 2])
    held = split_rows(10, 0.01, groups=groups).held_rows(0)
    assert len(set(groups[held])) == 1
    assert len(held) == (groups == groups[held[0]]).sum()
    one = split_rows(4, 3, groups=np.zeros(4))  # which cannot be divided
    assert one.held_rows(0).tolist() == one.train_rows(0).tolist() == [0, 1, 2, 3]
    two = split_rows(4, 3, groups=np.array([0, 0, 1, 1]))
    assert sorted(part.tolist() for part in two.parts) == [[0, 1], [2, 3]]


def test_blocks_are_neighbouring_rows():
    splits = split_rows(12, "blocks")
    assert [part.tolist() for part in splits.parts] == [
        part.tolist() for part in np.array_split(np.arange(12), 5)
    ]
    assert splits.train_rows(1).tolist() == [0, 1, 2, *range(6, 12)]
    assert splits.labels.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 3, 3, 4, 4]
    assert len(split_rows(3, "blocks")) == 3
    assert len(split_rows(3, "time")) == 2


@pytest.mark.parametrize(
    ("n", "k", "options", "wanted"),
    [
        (999, 10, {"linear": True}, 5),
        (1000, 10, {"linear": True}, 0.1),
        (999, 10, {"linear": False}, 3),
        (1000, 10, {"linear": False}, 0.1),
        (4, 10, {"linear": True}, 4),
        (10**6, 10, {"linear": True, "d": 3663}, 5),  # 5 matrices of 8 bytes in 2^29 bytes
        (10**6, 10, {"linear": True, "d": 3664}, 0.1),
        (10**6, 10, {"linear": False, "d": 4729}, 3),
        (10**6, 10, {"linear": False, "d": 4730}, 0.1),
        (10**6, 10, {"linear": True, "d": 60, "predicts": True}, 0.1),
        (10**6, 10, {"linear": False, "d": 60, "predicts": True, "groups": 100}, 0.1),
        (10**6, 10, {"linear": False, "d": 60, "predicts": True, "groups": 99}, 5),
        (10**6, 10, {"linear": True, "d": 60, "predicts": True, "groups": 10}, 5),
        (10**6, 10, {"linear": False, "d": 60, "predicts": True, "groups": 9}, 0.1),
        (10**6, 10, {"linear": False, "d": 3664, "predicts": True, "groups": 99}, 0.1),
        (999, 10, {"linear": False, "d": 60, "predicts": True, "groups": 99}, 3),
        (10**6, 10, {"linear": False, "groups": 99}, 0.1),
    ],
)
def test_splits_for_so_many_rows(n, k, options, wanted):
    assert choose_validation("auto", n, k, **options) == wanted


@pytest.mark.parametrize("validation", [2, 10, np.int64(7), 0.001, np.float64(0.5), "time"])
def test_splits_that_are_taken_as_they_are(validation):
    assert choose_validation(validation, 10, 2, linear=True) == validation


@pytest.mark.parametrize("validation", [1, 11, 0.0, 1.0, -0.1, True, "often", None, np.int64(1)])
def test_splits_that_are_refused(validation):
    with pytest.raises(InputError, match="must be a fraction between 0 and 1, a number of folds"):
        choose_validation(validation, 10, 2, linear=True)


def test_masks_of_held_out_rows():
    mask = np.arange(6) < 4
    assert choose_validation(mask.tolist(), 6, 2, linear=True).tolist() == mask.tolist()
    splits = split_rows(6, mask)
    assert splits.held_rows(0).tolist() == [0, 1, 2, 3]
    assert splits.train_rows(0).tolist() == [4, 5]
    for wrong in (mask[:5], mask.astype(int), mask[:, None]):
        with pytest.raises(InputError, match="give 6 times True or False"):
            choose_validation(wrong, 6, 2, linear=True)
    for wrong in (np.zeros(6, dtype=bool), np.arange(6) < 5, np.ones(6, dtype=bool)):
        with pytest.raises(InputError, match="leave at least 2, and hold out 1"):
            choose_validation(wrong, 6, 2, linear=True)


def test_labels_of_row_groups():
    assert check_row_groups(None, 3) is None
    assert check_row_groups([2, 1, 2], 3).tolist() == [2, 1, 2]
    assert check_row_groups(np.array(["a", 1, "a"], dtype=object), 3).tolist() == ["a", "1", "a"]
    for wrong, message in (
        ([[1, 2, 3]], r"shape \(1, 3\); give 3 labels"),
        ([1, 2], "2 labels for 3 rows"),
        ([1.0, np.nan, 2.0], "row_groups of row 1 is"),
        (np.array(["a", "b", None], dtype=object), "row_groups of row 2 is None"),
        ([1, 1, 1], "single label"),
    ):
        with pytest.raises(InputError, match=message):
            check_row_groups(wrong, 3)


def test_an_interval_over_three_folds_by_hand():
    gaps, folds = np.array([1.0, 1, 2, 2, 6, 6]), np.array([0, 0, 1, 1, 2, 2])
    mean, low, high = paired_interval(gaps, folds, level=0.9)
    # t with 2 degrees of freedom; training rows that folds share: 1/3 + 1/2
    half = 2.9199856 * np.std([1, 2, 6], ddof=1) * (1 / 3 + 1 / 2) ** 0.5
    assert (mean, low, high) == pytest.approx((3.0, 3.0 - half, 3.0 + half))


def test_few_noisy_rows_are_searched_without_what_is_due_to_chance():
    noise = np.linspace(0.05, 1, 8)
    found = fold_covariances(array_source(X[:40]), split_rows(40, 2), noise=noise)
    first, second = found.folds
    for fold in (first, second, first):
        assert fold.chancy
        C, variance = fold.matrix_for_choice(), fold.variance
        wanted = without_chance(fold.matrix(), fold.noise, 20)
        torch.testing.assert_close(C, wanted)
        assert fold.matrix_for_choice() is C
        for chosen, left in ((0, 1.0), (2, 0.9), (9, 0.55), (18, 0.5)):
            assert chosen or found.chosen == 0  # unless it is known
            found.chosen = chosen
            dropped = np.maximum(variance - C.diagonal().numpy(), 0)
            penalty = (fold.penalty(0.3).numpy() + dropped) / left**2
            np.testing.assert_allclose(fold.penalty_for_choice(C, 0.3), penalty)
        lower = C - 0.1 * torch.eye(8)  # more is dropped
        penalty = (
            fold.penalty(0.0).numpy() + np.maximum(variance - lower.diagonal().numpy(), 0)
        ) * 4
        np.testing.assert_allclose(fold.penalty_for_choice(lower), penalty)
        found.chosen = 0
    again = first.matrix_for_choice()
    found.release()
    assert first.matrix_for_choice() is not again
    torch.testing.assert_close(first.matrix_for_choice(), again)


@pytest.mark.parametrize("noisy", [False, True])
def test_many_rows_or_exact_ones_are_searched_as_they_are(noisy):
    noise = np.linspace(0.05, 1, 8) if noisy else None
    found = fold_covariances(array_source(X[:36]), split_rows(36, 3), noise=noise)
    fold = found.folds[1]
    assert fold.n_train == 3 * 8
    assert not fold.chancy
    assert fold.matrix_for_choice() is fold.matrix()
    found.chosen = 4
    wanted = fold.penalty(0.3)
    np.testing.assert_allclose(fold.penalty_for_choice(fold.matrix(), 0.3), wanted)
    few = fold_covariances(array_source(X[:18]), split_rows(18, 3)).folds[0]
    assert not few.chancy
    assert few.matrix() is few.matrix()
