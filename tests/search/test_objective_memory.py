"""Where a GPU's memory is short: panels in halves, then the CPU, with a warning."""

from importlib import import_module

import numpy as np
import pytest
import torch

from fewer.errors import FewerWarning
from fewer.search import greedy, search, swap
from fewer.search.swap import Explorer


@pytest.fixture
def C():
    rng = np.random.default_rng(0)
    return np.cov((rng.normal(size=(300, 6)) @ rng.normal(size=(6, 30))).T) + 0.3 * np.eye(30)


def fail_once(monkeypatch, module, name):
    """Let a function run out of memory the first time; how often it was called."""
    plain, calls = getattr(module, name), []

    def short(*arguments):
        calls.append(1)
        if len(calls) == 1:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return plain(*arguments)

    monkeypatch.setattr(module, name, short)
    return calls


@pytest.mark.parametrize(
    ("function", "argument", "module", "inner"),
    [
        (greedy, 4, "fewer.search.greedy", "_run"),
        (swap, [0, 1, 2, 3], "fewer.search.swap", "_swap_features"),
        (search, 4, "fewer.search.subset", "worth"),
    ],
)
def test_the_cpu_takes_over(C, monkeypatch, function, argument, module, inner):
    expected = function(C, argument)
    module = import_module(module)
    calls = fail_once(monkeypatch, module, inner)
    with pytest.warns(FewerWarning, match="does not fit into GPU memory"):
        found = function(torch.from_numpy(C), argument)
    assert len(calls) > 1
    for name in ("order", "indices"):
        if hasattr(expected, name):
            np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))


def test_panels_are_improved_in_halves_if_memory_is_short(C, monkeypatch):
    plain, sizes = Explorer.improve, []

    def short(self, panels, *arguments):
        sizes.append(len(panels))
        if len(panels) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return plain(self, panels, *arguments)

    monkeypatch.setattr(Explorer, "improve", short)
    found = search(C, 4, starts=5, seed=0)
    assert set(sizes) == {5, 3, 2, 1}
    assert found.objective <= swap(C, greedy(C, 4).panel()).objective
