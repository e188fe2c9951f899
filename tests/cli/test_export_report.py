"""fewer export and fewer report."""

import json

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_iris

import fewer
from fewer.cli import panels


def test_a_list_can_be_piped_and_scored(folder, made_panel, typed, asked):
    panel = fewer.Panel.load(made_panel)
    text = typed("export", made_panel, "--to", "list").stdout
    assert text.splitlines() == panel.features
    typed("export", made_panel, "--to", "list", "--out", "list.txt")
    assert (folder / "list.txt").read_text() == text
    assert asked("score", "list.txt", "train.csv")["k"] == 3


def test_a_description(folder, made_panel, typed, asked):
    panel = fewer.Panel.load(made_panel)
    about = json.loads(typed("export", made_panel, "--to", "json").stdout)
    assert about["features"] == panel.features
    assert about["all_features"] == panel.names
    assert about["held_out"] == float(panel.held_out)
    assert sorted(about["order"]) == sorted(panel.features)
    typed("export", made_panel, "--to", "json", "--out", "about.json")
    assert json.loads((folder / "about.json").read_text()) == about
    assert asked("export", made_panel)["k"] == 3


def test_onnx_runs_elsewhere(folder, made_panel, asked, refused):
    onnxruntime = pytest.importorskip("onnxruntime")
    found = asked("export", made_panel, "--to", "onnx", "--out", "p.onnx")
    assert found["largest_difference"] < 1e-3
    panel = fewer.Panel.load(made_panel)
    measured = pd.read_csv("test.csv")[panel.features].to_numpy()
    session = onnxruntime.InferenceSession("p.onnx", providers=["CPUExecutionProvider"])
    (rebuilt,) = session.run(None, {"measured": measured.astype(np.float32)})
    np.testing.assert_allclose(rebuilt, panel.reconstruct(measured), rtol=1e-3, atol=1e-3)
    props = session.get_modelmeta().custom_metadata_map
    assert json.loads(props["measured"]) == panel.features
    assert json.loads(props["reconstructed"]) == panel.names
    line = refused("export", made_panel, "--to", "onnx", "--out", "p.onnx")
    assert line == "p.onnx exists; choose another name, or overwrite it with --force"
    assert (
        refused("export", made_panel, "--to", "onnx", "--out", "a.b")
        == "a.b ends in '.b'; use .onnx"
    )


def test_a_report_with_additional_rows(folder, made_panel, asked, refused):
    found = asked("report", made_panel, "--data", "test.csv", "--title", "Tumours & more")
    assert found["out"] == "panel.html"
    text = (folder / "panel.html").read_text()
    assert found["bytes"] == len(text.encode())
    assert "Tumours &amp; more" in text
    for name in fewer.Panel.load(made_panel).features:
        assert name in text
    assert refused("report", made_panel).startswith("panel.html exists; choose another name")
    assert "--image-shape 28: use height x width" in refused(
        "report", made_panel, "--out", "b.html", "--image-shape", "28"
    )
    assert "there is no panel gone" in refused("report", "gone")
    assert panels._parse_shape("2 × 14") == (2, 14)


def test_a_report_scores_the_target_of_additional_rows(folder, asked):
    flowers = load_iris(as_frame=True)
    table = flowers.data.assign(species=np.array(["a", "b", "c"])[flowers.target])
    table[::2].to_csv("old.csv", index=False)
    table[1::2].to_csv("new.csv", index=False)
    asked("select", "old.csv", "-k", "2", "--target", "species", "--out", "p")
    accuracy = asked("score", "p", "new.csv")["target"]["accuracy"]
    asked("report", "p", "--data", "new.csv", "--out", "new.html")
    text = (folder / "new.html").read_text()
    assert f"<dt>accuracy of species, additional rows</dt><dd>{accuracy:.3f}</dd>" in text
    assert "explained variance, additional rows, features standardised" in text
    panel = fewer.Panel.load("p")
    panel.report("table.html", table[1::2])
    assert (folder / "table.html").read_text() == text
    truth = table.species[1::2].to_list()
    panel.report("given.html", flowers.data[1::2], truth=truth)
    assert (folder / "given.html").read_text() == text
    panel.report("without.html", table[1::2].assign(species=None))
    assert "accuracy of species, additional rows" not in (folder / "without.html").read_text()


def test_substitutes_of_each_feature(folder, made_panel, typed, asked):
    panel = fewer.Panel.load(made_panel)
    found = asked("substitutes", made_panel, "--out", "s.csv")["features"]
    assert {row["feature"] for row in found} == set(panel.features)
    best = found[0]["substitutes"]
    assert len(best) == 3
    assert best[0]["loss"] <= best[1]["loss"] <= best[2]["loss"]
    assert found[0]["lost_without"] >= best[0]["loss"]
    table = pd.read_csv("s.csv")
    assert table["substitute_1"].tolist() == [row["substitutes"][0]["feature"] for row in found]
    assert best[0]["feature"] in typed("substitutes", made_panel).stdout
