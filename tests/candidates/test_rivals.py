"""Bound, greedy and chance beside a panel, on the same held-out rows."""

import numpy as np
import pytest
import torch
from sklearn.decomposition import PCA
from sklearn.linear_model import LinearRegression

from fewer.candidates.lines import LinearComparison
from fewer.candidates.rivals import HeldOutRivals, _leading
from fewer.candidates.scaling import Scaling, scaled_folds
from fewer.constraints import resolve
from fewer.data import RowView, ScaledSource, open_source
from fewer.search import greedy

K = 6


def rivals_of(X, scale="standard", held=None, metrics=("units", "equal"), **wishes):
    source = open_source(X)
    held = [np.arange(0, len(X), 5)] if held is None else held
    folds = scaled_folds(source, held, Scaling(scale), torch.device("cpu"))
    constraints = resolve(None, X.shape[1], K, **wishes)

    def choose(fold, seed):
        return greedy(fold.train, constraints).panel()

    def rows(fold, index):
        return ScaledSource(RowView(source, index), fold.center, fold.scale)

    return HeldOutRivals(
        folds=folds,
        panels=[choose(fold, 0) for fold in folds],
        ridge=0.0,
        final=np.arange(K),
        source=source,
        constraints=constraints,
        comparison=LinearComparison(rows, constraints),
        greedy=choose,
        metrics=metrics,
        device=torch.device("cpu"),
        seed=0,
    )


@pytest.fixture(scope="module")
def units(digits):
    """Digits without their constant pixels, in units that differ."""
    X = digits[0]
    X = X[:, X.std(axis=0) > 0.05]
    return X * np.random.default_rng(0).uniform(0.1, 10, X.shape[1])


def share(true, predicted, weight=1.0):
    wrong = ((true - predicted) ** 2 * weight).sum()
    return 1 - wrong / ((true - true.mean(axis=0)) ** 2 * weight).sum()


def apart(X):
    held = np.arange(0, len(X), 5)
    return np.delete(X, held, axis=0), X[held]


def errors_of(X, columns):
    train, held = apart(X)
    line = LinearRegression().fit(train[:, columns], train)
    return line.predict(held[:, columns])


def test_shares_are_those_of_scikit_learn(units):
    rivals = rivals_of(units)
    train, held = apart(units)
    rebuilt = errors_of(units, rivals.panels[0])
    shares, variance = rivals.shares([((held - rebuilt) ** 2).mean(axis=0)])
    spread = train.std(axis=0)
    for metric, weight in (("units", 1.0), ("equal", 1 / spread**2)):
        assert shares[metric]["panel"] == pytest.approx(share(held, rebuilt, weight))
        assert shares[metric]["greedy"] == pytest.approx(share(held, rebuilt, weight))
    bound = PCA(K).fit(train)
    predicted = bound.inverse_transform(bound.transform(held))
    assert shares["units"]["pca"] == pytest.approx(share(held, predicted))
    scaled, middle = PCA(K).fit(train / spread), held / spread
    predicted = scaled.inverse_transform(scaled.transform(middle))
    assert shares["equal"]["pca"] == pytest.approx(share(middle, predicted))
    assert shares["equal"]["random"] < shares["equal"]["greedy"] < shares["equal"]["pca"]
    np.testing.assert_allclose(variance, held.var(axis=0))


def test_the_curve_ends_at_the_shares_and_is_that_of_smaller_panels(units):
    rivals = rivals_of(units)
    panel = errors_of(units, rivals.panels[0])
    held = apart(units)[1]
    shares, _ = rivals.shares([((held - panel) ** 2).mean(axis=0)])
    curve = rivals.curve()
    assert curve["k"] == list(range(1, K + 1))
    for metric in ("units", "equal"):
        for role in ("panel", "greedy", "pca"):
            assert curve[metric][role][-1] == pytest.approx(shares[metric][role])
            assert np.all(np.diff(curve[metric][role]) > -0.05)
    first = greedy(rivals.folds[0].train, 2).order
    assert curve["units"]["panel"][1] == pytest.approx(share(held, errors_of(units, first)))


def test_each_feature_is_judged_by_the_final_panel(units):
    rivals = rivals_of(units)
    held = apart(units)[1]
    predicted = errors_of(units, rivals.final)
    errors, rebuilt = rivals.judged([held[:7]])
    np.testing.assert_allclose(errors, ((held - predicted) ** 2).mean(axis=0), atol=1e-9)
    np.testing.assert_allclose(rebuilt[0], predicted[:7], atol=1e-9)


def test_missing_values_do_not_count(units):
    gaps = np.random.default_rng(1).random(units.shape) < 0.1
    gappy = np.where(gaps, np.nan, units)
    rivals = rivals_of(gappy, metrics=("units",))
    errors = np.zeros(units.shape[1])  # as if the panel knew everything
    shares, variance = rivals.shares([errors])
    assert shares["units"]["panel"] == 1.0
    np.testing.assert_allclose(variance, np.nanvar(apart(gappy)[1], axis=0))
    assert 0 < shares["units"]["random"] < shares["units"]["greedy"] < 1


def test_folds_count_by_their_rows_and_single_rows_not_at_all(units):
    held = [np.array([3]), np.arange(10, 60), np.arange(100, 300)]
    rivals = rivals_of(units, held=held, metrics=("units",))
    parts = [rivals_of(units, held=[part], metrics=("units",)) for part in held[1:]]
    nothing = np.zeros(units.shape[1])
    shares, variance = rivals.shares([nothing] * 3)
    bounds = [part.shares([nothing])[0]["units"]["pca"] for part in parts]
    # with three folds each is trained on the rows of the other two alone
    assert min(bounds) - 0.1 < shares["units"]["pca"] < max(bounds) + 0.1
    np.testing.assert_allclose(variance, units[np.concatenate(held)].var(axis=0))
    alone = rivals_of(units, held=[np.array([3])], metrics=("units",))
    assert alone.shares([nothing])[0] == {"units": {}}
    assert alone.curve()["units"] == {}


def test_random_panels_obey_include_and_exclude(units):
    rivals = rivals_of(units, include=[3], exclude=[0, 1, 2])
    for draw in rivals._random:
        assert 3 in draw.panels[0]
        assert not {0, 1, 2} & set(draw.panels[0].tolist())
        assert len(draw.panels[0]) == K


def test_the_bound_of_wide_data_is_that_of_all_eigenvectors():
    random = np.random.default_rng(0)
    X = random.normal(size=(300, 30)) @ random.normal(size=(30, 2100))
    X += random.normal(size=X.shape)
    C = torch.from_numpy(np.cov(X.T, bias=True))
    spread = torch.from_numpy(random.uniform(0.5, 2, 2100))
    found = _leading(C, spread, 20, torch.device("cpu"))
    scaled = C * spread * spread[:, None]
    best = torch.linalg.eigvalsh(scaled)[-20:].sum()
    reached = (found * (scaled @ found)).sum()
    assert float(reached / best) == pytest.approx(1, abs=1e-3)
    np.testing.assert_allclose((found.T @ found).numpy(), np.eye(20), atol=1e-9)
