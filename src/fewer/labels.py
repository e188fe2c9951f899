"""Labels of rows, given as arrays, columns of tables or text: values, and which rows have one."""

import os
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fewer._checks import join_and, join_names, truth_of_words
from fewer._optional import import_optional
from fewer.data import Source
from fewer.data.csv import DASHES, is_number
from fewer.data.open import is_source_like, open_with_metadata
from fewer.data.source import read_metadata
from fewer.data.tables import as_array, column_names_of
from fewer.errors import InputError, warn

__all__ = [
    "are_codes",
    "check_aligned",
    "check_counts",
    "holds_whole_numbers",
    "is_missing",
    "is_structured",
    "named_columns",
    "numbers_where_possible",
    "objects_with_gaps",
    "read_survival",
    "with_gaps",
]

EVENTS = ("event", "events", "status", "died", "dead", "death")  # names of fields of events
TIMES = ("time", "times", "t", "duration", "days", "months", "years")  # and of times


def check_aligned(target: Any, data: Any, what: str = "target") -> None:
    """Refuse a target of another number of rows than a table or an array, or in another order."""
    listed = isinstance(target, (list, tuple)) and len(target) == 2  # perhaps (time, event)
    parts = target.values() if isinstance(target, Mapping) else target if listed else [target]
    n, own = (one[0] if len(one) in (1, 2) else None for one in map(_shape, (data, target)))
    if isinstance(n, int) and isinstance(own, int) and own != n:
        raise InputError(f"{what} has {own} values for {n} rows")
    wanted: Any = getattr(data, "index", None)
    for part in parts if hasattr(wanted, "equals") else ():
        labels: Any = getattr(part, "index", None)
        if not hasattr(labels, "equals") or labels.equals(wanted):
            continue
        if labels.is_unique and wanted.is_unique and wanted.isin(labels).all():
            name = what.removeprefix("the ")
            raise InputError(
                f"the rows of {what} have the labels of the rows of the data in another order; use "
                f"{name}.loc[data.index], or {name}.to_numpy() if the order is right"
            )


def _shape(rows: Any) -> tuple[Any, ...]:
    return getattr(rows, "shape", None) or ()


def is_structured(target: Any) -> bool:
    """Whether the target is an array of (event, time) as scikit-survival has it."""
    names = getattr(getattr(target, "dtype", None), "names", None)
    return names is not None and len(names) == 2


def check_counts(values: NDArray, labelled: NDArray[np.bool_] | None, what: str) -> None:
    """Refuse numbers (n x m) that are not counts."""
    rows = np.arange(len(values)) if labelled is None else np.flatnonzero(labelled)
    seen = values[rows]
    for row, column in np.argwhere((seen < 0) | (seen != np.round(seen)))[:1]:
        raise InputError(
            f"{what} of row {rows[row]} is {seen[row, column]:g}; counts are whole numbers of at "
            "least 0: give raw counts" + (", or use target_kind='number'" * (what == "target"))
        )


def read_survival(
    target: Any, what: str = "the target"
) -> tuple[NDArray, NDArray[np.bool_] | None]:
    """Times and events (n x 2), and which rows have both (None is all)."""
    name = f"a survival {what.removeprefix('the ')}"
    if is_structured(target):
        last = _event_field(target)
        time, event = (
            target[field] for field in sorted(target.dtype.names, key=lambda one: one == last)
        )
    elif isinstance(target, Mapping) or len(column_names_of(target)) == 2:
        columns = list(target) if isinstance(target, Mapping) else column_names_of(target)
        if len(columns) != 2:
            raise InputError(f"{name} has {len(columns)} parts; give (time, event)")
        time, event = (target[column] for column in columns)
    elif isinstance(target, (list, tuple)) and len(target) == 2:
        time, event = target
    else:
        pairs = np.asarray(as_array(target) if isinstance(target, Tensor) else target)
        if pairs.ndim != 2 or pairs.shape[1] != 2:
            raise InputError(
                f"{name} has shape {pairs.shape}; give the times and the events, as (time, event) "
                "or as two columns; on the command line, --target TIME --event EVENT"
            )
        time, event = pairs.T
    (time, has_time), (event, has_event) = (
        with_gaps(part, one) for part, one in ((time, "time"), (event, "event"))
    )
    if time.ndim != 1 or time.shape != event.shape:
        raise InputError(
            f"times have shape {time.shape} and events {event.shape}; give a pair each"
        )
    if event.dtype.kind == "U":
        events = truth_of_words(event if has_event is None else event[has_event])
        if events is None:
            raise InputError(
                f"the events of {what} hold {join_names(np.unique(event).tolist())}; use 1, "
                "true or yes for an event, and 0, false or no for none"
            )
        event = np.zeros(event.shape)
        event[slice(None) if has_event is None else has_event] = events
    if time.dtype.kind not in "fiub":
        raise InputError(f"the times of {what} are of text; give numbers")
    return _times(time.astype(float), event.astype(float), has_time, has_event, what)


