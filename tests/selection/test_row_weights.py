"""Weights of rows: as if rows were repeated."""

import numpy as np
import pytest

import fewer
from fewer.errors import InputError

QUICK = {"strategies": ["search"], "random_state": 0, "device": "cpu"}


@pytest.fixture(scope="module")
def rows():
    draw = np.random.default_rng(0)
    X = draw.normal(size=(320, 4)) @ draw.normal(size=(4, 12))
    return X + 0.3 * draw.normal(size=X.shape), draw.integers(1, 4, 320)


@pytest.mark.parametrize(
    "options", [{"validation": 0.2}, {"validation": 3}, {"validation": 0.2, "noise": 0.05}]
)
@pytest.mark.parametrize("scale", ["none", "standard"])
def test_weights_are_repeated_rows(rows, options, scale):
    X, weight = rows
    own = fewer.select(X, 3, sample_weight=weight, scale=scale, **options, **QUICK)
    other = fewer.select(
        np.repeat(X, weight, 0),
        3,
        row_groups=np.repeat(np.arange(len(X)), weight),
        scale=scale,
        **options,
        **QUICK,
    )
    assert own.features == other.features
    assert float(own.held_out) == pytest.approx(float(other.held_out), rel=1e-8)
    if options["validation"] == 0.2:
        ratio = own.held_out.standard_error / other.held_out.standard_error
        assert ratio == pytest.approx(1, abs=0.05)
    found = own.reconstruct(X[:5, own.indices])
    np.testing.assert_allclose(found, other.reconstruct(X[:5, own.indices]), atol=1e-6)


def test_rows_of_weight_zero_do_not_count(rows):
    X, weight = rows[0].copy(), np.ones(320)
    X[:, 2][::7] = np.nan
    weight[300:] = 0
    held = np.arange(320) % 5 == 0
    found = fewer.select(X, 3, sample_weight=weight, validation=held, scale="none", **QUICK)
    X[300:] = 100 * X[:20, ::-1]
    other = fewer.select(X, 3, sample_weight=weight, validation=held, scale="none", **QUICK)
    assert found.features == other.features
    assert float(found.held_out) == pytest.approx(float(other.held_out), rel=1e-8)


def test_folds_in_which_no_row_counts_are_refused(rows):
    weight = np.where(np.arange(320) < 60, 0.0, 1.0)
    for validation, words in (
        (np.arange(320) < 40, "row that is held out; choose another validation"),
        (np.arange(320) >= 40, "row that a fold trains on; choose another validation"),
        ("time", "row that a fold trains on"),
    ):
        with pytest.raises(InputError, match=f"sample_weight is zero for every {words}"):
            fewer.select(rows[0], 3, sample_weight=weight, validation=validation, **QUICK)
    # folds of no weight may be held out if others are, too
    weight[60:70] = 0
    panel = fewer.select(rows[0], 3, sample_weight=weight, validation="blocks", **QUICK)
    assert 0.5 < float(panel.held_out) < 1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"decoder": (4,)}, "for linear decoders"),
        ({"loss": "huber"}, "cannot be combined with loss='huber'"),
        ({"k": "auto"}, "cannot be combined with sample_weight"),
    ],
)
def test_weights_that_cannot_be_used(rows, options, words):
    with pytest.raises(InputError, match=words):
        fewer.select(rows[0], **{"k": 3, "sample_weight": rows[1], **QUICK, **options})


def test_rows_with_a_target_must_have_a_weight(rows):
    X = rows[0]
    half = np.arange(len(X)) < len(X) // 2
    with pytest.raises(InputError, match="sample_weight is zero for every row with a target"):
        fewer.select(X, 2, target=np.where(half, X[:, 0], np.nan), sample_weight=~half, **QUICK)
