"""Several processes find what one finds; where they cannot, all say so and none hangs."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fewer import ConcreteAutoencoder
from fewer.data.processes import ALONE, Team, alone, current_team
from fewer.errors import InputError, MissingExtraError, ProcessError
from fewer.train.launch import joined, leads, spawn

HERE = Path(__file__).parent
pytest.importorskip("lightning_fabric", reason="several processes need lightning-fabric")


def run(command, processes, **options):
    """A Python program in several processes, with as many threads each as the tests have."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", str(processes)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [*torchrun, *map(str, command)],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env=environment,
        **options,
    )


@pytest.fixture(scope="module", params=[2, 3])
def outcome(request, tmp_path_factory, digits):
    folder = tmp_path_factory.mktemp("together")
    np.save(folder / "rows.npy", np.concatenate(digits))
    part = "all" if request.param == 2 else "some"
    done = run([HERE / "together.py", folder, part], request.param)
    assert done.returncode == 0, done.stderr[-3000:]
    files = sorted(folder.glob("found-*.json"))
    assert len(files) == request.param
    return [json.loads(file.read_text()) for file in files], folder


@pytest.mark.parametrize("rows", ["dense", "far", "gaps", "sparse", "few"])
def test_sums_over_all_processes_are_those_of_one(outcome, rows):
    assert max(found[rows] for found in outcome[0]) < 1e-12


@pytest.mark.parametrize("how", ["linear", "streamed", "hidden", "closed"])
def test_the_choice_is_that_of_one_process(outcome, how):
    for found in outcome[0]:
        if how not in found:
            pytest.skip("done with two processes")
        assert found[how]["found"] == found[how]["expected"]
        assert found[how]["loss"] == pytest.approx(found[how]["reference"], rel=1e-4)


def test_select_finds_the_panel_of_one_process(outcome):
    for found in outcome[0]:
        if "panel" not in found:
            pytest.skip("done with two processes")
        together, by_itself, score, reference = found["panel"]
        assert together == by_itself
        assert score == pytest.approx(reference, rel=1e-9)


def test_all_processes_have_the_same_network(outcome):
    first, *others = [found.get("network") for found in outcome[0]]
    if first is None:
        pytest.skip("done with two processes")
    assert len(first[0]) == 5
    assert all(other == first for other in others)


def test_each_process_reads_its_own_rows(outcome):
    parts = [found["parts"] for found in outcome[0]]
    expected = [[len(part)] for part in np.array_split(range(10), len(parts))]
    assert parts == expected


def test_different_data_is_refused_by_all(outcome):
    for found in outcome[0]:
        assert found["shapes"].startswith("InputError: the processes see different data")
        assert "process 0: 1700, process 1: 1701" in found["shapes"]
        assert "name of the first feature" in found["names"]


def test_what_one_cannot_read_ends_all_with_its_message(outcome):
    for found in outcome[0]:
        assert "row 1500 is damaged" in found["damaged"]


def test_without_a_seed_all_take_the_same_and_one_writes(outcome):
    found, folder = outcome
    assert len({tuple(each["unseeded"]) for each in found}) == 1
    assert [each["leads"] for each in found] == [True] + [False] * (len(found) - 1)
    assert sorted(path.name for path in folder.glob("model*")) == ["model"]


DIES = """
import os, signal, sys, torch
import fewer
from fewer.train import Checkpoint
torch.set_num_threads(1)
folder, kill = sys.argv[1], int(sys.argv[2])
rank = int(os.environ["RANK"])
open(f"{folder}/pid-{rank}", "w").write(str(os.getpid()))
def look(row):
    if kill and row["epoch"] == 8:
        os.kill(int(open(f"{folder}/pid-1").read()), signal.SIGKILL)
model = fewer.ConcreteAutoencoder(
    6, solver="gradient", epochs=20, tries=1, random_state=0, device="cpu", on_epoch=look,
    checkpoint=Checkpoint(f"{folder}/unfinished", every=0),
).fit(f"{folder}/rows.npy")
model.save(f"{folder}/model")
"""


@pytest.mark.filterwarnings("ignore::fewer.errors.NotConvergedWarning")
def test_a_worker_that_dies_ends_the_job_and_its_work_goes_on(tmp_path, digits):
    np.save(tmp_path / "rows.npy", digits[0])
    script = tmp_path / "dies.py"
    script.write_text(DIES)
    starter = (
        "import sys; from fewer.train.launch import spawn; "
        "spawn(sys.argv[1:], devices=2, hint='Add --resume')"
    )

    def start(kill):
        return subprocess.run(
            [sys.executable, "-c", starter, str(script), str(tmp_path), str(kill)],
            capture_output=True,
            text=True,
            check=False,
            timeout=120,  # it must end by itself
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )

    done = start(kill=1)
    assert done.returncode != 0
    assert "process 1 of 2 failed (ended by SIGKILL); the others were ended. Add --resume" in (
        done.stderr
    )
    assert not (tmp_path / "model").exists()
    assert (tmp_path / "unfinished" / "training.safetensors").exists()
    done = start(kill=0)
    assert done.returncode == 0, done.stderr[-2000:]
    assert not (tmp_path / "unfinished").exists()
    resumed = ConcreteAutoencoder.load(tmp_path / "model")
    whole = ConcreteAutoencoder(
        6, solver="gradient", epochs=20, tries=1, random_state=0, device="cpu"
    ).fit(tmp_path / "rows.npy")
    assert resumed.columns_.tolist() == whole.columns_.tolist()
    losses = [[row["loss"] for row in model.history_] for model in (resumed, whole)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


def test_one_process_is_a_team_of_its_own():
    with joined("cpu") as team, alone():
        assert team is ALONE
        assert current_team() is ALONE
        assert leads()


def test_shares_cover_everything_once():
    for n in (0, 1, 7, 100):
        shares = [Team(rank, 4).share_of(n) for rank in range(4)]
        assert [stop for _, stop in shares[:-1]] == [start for start, _ in shares[1:]]
        assert (shares[0][0], shares[-1][1]) == (0, n)


@pytest.mark.parametrize("options", [{"devices": 0}, {"nodes": 1.5}, {"devices": True}])
def test_numbers_of_processes(options):
    (name,) = options
    with pytest.raises(InputError, match=f"{name}=.* whole number of at least 1"):
        spawn(["-c", "pass"], **options)


def test_machines_must_know_where_to_meet(monkeypatch):
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    with pytest.raises(InputError, match="MASTER_ADDR"):
        spawn(["-c", "pass"], nodes=2)


def test_a_program_that_fails():
    with pytest.raises(ProcessError, match=r"process 0 of 1 failed \(exit code 3\)"):
        spawn(["-c", "raise SystemExit(3)"])


def test_starting_processes_leaves_ctrl_c_and_threads_as_they_were(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    spawn(["-c", "pass"])
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before
    assert "OMP_NUM_THREADS" not in os.environ


def test_the_library_that_several_processes_need(monkeypatch):
    monkeypatch.setitem(sys.modules, "lightning_fabric", None)
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(MissingExtraError, match="distributed"), joined("cpu"):
        pass
