"""Panels that a user changes, and what depends on each feature."""

import copy
import tomllib

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LinearRegression
from sklearn.model_selection import KFold

import fewer
from fewer.constraints import resolve
from fewer.errors import InputError
from fewer.reproduce import python_of
from fewer.search import residual
from fewer.search.dependence import dependence
from fewer.search.greedy import Deflation, block_gain

FRAME = load_breast_cancer(as_frame=True).data.iloc[:300, :12]


@pytest.fixture(scope="module")
def panel():
    return fewer.select(FRAME, 4, strategies=["search"], random_state=0)


def test_a_panel_without_a_feature_is_fitted_again(panel):
    gone, *rest = panel.features
    found = panel.without(gone)
    assert found.features == rest
    plain = LinearRegression().fit(FRAME[rest], FRAME)
    gap = (found.reconstruct(FRAME[rest]) - plain.predict(FRAME[rest])) / FRAME.std()
    assert gap.abs().to_numpy().max() < 0.1  # but for a small penalty
    errors = {row["strategy"]: row["error"] for row in found.leaderboard}
    assert errors["without"] > errors["before"]
    scores = []
    for train, held in KFold(5, shuffle=True, random_state=0).split(FRAME):
        rows = FRAME.iloc[held]
        left = rows - plain.fit(FRAME[rest].iloc[train], FRAME.iloc[train]).predict(rows[rest])
        scores.append(1 - (left**2).sum().sum() / ((rows - rows.mean()) ** 2).sum().sum())
    assert float(found.held_out) == pytest.approx(np.mean(scores), abs=0.01)


def test_a_swap_can_be_undone(panel):
    other = next(name for name in FRAME if name not in panel.features)
    there = panel.swap(panel.features[1], other)
    assert other in there.features
    assert there.swap(other, panel.features[1]).features == panel.features


def test_longer_and_shorter(panel):
    longer = panel.extend(6)
    assert set(panel.features) < set(longer.features)
    assert longer.k == 6
    shorter = longer.shrink(3)
    assert set(shorter.features) < set(longer.features)
    assert shorter.shrink(1).extend(2).k == 2


def test_constraints_hold():
    costs = np.ones(12)
    costs[5] = 10
    panel = fewer.select(FRAME.to_numpy(), 3, include=[0], exclude=[1], costs=costs, budget=4,
                         groups=[[0, 2]], strategies=["search"], random_state=0)  # fmt: skip
    with pytest.raises(InputError, match="feature 0 must be included"):
        panel.without(0)
    with pytest.raises(InputError, match="feature 0 must be included"):
        panel.without(2)  # which is measured together with it
    out = next(j for j in panel.features if j not in (0, 2))
    with pytest.raises(InputError, match="the panel costs 12, budget=4"):
        panel.swap(out, 5)
    with pytest.raises(InputError, match="swap: 1 is excluded"):
        panel.swap(out, 1)
    assert {0, 2} <= set(panel.shrink(1).features)
    assert panel.extend(4).k == 5  # groups count once


def test_a_target_is_predicted_again():
    y = load_breast_cancer().target[:300]
    panel = fewer.select(FRAME, 3, target=y, strategies=["search"], random_state=0)
    found = panel.without(panel.features[0])
    assert found.target.held_out > 0.7
    assert found.predict(FRAME[found.features]).shape == (300,)
    longer = panel.extend(5)
    assert set(panel.features) < set(longer.features)
    shorter = longer.shrink(2)
    assert set(shorter.features) < set(longer.features)
    assert shorter.predict(FRAME[shorter.features]).shape == (300,)


def test_a_loaded_panel_needs_data(panel, tmp_path):
    panel.save(tmp_path / "p")
    loaded = fewer.Panel.load(tmp_path / "p")
    for other in (loaded, copy.copy(panel)):
        with pytest.raises(InputError, match=r"attach some: fewer\.attach"):
            other.without(panel.features[0])
    wanted = panel.without(panel.features[0])
    found = fewer.attach(loaded, FRAME).without(panel.features[0])
    assert float(found.held_out) == pytest.approx(float(wanted.held_out), abs=1e-9)
    with pytest.raises(InputError, match="the features of the data, or their order, differ"):
        fewer.attach(loaded, FRAME.iloc[:, ::-1])


