"""What the page says, before it is a page."""

import copy
import dataclasses

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_breast_cancer, load_digits, load_iris

import fewer
from fewer.errors import InputError
from fewer.report.figures import figures
from fewer.report.summarise import (
    missing_sentence,
    robust_sentence,
    spending_sentence,
    summarise,
)


@pytest.fixture(scope="module")
def frame():
    return load_digits(as_frame=True).data


@pytest.fixture(scope="module")
def panel(frame):
    return fewer.select(frame[:1400], k=8, strategies=["search"], random_state=0)


def test_numbers_are_those_of_the_panel(panel, frame):
    about = summarise(panel)
    assert (about["k"], about["d"]) == (8, 64)
    assert about["explained"] == float(panel.held_out)
    assert [bar["metric"] for bar in about["bars"]] == [
        "features standardised",
        "in the units of the data",
    ]
    assert [row["role"] for row in about["bars"][0]["rows"]] == ["panel", "pca", "greedy", "random"]
    assert {row["name"] for row in about["chosen"]} == set(panel.features)
    gains = [row["gain"] for row in about["chosen"]]
    assert about["chosen"][-1]["cumulative"] == pytest.approx(sum(gains))
    assert about["leaderboard"][0]["ratio"] == 1
    features = about["features"]
    assert (features["r2"][panel.indices] == 1).all()
    constant = np.flatnonzero(frame[:1400].std() == 0)
    assert np.isnan(features["r2"][constant]).all()
    assert features["constant"] >= len(constant)


def test_rows_that_are_given_are_judged(panel, frame):
    test = frame[1400:]
    about = summarise(panel, test)
    score = panel.examine(test).standardised  # as the score of the held-out rows
    known = {"explained": score, "error": score.standard_error, "rows": len(test), "target": []}
    assert about["given"] == known
    rebuilt = panel.reconstruct(test[panel.features])
    varying = test.std() > 0
    back = 1 - ((rebuilt - test) ** 2).mean() / test.var(ddof=0)
    assert score == pytest.approx(back[varying].mean(), abs=1e-6)
    np.testing.assert_allclose(about["features"]["r2"][varying], back[varying], atol=1e-6)
    assert np.isnan(about["features"]["r2"][~varying]).all()
    assert len(about["sample"]["true"]) == 200


def test_how_sure_the_choice_is(panel):
    about, known = summarise(panel), panel.evidence
    assert len(about["stability"]["frequency"]) == panel.k
    assert f"{known.stability['cluster_index']:.2f}" in about["stability"]["sentence"]
    often = sum(share >= 0.75 for share in known.stability["frequency"])
    again = f"{often} of the {panel.k} features {'is' if often == 1 else 'are'} chosen again"
    assert again in about["stability"]["sentence"]
    worse = np.mean(np.array(about["chance"]["random"]) < about["chance"]["panel"])
    assert f"better than {worse:.0%} of 199 random panels" in about["chance"]["sentence"]
    assert worse > 0.8
    assert about["contributions"]["lost"] == known.without.tolist()
    tests = about["contributions"]["p_values"]
    strong = sum(p <= 0.05 for p in tests)
    assert f"{strong} of {panel.k} explain features" in about["contributions"]["sentence"]
    drawn = figures(about)
    for name in ("stability", "chance", "contributions", "coverage", "size"):
        assert drawn[name].startswith("<svg"), name
    assert drawn["stability"].count("<rect") == panel.k
    assert all(name in drawn["stability"] for name in panel.features)
    for cluster, row in zip(
        about["stability"]["clusters"], known.stability["clusters"], strict=True
    ):
        assert cluster["names"] == [panel.names[j] for j in row["features"]]
        assert set(row["features"]) & set(panel.indices)


def test_what_to_expect_of_new_rows(panel, frame):
    about, known = summarise(panel), panel.evidence
    low, high = about["expected"]
    score = panel.estimates["equal"]
    assert low < score.interval(0.9)[0] < score.value < score.interval(0.9)[1] < high
    assert score.units == 1400
    assert (low, high) == score.interval(0.9, new_rows=1400)
    assert np.isnan(known.coverage[panel.indices]).all()
    varying = np.isfinite(known.coverage)
    assert varying.sum() == (frame[:1400].std() > 0).sum() - panel.k
    assert known.coverage[varying].mean() == pytest.approx(0.9, abs=0.015)
    assert f"contain {known.coverage[varying].mean():.1%}" in about["coverage"]["sentence"]


def test_rules_for_a_k_that_was_given(panel):
    about, size = summarise(panel)["size"], panel.evidence.size
    assert size["rule"] == "given"
    assert size["chosen"] == panel.k
    assert about["sentence"].startswith("k = 8: as requested. Rules for k")
    assert f"the elbow is at {size['elbow']}, and " in about["sentence"]
    at = size["k"].index(8)
    assert about["low"][at] < size["explained_variance"][at] < about["high"][at]


