"""Small things that users of the command line met, each of them once."""

import json
import os
import shlex
import sqlite3
import stat
from pathlib import Path

import pandas as pd
import pytest
from safetensors import safe_open

from tests.cli.conftest import QUICK


@pytest.fixture
def table(folder):
    rows = pd.read_csv("train.csv").drop(columns=["number", "blank", "who", "same_radius"])
    rows = rows.rename(columns={"clinic": "clinic, of five", "diagnosis": "meta_diagnosis"})
    rows["meta_age"], rows["age"] = range(20, 20 + len(rows)), 5
    rows.to_csv("rows.csv", index=False)
    return rows


def features_of(asked, *ignored):
    words = [word for text in ignored for word in ("--ignore", text)]
    return asked("inspect", "rows.csv", *words)["features"]


def test_ignore_takes_patterns_files_and_names_with_commas(table, asked):
    table.head(4).to_csv("rows.csv", index=False)
    everything = features_of(asked)
    assert features_of(asked, "meta_*") == everything  # one of them numbers the rows, one is text
    assert features_of(asked, "mean_*") == everything - 10
    assert features_of(asked, "clinic, of five", "age") == everything - 1
    with open("names.txt", "w") as file:
        file.write("# not features\nmean_radius\nclinic, of five\n")
    assert features_of(asked, "names.txt", "age") == everything - 2


def test_only_text_is_called_non_numeric(table, typed):
    said = typed("select", "rows.csv", "-k", 2, "--ignore", "mean_radius", *QUICK).stderr
    assert "non-numeric columns were ignored (2): 'clinic, of five', 'meta_diagnosis'" in said
    assert "mean_radius" not in said


def test_a_hint_quotes_names(table, typed, refused):
    rows = table.assign(**{"mean_radius": "x y"})
    rows.loc[:200, "mean_radius"] = "1"
    rows.rename(columns={"mean_radius": "mean radius"}).to_csv("bad rows.csv", index=False)
    line = refused("inspect", "bad rows.csv")
    assert "--missing 'x y'" in line
    assert "--ignore 'mean radius'" in line
    assert "fewer select 'a b.csv'" in _suggested(table, typed)


def _suggested(table, typed):
    table[["mean_radius", "mean_area"]].to_csv("a b.csv", index=False)
    return typed("inspect", "a b.csv").stdout


def test_an_unknown_target_is_no_column(table, refused):
    line = refused("select", "rows.csv", "-k", 2, "--target", "meta_diagnosys")
    assert line.startswith("there is no column 'meta_diagnosys'; did you mean 'meta_diagnosis'")
    assert "there is no column 'Nope'; there are" in refused(
        "select", "rows.csv", "-k", 2, "--row-groups", "Nope"
    )


def test_all_files_of_a_panel_obey_the_umask(table, typed):
    before = os.umask(0o027)
    try:
        typed("select", "rows.csv", "-k", 2, *QUICK)
    finally:
        os.umask(before)
    for name in ("panel.json", "tensors.safetensors"):
        assert stat.S_IMODE(os.stat(f"panel/{name}").st_mode) == 0o640, name


def test_the_score_of_a_panel_has_both_shares(folder, made_panel, asked, typed):
    found = asked("score", made_panel, "test.csv")
    shown = typed("score", made_panel, "test.csv").stdout
    for name in ("explained_variance", "held_out"):
        for key in (name, f"{name}_standardized"):
            assert f"{found[key]:.1%}" in shown
    assert found["explained_variance"] != found["explained_variance_standardized"]
    assert f"{found['median_r2']:.3f}" in shown


@pytest.fixture
def priced(table):
    names = [name for name in table if name.startswith("mean_")]
    with open("costs.csv", "w") as file:
        file.writelines(f"{name},{1 + number % 3}\n" for number, name in enumerate(names))
    with open("groups.csv", "w") as file:
        file.writelines(f"{name},tray {number // 2}\n" for number, name in enumerate(names))
    return ["--ignore", "age,meta_age,texture_error,radius_error"]


def test_costs_alone_say_that_they_change_nothing(priced, typed):
    done = typed("select", "rows.csv", "-k", 3, "--costs", "costs.csv", *priced, *QUICK)
    assert "costs alone do not affect the selection" in done.stderr
    assert "--budget or --cost-weight" in done.stderr
    assert "total cost" in done.stdout


