"""GEO: D-GEX's files where they are, a labelled stand-in otherwise."""

import tracemalloc

import numpy as np
import pytest

from fewer.datasets import load
from fewer.datasets.geo import _standardise
from fewer.errors import FileFormatError, InputError


def test_synthetic_data_are_labelled_and_reproducible():
    one, two = (load("geo-synthetic", n=400, d=80, seed=3) for _ in range(2))
    assert one.synthetic
    assert "SYNTHETIC" in one.description
    assert all("synthetic" in name for name in one.names)
    assert np.array_equal(one.X, two.X)
    assert not np.array_equal(one.X, load("geo-synthetic", n=400, d=80, seed=4).X)
    assert np.allclose(one.X.mean(axis=0), 0, atol=1e-5)
    assert np.allclose(one.X.std(axis=0), 1, atol=1e-4)


def test_synthetic_rows_have_factors_and_noise():
    """A few directions explain much, and what 600 factors leave is noise, not nothing."""
    X = load("geo-synthetic", n=3000, d=1500).X
    values = np.linalg.eigvalsh(np.corrcoef(X.T))[::-1]
    assert 0.1 < values[0] / values.sum() < 0.3
    assert 0.4 < values[:10].sum() / values.sum() < 0.6
    assert 0.03 < values[600:].sum() / values.sum() < 0.1
    with pytest.raises(InputError, match="n=3 must be a whole number of at least 20"):
        load("geo-synthetic", n=3, d=5)


def test_files_of_d_gex_are_read(tmp_path, monkeypatch):
    monkeypatch.setenv("FEWER_DATA", str(tmp_path))
    rng = np.random.default_rng(0)
    whole = {}
    for part, n in (("tr", 30), ("va", 5), ("te", 8)):
        for kind, d in (("X", 4), ("Y", 6)):
            whole[kind, part] = rng.normal(size=(n, d))
            # D-GEX saves transposed arrays, so the files are in Fortran order
            np.save(
                tmp_path / f"bgedv2_{kind}_{part}_float64.npy", np.asfortranarray(whole[kind, part])
            )
    (tmp_path / "bgedv2_GTEx_1000G_lm.txt").write_text("".join(f"LM{j}\t0\tp\n" for j in range(4)))
    data = load("geo")
    assert data.X.shape == (43, 10)
    assert data.landmarks.tolist() == [True] * 4 + [False] * 6
    assert data.names[:5].tolist() == ["LM0", "LM1", "LM2", "LM3", "tg_0"]
    split = data.split()
    assert np.allclose(data.X[split.test][:, 4:], whole["Y", "te"], atol=1e-6)
    assert (len(split.train), len(split.validation), len(split.test)) == (30, 5, 8)
    (tmp_path / "bgedv2_Y_va_float64.npy").unlink()
    with pytest.raises(FileFormatError, match=r"bgedv2_Y_va_float64.npy cannot be read.*preproc"):
        load("geo")


def test_standardising_needs_no_copy_of_everything():
    X = np.random.default_rng(0).normal(3, 2, size=(40_000, 50)).astype(np.float32)
    tracemalloc.start()
    _standardise(X)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 0.75 * X.nbytes
    np.testing.assert_allclose(X.mean(0, dtype=np.float64), 0, atol=1e-6)
    np.testing.assert_allclose(X.std(0, dtype=np.float64), 1, atol=1e-6)
