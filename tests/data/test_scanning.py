"""What a scan says of a source."""

import numpy as np
import pandas as pd
from scipy import sparse

import fewer
from fewer.data import scan


def test_a_scan_finds_what_a_user_should_know(tmp_path):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(40, 5)), columns=list("abcde"))
    frame.insert(0, "row", np.arange(7, 47))
    frame["label"] = "x"
    frame.loc[3:12, "b"] = np.nan
    frame["c"], frame["d"] = 1.0, np.nan
    frame.to_parquet(tmp_path / "x.parquet", row_group_size=10)
    for limit in (None, 10_000):
        found = scan(tmp_path / "x.parquet", ignore=["label"], memory_limit=limit)
        assert (found.rows, found.columns, found.metadata_columns) == (40, 6, ("label",))
        assert found.missing == 50 / 240
        assert (found.constant, found.empty, found.counting) == (["c"], ["d"], ["row"])
        assert found.maximum == 46
        assert found.minimum == frame[["a", "b", "e"]].min().min()
        assert found.memory == 40 * 6 * 4
        assert found.covariance_memory == 36 * 8
    assert "20.83% missing" in str(found)
    assert "1 constant: 'c'" in str(found)


def test_sparse_and_streamed(tmp_path):
    matrix = sparse.random_array((50, 4), density=0.2, rng=np.random.default_rng(0), format="csr")
    assert scan(matrix).sparse
    np.save(tmp_path / "x.npy", matrix.toarray())
    source = fewer.data.open(tmp_path / "x.npy", memory_limit=1000)
    found = scan(source)
    assert found.streamed
    assert (found.dtype, found.counting, found.minimum) == ("float64", [], 0.0)
    assert "read from disk in blocks, memory limit 1 kB" in str(found)
