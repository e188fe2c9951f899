"""What a panel with a target says about itself."""

import copy
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from sklearn.linear_model import LinearRegression, LogisticRegression

import fewer
from fewer.errors import InputError
from fewer.report.summarise import gains_by, summarise

CPU = {"random_state": 0, "device": "cpu", "validation": 0.2, "strategies": ["search"]}


@pytest.fixture(scope="module")
def table():
    """Two quiet features decide, each with a twin; ten loud ones are unrelated to the class."""
    random = np.random.default_rng(0)
    X = random.normal(size=(400, 14)) @ np.diag([0.5] * 4 + [5.0] * 10)
    X[:, 2:4] = X[:, :2] + 0.2 * random.normal(size=(400, 2))
    X[:, 13] = X[:, 4:13].sum(axis=1)
    return X, np.where(X[:, 0] - X[:, 1] > 0, "up", "down")


@pytest.fixture(scope="module")
def panel(table):
    return fewer.select(table[0], 2, target=table[1], scale="none", **CPU)


def test_substitutes_are_for_the_target(table, panel):
    X, y = table
    known = panel.evidence
    assert panel.indices.tolist() == [0, 1]
    twins = {0: 2, 1: 3}
    for place, j in enumerate(known.order):
        assert known.substitutes[place, 0] == twins[j]
        assert known.losses[place, 0] < 0.1 < known.losses[place, 1]
        swapped = [*np.setdiff1d(panel.indices, j), twins[j]]
        fit = LogisticRegression().fit(X[:300, swapped], y[:300])
        assert fit.score(X[300:, swapped], y[300:]) > 0.8
    assert known.gains.sum() > 0.5
    # what is lost without a feature, and the tests, are those of the target
    assert known.without.min() > 0.2
    assert known.significance["p_value"] < 0.05
    assert known.significance["contributions"] == [0.01, 0.01]
    assert known.size["noise"] == known.size["one_standard_error"] == 2


def test_gains_of_a_number_are_its_explained_variance(table):
    X, _ = table
    y = 3 * X[:, 0] + X[:, 5] + np.random.default_rng(1).normal(size=400)
    known = fewer.select(X, 2, target=y, **CPU).evidence
    fit = LinearRegression().fit(X[:, known.order], y)
    assert known.gains.sum() == pytest.approx(fit.score(X[:, known.order], y), abs=1e-3)


def test_substitutes_within_the_budget(table):
    X, y = table
    costs = np.ones(14)
    costs[2] = 3.5  # the twin of the first
    known = fewer.select(X, None, target=y, scale="none", costs=costs, budget=2, **CPU).evidence
    assert 2 not in known.substitutes
    place = known.order.tolist().index(1)
    assert known.substitutes[place, 0] == 3


def test_networks_see_what_no_linear_map_sees():
    random = np.random.default_rng(0)
    X = random.normal(size=(500, 12))
    X[:, 5:7] = X[:, :2] + 0.3 * random.normal(size=(500, 2))
    y = X[:, 0] * X[:, 1] > 0
    known = fewer.select(X, 2, target=y, decoder=(16,), **CPU).evidence
    assert sorted(known.order) == [0, 1]
    assert known.gains.sum() > 0.5
    assert known.without.min() > 0.5  # by the surrogate of the network
    assert known.significance is None  # linear maps would see nothing
    twins = {0: 5, 1: 6}
    for place, j in enumerate(known.order):
        assert known.substitutes[place, 0] == twins[j]
        assert known.losses[place, 0] < 0.2 < known.losses[place, 1]


def test_a_surrogate_orders_what_a_network_needs(tmp_path):
    """A linear map would put the factors of a product last, behind noise."""
    random = np.random.default_rng(0)
    X = random.normal(size=(400, 8))
    y = 1.5 * X[:, 5] * X[:, 6] + np.sin(2 * X[:, 1])
    options = {"include": [1, 3], "decoder": (16,), "validation": 0.2, "strategies": ["search"]}
    panel = fewer.select(X, 4, target=y, random_state=0, device="cpu", **options)
    known = panel.evidence
    assert panel.features == [1, 3, 5, 6]
    assert known.order[0] == 1
    assert known.order[-1] == 3  # noise
    assert known.gains[0] > 0.1
    assert known.gains[2] > 0.5
    assert abs(known.gains[1]) < 0.05
    text = panel.report(tmp_path / "p.html").read_text(encoding="utf-8")
    assert "on held-out rows, by a surrogate of the network" in " ".join(text.split())
    assert "targets, by the surrogate," in text
    assert "by a linear map" not in text


def test_how_gains_are_measured_is_said(panel):
    assert gains_by(panel) == "on all rows"
    settings = {"decoder": [8], "predictor": "linear"}
    network = SimpleNamespace(target=None, settings=settings)
    assert gains_by(network) == "on all rows, by a linear decoder"
    network = SimpleNamespace(target=panel.target, settings=settings | {"predictor": [8]})
    assert gains_by(network) == "on held-out rows, by a surrogate of the network"


