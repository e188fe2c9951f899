"""Counts as logarithms, batches of one mean, and how many rows are asked for at a time."""

import numpy as np
import pytest
import torch
from scipy import sparse

from fewer.data import ColumnView, RowView, covariance, moments, read_all, read_blocks
from fewer.data.counts import BatchCentered, NormalizedCounts, looks_like_counts
from fewer.data.source import DenseSource, SparseSource
from fewer.errors import InputError

COUNTS = np.random.default_rng(0).poisson(0.7, size=(60, 8)).astype(np.float32)
COUNTS[5] = 0


def logged(counts, target_sum=100.0):
    totals = np.nansum(counts, axis=1, keepdims=True, dtype=float)
    return np.log1p(counts * (target_sum / np.where(totals > 0, totals, 1)))


@pytest.mark.parametrize("gaps", [False, True])
def test_sparse_and_dense_counts_agree(gaps):
    counts = COUNTS.copy()
    if gaps:
        counts[3, :2] = np.nan
    dense = NormalizedCounts(DenseSource(counts), 100)
    thin = NormalizedCounts(SparseSource(sparse.csr_array(counts)), 100)
    for source in (dense, thin):
        np.testing.assert_allclose(read_all(source), logged(counts))
        some = np.array([7, 5, 3])
        np.testing.assert_allclose(source.rows(some, torch.float64), logged(counts)[some])
    np.testing.assert_allclose(thin.sparse_rows(slice(2, 9)).toarray(), logged(counts)[2:9])
    assert dense.sparse_rows(slice(2)) is None
    part = RowView(thin, np.arange(10, 50))
    np.testing.assert_allclose(moments(part).mean, np.nanmean(logged(counts)[10:50], axis=0))
    if not gaps:
        wanted = np.cov(logged(counts).T, bias=True)
        np.testing.assert_allclose(covariance(thin).matrix, wanted, atol=1e-12)


def test_totals_of_features_that_are_not_there():
    whole = logged(COUNTS)
    totals = COUNTS.sum(axis=1)
    part = NormalizedCounts(DenseSource(COUNTS[:, :3]), 100, totals)
    np.testing.assert_allclose(read_all(part), whole[:, :3])
    np.testing.assert_allclose(part.rows(np.array([9, 1]), torch.float64), whole[[9, 1], :3])


@pytest.mark.parametrize("form", [np.asarray, sparse.csr_array])
def test_negative_values_are_not_counts(form):
    bad = COUNTS.copy()
    bad[4, 4] = -1
    source = NormalizedCounts(
        SparseSource(form(bad)) if form is not np.asarray else DenseSource(bad)
    )
    with pytest.raises(InputError, match=r"counts cannot be negative, but there is -1; "):
        moments(source)


@pytest.mark.parametrize(
    ("values", "are"),
    [
        (COUNTS, True),
        (COUNTS.astype(np.int32), True),
        (np.where(np.arange(8) == 2, np.nan, COUNTS), True),
        (COUNTS > 0, False),
        (np.log1p(COUNTS), False),
        (COUNTS - 1, False),
        (np.zeros((3, 2)), False),
        (np.r_[np.tile(COUNTS, (40, 1)), [[0.5] * 8]], False),  # in the last row alone
    ],
)
@pytest.mark.filterwarnings("ignore:all but .* look like counts")
def test_what_looks_like_counts(values, are):
    assert looks_like_counts(DenseSource(np.asarray(values))) is are
    thin = np.asarray(values, dtype=float)
    assert looks_like_counts(SparseSource(sparse.csr_array(thin))) is are


def test_batches_of_one_mean():
    rng = np.random.default_rng(0)
    labels = np.array(["a", "b", "c"])[rng.integers(0, 3, 60)]
    rows = rng.normal(size=(60, 4)) + 5 * (labels == "b")[:, None]
    rows[7, 1] = np.nan
    found = read_all(BatchCentered(DenseSource(rows), labels))
    for label in "abc":
        mine = labels == label
        np.testing.assert_allclose(np.nanmean(found[mine], 0), np.nanmean(rows, 0))
        moved = found[mine] - rows[mine]
        np.testing.assert_allclose(moved, np.nanmean(moved, 0)[None] + 0 * moved, atol=1e-12)
    assert np.isnan(found[7, 1])


class Asked(DenseSource):
    """Notes how many rows were wanted at a time."""

    most = 0

    def rows(self, index, dtype=torch.float32):
        found = super().rows(index, dtype)
        self.most = max(self.most, len(found))
        return found


@pytest.mark.parametrize("wrap", [lambda s: s, NormalizedCounts])
def test_few_columns_of_wide_rows_are_read_in_small_blocks(wrap):
    wide = Asked(np.zeros((50, 10_000), dtype=np.float32))
    wide.memory_limit = 6 * 8 * 10_000 * 7  # seven rows a block
    few = ColumnView(wrap(wide), np.array([3, 1]))
    assert sum(len(x) for _, x in read_blocks(few)) == 50
    assert wide.most == 7
    assert sum(len(x) for _, x in read_blocks(RowView(few, np.arange(40)))) == 40
    assert wide.most == 7
