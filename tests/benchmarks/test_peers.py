"""benchmarks/peers.py works, and judges panels rightly, whichever other packages are installed."""

import json
import os
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
from sklearn.linear_model import LinearRegression, Ridge

from fewer.datasets import load
from paper.case import Case, make_case
from paper.experiment import processor

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))
import peer_methods  # noqa: E402
import peers  # noqa: E402

FAKE = """
import numpy as np

class CUR:
    def __init__(self, n_to_select, random_state):
        self.k = n_to_select

    def fit(self, X):
        self.selected_idx_ = np.argsort(-X.var(axis=0))[: self.k]
        return self
"""


@pytest.fixture(scope="module")
def digits() -> Case:
    return make_case(load("digits"))


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package of scikit-matter's name that chooses the largest variances, and no fastcan."""
    for package in ("skmatter", "fastcan", "skmatter-9.9.dist-info"):
        (tmp_path / package).mkdir()
    (tmp_path / "skmatter" / "__init__.py").touch()
    (tmp_path / "skmatter" / "feature_selection.py").write_text(FAKE)
    metadata = tmp_path / "skmatter-9.9.dist-info" / "METADATA"
    metadata.write_text("Metadata-Version: 2.1\nName: skmatter\nVersion: 9.9\n")
    (tmp_path / "fastcan" / "__init__.py").write_text('raise ImportError("not on this machine")')
    paths = [str(tmp_path), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))


def program(folder: Path, text: str) -> str:
    file = folder / "program"
    file.write_text(f"#!/bin/sh\n{text}\n")
    file.chmod(0o755)
    return str(file)


def summary(printed: str) -> dict[str, list[str]]:
    rows = [line.split(" | ") for line in printed.splitlines()]
    return {row[0][2:]: row[1:] for row in rows if len(row) == 8}


@pytest.mark.usefixtures("installed")
def test_the_table_has_what_is_installed_and_says_what_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture, digits: Case
) -> None:
    out = tmp_path / "peers.json"
    methods = "fastcan;scikit-matter, CUR"
    arguments = ["--data", "digits", "--k", "5", "--targets", "", "--methods", methods]
    monkeypatch.setattr(sys, "argv", ["peers.py", *arguments, "--out", str(out)])
    peers.main()
    printed = capsys.readouterr().out
    found = summary(printed)
    assert found["greedy search"][1:5] == ["1", "1.000", "1.000", "1.000"]
    assert found["fastcan"][:3] == ["–", "0", "–"]
    assert "- fastcan: ImportError: not on this machine (digits k = 5)" in printed
    cell = json.loads(out.read_text())["digits|5"]
    largest = np.sort(np.argsort(-digits.fit.var(axis=0))[:5])
    assert cell["scikit-matter, CUR"]["columns"] == largest.tolist()
    ratio = cell["scikit-matter, CUR"]["error"] / cell["greedy search"]["error"]
    assert found["scikit-matter, CUR"][:3] == ["9.9", "1", f"{ratio:.3f}"]
    assert ratio > 1
    assert cell["scikit-matter, CUR"]["machine"] == processor()
    merged = tmp_path / "other.json"  # a case that greedy search did not finish says nothing
    merged.write_text(json.dumps({"mice|5": {"scikit-matter, CUR": {"error": 1.0}}}))
    monkeypatch.setattr(sys, "argv", ["peers.py", "--merge", f"{out},{merged}"])
    peers.main()
    assert summary(capsys.readouterr().out) == found


def test_merging_takes_methods_from_several_files(tmp_path: Path) -> None:
    parts = [{"mice|5": {"a": 1, "b": 1}}, {"mice|5": {"b": 2}, "har|5": {"a": 3}}]
    for at, part in enumerate(parts):
        (tmp_path / f"{at}.json").write_text(json.dumps(part))
    found = peers.merged(",".join(str(tmp_path / f"{at}.json") for at in range(2)))
    assert found == {"mice|5": {"a": 1, "b": 2}, "har|5": {"a": 3}}


