"""decoder="auto": what predicts a target is left to held-out rows."""

import numpy as np
import pandas as pd
import pytest

import fewer
from fewer.report.summarise import summarise

OPTIONS = {"strategies": ["search"], "validation": 0.2, "random_state": 0, "device": "cpu"}
NAMES = [f"x{j}" for j in range(6)]


def table(n, *, curved, seed=0):
    """Six numbers per row, of which two decide the label: by their product, or by their sum."""
    random = np.random.default_rng(seed)
    X = pd.DataFrame(random.normal(size=(n, 6)), columns=NAMES)
    score = 2 * X["x2"] * X["x4"] if curved else X["x2"] + X["x4"]
    noise = 0.3 * random.normal(size=n)
    return X, np.where(score + noise > 0, "yes", "no")


@pytest.fixture(scope="module")
def curved():
    X, y = table(700, curved=True)
    return fewer.select(X, 2, target=y, **OPTIONS)


def test_networks_predict_where_a_linear_map_cannot(curved):
    X, y = table(2000, curved=True, seed=1)
    assert curved.features == ["x2", "x4"]
    accuracy = curved.score_target(X[curved.features], y)
    assert accuracy > 0.85  # a linear map tells nothing
    assert curved.target.held_out == pytest.approx(accuracy, abs=3 * curved.target.standard_error)
    # stored as the one network that they are
    width, *_ = curved.settings["predictor"]
    assert curved.settings["networks"] > 1
    assert curved.target.decoder.net[0].out_features == width
    chances = curved.predict_proba(X[curved.features])
    given = chances[np.arange(len(y)), (y == "yes").astype(int)]
    assert -np.log(given).mean() < 0.35  # calibrated


def test_it_is_saved_exported_and_edited_like_any_other(curved, tmp_path):
    pytest.importorskip("onnx")
    X, y = table(700, curved=True)
    curved.save(tmp_path / "p")
    again = fewer.Panel.load(tmp_path / "p")
    measured = X[curved.features]
    np.testing.assert_array_equal(again.predict_proba(measured), curved.predict_proba(measured))
    assert fewer.export.export_onnx(again, tmp_path / "p.onnx") < 1e-3
    # an edited panel leaves its predictor open, too
    swapped = fewer.attach(again, X, target=y).swap("x2", "x3")
    assert swapped.settings["networks"] > 1
    assert swapped.target.held_out < curved.target.held_out - 0.2


def test_baselines_of_one_network_are_compared_with_one(curved):
    bars = {bar["label"]: bar for bar in summarise(curved)["target"]["bars"]}
    assert bars["This panel, one network"]["score"] > 0.85
    assert bars["Random selection"]["note"].endswith("one network")


@pytest.mark.parametrize(
    ("rows", "options"),
    [
        (700, {}),  # the sum is linear
        (300, {}),  # too few rows
        (700, {"robust_to": 1}),
        (700, {"noise": 0.01}),
    ],
)
def test_it_is_linear_where_that_is_as_good_or_all_there_is(rows, options):
    X, y = table(rows, curved=False)
    panel = fewer.select(X, 2, target=y, **OPTIONS, **options)
    linear = fewer.select(X, 2, target=y, decoder="linear", **OPTIONS, **options)
    assert panel.settings["predictor"] == "linear"
    measured = X[linear.features]
    np.testing.assert_array_equal(panel.predict_proba(measured), linear.predict_proba(measured))
    assert panel.target.held_out == linear.target.held_out


def test_without_a_target_it_is_linear():
    X, _ = table(700, curved=True)
    panel = fewer.select(X, 2, **OPTIONS)
    assert panel.settings["decoder"] == "linear"
    assert panel.reconstructor.decoder.net.weight.shape == (6, 2)


