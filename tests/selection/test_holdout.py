"""Which rows are held out: blocks of neighbours, or rows that the user names."""

import numpy as np
import pandas as pd
import pytest

import fewer
from fewer.errors import InputError
from fewer.validation import split_rows
from tests.cli.conftest import QUICK

OPTIONS = {"strategies": ["search"], "random_state": 0, "device": "cpu"}


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    return rng.normal(size=(240, 3)) @ rng.normal(size=(3, 9)) + 0.3 * rng.normal(size=(240, 9))


def test_blocks_are_neighbours_and_each_is_held_out_once():
    splits = split_rows(23, "blocks")
    held = [splits.held_rows(at) for at in range(len(splits))]
    assert all((np.diff(part) == 1).all() for part in held)
    np.testing.assert_array_equal(np.concatenate(held), np.arange(23))
    for at, part in enumerate(held):
        np.testing.assert_array_equal(splits.train_rows(at), np.setdiff1d(np.arange(23), part))


def test_named_rows_are_the_ones_that_score(rows):
    mask = np.arange(240) >= 180
    panel = fewer.select(rows, 3, validation=mask, **OPTIONS)
    assert panel.settings["validation"] == "given rows"
    train, held = rows[:180], rows[180:]
    weights = np.linalg.lstsq(np.c_[np.ones(180), train[:, panel.indices]], train, rcond=None)[0]
    wrong = np.c_[np.ones(60), held[:, panel.indices]] @ weights - held
    expected = 1 - (wrong**2).sum() / ((held - held.mean(axis=0)) ** 2).sum()
    assert panel.held_out == pytest.approx(expected, abs=1e-6)
    again = fewer.select(rows, 3, validation=pd.Series(mask), **OPTIONS)
    assert again.held_out == panel.held_out


def test_blocks_make_a_panel(rows):
    assert fewer.select(rows, 3, validation="blocks", **OPTIONS).held_out > 0.5


@pytest.mark.parametrize(
    ("validation", "message"),
    [
        (np.zeros(240, bool), "holds out 0 of 240 rows"),
        (np.ones(240, bool), "holds out 240 of 240 rows"),
        (np.ones(10, bool), r"shape \(10,\); give 240 times True"),
        (np.arange(240), "array of int64"),
        ("week", "'time', 'blocks' or 'auto'"),
    ],
)
def test_what_cannot_be_held_out_is_refused(rows, validation, message):
    with pytest.raises(InputError, match=message):
        fewer.select(rows, 3, validation=validation, **OPTIONS)


def test_k_auto_needs_folds(rows):
    with pytest.raises(InputError, match="needs several folds"):
        fewer.select(rows, "auto", validation=np.arange(240) > 200, **OPTIONS)


def test_files_and_columns_on_the_command_line(rows, tmp_path, monkeypatch):
    from typer.testing import CliRunner

    from fewer.cli import app

    monkeypatch.chdir(tmp_path)
    table = pd.DataFrame(rows, columns=[f"x{j}" for j in range(9)])
    table[:180].to_csv("first.csv", index=False)
    table[180:].to_csv("last.csv", index=False)
    table.assign(part=np.where(np.arange(240) < 180, "train", "test")).to_csv(
        "all.csv", index=False
    )
    table.assign(part=np.arange(240) % 3).to_csv("thirds.csv", index=False)

    def typed(*words):
        return CliRunner().invoke(app, ["select", "-k", "3", *QUICK, *words])

    assert typed("first.csv", "--holdout", "last.csv", "--out", "a").exit_code == 0
    assert typed("all.csv", "--holdout-column", "part", "--out", "b").exit_code == 0
    one, other = (fewer.Panel.load(name) for name in "ab")
    mask = np.arange(240) >= 180
    expected = fewer.select(table, 3, validation=mask, **OPTIONS)
    assert one.held_out == other.held_out == pytest.approx(float(expected.held_out))
    assert one.features == expected.features
    wrong = typed("thirds.csv", "--holdout-column", "part", "--out", "c")
    assert wrong.exit_code == 1
    assert "--holdout-column part holds '2'; use '1'" in wrong.stderr
    both = typed("all.csv", "--holdout-column", "part", "--validation", "time", "--out", "d")
    assert both.exit_code == 2
