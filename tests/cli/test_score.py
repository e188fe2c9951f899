"""fewer score: panels and bare lists."""

import json

import numpy as np
import pandas as pd
import pytest

import fewer
from fewer.assess import score_features
from tests.cli.conftest import QUICK


def test_a_panel_scores_as_in_the_library(folder, made_panel, asked, typed):
    panel = fewer.Panel.load(made_panel)
    found = asked("score", made_panel, "test.csv", "--features-out", "errors.csv")
    expected = panel.score(pd.read_csv("test.csv"))
    assert found["explained_variance"] == pytest.approx(float(expected))
    assert found["rows"] == 190
    table = pd.read_csv("errors.csv")
    assert table["feature"].tolist() == panel.names
    np.testing.assert_allclose(table["error"], expected.errors)
    assert table["feature"][table["measured"]].tolist() == panel.features
    typed("score", made_panel, "test.parquet", "--features-out", "errors.json")
    rows = json.loads((folder / "errors.json").read_text())
    assert [row["feature"] for row in rows] == panel.names
    np.testing.assert_allclose([row["error"] for row in rows], expected.errors, rtol=1e-9)
    shown = typed("score", made_panel, "test.csv").stdout
    assert expected.text() in shown
    assert panel.held_out.text() in shown
    rows = pd.read_csv("test.csv")[panel.names]  # some values are missing
    left = (
        expected.errors / rows.var(ddof=0) * rows.notna().sum()
    ).sum() / rows.notna().sum().sum()
    assert found["explained_variance_standardized"] == pytest.approx(1 - left)
    share, error = found["explained_variance_standardized"], found["standard_error_standardized"]
    assert f"{share:.1%} ± {error:.1%}" in shown
    assert "190 rows, 3 of 13" in shown
    assert "fitted on these rows" not in shown
    assert "fitted on these rows" in typed("score", made_panel, "train.csv").stdout


def test_a_list_is_judged_on_rows_it_was_not_fitted_on(folder, asked, typed):
    (folder / "genes.txt").write_text("mean_radius\nmean_smoothness\nmean_symmetry\n")
    found = asked("score", "genes.txt", "train.csv")
    assert (found["k"], found["d"], found["rows"]) == (3, 13, 379)
    assert found["protocol"] == "5 folds, seed 0, each feature standardised"
    card = found["scorecard"]
    assert card["best"] > card["explained_variance"]
    assert 0 <= card["percentile"] <= 1
    done = typed("score", "mean_radius,mean_smoothness,mean_symmetry", "train.csv", "--against",
                 "mean_radius,mean_area")  # fmt: skip
    assert card["exchanges"][0]["into"] in done.stdout
    assert "Against the other panel" in done.stdout
    share = f"{found['explained_variance']:.1%} ± {found['standard_error']:.1%}"
    assert share in done.stdout
    assert found["protocol"] in done.stdout


def test_a_list_is_judged_for_a_target(folder, asked, typed):
    words = ["mean_radius,mean_smoothness", "train.csv", "--target", "diagnosis"]
    card = asked("score", *words, "--exclude", "mean_c*")["scorecard"]
    assert card["target"] == "diagnosis"
    assert card["p_value"] < 0.3
    assert not any(row["into"].startswith("mean_c") for row in card["exchanges"])
    shown = typed("score", *words, "--against", "mean_texture,mean_symmetry").stdout
    assert "explained variance of diagnosis" in " ".join(shown.split())
    assert "Against the other panel" in " ".join(shown.split())
    chosen = ["stability", "train.csv", "-k", "2", "--subsamples", "8", "--target", "diagnosis"]
    found = asked(*chosen, "--exclude", "mean_c*", "--include", "mean_texture")
    assert found["features"][0] == "mean_texture"
    assert not any(name.startswith("mean_c") for name in found["features"])


