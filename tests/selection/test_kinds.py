"""Panels for counts, ordered classes, times until an event, and several targets at once."""

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import PoissonRegressor

import fewer
from fewer.errors import InputError

CPU = {"random_state": 0, "device": "cpu", "validation": 0.2, "strategies": ["search"]}
N = 400


@pytest.fixture(scope="module")
def data():
    """Three of ten features decide."""
    random = np.random.default_rng(0)
    X = random.normal(size=(N, 10))
    f = X[:, 0] - 0.7 * X[:, 1] + 0.5 * X[:, 2]
    time, end = random.exponential(np.exp(-f)), random.exponential(2, size=N)
    targets = {
        "count": random.poisson(np.exp(0.5 + 0.6 * f)),
        "ordinal": np.digitize(f + 0.4 * random.logistic(size=N), [-1.5, -0.5, 0.5, 1.5]),
        "survival": (np.minimum(time, end), time <= end),
        "several": {
            "kind": np.where(X[:, 0] + 0.3 * random.normal(size=N) > 0, "up", "down"),
            "size": 100 * X[:, 1] + 10 * random.normal(size=N),
            "cells": random.poisson(np.exp(X[:, 2])),
        },
    }
    return X, targets


def part(target, rows):
    if isinstance(target, dict):
        return {name: one[rows] for name, one in target.items()}
    return tuple(one[rows] for one in target) if isinstance(target, tuple) else target[rows]


def kind_of(name):
    return {"cells": "count"} if name == "several" else name


SCORES = {"count": 0.35, "ordinal": 0.45, "survival": 0.72, "several": None}


@pytest.mark.parametrize("decoder", ["linear", (12,)])
@pytest.mark.parametrize("name", SCORES)
def test_what_decides_is_found_and_predicts_new_rows(data, name, decoder, tmp_path):
    X, target = data[0], data[1][name]
    train, test = slice(0, 300), slice(300, N)
    options = {**CPU, "target_kind": kind_of(name), "decoder": decoder}
    panel = fewer.select(X[train], 3, target=part(target, train), **options)
    assert panel.indices.tolist() == [0, 1, 2]
    score = panel.score_target(X[test, :3], part(target, test))
    if name == "several":
        assert score["kind"] > 0.85
        assert score["size"] > 0.95
        assert score["cells"] > 0.4
        assert panel.target.held_out == pytest.approx(
            sum(one.weight * one.held_out for one in panel.target.parts)
        )
    else:
        assert score > SCORES[name]
        assert panel.target.held_out > SCORES[name] - 0.1
    if decoder != "linear":
        return
    panel.save(tmp_path / "p")
    loaded = fewer.Panel.load(tmp_path / "p")
    assert loaded.target.kind.name == name
    assert loaded.score_target(X[test, :3], part(target, test)) == score
    text = loaded.report(tmp_path / "p.html").read_text(encoding="utf-8")
    words = {"count": "Predicted against true", "ordinal": "ranks", "survival": "Kaplan–Meier"}
    for one in (
        [words[name]] if name in words else ["of kind", "of size", "of cells", "weight 0.33"]
    ):
        assert one in text


def test_a_linear_predictor_of_counts_is_poisson_regression(data):
    X, y = data[0], data[1]["count"]
    panel = fewer.select(X, 3, target=y, target_kind="count", **CPU)
    theirs = PoissonRegressor(alpha=1e-6, max_iter=1000).fit(X[:, :3], y)
    np.testing.assert_allclose(panel.predict(X[:, :3]), theirs.predict(X[:, :3]), rtol=0.02)


def test_a_linear_predictor_of_times_is_coxs(data):
    """The gradient of the partial likelihood is about 0 there."""
    X, (time, event) = data[0], data[1]["survival"]
    panel = fewer.select(X, 3, target=(time, event), target_kind="survival", **CPU)
    hazard = panel.predict(X[:, :3])
    weight, gradient = np.exp(hazard), np.zeros(3)
    for i in np.flatnonzero(event):
        risk = time >= time[i]
        gradient += X[i, :3] - weight[risk] @ X[risk][:, :3] / weight[risk].sum()
    assert np.abs(gradient / event.sum()).max() < 0.01
    slopes = np.linalg.lstsq(np.c_[X[:, :3], np.ones(N)], hazard, rcond=None)[0]
    np.testing.assert_allclose(slopes[:3], [1, -0.7, 0.5], atol=0.2)


