"""Work on rows that the first of several processes shares with the others.

A long piece of work such as `fewer.select` is led by one process. Where it needs a sum over rows or
a training, it tells the others which, over which rows, and all do it together. Rows are told as a
view of a source that all have opened.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from fewer.data.processes import Team, leading_others
from fewer.data.source import ColumnView, Log1pSource, RowRange, RowView, ScaledSource, Source

__all__ = ["described_view", "lead_with_help", "shared_work", "with_help"]

P = ParamSpec("P")
T = TypeVar("T")

_WORK: dict[str, Callable[..., Any]] = {}
_BASE: dict[int, Source] = {}  # by team, which is one a process


def shared_work(
    function: Callable[Concatenate[Source, P], T],
) -> Callable[Concatenate[Source, P], T]:
    """Let a function of a source be done by all processes where one leads and the others wait.

    Its other arguments must be values that `fewer.data.wire` takes.
    """
    name = f"{function.__module__}.{function.__qualname__}"
    _WORK[name] = function

    @wraps(function)
    def run(source: Source, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return with_help(name, function, source, *args, **kwargs)

    return run


def with_help(
    name: str,
    function: Callable[Concatenate[Source, P], T],
    source: Source,
    /,
    *args: P.args,
    **kwargs: P.kwargs,
) -> T:
    """Do some work on a source together with the processes that wait for orders, if any do."""
    leading = leading_others()
    view = None if leading is None else described_view(source, _BASE.get(id(leading.team)))
    if leading is None or view is None:
        return function(source, *args, **kwargs)
    return leading.order(
        [name, view, list(args), dict(kwargs)], lambda: function(source, *args, **kwargs)
    )


def lead_with_help(
    team: Team, work: Callable[[], T], base: Source, own: dict[str, Callable[..., Any]]
) -> T:
    """As `Team.lead`, with help from the others on views of ``base``, which all have opened.

    Parameters
    ----------
    team : Team
        The processes.
    work : callable
        What the first one does.
    base : Source
        What all have opened.
    own : dict from name to callable
        Work that needs more than a source and plain values; each takes a source and what was sent.
    """

    def help_with(order: Any) -> None:
        name, view, args, kwargs = order
        function = own[name] if name in own else _WORK[name]
        function(seen(base, view), *args, **kwargs)

    _BASE[id(team)] = base
    try:
        return team.lead(work, help_with)
    finally:
        del _BASE[id(team)]


def described_view(source: Source, base: Source | None) -> list[Any] | None:
    """How a source is made from another, as values; None if it is not.

    Examples
    --------
    >>> import numpy as np
    >>> from fewer.data import DenseSource
    >>> base = DenseSource(np.zeros((4, 2)))
    >>> described_view(RowRange(base, 1, 3), base)
    [['range', 1, 3]]
    """
    if source is base:
        return []
    if not isinstance(source, RowView | RowRange | ScaledSource | ColumnView | Log1pSource):
        return None
    inner = described_view(source.source, base)
    if inner is None:
        return None
    match source:
        case RowView():
            step: list[Any] = ["rows", source.index]
        case RowRange():
            step = ["range", source.start, source.stop]
        case ScaledSource():
            step = ["scaled", source.center.numpy(), source.scale.numpy()]
        case ColumnView():
            step = ["columns", source.columns]
        case Log1pSource():
            step = ["log"]
    return [*inner, step]


def seen(base: Source, view: list[Any]) -> Source:
    """The source that `described_view` described."""
    makers: dict[str, Callable[..., Source]] = {
        "rows": RowView,
        "range": RowRange,
        "scaled": ScaledSource,
        "columns": ColumnView,
        "log": Log1pSource,
    }
    for kind, *values in view:
        base = makers[kind](base, *values)
    return base
