"""The order in which the features of a panel earn their place."""

import numpy as np
import pytest

from fewer.constraints import resolve
from fewer.search import greedy, residual
from fewer.search.greedy import nested


@pytest.mark.parametrize("ridge", [0.0, 0.5])
def test_it_is_greedy_choice_among_the_chosen(digits, ridge):
    C = np.cov(digits[0].T)
    S = [5, 12, 20, 21, 26, 35, 42, 61]
    order, gains = nested(C, S, ridge)
    others = np.setdiff1d(np.arange(64), S)
    path = greedy(C, resolve(None, 64, len(S), exclude=others), ridge=ridge)
    assert order.tolist() == path.order.tolist()
    np.testing.assert_allclose(np.trace(C) - np.cumsum(gains), path.errors, rtol=1e-9)


def test_gains_add_up_to_what_the_panel_explains(digits):
    C = np.cov(digits[0].T)
    S = [42, 5, 35, 20]
    assert nested(C, S)[1].sum() == pytest.approx(np.trace(C) - residual(C, S))


def test_copies_and_constants_come_last_and_gain_nothing():
    C = np.diag([4.0, 9.0, 1.0, 0.0])
    twice = np.block([[C, C], [C, C]])  # columns 4 to 7 repeat 0 to 3
    order, gains = nested(twice, [3, 4, 0, 1])
    assert order[0] == 1
    assert sorted(order[2:]) in ([0, 3], [3, 4])
    np.testing.assert_allclose(gains[2:], 0)