def _event_field(target: Any) -> str:
    """Which of two fields holds events: the only one of true and false, so named, or of 0 and 1."""
    names: list[str] = list(target.dtype.names)
    fields = [target[name] for name in names]
    signs: tuple[list[bool], ...] = (
        [field.dtype.kind == "b" for field in fields],
        [name.lower() in EVENTS for name in names],
        [name.lower() not in TIMES for name in names],
        [field.dtype.kind in "iuf" and bool(np.isin(field, (0, 1)).all()) for field in fields],
    )
    return next((names[sign.index(True)] for sign in signs if sum(sign) == 1), names[1])


def _times(
    time: NDArray,
    event: NDArray,
    has_time: NDArray[np.bool_] | None,
    has_event: NDArray[np.bool_] | None,
    what: str,
) -> tuple[NDArray, NDArray[np.bool_] | None]:
    every = np.ones(len(time), dtype=bool)
    has_time, has_event = (every if part is None else part for part in (has_time, has_event))
    for row in np.flatnonzero(has_time != has_event)[:1]:
        has, lacks = ("a time", "no event") if has_time[row] else ("an event", "no time")
        raise InputError(
            f"row {row} of {what} has {has} but {lacks}; give both, or neither where the row "
            "has no label"
        )
    known = has_time & has_event
    for row in np.flatnonzero(known & (time < 0))[:1]:
        raise InputError(f"the time of row {row} is {time[row]:g}; give times of at least 0")
    for row in np.flatnonzero(known & ~np.isin(event, (0, 1)))[:1]:
        raise InputError(
            f"the event of row {row} is {event[row]:g}; give 1 where the event was observed, and 0 "
            "where the row was censored at its time"
        )
    values = np.nan_to_num(np.stack([time, event], axis=1), nan=0.0)
    return values, None if known.all() else known


def numbers_where_possible(y: NDArray, decimal: str = ".", *, padded: bool = True) -> NDArray:
    """Text as whole numbers or numbers, if all of it is; empty cells are masked.

    Unless numbers may be ``padded``, whole ones with leading zeros are labels, which are text.
    """
    if y.dtype.kind not in "OU":
        return y
    y = np.array([None if text in ("", None) else text for text in y], dtype=object)
    known = np.array([value is not None for value in y])
    texts = y[known]
    if not padded and any(isinstance(text, str) and re.match(r"0\d+$", text) for text in texts):
        return y
    if decimal != "." and all(isinstance(text, str) and is_number(text, decimal) for text in texts):
        texts = np.array([text.replace(decimal, ".") for text in texts], dtype=object)
    for kind in (np.int64, np.float64):  # in a text file everything is text
        try:
            found = texts.astype(kind)
        except (TypeError, ValueError, OverflowError):
            continue
        if known.all():
            return found
        whole = np.zeros(len(y), dtype=kind)
        whole[known] = found
        return np.ma.array(whole, mask=~known)
    return y


def with_gaps(target: Any, what: str = "target") -> tuple[NDArray, NDArray[np.bool_] | None]:
    """The target as an array of numbers or text, and which rows have a label (None is all).

    A row lacks its label if any of its values is missing.
    """
    y, labelled = objects_with_gaps(target, what)
    if y.dtype.kind == "O":
        y = _plain(y, labelled, what)
    if y.dtype.kind == "f" and np.isinf(y).any():
        row = int(np.argwhere(np.isinf(y))[0][0])
        raise InputError(
            f"{what} of row {row} is infinite ({y[row].tolist()!r}); give finite numbers, or NaN "
            "where it is not known"
        )
    return y, labelled


