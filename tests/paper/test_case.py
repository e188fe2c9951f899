"""Nothing that a method sees was learned from test rows."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from fewer.datasets import load
from paper.case import make_case

loaded = cache(load)


def with_wild_test_rows(data, protocol="clean"):
    """The same data with test rows that would change any scaling that looked at them."""
    rows = data.split(protocol).test
    X = data.X.astype(np.float64).copy()
    X[rows] = 1000 * X[rows] + 7
    return replace(data, X=X)


@pytest.mark.parametrize("scaling", ["range", "standard"])
@pytest.mark.parametrize("name", ["mice", "har", "tcga", "isolet"])
def test_clean_scaling_and_filling_come_from_the_rows_to_fit(data_folder, name, scaling):
    data = loaded(name)
    plain = make_case(data, scaling=scaling)
    wild = make_case(with_wild_test_rows(data), scaling=scaling)
    assert np.array_equal(plain.fit, wild.fit)
    assert not np.allclose(plain.test, wild.test)


def test_the_papers_scaling_saw_the_test_rows(data_folder):
    data = loaded("mice")
    wild = make_case(with_wild_test_rows(data, "paper"), "paper")
    assert not np.allclose(make_case(data, "paper").fit, wild.fit)


def test_gaps_take_the_mean_of_the_rows_to_fit(data_folder):
    data = loaded("mice")
    case = make_case(data)
    gaps = np.argwhere(np.isnan(data.X[case.split.test]))
    assert len(gaps) > 100
    known = data.X[case.split.fit]
    low, high = np.nanmin(known, axis=0), np.nanmax(known, axis=0)
    mean = (np.nanmean(known.astype(np.float64), axis=0) - low) / (high - low)
    for row, column in gaps[:50]:
        assert case.test[row, column] == pytest.approx(mean[column], rel=1e-5)
    assert not np.isnan(case.fit).any()


def test_scales():
    data = loaded("digits")
    case = make_case(data)
    assert case.fit.min() == 0
    assert case.fit.max() == 1
    standard = make_case(data, scaling="standard")
    spread = standard.fit.std(axis=0)
    assert np.allclose(spread[spread > 0], 1)
    assert np.allclose(standard.fit.mean(axis=0), 0)


def test_parts_lie_where_the_split_says(data_folder):
    data = loaded("tcga")
    case = make_case(data, seed=1)
    assert len(case.train) + len(case.validation) == len(case.fit)
    assert len(case.groups) == len(case.labels) == len(case.fit)
    assert not set(case.groups) & set(data.groups[case.split.test])


def test_one_class():
    case = make_case(loaded("digits"), label=3)
    assert set(case.labels) == set(case.test_labels) == {3}
    assert 100 < len(case.fit) < 200
