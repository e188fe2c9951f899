"""Shared by all tests: one thread per process, small real data, where the big sets are.

torch and scikit-learn are imported where they are needed: the process that hands out the tests
reads this file first, and the others start after it.
"""

import os
import resource
import signal
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings

# the same examples each time; HYPOTHESIS_PROFILE=default looks for new ones
settings.register_profile("repeatable", derandomize=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))


@pytest.fixture(autouse=True)
def _one_thread():
    """`make test` runs one process per core; some libraries change the number when imported."""
    import torch

    torch.set_num_threads(1)


@pytest.fixture
def full_disk():
    """A block in which files of this process cannot grow beyond 2 kB.

    It ends inside the test: pytest itself writes to a file as soon as a test is over.
    """

    @contextmanager
    def block():
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (2000, before[1]))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
            signal.signal(signal.SIGXFSZ, handler)

    return block


@pytest.fixture
def no_panel_inspected(monkeypatch):
    """`inspect` scores sizes, as it does for large data, but no panel, which takes most of it."""
    monkeypatch.setattr("fewer.assess.inspection.SMALL_CHOICE", 0)


@pytest.fixture(scope="session")
def digits():
    """Digits in [0, 1], training and test rows."""
    from sklearn.datasets import load_digits

    X = load_digits().data / 16.0
    order = np.random.default_rng(0).permutation(len(X))
    return X[order[:1437]], X[order[1437:]]


@pytest.fixture(scope="session")
def data_folder():
    """Folder of the benchmark sets; tests that need them are skipped without it."""
    folder = os.environ.get("FEWER_DATA")
    if not folder or not Path(folder).is_dir():
        pytest.skip("FEWER_DATA does not name a folder with the benchmark data sets")
    return Path(folder)


@pytest.fixture(scope="session")
def mnist(data_folder):
    """The 10,000 official test images in [0, 1]: 6000 rows to train, 4000 to test."""
    with np.load(data_folder / "mnist.npz", allow_pickle=False) as stored:
        X = stored["X"][stored["is_test"]].astype(np.float32) / 255
    order = np.random.default_rng(0).permutation(len(X))
    return X[order[:6000]], X[order[6000:]]
