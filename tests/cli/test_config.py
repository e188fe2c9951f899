"""Options from a file, and what makes a panel again: each is run, and the panels are compared."""

import shlex
import tomllib
import warnings

import numpy as np
import pandas as pd
import pytest

import fewer
from fewer.cli.select import ONLY_THIS_RUN
from tests.cli.conftest import QUICK


def same(one, other):
    one, other = (
        fewer.Panel.load(part) if not isinstance(part, fewer.Panel) else part
        for part in (one, other)
    )
    assert one.features == other.features
    assert one.names == other.names
    assert float(one.held_out) == pytest.approx(float(other.held_out), rel=1e-9)
    rows = np.array([one.reconstructor.decoder.fill.tolist()] * 2)
    np.testing.assert_allclose(one.reconstruct(rows), other.reconstruct(rows), rtol=1e-9)
    if one.target is not None:
        assert str(one.predict(rows)) == str(other.predict(rows))


CASES = {
    "plain": ["train.csv", "-k", "3"],
    "ignored": [
        *("train.csv", "-k", "3", "--ignore", "mean_area,who", "--ignore", "mean_radius"),
        *("--validation", "0.2"),
    ],
    "target": [
        *("train.csv", "-k", "2", "--target", "diagnosis", "--class-weight", "balanced"),
        *("--validation", "0.2"),
    ],
    "targets": [
        *("train.csv", "-k", "2", "--target", "diagnosis", "--target", "mean_area"),
        *("--target-weight", "diagnosis=2", "--validation", "0.2"),
    ],
    "groups": ["train.csv", "-k", "3", "--row-groups", "clinic", "--scale", "none", "--seed", "4"],
    "constraints": [
        *("train.csv", "-k", "3", "--include", "mean_s*", "--exclude", "same_radius"),
        *("--costs", "costs.csv", "--budget", "30", "--missing", "9999,off", "--validation", "3"),
    ],
    "reach": ["train.parquet", "--reach", "0.8", "--validation", "0.3"],
}


@pytest.fixture(params=CASES)
def made(request, folder, typed):
    table = pd.read_csv("train.csv")
    names = table.select_dtypes("number").columns
    pd.DataFrame({"feature": names, "cost": 10.0}).to_csv("costs.csv", index=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        typed("select", *CASES[request.param], *QUICK, "--out", "first")
    return folder / "first"


def test_what_a_panel_says_makes_it_again(made, typed, folder):
    command = typed("export", made, "--to", "command").stdout.strip()
    words = shlex.split(command)
    assert words[:2] == ["fewer", "select"]
    words[words.index("--out") + 1] = "again"
    typed(*words[1:])
    same(made, folder / "again")

    typed("export", made, "--to", "config", "--out", "fewer.toml")
    config = tomllib.loads((folder / "fewer.toml").read_text())
    assert not set(config) & set(ONLY_THIS_RUN)
    typed("select", "--config", "fewer.toml", "--out", "configured")
    same(made, folder / "configured")

    code = typed("export", made, "--to", "python").stdout
    assert "= ..." not in code
    space = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exec(code, space)
    same(made, space["panel"])
    assert code.strip() in fewer.Panel.load(made).report("r.html").read_text().replace(
        "&#39;", "'"
    ).replace("&#34;", '"')


def test_the_command_line_wins_over_the_file(folder, asked):
    (folder / "c.toml").write_text(
        'data = "train.csv"\nk = 5\nstrategies = ["search"]\ndevice = "cpu"\nignore = "who"\n'
        'row-groups = "clinic"\nheader = true\ndecoder = "linear"\n'
    )
    assert asked("select", "--config", "c.toml", "--out", "a")["k"] == 5
    assert asked("select", "--config", "c.toml", "-k", "2", "--out", "b")["k"] == 2
    found = asked("select", "--config", "c.toml", "test.csv", "--reach", "0.5", "--out", "c")
    assert found["settings"]["rows"] == len(pd.read_csv("test.csv"))
    assert found["settings"]["k_rule"] is not None
    command = fewer.Panel.load("b").evidence.command
    assert "--config" not in command
    assert "--row-groups clinic" in command
    assert "-k 2" in command.replace("--k", "-k")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("strategy = 'search'", "there is no option 'strategy'; did you mean strategies?"),
        ("row_group = 'x'", "there is no option 'row_group'; did you mean row_groups?"),
        ("zzz = 1", "there is no option 'zzz'; valid options are json, "),
        ("config = 'x'", "there is no option 'config'"),
        ("k = ", "is not valid TOML (Invalid value"),
        ("k = {a = 1}", "k is {'a': 1}; it must be text, a number, or a list of these"),
        ("k = true", "k is True; it must be text or a number"),
        ("force = 1", "force is 1; it must be true or false"),
        ("force = [true]", "force is a list; it must be true or false"),
        ("k = 2026-01-01", "text, a number, or a list of these"),
    ],
)
def test_what_a_file_cannot_say(folder, refused, text, message):
    (folder / "c.toml").write_text(text + "\n")
    assert message in refused("select", "train.csv", "-k", "2", "--config", "c.toml")


