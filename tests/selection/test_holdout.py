"""Which rows are held out: blocks of neighbours, or rows that the user names."""

import json

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


def test_curve_and_compare_hold_out_the_same_rows(rows, tmp_path, monkeypatch):
    from typer.testing import CliRunner

    from fewer.assess import compare, curve
    from fewer.cli import app

    monkeypatch.chdir(tmp_path)
    table = pd.DataFrame(rows, columns=[f"x{j}" for j in range(9)])
    mask = np.arange(240) >= 180
    options = {"validation": mask, "random_state": 0, "device": "cpu"}
    panel = fewer.select(table, 3, **options)
    expected = panel.estimates["equal"]
    assert expected.standard_error > 0
    found = curve(table, [2, 3, 4, 5], **options)
    assert found.explained_variance[1] == expected.value
    assert found.standard_error[1] == expected.standard_error
    assert "25% of the rows held out, rows given" in found.protocol
    chosen = [table.columns[j] for j in panel.fold_panels[0]]
    mine = {"mine": chosen}
    several = compare(table, 3, methods=["select", "greedy", "random"], panels=mine, **options)
    by_method = {row["method"]: row for row in several.rows}
    for name in ("select", "mine"):  # the panel that the training rows choose
        assert by_method[name]["explained_variance"] == pytest.approx(expected.value, rel=1e-9)
        error = by_method[name]["standard_error"]
        assert error == pytest.approx(expected.standard_error, rel=1e-9)
    assert all(row["standard_error"] > 0 for row in several.rows)

    table[:180].to_csv("first.csv", index=False)
    table[180:].to_csv("last.csv", index=False)
    table.assign(part=np.where(mask, "test", "train")).to_csv("all.csv", index=False)
    for words in (["first.csv", "--holdout", "last.csv"], ["all.csv", "--holdout-column", "part"]):
        for command in (["curve", "-k", "3"], ["compare", "-k", "3", "--methods", "select"]):
            result = CliRunner().invoke(app, [*command, *words, "--json"])
            assert result.exit_code == 0, result.output
            about = json.loads(result.stdout)
            if command[0] == "curve":
                value, error = about["explained_variance"][0], about["standard_error"][0]
            else:
                row = next(one for one in about["rows"] if one["method"] == "select")
                value, error = row["explained_variance"], row["standard_error"]
            assert value == pytest.approx(expected.value, rel=1e-9)
            assert error == pytest.approx(expected.standard_error, rel=1e-9)
    shown = CliRunner().invoke(app, ["curve", "-k", "3", "first.csv", "--holdout", "last.csv"])
    assert "standard error over rows" in " ".join(shown.output.split())
    assert "--holdout last.csv" in " ".join(
        shown.output.split()
    )  # in the command that is suggested


def test_curves_of_a_target_and_in_time_order(rows):
    from fewer.assess import compare, curve

    table = pd.DataFrame(rows, columns=[f"x{j}" for j in range(9)])
    target = np.where(np.arange(240) % 7 == 0, np.nan, rows[:, 0] + rows[:, 1])
    found = curve(table, [2, 3], target=target, validation=np.arange(240) >= 180, random_state=0)
    assert found.folds == 1
    assert found.explained_variance[1] > 0.5
    found = curve(table, [2, 3, 4, 5], validation="time", random_state=0)
    assert "5 folds in time order" in found.protocol
    assert "blocks" not in found.protocol
    assert compare(table, 3, methods=["greedy"], validation="blocks").folds == 5
    with pytest.raises(InputError, match="give 240 times True or False"):
        compare(table, 3, validation=np.ones(3, bool))
