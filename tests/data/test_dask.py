"""Rows in a Dask cluster of two processes: the same sums and panels as in memory."""

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import torch
from distributed import Client, LocalCluster
from sklearn.datasets import load_wine

import fewer
from fewer.data import ColumnView, RowView, ScaledSource, covariance, moments, read_all
from fewer.data.counts import BatchCentered, NormalizedCounts
from fewer.data.dask import DaskSource
from fewer.data.moments import part_covariances
from fewer.data.source import reduce_rows
from fewer.errors import FewerWarning, InputError

# what other libraries warn of when a cluster starts and ends
pytestmark = pytest.mark.filterwarnings("ignore")

TABLE = load_wine(as_frame=True).data
X = TABLE.to_numpy()


@pytest.fixture(scope="module", autouse=True)
def cluster():
    with (
        LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None
        ) as two,
        Client(two) as client,
    ):
        yield client


def with_gaps():
    rows = X.copy()
    rows[np.random.default_rng(0).random(X.shape) < 0.1] = np.nan
    rows[:60] = X[:60]  # none in the first parts
    return rows


def chunked(rows, size=60):
    return fewer.data.open(da.from_array(rows, chunks=(size, 5)))


@pytest.fixture
def no_rows_fetched(monkeypatch):
    """No more than a sample may come to this process."""
    fetch = DaskSource.rows

    def few(self, index, dtype=torch.float32):
        found = fetch(self, index, dtype)
        assert len(found) < self.shape[0]
        fetched.append(len(found))
        return found

    fetched = []
    monkeypatch.setitem(fewer.data.moments.__globals__, "SAMPLE_ROWS", 16)
    monkeypatch.setattr(DaskSource, "rows", few)
    return fetched


def test_any_rows_can_be_fetched():
    source = chunked(X)
    assert source.shape == X.shape
    for index in (slice(20, 60), slice(3, 150, 40), np.array([177, 0, 30, 30])):
        np.testing.assert_array_equal(source.rows(index, torch.float64), X[index])
    np.testing.assert_array_equal(read_all(source), X)


VIEWS = {
    "whole": lambda source: source,
    "rows": lambda source: RowView(source, np.random.default_rng(0).permutation(178)[:90]),
    "a slice of scaled rows": lambda source: RowView(
        ScaledSource(source, X.mean(0), X.std(0)), slice(30, 120)
    ),
    "columns of rows": lambda source: ColumnView(
        RowView(source, np.arange(5, 170, 3)), np.array([4, 1, 7])
    ),
    "normalised counts": lambda source: RowView(
        NormalizedCounts(source, totals=np.arange(5001, 5179)), np.arange(0, 178, 2)
    ),
    "without batches": lambda source: BatchCentered(source, np.arange(178) % 3),
}


@pytest.mark.parametrize(
    ("view", "rows"),
    [(VIEWS["whole"], X), *((view, with_gaps()) for view in VIEWS.values())],
    ids=["complete", *VIEWS],
)
def test_sums_are_those_of_rows_in_memory(view, rows, no_rows_fetched):
    there, here = view(chunked(rows)), view(fewer.data.open(rows))
    ours, theirs = moments(there), moments(here)
    for name in ("observed", "mean", "variance", "minimum", "maximum"):
        np.testing.assert_allclose(getattr(ours, name), getattr(theirs, name), rtol=1e-9)
    for missing in ("mean", "pairwise"):
        found, wanted = covariance(there, missing), covariance(here, missing)
        torch.testing.assert_close(found.matrix, wanted.matrix, rtol=1e-8, atol=1e-8)
        torch.testing.assert_close(found.mean, wanted.mean, rtol=1e-10, atol=1e-10)
    assert max(no_rows_fetched) <= 16


def test_covariances_of_parts(no_rows_fetched):
    labels = np.random.default_rng(0).integers(0, 3, len(X))
    stats, parts = part_covariances(chunked(X), labels, 3)
    np.testing.assert_allclose(stats.variance, X.var(0), rtol=1e-9)
    for number, part in enumerate(parts):
        own = X[labels == number]
        np.testing.assert_allclose(part.matrix, np.cov(own.T, bias=True), rtol=1e-8, atol=1e-9)
    assert part_covariances(chunked(with_gaps()), labels, 3) == (None, None)
    assert max(no_rows_fetched) <= 16


