"""Scores of a panel's predictions, and the forms in which the truth may be given."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from sklearn.datasets import load_diabetes

import fewer
from fewer.errors import FewerWarning, InputError

CPU = {"random_state": 0, "device": "cpu", "validation": 0.2, "strategies": ["search"]}


@pytest.fixture(scope="module")
def patients():
    """Patients, what is to be predicted, and a panel that predicts it."""
    data = load_diabetes(as_frame=True)
    X, y = data.data, data.target
    return X, y, fewer.select(X, 3, target=y, **CPU)


@pytest.fixture(scope="module")
def trial():
    """Measurements, times and events, and a panel that predicts them."""
    random = np.random.default_rng(0)
    Z = random.normal(size=(200, 6))
    table = pd.DataFrame(Z, columns=[f"x{j}" for j in range(6)])
    table["t"], table["e"] = random.exponential(np.exp(-Z[:, 0])), np.arange(200) % 3 > 0
    return table, fewer.select(table, 2, target=["t", "e"], target_kind="survival", **CPU)


@pytest.fixture(scope="module")
def pairs():
    """A panel that predicts two numbers, and these."""
    random = np.random.default_rng(1)
    Z = random.normal(size=(100, 6))
    Y = Z[:, :2] + 0.5 * random.normal(size=(100, 2))
    panel = fewer.select(Z, 2, target=Y, **CPU)
    return Z[:, panel.indices], Y, panel


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda y: y.sample(frac=1, random_state=0), "another order; use truth.loc"),
        (
            lambda y: pd.DataFrame({"a": y, "b": y}),
            r"shape \(442, 2\), but .* predicts 1",
        ),
        (lambda y: y.where(y.index != 5, np.inf), "the truth of row 5 is infinite"),
        (lambda y: ["high"] * len(y), "is of text, but the panel predicts a number"),
        (lambda y: y[:7], "has 7 values for 442 rows"),
    ],
)
def test_a_truth_that_does_not_fit_is_refused(patients, wrong, message):
    X, y, panel = patients
    with pytest.raises(InputError, match=message):
        panel.score_target(X, wrong(y))


def test_two_numbers_need_two_columns(pairs):
    measured, Y, panel = pairs
    assert panel.score_target(measured, Y) > 0.5
    for wrong in (Y[:, 0], Y[:, :1], np.c_[Y, Y]):
        with pytest.raises(InputError, match="but the panel predicts 2 per row"):
            panel.score_target(measured, wrong)


def test_a_truth_may_have_gaps_of_any_kind(patients):
    X, y, panel = patients
    left = np.arange(len(y)) > 0
    expected = panel.score_target(X[left], y[left])
    for gap in (None, np.nan, pd.NA):
        assert panel.score_target(X, [gap, *y[1:]]) == pytest.approx(expected)


def test_times_and_events_are_read_as_by_select(trial):
    table, panel = trial
    t, e = table["t"].to_numpy(), table["e"].to_numpy()
    expected = panel.score_target(table, (t, e))
    words, fields = np.where(e, "yes", "no"), [("e", bool), ("t", float)]
    for truth in (
        (t, words),
        {"t": t, "e": e},
        table[["t", "e"]],
        pa.table({"t": t, "e": e}),
        ["t", "e"],
        np.array(list(zip(e, t, strict=True)), dtype=fields),
    ):
        assert panel.score_target(table, truth) == expected


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda t, e: (e, t), "the event of row 0 is .*; give 1 where"),
        (lambda t, e: (-t, e), "the time of row 0 is -.*; give times of at least 0"),
        (lambda t, e: (t, e * 2), "the event of row 1 is 2"),
        (lambda t, e: t, "give the times and the events"),
    ],
)
def test_times_and_events_are_checked_as_by_select(trial, wrong, message):
    table, panel = trial
    with pytest.raises(InputError, match=message):
        panel.score_target(table, wrong(table["t"].to_numpy(), table["e"].to_numpy()))


def test_several_targets_may_be_named(trial):
    table = trial[0].assign(late=trial[0]["t"] > 1)
    panel = fewer.select(table.drop(columns="e"), 2, target=["late", "t"], **CPU)
    expected = panel.score_target(table, {"late": table["late"], "t": table["t"]})
    for truth in (["late", "t"], table[["t", "late"]], pa.table(table[["late", "t"]])):
        assert panel.score_target(table, truth) == expected
    with pytest.raises(InputError, match="give the truth of all by name"):
        panel.score_target(table, table["t"].to_numpy())


def test_a_constant_truth_has_no_r2(patients):
    X, y, panel = patients
    for rows, truth in ((X[:1], y[:1]), (X, y * 0 + 100)):
        with pytest.warns(FewerWarning, match="R² needs at least two different values"):
            assert np.isnan(panel.score_target(rows, truth))


def test_ordered_classes_never_seen_count_with_the_largest_error():
    random = np.random.default_rng(0)
    X = random.normal(size=(200, 6))
    y = np.digitize(X[:, 1], [-1, 0, 1])
    panel = fewer.select(X, 2, target=y, target_kind="ordinal", **CPU)
    measured, wrong = X[:, panel.indices], 3 - y
    before = panel.score_target(measured, wrong)
    truth = wrong.copy()
    truth[:150] = 9
    with pytest.warns(FewerWarning, match="never seen .*; they count with the largest possible"):
        score = panel.score_target(measured, truth)
    predicted, seen = panel.predict(measured)[150:], wrong[150:]
    error = (np.abs(predicted - seen).sum() + 150 * 3) / 200
    best = min(np.abs(seen - level).mean() for level in range(4))
    assert score == pytest.approx(1 - error / best)
    assert score < before < 0