def test_a_useless_list_scores_about_zero():
    rows = np.random.default_rng(0).normal(size=(400, 20))
    found = score_features(rows, [0], random_state=0)
    assert -0.05 < found.explained_variance < 0.12  # one of twenty features is itself
    few = score_features(rows[:60], list(range(10)), random_state=0)
    # a penalty keeps the noise out
    assert 0.3 < few.explained_variance < 0.55


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["gone.txt", "test.csv"], "gone.txt: no such file or feature"),
        (["mean_radios", "test.csv"], "did you mean 'mean_radius'"),
        ([".", "test.csv"], ". is not a panel folder;"),
        (["PANEL", "train.csv", "--features-out", "a.docx"], "ends in '.docx'; use .csv or .json"),
        (["PANEL", "other.csv"], "X lacks 13 of the 13 features"),
        (["empty.txt", "test.csv"], "the list of features is empty"),
        (["mean_radius", "test.csv", "--row-groups", "age"], "no column 'age'"),
    ],
)
def test_impossible_requests_are_one_line_errors(folder, made_panel, refused, words, message):
    (folder / "other.csv").write_text("height,age\n1,2\n3,5\n2,2\n4,3\n")
    (folder / "empty.txt").write_text("\n# nothing\n")
    assert message in refused("score", *(made_panel if w == "PANEL" else w for w in words))


def test_features_that_explain_nothing_and_targets_of_panels(tmp_path, monkeypatch, typed, asked):
    monkeypatch.chdir(tmp_path)
    table = pd.DataFrame(np.random.default_rng(0).normal(size=(60, 4)), columns=list("abcd"))
    table = table.assign(y=table.a + table.b)
    table.to_csv("noise.csv", index=False)
    shown = " ".join(typed("score", "a,b", "noise.csv", "--ignore", "y").stdout.split())
    assert "explain the other features no better than chance (p > 0.05): 'a', 'b'" in shown
    typed("select", "noise.csv", "-k", "2", "--target", "y", "--out", "p", "--validation",
          "0.2", *QUICK)  # fmt: skip
    card = asked("score", "p", "noise.csv", "--against", "c,d")["scorecard"]
    assert card["target"] == "y"
    assert card["against"]["difference"] > 0
    line = typed("score", "p", "noise.csv", code=0).stdout
    assert "R² of y" in line


def test_errors_are_compared_with_the_signal_where_the_noise_is_known(tmp_path, asked):
    draw = np.random.default_rng(0)
    truth = draw.normal(size=(8000, 2)) @ [
        [1, 1.2, 1, 1, 1.5, 1, 0, 0],
        [1, 0, -1, 0.5, 1, 2, 1, 1.5],
    ]
    X = truth + draw.normal(size=truth.shape) * 1.5
    options = {"noise": np.full(8, 1.5**2), "strategies": ["search"], "scale": "none"}
    panel = fewer.select(X[:4000], 3, **options, validation=0.2, random_state=0)
    panel.save(tmp_path / "panel")
    np.save(tmp_path / "new.npy", X[4000:])
    found = asked("score", tmp_path / "panel", tmp_path / "new.npy")["by_feature"]
    left = panel.reconstruct(X[4000:, panel.indices]) - truth[4000:]
    expected = 1 - (left**2).mean(0) / truth[4000:].var(0)
    np.testing.assert_allclose([row["r2"] for row in found], expected, atol=0.1)
    variance = panel.examine(X[4000:]).variance
    np.testing.assert_allclose(variance, [row["variance"] for row in found])
    np.testing.assert_allclose(variance, truth[4000:].var(0), rtol=0.1, atol=0.1)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["mean_area,mean_radius", "--target", "mean_area"], "the target mean_area is one of"),
        (["mean_area", "--against", "mean_radius,height"], "--against has 'height', which is not"),
        (["mean_area,height"], "the list has 'height', which is not a feature"),
    ],
)
def test_features_that_cannot_be_scored_are_named(folder, refused, words, message):
    assert message in refused("score", words[0], "train.csv", *words[1:])


def test_the_target_of_a_score_is_no_feature_of_the_panel(folder, made_panel, refused):
    feature = fewer.Panel.load(made_panel).features[0]
    message = f"the target {feature} is one of the features of the panel"
    assert message in refused("score", made_panel, "train.csv", "--target", feature)