def test_image_shapes(panel, frame):
    assert summarise(panel)["image_shape"] == (8, 8)
    assert summarise(panel, image_shape=None)["image_shape"] is None
    assert summarise(panel, image_shape=(4, 16))["image_shape"] == (4, 16)
    plain = fewer.select(frame[:300].to_numpy(), 3, strategies=["search"], random_state=0)
    assert summarise(plain)["image_shape"] is None  # square, yet not an image
    for shape, said in (((5, 5), "25 pixels"), ("square", "use \\(height"), ((8,), "use")):
        with pytest.raises(InputError, match=said):
            summarise(panel, image_shape=shape)


def test_a_target_is_named():
    X, y = load_breast_cancer(return_X_y=True, as_frame=True)
    X["ill"] = np.where(y == 0, "yes", "no")
    panel = fewer.select(X, 3, target="ill", strategies=["search"], random_state=0)
    about = summarise(panel)
    assert about["target"]["name"] == "ill"
    assert about["target"]["kind"] == "accuracy"
    assert about["target"]["score"] == panel.target.held_out > 0.8
    assert "target='ill'" in about["call"]


def test_a_panel_without_evidence_says_what_it_can(panel, frame):
    bare = fewer.Panel(
        panel.reconstructor,
        held_out=panel.held_out,
        leaderboard=panel.leaderboard,
        settings=panel.settings,
    )
    about = summarise(bare)
    assert about["bars"] == []
    assert [row["name"] for row in about["chosen"]] == panel.features
    assert summarise(bare, frame[1400:])["features"]["median"] is not None


def limit(name, total, least=0, most=None, cost=False):
    return {"name": name, "sum": total, "least": least, "most": most, "cost": cost}


def test_sentences_about_what_a_panel_costs():
    said = spending_sentence
    assert said({}) is None
    assert said({"groups": ["a", "a", None]}) == "3 features of 1 group and 1 without"
    assert said({"cost": 3.5, "budget": 5}) == "total cost 3.5 of a budget of 5"
    limits = [limit("hours", 2, most=4, cost=True), limit("T cell", 3, least=2)]
    assert said({"limits": limits}) == "hours: 2 (at most 4); T cell: 3 (at least 2)"
    assert said({"limits": [limit("kin", 1, most=1)]}) == "at most 1 of 'kin'"
    several = [limit("one", 1, most=1), limit("two", 2, most=2)]
    assert said({"limits": several}) == "at most 1, 2 of each of 2 sets"


def test_sentences_about_missing_values():
    rates = {"rate": 0.1, "error": 2.0, "error_dropped": 1.5}
    assert missing_sentence({}) is None
    assert missing_sentence({"expect_missing": rates}).endswith("trained with such inputs dropped.")
    other = missing_sentence({"expect_missing": rates | {"error": 1.0}})
    assert other.endswith("this one was trained on complete inputs.")
    own = {"strategy": "search, robust to 2", "error": 1.1, "worst": 1.5}
    plain = {"strategy": "search", "error": 1.0, "worst": 3.0}
    assert robust_sentence([own], None) is None
    assert robust_sentence([own], 2).endswith("1.5 with the worst 2 features missing.")
    assert "has 1 and 3 (+10.0% and -50.0%)." in robust_sentence([own, plain], 2)
    assert "no panel was found that tolerates" in robust_sentence([plain, own], 1)


def test_a_k_beyond_which_features_still_help(panel):
    known = panel.evidence
    size = known.size | {"noise": None, "rule": "given"}
    changed = copy.copy(panel)
    changed.evidence = dataclasses.replace(known, size=size)
    sentence = summarise(changed)["size"]["sentence"]
    assert f"even after {size['k'][-1]}, additional features explain others beyond" in sentence


def test_the_truth_of_additional_rows_is_checked_like_that_of_a_score():
    table = load_iris(as_frame=True).data.iloc[::2]
    kind = pd.Series(load_iris().target[::2], index=table.index, name="kind")
    panel = fewer.select(table, 2, target=kind, strategies=["search"], random_state=0)
    named = table.assign(target=kind)
    assert panel.examine(table, truth=kind).target == panel.score_target(table, kind)
    assert panel.examine(table.to_numpy(), truth=kind).target == panel.score_target(table, kind)
    assert panel.examine(named, truth="target").target == panel.score_target(named, "target")
    with pytest.raises(InputError, match="in another order"):
        panel.examine(table, truth=kind.sample(frac=1, random_state=0))
