"""Killed, full, twice at once: what was there stays, and nothing half-written appears."""

import os
import resource
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import fewer
from benchmarks.kills import COMMANDS, kills
from fewer import _files
from fewer.errors import InputError

X = np.random.default_rng(0).normal(size=(60, 4)) @ np.random.default_rng(1).normal(size=(4, 6))


@pytest.fixture(scope="module")
def panel():
    return fewer.select(X, 2, strategies=["search"], validation=0.2, random_state=0)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def killed(code, folder):
    """Run a program until it says that it is in the middle of writing, and kill it there."""
    program = f"import sys, time\nfrom pathlib import Path\nfrom fewer import _files\n{code}"
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(folder)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "writing\n"
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()


def test_what_a_killed_process_leaves_is_removed_by_the_next(tmp_path):
    (tmp_path / "a.txt").write_text("old")
    killed(
        "with _files.atomic(Path(sys.argv[1]) / 'a.txt') as draft:\n"
        "    draft.write_text('half')\n"
        "    print('writing', flush=True)\n"
        "    time.sleep(60)",
        tmp_path,
    )
    assert len(names(tmp_path)) == 2
    assert (tmp_path / "a.txt").read_text() == "old"
    _files.write_text(tmp_path / "a.txt", "new")
    assert names(tmp_path) == ["a.txt"]
    assert (tmp_path / "a.txt").read_text() == "new"


def test_a_folder_that_was_being_replaced_comes_back(tmp_path, panel):
    panel.save(tmp_path / "p")
    killed(
        "target = Path(sys.argv[1]) / 'p'\n"
        "with _files._scratch(target) as scratch:\n"
        "    target.rename(scratch / 'old')\n"
        "    print('writing', flush=True)\n"
        "    time.sleep(60)",
        tmp_path,
    )
    assert not (tmp_path / "p").exists()
    _files.remove_leftovers(tmp_path / "p")
    assert fewer.Panel.load(tmp_path / "p").features == panel.features
    assert names(tmp_path) == ["p"]


def test_what_another_process_is_writing_is_left_alone(tmp_path):
    with _files.atomic(tmp_path / "a.txt") as first:
        first.write_text("first")
        code = "import sys; from fewer import _files; _files.write_text(sys.argv[1], 'second')"
        subprocess.run([sys.executable, "-c", code, str(tmp_path / "a.txt")], check=True)
        assert (tmp_path / "a.txt").read_text() == "second"
        assert first.read_text() == "first"
    assert (tmp_path / "a.txt").read_text() == "first"
    assert names(tmp_path) == ["a.txt"]


@pytest.fixture
def full_disk():
    """Files of this process cannot grow beyond 2 kB."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    yield lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (2000, before[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    signal.signal(signal.SIGXFSZ, handler)


@pytest.mark.parametrize("name", ["all.npy", "all.csv", "all.parquet", "all.h5", "all.feather"])
def test_a_full_disk_keeps_the_earlier_file(tmp_path, panel, full_disk, name):
    measured = np.tile(X[:, panel.indices], (40, 1))
    panel.reconstruct(measured[:3], out=tmp_path / name)
    before = (tmp_path / name).read_bytes()
    full_disk()
    with pytest.raises(InputError, match=rf"{name} cannot be written"):
        panel.reconstruct(measured, out=tmp_path / name)
    assert names(tmp_path) == [name]
    assert (tmp_path / name).read_bytes() == before


def test_a_full_disk_keeps_the_earlier_panel(tmp_path, panel, full_disk):
    panel.save(tmp_path / "p")
    page = panel.report(tmp_path / "p.html").read_bytes()
    full_disk()
    with pytest.raises(InputError, match="cannot be written"):
        panel.save(tmp_path / "p")
    with pytest.raises(InputError, match="cannot be written"):
        panel.report(tmp_path / "p.html")
    assert names(tmp_path) == ["p", "p.html"]
    assert (tmp_path / "p.html").read_bytes() == page
    assert fewer.Panel.load(tmp_path / "p").features == panel.features


def test_a_folder_that_cannot_be_written_to(panel):
    folder = Path("/proc/self")  # nobody can create files there, not even root
    if not folder.is_dir():
        pytest.skip("needs /proc")
    for write in (
        lambda: panel.save(folder / "p"),
        lambda: panel.report(folder / "p.html"),
        lambda: panel.reconstruct(X[:2, panel.indices], out=folder / "x.csv"),
        lambda: panel.reconstruct(X[:2, panel.indices], out=folder / "x.h5"),
    ):
        with pytest.raises(InputError, match=r"/proc/\S+ cannot be written|no permission to write"):
            write()


def test_two_writers_of_one_folder_leave_one_whole_panel(tmp_path, panel):
    def save(times):
        for _ in range(times):
            panel.save(tmp_path / "p")
            assert fewer.Panel.load(tmp_path / "p").features == panel.features

    with ThreadPoolExecutor(2) as pool:
        for found in [pool.submit(save, 10) for _ in range(2)]:
            found.result()
    assert names(tmp_path) == ["p"]


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_killed_at_random_moments(command):
    assert kills(command, 3)["kills"] == 3