def test_panels_are_judged_by_one_exact_decoder(digits: Case) -> None:
    panels = {"even": [10, 20, 30, 42, 50], "first": [2, 3, 4, 5, 10]}
    ridge, found = peers.judge(digits, panels)

    def error(panel: list[int], ridge: float, train: np.ndarray, test: np.ndarray) -> float:
        alpha = ridge * len(train) * train.var(axis=0).mean()
        decoder = Ridge(alpha).fit(train[:, panel], train)
        return float(np.mean((decoder.predict(test[:, panel]) - test) ** 2))

    for name, panel in panels.items():
        assert found[name]["error"] == pytest.approx(error(panel, ridge, digits.fit, digits.test))
        exact = LinearRegression().fit(digits.fit[:, panel], digits.fit)
        left = np.sum((exact.predict(digits.fit[:, panel]) - digits.fit) ** 2) / len(digits.fit)
        assert found[name]["objective"] == pytest.approx(left)
    held = [
        np.prod([error(panel, r, digits.train, digits.validation) for panel in panels.values()])
        for r in peers.RIDGES
    ]
    assert ridge == peers.RIDGES[int(np.argmin(held))]


def test_accuracy_is_that_of_a_network_on_the_panel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "TRAININGS", 1)
    data = load("digits")
    X, y = data.X[data.y < 2], data.y[data.y < 2]
    fields = {name: None for name in ("data", "split", "protocol", "seed", "train", "validation")}
    rows = {"fit": X[:240], "test": X[240:], "labels": y[:240], "test_labels": y[240:]}
    case = Case(**fields, **rows, groups=None)
    assert peers.accuracies(case, [20, 28, 36])[0] > 0.95  # the centre, which a zero leaves empty
    assert peers.accuracies(case, [16])[0] < 0.7  # the margin


def test_what_does_not_finish_has_a_reason(tmp_path: Path) -> None:
    def reason(python: str, limit: float = 10.0) -> str:
        return peers.choose("fastcan", tmp_path, 2, python=python, limit=limit, threads=1)["failed"]

    assert reason(program(tmp_path, "exec sleep 60"), limit=0.2) == "more than 0.2 seconds"
    assert reason(program(tmp_path, "echo Error: wrong >&2; exit 1")) == "Error: wrong"
    assert reason(program(tmp_path, "exit 3")) == "exit status 3"
    assert reason(program(tmp_path, """echo '{"columns": [4, 4]}'""")) == "1 of 2 columns chosen"
    missing = str(tmp_path / "nowhere")
    assert reason(missing) == f"{missing} does not run: No such file or directory"


def test_quick_choices_are_repeated() -> None:
    calls = []
    found = peer_methods.timed(lambda: calls.append(0) or [3, 1])
    assert found["columns"] == [1, 3]
    assert len(calls) == peer_methods.REPEATS


def test_slow_methods_see_some_of_the_rows(tmp_path: Path) -> None:
    X = np.random.default_rng(0).normal(size=(50, 2))
    np.save(tmp_path / "rows.npy", X)
    np.save(tmp_path / "labels.npy", X[:, 0] > 0)
    assert len(peer_methods.read_rows(tmp_path, 1, 0).X) == 50
    rows = peer_methods.read_rows(tmp_path, 1, 0, most=20)
    assert rows.X.shape == (20, 2)
    np.testing.assert_allclose(rows.X.mean(axis=0), 0, atol=1e-12)
    assert rows.X[rows.labels, 0].min() > rows.X[~rows.labels, 0].max()  # still their labels


def test_the_extra_installs_the_peers() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    installed = {name.split(">=")[0] for name in project["optional-dependencies"]["peers"]}
    methods = peer_methods.METHODS | peer_methods.LABELLED
    needed = {method.package for method in methods.values()}
    survival = {"lifelines", "scikit-survival"}  # of benchmarks/survival.py
    assert needed | survival == installed | {"fewer", "skmatter"}  # contradicts our scikit-learn


def test_unknown_methods_are_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr(sys, "argv", ["peers.py", "--methods", "select;magic"])
    with pytest.raises(SystemExit):
        peers.main()
    assert "unknown methods: magic" in capsys.readouterr().err
