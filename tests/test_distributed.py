"""Several processes find what one finds; where they cannot, all say so and none hangs."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import fewer
from fewer import distributed
from fewer.cli import app
from fewer.data.on_disk import size_in_bytes
from fewer.data.source import DenseSource, RowView
from fewer.distributed import joined, shard_bounds, single_process, spawn
from fewer.errors import InputError, ProcessError
from tests.characterisation.cases import ON_TWO_RANKS, differences

ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1"}


# -- two ranks under torchrun -----------------------------------------------------------------


@pytest.fixture(scope="module")
def outcome(tmp_path_factory, digits):
    """What both ranks found, and the folder that they worked in."""
    folder = tmp_path_factory.mktemp("ranks")
    np.save(folder / "rows.npy", np.concatenate(digits)[:, 16:40])  # three rows of pixels
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2"]
    done = subprocess.run(
        [*torchrun, "--module", "tests.distributed_program", str(folder)],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        cwd=Path(__file__).parents[1],
        env=ENVIRONMENT,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads((folder / f"found-{rank}.json").read_text()) for rank in (0, 1)], folder


@pytest.mark.parametrize("rows", ["dense", "far", "gaps", "sparse", "one row"])
def test_sums_over_all_ranks_are_those_of_one_process(outcome, rows):
    assert max(found[rows] for found in outcome[0]) < 1e-12


@pytest.mark.parametrize("how", ["linear", "streamed", "hidden", "closed"])
def test_estimators_choose_what_one_process_chooses(outcome, how):
    for found in outcome[0]:
        assert found[how]["found"] == found[how]["expected"]
        assert found[how]["loss"] == pytest.approx(found[how]["reference"], rel=1e-4)


@pytest.mark.parametrize(
    ("how", "within"), [("panel", 1e-9), ("folds", 1e-9), ("network", 1e-4), ("target", 1e-9)]
)
def test_select_finds_the_panel_of_one_process(outcome, how, within):
    first, second = (found[how] for found in outcome[0])
    assert first == second
    (panel, score, board, *rest), (expected, reference, reference_board, *reference_rest) = first
    assert panel == expected
    assert score == pytest.approx(reference, rel=within)
    assert [name for name, _ in board] == [name for name, _ in reference_board]
    errors = [[error for _, error in rows] for rows in (board, reference_board)]
    assert errors[0] == pytest.approx(errors[1], rel=within)
    assert rest == reference_rest


@pytest.mark.parametrize("name", ON_TWO_RANKS)
def test_two_ranks_find_what_is_recorded_of_one_process(outcome, name):
    recorded = Path(__file__).with_name("characterisation") / "expected.json"
    expected = json.loads(recorded.read_text(encoding="utf-8"))[name]
    for found in outcome[0]:
        assert not differences(found["cases"][name], expected)


def test_the_time_limit_of_rank_0_applies_to_all(outcome):
    first, second = (found["timed"] for found in outcome[0])
    assert len(first[0]) == 2
    assert first == second


def test_each_rank_reads_its_own_rows(outcome):
    assert [found["shares"] for found in outcome[0]] == [[5], [4]]


def test_values_and_tensors_of_rank_0_reach_all(outcome):
    for found in outcome[0]:
        assert found["moved"] == [0, "x"]
        assert found["gathered"] == [0, 1]
        assert found["tensors"] == [[1.0, 0.0], [[0.0, 1.0], [0.0, 0.0], [0.0, 0.0]]]


def test_different_data_is_refused_by_all(outcome):
    for found in outcome[0]:
        assert found["shapes"].startswith("InputError: the processes see different data")
        assert "process 0: 1700, process 1: 1701" in found["shapes"]
        assert "name of the first feature" in found["names"]


def test_what_one_rank_cannot_read_ends_all_with_its_message(outcome):
    first, second = (found["damaged"] for found in outcome[0])
    assert first == "InputError: process 1 of 2: row 1500 is damaged"
    assert second == "InputError: row 1500 is damaged"


def test_an_interrupted_training_resumes_from_its_checkpoint(outcome):
    said = [found["resumed"]["said"] for found in outcome[0]]
    assert said == ["ValueError: no more today", "ProcessError: ValueError: no more today"]
    for found in (found["resumed"] for found in outcome[0]):
        assert "training.safetensors" in found["begun"]
        assert found["found"] == found["expected"]
        assert found["losses"] == pytest.approx(found["reference"], rel=1e-4)
    assert not (outcome[1] / "unfinished").exists()


def test_without_a_seed_all_take_the_same_and_one_writes(outcome):
    found, folder = outcome
    assert found[0]["unseeded"] == found[1]["unseeded"]
    assert [each["is_rank0"] for each in found] == [True, False]
    assert sorted(path.name for path in folder.glob("model*")) == ["model"]


# -- processes that end -----------------------------------------------------------------------

LEAVES = """
import os, torch
from fewer import distributed
with distributed.joined("cpu"):
    distributed.gather(None)
    if distributed.rank() == 1:
        os._exit(0)
    distributed.all_reduce(torch.zeros(1))