def test_tasks_receive_the_values_of_their_rows():
    def count_rows(source, weights):  # here, so that the processes need not import this module
        return float(weights.sum()) + source.shape[0]

    rows = RowView(chunked(X), np.arange(177, -1, -2))
    weights = np.arange(89.0)
    assert reduce_rows(rows, count_rows, weights, add=sum) == weights.sum() + 89


def test_the_same_panel_as_in_memory(no_rows_fetched, monkeypatch):
    monkeypatch.setattr("fewer.selection.refit.MOST_RESIDUALS", 50)
    monkeypatch.setattr("fewer.selection.refit.sample_size", lambda d: 20)
    options = {"k": 3, "random_state": 0, "strategies": ["search"]}
    plain = fewer.select(X, **options)
    panel = fewer.select(da.from_array(X, chunks=(90, 13)), **options)
    assert panel.indices.tolist() == plain.indices.tolist()
    assert panel.held_out == pytest.approx(plain.held_out)
    assert panel.score(chunked(X)) == pytest.approx(plain.score(X))
    assert max(no_rows_fetched) <= 50


def test_a_table_of_a_cluster():
    table = TABLE.assign(kind="a")
    parts = dd.from_pandas(table, npartitions=3)
    with pytest.warns(FewerWarning, match=r"non-numeric columns were ignored \(1\): 'kind'"):
        source = fewer.data.open(parts)
    assert (source.names, source.metadata_columns) == (list(TABLE), ("kind",))
    assert sum(part.num_rows for part in source.metadata()) == len(TABLE)
    found = fewer.ColumnSubset(k=3, random_state=0).fit(fewer.data.open(parts, ignore=["kind"]))
    plain = fewer.ColumnSubset(k=3, random_state=0).fit(TABLE)
    np.testing.assert_array_equal(found.columns_, plain.columns_)
    assert found.get_feature_names_out().tolist() == plain.get_feature_names_out().tolist()


def test_what_cannot_be_used():
    with pytest.raises(InputError, match=r"the Dask array has the shape \(178,\)"):
        fewer.data.open(da.from_array(X[:, 0]))
    wrong = X.copy()
    wrong[100, 2] = np.inf
    with pytest.raises(InputError, match="row 100, column 2 is inf"):
        moments(chunked(wrong))
    empty = dd.from_pandas(pd.DataFrame({"a": np.empty(0)}), npartitions=1)
    with pytest.raises(InputError, match="holds no rows"):
        fewer.data.open(empty)


# -- cells -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("sparse_chunks", "groupby"), [(False, None), (True, "kind")])
def test_cells_of_an_annotated_matrix_stay_in_the_cluster(sparse_chunks, groupby):
    anndata = pytest.importorskip("anndata", reason="anndata is not installed")
    sparse = pytest.importorskip("scipy.sparse")
    from fewer.anndata import impute, open_cells, select_genes

    draw = np.random.default_rng(0)
    kind = draw.integers(3, size=300)
    rate = draw.gamma(2.0, size=(300, 1)) * np.where(np.arange(18) // 6 == kind[:, None], 6.0, 2.0)
    counts = draw.poisson(rate).astype(np.float32)
    obs = pd.DataFrame({"kind": [f"kind {one}" for one in kind]}, dtype=object)
    obs.index = obs.index.astype(str)
    chunks = da.from_array(counts, chunks=(70, 18))
    if sparse_chunks:
        chunks = chunks.map_blocks(sparse.csr_matrix)
    here, there = (anndata.AnnData(X, obs=obs.copy()) for X in (counts, chunks))
    assert isinstance(open_cells(there).source, DaskSource)
    options = {"strategies": ["search"], "validation": 0.2, "random_state": 0, "inplace": False}
    wanted, found = (select_genes(one, 4, groupby=groupby, **options) for one in (here, there))
    assert found.indices.tolist() == wanted.indices.tolist()
    assert found.held_out == pytest.approx(wanted.held_out, abs=1e-6)
    layers = [impute(one, panel).layers["fewer"] for one, panel in ((here, wanted), (there, found))]
    np.testing.assert_allclose(*layers, atol=1e-4)
    # what is left after filtering cells and genes is a view of the matrix
    some = np.arange(300)[::2], np.arange(18)[3:]
    wanted, found = (select_genes(one[some[0]][:, some[1]], 4, **options) for one in (here, there))
    assert isinstance(open_cells(there[some[0]][:, some[1]]).source, DaskSource)
    assert found.features == wanted.features
