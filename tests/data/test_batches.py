"""Rows on their way to a network."""

import numpy as np
import pytest
import torch
from scipy import sparse

from fewer.data import RowView, ScaledSource, batches
from fewer.data.batches import Batches, windows
from fewer.data.source import DenseSource, array_source
from fewer.distributed import shard_bounds
from fewer.errors import InputError

X = np.array([[1.0, 10.0, np.nan], [3.0, np.nan, 5.0], [5.0, 30.0, 7.0]])
MEAN = torch.tensor([3.0, 20.0, 6.0])


@pytest.fixture(params=["resident", "streamed"])
def where(request, monkeypatch):
    """Rows kept between epochs, or read again each time: the same batches."""
    if request.param == "streamed":
        monkeypatch.setattr(batches, "RESIDENT_BYTES", 0)


@pytest.mark.usefixtures("where")
def test_missing_values_take_the_mean_and_are_excluded_from_the_loss():
    rows = Batches(array_source(X), np.array([0, 2]), mean=MEAN, center=MEAN, scale=2.0)
    batch = rows.take(torch.tensor([1, 0]))
    assert batch.x.tolist() == [[1, 5, 0.5], [-1, -5, 0]]
    assert batch.target.tolist() == batch.x.tolist()
    assert batch.observed.tolist() == [[True, True, True], [True, True, False]]
    plain = Batches(array_source(X), np.array([1]), mean=MEAN).take(torch.tensor([0]))
    assert plain.x.tolist() == [[3, 20, 5]]


@pytest.mark.usefixtures("where")
def test_raw_targets_keep_their_units():
    rows = Batches(
        array_source(X), np.arange(3), mean=MEAN, center=MEAN, scale=2.0, raw_targets=True
    )
    assert rows.take(torch.tensor([2])).target.tolist() == [[5, 30, 7]]


@pytest.mark.usefixtures("where")
def test_fewer_inputs_same_targets():
    rows = Batches(array_source(X), np.arange(3), mean=MEAN).with_inputs(np.array([2, 0]))
    batch = rows.take(torch.tensor([2]))
    assert batch.x.tolist() == [[7, 5]]
    assert batch.target.tolist() == [[5, 30, 7]]
    labelled = Batches(
        array_source(X), np.arange(3), mean=MEAN, targets=torch.tensor([4, 5, 6])
    ).with_inputs(np.array([0]))
    assert labelled.take(torch.tensor([1])).target.tolist() == [5]


@pytest.mark.usefixtures("where")
def test_an_epoch_sees_every_row_once():
    data = np.arange(20.0).reshape(10, 2)
    rows = Batches(array_source(data), np.arange(1, 10), mean=torch.zeros(2))
    seen = torch.cat([batch.x for batch in rows.shuffled(4, torch.Generator().manual_seed(0))])
    assert sorted(seen[:, 0].tolist()) == data[1:, 0].tolist()
    assert seen[:, 0].tolist() != data[1:, 0].tolist()
    assert torch.cat([b.x for b in rows.in_order(4)])[:, 0].tolist() == data[1:, 0].tolist()


def test_sparse_rows_are_never_all_dense(monkeypatch):
    matrix = sparse.random_array((500, 40), density=0.1, rng=np.random.default_rng(0)).tocsr()
    source = array_source(matrix)
    sizes = []
    plain = source.rows
    monkeypatch.setattr(
        source, "rows", lambda index, dtype=torch.float32: _note(sizes, plain(index, dtype))
    )
    rows = Batches(source, np.arange(500), mean=torch.zeros(40))
    got = torch.cat([batch.x for batch in rows.in_order(64)])
    np.testing.assert_allclose(got.numpy(), matrix.toarray(), rtol=1e-6)
    assert max(sizes) == 64


def _note(sizes, rows):
    sizes.append(len(rows))
    return rows


# -- in which order rows are read --------------------------------------------------------------

N, D = 103, 3
COUNT = np.arange(N * D, dtype=np.float64).reshape(N, D)


def limited(window_rows, chunk_rows=1):
    """Rows as if on disk, with so little memory that a window holds this many."""
    source = DenseSource(COUNT)
    source.on_disk, source.chunk_rows = True, chunk_rows
    source.memory_limit = window_rows * D * 4 * 5
    return source


def all_rows(source, **options):
    return Batches(source, np.arange(N), mean=torch.zeros(D), has_missing=False, **options)


def epoch(source, size=8, seed=0, **options):
    generator = torch.Generator().manual_seed(seed)
    return list(all_rows(source, **options).shuffled(size, generator))


@pytest.mark.parametrize("world", [1, 2, 3, 7])
def test_shards_partition_the_rows(world):
    index = np.random.default_rng(0).permutation(N)
    shares = [index[slice(*shard_bounds(N, rank, world))] for rank in range(world)]
    assert np.concatenate(shares).tolist() == index.tolist()
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


