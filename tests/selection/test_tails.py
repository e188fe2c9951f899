"""Few rows with most of the error are named, with the share without them."""

import numpy as np
import pytest

import fewer
from fewer.report.summarise import tails_sentence

OPTIONS = {"strategies": ["search"], "validation": 0.4, "random_state": 0, "device": "cpu"}


def rows(n=800):
    rng = np.random.default_rng(0)
    return rng.normal(size=(n, 3)) @ rng.normal(size=(3, 10)) + 0.3 * rng.normal(size=(n, 10))


def test_heavy_tails_are_said_with_the_trimmed_share():
    X = rows()
    X[5::100, 4] += 60
    panel = fewer.select(X, 3, exclude=[4], **OPTIONS)
    tails = panel.settings["tails"]
    assert tails["share"] > 0.3
    assert tails["trimmed"] > tails["explained"] + 0.02
    sentence = tails_sentence(panel.settings)
    assert f"1% of the held-out rows account for {tails['share']:.0%} of the squared" in sentence
    assert f"{tails['trimmed']:.1%}" in sentence


def test_ordinary_rows_are_not_heavy(tmp_path):
    panel = fewer.select(rows(), 3, **OPTIONS)
    tails = panel.settings["tails"]
    assert tails["share"] < 0.1
    assert abs(tails["trimmed"] - tails["explained"]) < 0.02
    assert tails_sentence(panel.settings) is None
    page = panel.report(tmp_path / "page.html").read_text()
    assert f"{100 * tails['trimmed']:.1f}" in page
    assert "Heavy tails" not in page


def test_few_rows_say_nothing_about_tails():
    panel = fewer.select(rows(100), 3, **OPTIONS)
    assert "tails" not in panel.settings
    assert tails_sentence(panel.settings) is None


def test_shares_with_and_without_the_worst_rows_are_in_the_metric_of_the_score(tmp_path):
    X = rows() * np.geomspace(0.01, 100, 10)  # units that matter
    panel = fewer.select(X, 3, scale="none", **OPTIONS)
    tails = panel.settings["tails"]
    assert tails["explained"] == pytest.approx(float(panel.held_out), abs=0.01)
    page = panel.report(tmp_path / "page.html").read_text()
    first, other = page.index("explained variance, held-out rows"), page.index("the same without")
    assert "standardised" not in page[first:other]
    assert f"{100 * tails['trimmed']:.1f}" in page[other : other + 200]
    standard = fewer.select(X, 3, **OPTIONS)
    value = standard.estimates["equal"].value
    assert standard.settings["tails"]["explained"] == pytest.approx(value, abs=0.02)
