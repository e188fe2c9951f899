"""fewer select --target-kind, --event and several targets, then predict and score."""

import numpy as np
import pandas as pd
import pytest

import fewer
from tests.cli.conftest import QUICK


@pytest.fixture
def trial(tmp_path, monkeypatch):
    """300 patients with 8 measurements; three of them decide."""
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(0)
    X = random.normal(size=(300, 8))
    risk = X[:, 0] - 0.7 * X[:, 1]
    time, end = random.exponential(10 * np.exp(-risk)), random.exponential(20, size=300)
    table = pd.DataFrame(X, columns=[f"x{j}" for j in range(8)]).assign(
        months=np.minimum(time, end),
        died=(time <= end).astype(int),
        visits=random.poisson(np.exp(0.5 * risk)),
        arm=np.where(X[:, 2] + 0.4 * random.normal(size=300) > 0, "a", "b"),
    )
    table[:200].to_csv("train.csv", index=False)
    table[200:].to_csv("test.csv", index=False)
    return table[200:]


def test_times_until_an_event(trial, asked, refused, typed):
    words = ["--target", "months", "--event", "died", "--ignore", "visits,arm", *QUICK]
    words += ["--validation", "0.2"]
    found = asked("select", "train.csv", "-k", "2", *words)
    assert found["features"] == ["x0", "x1"]
    assert found["target"]["metric"] == "concordance"
    scored = asked("score", "panel", "test.csv")["target"]
    assert scored["concordance"] > 0.7
    shown = typed("predict", "panel", "test.csv").stdout
    assert "a higher log hazard means an earlier event" in shown
    table = pd.read_csv("predictions.csv")
    assert table["months"].tolist() == pytest.approx(trial["months"].tolist())
    assert np.corrcoef(table["log hazard of months"], trial["x0"] - 0.7 * trial["x1"])[0, 1] > 0.9
    assert "of kind 'survival'" in refused(
        "predict", "panel", "test.csv", "--force", "--interval", ".9"
    )


@pytest.mark.parametrize("words", [(True, False), ("yes", "no")])
def test_events_may_be_words(trial, asked, refused, words):
    for name in ("train.csv", "test.csv"):
        table = pd.read_csv(name)
        table.assign(died=np.where(table["died"] == 1, *words)).to_csv(name, index=False)
    options = ["--target", "months", "--event", "died", "--ignore", "visits,arm", *QUICK]
    found = asked("select", "train.csv", "-k", "2", *options, "--validation", "0.2")
    assert found["features"] == ["x0", "x1"]
    assert asked("score", "panel", "test.csv")["target"]["concordance"] > 0.7
    options[3] = "arm"
    assert "hold 'a', 'b'; use 1, true or yes for an event" in refused(
        "select", "train.csv", "-k", "2", "--out", "other", *options[:4], *QUICK
    )


def test_several_targets(trial, asked, typed):
    words = ["--target", "visits", "--target", "arm", "--ignore", "months,died", *QUICK]
    words += ["--validation", "0.2"]
    words += ["--target-kind", "visits=count", "--target-weight", "arm=3"]
    found = asked("select", "train.csv", "-k", "3", *words)
    assert found["features"] == ["x0", "x1", "x2"]
    assert [part["kind"] for part in found["target"]["parts"]] == ["count", "class"]
    shown = typed("score", "panel", "test.csv").stdout
    assert "D² of visits\n" in shown
    assert "accuracy of arm\n" in shown
    typed("predict", "panel", "test.csv", "--interval", "0.9", "--probabilities")
    table = pd.read_csv("predictions.csv")
    wanted = ["predicted visits", "predicted arm", "visits lower", "visits upper", "arm set"]
    assert [name for name in wanted if name in table.columns] == wanted
    assert "arm: probability of a" in table.columns


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--event", "died"], "--event requires --target"),
        (["--target", "months", "--target-kind", "survival"], "requires --event COLUMN"),
        (["--target", "visits", "--target-kind", "conut"], "--target-kind conut is not valid"),
        (["--target", "visits", "--target-kind", "arm=class"], "'arm' is not a --target"),
        (["--target", "visits", "--target-weight", "visits=much"], "'much' is not a number"),
        (["--target", "arm", "--event", "died", "--target-kind", "class"], "of kind survival"),
    ],
)
def test_impossible_requests_are_one_line_errors(trial, refused, words, message):
    assert message in refused("select", "train.csv", "-k", "2", *words, *QUICK)


