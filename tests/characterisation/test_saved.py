"""Panels and estimators that fewer 0.1.0 saved still load, and give the outputs they gave."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import fewer

SAVED = Path(__file__).with_name("saved")
PANELS = sorted(path.name for path in (SAVED / "panels").iterdir())
ESTIMATORS = sorted(path.name for path in (SAVED / "estimators").iterdir())


def outputs_of(folder):
    """Rows and outputs that were written with a model."""
    with np.load(folder / "outputs.npz", allow_pickle=False) as stored:
        return {name: stored[name] for name in stored.files}


def assert_same(found, expected):
    """Numbers within 1e-10, relative to the size of their column; anything else exactly."""
    found = np.asarray(found)
    assert found.shape == expected.shape
    if expected.dtype.kind != "f":
        np.testing.assert_array_equal(found, expected)
        return
    np.testing.assert_array_equal(np.isnan(found), np.isnan(expected))
    size = np.nan_to_num(np.abs(expected))
    near = size.max(axis=0) if size.ndim == 2 else size
    wrong = np.nan_to_num(np.abs(found - expected)) > 1e-10 * near + 1e-14 * size.max()
    assert not wrong.any(), (found[wrong], expected[wrong])


def as_given(rows, names):
    """Rows with the names of their columns, if there were any."""
    return rows if names is None or not len(names) else pd.DataFrame(rows, columns=names)


@pytest.mark.parametrize("name", PANELS)
def test_saved_panels_give_the_same_outputs(name):
    panel = fewer.Panel.load(SAVED / "panels" / name / "model")
    known = outputs_of(SAVED / "panels" / name)
    assert panel.names == (known["names"].tolist() if "names" in known else None)
    assert [row["strategy"] for row in panel.leaderboard] == known["strategies"].tolist()
    rows = as_given(known["rows"], panel.names)
    middle, low, high = panel.reconstruct(known["measured"], interval=0.9)
    found = {
        "indices": panel.indices,
        "held_out": float(panel.held_out),
        "held_out_errors": panel.held_out.errors,
        "errors": [row["error"] for row in panel.leaderboard],
        "order": panel.evidence.order,
        "gains": panel.evidence.gains,
        "transform": panel.transform(rows),
        "reconstruct": middle,
        "lower": low,
        "upper": high,
        "score": float(panel.score(rows)),
        "score_errors": panel.score(rows).errors,
    }
    if "predict" in known:
        found["predict"] = panel.predict(known["measured"])
        found["target_held_out"] = panel.target.held_out
    if "classes" in known:
        found["classes"] = panel.target.classes
        found["predict_proba"] = panel.predict_proba(known["measured"])
    for output, value in found.items():
        assert_same(value, known[output])
    assert_same(panel.reconstruct(known["measured"]), known["reconstruct"])
    assert known.keys() - found.keys() <= {"names", "strategies", "rows", "measured"}


@pytest.mark.parametrize("name", ESTIMATORS)
def test_saved_estimators_give_the_same_outputs(name):
    kind = getattr(fewer, name.partition("-")[0])
    model = kind.load(SAVED / "estimators" / name / "model")
    known = outputs_of(SAVED / "estimators" / name)
    rows = as_given(known["rows"], known["names"])
    measured = model.transform(rows)
    found = {
        "names": getattr(model, "feature_names_in_", np.array([], dtype=str)),
        "columns": model.columns_,
        "groups": model.feature_groups(2),
        "transform": measured,
        "inverse_transform": model.inverse_transform(measured),
        "reconstruct": model.reconstruct(rows),
    }
    for method in ("predict", "predict_proba"):
        if method in known:
            found[method] = getattr(model, method)(rows)
            found[f"{method}_measured"] = getattr(model, f"{method}_measured")(measured)
    for output, value in found.items():
        assert_same(value, known[output])
    assert known.keys() - found.keys() == {"rows"}


@pytest.mark.parametrize("name", PANELS)
def test_saved_panels_have_a_report(name, tmp_path):
    panel = fewer.Panel.load(SAVED / "panels" / name / "model")
    page = panel.report(tmp_path / "panel.html").read_text(encoding="utf-8")
    assert all(str(feature) in page for feature in panel.features)


def test_each_kind_was_saved():
    kinds = {name.partition("-")[0] for name in ESTIMATORS}
    assert kinds == {
        "ColumnSubset",
        "ConcreteAutoencoder",
        "ConcreteClassifier",
        "ConcreteRegressor",
    }
    assert {"linear", "linear-scale-none", "network", "missing-values"} <= set(PANELS)
