"""ColumnSubset as a user meets it."""

import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn.linear_model import Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from fewer import ColumnSubset
from fewer.data import covariance
from fewer.data.source import array_source
from fewer.errors import InputError
from fewer.search import greedy, residual


@pytest.fixture(scope="module")
def fitted(digits):
    return ColumnSubset(k=10, random_state=0).fit(digits[0])


def test_below_greedy_and_optimal_for_single_swaps(digits, fitted):
    C = covariance(array_source(digits[0])).matrix
    assert fitted.residual_ == pytest.approx(residual(C, fitted.columns_))
    assert fitted.residual_ < 0.95 * residual(C, greedy(C, 10).panel())
    for at in range(10):
        for other in range(64):
            panel = fitted.columns_.copy()
            if other not in panel:
                panel[at] = other
                rise = residual(C, panel) - fitted.residual_
                assert rise > -1e-9
                assert fitted.swap_losses_[at, other] == pytest.approx(rise, rel=1e-3, abs=1e-6)


def test_the_nested_path(digits, fitted):
    C = covariance(array_source(digits[0])).matrix
    assert sorted(fitted.order_) == fitted.columns_.tolist()
    for size in (1, 4, 10):
        expected = residual(C, fitted.order_[:size])
        assert fitted.residuals_[size - 1] == pytest.approx(expected)


def test_groups_are_the_best_substitutes(fitted):
    groups = fitted.feature_groups(m=4)
    assert [group[0] for group in groups] == fitted.columns_.tolist()
    losses = fitted.swap_losses_[2, groups[2]]
    assert losses.tolist() == sorted(losses)
    assert losses[3] < np.median(fitted.swap_losses_[2])


def test_ridge_in_choice_and_decoder(digits):
    rows = digits[0][:60]
    model = ColumnSubset(k=15, ridge=0.01, random_state=0).fit(rows)
    reference = Ridge(alpha=0.01 * 60).fit(rows[:, model.columns_], rows)
    np.testing.assert_allclose(
        model.inverse_transform(model.transform(rows)),
        reference.predict(rows[:, model.columns_]),
        atol=1e-8,
    )


def test_ridge_auto_helps_where_rows_are_few(digits):
    train, test = digits
    few = train[:40]
    plain = ColumnSubset(k=20, ridge=0.0, stall=0).fit(few)
    auto = ColumnSubset(k=20, stall=0, random_state=0).fit(few)
    assert auto.ridge_ > 0
    assert auto.score(test) > plain.score(test) + 0.05
    many = ColumnSubset(k=5, stall=0, random_state=0).fit(train)
    assert many.ridge_ == 0
    assert not many.vetoed_
    same = ColumnSubset(k=5, ridge=0.0, stall=0, random_state=0).fit(train)
    assert many.columns_.tolist() == same.columns_.tolist()


def test_sparse_missing_and_named_rows(digits):
    train = digits[0]
    dense = ColumnSubset(k=6, stall=0, random_state=0).fit(train)
    thin = ColumnSubset(k=6, stall=0, random_state=0).fit(sparse.csr_array(train))
    assert dense.columns_.tolist() == thin.columns_.tolist()
    gaps = train.copy()
    gaps[np.random.default_rng(0).random(gaps.shape) < 0.1] = np.nan
    model = ColumnSubset(k=6, stall=0, random_state=0).fit(gaps)
    assert model.score(digits[1]) > dense.score(digits[1]) - 0.03
    names = [f"p{j}" for j in range(64)]
    named = make_pipeline(StandardScaler(), ColumnSubset(k=6, stall=0, random_state=0))
    named.set_output(transform="pandas").fit(pd.DataFrame(train, columns=names))
    assert set(named.transform(pd.DataFrame(train, columns=names)).columns) <= set(names)


def test_saving(tmp_path, digits, fitted):
    fitted.save(tmp_path / "m")
    again = ColumnSubset.load(tmp_path / "m")
    np.testing.assert_array_equal(again.reconstruct(digits[1]), fitted.reconstruct(digits[1]))
    assert again.feature_groups() == fitted.feature_groups()
    assert again.order_.tolist() == fitted.order_.tolist()
    assert again.history_ == fitted.history_


def test_bad_input_is_named(digits):
    with pytest.raises(InputError, match="ridge='strong' is not valid; use a number or 'auto'"):
        ColumnSubset(k=3, ridge="strong").fit(digits[0])
    with pytest.raises(InputError, match="k=65 is more than the n_features=64"):
        ColumnSubset(k=65).fit(digits[0])