def objects_with_gaps(target: Any, what: str) -> tuple[NDArray, NDArray[np.bool_] | None]:
    """As `with_gaps`, but objects may be of several types."""
    y, lacks = _values_and_gaps(target)
    if y.ndim not in (1, 2) or len(y) == 0:
        raise InputError(f"{what} has shape {y.shape}; give one value, or one row, for each row")
    if y.dtype.kind in "cmMVS":
        raise InputError(f"{what} is of type {y.dtype}; give numbers, text or booleans")
    gaps = np.zeros(y.shape, dtype=bool)
    if lacks is not None:
        gaps |= np.asarray(lacks, dtype=bool).reshape(y.shape)
    if y.dtype.kind == "f":
        gaps |= np.isnan(y)
    elif y.dtype.kind == "O":
        gaps[~gaps] = [is_missing(value) for value in y[~gaps].flat]
    if not gaps.any():
        return y, None
    labelled: NDArray[np.bool_] = ~np.any(gaps.reshape(len(y), -1), axis=1)
    if not labelled.any():
        raise InputError(f"{what} is missing in every row; give some rows a label")
    return y, labelled


def _values_and_gaps(target: Any) -> tuple[NDArray, Any]:
    """The target as an array, and where its library says that it has no value, if it does."""
    columns = column_names_of(target)
    if len(columns) == 1:
        y, lacks = _values_and_gaps(target[columns[0]])
        return y[:, None], lacks
    if type(target).__module__.startswith("pyarrow") and not (columns or hasattr(target, "chunks")):
        target = import_optional("pyarrow").chunked_array([target])
    lacks = target.isna() if hasattr(target, "isna") else None
    lacks = target.is_null() if hasattr(target, "is_null") else lacks
    if lacks is not None and holds_whole_numbers(target):  # which gaps would make floats
        target = target.fill_null(0) if hasattr(target, "fill_null") else target.fillna(0)
    if isinstance(target, np.ma.MaskedArray):
        lacks, target = np.ma.getmaskarray(target), target.data
    given = target.to_numpy() if hasattr(target, "to_numpy") else target
    if isinstance(given, (list, tuple)):
        given = np.array(given, dtype=object)  # NumPy would make text of mixed values
    return np.asarray(as_array(given) if isinstance(given, Tensor) else given), lacks


def holds_whole_numbers(column: Any) -> bool:
    """Whether a column of pandas, polars or Arrow is of whole numbers, with or without gaps."""
    kind = getattr(column, "dtype", getattr(column, "type", None))
    return re.match(r"u?int\d", str(kind).lower()) is not None


def is_missing(value: Any) -> bool:
    """Whether an object stands for a label that is not known."""
    try:
        return value is None or bool(value != value)  # noqa: PLR0124 (NaN alone differs from itself)
    except (TypeError, ValueError):  # pandas.NA is neither; of an array, no value is the whole
        return type(value).__name__ == "NAType"


def _plain(y: NDArray, labelled: NDArray[np.bool_] | None, what: str) -> NDArray:
    """Objects as an array of numbers or text; 0 or empty where there is no label."""
    known = y if labelled is None else y[labelled]
    try:
        plain = np.array(known.tolist())
    except ValueError as error:
        raise InputError(
            f"{what} holds rows of different lengths ({error}); give one value, or as many values, "
            "for each row"
        ) from error
    if plain.dtype.kind not in "fiub" and not all(isinstance(value, str) for value in known.flat):
        kinds = sorted({type(value).__name__ for value in known.flat})
        raise InputError(f"{what} mixes {join_and(kinds)}; give one kind of value")
    if labelled is None:
        return plain
    whole = np.zeros((len(y), *plain.shape[1:]), dtype=plain.dtype)
    whole[labelled] = plain
    return whole


def named_columns(
    names: Sequence[str], data: Any, option: str, numbers: Collection[str] = ()
) -> tuple[dict[str, Any], Any]:
    """Columns that an option names, and the data without them.

    Those that are known to be ``numbers`` may have leading zeros in a text file.
    """
    if is_source_like(data):
        return _from_file(names, data, option, numbers)
    return _from_table(names, data, option)


