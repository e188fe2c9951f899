"""A panel as an object: its evidence is computed when somebody asks, and it can be copied."""

import copy
import json
import pickle

import numpy as np
import pandas as pd
import pytest
from matplotlib import pyplot
from sklearn.datasets import load_breast_cancer, load_iris

import fewer
from fewer.errors import InputError
from fewer.panel import Leaderboard

X = load_iris(as_frame=True).data


@pytest.fixture(scope="module")
def eager():
    return fewer.select(X, 2, strategies=["search"], validation=0.2, random_state=0)


@pytest.fixture
def lazy(eager):
    """A panel whose evidence is not computed yet, and how often it was."""
    calls = []

    def compute():
        calls.append(1)
        return eager.evidence

    panel = fewer.Panel(
        eager.reconstructor,
        held_out=eager.held_out,
        leaderboard=eager.leaderboard,
        settings=eager.settings,
        evidence=compute,
    )
    return panel, calls


def test_evidence_is_computed_on_first_access(lazy):
    panel, calls = lazy
    panel.reconstruct(X[panel.features])
    panel.score(X)
    repr(panel)
    assert not calls


def test_evidence_is_computed_once(lazy, eager):
    panel, calls = lazy
    assert panel.evidence is eager.evidence
    assert panel.evidence is eager.evidence
    assert len(calls) == 1


@pytest.mark.parametrize("ask", ["save", "report"])
def test_files_hold_the_evidence(lazy, ask, tmp_path):
    panel, calls = lazy
    getattr(panel, ask)(tmp_path / "panel")
    assert len(calls) == 1
    if ask == "save":
        assert fewer.Panel.load(tmp_path / "panel").evidence.order.tolist()


def test_copies_hold_the_evidence(lazy, eager):
    panel, calls = lazy
    for again in (copy.deepcopy(panel), pickle.loads(pickle.dumps(panel))):
        assert again.evidence.explained == eager.evidence.explained
        assert again.features == panel.features
        measured = X[panel.features]
        assert again.reconstruct(measured).equals(panel.reconstruct(measured))
    assert len(calls) == 1


def test_evidence_may_be_replaced(eager):
    panel = copy.copy(eager)
    panel.evidence = panel.evidence.without_rows()
    assert panel.evidence.rows.shape == (0, 4)
    assert eager.evidence.rows.shape != (0, 4)


def test_a_loaded_panel_completes_rows_as_before(tmp_path):
    X = load_breast_cancer().data[:, :12]
    y = X[:, 0] > 14
    panel = fewer.select(X, 4, target=y, strategies=["search"], validation=0.2, random_state=0)
    gappy = X[:20, panel.indices].copy()
    gappy[np.random.default_rng(0).random(gappy.shape) < 0.3] = np.nan
    whole = np.full((20, 12), np.nan)
    whole[:, panel.indices] = gappy
    others = np.setdiff1d(np.arange(12), panel.indices)[:3]
    whole[:, others] = X[:20, others]
    panel.save(tmp_path / "panel")
    again = fewer.Panel.load(tmp_path / "panel")
    for call in (
        lambda one: np.stack(one.reconstruct(gappy, interval=0.8)),
        lambda one: np.stack(one.impute(whole, interval=0.8, use_all=True)),
        lambda one: one.predict_proba(gappy),
    ):
        np.testing.assert_allclose(call(again), call(panel), rtol=1e-12)
    completed = panel.reconstruct(gappy)[:, panel.indices]
    np.testing.assert_allclose(panel.predict_proba(gappy), panel.predict_proba(completed))


def test_candidates_as_text_columns_and_bars():
    board = Leaderboard(
        [
            {"strategy": "search", "error": 0.25, "seconds": 1.5, "worst": 0.5},
            {"strategy": "greedy selection", "error": 0.5, "seconds": 0.25, "worst": None},
        ]
    )
    assert repr(board).splitlines() == [
        "strategy          held-out error  ratio  worst missing  seconds",
        "search                      0.25  1.000            0.5     1.50",
        "greedy selection             0.5  2.000                    0.25",
    ]
    assert list(board.columns()) == ["strategy", "error", "ratio", "worst", "seconds"]
    assert board.columns()["ratio"] == [1.0, 2.0]
    first, second = (bar.get_facecolor() for bar in board.plot().patches)
    assert first != second  # the winner stands out
    pyplot.close("all")


def test_a_panel_says_what_it_is(eager):
    names = [f"f{j}" for j in range(9)]
    rows = pd.DataFrame(np.random.default_rng(0).normal(size=(40, 9)), columns=names)
    panel = fewer.select(rows, 8, strategies=["search"], validation=0.2, random_state=0)
    first = ", ".join(panel.features[:6])
    assert repr(panel).startswith("<Panel of 8 of 9 features, explained variance on held-out rows ")
    assert f": {first}" in repr(panel)
    assert panel.features[6] not in repr(panel)
    assert "'" not in repr(panel)


