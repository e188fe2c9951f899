"""What every baseline promises, whatever its method."""

import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn.linear_model import LinearRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import fewer
from fewer import baselines
from fewer.errors import FileFormatError, NotFittedError

SELECTORS = {
    "AEFS": baselines.AEFS(k=6, hidden=8, max_iter=30, device="cpu", random_state=0),
    "Greedy": baselines.Greedy(k=6),
    "LaplacianScore": baselines.LaplacianScore(k=6),
    "MCFS": baselines.MCFS(k=6, random_state=0),
    "MaxVariance": baselines.MaxVariance(k=6),
    "PFA": baselines.PFA(k=6, random_state=0),
    "PivotedQR": baselines.PivotedQR(k=6),
    "RandomSubset": baselines.RandomSubset(k=6, random_state=0),
    "UDFS": baselines.UDFS(k=6),
}
SCORED = ("AEFS", "LaplacianScore", "MCFS", "MaxVariance", "UDFS")


@pytest.fixture(params=SELECTORS)
def selector(request):
    return fresh(request.param)


def fresh(name):
    model = SELECTORS[name]
    return type(model)(**model.get_params())


@pytest.fixture(scope="module")
def rows(digits):
    return digits[0][:300]


def test_exported_from_the_package():
    assert fewer.baselines is baselines
    assert set(SELECTORS) <= set(baselines.__all__)


def test_chooses_distinct_columns_and_decodes_by_least_squares(selector, rows, digits):
    model = selector.fit(rows)
    assert len(set(model.columns_.tolist())) == 6
    assert model.columns_.tolist() == sorted(model.order_.tolist())
    assert model.get_support(indices=True).tolist() == model.columns_.tolist()
    measured = model.transform(digits[1])
    np.testing.assert_array_equal(measured, digits[1][:, model.columns_])
    reference = LinearRegression().fit(rows[:, model.columns_], rows)
    expected = reference.predict(measured)
    np.testing.assert_allclose(model.inverse_transform(measured), expected, atol=1e-8)
    np.testing.assert_allclose(model.reconstruct(digits[1]), expected, atol=1e-8)
    spread = digits[1] - digits[1].mean(axis=0)
    share = 1 - ((expected - digits[1]) ** 2).sum() / (spread**2).sum()
    assert model.score(digits[1]) == pytest.approx(share)


def test_seeds_repeat(selector, rows):
    first = selector.fit(rows).order_.copy()
    assert first.tolist() == selector.fit(rows).order_.tolist()


@pytest.mark.parametrize("name", ["AEFS", "PFA", "RandomSubset"])
def test_other_seeds_give_other_choices(name, rows):
    found = {tuple(fresh(name).set_params(random_state=s).fit(rows).columns_) for s in range(3)}
    assert len(found) > 1


def test_saved_and_loaded(selector, rows, tmp_path):
    model = selector.fit(rows)
    model.save(tmp_path / "model")
    again = type(model).load(tmp_path / "model")
    assert again.get_params() == model.get_params()
    assert again.order_.tolist() == model.order_.tolist()
    np.testing.assert_array_equal(again.reconstruct(rows), model.reconstruct(rows))
    for state in ("scores_", "ranking_", "residuals_", "n_iter_", "objective_"):
        assert hasattr(again, state) == hasattr(model, state)
        if hasattr(model, state):
            np.testing.assert_array_equal(getattr(again, state), getattr(model, state))
    with pytest.raises(FileFormatError, match=f"holds a {type(model).__name__}"):
        fewer.ColumnSubset.load(tmp_path / "model")


@pytest.mark.parametrize("name", SCORED)
def test_the_ranking_sorts_the_scores_and_holds_every_column(name, rows):
    model = fresh(name).fit(rows)
    in_order = model.scores_[model.ranking_]
    step = np.diff(in_order[np.isfinite(in_order)])
    assert (step >= 0).all() if name == "LaplacianScore" else (step <= 0).all()
    assert sorted(model.ranking_.tolist()) == list(range(64))
    assert model.order_.tolist() == model.ranking_[:6].tolist()


@pytest.mark.parametrize("name", [name for name in SELECTORS if name != "RandomSubset"])
def test_constant_columns_are_taken_only_when_nothing_else_is_left(name):
    rng = np.random.default_rng(0)
    X = np.full((60, 9), 3.0)
    X[:, [1, 4, 5, 7]] = rng.normal(size=(60, 4))
    assert set(fresh(name).set_params(k=4).fit(X).columns_) == {1, 4, 5, 7}
    assert {1, 4, 5, 7} < set(fresh(name).fit(X).columns_)


def test_rows_that_are_all_alike(selector):
    model = selector.fit(np.ones((30, 8)))
    assert len(set(model.columns_.tolist())) == 6
    np.testing.assert_allclose(model.reconstruct(np.ones((2, 8))), 1.0)


def test_copies_of_columns_are_still_distinct_columns(selector):
    X = np.repeat(np.random.default_rng(0).normal(size=(50, 2)), 5, axis=1)
    model = selector.fit(X)
    assert len(set(model.columns_.tolist())) == 6


def test_sparse_rows_lead_to_the_same_choice(selector, rows):
    dense = selector.fit(rows).columns_.copy()
    thin = selector.fit(sparse.csr_array(rows))
    assert dense.tolist() == thin.columns_.tolist()


def test_missing_values_count_as_means(name_of, rows):
    gaps = rows.copy()
    gaps[np.random.default_rng(0).random(gaps.shape) < 0.05] = np.nan
    filled = np.where(np.isnan(gaps), np.nanmean(gaps, axis=0), gaps)
    model = fresh(name_of).fit(gaps)
    assert model.columns_.tolist() == fresh(name_of).fit(filled).columns_.tolist()
    assert np.isfinite(model.reconstruct(gaps)).all()
    assert model.score(gaps) > 0


# the largest variance is that of the observed values; rounding can turn k-means and L-BFGS
@pytest.fixture(params=["Greedy", "LaplacianScore", "MCFS", "PivotedQR", "UDFS"])
def name_of(request):
    return request.param


def test_names(selector, rows):
    table = pd.DataFrame(rows, columns=[f"pixel{j}" for j in range(64)])
    model = selector.fit(table)
    assert model.get_feature_names_out().tolist() == [f"pixel{j}" for j in model.columns_]
    back = model.inverse_transform(table[model.get_feature_names_out()[::-1]])
    assert back.columns.tolist() == table.columns.tolist()
    np.testing.assert_allclose(back.to_numpy(), model.reconstruct(table), atol=1e-8)


def test_in_a_pipeline(selector, rows):
    pipeline = make_pipeline(StandardScaler(), selector).fit(rows)
    assert pipeline.transform(rows).shape == (300, 6)
    assert pipeline.inverse_transform(pipeline.transform(rows)).shape == rows.shape


def test_before_fit(selector, rows):
    with pytest.raises(NotFittedError, match=r"not fitted yet; call fit\(X\) first"):
        selector.transform(rows)