def _from_table(names: Sequence[str], data: Any, option: str) -> tuple[dict[str, Any], Any]:
    """Columns of a table, and the table without them."""
    columns = [str(column) for column in getattr(data, "columns", ())]
    if not columns:
        raise InputError(
            f"{option}={names[0]!r} names a column, but the data are not a table; "
            f"give the {option} as an array"
        )
    for name in names:
        if columns.count(name) != 1:
            times = "not" if name not in columns else f"{columns.count(name)} times"
            raise InputError(f"{option}={name!r} is {times} among the {len(columns)} columns")
    found = {name: next(c for c in data.columns if str(c) == name) for name in names}
    polars = type(data).__module__.startswith("polars")
    rest = data.drop(*found.values()) if polars else data.drop(columns=list(found.values()))
    return {name: data[column] for name, column in found.items()}, rest


def _from_file(
    names: Sequence[str], data: Any, option: str, numbers: Collection[str]
) -> tuple[dict[str, Any], Source]:
    """Metadata columns of a file; text is converted to numbers where possible."""
    try:
        source = open_with_metadata(data, list(names))
    except InputError as error:
        where = data if isinstance(data, (str, os.PathLike)) else "the data"
        hint = "open it with ignore=" if isinstance(data, Source) else "name another"
        raise InputError(
            f"{option}={names[0] if len(names) == 1 else list(names)!r} cannot be read as a column "
            f"of {where} ({error}); {hint}, or give the {option} as an array"
        ) from error
    table = import_optional("pyarrow").concat_tables(read_metadata(source))
    decimal = "." if source.dialect is None else source.dialect.decimal
    found = {}
    for name in names:
        values = _arrow_values(table.column(name))
        codes = () if option == "row_groups" else source.missing  # NA is a group like any other
        gaps = are_codes(values, codes)
        padded = name in numbers
        found[name] = numbers_where_possible(_without(values, gaps), decimal, padded=padded)
        if found[name].dtype.kind == "O" and gaps.any():
            _tell_of_words(values[gaps], f"{option} {name}")
    return found, source


def _arrow_values(column: Any) -> NDArray:
    """A column of a file as an array; whole numbers with gaps are masked, not floats."""
    values: NDArray
    if column.null_count and holds_whole_numbers(column):
        gaps = np.asarray(column.is_null())
        values = np.ma.array(column.fill_null(0).to_numpy(), mask=gaps)
    else:
        values = column.to_numpy()
    return values


def _without(values: NDArray, gaps: NDArray[np.bool_]) -> NDArray:
    """A column with gaps: None among text, masked among numbers."""
    if not gaps.any():
        return values
    if values.dtype.kind != "O":
        return np.ma.array(values, mask=gaps | np.ma.getmaskarray(values))
    left = values.copy()
    left[gaps] = None
    return left


def _tell_of_words(cells: NDArray, what: str) -> None:
    """Say which cells of a column of labels were read as missing although they hold a word."""
    found = Counter(cell.strip() for cell in cells)
    words = [f"{word!r} ({found[word]:,})" for word in (*DASHES, "None") if word in found]
    if words:
        warn(
            f"{what}: cells with {join_names(words, quoted=False)} were read as missing values; "
            "use another word where it is a label"
        )


def are_codes(values: NDArray, codes: Sequence[str]) -> NDArray[np.bool_]:
    """Which values of a column are among the codes for missing values: words, or numbers.

    Examples
    --------
    >>> are_codes(np.array(["a", "NA", "9999.0"], dtype=object), ["NA", "9999"])
    array([False,  True,  True])
    """
    numbers = np.array([float(code) for code in codes if is_number(code)])
    numbers = numbers[np.isfinite(numbers)]
    if values.dtype.kind in "fiu":
        kind = values.dtype if values.dtype.kind == "f" else np.dtype(float)  # as it is stored
        return np.isin(values, numbers.astype(kind))
    words = set(codes)

    def is_code(cell: Any) -> bool:
        if not isinstance(cell, str):
            return False
        text = cell.strip()
        return text in words or (len(numbers) > 0 and is_number(text) and float(text) in numbers)

    return np.array([is_code(cell) for cell in values.tolist()], dtype=bool)
