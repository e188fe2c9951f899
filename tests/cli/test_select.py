"""fewer select: what is chosen, printed and kept."""

import json
import signal
import subprocess
import sys
import time
import warnings

import numpy as np
import pandas as pd
import pytest

import fewer
from tests.cli.conftest import QUICK


def test_the_panel_is_that_of_the_library(folder, asked, tumours):
    found = asked("select", "train.csv", "-k", "3", *QUICK)
    panel = fewer.Panel.load("panel")
    assert found["features"] == panel.features
    table = pd.read_csv("train.csv").drop(columns=["number", "who", "clinic", "diagnosis", "blank"])
    same = fewer.select(table, 3, strategies=["search"], device="cpu", random_state=0)
    assert panel.features == same.features
    assert found["held_out"] == pytest.approx(same.held_out)
    assert sorted(found["order"]) == sorted(found["features"])
    assert found["gains"] == sorted(found["gains"], reverse=True)
    assert 0.5 < sum(found["gains"]) < 1
    assert {row["strategy"] for row in found["leaderboard"]} >= {"greedy", "search"}


def test_the_output_lists_the_features_and_the_next_steps(folder, typed):
    done = typed("select", "train.csv", "-k", "2", "--out", "mine", *QUICK)
    panel = fewer.Panel.load("mine")
    for word in (
        *panel.features,
        "gain",
        "cumulative",
        "strategy",
        "held-out",
        "components (reference)",
    ):
        assert word in done.stdout, word
    assert "next: fewer report mine" in done.stdout
    said = done.stderr
    assert "warning: ignored columns that only number the rows (1): 'number'" in said
    assert "'who', 'clinic', 'diagnosis'; name them in --ignore to silence" in said
    quiet = typed("select", "train.csv", "-k", "2", "--out", "mine", "--force", "-q", *QUICK)
    assert "next:" not in quiet.stdout
    assert panel.features[0] in quiet.stdout


def test_include_exclude_costs_and_groups(folder, asked):
    (folder / "must.txt").write_text("# keep\nmean_symmetry\n\n")
    found = asked(
        "select", "train.csv", "-k", "4", "--include", "must.txt", "--exclude", "mean_conc*",
        "--exclude", "same_radius,mean_area", *QUICK,
    )  # fmt: skip
    assert "mean_symmetry" in found["features"]
    shut = {"mean_concavity", "mean_concave_points", "same_radius", "mean_area"}
    assert not shut & set(found["features"])
    table = pd.read_csv("train.csv")
    names = [name for name in table if name not in ("number", "who", "clinic", "diagnosis")]
    costs = {name: 5 for name in names} | {"mean_area": 1, "mean_texture": 2}
    text = "feature,cost\n" + "".join(f"{name},{cost}\n" for name, cost in costs.items())
    (folder / "costs.csv").write_text(text)
    found = asked("select", "train.csv", "--costs", "costs.csv", "--budget", "3.5",
                  "--out", "cheap", *QUICK)  # fmt: skip
    assert sorted(found["features"]) == ["mean_area", "mean_texture"]
    (folder / "groups.csv").write_text("mean_radius,a\nmean_texture,a\n")
    found = asked("select", "train.csv", "-k", "1", "--groups", "groups.csv", "--include",
                  "mean_radius", "--out", "assay", *QUICK)  # fmt: skip
    assert found["features"] == ["mean_radius", "mean_texture"]


def test_sets_and_several_budgets(folder, asked):
    table = pd.read_csv("train.csv")
    names = [name for name in table if name not in ("number", "who", "clinic", "diagnosis")]
    texture = [name for name in names if "texture" in name]
    (folder / "sets.csv").write_text("".join(f"{name},texture\n" for name in texture))
    lines = [f"{name},{1 + ('area' in name)},{2}\n" for name in names]
    (folder / "several.csv").write_text("feature,money,minutes\n" + "".join(lines))
    found = asked("select", "train.csv", "-k", "4", "--sets", "sets.csv", "--at-least", "texture=2",
                  "--at-most", "3", "--costs", "several.csv", "--budget", "money=5", "--budget",
                  "minutes=8", "--out", "several", "--validation", "0.2", *QUICK)  # fmt: skip
    assert 2 <= len({*texture} & {*found["features"]}) <= 3
    assert sum("area" in name for name in found["features"]) <= 1


