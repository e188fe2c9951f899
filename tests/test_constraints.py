"""Constraints: what is accepted, what it means, and what the refusals say."""

import subprocess
import sys

import numpy as np
import pytest

from fewer.constraints import resolve
from fewer.errors import InputError, TypeInputError

NAMES = ["age", "height", "weight", "pulse", "sugar"]


def rules(k=2, names=NAMES, **options):
    return resolve(names, 5, k, **options)


def test_names_numbers_and_masks_say_the_same():
    by_name = rules(include=["pulse", "age"])
    by_number = rules(include=[np.int32(3), 0])
    by_mask = rules(include=np.array([True, False, False, True, False]))
    for constraints in (by_name, by_number, by_mask):
        assert constraints.include.tolist() == [0, 3]


def test_costs_by_mapping_and_array_agree():
    mapped = rules(costs=dict(zip(NAMES, [1, 2, 3, 4, 5], strict=True)), budget=4)
    join_names = rules(costs=[1, 2, 3, 4, 5], budget=4)
    np.testing.assert_array_equal(mapped.costs, join_names.costs)
    assert mapped.cost([0, 2]) == join_names.cost([0, 2]) == 4


@pytest.mark.parametrize(
    "groups",
    [
        ["a", "b", "a", None, float("nan")],
        {"age": 1, "weight": 1},
        [["age", "weight"]],
        [[0, 2], [4]],
    ],
)
def test_groups_in_every_form(groups):
    constraints = rules(k=2, groups=groups)
    assert [unit.tolist() for unit in constraints.units] == [[0, 2], [1], [3], [4]]
    assert constraints.complete([2, 3]).tolist() == [0, 2, 3]


def test_a_group_counts_once_and_costs_its_most_expensive_feature():
    constraints = rules(k=2, groups=[[0, 2]], costs=[1, 10, 3, 10, 1], budget=4)
    constraints.check([0, 2, 4])
    assert constraints.cost([0, 2, 4]) == 4
    with pytest.raises(InputError, match="missing though its group"):
        constraints.check([0, 4])


def test_including_one_of_a_group_includes_all_but_the_excluded():
    constraints = rules(k=1, groups=[[0, 2, 3]], include=["weight"], exclude=["pulse"])
    assert constraints.include.tolist() == [0, 2]
    constraints.check([0, 2])


def test_a_group_whose_features_are_all_excluded_is_gone():
    constraints = rules(k=3, groups=[[0, 2]], exclude=[0, 2])
    assert len(constraints.units) == 3
    assert constraints.unit_of.tolist() == [-1, 0, -1, 1, 2]


def test_most_units_is_what_the_budget_buys():
    assert rules(k=None, costs=[5, 1, 1, 1, 5], budget=3.5).most_units == 3
    assert rules(k=None, costs=[5, 1, 1, 1, 5], budget=6.5, include=["age"]).most_units == 2
    # 0.1 + 0.2 is a hair above 0.3
    assert rules(k=None, costs=[0.1, 0.2, 9, 9, 9], budget=0.3).most_units == 2


