"""What is in a source, in one pass: worth a look before a long fit."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from fewer.data.columns import join_names
from fewer.data.memory import readable_size
from fewer.data.moments import moments
from fewer.data.opening import open as open_any
from fewer.data.reading import read_blocks
from fewer.data.source import Source

__all__ = ["Scan", "counts_rows", "scan"]

MANY = 20  # rows in ascending order that are no accident


@dataclass(frozen=True)
class Scan:
    """Size, gaps and range of a source; prints as a short report.

    Attributes
    ----------
    rows, columns : int
        Rows, and columns that are features.
    dtype : str
        Of the values as they are stored.
    missing : float
        Share of all values that is NaN.
    minimum, maximum : float
        Over all values.
    memory : int
        Bytes of all rows as float32, as training holds them.
    covariance_memory : int
        Bytes of the covariance matrix, which the search and the closed form work on.
    memory_limit : int or None
        What was set when the source was opened.
    streamed : bool
        Whether rows are read from disk, block by block, at every pass.
    sparse : bool
        Whether only values other than zero are stored.
    constant, empty, counting : list
        Features (by name, else by number) with a single value, with none, and those that only
        number the rows and should be left out.
    left_out : tuple of str
        Columns that are no features.

    Examples
    --------
    >>> import numpy as np
    >>> found = scan(np.array([[0.5, 1.0], [2.5, 1.0]]))
    >>> found.rows, found.constant, found.missing
    (2, [1], 0.0)
    """

    rows: int
    columns: int
    dtype: str
    missing: float
    minimum: float
    maximum: float
    memory: int
    covariance_memory: int
    memory_limit: int | None
    streamed: bool
    sparse: bool
    constant: list[Any]
    empty: list[Any]
    counting: list[Any]
    left_out: tuple[str, ...]

    def __str__(self) -> str:
        where = "read from disk in blocks" if self.streamed else "in memory"
        if self.memory_limit is not None:
            where += f", memory limit {readable_size(self.memory_limit)}"
        lines = [
            f"{self.rows} rows of {self.columns} features, "
            f"{'sparse ' if self.sparse else ''}{self.dtype}; {where}",
            f"values from {self.minimum:g} to {self.maximum:g}, {self.missing:.2%} missing",
            f"memory: {readable_size(self.memory)} for all rows as float32, "
            f"{readable_size(self.covariance_memory)} for the covariance",
        ]
        for what, found in (
            ("constant", self.constant),
            ("without any value", self.empty),
            ("only numbering the rows (use leave_out=)", self.counting),
            ("left out", list(self.left_out)),
        ):
            if found:
                shown = join_names([str(name) for name in found])
                lines.append(f"{len(found)} {what}: {shown}")
        return "\n".join(lines)


def scan(data: Any, **options: Any) -> Scan:
    """Look through all rows once and say what is there.

    Parameters
    ----------
    data : path, source, or anything else that `open` takes
        The rows.
    **options
        As for `open`.

    Examples
    --------
    >>> import numpy as np
    >>> print(scan(np.array([[0, 1.5], [1, np.nan], [2, 4.0]])))
    3 rows of 2 features, float64; in memory, memory limit ...
    values from 0 to 4, 16.67% missing
    memory: 24 B for all rows as float32, 32 B for the covariance
    1 only numbering the rows (use leave_out=): '0'
    """
    source = open_any(data, **options)
    n, d = source.shape
    found = moments(source)

    def named(mask: np.ndarray) -> list[Any]:
        at = np.flatnonzero(mask).tolist()
        return at if source.names is None else [source.names[j] for j in at]

    empty = found.observed == 0
    seen = ~empty
    return Scan(
        rows=n,
        columns=d,
        dtype=str(source.dtype),
        missing=float((n - found.observed).sum() / (n * d)),
        minimum=float(found.minimum[seen].min()) if seen.any() else float("nan"),
        maximum=float(found.maximum[seen].max()) if seen.any() else float("nan"),
        memory=n * d * 4,
        covariance_memory=d * d * 8,
        memory_limit=source.memory_limit,
        streamed=source.on_disk,
        sparse=source.is_sparse,
        constant=named(found.constant & seen),
        empty=named(empty),
        counting=named(counts_rows(source, found.minimum, found.maximum)),
        left_out=source.left_out,
    )


def counts_rows(source: Source, minimum: np.ndarray, maximum: np.ndarray) -> np.ndarray:
    """Which features go up by one from row to row; or by any whole number, over many rows.

    The latter are numbers of rows of a larger table, from which some were taken.
    """
    n = source.shape[0]
    reach = maximum - minimum + 1
    counts = reach >= n if n >= MANY else reach == n
    if n < 3 or not counts.any():
        return np.zeros_like(counts)
    last: np.ndarray | None = None
    for _, x in read_blocks(source):
        values = x.numpy()
        steps = np.diff(values if last is None else np.vstack([last, values]), axis=0)
        counts &= (steps >= 1).all(axis=0) & (values == np.round(values)).all(axis=0)
        last = values[-1]
        if not counts.any():
            break
    return counts
