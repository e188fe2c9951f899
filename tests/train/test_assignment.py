"""Panels from what nodes want: constraints are never violated."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fewer.constraints import resolve
from fewer.errors import InputError
from fewer.train.assignment import distinct_features, obeying_features


def test_without_constraints_it_is_the_assignment():
    logits = torch.randn(4, 9, generator=torch.Generator().manual_seed(0))
    constraints = resolve(None, 9, 4)
    assert obeying_features(logits, constraints).tolist() == distinct_features(logits).tolist()


def test_nodes_take_different_groups():
    logits = torch.tensor([[9.0, 8.0, 0.0, 0.0], [8.0, 9.0, 1.0, 0.0]])
    constraints = resolve(None, 4, 2, groups=[[0, 1]])
    chosen = obeying_features(logits, constraints)
    assert len({int(constraints.unit_of[j]) for j in chosen}) == 2
    assert chosen[1] == 2 or chosen[0] in (0, 1)


def test_what_is_left_of_a_budget_is_spent():
    logits = torch.tensor([[9.0, 3.0, 2.0, 1.0]])
    constraints = resolve(None, 4, None, costs=[2, 1, 1, 5], budget=4)
    assert sorted(obeying_features(logits, constraints).tolist()) == [0, 1, 2]


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_constraints_hold_whatever_the_logits(data):
    d = data.draw(st.integers(3, 9))
    seed = data.draw(st.integers(0, 10**6))
    rng = np.random.default_rng(seed)
    costs = rng.integers(1, 6, size=d).astype(float) if data.draw(st.booleans()) else None
    budget = float(data.draw(st.integers(2, 20))) if costs is not None else None
    groups = rng.integers(0, 4, size=d).tolist() if data.draw(st.booleans()) else None
    fixed = data.draw(st.booleans()) or budget is None
    k = data.draw(st.integers(1, 3)) if fixed else None
    include = [int(rng.integers(d))] if data.draw(st.booleans()) else []
    banned = {int(j) for j in rng.choice(d, 1)} - set(include) if data.draw(st.booleans()) else ()
    try:
        constraints = resolve(
            None, d, k, include, list(banned), costs=costs, budget=budget, groups=groups
        )
    except InputError:
        return
    nodes = k if k is not None else max(1, len(constraints.included_units), constraints.most_units)
    logits = torch.tensor(rng.normal(size=(nodes, d)) * 3)
    logits[:, list(constraints.exclude)] = -torch.inf
    for node, unit in enumerate(constraints.included_units):
        feature = constraints.units[unit][0]
        logits[node] = -torch.inf
        logits[node, feature] = 0.0
        logits[len(constraints.included_units) :, constraints.units[unit]] = -torch.inf
    chosen = obeying_features(logits, constraints)
    constraints.check(constraints.complete(chosen))