def test_for_a_target_with_groups_of_rows(folder, asked):
    found = asked(
        "select", "train.csv", "-k", "3", "--target", "diagnosis", "--row-groups", "clinic", *QUICK
    )
    assert found["target"]["name"] == "diagnosis"
    assert found["target"]["held_out"] > 0.85
    scored = asked("score", "panel", "test.csv")
    assert scored["target"]["accuracy"] > 0.85
    panel = fewer.Panel.load("panel")
    test = pd.read_csv("test.csv")
    right = np.mean(panel.predict(test[panel.features]) == test["diagnosis"])
    assert scored["target"]["accuracy"] == pytest.approx(right)


@pytest.mark.parametrize(("text", "value"), [("3", 3), ("0.25", 0.25), ("time", "time")])
def test_rows_are_held_out_as_in_the_library(folder, asked, text, value):
    found = asked("select", "train.csv", "-k", "2", "--validation", text, *QUICK)
    table = pd.read_csv("train.csv").drop(columns=["number", "who", "clinic", "diagnosis", "blank"])
    same = fewer.select(
        table, 2, validation=value, strategies=["search"], device="cpu", random_state=0
    )
    assert found["held_out"] == pytest.approx(same.held_out)


def test_a_network_and_a_report(folder, asked):
    found = asked("select", "train.csv", "-k", "2", "--decoder", "8", "--validation", "0.2",
                  "--report", "page.html", *QUICK)  # fmt: skip
    assert found["settings"]["decoder"] == [8]
    assert (folder / "page.html").read_text().startswith("<!doctype html>")


def test_a_panel_is_never_replaced_unasked(folder, refused, typed, made_panel):
    typed("select", "train.csv", "-k", "1", "--out", "kept", *QUICK)
    before = (folder / "kept" / "panel.json").read_bytes()
    line = refused("select", "train.csv", "-k", "2", "--out", "kept")
    assert line == (
        "kept contains a panel; choose another folder with --out, or overwrite it with --force"
    )
    assert (folder / "kept" / "panel.json").read_bytes() == before
    typed("select", "train.csv", "-k", "2", "--out", "kept", "--force", *QUICK)
    assert len(json.loads((folder / "kept" / "panel.json").read_text())["features"]) == 2
    (folder / "other").mkdir()
    (folder / "other" / "thesis.txt").write_text("mine")
    line = refused("select", "train.csv", "-k", "2", "--out", "other", "--force")
    assert line == "other is not empty and not a panel; choose another folder"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["-k", "99"], "-k 99 is more than the"),
        (["-k", "2", "--out", "train.csv"], "train.csv is a file, but a panel is a folder"),
        (["-k", "0"], "-k 0"),
        (["-k", "2", "--include", "mean_radios"], "did you mean 'mean_radius'"),
        (["-k", "2", "--include", "zz*"], "--include: no feature matches 'zz*'"),
        (["-k", "2", "--exclude", "gone.txt"], "--exclude gone.txt: no such file"),
        (["-k", "2", "--target", "age"], "no column"),
        (["-k", "2", "--at-most", "1"], "--at-most requires --sets FILE"),
        (["-k", "2", "--budget", "much"], "--budget much: use a number, or NAME=100"),
        (["-k", "2", "--row-groups", "age"], "there is no column 'age'"),
        (["-k", "2", "--decoder", "wide"], "--decoder wide: use auto, linear, or widths"),
        (["-k", "2", "--scale", "big"], "--scale 'big' is not valid; use 'standard' or 'none'"),
        (["-k", "2", "--strategies", "luck"], "use 'auto' or some of search, closed_form"),
        (["-k", "2", "--validation", "most"], "--validation 'most'"),
        (["-k", "2", "--time-limit", "-1"], "--time-limit -1.0 must be a number of seconds"),
        (["--budget", "3"], "costs"),
        (["--budget", "3", "--costs", "gone.csv"], "--costs gone.csv: no such file"),
        (["--budget", "3", "--costs", "bad.csv"], "line 2: the cost of 'mean_area' is 'x'"),
        (["--budget", "3", "--costs", "wide.csv"], "line 1 has 3 values; it must have two"),
        (
            ["--budget", "3", "--costs", "alien.csv"],
            "no feature in --costs alien.csv is in the data",
        ),
        (["-k", "2", "--device", "gpu9"], "gpu9"),
        (["-k", "2", "--report", "."], "is a folder; name a file in it"),
    ],
)
def test_impossible_requests_are_one_line_errors(folder, refused, words, message):
    (folder / "bad.csv").write_text("mean_radius,1\nmean_area,x\n")
    (folder / "wide.csv").write_text("mean_radius,1,2\n")
    (folder / "alien.csv").write_text("age,1\nheight,2\n")
    line = refused("select", "train.csv", *words)
    assert message in line
    assert not (folder / "panel").exists()


