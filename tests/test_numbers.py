"""Awkward numbers: right, or one error that names the column; and what must not matter does not."""

import os
from itertools import combinations

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import fewer
from fewer import _threads
from fewer.constraints import resolve
from fewer.errors import FewerError, FewerWarning, InputError
from fewer.search.objective import residual
from fewer.search.subset import search
from fewer.train import fit_closed_form

CASES = int(os.environ.get("CASES", "15"))  # of Hypothesis
QUICK = {"strategies": ["search"], "validation": 3, "random_state": 0, "device": "cpu"}
RNG = np.random.default_rng(0)
X = RNG.normal(size=(90, 3)) @ RNG.normal(size=(3, 7)) + 0.3 * RNG.normal(size=(90, 7))
X *= np.array([1, 3, 0.2, 5, 1, 2, 0.5])
FRAME = pd.DataFrame(X, columns=[f"gene {j}" for j in range(7)])
PANEL = fewer.select(FRAME, 3, **QUICK)


# -- sizes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("factor", [1e-200, 1e-160, 1e154, 1e200])
def test_numbers_that_cannot_be_squared_are_named(factor):
    with pytest.raises(InputError, match=r"gene \d.*(multiply them|divide it) by a constant"):
        fewer.select(FRAME * factor, 3, **QUICK)
    with pytest.raises(InputError, match=r"(multiply them|divide it) by a constant"):
        fewer.ColumnSubset(3, device="cpu").fit(X * factor)


@pytest.mark.parametrize("scale", ["standard", "none"])
@pytest.mark.parametrize("factor", [1e-70, 1e70])
def test_the_unit_of_all_features_does_not_matter(factor, scale):
    found = fewer.select(FRAME * factor, 3, scale=scale, **QUICK)
    usual = PANEL if scale == "standard" else fewer.select(FRAME, 3, scale=scale, **QUICK)
    assert found.features == usual.features
    assert found.held_out == pytest.approx(usual.held_out, rel=1e-6)


def test_a_feature_that_hardly_varies_counts_as_constant():
    tiny = FRAME.assign(tiny=X[:, 0] * 1e-200)
    with pytest.warns(FewerWarning, match=r"'tiny'.*treated as constant; multiply them"):
        assert fewer.select(tiny, 3, **QUICK).features == PANEL.features


def test_one_huge_outlier_is_named():
    wrong = FRAME.copy()
    wrong.loc[11, "gene 0"] = 1e9
    with pytest.warns(FewerWarning, match=r"held-out rows is -.*column 'gene \d'.*outliers"):
        fewer.select(wrong, 3, **QUICK)


@pytest.mark.parametrize("condition", [1e4, 1e8, 1e12])
def test_the_optimum_of_ill_conditioned_covariances_is_found(condition):
    rng = np.random.default_rng(0)
    Q = np.linalg.qr(rng.normal(size=(9, 9)))[0]
    C = (Q * np.geomspace(1, 1 / condition, 9)) @ Q.T
    C = (C + C.T) / 2
    found = search(C, resolve(None, 9, 4), seed=0)

    def left(S):  # by singular values in float64, without a normal equation
        values, vectors = np.linalg.eigh(C)
        root = (vectors * np.sqrt(values.clip(0))) @ vectors.T
        A = root[:, list(S)]
        return np.square(root - A @ np.linalg.lstsq(A, root, rcond=None)[0]).sum()

    best = min(left(S) for S in combinations(range(9), 4))
    assert left(found.indices) == pytest.approx(best, rel=1e-6)
    assert residual(C, found.indices) == pytest.approx(best, rel=1e-6)
    trained = fit_closed_form(torch.from_numpy(C), 4, starts=4, steps=150, seed=0).features
    assert min(map(left, trained)) == pytest.approx(best, rel=1e-6)


# -- anything at all ------------------------------------------------------------------------------


