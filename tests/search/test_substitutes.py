"""Substitutes of the features of a panel, against residuals computed one by one."""

import numpy as np
import pytest
import torch

from fewer.constraints import resolve
from fewer.data.factored import FactoredCovariance
from fewer.search import residual
from fewer.search.substitutes import substitutes

PANEL = np.array([1, 4, 7])


@pytest.fixture(scope="module")
def rows():
    random = np.random.default_rng(0)
    X = random.normal(size=(60, 4)) @ random.normal(size=(4, 10)) + random.normal(size=(60, 10))
    return torch.from_numpy((X - X.mean(0)) / 60**0.5)


def loss(C, out, into, ridge=0.0):
    swapped = np.sort(np.r_[np.setdiff1d(PANEL, out), into])
    return residual(C, swapped, ridge) - residual(C, PANEL, ridge)


@pytest.mark.parametrize("ridge", [0.0, 0.3])
def test_losses_are_those_of_the_residual(rows, ridge):
    C = rows.T @ rows
    order = PANEL[[2, 0, 1]]
    best, losses = substitutes(C, order, resolve(None, 10, 3), ridge=ridge, count=7)
    for out, found, lost in zip(order, best, losses, strict=True):
        assert sorted(found) == sorted(set(range(10)) - set(PANEL))
        assert (np.diff(lost) >= 0).all()
        expected = [loss(C, [out], [into], ridge) for into in found]
        np.testing.assert_allclose(lost, expected, rtol=1e-6)
    wide = substitutes(FactoredCovariance(rows), order, resolve(None, 10, 3), ridge=ridge, count=7)
    np.testing.assert_array_equal(wide[0], best)


def test_constraints_hold(rows):
    C = rows.T @ rows
    costs = np.ones(10)
    costs[[2, 3]] = 3.5
    rules = resolve(None, 10, 3, include=[4], exclude=[0], costs=costs, budget=3)
    best, losses = substitutes(C, PANEL, rules, count=9)
    assert (best[1] == -1).all()  # it must be included
    assert np.isnan(losses[1]).all()
    for row in best[[0, 2]]:
        assert set(row) == {5, 6, 8, 9, -1}  # neither excluded, nor on the panel, nor too dear
    weighted = resolve(None, 10, 3, costs=costs, cost_weight=10.0)
    assert set(substitutes(C, PANEL, weighted, count=7)[0][0, -2:]) == {2, 3}


def test_groups_are_replaced_as_a_whole(rows):
    C = rows.T @ rows
    rules = resolve(None, 10, 2, groups=[[1, 4], [2, 3], [8, 9]])
    best, losses = substitutes(C, PANEL, rules, count=8)
    np.testing.assert_array_equal(best[0], best[1])  # both are of the same group
    members = {2: [2, 3], 8: [8, 9]}
    for out, at in [([1, 4], 0), ([7], 2)]:
        assert set(best[at]) == {0, 2, 5, 6, 8, -1}
        for into, lost in zip(best[at], losses[at], strict=True):
            if into >= 0:
                expected = loss(C, out, members.get(int(into), [int(into)]))
                assert lost == pytest.approx(expected, rel=1e-6)


def test_columns_of_a_target_count_but_cannot_be_chosen(rows):
    y = rows[:, [1]] - rows[:, [7]]
    twin = rows[:, [7]] + 0.01 * rows[:, [0]]
    joint = torch.cat([1e-3 * rows, 1e-3 * twin, y], dim=1)
    best, losses = substitutes(joint.T @ joint, np.array([1, 7]), resolve(None, 11, 2), count=10)
    assert best[1, 0] == 10
    assert losses[1, 0] < 0.01 * losses[1, 1]
    assert 11 not in best


def test_groups_within_limits(rows):
    C = rows.T @ rows
    groups, members = [[1, 4], [2, 3], [8, 9]], {2: [2, 3], 8: [8, 9]}
    costs = np.ones(10)
    costs[[2, 5]], costs[[6, 7]] = 4.0, 2.0  # 7 makes room for 6, the group of 1 does not
    for options in (
        {"costs": costs, "budget": 3.5},
        {"sets": {"a": [2, 5]}, "at_most": {"a": 0}},
        {"costs": costs, "budget": 3.5, "sets": {"b": [0]}, "at_most": {"b": 0}},
    ):
        rules = resolve(None, 10, 2, groups=groups, **options)
        best, losses = substitutes(C, PANEL, rules, count=8)
        for out, at in [([1, 4], 0), ([7], 2)]:
            wanted = set()
            for into in (0, 2, 5, 6, 8):
                new = [*np.setdiff1d(PANEL, out), *members.get(into, [into])]
                if rules.within(np.array(new)):
                    wanted.add(into)
            assert set(best[at]) - {-1} == wanted
            assert len(wanted) < 5
            for into, lost in zip(best[at], losses[at], strict=True):
                if into >= 0:
                    expected = loss(C, out, members.get(int(into), [int(into)]))
                    assert lost == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_a_copy_loses_nothing_at_all(rows, scale):
    twice = scale * torch.cat([rows, rows[:, [4]]], dim=1)
    C = twice.T @ twice
    for groups in (None, [[0, 2]]):
        best, losses = substitutes(C, PANEL, resolve(None, 11, 3, groups=groups), count=8)
        lost = dict(zip(best[1].tolist(), losses[1].tolist(), strict=True))
        assert lost.pop(10) == 0.0
        lost.pop(-1, None)
        assert min(abs(loss) for loss in lost.values()) > 1e-3 * scale**2


def test_pairs_are_replaced_by_pairs(rows):
    C = rows.T @ rows
    rules = resolve(None, 10, 2, groups=np.arange(10) // 2)
    panel = np.array([2, 3, 8, 9])
    best, losses = substitutes(C, panel, rules, count=4)
    for at, kept in ((0, [8, 9]), (1, [8, 9]), (2, [2, 3]), (3, [2, 3])):
        assert set(best[at]) == {0, 4, 6, -1}
        for into, lost in zip(best[at, :3], losses[at, :3], strict=True):
            after = residual(C, [*kept, into, into + 1])
            assert lost == pytest.approx(after - residual(C, panel), rel=1e-6)
