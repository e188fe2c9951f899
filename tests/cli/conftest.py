"""Small files as users have them, a panel made of one, and a way to type commands."""

import json

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer
from typer.testing import CliRunner

from fewer.cli import app


@pytest.fixture(scope="session")
def tumours():
    """569 rows of 12 numbers, with identifiers, a class, gaps, a copy and an empty column."""
    data = load_breast_cancer(as_frame=True)
    table = data.data.iloc[:, :12].rename(columns=lambda name: name.replace(" ", "_"))
    table.insert(0, "number", np.arange(len(table)))
    table.insert(1, "who", [f"patient {i:03}" for i in range(len(table))])
    table["clinic"] = np.array(["north", "south", "east", "west", "centre"])[
        np.arange(len(table)) % 5
    ]
    table["diagnosis"] = np.where(data.target == 0, "malignant", "benign")
    table["same_radius"] = table["mean_radius"]
    table["blank"] = np.nan
    table.loc[::10, "mean_texture"] = np.nan
    return table


@pytest.fixture
def folder(tmp_path, monkeypatch, tumours):
    """A folder to work in, with train.csv, test.csv and their Parquet twins.

    Of the four rows of few.csv `inspect` suggests no k, which is most of its work. As for large
    data, panels made here have no tests against chance, which take longer than the choice.
    """
    monkeypatch.setattr("fewer.selection.evidence.gather.QUICK_PASS", 0)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEWER_CACHE", str(tmp_path / "cache"))
    odd = np.arange(len(tumours)) % 3 == 0
    for name, part in (("train", tumours[~odd]), ("test", tumours[odd])):
        rows = part.assign(number=np.arange(len(part)))
        rows.to_csv(f"{name}.csv", index=False)
        rows.to_parquet(f"{name}.parquet", index=False)
    rows.head(4).to_csv("few.csv", index=False)
    return tmp_path


@pytest.fixture(scope="session")
def made_panel(tumours, tmp_path_factory):
    folder = tmp_path_factory.mktemp("made")
    part = tumours[np.arange(len(tumours)) % 3 != 0]  # its numbers have gaps
    part.to_csv(folder / "train.csv", index=False)
    done = CliRunner().invoke(
        app, ["select", f"{folder}/train.csv", "-k", "3", "--out", f"{folder}/panel", *QUICK]
    )
    assert done.exit_code == 0, done.output
    return folder / "panel"


QUICK = ["--strategies", "search", "--device", "cpu"]


@pytest.fixture(scope="session")
def typed():
    """Type a command that works; what it printed on stdout."""

    def run(*words, code=0):
        done = CliRunner().invoke(app, [str(word) for word in words])
        assert done.exit_code == code, done.output
        return done

    return run


@pytest.fixture(scope="session")
def asked(typed):
    """Type a command with --json; the document."""
    return lambda *words: json.loads(typed(*words, "--json").stdout)


@pytest.fixture(scope="session")
def refused(typed):
    """Type a command that cannot be carried out; its one line, less the beginning."""

    def run(*words):
        done = typed(*words, code=1)
        assert done.stdout == ""
        lines = [line for line in done.stderr.splitlines() if not line.startswith("warning: ")]
        assert len(lines) == 1, done.stderr
        assert lines[0].startswith("error: ")
        return lines[0].removeprefix("error: ")

    return run