def test_costs_groups_and_totals_are_shown(priced, typed):
    words = ["--costs", "costs.csv", "--groups", "groups.csv", "--budget", 5]
    done = typed("select", "rows.csv", *words, *priced, *QUICK, "--report", "page.html")
    settings = json.loads(Path("panel/panel.json").read_text())["settings"]
    assert settings["cost"] <= 5
    assert set(settings["groups"]) <= {f"tray {number}" for number in range(5)}
    line = f"total cost {settings['cost']:g} of a budget of 5, each group paid once"
    assert line in " ".join(done.stdout.split())
    page = Path("page.html").read_text()
    assert line in page
    assert settings["groups"][0] in done.stdout
    assert f'<td class="group">{settings["groups"][0]}</td>' in page


def test_the_report_names_the_data_and_the_seed(table, priced, typed):
    words = ["-k", 2, "--seed", 7, *priced, "--strategies", "closed_form", "--decoder", "4"]
    table.head(100).to_csv("rows.csv", index=False)
    typed("select", "rows.csv", *words, "--validation", 0.2, "--report", "page.html")
    page = Path("page.html").read_text()
    assert "<title>2 of 10 features of rows.csv</title>" in page
    assert '<th scope="row">seed</th><td>7</td>' in page
    lede = page.split('class="lede"')[1].split("</p>")[0]
    assert lede.count("% ±") == 1  # one share in the headline
    assert "It represents the features that correlate more with it" in " ".join(page.split())
    assert page.index("<details>") < page.index("<h3>Training:") < page.index("</details>")


def test_no_rows_of_the_data_unless_wanted(folder, made_panel, typed):
    typed("report", made_panel, "--out", "with.html")
    typed("report", made_panel, "--out", "without.html", "--no-rows")
    assert "rows of the data, used for the plots" in Path("with.html").read_text()
    page = Path("without.html").read_text()
    assert "rows of the data, used for the plots" not in page
    assert '"rows":null' in page


def test_a_panel_without_rows(priced, typed):
    typed("select", "rows.csv", "-k", 3, *priced, *QUICK, "--no-rows", "--out", "private")
    with safe_open("private/tensors.safetensors", "pt") as tensors:
        shapes = {name: tensors.get_slice(name).get_shape() for name in tensors.keys()}  # noqa: SIM118
    rows = [shape for name, shape in shapes.items() if "rows" in name or "reconstructed" in name]
    assert all(0 in shape for shape in rows)


@pytest.fixture
def spoilt(table):
    """A file with two cells that are not numbers, one with a comma, in awkwardly named columns."""
    rows = table.rename(columns={"mean_area": "it's, say, area"}).astype({"mean_radius": object})
    rows["it's, say, area"] = rows["it's, say, area"].astype(object)
    rows = rows.head(4)
    rows.loc[1, "mean_radius"], rows.loc[3, "it's, say, area"] = "off", "12,5"
    rows.to_csv("rows.csv", index=False)
    return rows


def test_each_remedy_for_bad_cells_works_as_printed(spoilt, refused, asked):
    said = refused("inspect", "rows.csv")
    remedies = {}
    for option in ("--missing", "--ignore"):
        remedies[option] = shlex.split(said[said.index(option) :])[1]
    assert remedies["--missing"] == 'off,"12,5"'
    found = asked("inspect", "rows.csv", "--missing", remedies["--missing"])
    one = pytest.approx(1 / len(spoilt))  # of the rows
    assert [found["missing"][name] for name in ("mean_radius", "it's, say, area")] == [one, one]
    without = asked("inspect", "rows.csv", "--ignore", remedies["--ignore"])
    assert without["features"] == found["features"] - 2


def test_score_of_one_of_several_tables(folder, made_panel, asked):
    rows = pd.read_csv("test.csv")
    with sqlite3.connect("lab.sqlite") as database:
        rows.to_sql("new", database, index=False)
        rows.head(2).to_sql("other", database, index=False)
    found = asked("score", made_panel, "lab.sqlite", "--dataset", "new")
    assert found["rows"] == len(rows)