def test_examples_of_rows_that_were_examined(eager):
    rows = X[:7].copy()
    rows["sepal width (cm)"] = 3.0
    seen = eager.examine(rows)
    assert seen.n == 7
    np.testing.assert_allclose(seen.rows, rows.to_numpy(), rtol=1e-6)  # few enough for all
    np.testing.assert_allclose(
        seen.reconstructed, eager.reconstruct(rows[eager.features]).to_numpy(), rtol=1e-6
    )
    np.testing.assert_allclose(seen.variance, rows.to_numpy().var(axis=0), atol=1e-12)
    assert seen.variance[1] == 0.0
    assert seen.score == eager.score(rows)


def test_kept_columns_have_the_form_of_what_was_given(eager, tmp_path):
    kept = eager.transform(X)
    pd.testing.assert_frame_equal(kept, X[eager.features])
    np.testing.assert_array_equal(eager.transform(X.to_numpy()), kept.to_numpy())
    X.to_csv(tmp_path / "x.csv", index=False)
    from_file = eager.transform(tmp_path / "x.csv")
    assert isinstance(from_file, np.ndarray)
    np.testing.assert_allclose(from_file, kept.to_numpy(), rtol=1e-6)
    unnamed = fewer.select(
        X.to_numpy(), 2, strategies=["search"], validation=0.2, random_state=0, device="cpu"
    )
    assert isinstance(unnamed.transform(X), np.ndarray)


def test_strict_refuses_rows_that_look_wrong(eager, tmp_path):
    good = X[eager.features]
    pd.testing.assert_frame_equal(eager.impute(good, strict=True), eager.impute(good))
    wrong = 1000 * good
    with pytest.raises(InputError, match="fix the rows, or omit strict"):
        eager.impute(wrong, strict=True, out=tmp_path / "out.csv")
    assert not (tmp_path / "out.csv").exists()
    assert eager.impute(wrong, out=tmp_path / "out.csv") == tmp_path / "out.csv"
    found = eager.impute(good, out=tmp_path / "all.csv", interval=0.9)
    assert [path.name for path in found] == ["all.csv", "all.lower.csv", "all.upper.csv"]


def test_a_loaded_panel_predicts_with_the_same_bounds(tmp_path):
    rows, y = X.iloc[:, :3], X.iloc[:, 3]
    options = {"strategies": ["search"], "validation": 0.2, "random_state": 0}
    panel = fewer.select(rows, 2, target=y.to_numpy(), **options)
    panel.save(tmp_path / "p")
    again = fewer.Panel.load(tmp_path / "p")
    measured = rows[panel.features]
    value, low, high = panel.predict(measured, interval=0.8)
    assert ((low <= y) & (y <= high)).mean() > 0.7
    for one, other in zip((value, low, high), again.predict(measured, interval=0.8), strict=True):
        np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(panel.predict(measured), value)
    assert again.held_out == panel.held_out
    for name in ("standard_error", "degrees", "sampling_error", "units"):
        assert getattr(again.held_out, name) == getattr(panel.held_out, name)
    np.testing.assert_array_equal(again.held_out.errors, panel.held_out.errors)
    assert again.estimates == panel.estimates
    # as an earlier version saved it
    meta = json.loads((tmp_path / "p" / "panel.json").read_text())
    del meta["estimates"]
    (tmp_path / "p" / "panel.json").write_text(json.dumps(meta))
    older = fewer.Panel.load(tmp_path / "p")
    assert older.held_out == panel.held_out
    assert older.held_out.standard_error is None
    assert {name: one.value for name, one in older.estimates.items()} == pytest.approx(
        {name: one.value for name, one in panel.estimates.items()}
    )


def test_measured_values_are_kept_unless_their_noise_is_known(tmp_path):
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(80, 2)) @ rng.normal(size=(2, 5)) + 0.3 * rng.normal(size=(80, 5))
    options = {"strategies": ["search"], "validation": 0.2, "random_state": 0}
    panel = fewer.select(rows, 2, noise=np.full(5, 0.3), **options)
    panel.save(tmp_path / "p")
    measured = rows[:, panel.indices]
    for one in (panel, fewer.Panel.load(tmp_path / "p")):
        assert np.abs(one.reconstruct(measured)[:, panel.indices] - measured).max() > 0.01
        np.testing.assert_array_equal(one.reconstruct(measured), panel.reconstruct(measured))


@pytest.mark.parametrize("best", [0.0, 1e-30])
def test_ratios_to_an_error_of_about_nothing_are_not_numbers_to_read(best):
    rows = [("search", best), ("greedy", best), ("gradient", 0.3)]
    board = Leaderboard([{"strategy": s, "error": e, "seconds": 0.1} for s, e in rows])
    ratios = [row[2] for row in board.table().rows]
    assert ratios == ["1.000", "1.000", ">1000"]