def test_the_remedies_of_warnings_can_be_typed(trial, typed):
    table = trial.assign(age=[17 + 3 * j for j in range(100)], copy=trial["died"])
    table.to_csv("quantity.csv", index=False)
    words = ["select", "quantity.csv", "-k", "1", "--ignore", "arm", "--force", *QUICK]
    warned = typed(*words, "--target", "age").stderr
    assert "use --target-kind number or --target-kind count" in warned
    assert warned.count("warning: ") == 1
    warned = typed(*words, "--target", "died", "--target-kind", "class").stderr
    assert "Leave it out with --exclude copy" in warned


def test_words_for_missing_values_are_no_labels(trial, asked):
    for name in ("train.csv", "test.csv"):
        table = pd.read_csv(name)
        table.loc[::5, ["arm", "months", "died"]] = np.nan
        table.to_csv(name, index=False, na_rep="NA")
        table.fillna({"arm": "off"}).to_csv(f"off-{name}", index=False)
    words = ["--target", "arm", "--ignore", "months,died,visits", *QUICK, "--validation", "0.2"]
    asked("select", "train.csv", "-k", "2", *words)
    asked("select", "off-train.csv", "-k", "2", *words, "--missing", "off", "--out", "off")
    for name in ("panel", "off"):
        assert fewer.Panel.load(name).target.classes.tolist() == ["a", "b"]
    score = asked("score", "panel", "test.csv")["target"]
    assert score == asked("score", "off", "off-test.csv")["target"]
    assert (score["rows"], score["accuracy"] > 0.7) == (80, True)
    words = ["--target", "months", "--event", "died", "--ignore", "visits,arm", *QUICK]
    asked("select", "train.csv", "-k", "2", *words, "--validation", "0.2", "--out", "times")
    assert asked("score", "times", "test.csv")["target"]["concordance"] > 0.7


def test_a_target_with_a_decimal_comma_is_a_number(trial, asked):
    for name in ("train.csv", "test.csv"):
        pd.read_csv(name).to_csv(name, index=False, sep=";", decimal=",")
    words = ["--target", "months", "--ignore", "died,visits,arm", *QUICK, "--validation", "0.2"]
    assert asked("select", "train.csv", "-k", "2", *words)["target"]["kind"] == "number"
    assert asked("score", "panel", "test.csv")["target"]["r2"] < 1


def test_a_single_row_has_no_r2(trial, asked, typed):
    words = ["--target", "months", "--ignore", "died,visits,arm", *QUICK, "--validation", "0.2"]
    asked("select", "train.csv", "-k", "2", *words)
    pd.read_csv("test.csv")[:1].to_csv("one.csv", index=False)
    shown = typed("score", "panel", "one.csv").stdout
    assert "no R² of months: it needs at least two different values" in shown
    assert asked("score", "panel", "one.csv")["target"]["r2"] is None


def test_the_kind_of_a_target_for_curves_stability_and_scores(trial, typed, asked, refused):
    for words in (
        ("curve", "train.csv", "--k", "1,2"),
        ("stability", "train.csv", "-k", "2", "--subsamples", "4"),
        ("score", "x0", "train.csv"),
    ):
        given = (*words, "--target", "visits", "--ignore", "arm,months,died")
        as_number = typed(*given, "--target-kind", "number")
        assert "taken as a class" not in as_number.stderr
        assert typed(*given, "--target-kind", "class").stdout != as_number.stdout
        assert "--target-kind requires --target" in refused(*words, "--target-kind", "number")
        assert "--target-kind survival: use auto, class" in refused(
            *given, "--target-kind", "survival"
        )


def test_predictions_that_a_target_has_none_of(trial, asked, refused):
    words = ["--target", "months", "--event", "died", "--ignore", "visits,arm", *QUICK]
    asked("select", "train.csv", "-k", "2", *words)
    said = refused("predict", "panel", "test.csv", "--interval", "0.9")
    assert "of kind 'survival'; leave it out" in said
    said = refused("predict", "panel", "test.csv", "--probabilities")
    assert "--probabilities is for classes" in said
    assert said.endswith("leave it out")
