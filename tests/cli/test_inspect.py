"""fewer inspect: what is in a file."""

import numpy as np
import pandas as pd
import pytest

from tests.cli.conftest import QUICK
from tests.data.test_open import D, N, write_h5ad


def test_every_part_of_a_file_is_read(folder, asked, typed, request):
    found = asked("inspect", "train.csv")
    assert (found["rows"], found["features"]) == (379, 13)
    assert set(found["ignored"]) == {"number", "who", "clinic", "diagnosis", "blank"}
    assert "identifier" in found["ignored"]["who"]
    assert "text with 2 distinct values: a possible --target" in found["ignored"]["diagnosis"]
    assert found["ignored"]["number"] == "row number"
    assert found["duplicates"] == [["same_radius", "mean_radius"]]
    assert list(found["missing"]) == ["mean_texture"]
    assert found["missing"]["mean_texture"] == pytest.approx(0.1, abs=0.02)
    assert found["memory"] == 379 * 13 * 4
    few, more, most = (found["sizes"][level]["features"] for level in ("0.8", "0.9", "0.95"))
    assert 1 < few <= more <= most < 13
    assert found["suggested_k"] == more
    assert found["protocol"] == "5 folds, seed 0, each feature standardised"
    assert 0.85 < found["explained_variance"] < 1
    assert 0 < found["standard_error"] < 0.1
    request.getfixturevalue("no_panel_inspected")
    shown = typed("inspect", "train.csv").stdout
    assert f"fewer select train.csv -k {more} --out panel/" in shown
    assert "who" in shown
    assert "same_radius = mean_radius" in shown


@pytest.mark.usefixtures("no_panel_inspected")
def test_parquet_says_the_same(folder, asked):
    one, other = asked("inspect", "train.csv"), asked("inspect", "train.parquet")
    for part in ("rows", "features", "missing", "duplicates", "kinds"):
        assert one[part] == other[part], part
    assert one["sizes"] == other["sizes"]


@pytest.mark.usefixtures("no_panel_inspected")
def test_pixels_are_in_one_unit(folder, asked):
    rows = np.random.default_rng(0).integers(0, 255, size=(300, 12))
    rows[0], rows[1], rows[:, 3] = 0, 255, 7  # a constant column too
    np.save("pixels.npy", rows)
    found = asked("inspect", "pixels.npy")
    assert found["scale"] == "none"
    assert found["kinds"] == {"integer": 11, "constant": 1}
    assert found["constant"] == [3]
    assert found["values"] == [0, 255]
    assert asked("inspect", "few.csv")["scale"] == "standard"


@pytest.mark.usefixtures("no_panel_inspected")
def test_cells(folder, asked):
    write_h5ad(folder / "cells.h5ad")
    found = asked("inspect", "cells.h5ad")
    assert (found["rows"], found["features"]) == (N, D)
    assert {"obs_names", "kind"} <= set(found["ignored"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nothing.csv"], "there is no file 'nothing.csv'"),
        (["train.docx"], "ends in '.docx'; use .npy"),
        (["train.csv", "--ignore", "age"], "has no columns 'age' to ignore; it has 'number'"),
        (["train.csv", "--memory-limit", "much"], "--memory-limit 'much' is not a size"),
        (["train.csv", "--layer", "counts"], "--layer 'counts' does not apply to text files"),
        (["empty.csv"], "empty.csv is empty"),
        (["latin.csv"], "is not UTF-8 text (byte 0xe9 in line 1); save it as UTF-8"),
    ],
)
def test_unreadable_input_is_a_one_line_error(folder, refused, words, message):
    (folder / "train.docx").write_text("x")
    (folder / "empty.csv").write_text("")
    (folder / "latin.csv").write_bytes("a,é\n1,2\n".encode("latin1"))
    assert message in refused("inspect", *words)


@pytest.mark.usefixtures("no_panel_inspected")
def test_codes_for_missing_values_are_found_and_can_be_named(folder, asked, typed):
    rows = pd.read_csv("train.csv")
    rows.loc[::40, "mean_area"] = 9999
    rows.loc[5, "mean_smoothness"] = np.nan
    rows.to_csv("coded.csv", index=False, na_rep="-")
    done = typed("inspect", "coded.csv")
    assert "for 90% explained variance or slightly more: fewer select will tell" in done.stdout
    assert "mean_area: 9999 occurs 10 times" in done.stdout
    assert "--missing 9999" in done.stdout
    assert "cells with '-'" in done.stderr
    assert "--missing - silences" in done.stderr
    found = asked("inspect", "coded.csv", "--missing", "9999, -")
    assert found["findings"] == []
    assert found["missing"]["mean_area"] == pytest.approx(10 / 379)


def test_a_panel_remembers_what_is_missing(folder, typed, asked):
    rows = pd.read_csv("train.csv").drop(columns=["number", "blank", "same_radius"])
    rows.loc[::40, "mean_area"] = 9999
    rows.to_csv("coded.csv", index=False)
    typed("select", "coded.csv", "-k", 4, "--missing", "9999", "--include", "mean_area", *QUICK)
    assert asked("check", "panel", "coded.csv")["features"][0]["out_of_range"] == 0
    found = asked("impute", "panel", "coded.csv", "--out", "all.csv")
    assert found["missing"] >= 10
    assert pd.read_csv("all.csv")["mean_area"].max() < 4000


def test_few_rows_of_noise_and_of_outliers(tmp_path, typed, monkeypatch):
    monkeypatch.setattr("fewer.assess.inspection.SMALL_CHOICE", 0)  # a path, not a panel
    rng = np.random.default_rng(0)
    np.save(tmp_path / "noise.npy", rng.normal(size=(60, 4)))
    shown = typed("inspect", tmp_path / "noise.npy").stdout
    assert "ignored columns: none" in shown
    assert "missing values: none" in shown
    assert (
        "a k to try: 4, for 95% explained variance or" in shown
    )  # what is independent must all be measured
    rows = rng.normal(size=(60, 2)) @ rng.normal(size=(2, 4))
    rows[7, 1] = 1e4
    np.save(tmp_path / "wrong.npy", rows)
    shown = " ".join(typed("inspect", tmp_path / "wrong.npy").stdout.split())
    assert "without outliers" in shown
    assert "a k to try: 2, for 95% explained variance without outliers or slightly more" in shown
    np.save(tmp_path / "one.npy", rows[:, :1])
    shown = typed("inspect", tmp_path / "one.npy").stdout
    assert "PCA" not in shown
    assert "fewer select" not in shown
