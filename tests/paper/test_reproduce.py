"""Experiments end to end, in their quick form, on small data; outcomes are checked."""

import json
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread
from typer.testing import CliRunner

import fewer
from fewer.errors import FileFormatError, InputError
from paper.__main__ import app
from paper.experiment import Context, ResultCache
from paper.methods import METHODS
from paper.reproduce import EXPERIMENTS, _parts, compute_in_parallel, reproduce
from paper.table1 import ERRORS

COMPARED = [name for name in METHODS if name != "aefs"]


@pytest.fixture(scope="module")
def tables(data_folder, tmp_path_factory):
    """Tables 1 and 2 on Mice: what they wrote, and what a second run computed.

    Without AEFS, which trains a network for each of its penalties, and ours with one split.
    """
    out = tmp_path_factory.mktemp("results")
    options = {"quick": True, "out": out, "data": ["mice"]}
    said = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("paper.table1.METHODS", {name: METHODS[name] for name in COMPARED})
        patch.setattr("paper.methods.select", partial(fewer.select, validation=0.2))
        (first,) = reproduce("table1", **options)
        (second,) = reproduce("table2", **options, say=said.append)
    return out / "quick", first, second, said


def mean(result, name, key="error"):
    return float(np.mean([cell[key] for cell in result["scores"]["mice"][name]]))


def test_search_is_below_the_baselines_and_above_the_bound(tables):
    result = tables[1].result
    ours = mean(result, "select")
    assert mean(result, "pca") < ours
    for name in ("laplacian", "udfs", "mcfs", "pfa", "variance", "random", "qr"):
        assert ours < mean(result, name), name
    assert mean(result, "select", "own_error") < 1.05 * ours


def test_every_method_chose_ten_proteins(tables):
    scores = tables[1].result["scores"]["mice"]
    networks = {name for name, one in METHODS.items() if one.family == "network"}
    assert list(scores) == [n for n in COMPARED if n not in {"autoencoder", "cae-paper", *networks}]
    for name, cells in scores.items():
        if name != "pca":
            assert len(set(cells[0]["columns"])) == 10, name


def test_the_second_table_needs_no_further_work(tables):
    _, _, second, said = tables
    assert not any("scores" in line for line in said)
    accuracies = second.result["scores"]["mice"]
    assert all(0 < cells[0]["trees"] < 0.9 for cells in accuracies.values())  # 0.99 if leaked


def test_what_was_written(tables):
    folder = tables[0]
    for name in ("table1", "table2"):
        stem = f"{name}-mice"
        stored = json.loads((folder / f"{stem}.json").read_text())
        origin = stored["provenance"]
        assert origin["command"] == f"python -m paper table{name[-1]} --quick --data mice"
        assert origin["data"]["mice"]["sha256"]
        assert {"processor", "cores", "threads"} <= set(origin["machine"])
        assert {"numpy", "torch", "fewer"} <= set(origin["versions"])
        page = (folder / f"{stem}.md").read_text()
        assert f"![{stem}]({stem}.png)" in page
        picture = imread(folder / f"{stem}.png")
        assert picture[..., :3].std() > 0.05
        assert (folder / f"{stem}.svg").read_text().startswith("<?xml")
    page = (folder / "table1-mice.md").read_text()
    assert f"{ERRORS['mice']['cae-gradient']:.3f}†" in page  # published, not on this scale
    assert f"{ERRORS['mice']['pca']:.3f}†" not in page
    assert "by mouse" in page


def test_an_interrupted_run_resumes(tmp_path, monkeypatch):
    cheap = {name: METHODS[name] for name in ("pca", "variance", "random", "qr", "greedy")}
    monkeypatch.setattr("paper.table1.METHODS", cheap)
    chosen = []

    def choose(method, *rest):
        chosen.append(method.name)
        if method.name == "qr" and chosen.count("qr") == 1:
            raise KeyboardInterrupt
        return original(method, *rest)

    from paper.methods import choose as original

    monkeypatch.setattr("paper.table1.choose", choose)
    call = ["table1", "--quick", "--data", "digits", "--out", str(tmp_path)]
    stopped = CliRunner().invoke(app, call)
    assert stopped.exit_code == 130
    assert "the same command resumes" in stopped.output
    kept = sorted(path.stem for path in tmp_path.rglob("seed-0/*.json"))
    assert kept == ["pca", "random", "variance"]
    assert not (tmp_path / "quick" / "table1-digits.md").exists()
    chosen.clear()
    chosen.append("qr")
    done = CliRunner().invoke(app, call)
    assert done.exit_code == 0, done.output
    assert chosen[1:] == ["qr", "greedy"]
    assert (tmp_path / "quick" / "table1-digits.md").exists()


