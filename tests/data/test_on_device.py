"""Sums on a device, here run on the CPU: as exact as they say."""

from importlib import import_module

import numpy as np
import pytest
import torch

from fewer.data import Log1pSource, RowView, ScaledSource, covariance
from fewer.data.moments import centred_products, exact_dtype
from fewer.data.source import DenseSource, array_source

on_device = import_module("fewer.data.moments")  # the package has a function of that name
CPU = torch.device("cpu")


@pytest.mark.parametrize(("exact", "tolerance"), [(True, 1e-13), (False, 1e-6)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_products_are_those_of_float64(exact, tolerance, dtype, monkeypatch):
    monkeypatch.setattr(on_device, "MOST_ROWS", 300)  # several blocks
    random = np.random.default_rng(0)
    X = (random.normal(size=(1000, 1100)) * random.uniform(0.1, 9, 1100) + 50).astype(dtype)
    shift, sums, products, pairs, _ = centred_products(array_source(X), CPU, exact)
    assert pairs is None
    mean = sums / len(X)
    found = (products / len(X) - torch.outer(mean, mean)).numpy()
    wanted = np.cov(X.T.astype(np.float64), bias=True)
    spread = np.sqrt(wanted.diagonal())
    assert (np.abs(found - wanted) / np.outer(spread, spread)).max() < tolerance
    np.testing.assert_allclose((shift + mean).numpy(), X.mean(0, dtype=np.float64), rtol=1e-12)


def test_missing_values_as_on_the_cpu(monkeypatch):
    monkeypatch.setattr(on_device, "MOST_ROWS", 20)
    random = np.random.default_rng(1)
    X = random.normal(size=(70, 6)) + 3
    X[random.random(X.shape) < 0.2] = np.nan
    X[:20] = random.normal(size=(20, 6))  # nothing missing in the first block
    ours = centred_products(array_source(X), CPU, True)
    shift, sums, products, pairs, left_sums = ours
    seen = torch.from_numpy(~np.isnan(X)).double()
    x = torch.from_numpy(X).sub(shift).nan_to_num(nan=0.0)
    torch.testing.assert_close(pairs, seen.T @ seen)
    torch.testing.assert_close(left_sums, x.T @ seen)
    torch.testing.assert_close(products, x.T @ x)
    torch.testing.assert_close(sums, x.sum(0))


def test_what_may_cross_over_as_float32():
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
        with on_device.tf32(False):
            assert switches.fp32_precision == "ieee"
        assert switches.fp32_precision == "tf32"
    finally:
        switches.fp32_precision = before
    with on_device.tf32(True):
        assert switches.allow_tf32
    assert not switches.allow_tf32


def test_a_device_without_float64_leaves_it_to_the_cpu():
    X = np.random.default_rng(0).normal(size=(9, 3))
    found = covariance(array_source(X), device="mps").matrix
    assert found.device.type == "cpu"
    assert torch.equal(found, covariance(array_source(X)).matrix)
