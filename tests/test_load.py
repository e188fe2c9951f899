"""Many fits, threads and processes."""

import multiprocessing
import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from sklearn.model_selection import GridSearchCV

import fewer
from benchmarks.soak import impute, soak

X = np.random.default_rng(0).normal(size=(80, 3)) @ np.random.default_rng(1).normal(size=(3, 6))


@pytest.fixture(scope="module")
def panel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("load") / "p"
    fewer.select(X, 2, strategies=["search"], validation=0.2, random_state=0).save(folder)
    return fewer.Panel.load(folder)


def test_memory_and_files_do_not_grow():
    found = soak(10)
    assert found["late"]["files"] == found["early"]["files"]
    assert found["late"]["threads"] == found["early"]["threads"]
    assert found["kb_per_fit"] < 1000


@pytest.mark.skipif(not os.path.exists("/proc/self/clear_refs"), reason="needs /proc")
def test_memory_does_not_follow_the_number_of_rows():
    found = impute(200_000)
    assert found["out_mb"] == 80
    assert found["grown_mb"] < 40


def test_threads_share_a_panel(panel):
    parts = [X[i::8][:, panel.indices] for i in range(8)]
    expected = [panel.reconstruct(part) for part in parts]
    with ThreadPoolExecutor(8) as pool:
        for _ in range(5):
            for found, right in zip(pool.map(panel.reconstruct, parts), expected, strict=True):
                np.testing.assert_array_equal(found, right)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_panel_works_after_a_fork(panel):
    measured = X[:5, panel.indices]
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    child = context.Process(target=lambda: queue.put(panel.reconstruct(measured)))
    child.start()
    np.testing.assert_array_equal(queue.get(), panel.reconstruct(measured))
    child.join(30)
    assert child.exitcode == 0


@pytest.mark.slow
def test_grid_search_in_two_processes():
    model = fewer.ColumnSubset(2, stall=0, random_state=0, device="cpu")
    search = GridSearchCV(model, {"k": [1, 2, 3]}, n_jobs=2, cv=3).fit(X)
    assert search.best_params_ == {"k": 3}
