"""Parquet that is read again and again."""

from collections import namedtuple

import numpy as np
import pandas as pd
import pytest

import fewer
from fewer.data import read_all
from fewer.data.table_files import TableFiles
from fewer.errors import FewerWarning

Disk = namedtuple("Disk", "free")


@pytest.fixture
def stored(tmp_path, monkeypatch):
    """A Parquet file of 40 pieces, with a gap, beside a cache of its own."""
    monkeypatch.setenv("FEWER_CACHE", str(tmp_path / "cache"))
    X = np.random.default_rng(0).normal(size=(4000, 5))
    X[17, 3] = np.nan
    table = pd.DataFrame(X, columns=list("abcde")).assign(name="x")
    table.to_parquet(tmp_path / "x.parquet", row_group_size=100)
    source = fewer.data.open(tmp_path / "x.parquet", leave_out=["name"], memory_limit=64_000)
    assert isinstance(source, TableFiles)
    return source, X


def passes(source, times):
    return [read_all(source) for _ in range(times)]


def copies(tmp_path):
    return list((tmp_path / "cache").rglob("*.npy"))


def test_two_passes_make_no_copy(stored, tmp_path):
    source, X = stored
    for found in passes(source, 2):
        np.testing.assert_array_equal(found, X)
    assert not copies(tmp_path)


def test_the_third_makes_one_and_decodes_no_more(stored, tmp_path, monkeypatch):
    source, X = stored
    passes(source, 2)
    with pytest.warns(FewerWarning, match=r"is read again and again; it was converted once to "):
        np.testing.assert_array_equal(read_all(source), X)
    assert len(copies(tmp_path)) == 1
    monkeypatch.setattr(TableFiles, "_decode", lambda *piece: pytest.fail("decoded"))
    np.testing.assert_array_equal(read_all(source), X)
    index = np.array([3999, 17, 2, 250])
    np.testing.assert_array_equal(source.rows(index).numpy(), X[index].astype(np.float32))


def test_a_full_disk_gets_no_copy(stored, tmp_path, monkeypatch):
    source, X = stored
    monkeypatch.setattr("shutil.disk_usage", lambda folder: Disk(free=1_000_000))
    for found in passes(source, 4):
        np.testing.assert_array_equal(found, X)
    assert not copies(tmp_path)
