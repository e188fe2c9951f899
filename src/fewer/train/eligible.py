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
    """
    include = [
        unit[np.argmax(stats.variance[unit])]
        for unit in (rule.units[u] for u in rule.included_units)
    ]
    useful = rule.allowed & ~stats.constant
    useful[include] = True
    allowed = useful if useful.sum() >= k else rule.allowed
    return np.array(include, dtype=np.int64), allowed
