"""Numbers of threads: what a process may use, and what libraries have inside and after a call."""

import math
import os
import subprocess
import sys
import threading
from importlib import import_module

import numpy as np
import pytest
import torch
from sklearn.datasets import load_iris
from threadpoolctl import threadpool_info, threadpool_limits

import fewer
from fewer import _threads
from fewer._optional import import_optional
from fewer._threads import (
    cores,
    cpu_quota,
    entry_point,
    for_matrix,
    for_operations,
    mapped,
    memory_quota,
    owned,
)
from fewer.data import moments, on_disk
from fewer.data.source import array_source
from fewer.nn import make_loss
from fewer.train import TrainingConfig, train_decoders
from fewer.train.training_data import prepare

LARGE = 2**20


@pytest.fixture(autouse=True)
def _four_threads(monkeypatch):
    """As on a machine with four cores, all of whose libraries use them."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(_threads, "cores", lambda: 4)
    with threadpool_limits(4):
        torch.set_num_threads(4)
        yield
    torch.set_num_threads(1)


def blas():
    return {one["num_threads"] for one in threadpool_info() if one["user_api"] == "blas"}


def counts():
    openmp = [one["num_threads"] for one in threadpool_info() if one["user_api"] == "openmp"]
    return torch.get_num_threads(), set(openmp), blas()


# -- cores -----------------------------------------------------------------------------------


def write_groups(folder, text, files):
    (folder / "groups").write_text(text)
    for name, content in files.items():
        file = folder / "fs" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)
    return cpu_quota(folder / "groups", folder / "fs")


@pytest.mark.parametrize(
    ("text", "files", "expected"),
    [
        ("0::/\n", {"cpu.max": "200000 100000\n"}, 2.0),
        ("0::/\n", {"cpu.max": "max 100000\n"}, math.inf),
        ("0::/\n", {}, math.inf),
        ("0::/a/b\n", {"cpu.max": "400000 100000", "a/cpu.max": "150000 100000"}, 1.5),
        ("0::/a/b\n", {"a/cpu.max": "max 100000", "a/b/cpu.max": "50000 100000"}, 0.5),
        # the host's path, seen from inside a container
        ("0::/docker/1f2e\n", {"cpu.max": "300000 100000"}, 3.0),
        (
            "4:memory:/x\n2:cpu,cpuacct:/x\n",
            {"cpu,cpuacct/x/cpu.cfs_quota_us": "250000", "cpu,cpuacct/x/cpu.cfs_period_us": "1e5"},
            2.5,
        ),
        (
            "1:cpu:/x/y\n",
            {"cpu/x/cpu.cfs_quota_us": "100000\n", "cpu/x/cpu.cfs_period_us": "100000\n"},
            1.0,
        ),
        ("1:cpu:/\n", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, math.inf),
        # systemd's mixed hierarchy: the quota is in v1
        (
            "1:cpu:/\n0::/\n",
            {
                "cpu/cpu.cfs_quota_us": "200000",
                "cpu/cpu.cfs_period_us": "100000",
                "unified/cpu.max": "max 100000",
            },
            2.0,
        ),
        ("4:memory:/x\n3:cpuset:/x\n", {"cpu/x/cpu.cfs_quota_us": "100000"}, math.inf),
        ("0::/\n", {"cpu.max": "unreadable"}, math.inf),
    ],
)
def test_quota_of_control_groups(tmp_path, text, files, expected):
    assert write_groups(tmp_path, text, files) == expected


@pytest.mark.parametrize(
    ("text", "files", "expected"),
    [
        ("0::/a/b\n", {"a/memory.max": "2000000000\n", "a/b/memory.max": "max\n"}, 2e9),
        ("0::/docker/1f2e\n", {"memory.max": "1000"}, 1000),
        ("4:memory:/x\n2:cpu:/x\n", {"memory/x/memory.limit_in_bytes": "4096\n"}, 4096),
        ("0::/\n", {"memory.max": "max\n"}, math.inf),
        ("2:cpu:/x\n", {"cpu/x/memory.max": "4096"}, math.inf),
    ],
)
def test_memory_of_control_groups(tmp_path, text, files, expected):
    write_groups(tmp_path, text, files)
    assert memory_quota(tmp_path / "groups", tmp_path / "fs") == expected


def test_a_container_gets_a_quarter_of_its_own_memory(monkeypatch):
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    monkeypatch.setattr(on_disk, "memory_quota", lambda: 4e8)
    assert on_disk.size_in_bytes() == 10**8


def test_no_control_groups_no_limit(tmp_path):
    assert cpu_quota(tmp_path / "none", tmp_path) == math.inf


@pytest.mark.parametrize(("quota", "expected"), [(math.inf, 8), (2.0, 2), (1.5, 2), (0.1, 1)])
def test_cores_are_affinity_and_quota(monkeypatch, quota, expected):
    monkeypatch.delattr(os, "process_cpu_count", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    monkeypatch.setattr(_threads, "cpu_quota", lambda: quota)
    assert cores() == expected
    monkeypatch.setattr(os, "process_cpu_count", lambda: 1, raising=False)
    assert cores() == 1


@pytest.mark.parametrize("text", ["3", "3,2", " 3 "])
def test_never_more_than_the_user_asks_for(monkeypatch, text):
    monkeypatch.setenv("OMP_NUM_THREADS", text)
    with owned():  # scanpy, for one, raises torch's number again
        assert torch.get_num_threads() == 3
    monkeypatch.setenv("OMP_NUM_THREADS", "many")
    torch.set_num_threads(2)
    with owned():
        assert torch.get_num_threads() == 2
    monkeypatch.setattr(_threads, "cores", lambda: 1)
    with owned():
        assert torch.get_num_threads() == 1


# -- inside and after -----------------------------------------------------------------------


def test_one_number_for_all_libraries_and_back():
    before = counts()
    assert before == (4, {4}, {4})
    with owned():
        assert counts() == (4, {4}, {1})
        with for_operations(LARGE - 1):
            assert counts() == (1, {1}, {1})
            with owned():  # a call inside of another decides nothing
                assert counts() == (1, {1}, {1})
            with for_operations(LARGE):
                assert counts() == (4, {4}, {1})
            with for_matrix(2001):
                assert counts() == (4, {4}, {4})
            assert counts() == (1, {1}, {1})
        with for_matrix(2000):
            assert counts() == (1, {1}, {1})
    assert counts() == before


def test_outside_of_a_call_blocks_work_as_well():
    with for_matrix(2000):
        assert counts() == (1, {1}, {1})
    assert counts() == (4, {4}, {4})


def test_restored_after_an_error():
    def fail():
        with for_operations(0):
            raise ValueError(counts())

    with pytest.raises(ValueError, match=r"\(1, \{1\}, \{1\}\)"):
        entry_point(fail)()
    assert counts() == (4, {4}, {4})
    with pytest.raises(fewer.errors.InputError):
        fewer.select(load_iris().data, k=9)
    assert counts() == (4, {4}, {4})


def test_python_threads_get_one_library_thread_each():
    barrier = threading.Barrier(3)  # all at once
    with owned():

        def work(item):
            barrier.wait(timeout=60)
            inside = counts(), mapped(lambda part: part, "ab")
            with for_matrix(5000), for_operations(LARGE):  # a thread has no more to give
                return item, inside, counts()

        found = mapped(work, range(3))
        one = (1, {1}, {1})
        assert found == [(item, (one, ["a", "b"]), one) for item in range(3)]
        assert counts() == (4, {4}, {1})
    assert counts() == (4, {4}, {4})


def test_an_error_in_a_python_thread_is_raised_and_numbers_come_back():
    def work(item):
        if item == 2:
            raise ValueError("two")
        return item

    with pytest.raises(ValueError, match="two"), owned():
        mapped(work, range(4))
    assert counts() == (4, {4}, {4})
    assert not _threads._ASKED


def test_calls_from_several_python_threads_at_once():
    inside, may_leave = threading.Event(), threading.Event()
    seen = []

    def call():
        with owned():
            inside.set()
            may_leave.wait(60)
        seen.append(torch.get_num_threads())

    other = threading.Thread(target=call)
    other.start()
    inside.wait(60)
    with owned(), for_matrix(5000):
        assert blas() == {1}  # the other call asks for one
    assert blas() == {1}  # it has not ended
    may_leave.set()
    other.join()
    assert seen == [4]
    assert counts() == (4, {4}, {4})


def test_arrow_has_the_threads_of_the_call_and_its_own_after_it(monkeypatch):
    pa = pytest.importorskip("pyarrow")
    before = pa.cpu_count()
    pa.set_cpu_count(7)
    try:
        with owned():
            assert pa.cpu_count() == 4
            with for_operations(0):
                assert pa.cpu_count() == 4  # it reads ahead
        assert pa.cpu_count() == 7
        pa.set_cpu_count(2)
        with owned():
            assert pa.cpu_count() == 2
        assert pa.cpu_count() == 2
    finally:
        pa.set_cpu_count(before)


def test_libraries_imported_inside_a_call_are_limited(monkeypatch):
    pa = pytest.importorskip("pyarrow")
    before = pa.cpu_count()
    pa.set_cpu_count(7)
    try:
        monkeypatch.delitem(sys.modules, "pyarrow")

        def load(name):
            monkeypatch.setitem(sys.modules, name, pa)
            return pa

        with owned():
            assert pa.cpu_count() == 7
            monkeypatch.setattr("fewer._optional.import_module", load)
            assert import_optional("pyarrow") is pa
            assert pa.cpu_count() == 4
        assert pa.cpu_count() == 7
    finally:
        pa.set_cpu_count(before)


@pytest.mark.parametrize(
    "call",
    [
        lambda X, tell: fewer.select(X, 2, random_state=0, progress=tell),
        lambda X, tell: fewer.assess.curve(X, [2], random_state=0, progress=tell),
        lambda X, tell: fewer.assess.compare(X, 2, methods=["search"], progress=tell),
        lambda X, tell: fewer.assess.inspect(X, progress=tell),
        lambda X, tell: fewer.ConcreteAutoencoder(
            2, solver="gradient", epochs=1, tries=1, on_epoch=tell, random_state=0
        ).fit(X),
    ],
)
@pytest.mark.filterwarnings("ignore::fewer.errors.FewerWarning")
def test_calls_own_the_threads_and_give_them_back(call):
    seen = []
    call(load_iris().data, lambda *row: seen.append(blas()))
    assert seen
    assert all(one == {1} for one in seen)
    assert counts() == (4, {4}, {4})


def test_the_command_line_lets_threads_sleep():  # test_package.py: the library does not
    show = "print([os.environ.get(name) for name in ('OMP_WAIT_POLICY', 'KMP_BLOCKTIME')])"
    lines = ["import os, sys, fewer.cli", "sys.argv[1:] = ['--version']"]
    lines += ["try: fewer.cli.main()", "except SystemExit: pass", show]
    command = "\n".join(lines)
    free = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}

    def run(code, **env):
        done = subprocess.run(
            [sys.executable, "-c", code], env=free | env, capture_output=True, text=True, check=True
        )
        return done.stdout.splitlines()[-1]

    assert run(command) == "['PASSIVE', '0']"
    assert run(command, OMP_WAIT_POLICY="ACTIVE") == "['ACTIVE', '0']"


def test_a_predictor_of_few_outputs_is_trained_by_one_thread(monkeypatch):
    """Whatever the number of features is that it does not read."""
    network, seen = import_module("fewer.train.network"), []
    plain = network._fit_networks

    def fit(*args, **options):
        seen.append(torch.get_num_threads())
        return plain(*args, **options)

    monkeypatch.setattr(network, "_fit_networks", fit)
    random = np.random.default_rng(0)
    source, labels = array_source(random.normal(size=(60, 9000))), torch.arange(60) % 3
    config = TrainingConfig(k=2, decoder=(67,), refit_epochs=1)
    assert config.values_per_operation(9000) > LARGE
    data = prepare(source, moments(source), config, make_loss("cross_entropy"), 0, labels, 3)
    with owned():
        train_decoders(data, [np.array([3, 5]), np.array([1, 7])], seed=0)
    assert seen == [1]
