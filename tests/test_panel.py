"""A panel as an object: its evidence is computed when somebody asks, and it can be copied."""

import copy
import pickle

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer, load_iris

import fewer

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
