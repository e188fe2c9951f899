"""Wide data, n < d / 4: everything works on the rows, and no d x d matrix is made."""

import sys

import numpy as np
import pytest
import torch

import fewer
from fewer import validation
from fewer.data.source import array_source
from fewer.search import greedy, swap
from fewer.train.swaps import HeldOut, held_out_swaps
from fewer.validation import fold_covariances, split_rows

moments_module = sys.modules["fewer.data.moments"]  # fewer.data.moments is the function
N, D = 30, 200
PANEL = np.array([3, 20, 77, 150])


def expression(n=N, d=D, seed=0):
    random = np.random.default_rng(seed)
    X = random.normal(size=(n, 8)) @ random.laplace(size=(8, d)) + 0.3 * random.normal(size=(n, d))
    X[:, 5], X[:, 6] = 2.5, X[:, 7]
    return X + random.normal(size=d)


@pytest.fixture
def both(monkeypatch):
    """Fold covariances as rows, and as matrices."""

    def make(X, validation_, scaling):
        source, splits = array_source(X), split_rows(len(X), validation_)
        few = fold_covariances(source, splits, scaling)
        with monkeypatch.context() as patched:
            patched.setattr(moments_module, "WIDE", 1e9)
            dense = fold_covariances(source, splits, scaling)
        assert few.factored
        assert not dense.factored
        return few, dense

    return make


@pytest.mark.parametrize("scaling", ["none", "standard"])
@pytest.mark.parametrize("validation_", [5, 0.3, "time"])
@pytest.mark.parametrize("missing", [False, True])
def test_folds_of_rows_equal_folds_of_covariances(both, validation_, scaling, missing):
    X = expression()
    if missing:
        X[np.random.default_rng(1).random(X.shape) < 0.03] = np.nan
    few, dense = both(X, validation_, scaling)
    for name in ("observed", "mean", "variance", "minimum", "maximum"):
        np.testing.assert_allclose(
            getattr(few.stats, name), getattr(dense.stats, name), rtol=1e-9, atol=1e-12
        )
    every = torch.arange(D)
    for mine, wanted in zip(
        [*few.folds, few.everything], [*dense.folds, dense.everything], strict=True
    ):
        np.testing.assert_allclose(mine.scale, wanted.scale, rtol=1e-7)
        torch.testing.assert_close(mine.matrix()[every], wanted.matrix(), rtol=1e-7, atol=1e-9)
        panels = [greedy(fold.matrix(), 3).order.tolist() for fold in (mine, wanted)]
        assert panels[0] == panels[1]
    for mine, wanted in zip(few.folds, dense.folds, strict=True):
        for ridge in (0.0, 0.1):
            for known in (False, True):
                found, error = (f.error(PANEL, ridge, known=known) for f in (mine, wanted))
                assert found == pytest.approx(error, rel=1e-7)
        axes = torch.eye(D, 2, dtype=torch.float64)
        torch.testing.assert_close(
            mine.held_product(axes), wanted.held_product(axes), rtol=1e-7, atol=1e-9
        )
        residuals = [f.residuals(PANEL, f.decoder(PANEL, 0.1)) for f in (mine, wanted)]
        torch.testing.assert_close(residuals[0], residuals[1], rtol=1e-7, atol=1e-9)


def test_rows_of_the_factor_are_in_the_order_that_it_says():
    X = expression()
    fold = fold_covariances(array_source(X), split_rows(N, 5)).folds[2]
    rows = X[fold.matrix_rows] - X[fold.matrix_rows].mean(0)
    np.testing.assert_allclose(fold.matrix().rows, rows / len(rows) ** 0.5, atol=1e-12)