@pytest.mark.parametrize("size", [1, 7, 40, 102, 103, 500])
@pytest.mark.parametrize("chunk_rows", [1, 5])
def test_windows_cover_every_row_once_within_their_size(size, chunk_rows):
    seen = []
    starts = np.arange(0, N, chunk_rows) if chunk_rows > 1 else None
    for blocks, order in windows(N, size, torch.Generator().manual_seed(0), starts):
        rows = np.concatenate([np.arange(block.start, block.stop) for block in blocks])
        assert len(rows) <= size
        assert sorted(order.tolist()) == list(range(len(rows)))
        seen.append(rows)
    assert sorted(np.concatenate(seen).tolist()) == list(range(N))


def test_blocks_begin_where_chunks_do():
    starts = np.array([0, 7, 20, 21, 60, 64, 100])
    found = windows(N, 40, torch.Generator().manual_seed(0), starts)
    assert {block.start for blocks, _ in found for block in blocks} <= set(starts.tolist())


@pytest.mark.parametrize("wrap", [lambda s: s, lambda s: ScaledSource(s, np.zeros(D), np.ones(D))])
def test_an_epoch_over_some_rows_reads_each_chunk_once(wrap):
    """Also where the rows in use are part of a part of what is stored."""
    source = limited(40, chunk_rows=5)
    part = RowView(source, np.arange(3, N, 2))
    index = np.arange(0, 50)[np.arange(50) % 4 > 0]
    rows = Batches(wrap(part), index, mean=torch.zeros(D), has_missing=False)
    chunks = []
    plain = source.rows
    source.rows = lambda at, dtype: chunks.extend(set((at // 5).tolist())) or plain(at, dtype)
    seen = torch.cat([b.x for b in rows.shuffled(8, torch.Generator().manual_seed(0))])
    assert sorted(seen[:, 0].tolist()) == COUNT[part.index[index], 0].tolist()
    assert len(chunks) == len(set(chunks))


@pytest.mark.parametrize("window", [1, 3, 8, 20, 64])
@pytest.mark.parametrize("size", [1, 8, 17, 51, 200])
def test_streamed_batches_cover_every_row_once(window, size):
    found = epoch(limited(window), size)
    assert len(found) == all_rows(limited(window)).steps(size)
    assert {len(batch.x) for batch in found[:-1]} <= {size}
    assert sorted(torch.cat([batch.x for batch in found])[:, 0].tolist()) == COUNT[:, 0].tolist()


def test_streamed_batches_are_fixed_by_their_seed_and_mixed():
    first, again, other = (epoch(limited(32), seed=seed) for seed in (0, 0, 1))
    rows = [torch.cat([batch.x[:, 0] for batch in found]) / D for found in (first, again, other)]
    assert torch.equal(rows[0], rows[1])
    assert not torch.equal(rows[0], rows[2])
    neighbours = (rows[0].diff().abs() == 1).float().mean()
    assert neighbours < 0.2
    # a batch draws from all over the rows, not from one place
    assert min(float(batch.x[:, 0].max() - batch.x[:, 0].min()) for batch in first) > N


def test_targets_and_gaps_stay_with_their_rows():
    source = limited(16)
    found = epoch(source, targets=torch.arange(N))
    assert all(torch.equal(batch.x[:, 0], 3.0 * batch.target) for batch in found)
    source.array = np.where(COUNT % 7 == 0, np.nan, COUNT)
    rows = Batches(source, np.arange(N), mean=torch.full((D,), -1.0))
    for batch in rows.shuffled(8, torch.Generator().manual_seed(0)):
        assert torch.equal(batch.x == -1, ~batch.observed)


def test_draws_from_disk_come_in_epochs_of_whole_batches():
    drawn = all_rows(limited(16)).draws(20, torch.Generator().manual_seed(0))
    found = [next(drawn).x[:, 0] for _ in range(12)]
    assert {len(part) for part in found} == {20}
    assert len(torch.cat(found[:5]).unique()) == 100


def test_rows_in_order_stay_within_the_memory_limit():
    source = limited(400)
    source.memory_limit = None
    plain = torch.cat([batch.x for batch in all_rows(source).in_order(10)])
    source.memory_limit = 1000
    streamed = list(Batches(source, np.arange(N), mean=torch.zeros(D)).in_order())
    assert torch.equal(torch.cat([batch.x for batch in streamed]), plain)


def test_an_error_while_reading_ahead_is_raised_where_rows_are_used():
    class Broken(DenseSource):
        def rows(self, index, dtype=torch.float32):
            if np.max(index) > 90:
                raise InputError("no such luck")
            return super().rows(index, dtype)

    source = Broken(COUNT)
    source.on_disk, source.memory_limit = True, 1000
    with pytest.raises(InputError, match="no such luck"):
        epoch(source)