def test_a_single_held_out_group_decides():
    X, y = table(700, curved=True)
    panel = fewer.select(X, 2, target=y, row_groups=np.arange(700) // 175, **OPTIONS)
    assert panel.settings["networks"] > 1


def test_several_folds_of_numbers():
    X, _ = table(650, curved=True)
    y = (X["x2"] * X["x4"]).to_numpy() + 0.1 * np.random.default_rng(1).normal(size=650)
    panel = fewer.select(X, 2, target=y, **OPTIONS | {"validation": 3})
    assert panel.features == ["x2", "x4"]
    assert panel.target.held_out > 0.8
    assert panel.settings["networks"] > 1
    new, _ = table(500, curved=True, seed=1)
    assert panel.score_target(new[panel.features], (new["x2"] * new["x4"]).to_numpy()) > 0.8


def kinds(X, seed=0):
    """Targets of other kinds, each of which depends on a product."""
    random = np.random.default_rng(seed)
    product = (X["x2"] * X["x4"]).to_numpy()
    times = np.exp(-product) * random.exponential(size=len(X))
    levels = pd.Categorical.from_codes(np.digitize(product, [-0.5, 0.5]), list("abc"), ordered=True)
    return {
        "count": (random.poisson(np.exp(product.clip(-2, 1.5))), "count"),
        "ordinal": (levels, "auto"),
        "survival": (pd.DataFrame({"time": times, "event": np.ones(len(X), bool)}), "survival"),
    }


@pytest.mark.parametrize("kind", ["count", "ordinal", "survival"])
def test_other_kinds_of_target(kind):
    X, _ = table(700, curved=True)
    y, kind = kinds(X)[kind]
    options = OPTIONS | {"validation": 2, "target_kind": kind}
    panel = fewer.select(X, 2, target=y, **options)
    linear = fewer.select(X, 2, target=y, decoder="linear", **options)
    assert panel.features == ["x2", "x4"]
    assert panel.settings["networks"] > 1
    assert panel.target.held_out > linear.target.held_out + 0.05


def test_weights_and_missing_labels():
    X, y = table(900, curved=True)
    weight = np.where(np.arange(900) < 150, 0.0, 1.0)
    y = np.where(np.arange(900) < 150, np.where(y == "yes", "no", "yes"), y)  # wrong, and not used
    known = np.where(np.arange(900) > 850, None, y)
    panel = fewer.select(X, 2, target=known, sample_weight=weight, **OPTIONS)
    assert panel.settings["networks"] > 1
    new, truth = table(1000, curved=True, seed=1)
    assert panel.score_target(new[panel.features], truth) > 0.85


def test_a_linear_choice_is_attached_with_the_same_folds(tmp_path):
    X, y = table(700, curved=False)
    options = OPTIONS | {"validation": "auto"}
    panel = fewer.select(X, 5, target=y, **options)
    assert panel.settings["predictor"] == "linear"
    panel.save(tmp_path / "p")
    again = fewer.attach(fewer.Panel.load(tmp_path / "p"), X, target=y)
    swapped = [one.swap("x2", "x5") if "x5" not in one.features else one for one in (panel, again)]
    assert swapped[0].target.held_out == swapped[1].target.held_out


def test_an_interrupted_run_is_not_resumed_with_another_decoder(tmp_path):
    X, y = table(700, curved=True)
    place = tmp_path / "run"

    def stop(text, _):
        if ": held-out" in text:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fewer.select(X, 2, target=y, checkpoint=place, progress=stop, **OPTIONS)
    with pytest.raises(fewer.errors.InputError, match="decoder"):
        fewer.select(X, 2, target=y, checkpoint=place, decoder=(100,), **OPTIONS)


def test_many_rows_have_larger_networks(monkeypatch):
    monkeypatch.setattr("fewer.selection.compare_predictors.MANY_ROWS", 600)
    X, y = table(700, curved=True)
    panel = fewer.select(X, 2, target=y, **OPTIONS)
    width, narrower = panel.settings["predictor"]
    assert width == 64 * panel.settings["networks"]
    assert narrower == width // 2
    new, truth = table(1000, curved=True, seed=1)
    assert panel.score_target(new[panel.features], truth) > 0.85
