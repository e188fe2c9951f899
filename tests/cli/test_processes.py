"""fewer select --devices: several real processes, one of which dies; --resume."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import fewer

pytest.importorskip("lightning_fabric", reason="several processes need lightning-fabric")

WORDS = ["-k", "4", "--device", "cpu", "--strategies", "gradient", "--scale", "none"]
COMMAND = [sys.executable, "-c", "from fewer.cli import main; main()", "select", "rows.csv", *WORDS]


@pytest.fixture
def rows(tmp_path, digits):
    names = ",".join(f"p{j}" for j in range(16))
    np.savetxt(
        tmp_path / "rows.csv", digits[0][:400, 16:32], delimiter=",", header=names, comments=""
    )
    return tmp_path


def start(folder, *more):
    environment = os.environ | {"OMP_NUM_THREADS": "1", "FEWER_CACHE": str(folder / "cache")}
    return subprocess.Popen(
        [*COMMAND, *more],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def worker(parent, rank):
    """The process number of a worker."""
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            mine = f"PPid:\t{parent}\n" in (path.parent / "status").read_text()
            if mine and f"RANK={rank}".encode() in path.read_bytes().split(b"\0"):
                return int(path.parent.name)
        except OSError:
            continue
    return None


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="workers are found through /proc")
def test_a_worker_dies_and_resume_goes_on(rows):
    job = start(rows, "--devices", "2")
    unfinished = rows / "panel.unfinished"
    while not (unfinished / "choices.safetensors").exists():  # greedy is done, gradient has begun
        assert job.poll() is None, job.communicate()[1]
        time.sleep(0.05)
    os.kill(worker(job.pid, rank=1), signal.SIGKILL)
    out, err = job.communicate(timeout=60)
    assert job.returncode == 1
    assert (
        "error: process 1 of 2 failed (ended by SIGKILL); the others were ended. Rerun the" in err
    )
    assert "with --resume to continue from the last checkpoint" in err
    assert not (rows / "panel").exists()

    _, err = start(rows, "--devices", "2").communicate(timeout=120)
    assert "holds unfinished work: add --resume to continue it" in err

    job = start(rows, "--devices", "2", "--resume", "--json")
    out, err = job.communicate(timeout=240)
    assert job.returncode == 0, err
    found = json.loads(out)  # one document, not one for each process
    X = np.loadtxt(rows / "rows.csv", delimiter=",", skiprows=1)
    same = fewer.select(X, 4, strategies=["gradient"], scale="none", random_state=0, device="cpu")
    assert fewer.Panel.load(rows / "panel").indices.tolist() == same.indices.tolist()
    assert found["held_out"] == pytest.approx(same.held_out, rel=1e-6)
    assert not unfinished.exists()


def test_what_cannot_be_used_is_said_once(rows):
    job = start(rows, "--devices", "2", "--include", "p99")
    _, err = job.communicate(timeout=120)
    assert job.returncode == 1
    errors = [line for line in err.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1
    assert "p99" in errors[0]
    assert "--resume" not in errors[0]
    assert "Traceback" not in err
