"""What happens where a GPU is too small: the same work on the CPU, and a word about it."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar, cast

import torch

from fewer.errors import warn

__all__ = ["on_cpu_if_short"]

P = ParamSpec("P")
T = TypeVar("T")


def on_cpu_if_short(function: Callable[P, T]) -> Callable[P, T]:
    """Let a function of a covariance, with an option ``device``, go on where memory runs out.

    Examples
    --------
    >>> import warnings
    >>> @on_cpu_if_short
    ... def trace(C, *, device=None):
    ...     if device != "cpu":
    ...         raise torch.OutOfMemoryError("CUDA out of memory")
    ...     return float(C.trace())
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always")
    ...     trace(torch.eye(2))
    2.0
    >>> str(caught[0].message)
    'trace does not fit the memory of the GPU; computing it on the CPU'
    """

    @wraps(function)
    def careful(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(*args, **kwargs)
        except torch.OutOfMemoryError:
            if kwargs.get("device") == "cpu":
                raise
        # outside the handler, which would keep the tensors alive
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        name = function.__name__
        warn(f"{name} does not fit the memory of the GPU; computing it on the CPU")
        again = cast(Callable[..., T], function)
        options: dict[str, Any] = {**kwargs, "device": "cpu"}
        return again(*args, **options)

    return careful
