"""How many selector nodes a panel needs."""

from fewer.constraints import Constraints
from fewer.data import Source, covariance
from fewer.distributed import on_rank0
from fewer.search import greedy

__all__ = ["nodes_for"]


def nodes_for(constraints: Constraints, source: Source) -> int:
    """k, or without k as many units as a greedy search buys with the budget.

    Examples
    --------
    >>> import numpy as np
    >>> from fewer.constraints import resolve
    >>> from fewer.data.source import array_source
    >>> rows = array_source(np.random.default_rng(0).normal(size=(40, 3)) * [3, 2, 1])
    >>> nodes_for(resolve(None, 3, None, costs=[1, 1, 1], budget=2), rows)
    2
    """
    if constraints.k is not None:
        return constraints.k
    C = covariance(source).matrix
    panel = on_rank0(lambda: greedy(C, constraints).panel())
    return len({int(constraints.unit_of[j]) for j in panel})
