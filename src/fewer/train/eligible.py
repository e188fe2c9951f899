"""Which features a selector may take, and which it must."""

import numpy as np
from numpy.typing import NDArray

from fewer.constraints import Constraints
from fewer.data import Moments

__all__ = ["eligible"]


def eligible(
    rule: Constraints, stats: Moments, k: int
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Features of the fixed nodes, and a mask of those that the other nodes may take.

    One feature, that of the largest variance, stands for each included unit; the unit's others
    join when the decoder is fitted. Constant features are left out while enough others are there.
    The mask leaves included units out, except for the features that stand for them.
    """
    include = [
        unit[np.argmax(stats.variance[unit])]
        for unit in (rule.units[u] for u in rule.included_units)
    ]
    allowed = rule.allowed & ~np.isin(rule.unit_of, rule.included_units)
    useful = allowed & ~stats.constant
    left = len(np.unique(rule.unit_of[useful]))
    mask = useful if left >= k - len(include) else allowed
    mask[include] = True
    return np.array(include, dtype=np.int64), mask