def test_files_that_cannot_be_read(folder, refused):
    assert "No such file" in refused("select", "train.csv", "--config", "gone.toml")
    (folder / "c.toml").write_bytes(b"\xff\xfe")
    assert "is not valid TOML" in refused("select", "train.csv", "--config", "c.toml")
    (folder / "c.toml").write_bytes(b"#" * (2**20 + 1))
    assert "has more than 1,048,576 bytes" in refused("select", "train.csv", "--config", "c.toml")


def test_names_of_any_kind_survive_a_file(folder, typed):
    table = pd.read_csv("train.csv")[["mean_area", "mean_texture", "mean_radius", "who"]]
    odd = ['a, "b"', "tab\there", "grün", "back\\slash"]
    table.columns = odd
    table.to_csv("odd.csv", index=False)
    typed("select", "odd.csv", "-k", "1", "--include", odd[0], *QUICK, "--out", "p")
    typed("export", "p", "--to", "config", "--out", "fewer.toml")
    assert tomllib.loads((folder / "fewer.toml").read_text())["include"] == [odd[0]]
    typed("select", "--config", "fewer.toml", "--out", "q")
    same("p", "q")


def test_panels_made_in_python(folder, tumours, refused):
    data = tumours.select_dtypes("number").drop(columns=["blank", "number"])
    options = {"strategies": ["search"], "random_state": 3, "device": "cpu", "validation": 0.2}
    panel = fewer.select(data, 2, exclude=["same_radius"], row_groups=tumours["clinic"], **options)
    config = panel.to_config()
    assert config.startswith("# data = ...")
    assert "# row_groups = ..." in config
    found = tomllib.loads(config)
    assert (found["k"], found["seed"], found["exclude"]) == (2, 3, ["same_radius"])
    panel.save("p")
    assert "no command to reproduce this panel" in refused("export", "p", "--to", "command")
    path = str(folder / "train.parquet")
    panel = fewer.select(
        fewer.data.open(path, ignore=["who", "clinic", "diagnosis", "blank"]), 2, **options
    )
    assert "fewer.select(data, k=2" in fewer.reproduce.python_of(panel.evidence)


def test_columns_are_named_in_python_as_on_the_command_line(folder, tumours):
    options = {"strategies": ["search"], "random_state": 0, "device": "cpu"}
    data = tumours.drop(columns=["blank", "who", "diagnosis"])
    named = fewer.select(data, 2, row_groups="clinic", **options)
    given = fewer.select(data.drop(columns="clinic"), 2, row_groups=data["clinic"], **options)
    same(named, given)
    data.to_csv("named.csv", index=False)
    same(fewer.select("named.csv", 2, row_groups="clinic", **options), given)
    with pytest.raises(fewer.errors.InputError, match="row_groups='nope' is not among the 15 col"):
        fewer.select(data, 2, row_groups="nope", **options)


def test_hints_keep_the_options_that_matter(folder, typed):
    reading = ["--ignore", "who,mean area", "--missing", "9999"]
    pd.read_csv("train.csv")[["who", "mean_area", "mean_radius"]].to_csv("some.csv", index=False)
    shown = typed("inspect", "some.csv", "--ignore", "who", "--missing", "9999").stdout
    assert "--ignore who" in shown.splitlines()[-1]
    assert "--missing 9999" in shown.splitlines()[-1]
    reading = ["--ignore", "who,mean_area", "--scale", "none", "--row-groups", "clinic"]
    shown = typed("curve", "train.csv", "--k", "1:3", *reading, "--device", "cpu").stdout
    hint = shlex.split(shown.splitlines()[-1].removeprefix("next:"))
    assert hint[:3] == ["fewer", "select", "train.csv"]
    for at in range(0, len(reading), 2):
        assert hint[hint.index(reading[at]) + 1] == reading[at + 1]
