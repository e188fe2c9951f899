"""Killed, full, twice at once: what was there stays, and nothing half-written appears."""

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

import fewer
from benchmarks.kills import COMMANDS, kills
from fewer import _files
from fewer.data.write import write_rows
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


@pytest.mark.parametrize(
    "name",
    ["all.npy", "all.csv", "all.csv.gz", "all.csv.zip", "all.parquet", "all.h5", "all.feather"],
)
def test_a_full_disk_keeps_the_earlier_file(tmp_path, panel, full_disk, name):
    measured = np.tile(X[:, panel.indices], (40, 1))
    panel.reconstruct(measured[:3], out=tmp_path / name)
    before = (tmp_path / name).read_bytes()
    with full_disk(), pytest.raises(InputError, match=rf"{name} cannot be written"):
        panel.reconstruct(measured, out=tmp_path / name)
    assert names(tmp_path) == [name]
    assert (tmp_path / name).read_bytes() == before


@pytest.mark.parametrize("form", ["h5", "h5ad"])
def test_a_disk_that_fills_up_while_hdf5_writes(tmp_path, full_disk, form):
    # HDF5 used to end the process, when it closed the file or later
    pytest.importorskip("anndata")

    def fill_up():
        with write_rows(tmp_path / f"x.{form}", 1560, list("abcdef")) as write:
            write(X)
            disk.enter_context(full_disk())
            for _ in range(5):
                write(np.tile(X, (5, 1)))

    reason = rf"x\.{form} cannot be written \(File too large\)"
    with ExitStack() as disk, pytest.raises(InputError, match=reason):
        fill_up()
    assert names(tmp_path) == []


def test_a_full_disk_keeps_the_earlier_panel(tmp_path, panel, full_disk):
    panel.save(tmp_path / "p")
    page = panel.report(tmp_path / "p.html").read_bytes()
    with full_disk(), pytest.raises(InputError, match="cannot be written"):
        panel.save(tmp_path / "p")
    with full_disk(), pytest.raises(InputError, match="cannot be written"):
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


FULL = """
import sys
from pathlib import Path
import fewer
from fewer.errors import InputError

folder, panel = Path(sys.argv[1]), fewer.Panel.load(sys.argv[2])
forms = "npy csv csv.gz csv.bz2 csv.zst csv.zip tsv parquet feather h5 h5ad".split()
rows = [[0.5, 1.0]] * 9000
writers = {f"x.{form}": lambda path, n: panel.reconstruct(rows[:n], out=path) for form in forms}
writers["x.html"] = lambda path, n: panel.report(path)
writers["x.onnx"] = lambda path, n: fewer.export.export_onnx(panel, path)
writers["panel"] = lambda path, n: panel.save(path)
for name, write in writers.items():
    write(folder / name, 3)
held = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
with open(folder / "filler", "wb", buffering=0) as filler:
    try:
        while filler.write(bytes(4096)):
            pass
    except OSError:
        pass
for name, write in writers.items():
    try:
        write(folder / name, None)
        print(name, "was written")
    except InputError as error:
        assert "No space left" in str(error), error
found = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
del found[folder / "filler"]
assert found == held
"""


@pytest.mark.slow
def test_a_disk_that_is_really_full(tmp_path, panel):
    """A file system of 1 MB, where users may make one."""
    if subprocess.run(["unshare", "-rm", "true"], check=False).returncode:
        pytest.skip("needs unshare")
    pytest.importorskip("anndata")
    pytest.importorskip("onnx")
    panel.save(tmp_path / "p")
    (tmp_path / "disk").mkdir()
    mount = 'mount -t tmpfs -o size=1M none "$1" && shift && exec "$@"'
    line = [sys.executable, "-c", FULL, tmp_path / "disk", tmp_path / "p"]
    command = ["unshare", "-rm", "sh", "-c", mount, "sh", tmp_path / "disk", *line]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    assert done.stdout == ""


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_killed_at_random_moments(command):
    assert kills(command, 3)["kills"] == 3
