"""All features of many rows from a few, into files, block by block."""

import os
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fewer.data import (
    Source,
    check_out,
    column_names,
    is_source_like,
    open_source,
    read_aside,
    read_blocks,
    write_rows,
)
from fewer.data import open as open_any
from fewer.estimators._measured import open_measured, read_measured
from fewer.estimators._selector import decode
from fewer.nn import MeasuredDecoder

__all__ = ["bound_paths", "bounded", "impute"]

Values = NDArray[np.float64]


class Imputer(Protocol):
    """What a panel must offer."""

    indices: NDArray[np.int64]
    names: list[str] | None
    d: int
    _decoder: MeasuredDecoder

    def _bounds(self, interval: float) -> tuple[Values, Values]: ...


def impute(
    panel: Imputer,
    measured: Any,
    out: str | os.PathLike[str],
    *,
    interval: float | None = None,
    options: dict[str, Any] | None = None,
    progress: Callable[[float], None] | None = None,
) -> int:
    """Write all features of some rows from the measured ones.

    Columns of the input that are no features of the panel, such as identifiers, come along in
    tables. With ``interval`` two more files hold the bounds, see `bound_paths`.

    Parameters
    ----------
    panel : Panel
        From `fewer.select`.
    measured : array, table, path or source
        As for `Panel.reconstruct`.
    out : path
        The file; it appears when all rows are written.
    interval : float, default=None
        Share of values that the bounds hold, such as 0.9. Where a chosen feature was not measured
        its own bounds are not known: NaN.
    options : dict, default=None
        For `fewer.data.open`, where ``measured`` is a path.
    progress : callable, default=None
        Called with the share of rows that is done.

    Returns
    -------
    int
        Number of rows.
    """
    path = Path(out)
    paths = [path] if interval is None else [path, *bound_paths(path)]
    bounds = None if interval is None else panel._bounds(interval)
    for one in paths:
        check_out(one)
    source = _opened(panel, measured, dict(options or {}))
    source.row_width = max(source.row_width, panel.d)  # of what comes out of each block
    n = source.shape[0]
    labels = panel.names or [str(j) for j in range(panel.d)]
    with ExitStack() as stack:
        writers = [stack.enter_context(write_rows(one, n, labels)) for one in paths]
        for (rows, x), aside in zip(read_blocks(source), read_aside(source), strict=True):
            values = x.numpy()
            rebuilt = decode(panel._decoder, values)
            parts = [rebuilt]
            if bounds is not None:
                parts += bounded(rebuilt, values, panel.indices, bounds)
            for write, part in zip(writers, parts, strict=True):
                write(part, aside)
            if progress is not None:
                progress(rows.stop / n)
    return n


def bound_paths(out: str | os.PathLike[str]) -> tuple[Path, Path]:
    """Where the lower and upper bounds of a file go.

    Examples
    --------
    >>> [path.name for path in bound_paths("all.csv.gz")]
    ['all.lower.csv.gz', 'all.upper.csv.gz']
    """
    path = Path(out)
    packed = path.suffix.lower() in (".gz", ".zst")
    kind = "".join(path.suffixes[-2:]) if packed else path.suffix
    stem = path.name.removesuffix(kind)
    return path.with_name(f"{stem}.lower{kind}"), path.with_name(f"{stem}.upper{kind}")


def bounded(
    rebuilt: Values, measured: Values, indices: NDArray[np.int64], bounds: tuple[Values, Values]
) -> list[Values]:
    """Lower and upper bounds of reconstructed rows; unknown where a chosen feature has a gap."""
    gaps = np.isnan(measured)
    found = []
    for bound in bounds:
        part = rebuilt + bound
        part[:, indices] = np.where(gaps, np.nan, part[:, indices])
        found.append(part)
    return found


def _opened(panel: Imputer, measured: Any, options: dict[str, Any]) -> Source:
    """The chosen features, with every column beside them that is no feature of the panel."""
    names = None if panel.names is None else np.array(panel.names, dtype=object)
    table = hasattr(measured, "columns")
    if not table and not is_source_like(measured):
        return open_source(read_measured(measured, panel.indices, names))
    have = [str(name) for name in measured.columns] if table else column_names(measured)
    known = set(panel.names or map(str, range(panel.d)))
    others = [name for name in have or () if name not in known]
    leave_out = list(dict.fromkeys([*options.pop("leave_out", ()), *others]))
    by_name = have is not None and len(others) < len(have)
    if not isinstance(measured, Source) and (options or (by_name and leave_out)):
        if by_name and leave_out:
            options["leave_out"] = leave_out
        measured = open_any(measured, **options)
    return open_measured(measured, panel.indices, names)
