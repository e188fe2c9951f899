"""What goes between processes, and views of rows that are told rather than sent."""

from importlib import import_module

import numpy as np
import pytest
import torch

from fewer.data import (
    ColumnView,
    DenseSource,
    Log1pSource,
    RowView,
    ScaledSource,
    covariance,
    open_source,
)
from fewer.data.helpers import described_view, seen
from fewer.data.memory import size_in_bytes
from fewer.data.source import RowRange
from fewer.data.wire import pack, unpack

X = np.random.default_rng(0).random((20, 4))


def test_values_come_back_as_they_were():
    value = {
        "none": None,
        "numbers": [1, 2.5, float("inf"), True],
        "text": "a line\nand ünother",
        "pair": (np.arange(6).reshape(2, 3), {"deep": torch.ones(2, dtype=torch.float16)}),
        "empty": np.zeros((0, 3), dtype=np.float32),
        "scalar": np.float64(0.1),
        "one": torch.tensor(3),
        "strided": np.arange(12).reshape(3, 4)[:, ::2],
        5: "a number as a key",
        "device": torch.device("cpu"),
    }
    found = unpack(pack(value))
    assert list(found) == list(value)
    for name in ("none", "numbers", "text", "scalar", 5, "device"):
        assert found[name] == value[name]
    array, deep = found["pair"]
    np.testing.assert_array_equal(array, value["pair"][0])
    assert deep["deep"].dtype == torch.float16
    assert found["empty"].shape == (0, 3)
    assert found["one"].item() == 3
    np.testing.assert_array_equal(found["strided"], value["strided"])
    found["pair"][0][0] = 9  # it can be written to


@pytest.mark.parametrize(
    "view",
    [
        lambda base: base,
        lambda base: RowView(base, np.array([3, 1, 7])),
        lambda base: RowRange(RowView(base, np.arange(0, 20, 2)), 2, 9),
        lambda base: ScaledSource(RowView(base, np.arange(5)), X.mean(0), X.std(0)),
        lambda base: ColumnView(Log1pSource(base), np.array([2, 0])),
    ],
)
def test_a_view_is_made_again_from_its_description(view):
    base = DenseSource(X)
    source = view(base)
    told = unpack(pack(described_view(source, base)))
    again = seen(DenseSource(X.copy()), told)
    assert again.shape == source.shape
    np.testing.assert_array_equal(again.rows(slice(0, 3)), source.rows(slice(0, 3)))


def test_rows_of_another_source_are_no_view():
    assert described_view(RowView(DenseSource(X), np.arange(3)), DenseSource(X)) is None


@pytest.mark.parametrize(
    "index", [slice(0, 4), slice(2, None), slice(None, None, 3), np.array([5, 0, 5])]
)
def test_a_range_of_rows_reads_like_a_slice(index):
    part = RowRange(DenseSource(X), 6, 15)
    np.testing.assert_allclose(part.rows(index, torch.float64), X[6:15][index])


def test_processes_of_one_machine_divide_its_memory(monkeypatch):
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    whole = size_in_bytes()
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert size_in_bytes() == whole // 4
    assert size_in_bytes("1GB") == 10**9  # what a user says is for each


def test_a_gpu_out_of_memory_leaves_the_covariance_to_the_cpu(monkeypatch):
    """As on a machine with a small GPU: there is none here to fill."""

    def full(*args, **kwargs):
        raise torch.OutOfMemoryError("CUDA out of memory")

    expected = covariance(open_source(X)).matrix
    module = import_module("fewer.data.moments")  # the package has a function of that name
    monkeypatch.setattr(module, "_usable", lambda *args, **kwargs: torch.device("cuda"))
    monkeypatch.setattr(module, "centred_products", full)
    with pytest.warns(
        UserWarning, match="does not fit the memory of cuda; computing it on the CPU"
    ):
        found = covariance(open_source(X), device="cuda").matrix
    torch.testing.assert_close(found, expected)