"""


def test_a_lost_connection_says_what_to_do():
    """Started by hand: nobody ends the process that is left."""
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = probe.getsockname()[1]
    place = {"MASTER_ADDR": "localhost", "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
    jobs = [
        subprocess.Popen(
            [sys.executable, "-c", LEAVES],
            env=ENVIRONMENT | place | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in (0, 1)
    ]
    errors = [job.communicate(timeout=120)[1] for job in jobs]
    assert "ProcessError: process 0 of 2 lost the others" in errors[0]
    assert "with checkpoint= the same call resumes from the last checkpoint" in errors[0]


WORDS = ["select", "rows.csv", "-k", "3", "--device", "cpu", "--strategies", "gradient"]
WORDS += ["--scale", "none", "--validation", "0.2", "--devices", "2"]


@pytest.fixture
def folder(tmp_path, digits, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEWER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    names = ",".join(f"p{j}" for j in range(12))
    rows = digits[0][:160, 18:30]
    np.savetxt(tmp_path / "rows.csv", rows, delimiter=",", header=names, comments="")
    return tmp_path


def worker(parent, rank):
    """The process id of a rank."""
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            mine = f"PPid:\t{parent}\n" in (path.parent / "status").read_text()
            if mine and f"RANK={rank}".encode() in path.read_bytes().split(b"\0"):
                return int(path.parent.name)
        except OSError:
            continue
    return None


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="ranks are found through /proc")
def test_a_rank_dies_and_resume_continues(folder, capfd):
    job = subprocess.Popen(
        [sys.executable, "-c", "from fewer.cli import main; main()", *WORDS],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    unfinished = folder / "panel.unfinished"
    while not (unfinished / "choices.safetensors").exists():  # greedy is done, gradient has begun
        assert job.poll() is None, job.communicate()[1]
        time.sleep(0.05)
    os.kill(worker(job.pid, rank=1), signal.SIGKILL)
    _, err = job.communicate(timeout=240)
    assert job.returncode == 1
    assert (
        "error: process 1 of 2 failed (ended by SIGKILL); the others were ended. Rerun the" in err
    )
    assert "with --resume to continue from the last checkpoint" in err
    assert not (folder / "panel").exists()

    done = CliRunner().invoke(app, [*WORDS, "--resume", "--json"])
    assert done.exit_code == 0, done.stderr
    found = json.loads(done.stdout + capfd.readouterr().out)  # one document, not one per process
    X = np.loadtxt(folder / "rows.csv", delimiter=",", skiprows=1)
    options = {"strategies": ["gradient"], "validation": 0.2, "scale": "none"}
    same = fewer.select(X, 3, **options, random_state=0, device="cpu")
    assert fewer.Panel.load(folder / "panel").indices.tolist() == same.indices.tolist()
    assert found["held_out"] == pytest.approx(same.held_out, rel=1e-6)
    assert not unfinished.exists()


def test_bad_input_is_reported_once(folder, capfd):
    done = CliRunner().invoke(app, [*WORDS, "--include", "p99"])
    assert done.exit_code == 1
    err = done.stderr + capfd.readouterr().err
    errors = [line for line in err.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1
    assert "p99" in errors[0]
    assert "--resume" not in errors[0]
    assert "Traceback" not in err


# -- one process ------------------------------------------------------------------------------


def test_one_process_is_a_group_of_its_own():
    with joined("cpu"), single_process():
        assert (distributed.rank(), distributed.world_size()) == (0, 1)
        assert distributed.is_rank0()
    tensor = torch.ones(2)
    distributed.all_reduce(tensor, op="max")
    distributed.broadcast_tensors(tensor)
    distributed.check_equal({"the number of rows": 3})
    assert tensor.tolist() == [1, 1]
    with pytest.raises(ZeroDivisionError):
        distributed.all_or_raise(lambda: 1 / 0)


def test_shares_cover_everything_once():
    for n in (0, 1, 7, 100):
        shares = [shard_bounds(n, rank, 4) for rank in range(4)]
        assert [stop for _, stop in shares[:-1]] == [start for start, _ in shares[1:]]
        assert (shares[0][0], shares[-1][1]) == (0, n)


@pytest.mark.parametrize(
    "index", [slice(0, 4), slice(2, None), slice(None, None, 3), np.array([5, 0, 5])]
)
def test_a_range_of_rows_reads_like_a_slice(index):
    X = np.random.default_rng(0).random((20, 4))
    part = RowView(DenseSource(X), slice(6, 15))
    np.testing.assert_allclose(part.rows(index, torch.float64), X[6:15][index])


def test_processes_of_one_machine_divide_its_memory(monkeypatch):
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    whole = size_in_bytes()
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert size_in_bytes() == whole // 4
    assert size_in_bytes("1GB") == 10**9  # what a user says is for each


@pytest.mark.parametrize("text", ["soon", "0", "-5", "inf"])
def test_the_timeout_must_be_a_number(monkeypatch, text):
    for name, value in {"WORLD_SIZE": "2", "RANK": "0", "FEWER_TIMEOUT": text}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(InputError, match=f"FEWER_TIMEOUT='{text}'"), joined("cpu"):
        pass


# -- starting processes -----------------------------------------------------------------------


@pytest.mark.parametrize("options", [{"devices": 0}, {"nodes": 1.5}, {"devices": True}])
def test_numbers_of_processes(options):
    (name,) = options
    with pytest.raises(InputError, match=f"{name}=.* whole number of at least 1"):
        spawn(["-c", "pass"], **options)


def test_several_machines_need_a_master_address(monkeypatch):
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    with pytest.raises(InputError, match="MASTER_ADDR"):
        spawn(["-c", "pass"], nodes=2)


def test_a_program_that_fails_leaves_ctrl_c_and_threads_as_they_were(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with pytest.raises(ProcessError, match=r"process 0 of 1 failed \(exit code 3\)"):
        spawn(["-c", "raise SystemExit(3)"])
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before
    assert "OMP_NUM_THREADS" not in os.environ