def test_held_out_swaps_equal_refitting():
    """The change by every swap, against the errors of the swapped panels."""
    X = expression()
    X = X - X.mean(0)
    folds = HeldOut.of(X, split_rows(N, 3).parts, 0.5)
    changes, now = folds.swaps(PANEL), folds.error(PANEL)
    some = np.array([1, 40, 199])
    np.testing.assert_allclose(folds.swaps(PANEL, some), changes[:, some], rtol=1e-4)
    for place, into in [(0, 1), (2, 40), (3, 199)]:
        other = PANEL.copy()
        other[place] = into
        assert changes[place, into] == pytest.approx(folds.error(other) - now, rel=1e-3, abs=1e-5)
    # plain ridge regression, fold by fold
    wanted = []
    for held in split_rows(N, 3).parts:
        train = np.delete(X, held, axis=0)
        A, Y = train - train.mean(0), X[held] - train.mean(0)
        Z = A[:, PANEL]
        B = np.linalg.solve(Z.T @ Z / len(A) + 0.5 * np.eye(4), Z.T @ A / len(A))
        wanted.append(np.square(Y - Y[:, PANEL] @ B).mean())
    assert now == pytest.approx(np.mean(wanted), rel=1e-5)


def test_held_out_swaps_of_many_features_consider_some_at_a_time(monkeypatch):
    X = expression()
    folds = HeldOut.of(X - X.mean(0), split_rows(N, 3).parts, 0.5)
    monkeypatch.setattr("fewer.train.swaps.MOST_ENTERING", 20)
    found = held_out_swaps(folds, PANEL, 30)
    assert folds.swaps(found).min() > -1e-5  # no single swap of any feature helps


def test_swaps_start_with_some_candidates_and_end_with_all(monkeypatch):
    X = expression(40, 400)
    C = fold_covariances(array_source(X), split_rows(40, 5)).everything.matrix()
    start = np.array([1, 2, 3, 4, 8])
    wanted = swap(C, start)
    monkeypatch.setattr(sys.modules["fewer.search.swap"], "FIRST_CANDIDATES", 30)
    found = swap(C, start)
    assert found.optimal
    assert found.objective < 1.05 * wanted.objective
    assert swap(C, found.indices).indices.tolist() == found.indices.tolist()


@pytest.mark.parametrize(
    "options",
    [
        {"k": 5},
        {"k": 4, "include": [3], "exclude": list(range(50, 80)), "scale": "none", "validation": 3},
        {"k": 3, "groups": np.arange(122) // 4, "validation": 3},
        {"costs": np.linspace(1, 2, 122), "budget": 6.0, "validation": 3},
        {"k": 4, "validation": 0.3},
        {"k": 4, "strategies": ["closed_form"], "validation": 3},
    ],
)
def test_select_without_a_covariance_matrix(options, monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("a d x d covariance was computed")

    monkeypatch.setattr(validation, "part_covariances", refuse)
    monkeypatch.setattr(validation, "covariance", refuse)
    monkeypatch.setattr(moments_module, "covariance", refuse)
    if "validation" in options:  # tests against chance, which take as long again, for one of them
        monkeypatch.setattr("fewer.selection.evidence.gather.QUICK_PASS", 0)
    rows = expression(N + 20, 122)
    X, Y = rows[:N], rows[N:]
    panel = fewer.select(X, random_state=0, device="cpu", **options)
    assert panel.score(Y) > 0.3
    assert panel.evidence.substitutes.shape[0] == len(panel.indices)


def test_select_with_a_target():
    X = expression(40, 170)
    labels = (X[:, 10] > X[:, 10].mean()).astype(int)
    panel = fewer.select(X, 3, target=labels, strategies=["search"], random_state=0, device="cpu")
    assert (panel.predict(X[:, panel.indices]) == labels).mean() > 0.8


def test_forty_thousand_features():
    """A matrix of 40,000 x 40,000 would take 12.8 GB."""
    X = expression(60, 40_000).astype(np.float32)
    panel = fewer.select(X, 4, validation=3, random_state=0, device="cpu")
    assert len(panel.indices) == 4
    assert panel.held_out > 0.2
    chosen = fewer.ColumnSubset(k=4, stall=0, random_state=0, device="cpu").fit(X)
    assert len(chosen.get_support(indices=True)) == 4