def test_orders_of_categories_are_kept(data):
    X, y = data[0], data[1]["ordinal"]
    words = np.array(["none", "little", "some", "much", "all"])[y]
    levels = ["none", "little", "some", "much", "all"]
    given = pd.Series(pd.Categorical(words, levels, ordered=True))
    panel = fewer.select(X, 3, target=given, **CPU)
    assert panel.target.kind.name == "ordinal"
    assert panel.target.classes.tolist() == levels
    numbers = fewer.select(X, 3, target=y, target_kind="ordinal", **CPU)
    assert panel.target.held_out == pytest.approx(numbers.target.held_out)
    assert panel.evidence.target["rank_error"] < 1
    gap = np.abs(numbers.predict(X[:, :3]) - y)
    wrong = fewer.select(X, 3, target=y, **CPU)  # as classes without order
    assert gap.mean() <= np.abs(wrong.predict(X[:, :3]) - y).mean() + 0.05


def test_intervals_and_sets_of_several_targets(data):
    X, target = data[0], data[1]["several"]
    options = {**CPU, "validation": 5, "target_kind": {"cells": "count"}}
    panel = fewer.select(X[:300], 3, target=part(target, slice(0, 300)), **options)
    found, lower, upper = panel.predict(X[300:, :3], interval=0.9)
    assert set(found) == set(target)
    assert set(lower) == set(upper) == {"size", "cells"}
    for name in lower:
        truth = target[name][300:]
        assert ((lower[name] <= truth) & (truth <= upper[name])).mean() > 0.8
    assert (lower["cells"] >= 0).all()
    sets = panel.predict_set(X[300:, :3], 0.9)["kind"]
    truth = (target["kind"][300:] == "up").astype(int)
    assert sets[np.arange(100), truth].mean() > 0.8
    assert panel.predict_proba(X[:2, :3])["kind"].shape == (2, 2)
    counts = fewer.select(X, 3, target=data[1]["count"], target_kind="count", **CPU)
    _, low, high = counts.predict(X[:, :3], interval=0.8)
    assert np.corrcoef(high - low, counts.predict(X[:, :3]))[0, 1] > 0.9  # wider for higher rates
    times = fewer.select(X, 3, target=data[1]["survival"], target_kind="survival", **CPU)
    with pytest.raises(InputError, match="of kind 'survival'"):
        times.predict(X[:, :3], interval=0.9)


def test_columns_of_a_table_as_targets(data, tmp_path):
    X, targets = data[0], data[1]
    table = pd.DataFrame(X, columns=[f"x{j}" for j in range(10)])
    table = table.assign(months=targets["survival"][0], died=targets["survival"][1].astype(int))
    table = table.assign(**targets["several"])
    options = {**CPU, "exclude": ["size", "cells"]}
    numbers = table.drop(columns="kind")
    panel = fewer.select(numbers, 3, target=("months", "died"), target_kind="survival", **options)
    assert panel.features == ["x0", "x1", "x2"]
    assert panel.target.name == "months"
    plain = table.drop(columns=["months", "died"])
    names = ["kind", "size", "cells"]
    options = {**CPU, "target_kind": {"cells": "count"}}
    several = fewer.select(plain, 3, target=names, target_weight={"kind": 2}, **options)
    assert several.features == ["x0", "x1", "x2"]
    assert [one.weight for one in several.target.parts] == [0.5, 0.25, 0.25]
    plain.to_csv(tmp_path / "t.csv", index=False)
    again = fewer.select(tmp_path / "t.csv", 3, target=names, target_weight={"kind": 2}, **options)
    assert again.features == several.features
    assert again.target.held_out == pytest.approx(several.target.held_out)


def test_structured_arrays_and_missing_times(data):
    X, (time, event) = data[0], data[1]["survival"]
    records = np.array(list(zip(event, time, strict=True)), dtype=[("e", "?"), ("t", "f8")])
    panel = fewer.select(X, 3, target=records, **CPU)
    assert panel.target.kind.name == "survival"
    assert panel.score_target(X[:, :3], records) > 0.75
    gaps, events = time.copy(), event.astype(float)
    gaps[::4], events[::4] = np.nan, np.nan
    some = fewer.select(X, 3, target=(gaps, events), target_kind="survival", **CPU)
    assert some.indices.tolist() == [0, 1, 2]


TIMES = np.linspace(1, 2, 60)