def test_arrays_are_the_rules_own():
    costs = np.ones(5)
    constraints = rules(costs=costs, budget=3)
    costs[:] = 7
    assert constraints.costs.tolist() == [1.0] * 5
    with pytest.raises(ValueError, match="read-only"):
        constraints.costs[0] = 2


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"include": ["age"], "exclude": ["age", "sugar"]}, "overlap: 'age'; take them out"),
        ({"include": ["age", "pulse", "sugar"]}, "include has 3 features but k=2; raise k"),
        ({"include": ["wieght"]}, "'wieght', which is not a feature; did you mean 'weight'"),
        ({"include": ["zzz"]}, "no name is close"),
        ({"exclude": [-1]}, "column -1; columns go from 0 to 4"),
        ({"exclude": [5]}, "column 5"),
        ({"exclude": np.array([True])}, "mask of shape"),
        ({"exclude": NAMES}, "leaves no feature"),
        ({"k": 0}, "k=0 must be a whole number of at least 1"),
        ({"k": -3}, "k=-3"),
        ({"k": 6}, "k=6 is more than the n_features=5"),
        ({"k": 4, "exclude": [0, 1]}, "k=4 is more than the 3 features"),
        ({"k": 4, "groups": [0, 0, 1, 1, 2]}, "k=4 is more than the 3 groups"),
        ({"k": None}, "k and budget are both None"),
        ({"budget": 3}, "budget=3 needs costs"),
        ({"costs": [1, 1, 1, 1, -2], "budget": 3}, "cost of 'sugar' is -2"),
        ({"costs": [1, 1, np.nan, 1, 1], "budget": 3}, "cost of 'weight' is nan"),
        ({"costs": [1, 1, 1, 1, np.inf], "budget": 3}, "cost of 'sugar' is inf"),
        ({"costs": [1, 1], "budget": 3}, "one cost for each of 5"),
        ({"costs": {"age": 1}, "budget": 3}, "no number for 'height', 'weight', 'pulse'"),
        ({"costs": [1] * 5, "budget": -1}, "budget=-1"),
        ({"costs": [1] * 5, "budget": np.nan}, "budget=nan"),
        ({"costs": [2, 3, 3, 3, 3], "budget": 4.5}, "cheapest panel costs 5, budget=4.5"),
        ({"k": None, "costs": [2, 3, 3, 3, 3], "budget": 1}, "cheapest panel costs 2, budget=1"),
        ({"costs": [1, 9, 1, 1, 1], "budget": 4, "include": ["height"]}, "include costs 9"),
        ({"groups": [0, 1]}, "groups has 2 labels; give one for each of 5"),
        ({"groups": [["age"], ["age"]]}, "groups lists 'age' twice"),
        ({"names": NAMES[:3]}, "there are 3 names for 5 features"),
        ({"names": None, "include": ["age"]}, "features have no names"),
        ({"names": ["a", "a", "b", "c", "d"], "include": ["a"]}, "names several columns"),
    ],
)
def test_refusals_name_the_value_and_the_remedy(options, words):
    with pytest.raises(InputError) as caught:
        rules(**options)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"k": 2.0}, "k=2.0 must be a whole number"),
        ({"k": "ten"}, "k='ten'"),
        ({"k": True}, "k=True"),
        ({"include": "age"}, "write include=['age']"),
        ({"include": 3}, "write include=[3]"),
        ({"include": [1.5]}, "1.5, which is neither a name nor a column number"),
        ({"exclude": [True]}, "True, which is neither"),
        ({"costs": ["x"] * 5, "budget": 3}, "not a number"),
        ({"costs": [1] * 5, "budget": "much"}, "budget='much' must be a number of at least 0"),
        ({"groups": "abcde"}, "groups='abcde'"),
        ({"sets": "ab", "at_least": 1}, "sets='ab' is neither a mapping from name to features"),
        ({"sets": 3, "at_least": 1}, "sets=3 is neither"),
    ],
)
def test_wrong_kinds_are_type_errors(options, words):
    with pytest.raises(TypeInputError) as caught:
        rules(**options)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("panel", "words"),
    [
        ([1, 1], "repeats"),
        ([1, 4], "4 is on the panel but excluded"),
        ([2, 3], "0 must be included"),
        ([0, 1, 2], "3 units, k=2"),
        ([0, 3], "costs 10"),
    ],
)
def test_check_names_the_broken_rule(panel, words):
    constraints = rules(include=[0], exclude=[4], costs=[1, 1, 1, 9, 1], budget=5)
    constraints.check([0, 2])
    with pytest.raises(InputError, match=words):
        constraints.check(panel)


def test_it_imports_without_torch():
    code = "import sys, fewer.constraints; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_costs_in_a_series_are_read_by_label():
    pandas = pytest.importorskip("pandas")
    costs = pandas.Series({"c": 3.0, "a": 1.0, "b": 2.0})
    assert resolve(["a", "b", "c"], 3, 1, costs=costs).costs.tolist() == [1.0, 2.0, 3.0]


@pytest.mark.parametrize("groups", [None, [0, 0]])
def test_everything_excluded_is_refused(groups):
    with pytest.raises(InputError, match="exclude leaves no feature to choose from"):
        resolve(None, 2, None, exclude=[0, 1], groups=groups, costs=[1, 1], budget=3)


TWINS = {"sets": {"a": [0, 1], "b": [1, 2, 3]}}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"at_least": {"a": 1}}, "at_least={'a': 1} needs sets="),
        (TWINS | {"at_least": {"a": 1}}, "sets has 'b', but neither at_least nor at_most"),
        (TWINS | {"at_most": {"c": 1}}, "at_most has 'c', which is not one of sets: 'a', 'b'"),
        (TWINS | {"at_least": {"a": 3}, "at_most": 3}, "no panel of k=2 can have that many"),
        (
            TWINS | {"at_least": {"a": 2}, "at_most": {"b": 1}, "exclude": [0]},
            "at_least=2 of 'a', but only 1 of its features may be chosen",
        ),
        (
            TWINS | {"at_least": {"a": 2}, "at_most": {"b": 0}},
            "no panel meets all constraints: at_least=2 of 'a', at_most=0 of 'b', k=2; relax one",
        ),
        ({"costs": [1] * 5, "budget": {"x": 3}}, "budget names 'x'; give costs= as a mapping"),
        (
            {"costs": {"x": [1] * 5, "y": [2] * 5}, "budget": {"x": 3, "y": 3}},
            "no panel meets all constraints: budget=3 of 'y', k=2, budget=3",
        ),
    ],
)
def test_limits_that_no_panel_meets_are_refused(options, words):
    with pytest.raises(InputError) as caught:
        resolve(None, 5, 2, **options)
    assert words in str(caught.value)


def test_a_panel_is_checked_against_limits():
    costs = {"x": [1, 1, 1, 1, 5], "y": [4, 1, 1, 1, 1]}
    rule = resolve(None, 5, 2, **TWINS, at_least={"a": 1}, at_most={"b": 1}, costs=costs,
                   budget={"x": 5, "y": 5})  # fmt: skip
    rule.check([0, 2])
    for panel, words in (
        ([2, 4], "costs 6, budget=5"),
        ([1, 2], "the panel has 2, but at_most=1 of 'b'"),
        ([2, 3], "the panel has 0, but at_least=1 of 'a'"),
    ):
        with pytest.raises(InputError, match=words):
            rule.check(panel)
    assert rule.best(np.array([0.0, 0, 0, 9, 1])).tolist() == [0, 3]


