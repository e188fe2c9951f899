"""Killed, full, twice at once: what was there stays, and nothing half-written appears."""

import os
import resource
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

import fewer
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


@pytest.mark.slow
@pytest.mark.parametrize("command", ["linear", "network", "target", "impute", "report"])
def test_killed_at_random_moments(tmp_path, command):
    """The output is absent or complete; the same command then ends as if nothing had happened."""
    rng = np.random.default_rng(3)
    rows = rng.normal(size=(300, 4)) @ rng.normal(size=(4, 12)) + 0.2 * rng.normal(size=(300, 12))
    header = ",".join("abcdefghijkl")
    np.savetxt(tmp_path / "x.csv", rows, delimiter=",", comments="", header=header)
    run = [sys.executable, "-m", "fewer"]
    quick = ["--seed", "0", "--quiet", "--device", "cpu"]
    select = [*run, "select", "x.csv", "-k", "3", *quick]
    more = {"network": ["--decoder", "8"], "target": ["--target", "l"]}.get(command, [])
    whole, out = tmp_path / "whole", tmp_path / "out"
    subprocess.run([*select, *more, "--out", str(whole)], cwd=tmp_path, check=True)
    features = fewer.Panel.load(whole).features
    if command in ("impute", "report"):
        extra = ["x.csv"] if command == "impute" else []
        out = tmp_path / ("out.parquet" if command == "impute" else "out.html")
        do = [*run, command, str(whole), *extra, "--out", str(out), "--quiet"]
    else:
        do = [*select, *more, "--out", str(out), "--resume"]
    began = time.monotonic()
    subprocess.run([part for part in do if part != "--resume"], cwd=tmp_path, check=True)
    seconds = time.monotonic() - began
    subprocess.run(["rm", "-r", str(out)], check=True)

    def command_now():
        resumes = out.with_name("out.unfinished").exists()
        return do if resumes else [part for part in do if part != "--resume"]

    for _ in range(int(os.environ.get("FEWER_KILLS", "3"))):
        process = subprocess.Popen(command_now(), cwd=tmp_path, stderr=subprocess.DEVNULL)
        time.sleep(rng.uniform(0, seconds))
        process.kill()
        process.wait()
        if out.exists() and command not in ("impute", "report"):
            assert fewer.Panel.load(out).features == features
            subprocess.run(["rm", "-r", str(out)], check=True)
    subprocess.run(command_now(), cwd=tmp_path, check=True)
    if command not in ("impute", "report"):
        assert fewer.Panel.load(out).features == features
    assert out.exists()
    assert names(tmp_path) == sorted([out.name, "whole", "x.csv"])
