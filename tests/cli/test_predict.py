"""fewer predict: measured features in, predictions of the target out."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import fewer
from tests.cli.conftest import QUICK


@pytest.fixture(scope="module")
def target_panel(tumours, tmp_path_factory, typed):
    folder = tmp_path_factory.mktemp("target")
    tumours[::2].to_csv(folder / "train.csv", index=False)
    words = ["-k", "3", "--target", "diagnosis", "--out", folder / "panel", *QUICK]
    typed("select", folder / "train.csv", *words, "--validation", "0.2")
    return folder / "panel"


@pytest.fixture
def measured(folder, target_panel):
    """Only what the panel needs, and identifiers."""
    panel = fewer.Panel.load(target_panel)
    table = pd.read_csv("test.csv").iloc[:40]
    table[["who", *panel.features[::-1]]].to_csv("measured.csv", index=False)
    return table


def test_predictions_are_those_of_the_library(measured, target_panel, asked, typed):
    panel = fewer.Panel.load(target_panel)
    found = asked("predict", target_panel, "measured.csv")
    assert found == {"out": "predictions.csv", "target": "diagnosis", "rows": 40}
    table = pd.read_csv("predictions.csv")
    assert list(table.columns) == ["who", "predicted diagnosis"]
    assert table["who"].tolist() == measured["who"].tolist()
    expected = panel.predict(measured[panel.features])
    assert table["predicted diagnosis"].tolist() == expected.tolist()
    assert (table["predicted diagnosis"] == measured["diagnosis"].to_numpy()).mean() > 0.8
    done = typed("predict", target_panel, "measured.csv", "--force")
    assert "40 predictions of diagnosis from 3 measured features, written to" in done.stdout


def test_a_row_with_nothing_measured_is_no_secret(measured, target_panel, typed):
    panel = fewer.Panel.load(target_panel)
    measured.loc[[4, 7], panel.features] = np.nan
    measured.loc[9, panel.features[0]] = np.nan
    measured[["who", *panel.features]].to_csv("gaps.csv", index=False)
    shown = typed("predict", target_panel, "gaps.csv", "--probabilities", "--interval", "0.9")
    said = " ".join(shown.stderr.split())
    assert said.count("2 rows have none of the 3 measured features (the first is row 4)") == 1
    table = pd.read_csv("predictions.csv")
    known = [name for name in table if name.startswith("probability of")]
    assert (table.loc[4, known] == table.loc[7, known]).all()
    assert "warning" not in typed("predict", target_panel, "measured.csv", "--force").stderr


def test_probabilities(measured, target_panel, typed, folder):
    typed("predict", target_panel, "measured.csv", "--probabilities", "--out", "p.json")
    rows = json.loads((folder / "p.json").read_text())
    panel = fewer.Panel.load(target_panel)
    expected = panel.predict_proba(measured[panel.features])
    found = [[row[f"probability of {name}"] for name in panel.target.classes] for row in rows]
    np.testing.assert_allclose(found, expected, rtol=1e-9)


def test_impossible_requests_are_one_line_errors(measured, target_panel, made_panel, refused):
    said = refused("predict", made_panel, "test.csv")
    assert "has no target" in said
    assert "fewer.select(..., target=...)" in said
    assert "use .csv or .json" in refused("predict", target_panel, "test.csv", "--out", "a.png")
    assert "there is no panel gone" in refused("predict", "gone", "test.csv")


def test_weights_missing_labels_and_classes_that_the_panel_has_never_seen(
    folder, tumours, asked, typed, refused
):
    part = tumours.drop(columns=["blank", "number"]).assign(weight=np.arange(len(tumours)) % 3)
    part.loc[::7, "diagnosis"] = None
    part[::2].to_csv("some.csv", index=False)
    words = ["-k", "2", "--target", "diagnosis", "--out", "weighted", *QUICK]
    weighted = ["--sample-weight", "weight", "--class-weight", "balanced"]
    found = asked("select", "some.csv", *words, *weighted)
    assert "weight" not in found["all_features"]
    assert found["target"]["held_out"] > 0.8
    error = refused("select", "some.csv", *words, "--force", "--class-weight", "even")
    assert error.startswith("--class-weight 'even': use 'balanced'")
    part.loc[1, "diagnosis"] = "unknown"
    part[1::2].to_csv("others.csv", index=False)
    done = typed("score", "weighted", "others.csv", "--json")
    about = json.loads(done.stdout)["target"]
    assert about["rows"] == part["diagnosis"][1::2].notna().sum()
    assert about["accuracy"] > 0.8
    assert "rows have classes that the panel has never seen ('unknown'; it knows" in done.stderr
    part.assign(diagnosis=None).to_csv("none.csv", index=False)
    assert "diagnosis is missing in every row" in refused("score", "weighted", "none.csv")


def test_sets_of_classes_and_predictions_beside_a_reconstruction(
    measured, target_panel, made_panel, asked, refused
):
    asked("predict", target_panel, "measured.csv", "--interval", "0.9")
    table = pd.read_csv("predictions.csv")
    assert list(table.columns) == ["who", "predicted diagnosis", "diagnosis set"]
    assert table["diagnosis set"].isin(["benign", "malignant", "benign; malignant"]).all()
    found = asked("impute", target_panel, "measured.csv", "--out", "all.csv", "--predict")
    assert found["predictions"] == "all.predictions.csv"
    beside = pd.read_csv("all.predictions.csv")
    assert beside["predicted diagnosis"].tolist() == table["predicted diagnosis"].tolist()
    assert pd.read_csv("all.csv")["who"].tolist() == beside["who"].tolist()
    error = refused("impute", made_panel, "test.csv", "--out", "more.csv", "--predict")
    assert "has no target" in error
    assert not Path("more.csv").exists()


def test_bounds_of_a_number(folder, tumours, asked):
    part = tumours.drop(columns=["blank", "number"])
    part.to_csv("numbers.csv", index=False)
    words = ["-k", "2", "--target", "mean_area", "--exclude", "mean_radius,same_radius"]
    asked("select", "numbers.csv", *words, "--out", "area", *QUICK)
    asked("predict", "area", "numbers.csv", "--interval", "0.8")
    table = pd.read_csv("predictions.csv")
    names = ["predicted mean_area", "mean_area lower", "mean_area upper"]
    value, lower, upper = (table[name] for name in names)
    inside = (lower <= part["mean_area"]) & (part["mean_area"] <= upper)
    assert 0.7 < inside.mean() < 0.9
    assert table["mean_area"].tolist() == part["mean_area"].tolist()  # the truth stays
    assert ((lower < value) & (value < upper)).all()


def test_predictions_keep_the_dialect_of_the_input(measured, target_panel, typed):
    panel = fewer.Panel.load(target_panel)
    table = measured[["who", *panel.features]]
    table.to_csv("semicolons.csv", index=False, sep=";", decimal=",")
    typed("predict", target_panel, "semicolons.csv", "--probabilities")
    found = pd.read_csv("predictions.csv", sep=";", decimal=",")
    np.testing.assert_allclose(
        found["probability of benign"], panel.predict_proba(table[panel.features])[:, 0]
    )


def test_columns_that_are_not_measured_may_hold_anything(measured, target_panel, asked):
    panel = fewer.Panel.load(target_panel)
    table = pd.concat([measured[["who", *panel.features]]] * 30, ignore_index=True)
    table[next(name for name in panel.names if name not in panel.features)] = "not measured"
    table["batch"] = np.where(table.index < 1100, "7", "7b")  # beyond the first rows
    table.to_csv("dirty.csv", index=False)
    asked("predict", target_panel, "dirty.csv")
    found = pd.read_csv("predictions.csv")
    assert list(found.columns) == ["who", "batch", "predicted diagnosis"]
    assert found["batch"].tolist() == table["batch"].tolist()
    assert panel.predict("dirty.csv").tolist() == panel.predict(table).tolist()


def test_what_is_said_of_panels_with_a_target(measured, target_panel, typed, refused):
    panel = fewer.Panel.load(target_panel)
    assert f", accuracy of diagnosis on held-out rows {panel.target.held_out:.3f}" in repr(panel)
    with pytest.raises(fewer.errors.InputError, match=r"^coverage=1.5 must be a number above 0"):
        panel.predict_set(measured[panel.features], coverage=1.5)
    said = refused("predict", target_panel, "measured.csv", "--interval", "1.5")
    assert said.startswith("--interval 1.5 must be")
    panel.evidence = None  # which takes longer than what is tested
    panel.save("bare")
    done = typed("report", "bare")
    assert "fewer predict bare measured.csv" in " ".join(done.stdout.split())
