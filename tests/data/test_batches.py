"""Rows on their way to a network."""

import numpy as np
import pytest
import torch
from scipy import sparse

from fewer.data import batches
from fewer.data.batches import Batches
from fewer.data.source import array_source

X = np.array([[1.0, 10.0, np.nan], [3.0, np.nan, 5.0], [5.0, 30.0, 7.0]])
MEAN = torch.tensor([3.0, 20.0, 6.0])


@pytest.fixture(params=["resident", "streamed"])
def where(request, monkeypatch):
    """Rows kept between epochs, or read anew each time: the same batches."""
    if request.param == "streamed":
        monkeypatch.setattr(batches, "RESIDENT_BYTES", 0)


@pytest.mark.usefixtures("where")
def test_gaps_take_the_mean_and_are_left_out_of_the_loss():
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
