import sys
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
import torch

from fewer.constraints import resolve
from fewer.data.factored import FactoredCovariance
from fewer.search import greedy, residual
from fewer.search.greedy import (
    ClassErrors,
    Deflation,
    factored_blocks,
    nested,
    unit_blocks,
    unit_table,
)
from tests.search.brute import KINDS, instance, optimum


def slow_greedy(C, k, ridge, first=()):
    """By the definition: try every feature, keep the one with the lowest residual."""
    chosen, errors = [], []
    for place in range(k):
        pool = [first[place]] if place < len(first) else range(len(C))
        values = {j: residual(C, [*chosen, j], ridge) for j in pool if j not in chosen}
        chosen.append(min(values, key=values.get))
        errors.append(values[chosen[-1]])
    return chosen, errors


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("share", [0.0, 0.1])
def test_it_takes_the_best_feature_each_time(kind, share):
    C = instance(kind, 14, 5)
    ridge = share * np.trace(C) / 14
    path = greedy(C, 6, ridge=ridge)
    _, errors = slow_greedy(C, 6, ridge)
    np.testing.assert_allclose(path.errors, errors, atol=1e-7 * np.trace(C))


def test_errors_are_the_residuals_of_the_nested_panels(digits):
    C = np.cov(digits[0].T)
    path = greedy(C, 20)
    for size in (1, 5, 20):
        assert path.panel(size).tolist() == sorted(path.order[:size])
        assert path.errors[size - 1] == pytest.approx(residual(C, path.panel(size)), rel=1e-9)
    assert (np.diff(path.errors) < 0).all()
    assert path.panel(0).size == 0


def test_dependent_columns_come_after_informative_ones_and_constants_last():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 4))
    X = np.hstack([np.zeros((60, 2)), X, X[:, :3], X @ rng.normal(size=(4, 2))])  # rank 4, d 11
    C = np.cov(X.T)
    path = greedy(C, 11)
    assert sorted(path.order) == list(range(11))
    assert residual(C, path.order[:4]) < 1e-12
    assert path.errors[3:] == pytest.approx(np.zeros(8), abs=1e-9)
    assert set(path.order[-2:]) == {0, 1}


def test_small_residuals_keep_their_order():
    """Smooth spectra: after 8 of 200 features almost nothing is left, and still it counts."""
    t = np.linspace(0, 1, 200)
    rng = np.random.default_rng(0)
    centres, weights = rng.uniform(size=(2, 300, 12))
    X = sum(
        w[:, None] * np.exp(-(((t - c[:, None]) / 0.3) ** 2))
        for c, w in zip(centres.T, weights.T, strict=True)
    )
    C = np.cov(X.T)
    path = greedy(C, 8)
    _, errors = slow_greedy(C, 8, 0.0)
    assert errors[-1] < 1e-5 * errors[0]
    np.testing.assert_allclose(path.errors, errors, rtol=1e-3)


def test_included_come_first_and_excluded_never(digits):
    C = np.cov(digits[0].T)
    constraints = resolve(None, 64, 5, include=[20, 44], exclude=[36, 21])
    path = greedy(C, constraints)
    assert set(path.order[:2]) == {20, 44}
    order, _ = slow_greedy(C, 2, 0.0, first=path.order[:2])
    assert order == path.order[:2].tolist()
    constraints.check(path.panel())