@pytest.mark.slow
def test_only_the_exponential_schedule_converges(data_folder, tmp_path):
    (done,) = reproduce("annealing", quick=True, out=tmp_path)
    ends = {
        name: (cells[0]["error"], cells[0]["probability"][-1])
        for name, cells in done.result["schedules"].items()
    }
    assert ends["exponential"][0] == min(error for error, _ in ends.values())
    assert ends["exponential"][1] > 0.9
    assert ends["high"][1] < 0.9
    assert ends["low"][1] < 0.9


@pytest.fixture(scope="module")
def groups(tmp_path_factory):
    """Groups of pixels of small digits, by method."""
    out = tmp_path_factory.mktemp("groups")
    (done,) = reproduce("groups", quick=True, out=out, data=["digits"])
    return done.result["groups"]["all"]


def test_groups_are_neighbours(groups):
    for name, (cell,) in groups.items():
        assert cell["distance"] < 0.7 * cell["chance"], name
        assert cell["correlation"] > 0.3, name
        assert all(len(set(group)) == 3 for group in cell["groups"])


def test_the_list_names_every_experiment():
    shown = CliRunner().invoke(app, ["--list"]).output
    assert all(name in shown for name in EXPERIMENTS)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("tabel2", {}, "no experiment 'tabel2'; did you mean 'table2'"),
        ("table1", {"protocol": "fair"}, "protocol='fair' is not valid"),
        ("table1", {"seeds": 0}, "seeds=0 must be at least 1"),
        ("table1", {"data": ["minst"]}, "no data set 'minst'"),
        ("all", {"data": ["mice"]}, "--data goes with one experiment"),
        ("groups", {"data": ["tcga"]}, "takes one of mnist, digits, fashion"),
    ],
)
def test_bad_options_are_named_before_any_work(tmp_path, name, options, message):
    with pytest.raises(InputError, match=message):
        reproduce(name, out=tmp_path, **options)
    assert not list(tmp_path.rglob("*.json"))


def test_data_are_downloaded_only_on_request(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setenv("FEWER_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def fetch(name):
        asked.append(name)
        raise FileFormatError("no network here")

    monkeypatch.setattr("fewer.datasets.loader.fetch", fetch)
    call = ["annealing", "--quick", "--out", str(tmp_path)]
    refused = CliRunner().invoke(app, call)
    assert refused.exit_code == 1
    assert "mnist.npz is not in" in refused.stderr
    assert not asked
    tried = CliRunner().invoke(app, [*call, "--download"])
    assert tried.exit_code == 1
    assert asked == ["mnist"]


@pytest.mark.slow
def test_experiments_run_in_parallel(groups, tmp_path):
    said = []
    cache = ResultCache(tmp_path / "cells", said.append)
    took = compute_in_parallel(["groups"], Context("clean", True, cache, wanted=("digits",)), 2)
    assert set(took) == {"groups"}
    for name, (cell,) in groups.items():
        assert sum(f"· {name} (" in line for line in said) == 1
        stored = tmp_path / "cells" / "groups" / "digits" / "all" / "seed-0" / f"{name}.json"
        assert json.loads(stored.read_text())["groups"] == cell["groups"], name


def test_the_longest_work_begins_first_and_shared_work_is_done_once(tmp_path):
    context = Context("clean", False, ResultCache(tmp_path), seeds=2)
    parts = _parts(["table1", "table2", "mnist", "isolet"], context)
    assert parts == [("isolet", 0), ("isolet", 1), ("table1", None), ("mnist", None)]
    assert _parts(["table2"], context) == [("table2", None)]


def test_splits_can_be_computed_in_parallel(tmp_path):
    context = Context("clean", False, ResultCache(tmp_path), seeds=4, part=2)
    assert list(context.seed_range()) == [2]
    assert list(Context("clean", False, ResultCache(tmp_path)).seed_range(full=3)) == [0, 1, 2]
    assert list(Context("clean", True, ResultCache(tmp_path), part=1).seed_range(quick=1)) == []


def test_a_failing_job_stops_all_with_its_message(tmp_path):
    context = Context("clean", True, ResultCache(tmp_path), wanted=("mice", "har"))
    with pytest.raises(InputError, match="this experiment takes one of"):
        compute_in_parallel(["isolet", "annealing"], context, 1)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks at processes by /proc")
def test_workers_exit_with_their_parent():
    code = """
import os, time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from paper.reproduce import _begin
pool = ProcessPoolExecutor(1, get_context("spawn"), initializer=_begin, initargs=(None, 1))
print(pool.submit(os.getpid).result(), flush=True)
pool.submit(time.sleep, 600)
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as parent:
        worker = Path("/proc", parent.stdout.readline().decode().strip(), "stat")
        assert worker.exists()
        parent.kill()
    for _ in range(100):
        if not worker.exists() or ") Z " in worker.read_text():  # gone, or waiting to be buried
            return
        time.sleep(0.1)
    raise AssertionError("the process goes on for nobody")


def test_jobs_below_one():
    with pytest.raises(InputError, match="jobs=0 must be at least 1"):
        reproduce("all", jobs=0)
