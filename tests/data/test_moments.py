"""One-pass moments and covariances against two-pass NumPy."""

from importlib import import_module

import numpy as np
import pytest
import torch
from scipy import sparse

from fewer.data import ColumnView, Log1pSource, RowView, ScaledSource, covariance, moments, source
from fewer.data.moments import _sums, chosen_products, exact_dtype
from fewer.data.source import DenseSource, array_source

module = import_module("fewer.data.moments")  # the package has a function of that name
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Several blocks even for small data."""
    monkeypatch.setattr(source, "BLOCK_BYTES", 8 * 6 * 7)


def rows(n=50, d=6, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, d)) @ rng.normal(size=(d, d)) + 1e4


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, np.uint8, np.int64, ">f8"])
def test_every_dtype(dtype):
    X = (np.random.default_rng(0).random((40, 5)) * 200).astype(dtype)
    found, exact = moments(array_source(X)), X.astype(np.float64)
    np.testing.assert_allclose(found.mean, exact.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(found.variance, exact.var(axis=0), rtol=1e-10)
    assert not found.has_missing
    np.testing.assert_array_equal(found.minimum, exact.min(axis=0))


def test_a_large_mean_does_not_swallow_a_small_variance():
    X = 1e8 + np.random.default_rng(0).normal(size=(60, 3))
    np.testing.assert_allclose(moments(array_source(X)).variance, X.var(axis=0), rtol=1e-6)
    np.testing.assert_allclose(
        covariance(array_source(X)).matrix.numpy(), np.cov(X.T, bias=True), atol=1e-6
    )


def test_missing_values_are_left_out():
    X = rows()
    X[np.random.default_rng(1).random(X.shape) < 0.3] = np.nan
    found = moments(array_source(X))
    np.testing.assert_allclose(found.mean, np.nanmean(X, axis=0))
    np.testing.assert_allclose(found.variance, np.nanvar(X, axis=0), rtol=1e-8)
    np.testing.assert_array_equal(found.observed, (~np.isnan(X)).sum(axis=0))


@pytest.mark.parametrize("late", [False, True])
def test_pairwise_covariance(late):
    """Entry (i, j) averages over the rows that have both; ``late``: gaps not in block one."""
    X = rows(n=400)
    gaps = np.random.default_rng(1).random(X.shape) < 0.1
    if late:
        gaps[:100] = False
    X[gaps] = np.nan
    found = covariance(array_source(X), missing="pairwise")
    centred = X - np.nanmean(X, axis=0)
    filled = np.nan_to_num(centred)
    np.testing.assert_allclose(
        covariance(array_source(X)).matrix.numpy(), filled.T @ filled / len(X), rtol=1e-6
    )
    expected = np.nanmean(centred[:, :, None] * centred[:, None, :], axis=0)
    assert np.linalg.eigvalsh(expected).min() > 0  # nothing to repair here
    np.testing.assert_allclose(found.matrix.numpy(), expected, rtol=1e-6)
    np.testing.assert_allclose(found.mean.numpy(), np.nanmean(X, axis=0))


def test_a_pairwise_covariance_is_made_positive():
    X = np.array([[1.0, 1, np.nan], [-1, -1, np.nan], [np.nan, 1, 1], [np.nan, -1, -1]])
    X = np.vstack([X, [[1, np.nan, -1], [-1, np.nan, 1]]])
    found = covariance(array_source(X), missing="pairwise").matrix.numpy()
    values = np.linalg.eigvalsh(found)
    assert values.min() > -1e-12


@pytest.mark.parametrize("kind", [sparse.csr_array, sparse.csc_array, sparse.csr_matrix])
def test_sparse_equals_dense(kind):
    X = sparse.random_array((60, 6), density=0.3, rng=np.random.default_rng(0)).toarray()
    for summary in (moments, covariance):
        ours, dense = summary(array_source(kind(X))), summary(array_source(X))
        np.testing.assert_allclose(ours.mean, dense.mean)
    np.testing.assert_allclose(
        covariance(array_source(kind(X))).matrix, covariance(array_source(X)).matrix, atol=1e-15
    )


def test_constant_columns_are_found():
    X = np.array([[1.0, 2.0, np.nan], [1.0, 3.0, 4.0]])
    assert moments(array_source(X)).constant.tolist() == [True, False, True]
    assert moments(array_source(np.ones((3, 2)))).scale == 1.0


def test_a_sparse_matrix_far_from_zero():
    X = 1e8 + np.random.default_rng(0).normal(size=(60, 3))
    found = covariance(array_source(sparse.csr_array(X))).matrix.numpy()
    np.testing.assert_allclose(found, np.cov(X.T, bias=True), atol=1e-6)


def test_sparse_moments_leave_gaps_out_and_count_zeros_that_are_not_stored():
    X = sparse.random_array((60, 6), density=0.3, rng=np.random.default_rng(0)).toarray()
    X[:, 0], X[3, 1], X[:, 2] = 1.0 + X[:, 0], np.nan, 0.0
    ours, dense = moments(array_source(sparse.csr_array(X))), moments(array_source(X))
    for part in ("observed", "mean", "variance", "minimum", "maximum"):
        np.testing.assert_allclose(getattr(ours, part), getattr(dense, part), atol=1e-14)


def test_stored_duplicates_are_added_up():
    matrix = sparse.csr_array((np.array([1.0, 2.0, 4.0]), [0, 0, 1], [0, 2, 3]), shape=(2, 2))
    found = moments(array_source(matrix))
    assert found.mean.tolist() == [1.5, 2.0]
    assert found.variance.tolist() == [2.25, 4.0]


def test_a_gpu_out_of_memory_leaves_the_covariance_to_the_cpu(monkeypatch):
    """As on a machine with a small GPU: there is none here to fill."""

    def full(source, *, home, **options):
        if home.type == "cuda":
            raise torch.OutOfMemoryError("CUDA out of memory")
        return _sums(source, home=home, **options)

    X = np.random.default_rng(0).random((20, 4))
    expected = covariance(array_source(X)).matrix
    monkeypatch.setattr(module, "_usable", lambda *args, **kwargs: torch.device("cuda"))
    monkeypatch.setattr(module, "_sums", full)
    with pytest.warns(UserWarning, match="does not fit into the memory of cuda; using the CPU"):
        found = covariance(array_source(X), device="cuda").matrix
    torch.testing.assert_close(found, expected)


# -- as on a device, here run on the CPU ---------------------------------------------------------


@pytest.mark.parametrize(("exact", "tolerance"), [(True, 1e-13), (False, 1e-6)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_products_are_those_of_float64(exact, tolerance, dtype, monkeypatch):
    monkeypatch.setattr(source, "BLOCK_BYTES", 8 * 1100 * 300)  # several blocks of 300 rows
    random = np.random.default_rng(0)
    X = (random.normal(size=(1000, 1100)) * random.uniform(0.1, 9, 1100) + 50).astype(dtype)
    sums = _sums(array_source(X), parts=1, home=CPU, exact=exact)
    assert "pairs" not in sums
    mean = sums["first"][0] / len(X)
    found = (sums["products 0"] / len(X) - torch.outer(mean, mean)).numpy()
    wanted = np.cov(X.T.astype(np.float64), bias=True)
    spread = np.sqrt(wanted.diagonal())
    assert (np.abs(found - wanted) / np.outer(spread, spread)).max() < tolerance
    np.testing.assert_allclose(
        (sums["shift"] + mean).numpy(), X.mean(0, dtype=np.float64), rtol=1e-12
    )


def test_products_of_rows_with_missing_values(monkeypatch):
    monkeypatch.setattr(source, "BLOCK_BYTES", 8 * 6 * 20)
    random = np.random.default_rng(1)
    X = random.normal(size=(70, 6)) + 3
    X[random.random(X.shape) < 0.2] = np.nan
    X[:20] = random.normal(size=(20, 6))  # nothing missing in the first block
    sums = _sums(array_source(X), parts=1, home=CPU, exact=True)
    seen = torch.from_numpy(~np.isnan(X)).double()
    x = torch.from_numpy(X).sub(sums["shift"]).nan_to_num(nan=0.0)
    torch.testing.assert_close(sums["pairs"], seen.T @ seen)
    torch.testing.assert_close(sums["left_sums"], x.T @ seen)
    torch.testing.assert_close(sums["products 0"], x.T @ x)
    torch.testing.assert_close(sums["first"][0], x.sum(0))


def test_what_may_be_transferred_as_float32():
    counts = DenseSource(np.ones((3, 2), np.int16))
    assert exact_dtype(counts) == torch.float32
    assert exact_dtype(RowView(counts, np.arange(2))) == torch.float32
    assert exact_dtype(DenseSource(np.ones((3, 2), np.int32))) == torch.float64
    assert exact_dtype(Log1pSource(counts)) == torch.float64
    assert exact_dtype(ScaledSource(counts, np.zeros(2), np.ones(2))) == torch.float64


def test_either_of_torchs_switches_is_given_back():
    switches = torch.backends.cuda.matmul
    before = switches.fp32_precision
    try:
        switches.fp32_precision = "tf32"  # from now on torch refuses to read the older one
        with module.tf32(False):
            assert switches.fp32_precision == "ieee"
        assert switches.fp32_precision == "tf32"
    finally:
        switches.fp32_precision = before
    with module.tf32(True):
        assert switches.allow_tf32
    assert not switches.allow_tf32


def test_a_device_without_float64_leaves_it_to_the_cpu():
    X = np.random.default_rng(0).normal(size=(9, 3))
    found = covariance(array_source(X), device="mps").matrix
    assert found.device.type == "cpu"
    assert torch.equal(found, covariance(array_source(X)).matrix)


@pytest.mark.parametrize("density", [0.02, 0.4])  # products of stored values, and of dense blocks
def test_products_of_sparse_rows(density, monkeypatch):
    monkeypatch.setattr(module, "DENSE_BLOCK", 1)  # several blocks
    draw = np.random.default_rng(0)
    X = sparse.random_array((900, 70), density=density, rng=draw, format="csr")
    rows = array_source(X)
    found = covariance(rows).matrix.numpy()
    np.testing.assert_allclose(found, np.cov(X.toarray().T, bias=True), atol=1e-12)
    chosen = np.array([3, 50, 7])
    own, both = chosen_products(rows, chosen)
    dense = X.toarray()
    np.testing.assert_allclose(own, dense[:, chosen].T @ dense[:, chosen], atol=1e-12)
    np.testing.assert_allclose(both, dense[:, chosen].T @ dense, atol=1e-12)
    part = ColumnView(rows, chosen)
    np.testing.assert_allclose(part.rows(slice(5, 9)), dense[5:9, chosen], rtol=1e-6)
    assert chosen_products(array_source(dense), chosen) is None