def other(panel):
    return next(name for name in FRAME if name not in panel.features)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda p: p.without("mean cost"), "without has 'mean cost', which is not a feature"),
        (lambda p: p.without(*p.features), "the panel would be empty"),
        (lambda p: p.extend(4), "k=4 must be a whole number from 5 to 12"),
        (lambda p: p.shrink(4), "k=4 must be a whole number from 1 to 3"),
        (lambda p: p.swap(p.features[0], p.features[1]), "is already in the panel"),
        (lambda p: p.swap(other(p), p.features[1]), "swap: .* is not in the panel"),
        (lambda p: p.without(p.features[0], other(p)), "without: .* is not in the panel"),
    ],
)
def test_impossible_changes_are_refused(panel, change, message):
    with pytest.raises(InputError, match=message):
        change(panel)


def test_what_depends_on_a_feature_is_what_it_loses(panel):
    C, S = np.corrcoef(FRAME.to_numpy().T), panel.indices
    found = dependence(C, S, ridge=0.1)
    for at, j in enumerate(S):
        rest = np.setdiff1d(S, [j])
        rise = residual(C, rest, 0.1) - residual(C, S, 0.1)
        assert found[at].sum() == pytest.approx(rise, rel=1e-6)
    groups = resolve(None, 12, 3, groups=[S[:2].tolist()])
    together = dependence(C, S, groups)
    assert together[0].sum() == pytest.approx(residual(C, S[2:]) - residual(C, S), rel=1e-6)
    known = panel.evidence
    assert known.without == pytest.approx(
        dependence(C, known.order, ridge=panel.settings["ridge"]).sum(axis=1) / 12, rel=1e-3
    )


def test_a_penalty_counts_once_per_feature_of_a_group():
    C = np.corrcoef(FRAME.to_numpy().T)
    groups = resolve(None, 12, 2, groups=[[0, 1, 2], [3, 4, 5, 6]])
    state = Deflation(fewer.search.objective.covariance(C), groups, 0.3)
    gain = block_gain(state.E, state.EE, state.least, 0.3)[0].numpy()
    for unit, found in zip(groups.units, gain, strict=True):
        assert found == pytest.approx(np.trace(C) - residual(C, unit, 0.3), rel=1e-9)


def test_a_panel_of_a_network_is_shrunk_by_what_the_network_needs():
    """No linear map needs the factors of a product."""
    random = np.random.default_rng(0)
    X = random.normal(size=(400, 8))
    y = X[:, 6] * X[:, 7] + 0.4 * X[:, 2] + 0.4 * X[:, 3]
    options = {"validation": 0.2, "strategies": ["search"], "device": "cpu"}
    panel = fewer.select(X, 4, target=y, decoder=(8,), random_state=0, **options)
    assert panel.features == [2, 3, 6, 7]
    assert panel.shrink(2).features == [6, 7]


def test_an_edited_panel_can_be_reproduced(panel, tmp_path):
    """Its features need not be those that a search would choose again."""
    there = panel.swap(panel.features[1], other(panel))
    code = python_of(there.evidence)
    assert f"k=4, strategies=['search'], random_state=0, include={there.features!r}" in code
    assert "# the panel was edited with Panel.swap: include has all of its features" in code
    config = tomllib.loads(there.to_config())
    assert (config["k"], config["include"]) == (4, there.features)
    assert "edited with Panel.swap" in there.to_config()
    assert "edited" not in panel.to_config()
    # its features are not constraints that further edits have to obey
    there.save(tmp_path / "p")
    loaded = fewer.attach(fewer.Panel.load(tmp_path / "p"), FRAME)
    shorter = loaded.without(there.features[0])
    config = tomllib.loads(shorter.to_config())
    assert (config["k"], config["include"], config["seed"]) == (3, there.features[1:], 0)


def test_the_code_of_an_edited_panel_keeps_its_groups_and_its_decoder():
    y = np.arange(300.0) % 7
    options = {"groups": [[0, 2]], "exclude": [1], "strategies": ["search"], "validation": 0.2}
    panel = fewer.select(FRAME.to_numpy(), 2, target=y, include=[0], random_state=0, **options)
    longer = panel.extend(3)
    found = {"data": FRAME.to_numpy(), "target": y}
    code = python_of(longer.evidence)
    exec(code.replace("data = ...", "pass").replace("target = ...", "pass"), found)
    assert found["panel"].features == longer.features
    assert found["panel"].settings["predictor"] == "linear"
    assert "decoder='linear'" in code  # as before it was edited
    assert "edited with Panel.extend" in code


def test_the_options_of_an_edited_panel_of_the_command_line(panel):
    there = panel.without(panel.features[0])
    there.evidence.source["config"] = {"data": "x.csv", "reach": 0.9, "include": ["a"]}
    config = tomllib.loads(there.to_config())
    assert config == {"data": "x.csv", "k": 3, "include": there.features}
