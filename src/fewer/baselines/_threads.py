"""How many threads a factorisation gets."""

from contextlib import AbstractContextManager, nullcontext
from functools import cache

from threadpoolctl import ThreadpoolController  # type: ignore[import-untyped]

__all__ = ["few_threads"]

SMALL = 2000


def few_threads(d: int) -> AbstractContextManager[object]:
    """One thread inside the block, if the problem has no more than 2000 columns.

    The threads of a factorisation meet at every column. Where one of them has to wait for a core
    that somebody else uses, that makes small problems a hundred times slower, not twice as fast;
    and with one thread the rounding, which decides between equals, is the same everywhere.

    Examples
    --------
    >>> import numpy as np
    >>> with few_threads(2):
    ...     np.linalg.eigvalsh(np.diag([2.0, 1.0]))
    array([1., 2.])
    """
    return _controller().limit(limits=1) if d <= SMALL else nullcontext()


@cache
def _controller() -> ThreadpoolController:
    return ThreadpoolController()  # which takes longer to find all libraries than small problems