def test_neither_k_nor_budget_is_a_usage_error(folder, typed):
    done = typed("select", "train.csv", code=2)
    assert "use -k 50, -k auto" in done.stderr


def test_ctrl_c_leaves_a_checkpoint_to_resume_from(folder, asked, refused):
    """A real process, stopped while it works."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(1000, 8)) @ rng.normal(size=(8, 30)) + rng.normal(size=(1000, 30))
    np.save("rows.npy", rows.astype(np.float32))
    line = ["select", "rows.npy", "-k", "5", "--strategies", "search,gradient"]
    code = "import sys; sys.argv[0] = 'fewer'; from fewer.cli import main; main()"
    work = subprocess.Popen(
        [sys.executable, "-c", code, *line],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    unfinished = folder / "panel.unfinished"
    while not (unfinished / "choices.safetensors").exists() and work.poll() is None:
        time.sleep(0.05)
    work.send_signal(signal.SIGINT)
    out, said = work.communicate(timeout=240)
    assert work.returncode == 130, said
    assert out == ""
    assert "interrupted; no panel was written; rerun the same command with --resume" in said
    assert "Traceback" not in said
    assert not (folder / "panel").exists()
    assert "contains unfinished work; add --resume" in refused(*line)
    found = asked(*line, "--resume")
    assert not unfinished.exists()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", fewer.errors.FewerWarning)
        same = fewer.select(
            np.load("rows.npy"), 5, strategies=["search", "gradient"], random_state=0
        )
    assert found["features"] == same.features


def test_bad_input_leaves_no_checkpoint(folder, refused):
    assert "include" in refused("select", "train.csv", "-k", "1", "--include", "mean radius,x*")
    assert not list(folder.glob("*.unfinished"))


def test_k_is_chosen_by_a_rule(folder, asked, typed, refused):
    found = asked("select", "train.csv", "--reach", "0.8", "--out", "mine", *QUICK)
    assert found["k"] == asked("curve", "train.csv", "--k", "1:9", "--reach", "0.8")["reach"]["k"]
    shown = typed("select", "train.csv", "-k", "auto", "--out", "other", *QUICK).stdout
    assert "the fewest features within one standard error" in shown or "permuted columns" in shown
    both = typed("select", "train.csv", "-k", "2", "--reach", "0.8", code=2)
    assert "use either -k or --reach" in both.stderr
    assert (
        "must be a number of features, or auto"
        in typed("select", "train.csv", "-k", "few", code=2).stderr
    )


def test_noise_replicates_and_weights(asked, refused, tmp_path):
    draw = np.random.default_rng(0)
    truth = draw.normal(size=(120, 3)) @ draw.normal(size=(3, 8))
    noisy = np.array([30.0, 30.0, *[0.01] * 6])
    for name in ("first.csv", "second.csv"):
        rows = truth + draw.normal(size=truth.shape) * np.sqrt(noisy)
        pd.DataFrame(rows, columns=[f"s{j}" for j in range(8)]).to_csv(tmp_path / name, index=False)
    (tmp_path / "noise.csv").write_text("s0,30\ns1,30\ns2,0.01\n")
    (tmp_path / "weights.csv").write_text("s[01],0\ns7,5\n")
    words = ["select", tmp_path / "first.csv", "-k", 3, "--scale", "none", *QUICK]
    words += ["--validation", "0.2"]
    plain = asked(*words, "--out", tmp_path / "a")
    assert {"s0", "s1"} & set(plain["features"])
    for number, more in enumerate(
        [
            ["--noise", tmp_path / "noise.csv"],
            ["--replicates", tmp_path / "second.csv"],
            ["--weights", tmp_path / "weights.csv"],
        ]
    ):
        found = asked(*words, *more, "--out", tmp_path / f"b{number}")
        assert not {"s0", "s1"} & set(found["features"])
    both = ["--noise", tmp_path / "noise.csv", "--replicates", tmp_path / "second.csv"]
    assert "give one of them" in refused(*words, *both, "--out", tmp_path / "c")


def test_what_is_said_of_a_robust_panel_of_many_features(tmp_path, monkeypatch, typed):
    monkeypatch.setattr("fewer.cli.select.MAX_SHOWN", 2)
    rng = np.random.default_rng(0)
    np.save(tmp_path / "x.npy", rng.normal(size=(60, 3)) @ rng.normal(size=(3, 5)))
    words = ["select", tmp_path / "x.npy", "-k", "3", "--robust-to", "1", "--validation", "0.2"]
    shown = " ".join(typed(*words, "--out", tmp_path / "p", *QUICK).stdout.split())
    assert "... and 1 more: `fewer export" in shown
    assert "with the worst feature missing" in shown
