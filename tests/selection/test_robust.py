"""fewer.select(..., robust_to=m)."""

from itertools import combinations

import numpy as np
import pytest

import fewer
from fewer.errors import InputError


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
    options = {"strategies": ["search"], "random_state": 0, "device": "cpu"}
    return [fewer.select(rows[0], 6, robust_to=m, **options) for m in (0, 1, 2)]


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
    panel = fewer.select(
        rows[0][:300],
        4,
        decoder=(8,),
        strategies=["search"],
        robust_to=1,
        random_state=0,
        validation=0.3,
        device="cpu",
    )
    assert panel.leaderboard[0]["strategy"].endswith("robust to 1")
    assert panel.leaderboard[0]["worst"] > panel.leaderboard[0]["error"]
    assert np.isfinite(worst(panel, rows[1], 1))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"robust_to": 3}, "robust_to=3 must be a whole number from 0 to 2"),
        ({"robust_to": 1, "k": 1}, "needs a panel of at least k=2"),
        ({"robust_to": 1, "groups": [[0, 1]]}, "cannot be combined with groups"),
        ({"robust_to": 1, "target": np.arange(700.0)}, "cannot be combined with target"),
    ],
)
def test_what_cannot_be_is_refused(rows, options, message):
    with pytest.raises(InputError, match=message):
        fewer.select(rows[0], **({"k": 4} | options))
