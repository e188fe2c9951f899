"""What `fewer.select` can tell about its options before any work."""

from typing import Any

import numpy as np

from fewer.candidates.shortlist import STRATEGIES
from fewer.candidates.wanted import Wanted
from fewer.data import Moments, Source
from fewer.errors import InputError, warn

__all__ = ["check_data", "check_options", "warn_about_k"]


def check_options(strategies: Any, time_limit: Any) -> None:
    """Complain about options that do not depend on the data."""
    if not _is_auto(strategies):
        several = isinstance(strategies, (list, tuple, set, frozenset))
        if not several or not strategies or any(name not in STRATEGIES for name in strategies):
            raise InputError(
                f"strategies={strategies!r}: use 'auto' or some of {', '.join(STRATEGIES)}, "
                "as a list"
            )
    real = isinstance(time_limit, (int, float, np.integer, np.floating))
    real = real and not isinstance(time_limit, bool)
    if time_limit is not None and not (real and time_limit > 0):
        raise InputError(f"time_limit={time_limit!r} must be a number of seconds above 0, or None")


def _is_auto(strategies: Any) -> bool:
    return isinstance(strategies, str) and strategies == "auto"


def check_data(
    source: Source, stats: Moments, target: Wanted | None, strategies: Any, cost_weight: float
) -> None:
    """Complain about columns without a value, and about what does not go with a target."""
    n = source.shape[0]
    if target is not None:
        if len(target.values) != n:
            raise InputError(f"target has {len(target.values)} values for {n} rows")
        if cost_weight:
            raise InputError("cost_weight does not go with target; give costs and a budget")
        if strategies != "auto" and "closed_form" in strategies:
            raise InputError("strategies: 'closed_form' knows no target; use search, gradient")
    empty = np.flatnonzero(stats.observed == 0)
    if len(empty):
        names = source.names
        shown = ", ".join(str(j) if names is None else names[j] for j in empty[:5])
        raise InputError(f"columns without any value ({len(empty)}): {shown}; drop them")


def warn_about_k(k: Any, n: int, d: int, stats: Moments) -> None:
    """Say so where more features are asked for than the rows can tell apart."""
    if isinstance(k, bool) or not isinstance(k, (int, np.integer)):
        return
    rank = int((~stats.constant).sum())
    if rank < k <= d:
        warn(f"k={k}, but only {rank} of {d} features vary: the rest of the panel adds nothing")
    elif n <= k <= d:
        warn(
            f"k={k} features from {n} rows: their rank is at most {n - 1}, so "
            "the choice beyond that rests on the penalty alone; use more rows or a lower k"
        )