def test_the_best_panel_is_within_the_budget_to_the_last_digit():
    """Solvers of integer programs allow sums a millionth above their limits."""
    costs = [0.5, 0.5000002, 0.4, 0.3, 0.2]
    scores = np.array([9.0, 8.0, 5.0, 1.0, 1.0])
    rule = resolve(None, 5, 2, costs=costs, budget=1.0)
    assert rule.best(scores).tolist() == [0, 2]
    several = {"x": [0.0] * 5, "y": costs}
    rule = resolve(None, 5, 2, costs=several, budget={"x": 1.0, "y": 1.0})
    assert rule.best(scores).tolist() == [0, 2]
    rule = resolve(None, 5, 2, costs=[0.6, 0.4, 0.1, 0.1, 0.1], budget=1.0)
    assert rule.best(scores).tolist() == [0, 1]  # just affordable


def test_features_to_include_may_use_up_the_budget():
    rule = resolve(None, 3, None, include=[0], costs=[3, 9, 9], budget=3)
    assert rule.most_units == 1
    rule.check([0])


def test_columns_that_follow_cannot_be_chosen_and_change_nothing_else():
    rule = resolve(None, 4, 2, groups=[[1, 3]], costs=[1, 2, 3, 4], budget=5, exclude=[2])
    longer = rule.followed_by(2)
    assert longer.d == 6
    assert longer.allowed.tolist() == [True, True, False, True, False, False]
    assert [unit.tolist() for unit in longer.units] == [unit.tolist() for unit in rule.units]
    assert longer.unit_costs.tolist() == rule.unit_costs.tolist() == [1, 4]
    assert resolve(None, 4, 2).followed_by(1).allowed.tolist() == [True] * 4 + [False]
    assert rule.followed_by(0) is rule


def random_problem(draw):
    """Constraints on 6 features, some of them too tight."""
    costs = draw.integers(0, 5, 6)
    return {
        "k": draw.choice([None, 1, 2, 3, 4]),
        "include": draw.choice(6, draw.integers(0, 3), replace=False).tolist(),
        "exclude": draw.choice(6, draw.integers(0, 3), replace=False).tolist(),
        "groups": draw.choice([0, 1, 2, 3, 4, 5], 6) if draw.random() < 0.7 else None,
        "costs": costs,
        "budget": int(draw.integers(1, 12)),
        "sets": {"a": [0, 1, 2], "b": [2, 3]},
        "at_least": {"a": int(draw.integers(0, 3))},
        "at_most": {"b": int(draw.integers(0, 3))},
    }


def panels_by_hand(k, include, exclude, groups, costs, budget, sets, at_least, at_most):
    """Every panel that meets the constraints, and its number of units, from their definitions."""
    groups = np.arange(6) if groups is None else groups
    whole = [{j for j in range(6) if groups[j] == g and j not in exclude} for g in groups]
    if set(include) & set(exclude):
        return {}
    found = {}
    for panel in (tuple(np.flatnonzero([mask >> j & 1 for j in range(6)])) for mask in range(64)):
        units = {groups[j] for j in panel}
        paid = sum(max(costs[j] for j in panel if groups[j] == unit) for unit in units)
        if (
            panel
            and set(include) <= set(panel)
            and set(panel) == set().union(*(whole[j] for j in panel))
            and not set(panel) & set(exclude)
            and (len(units) == k if k is not None else True)
            and paid <= budget
            and len(set(panel) & set(sets["a"])) >= at_least["a"]
            and len(set(panel) & set(sets["b"])) <= at_most["b"]
        ):
            found[panel] = len(units), paid
    return found


def test_constraints_mean_what_they_say():
    draw, refused = np.random.default_rng(0), 0
    for _ in range(40):
        options = random_problem(draw)
        found = panels_by_hand(**options)
        if not found:
            refused += 1
            with pytest.raises(InputError):
                resolve(None, 6, **options)
            continue
        rule = resolve(None, 6, **options)
        for panel in (np.flatnonzero([mask >> j & 1 for j in range(6)]) for mask in range(1, 64)):
            if tuple(panel) in found:
                rule.check(panel)
                assert rule.within(panel)
                assert rule.cost(panel) == found[tuple(panel)][1]
            else:
                with pytest.raises(InputError):
                    rule.check(panel)
        scores = draw.normal(size=len(rule.units))
        sums = {panel: scores[np.unique(rule.unit_of[list(panel)])].sum() for panel in found}
        assert tuple(rule.best(scores)) == max(sums, key=sums.__getitem__)
        free = panels_by_hand(**options | {"at_least": {"a": 0}, "at_most": {"b": 2}})
        assert rule.most_units == max(units for units, _ in free.values())  # whatever the sets
        if rule.only_choice:
            assert len(found) == 1
    assert 10 <= refused <= 30
