"""Whatever the rules, every panel obeys them."""

import numpy as np
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from fewer.constraints import Constraints, resolve
from fewer.errors import InputError
from fewer.search import greedy, residual, search
from tests.search.brute import KINDS, instance


@st.composite
def problems(draw):
    """A covariance and rules; rules that no panel can meet are drawn again."""
    d = draw(st.integers(2, 12))
    features = st.lists(st.integers(0, d - 1), max_size=3)
    price = st.sampled_from([0, 0.1, 0.2, 1, 2.5, 7])
    include = draw(features)
    options = {
        "k": draw(st.none() | st.integers(1, d)),
        "include": include,
        "exclude": [j for j in draw(features) if j not in include],
        "groups": draw(st.none() | st.lists(st.integers(0, 4), min_size=d, max_size=d)),
    }
    if options["k"] is None or draw(st.booleans()):
        options["costs"] = draw(st.lists(price, min_size=d, max_size=d))
        options["budget"] = draw(st.sampled_from([0, 0.3, 1, 3, 10, 100]))
    try:
        constraints = resolve(None, d, **options)
    except InputError:
        reject()
    C = instance(draw(st.sampled_from(KINDS)), d, draw(st.integers(0, 99)))
    return C, constraints, draw(st.sampled_from([0.0, 1e-3, 1.0]))


@settings(max_examples=80, deadline=None)
@given(problems())
def test_no_panel_breaks_a_rule(problem: tuple[np.ndarray, Constraints, float]):
    C, constraints, ridge = problem
    path = greedy(C, constraints, ridge=ridge)
    constraints.check(path.panel())
    found = search(C, constraints, ridge=ridge, stall=1, starts=3)
    for value, panel in found.elite:
        constraints.check(panel)
        assert value == residual(C, panel, ridge)
    assert found.objective <= residual(C, path.panel(), ridge) * (1 + 1e-9) + 1e-12
    if constraints.k is not None and constraints.groups is None:
        assert len(found.indices) == constraints.k
