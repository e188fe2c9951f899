"""Results as data frames, in notebooks and as plots."""

import pandas as pd
import pytest
from matplotlib import pyplot
from sklearn.datasets import load_breast_cancer

import fewer
from fewer.assess import compare, curve


@pytest.fixture(scope="module")
def data():
    return load_breast_cancer(as_frame=True).data.iloc[:, :10]


@pytest.fixture(scope="module")
def results(data):
    panel = fewer.select(data[::2], 3, strategies=["search"], validation=0.3, random_state=0)
    return {
        "curve": curve(data, [1, 3, 5], random_state=0),
        "comparison": compare(data, 3, methods=["greedy", "random"], random_state=0),
        "leaderboard": panel.leaderboard,
        "check": panel.check(data[1::2]),
    }


@pytest.fixture(autouse=True)
def closed():
    yield
    pyplot.close("all")


@pytest.mark.parametrize("name", ["curve", "comparison", "leaderboard", "check"])
def test_every_result_is_a_frame_a_table_and_a_plot(results, name):
    found = results[name]
    frame = found.to_frame()
    assert isinstance(frame, pd.DataFrame)
    assert len(frame) == len(found.table().rows)
    page = found._repr_html_()
    assert page.count("<tr>") == len(frame) + 1
    axes = found.plot()
    assert axes.get_xlabel()
    own = pyplot.subplots()[1]
    assert found.plot(own) is own


def test_frames_hold_numbers(results):
    frame = results["curve"].to_frame()
    assert frame["k"].tolist() == [1, 3, 5]
    assert frame["explained_variance"].is_monotonic_increasing
    board = results["leaderboard"].to_frame()
    assert board["error"].iloc[0] == results["leaderboard"][0]["error"]
    assert "worst" not in board


def test_names_are_escaped_in_notebooks(data):
    odd = data.rename(columns={"mean radius": "<b>radius</b>"})
    panel = fewer.select(odd, 2, include=["<b>radius</b>"], strategies=["search"], random_state=0)
    page = panel.check(odd)._repr_html_()
    assert "&lt;b&gt;radius" in page
    assert "<b>" not in page


def test_the_reference_is_in_the_background(results):
    axes = results["comparison"].plot()
    names = [text.get_text() for text in axes.get_yticklabels()]
    grey = [bar.get_facecolor() for bar in axes.patches][names.index("PCA (reference)")]
    assert [bar.get_facecolor() for bar in axes.patches].count(grey) == 1