@pytest.mark.parametrize(
    ("target", "kind", "words"),
    [
        (np.r_[-1, np.arange(59)], "count", "row 0 is -1; counts are whole numbers"),
        (np.r_[np.arange(59), 1.5], "count", "row 59 is 1.5; counts are whole numbers"),
        (np.zeros(60), "count", "one value only"),
        (["a", "b"] * 30, "count", "of text, which is no count"),
        (["a", "b"] * 30, "ordinal", "needs an order"),
        (np.arange(120).reshape(60, 2), "ordinal", "2 columns; kind 'ordinal'"),
        (np.arange(60), "survival", "give the times and the events"),
        ((TIMES, np.zeros(60)), "survival", "no event was observed"),
        ((TIMES, np.full(60, 2)), "survival", "the event of row 0 is 2"),
        ((-TIMES, np.ones(60)), "survival", "the time of row 0 is -1"),
        (
            (np.r_[np.nan, TIMES[1:]], np.ones(60)),
            "survival",
            "row 0 of the target has an event but no",
        ),
        ((TIMES, np.r_[np.nan, np.ones(59)]), "survival", "row 0 of the target has a time but no"),
        ((TIMES, np.ones(59)), "survival", "give a pair each"),
        (np.arange(60), "rank", "target_kind='rank' is not valid"),
        ({"a": np.arange(60.0), "b": np.arange(59.0)}, "auto", "different lengths"),
        ({"a": np.zeros(60), "b": np.arange(60.0)}, "auto", "a: target has one value only"),
        ({"a": np.arange(60.0)}, {"b": "count"}, "'b', which is not a target"),
        ({}, "auto", "an empty mapping"),
        (
            {"a": [*TIMES[:30], *[np.nan] * 30], "b": [*[np.nan] * 30, *TIMES[30:]]},
            "auto",
            "no row has a label of every target",
        ),
        (pd.DataFrame(np.eye(60)[:, :2], columns=["a", "a"]), "auto", "columns of the same name"),
        ({"a": TIMES, "b": TIMES, "c": TIMES}, "survival", "a survival target has 3 parts"),
        ((["late"] * 60, np.ones(60)), "survival", "the times of the target are of text"),
    ],
)
def test_targets_that_make_no_sense(target, kind, words):
    X = np.random.default_rng(0).normal(size=(60, 4))
    with pytest.raises(InputError, match=words):
        fewer.select(X, 2, target=target, target_kind=kind, **CPU)


def test_weights_of_targets_that_make_no_sense():
    X = np.random.default_rng(0).normal(size=(60, 4))
    both = {"a": X[:, 0], "b": X[:, 1]}
    for weight, words in [
        ({"a": 0}, "a.*must be"),
        ([1], "1 values for 2"),
        ({"c": 1}, "'c', which"),
    ]:
        with pytest.raises(InputError, match=words):
            fewer.select(X, 2, target=both, target_weight=weight, **CPU)
    with pytest.raises(InputError, match="for several targets"):
        fewer.select(X, 2, target=X[:, 0], target_weight=[1], **CPU)
    for name, value in (("target_kind", "count"), ("target_weight", [1])):
        with pytest.raises(InputError, match=f"{name} requires target="):
            fewer.select(X, 2, **{name: value}, **CPU)


def test_folds_without_events_are_refused():
    X = np.random.default_rng(0).normal(size=(60, 4))
    event = np.r_[np.zeros(48), np.ones(12)]
    options = {"strategies": ["search"], "validation": "time"}
    with pytest.raises(InputError, match="no event was observed of the"):
        fewer.select(X, 2, target=(TIMES, event), target_kind="survival", **options)
    both = {"{a}": event, "b": X[:, 0]}
    with pytest.raises(InputError, match=r"\{a\}: the labels of the .* are all the same"):
        fewer.select(X, 2, target=both, **options)


def test_tables_of_targets_are_several_numbers_or_several_targets(data):
    X = data[0][:100, :4]
    table = pd.DataFrame({"a": X[:, 0] + X[:, 1], "b": X[:, 0] - X[:, 1]})
    numbers = fewer.select(X, 2, target=table, **CPU)
    assert (numbers.target.kind.name, numbers.target.outputs) == ("number", 2)
    np.testing.assert_allclose(numbers.predict(X[:9, :2]), table[:9], atol=1e-4)
    mixed = table.assign(b=X[:, 1] > 0)
    both = fewer.select(X, 2, target=mixed, target_weight=[1, 3], **CPU).target.parts
    assert [(part.kind.name, part.weight) for part in both] == [("number", 0.25), ("class", 0.75)]


def test_a_time_among_several_targets(data, tmp_path):
    X, (time, event) = data[0][:100, :4], (part[:100] for part in data[1]["survival"])
    both = {"months": (time, event), "size": X[:, 3] + X[:, 1]}
    panel = fewer.select(X, 2, target=both, target_kind={"months": "survival"}, **CPU)
    panel.save(tmp_path / "p")
    again = fewer.Panel.load(tmp_path / "p")
    measured = X[:, again.indices]
    scores = again.score_target(measured, both)
    assert scores["months"] > 0.5
    with pytest.raises(InputError, match="the truth of 'size' is missing; give all targets by"):
        again.score_target(measured, {"months": (time, event)})


@pytest.mark.parametrize(
    ("unit", "message"),
    [
        (1e160, r"values up to 1.1e\+162, too large to be squared; divide it by .* 1e\+162"),
        (1e-160, "differ by less than 1e-75"),
    ],
)
def test_numbers_whose_squares_cannot_be_computed_are_refused(unit, message):
    X = np.random.default_rng(0).normal(size=(110, 6))
    with pytest.raises(InputError, match=message):
        fewer.select(X, 2, target=np.arange(110) * unit, **CPU)
