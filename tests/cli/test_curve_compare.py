"""fewer curve and fewer compare, from files."""

import json

import matplotlib.image
import numpy as np
import pandas as pd
import pytest

import fewer
from fewer.assess import METHODS


def test_a_curve_as_table_picture_and_json(folder, asked, typed):
    found = asked("curve", "train.csv", "--k", "1:9:2", "--out", "curve.png")
    assert found["k"] == [1, 3, 5, 7, 9]
    assert np.diff(found["explained_variance"]).min() > 0
    assert all(
        a <= b + 0.02 for a, b in zip(found["explained_variance"], found["pca"], strict=True)
    )
    first = next(
        k for k, at in zip(found["k"], found["explained_variance"], strict=True) if at >= 0.8
    )
    assert found["smallest_k"]["0.8"] == first
    assert len(found["order"]) == 9
    assert len(set(found["order"])) == 9
    pixels = matplotlib.image.imread("curve.png")
    assert pixels[..., :3].std() > 0.05
    done = typed("curve", "train.csv", "--k", "1:9:2", "--out", "curve.csv")
    assert f"80%: {first} features" in done.stdout
    assert "--exact chooses each k as fewer select does" in done.stdout
    np.testing.assert_allclose(
        pd.read_csv("curve.csv")["explained_variance"], found["explained_variance"]
    )
    typed("curve", "train.csv", "--k", "1:9:2", "--out", "curve.json")
    assert json.loads((folder / "curve.json").read_text())["k"] == found["k"]
    reached = asked("curve", "train.csv", "--k", "1:9", "--reach", "0.75")
    assert reached["reach"]["k"] == next(
        k for k, at in zip(reached["k"], reached["explained_variance"], strict=True) if at >= 0.75
    )
    assert set(reached["rules"]) == {"one_standard_error", "elbow", "noise"}
    exact = asked("curve", "train.csv", "--k", "3,5", "--exact")
    assert exact["explained_variance"][1] > found["explained_variance"][2] - 0.03


def test_a_few_groups_are_no_test_against_chance(folder, asked, typed):
    rows = pd.read_csv("train.csv")
    rows.assign(person=[f"p{at % 5}" for at in range(len(rows))]).to_csv("people.csv", index=False)
    line = ("curve", "people.csv", "--k", "2,4", "--row-groups", "person")
    assert asked(*line)["few_groups"] == 5
    shown = " ".join(typed(*line).stdout.split())
    assert "5 groups of rows are too few to test after how many features" in shown
    assert "permuted columns" not in shown


def test_every_size_is_tried_to_reach_a_fraction(folder, asked):
    whole = asked("curve", "train.csv", "--reach", "0.95")
    assert whole["k"] == list(range(1, len(whole["k"]) + 1))
    at = whole["reach"]["k"] - 1
    assert whole["explained_variance"][at] >= 0.95 > whole["explained_variance"][at - 1]
    held = asked("curve", "train.csv", "--reach", "0.95", "--validation", "0.2")
    assert held["k"][-1] == whole["k"][-1]  # a search for each size, so there are fewer of them
    assert len(held["k"]) <= 10


def test_sizes_are_chosen_by_default(folder, asked):
    found = asked("curve", "train.csv")
    assert found["k"] == [1, 2, 3, 4, 5, 6]


def test_methods_side_by_side(folder, asked, typed, made_panel):
    (folder / "mine.txt").write_text("mean_radius\nmean_area\n")
    found = asked("compare", "train.csv", "-k", "3", "--panel", "mine.txt", "--panel", made_panel,
                  "--device", "cpu", "--out", "table.csv")  # fmt: skip
    score = {row["method"]: row["explained_variance"] for row in found["rows"]}
    assert set(score) == {*METHODS, "mine.txt", str(made_panel), "PCA (reference)"}
    assert score["PCA (reference)"] == max(score.values())
    assert score["search"] > score["random"]
    assert score["select"] > score["random"]
    assert score["search"] > score["mine.txt"]
    sizes = {row["method"]: row["k"] for row in found["rows"]}
    assert sizes["mine.txt"] == 2
    assert pd.read_csv("table.csv")["method"].tolist() == list(
        row["method"] for row in found["rows"]
    )
    assert all(0 <= row["overlap"] <= 1 for row in found["rows"] if row["method"] in METHODS)
    assert all(0 < row["standard_error"] < 0.2 for row in found["rows"])
    own = fewer.Panel.load(made_panel).estimates["equal"]  # it was made from these rows
    assert score[str(made_panel)] == own.value
    assert found["protocol"] == "5 folds, seed 0, each feature standardised"
    shown = typed("compare", "train.csv", "-k", "3", "--methods", "greedy,variance").stdout
    assert "greedy" in shown
    assert "pivoted QR" not in shown
    assert found["protocol"] in shown


def test_how_often_features_are_chosen(folder, asked, typed):
    words = ["stability", "train.csv", "-k", "2", "--subsamples", "8"]
    found = asked(*words, "--out", "s.csv")
    table = pd.read_csv("s.csv")
    assert table["feature"].tolist() == found["features"]
    assert table["frequency"].is_monotonic_decreasing
    assert table["frequency"].sum() == pytest.approx(2)
    assert found["features"][0] in typed(*words).stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["curve", "train.csv", "--k", "10:1"], "--k 10:1: use sizes such as 10:100:10"),
        (["curve", "train.csv", "--k", "many"], "--k many: use sizes"),
        (
            ["curve", "train.csv", "--k", "50:90:10"],
            "there are only 13 features; use smaller sizes",
        ),
        (["curve", "train.csv", "--out", "a.docx"], "ends in '.docx'; use ."),
        (["curve", "train.csv", "--reach", "90"], "--reach 90.0 must be a number above 0 and"),
        (["curve", "gone.csv"], "there is no file 'gone.csv'"),
        (["compare", "train.csv", "-k", "99"], "must be a whole number from 1 to 13, the number"),
        (
            ["compare", "train.csv", "-k", "2", "--methods", "luck"],
            "--methods 'luck' is not valid; use 'select' or",
        ),
        (
            ["compare", "train.csv", "-k", "2", "--panel", "gone.txt"],
            "--panel gone.txt: no such file or feature",
        ),
        (["compare", "train.csv", "-k", "2", "--out", "a.png"], "use .csv or .json"),
    ],
)
def test_impossible_requests_are_one_line_errors(folder, refused, words, message):
    assert message in refused(*words)