def test_groups_are_taken_whole(digits):
    C = np.cov(digits[0].T)
    constraints = resolve(None, 64, 3, groups=np.arange(64) // 4)
    path = greedy(C, constraints)
    assert path.sizes.tolist() == [4, 8, 12]
    best = min((residual(C, unit), tuple(unit)) for unit in constraints.units)
    assert tuple(path.order[:4]) == best[1]
    assert path.errors == pytest.approx([residual(C, path.panel(p)) for p in (1, 2, 3)], rel=1e-9)


def test_a_budget_is_spent_by_gain_or_by_gain_per_cost():
    # one dear feature explains most, three cheap ones together explain more
    C = np.diag([10.0, 6.0, 6.0, 6.0])
    cheap = greedy(C, resolve(None, 4, None, costs=[3, 1, 1, 1], budget=3))
    assert cheap.panel().tolist() == [1, 2, 3]
    C = np.diag([10.0, 2.0, 2.0, 2.0])
    dear = greedy(C, resolve(None, 4, None, costs=[3, 0.9, 0.9, 0.9], budget=3))
    assert dear.panel().tolist() == [0]


def test_a_budget_with_k_leaves_money_for_the_last_place():
    C = np.diag([10.0, 6.0, 5.0, 1.0])
    constraints = resolve(None, 4, 3, costs=[5, 4, 1, 1], budget=7)
    path = greedy(C, constraints)
    constraints.check(path.panel())
    assert path.errors[-1] == pytest.approx(optimum(C, constraints))


def test_a_budget_alone_adds_no_useless_feature():
    C = np.diag([3.0, 1.0, 0.0, 0.0])
    path = greedy(C, resolve(None, 4, None, costs=np.ones(4), budget=4))
    assert path.panel().tolist() == [0, 1]


WIDTHS = {
    "features": {"k": 4, "exclude": [3]},
    "pairs": {"k": 3, "groups": [[1, 4], [2, 3]]},
    "groups": {"k": 3, "groups": [[1, 4, 7], [2, 3]]},
}


@pytest.mark.parametrize("name", WIDTHS)
@pytest.mark.parametrize("ridge", [0.0, 0.4, "each"])
@pytest.mark.parametrize("wide", [False, True])
def test_what_is_left_and_what_each_unit_would_explain(name, ridge, wide):
    rng = np.random.default_rng(5)
    rows = rng.normal(size=(7, 9)) @ rng.normal(size=(9, 9))
    C = rows.T @ rows
    own = rng.uniform(0.1, 0.5, size=9) if ridge == "each" else np.full(9, ridge)
    penalty = torch.from_numpy(own) if ridge == "each" else ridge
    constraints = resolve(None, 9, **WIDTHS[name])
    matrix = FactoredCovariance(torch.from_numpy(rows)) if wide else torch.from_numpy(C)
    state = Deflation(matrix, constraints, penalty)
    total = np.trace(C) + (own.sum() if ridge == "each" else 0.0)
    chosen: list[int] = []

    def left(panel):
        S = np.ix_(panel, panel)
        return C - C[:, panel] @ np.linalg.solve(C[S] + np.diag(own[panel]), C[panel])

    for unit in (2, 0):
        state.take(torch.tensor([unit]))
        chosen += constraints.units[unit].tolist()
        assert float(state.error) == pytest.approx(total - np.trace(C) + np.trace(left(chosen)))
        for fresh in (False, True):
            if fresh:
                state.refresh()
            gains = state.ranking().numpy()
            for number, members in enumerate(constraints.units):
                at, m = np.ix_(members, members), len(members)
                np.testing.assert_allclose(state.E[number, :m, :m], left(chosen)[at], atol=1e-9)
                square = left(chosen) @ left(chosen)
                np.testing.assert_allclose(state.EE[number, :m, :m], square[at], atol=1e-8)
                if not set(members.tolist()) & set(chosen):
                    gain = np.trace(left(chosen)) - np.trace(left([*chosen, *members]))
                    assert gains[number] == pytest.approx(gain)


@pytest.mark.parametrize("groups", [None, [[1, 4], [2, 3]]])
def test_prices_count_against_each_pick(groups):
    C = instance("plain", 10, 3)
    costs = np.random.default_rng(1).uniform(0, 10, size=10)
    rules = resolve(None, 10, 4, costs=costs, cost_weight=0.05, groups=groups)
    path, taken = greedy(C, rules).order.tolist(), []
    ends = greedy(C, rules).sizes.tolist()
    for start, end in zip([0, *ends], ends, strict=False):
        unit = path[start:end]
        values = {
            tuple(sorted(other.tolist())): residual(C, [*taken, *other])
            + rules.price(np.array([*taken, *other]))
            for other in rules.units
            if not set(other.tolist()) & set(taken)
        }
        assert tuple(sorted(unit)) == min(values, key=lambda other: values[other])
        taken += unit
    scaled = greedy(2.0**-200 * C, replace(rules, cost_weight=2.0**-200 * rules.cost_weight))
    assert scaled.order.tolist() == path


@pytest.mark.parametrize("scale", [1.0, 1e-60, 1e60])
def test_a_panel_that_shares_most_with_a_path_that_got_stuck(scale):
    # 0 and 1 come first, but of b = {2, 3, 4} two are required, of which 2 and 3 exclude 0 and 1
    C = scale * np.diag([9.0, 8, 1, 3, 2, 1])
    sets = {"one": [0, 2, 3], "two": [1, 2, 3], "b": [2, 3, 4]}
    rule = resolve(None, 6, 3, sets=sets, at_most={"one": 1, "two": 1}, at_least={"b": 2})
    panels = [p for p in combinations(range(6), 3) if rule.within(np.array(p))]
    shared = max(len({0, 1} & set(p)) for p in panels)
    best = max(
        (p for p in panels if len({0, 1} & set(p)) == shared),
        key=lambda p: C.diagonal()[list(p)].sum(),
    )
    assert sorted(greedy(C, rule).order.tolist()) == list(best)


def test_where_gain_and_gain_per_cost_differ_the_better_panel_is_taken():
    # 0 alone takes the whole budget; 1 and 2 together explain more, or less
    for value, wanted in ((5.0, [1, 2]), (3.0, [0])):
        C = np.diag([8.0, value, value])
        rule = resolve(None, 3, None, costs=[4.0, 2.0, 2.0], budget=4.0)
        assert sorted(greedy(C, rule).order.tolist()) == wanted


@pytest.mark.parametrize("scale", [1.0, 1e-3])
def test_gain_per_cost(scale):
    # the best feature takes the whole budget; the best per cost, and one more, explain more
    C = scale * np.diag([7.0, 6.0, 1.5, 1.4, 1.3, 1.2])
    rule = resolve(None, 6, None, costs=[4, 3, 1, 1, 1, 1], budget=4)
    assert greedy(C, rule).order.tolist() == [1, 2]
    C = scale * np.diag([5.0, 3.0, 2.9])
    rule = resolve(None, 3, None, costs=[1.0, 0.5, 0.5], budget=1.0)
    assert greedy(C, rule).order.tolist() == [1, 2]


def test_nothing_useless_is_bought():
    rule = resolve(None, 3, None, costs=[1.0, 1, 0], budget=2, cost_weight=0.1)
    assert greedy(np.diag([3.0, 1, 0]), rule).order.tolist() == [0, 1]
    free = resolve(None, 3, None, costs=np.ones(3), budget=2)
    assert len(greedy(np.zeros((3, 3)), free).order) == 1  # but a panel has a feature


def test_with_prices_constant_features_come_last():
    C = np.diag([0.5, 0.0, 0.3, 0.2])
    rule = resolve(None, 4, 4, costs=[0.0, 0.0, 0.0, 0.01], cost_weight=1.0)
    assert greedy(C, rule).order.tolist() == [0, 2, 3, 1]


def test_limits_without_a_budget_do_not_divide_by_costs():
    C = np.diag([5.0, 4.0, 3.0])
    rule = resolve(
        None, 3, 2, costs=[3.0, 1.0, 1.0], cost_weight=0.01, sets={"a": [2]}, at_most={"a": 1}
    )
    assert greedy(C, rule).order.tolist() == [0, 1]


@pytest.mark.parametrize("wide", [False, True])
def test_what_explains_squares_is_renewed_before_it_is_rounding(wide, monkeypatch):
    module = sys.modules["fewer.search.greedy"]  # fewer.search.greedy is the function
    monkeypatch.setattr(module, "EARLY", 7)
    monkeypatch.setattr(module, "SELDOM", 2)
    t, random = np.linspace(0, 1, 40), np.random.default_rng(0)
    centres, weights = random.uniform(size=(2, 60, 12))
    X = sum(
        w[:, None] * np.exp(-(((t - c[:, None]) / 0.3) ** 2))
        for c, w in zip(centres.T, weights.T, strict=True)
    )
    X = torch.from_numpy(1e-3 * X)
    renewed, refresh = [], Deflation.refresh
    monkeypatch.setattr(Deflation, "refresh", lambda self: (renewed.append(1), refresh(self))[1])
    C = FactoredCovariance(X) if wide else X.T @ X
    state = Deflation(C, resolve(None, 40, 10), 0.0)
    fresh, wanted, order = float(state.error), 1, []
    for count in range(1, 11):
        order.append(int(state.ranking().argmax()))
        state.take(torch.tensor(order[-1:]))
        error = float(state.error)
        if (count < 7 or count % 2 == 0) and 0 < error < 1e-3 * fresh:
            wanted, fresh = wanted + 1, error
        assert len(renewed) == wanted
        if count == 7:
            Q = torch.linalg.qr(X[:, order])[0]
            Y = X - Q @ (Q.T @ X)
            E = Y.T @ Y
            rest = [j for j in range(40) if j not in order]
            assert float(E.trace()) < 1e-5 * float((X * X).sum())
            squares = (E @ E).diagonal()[rest]
            gap = (state.EE[rest, 0, 0] - squares).abs().max()
            assert float(gap) < 1e-2 * float(squares.max())
    assert wanted >= 3


@pytest.mark.parametrize("at_once", [1, 2, 5])
def test_blocks_are_computed_for_so_many_units_at_a_time(at_once, monkeypatch):
    module = sys.modules["fewer.search.greedy"]
    rows = torch.from_numpy(np.random.default_rng(0).normal(size=(5, 14)))
    few, C = FactoredCovariance(rows), rows.T @ rows
    table = unit_table(resolve(None, 14, 2, groups=np.arange(14) // 2), C.device)
    wanted = [M.view(7, 2, 7, 2).diagonal(dim1=0, dim2=2).movedim(-1, 0) for M in (C, C @ C)]
    sizes, columns = [], FactoredCovariance.columns
    monkeypatch.setattr(
        FactoredCovariance, "columns", lambda C, at: (sizes.append(len(at)), columns(C, at))[1]
    )

    def rows_of(at):
        sizes.append(len(at) // 2)
        return C[at]

    monkeypatch.setattr(module, "PARTS", 1)
    for width, blocks in (
        (14, lambda: unit_blocks(rows_of, table, 14)),
        (5, lambda: factored_blocks(few, rows.clone(), table)),
    ):
        monkeypatch.setattr(module, "AT_ONCE", at_once * 2 * width + 1 if at_once > 1 else 1)
        sizes.clear()
        for found, block in zip(blocks(), wanted, strict=True):
            torch.testing.assert_close(found, block)
        assert sizes == [at_once] * (7 // at_once) + [7 % at_once] * bool(7 % at_once)


@pytest.mark.parametrize("scale", [1.0, 1e-6])
def test_the_order_of_a_panel_in_any_unit(scale):
    C = instance("plain", 9, 2)
    panel = [1, 4, 6, 8]
    order, gains = nested(scale * C, panel)
    wanted = greedy(C, resolve(None, 9, 4, exclude=np.setdiff1d(np.arange(9), panel)))
    assert order.tolist() == wanted.order.tolist()
    np.testing.assert_allclose(np.trace(C) - np.cumsum(gains) / scale, wanted.errors)


# -- classes -----------------------------------------------------------------------------------


def labelled_rows(shares=(0.6, 0.35, 0.05), n=2000):
    """Three features for the first two classes, one for the rare one, and four for neither."""
    random = np.random.default_rng(0)
    kind = random.choice(3, size=n, p=shares)
    X = random.normal(size=(n, 8))
    X[:, :3] += 3.0 * (kind == 0)[:, None]
    X[:, 3] += 4.0 * (kind == 2)
    X[:, 4:] = 3 * random.normal(size=(n, 1)) + random.normal(size=(n, 4))
    return X - X.mean(0), (kind[:, None] == np.arange(3)).astype(float)


def classes_of(X, Y, weight, scale=1.0, ridge=0.0):
    Z = scale * (Y - Y.mean(0))
    found = X.T @ Z / len(X), (Z**2).mean(0), Y.mean(0)
    return ClassErrors(*map(torch.from_numpy, found), weight, ridge)


def slow_value(X, Y, panel, weight, ridge=0.0):
    """Residual and errors of classes by least squares on the rows."""
    C, Z = X.T @ X / len(X), Y - Y.mean(0)
    x = X[:, panel]
    gram = x.T @ x / len(X) + 2 * ridge * np.eye(len(panel))
    cross = x.T @ Z / len(X)
    part = (cross * np.linalg.solve(gram, cross)).sum(0) / (Z**2).mean(0)
    share = Y.mean(0)
    distance = part / (1 - part) / (share * (1 - share))
    return residual(C, panel, ridge) + weight * np.exp(-distance / 8).mean()


@pytest.mark.parametrize("ridge", [0.0, 0.3])
@pytest.mark.parametrize("weight", [0.0, 1.0, 100.0])
def test_classes_count_beside_the_residual(weight, ridge):
    X, Y = labelled_rows()
    C = X.T @ X / len(X)
    path = greedy(C, 5, ridge=ridge, classes=classes_of(X, Y, weight, 7.0, 2 * ridge))
    for place, (pick, error) in enumerate(zip(path.order, path.errors, strict=True)):
        before = path.order[:place].tolist()
        values = {
            j: slow_value(X, Y, [*before, j], weight, ridge) for j in range(8) if j not in before
        }
        assert pick == min(values, key=values.get)
        assert error == pytest.approx(values[pick])
    if not weight:
        assert path.order.tolist() == greedy(C, 5, ridge=ridge).order.tolist()


def test_a_class_that_is_separated_is_worth_no_further_features():
    X, Y = labelled_rows()
    C = X.T @ X / len(X)
    found = greedy(C, 3, classes=classes_of(X, Y, 100.0)).order.tolist()
    squares = {j: np.square(np.corrcoef(X[:, j], Y.T)[0, 1:]).sum() for j in range(8)}
    best = sorted(squares, key=squares.get)[-3:]
    assert set(best) == {0, 1, 2}  # which explain most of the indicators
    assert 3 in found  # of the rare class
    assert len({*found} & {0, 1, 2}) == 1


def test_classes_with_a_budget_groups_and_limits():
    X, Y = labelled_rows()
    C, classes = X.T @ X / len(X), classes_of(X, Y, 1000.0)
    dear = resolve(None, 8, None, costs=[1, 1, 1, 5, 1, 1, 1, 1], budget=4)
    assert 3 not in greedy(C, dear, classes=classes).order
    assert 3 in greedy(C, replace(dear, budget=8.0), classes=classes).order
    grouped = resolve(None, 8, 2, groups=[0, 0, 0, 1, 2, 2, 2, 2])
    assert greedy(C, grouped).order.tolist() == [4, 5, 6, 7, 0, 1, 2]
    assert sorted(greedy(C, grouped, classes=classes).order) == [0, 1, 2, 3]
    ruled = resolve(None, 8, 2, sets={"a": [6, 7]}, at_least={"a": 2})
    assert sorted(greedy(C, ruled, classes=classes).order) == [6, 7]


@pytest.mark.parametrize("ridge", [0.0, 0.1])
def test_a_small_group_is_not_worth_what_the_last_feature_is(ridge):
    """Units of one feature are padded to the size of the largest one."""
    random = np.random.default_rng(0)
    X = random.normal(size=(500, 6))
    marked = X[:, 5] > 1
    classes = classes_of(X, marked[:, None].astype(float), 1000.0, ridge=ridge)
    grouped = resolve(None, 6, 1, groups=[0, 0, 1, 2, 3, 4])
    assert greedy(X.T @ X / 500, grouped, ridge=ridge, classes=classes).order.tolist() == [5]


def test_classes_may_have_another_precision_and_device():
    X, Y = labelled_rows()
    C, classes = X.T @ X / len(X), classes_of(X, Y, 100.0)
    wanted = greedy(C, 3, classes=classes).order.tolist()
    single = replace(classes, cross=classes.cross.float(), variance=classes.variance.float())
    assert greedy(C, 3, classes=single, device="cpu").order.tolist() == wanted
    moved = replace(classes, ridge=torch.full((8,), 0.1)).to("meta")
    parts = (moved.cross, moved.variance, moved.shares, moved.ridge)
    assert {(part.device.type, part.dtype) for part in parts} == {("meta", torch.float64)}
