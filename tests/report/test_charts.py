"""Charts as SVG."""

import re
from xml.etree import ElementTree

import numpy as np
import pytest

from fewer.report.figures import (
    MOST_NAMED,
    Series,
    _apart,
    _training,
    bar_chart,
    histogram,
    line_chart,
)

SVG = "{http://www.w3.org/2000/svg}"


def parsed(chart):
    return ElementTree.fromstring(
        chart.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ')
    )


def points(line):
    return np.array([[float(x) for x in pair.split(",")] for pair in line.get("points").split()])


def test_bars_are_proportional_to_their_values():
    chart = line_chart(
        [Series("a <b>", [1, 2, 5], [0, 1, 4]), Series("b", [1, 5], [4, 0], "pca", dashed=True)],
        x_label="k & more",
        y_label="share",
        title="what it shows",
    )
    svg = parsed(chart)
    first, second = svg.iter(f"{SVG}polyline")
    x, y = points(first).T
    assert np.isclose(np.diff(x)[1] / np.diff(x)[0], 3, atol=0.01)
    assert np.isclose(np.diff(y)[1] / np.diff(y)[0], 3, atol=0.01)
    assert y[0] > y[-1]  # larger is higher
    assert second.get("stroke-dasharray")
    assert svg.find(f"{SVG}title").text == "what it shows"
    assert {"a <b>", "b", "k & more"} <= {text.text for text in svg.iter(f"{SVG}text")}


def test_points_that_are_not_numbers_are_left_out():
    chart = line_chart(
        [Series("a", [1, 2, 3], [1.0, np.nan, 10.0])], x_label="x", y_label="y", title="t", log=True
    )
    assert len(points(next(parsed(chart).iter(f"{SVG}polyline")))) == 2
    nothing = [Series("a", [1], [0.0])]
    assert line_chart(nothing, x_label="x", y_label="y", title="t", log=True) == ""


def test_one_value_does_not_divide_by_zero():
    chart = line_chart([Series("a", [1, 2], [3, 3])], x_label="x", y_label="y", title="t")
    assert "nan" not in chart


def test_bars_count():
    chart = histogram([-5.0, 0.01, 0.5, 0.51, 0.52, 1.0], x_label="x", y_label="y", title="t")
    bars = list(parsed(chart).iter(f"{SVG}rect"))
    counts = [int(re.search(r": (\d+)$", bar.find(f"{SVG}title").text)[1]) for bar in bars]
    assert counts == [1, 3, 1, 1]
    heights = [float(bar.get("height")) for bar in bars]
    assert np.isclose(heights[1] / heights[0], 3, atol=0.01)
    places = [float(bar.get("x")) for bar in bars]
    assert min(places) == places[3]  # below 0, in a bar of its own
    assert bars[3].get("class") == "bar below"
    assert "&lt; 0" in chart
    assert "&lt; 0" not in histogram([0.2, 0.4], x_label="x", y_label="y", title="t")


def test_labels_do_not_overlap_and_stay_inside():
    places = _apart([100.0, 101.0, 99.0, 198.0], top=10, bottom=200)
    assert np.diff(np.sort(places)).min() >= 14 - 1e-9
    assert np.argsort(places).tolist() == [2, 0, 1, 3]
    assert max(places) <= 200


def test_many_bars_have_their_names_under_the_pointer():
    names = [f"f{at}" for at in range(MOST_NAMED + 1)]
    values = [-0.1, *[0.2] * MOST_NAMED]
    svg = parsed(bar_chart(names, values, label="gain", title="gains", faded=[True]))
    bars = list(svg.iter(f"{SVG}rect"))
    assert len(bars) == len(names)
    assert bars[0].find(f"{SVG}title").text == "f0: -10.0 %"
    assert float(bars[0].get("height")) * 2 == pytest.approx(float(bars[1].get("height")), abs=0.2)
    assert [bar.get("opacity") for bar in bars[:2]] == ["0.35", None]
    left = [float(bar.get("x")) for bar in bars]
    assert left == sorted(left)
    assert not any(text.text in names for text in svg.iter(f"{SVG}text"))


def test_curves_of_training_that_was_repeated():
    rows = [{"epoch": at, "loss": 1.0 / at} for at in (1, 2, 1, 2, 3)]
    (found,) = _training({"gradient": rows, "short": rows[:1]})
    assert found["strategy"] == "gradient"
    (line,) = parsed(found["charts"][0]).iter(f"{SVG}polyline")
    x = points(line).T[0]
    np.testing.assert_allclose(np.diff(x), np.diff(x)[0], atol=0.2)  # one attempt after another