@st.composite
def awkward(draw):
    """Rows of any shape, dtype, order and scale, with gaps, constants and repeated columns."""
    n, d = draw(st.integers(1, 12)), draw(st.integers(1, 6))
    rows = np.random.default_rng(draw(st.integers(0, 99))).normal(size=(n, d))
    rows *= 10.0 ** draw(st.integers(-30, 30))
    troubles = ["none", "constant", "repeated", "collinear", "gaps", "inf", "all missing"]
    trouble = draw(st.sampled_from(troubles))
    j = draw(st.integers(0, d - 1))
    if trouble == "constant":
        rows[:, j] = rows[0, j]
    if trouble == "repeated":
        rows[:, j] = rows[:, 0]
    if trouble == "collinear":
        rows[:, j] = rows.sum(1)
    if trouble == "gaps":
        rows[draw(st.integers(0, n - 1)), j] = np.nan
    if trouble == "inf":
        rows[0, j] = np.inf
    if trouble == "all missing":
        rows[:, j] = np.nan
    dtype = draw(st.sampled_from(["f8", "f4", ">f8", "f2", "i4"]))
    with np.errstate(all="ignore"):
        rows = rows.astype(dtype)
    layout = draw(st.sampled_from(["C", "F", "strided", "table"]))
    if layout == "table":
        letters = st.text(st.characters(codec="utf-8"), max_size=3)
        names = draw(st.lists(letters, min_size=d, max_size=d))
        return pd.DataFrame(rows.astype(rows.dtype.newbyteorder("=")), columns=names)
    return np.repeat(rows, 2, 0)[::2] if layout == "strided" else np.asarray(rows, order=layout)


@pytest.mark.filterwarnings("ignore")
@settings(max_examples=CASES, deadline=None)
@given(awkward(), st.integers(0, 7))
def test_a_panel_or_an_error_but_no_silent_nan(rows, k):
    try:
        panel = fewer.select(rows, k, **QUICK)
    except FewerError:
        return
    assert len(set(panel.indices.tolist())) == k
    assert np.isfinite(panel.held_out)
    measured = np.nan_to_num(np.asarray(rows, dtype=np.float64))[:, panel.indices]
    assert np.isfinite(panel.reconstruct(measured)).all()


# -- what must not matter --------------------------------------------------------------------------


def test_the_order_of_columns_and_rows_does_not_matter():
    order = np.random.default_rng(1).permutation(7)
    assert set(fewer.select(FRAME.iloc[:, order], 3, **QUICK).features) == set(PANEL.features)
    shuffled = FRAME.sample(frac=1, random_state=0)
    found = fewer.ColumnSubset(3, random_state=0, device="cpu").fit(shuffled)
    usual = fewer.ColumnSubset(3, random_state=0, device="cpu").fit(FRAME)
    assert found.columns_.tolist() == usual.columns_.tolist()
    doubled = fewer.ColumnSubset(3, random_state=0, device="cpu").fit(pd.concat([FRAME, FRAME]))
    assert doubled.columns_.tolist() == usual.columns_.tolist()


def test_units_do_not_matter_to_standardised_features():
    units = 10.0 ** np.array([-20, 3, 0, 15, -7, 1, 9])
    assert fewer.select(FRAME * units, 3, **QUICK).features == PANEL.features


def test_the_kind_of_data_does_not_matter(tmp_path):
    FRAME.to_csv(tmp_path / "x.csv", index=False)
    FRAME.to_parquet(tmp_path / "x.parquet")
    FRAME.to_feather(tmp_path / "x.feather")
    kinds = [X, np.asfortranarray(X), X.astype(np.float32), FRAME.astype("float32")]
    anndata = pytest.importorskip("anndata")
    anndata.AnnData(FRAME.rename(index=str)).write_h5ad(tmp_path / "x.h5ad")
    forms = ("csv", "parquet", "feather", "h5ad")
    for data in (*kinds, *(tmp_path / f"x.{form}" for form in forms)):
        assert fewer.select(data, 3, **QUICK).indices.tolist() == PANEL.indices.tolist()


@pytest.mark.parametrize("threads", ["1", "2"])
def test_the_number_of_threads_does_not_matter(monkeypatch, threads):
    monkeypatch.setenv("OMP_NUM_THREADS", threads)
    monkeypatch.setattr(_threads, "cores", lambda: 2)
    found = fewer.select(FRAME, 3, **QUICK)
    assert found.indices.tolist() == PANEL.indices.tolist()
    np.testing.assert_allclose(found.held_out, PANEL.held_out, rtol=1e-12)
