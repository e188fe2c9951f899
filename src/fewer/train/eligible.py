"""Which features a selector may take, and which it must."""

import numpy as np
from numpy.typing import NDArray

from fewer.constraints import Constraints
from fewer.data import Moments

__all__ = ["eligible"]


def eligible(
    constraints: Constraints, stats: Moments, k: int
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Features of the fixed nodes, and a mask of those that the other nodes may take.

    One feature, that of the largest variance, stands for each included unit; the unit's others
    join when the decoder is fitted. Constant features are left out while enough others are there.
    The mask leaves included units out, except for the features that stand for them.
    """
    include = [
        unit[np.argmax(stats.variance[unit])]
        for unit in (constraints.units[u] for u in constraints.included_units)
    ]
    allowed = constraints.allowed & ~np.isin(constraints.unit_of, constraints.included_units)
    useful = allowed & ~stats.constant
    left = len(np.unique(constraints.unit_of[useful]))
    mask = useful if left >= k - len(include) else allowed
    mask[include] = True
    return np.array(include, dtype=np.int64), mask