def test_baselines_and_confusion(panel, tmp_path):
    about = panel.evidence.target
    scores = about["scores"]
    assert scores["panel"] == panel.target.held_out > 0.9
    assert scores["all"] > 0.9
    assert 0.4 < scores["constant"] < 0.7
    assert scores["label_free"] < 0.7
    assert scores["random"] < scores["panel"]
    counts = np.array(about["confusion"])
    assert counts.sum() == about["rows"] == 80
    assert np.trace(counts) / 80 == pytest.approx(scores["panel"])
    panel.save(tmp_path / "p")
    loaded = fewer.Panel.load(tmp_path / "p")
    assert loaded.evidence.target == about
    text = loaded.report(tmp_path / "p.html").read_text(encoding="utf-8")
    for words in (
        "Confusion matrix",
        "Chosen without the target",
        ">up</th>",
        "All features",
        "rare ones first",
    ):
        assert words in text


def test_report_shows_the_accuracy_of_each_class_and_rare_ones_first(panel):
    about = summarise(panel)["target"]["parts"][0]["confusion"]
    counts = np.array(about["counts"])
    rows = [one["rows"] for one in about["each"]]
    assert rows == sorted(counts.sum(axis=1))
    for one in about["each"]:
        at = about["classes"].index(one["name"])
        assert one["recall"] == counts[at, at] / counts[at].sum()
        assert one["precision"] == counts[at, at] / counts[:, at].sum()


def test_numbers_are_plotted(table, tmp_path):
    X, _ = table
    Y = np.c_[X[:, 0], 100 * X[:, 5]] + np.random.default_rng(1).normal(size=(400, 2))
    panel = fewer.select(X, 2, target=Y, **CPU)
    about = panel.evidence.target
    assert np.shape(about["true"]) == np.shape(about["predicted"]) == (80, 2)
    assert about["scores"]["constant"] < 0.1
    text = panel.report(tmp_path / "p.html").read_text(encoding="utf-8")
    assert text.count('<circle class="point"') == 160
    assert "true" not in panel.evidence.without_rows().target


def test_many_classes_are_an_image(tmp_path):
    random = np.random.default_rng(0)
    X = random.normal(size=(150, 3))
    panel = fewer.select(X, 1, target=np.arange(150) % 25, target_kind="class", **CPU)
    text = panel.report(tmp_path / "p.html").read_text(encoding="utf-8")
    assert "Confusion matrix of 25 classes" in text


def test_one_panel_for_predicting_and_reconstructing(tmp_path):
    """Feature 0 decides the class, 1 a little; 2 and 3 determine all others but these."""
    random = np.random.default_rng(0)
    x = random.normal(size=(500, 4))
    mixed = x[:, 2:] @ random.normal(size=(2, 8)) + 0.1 * random.normal(size=(500, 8))
    X = np.hstack([x * [1, 1.5, 1, 1], mixed])
    y = x[:, 0] + 0.4 * x[:, 1] + 0.2 * random.normal(size=500) > 0
    found = []
    for share in (0.0, 0.3, 0.98):
        options = {**CPU, "scale": "none", "reconstruct": share}
        panel = fewer.select(X[:400], 3, target=y[:400], **options)
        right = (panel.predict(X[400:, panel.indices]) == y[400:]).mean()
        found.append((right, panel.score(X[400:])))
        if share == 0.3:
            assert 0 in panel.indices
            assert 1 not in panel.indices
            curve = panel.evidence.target["tradeoff"]
            assert curve["reconstruct"][-1] == panel.settings["reconstruct"] == 0.3
            assert curve["score"][0] > curve["score"][-2]
            assert curve["explained"][0] < curve["explained"][-2]
            text = panel.report(tmp_path / "p.html").read_text("utf-8")
            assert "Predicting and reconstructing" in text
    predicts, both, rebuilds = found
    assert predicts[0] > both[0] > 0.8 > rebuilds[0]
    assert rebuilds[1] > both[1] > 0.8 > predicts[1]


def test_network_swaps_can_serve_both():
    random = np.random.default_rng(0)
    X = random.normal(size=(400, 10))
    X[:, 4:] = X[:, [2]] + X[:, [3]] + 0.5 * random.normal(size=(400, 6))
    y = X[:, 0] * X[:, 1] > 0
    panel = fewer.select(X, 3, target=y, decoder=(16,), reconstruct=0.4, **CPU)
    assert {0, 1} <= set(panel.indices)
    assert panel.held_out > 0.3


@pytest.mark.parametrize("share", [1, -0.1, "half"])
def test_shares_that_make_no_sense(table, share):
    with pytest.raises(InputError, match="reconstruct="):
        fewer.select(table[0], 2, target=table[1], reconstruct=share)
    with pytest.raises(InputError, match="weight of the features relative to the target"):
        fewer.select(table[0], 2, reconstruct=0.5)


def test_a_score_below_its_bar_is_explained(panel, tmp_path):
    """Bars and figures are of predictions as they are, the score is corrected for the choice."""
    lower = copy.copy(panel)
    lower.target = replace(panel.target, held_out=panel.evidence.target["scores"]["panel"] - 0.01)
    for one, said in ((panel, summarise(panel)["target"]["corrected"]), (lower, True)):
        text = one.report(tmp_path / "p.html").read_text(encoding="utf-8")
        assert ("corrected for that, the accuracy is" in text) == said
