"""fewer.select(..., robust_to=m)."""

from itertools import combinations

import numpy as np
import pytest

import fewer
from fewer.errors import InputError

OPTIONS = {"strategies": ["search"], "random_state": 0, "device": "cpu", "validation": 0.3}


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    signal = rng.normal(size=(1400, 5))
    mixed = signal @ rng.normal(size=(5, 20))
    copies = signal[:, :3] + 0.05 * rng.normal(size=(1400, 3))
    X = np.column_stack([signal, copies, mixed]) + 0.1 * rng.normal(size=(1400, 28))
    return X[:700], X[700:]


def worst(panel, X, m):
    whole = X[:, panel.indices]
    errors = []
    for gone in combinations(range(panel.k), m):
        measured = whole.copy()
        measured[:, list(gone)] = np.nan
        errors.append(((panel.reconstruct(measured) - X) ** 2 / X.var(axis=0)).mean())
    return max(errors)


@pytest.fixture(scope="module")
def panels(rows):
    return [fewer.select(rows[0], 6, robust_to=m, **OPTIONS) for m in (0, 1, 2)]


@pytest.mark.parametrize("m", [1, 2])
def test_the_worst_case_is_better_on_new_rows(rows, panels, m):
    plain, robust = panels[0], panels[m]
    assert worst(robust, rows[1], m) <= worst(plain, rows[1], m) * 1.02
    errors = [((p.reconstruct(rows[1][:, p.indices]) - rows[1]) ** 2).mean() for p in panels]
    assert errors[m] < 1.06 * errors[0]


def test_both_errors_are_reported(panels, tmp_path):
    first, *others = panels[1].leaderboard
    assert first["strategy"].endswith("robust to 1")
    assert first["worst"] > first["error"] > 0
    plain = next(row for row in others if row["strategy"] == "search")
    assert first["worst"] <= plain["worst"] * 1.02
    assert "worst missing" in repr(panels[1].leaderboard)
    assert "worst missing" not in repr(panels[0].leaderboard)
    page = panels[1].report(tmp_path / "page.html").read_text()
    assert "Error, worst missing" in page
    assert "with the worst feature missing" in " ".join(page.split())
    panels[1].save(tmp_path / "panel")
    loaded = fewer.Panel.load(tmp_path / "panel")
    assert loaded.leaderboard[0]["worst"] == first["worst"]
    assert loaded.settings["robust_to"] == 1


@pytest.mark.filterwarnings("ignore:the network does not clearly beat")
def test_networks_are_measured_with_completed_inputs(rows):
    panel = fewer.select(rows[0][:200, :12], 3, decoder=(8,), robust_to=1, **OPTIONS)
    assert panel.leaderboard[0]["strategy"].endswith("robust to 1")
    assert panel.leaderboard[0]["worst"] > panel.leaderboard[0]["error"]
    assert np.isfinite(worst(panel, rows[1][:, :12], 1))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"robust_to": 3}, "robust_to=3 must be a whole number from 0 to 2"),
        ({"robust_to": 1, "k": 1}, "needs a panel of at least k=2"),
        ({"robust_to": 2, "k": 2, "groups": [[0, 1]]}, "needs a panel of at least k=3"),
        ({"expect_missing": 0.1}, "is for networks: a linear decoder"),
        ({"expect_missing": 1.5, "decoder": (4,)}, "at least 0 and below 1"),
        ({"expect_missing": 0.1, "target": np.arange(700.0)}, "cannot be combined with target"),
    ],
)
def test_what_cannot_be_is_refused(rows, options, message):
    with pytest.raises(InputError, match=message):
        fewer.select(rows[0], **({"k": 4} | options))


def test_groups_go_missing_together_within_a_budget(rows):
    groups = [[0, 5], [1, 6], [2, 7]]
    costs = np.where(np.arange(28) % 4 == 0, 3.0, 1.0)
    options = OPTIONS | {"groups": groups, "costs": costs, "budget": 6.0, "k": 4}
    plain, robust = (fewer.select(rows[0], robust_to=m, **options) for m in (0, 1))
    assert robust.leaderboard[0]["strategy"].endswith("robust to 1")
    assert robust.settings["cost"] <= 6.0
    chosen = set(robust.indices.tolist())
    assert all(len(chosen & set(group)) in (0, 2) for group in groups)
    errors = []
    for panel in (plain, robust):
        unit = np.arange(28)
        unit[[5, 6, 7]] = 0, 1, 2
        lost = []
        for gone in np.unique(unit[panel.indices]):
            measured = rows[1][:, panel.indices].copy()
            measured[:, unit[panel.indices] == gone] = np.nan
            gap = panel.reconstruct(measured) - rows[1]
            lost.append((gap**2 / rows[1].var(axis=0)).mean())
        errors.append(max(lost))
    assert errors[1] <= 1.02 * errors[0]


def test_predictions_tolerate_missing_features(rows):
    rng = np.random.default_rng(1)
    signal, copies = rng.normal(size=(2, 800, 3))
    first = signal + 0.3 * copies  # a good measurement, two copies of it, and noise
    X = np.column_stack([first, first[:, :1] + 0.2 * rng.normal(size=(800, 2)), copies])
    y = X[:, 0] + 0.3 * X[:, 1] + 0.05 * rng.normal(size=800)

    def worst_prediction(panel):
        whole = X[400:][:, panel.indices]
        lost = []
        for gone in range(panel.k):
            measured = whole.copy()
            measured[:, gone] = np.nan
            lost.append(((panel.predict(measured) - y[400:]) ** 2).mean())
        return max(lost)

    options = OPTIONS | {"target": y[:400], "k": 4}
    plain, robust = (fewer.select(X[:400], robust_to=m, **options) for m in (0, 1))
    assert worst_prediction(robust) <= worst_prediction(plain)
    assert robust.leaderboard[0]["worst"] >= robust.leaderboard[0]["error"]
    both = fewer.select(X[:400], robust_to=1, reconstruct=0.5, **options)
    assert both.leaderboard[0]["worst"] >= both.leaderboard[0]["error"]


@pytest.mark.filterwarnings("ignore:the network does not clearly beat")
def test_networks_for_missing_inputs_are_compared_on_held_out_rows(rows, monkeypatch):
    rows = [part[:, :16] for part in rows]
    options = OPTIONS | {"k": 4, "decoder": (8,)}
    from fewer.selection import missing

    made = []
    for worse in (missing.NetworkComparison, missing.DroppedInputs):
        plain = missing._error

        def judged(comparison, *rest, worse=worse, plain=plain):
            return plain(comparison, *rest) + (type(comparison) is worse)

        with monkeypatch.context() as patch:
            patch.setattr(missing, "_error", judged)
            made.append(fewer.select(rows[0][:300], expect_missing=0.2, **options))
    dropped, completed = made
    for panel in made:
        about = panel.settings["expect_missing"]
        assert about["rate"] == 0.2
        assert (about["error_dropped"] < about["error"]) == (panel is dropped)
        measured = rows[1][:, panel.indices].copy()
        measured[np.random.default_rng(0).random(measured.shape) < 0.2] = np.nan
        left = ((panel.reconstruct(measured) - rows[1]) ** 2).mean() / rows[1].var(axis=0).mean()
        assert left < 0.4
    np.testing.assert_array_equal(dropped.indices, completed.indices)
    x = rows[1][:5, dropped.indices]
    assert not np.allclose(dropped.reconstruct(x), completed.reconstruct(x), rtol=1e-3)
