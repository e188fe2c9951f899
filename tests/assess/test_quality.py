"""Suspicious columns that fewer.assess.inspect finds."""

import numpy as np
import pytest
from sklearn.datasets import load_diabetes, load_digits, load_wine

import fewer
from fewer.assess import inspect
from fewer.assess.quality import find_suspicious


@pytest.fixture(scope="module")
def clean():
    return np.random.default_rng(0).normal(10, 1, size=(1200, 4))


def kinds(X):
    return {(one.feature, one.kind) for one in inspect(X).findings}


@pytest.mark.usefixtures("no_panel_inspected")
def test_clean_columns_are_not_suspected(clean):
    for X in (clean, load_wine().data, load_diabetes().data):
        assert inspect(X).findings == []
    pixels = load_digits().data
    source = fewer.data.open(pixels)
    assert find_suspicious(source, range(64), np.ptp(pixels, axis=0) == 0) == ([], source)


@pytest.mark.parametrize(
    ("value", "move", "scale"), [(9999, 0, 1), (-999, 0, 1), (0, 500, 50), (-1, 0, 100)]
)
def test_codes_for_missing_values(clean, value, move, scale):
    X = clean.copy()
    X[:, 2] = move + scale * np.abs(X[:, 2])
    X[::100, 2] = value
    found = inspect(X)
    assert {(one.feature, one.kind) for one in found.findings} == {(2, "sentinel")}
    assert found.sentinels == [value]
    assert f"{value} occurs 12 times" in str(found)


def test_a_code_inside_of_the_range(clean):
    X = clean * 50
    X[::20, 1] = 999 / 2
    X[::30, 2] = 99 + 400.0  # repeated, but no number that is used as a code
    X[:, 3] += 400
    X[::30, 3] = 999
    assert inspect(X).sentinels == [999]


def test_a_code_that_is_rare_and_inside_of_the_range():
    X = np.random.default_rng(0).normal(0, 50, size=(500, 3))
    X[::30, 1] = -1
    found = inspect(X)
    assert [one.message.split(";")[0] for one in found.findings] == ["-1 occurs 17 times"]
    assert found.sentinels == [-1]
    assert inspect(X.round()).sentinels == []  # whole numbers repeat


def test_a_code_that_is_valid_in_another_column_is_not_suggested(clean):
    X = np.column_stack([clean, np.random.default_rng(0).poisson(3, len(clean))])
    X[::60, 0], X[::60, 1] = 0, 9999
    found = inspect(X)
    assert {(one.feature, one.value) for one in found.findings} == {(0, 0), (1, 9999)}
    assert "(also in another feature, where it may be valid)" in found.findings[0].message
    assert found.sentinels == [9999]


def test_a_wrong_value_does_not_drive_the_suggested_k():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 3)) @ rng.normal(size=(3, 12)) + 0.1 * rng.normal(size=(300, 12))
    expected = inspect(X).suggested_k
    X[17, 4], X[::50, 7] = 70, 9999
    found = inspect(X)
    assert found.suggested_k == expected
    assert found.sizes[0.9]["features"] != expected  # so the outlier counts in that score
    assert found.sizes[0.9]["without_outliers"] == expected
    panel = fewer.select(fewer.data.open(X, missing=[9999]), expected, validation=5, random_state=0)
    assert panel.estimates["equal"].value == pytest.approx(found.explained_variance)
    assert panel.estimates["equal"].standard_error == pytest.approx(found.standard_error)


def test_zeros_of_counts_and_pixels_are_values():
    counts = np.random.default_rng(0).poisson(30, size=(600, 3)).astype(float)
    counts[:100] = 0
    assert "sentinel" not in {kind for _, kind in kinds(np.column_stack([counts, counts % 7]))}


def test_clipped_ranges(clean):
    X = clean.copy()
    X[:, 0] = np.clip(X[:, 0], None, 11.5)
    X[:, 3] = np.clip(X[:, 3], 9, None)
    found = inspect(X).findings
    assert {(one.feature, one.kind) for one in found} == {(0, "clipped"), (3, "clipped")}
    assert "are 11.5, the largest" in found[0].message
    assert "are 9, the smallest" in found[1].message


def test_a_scale_that_all_columns_share_is_not_clipping(clean):
    assert kinds(np.clip(clean, 8.5, 11.5)) == set()


def test_outliers_are_counted_in_all_rows(clean):
    X = np.tile(clean, (20, 1)) + np.random.default_rng(1).normal(size=(24_000, 4))
    X[[7, 20_001], 1] = 90, -90  # not in the sample of rows, at most
    found = inspect(X).findings
    assert [(one.feature, one.kind) for one in found] == [(1, "outliers")]
    assert "2 values are more than 10 standard deviations" in found[0].message


def test_affine_copies_also_after_rounding_and_with_gaps(clean):
    X = np.column_stack([clean, (1.8 * clean[:, 1] + 32).round(2), -3 * clean[:, 0]])
    X[::7, 5] = np.nan
    found = inspect(X)
    assert [(one.feature, one.kind) for one in found.findings] == [(4, "copy"), (5, "copy")]
    assert found.findings[0].message.startswith("1.80")
    assert " × 1 + 32.0" in found.findings[0].message or " × 1 + 31.9" in found.findings[0].message
    assert found.findings[1].message == "-3 × 0"
    assert "copies of other columns:\n  4: 1.80" in str(found)


def test_exact_copies_are_duplicates_only(clean):
    found = inspect(np.column_stack([clean, clean[:, 1]]))
    assert found.duplicates == [(4, 1)]
    assert "\n1 duplicate: 4 = 1" in str(found)
    assert found.findings == []


def test_findings_are_json(clean):
    X = clean.copy()
    X[::100, 2] = 9999
    (one,) = inspect(X).describe()["findings"]
    assert one["value"] == 9999
    assert one["feature"] == 2
