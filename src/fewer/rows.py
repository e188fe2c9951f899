"""Measured rows as people hold them: a mapping, a Series, a 1-D array, a list of mappings.

Results come back in the form of what was given. An array of numbers takes a short way, without
scikit-learn's checks, since those take longer than reconstructing one row.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

import narwhals as nw
import numpy as np
from numpy.typing import NDArray

from fewer._checks import find_names
from fewer.data.columns import check_values
from fewer.data.tables import as_array
from fewer.errors import InputError, TypeInputError
from fewer.reconstructor import Reconstructor, like_table

__all__ = ["Rows", "read_partial", "read_rows"]

ABSENT = object()
NAMED = "; add these keys: None (null in JSON) means not measured"


@dataclass(frozen=True, eq=False)
class Rows:
    """The k measured values of each row, and the form in which they were given."""

    values: NDArray  # n x k
    given: Any
    single: bool = False  # whether a row was given, rather than rows

    def like(self, found: NDArray, names: NDArray | None) -> Any:
        """Values of all features (n x d) in the form of what was given."""
        if isinstance(self.given, np.ndarray):
            return found[0] if self.single else found
        if _is_series(self.given):
            labels = range(found.shape[1]) if names is None else [str(name) for name in names]
            return type(self.given)(found[0], index=labels)
        if isinstance(self.given, Mapping) or _are_mappings(self.given):
            keys = list(range(found.shape[1])) if names is None else names.tolist()
            records = [dict(zip(keys, row, strict=True)) for row in found.tolist()]
            return records[0] if self.single else records
        return found[0] if self.single else like_table(found, names, self.given)

    def first(self, found: Any) -> Any:
        """The only result of a single row; of several rows, all of them.

        Of several targets, for each of them.
        """
        if isinstance(found, dict):
            return {name: self.first(part) for name, part in found.items()}
        return found[0] if self.single else found


def read_rows(reconstructor: Reconstructor, measured: Any) -> Rows:
    """Measured values of one row or of many; see `Panel.reconstruct`."""
    if type(measured) is np.ndarray and measured.dtype.kind in "fiu" and measured.ndim in (1, 2):
        return _from_array(reconstructor, measured, measured)
    if isinstance(measured, Mapping):
        return Rows(_from_mappings(reconstructor, [measured]), measured, single=True)
    if _are_mappings(measured):
        return Rows(_from_mappings(reconstructor, measured), measured)
    if _is_series(measured):
        return _from_series(reconstructor, measured)
    flat = len(getattr(measured, "shape", ())) == 1
    if flat or (isinstance(measured, (list, tuple)) and all(_is_number(x) for x in measured)):
        return _from_array(reconstructor, _numbers(as_array(measured)), measured)
    return Rows(reconstructor.read(measured), measured)


def read_partial(reconstructor: Reconstructor, given: Any, allow_absent: bool) -> Rows | None:
    """Whatever is there of all features (n x d), with NaN elsewhere; see `Panel.impute`.

    None for anything but mappings and Series.
    """
    single = isinstance(given, Mapping) or _is_series(given)
    if not single and not _are_mappings(given):
        return None
    rows = given if not single else [given if isinstance(given, Mapping) else _by_label(given)]
    names = reconstructor.names
    wanted = list(range(reconstructor.n_features)) if names is None else names.tolist()
    required = () if allow_absent else reconstructor.features
    return Rows(_from_mappings(reconstructor, rows, wanted, required), given, single)


def _from_series(reconstructor: Reconstructor, series: Any) -> Rows:
    labels = list(series.index)
    if labels == list(range(len(labels))) and len(labels) == len(reconstructor.columns):
        return _from_array(reconstructor, _numbers(series), series)  # without labels of its own
    return Rows(_from_mappings(reconstructor, [_by_label(series)]), series, single=True)


def _by_label(series: Any) -> dict[Any, Any]:
    cells = series.astype(object).where(series.notna(), None).tolist()
    return dict(zip(series.index, cells, strict=True))


def _from_array(reconstructor: Reconstructor, array: NDArray, given: Any) -> Rows:
    single, k = array.ndim == 1, len(reconstructor.columns)
    values = array[None] if single else array
    if values.shape[1] != k:
        raise reconstructor.wrong_width(values.shape[1], "values" if single else "columns")
    if not len(values):
        raise InputError("measured has no rows; give at least one")
    if values.dtype not in (np.float64, np.float32):
        values = values.astype(np.float64)
    if np.isinf(values).any():
        names = reconstructor.names
        check_values(values, None if names is None else names[reconstructor.columns], "measured")
    return Rows(values, given, single)


def _from_mappings(
    reconstructor: Reconstructor,
    rows: Sequence[Mapping[Any, Any]],
    wanted: Sequence[Any] | None = None,
    required: Sequence[Any] | None = None,
) -> NDArray:
    """Values by name; by column number, as a number or as text, where features have no names.

    ``wanted`` are the features that are read, of which those ``required`` must be there; the
    chosen ones if None.
    """
    wanted = reconstructor.features if wanted is None else wanted
    required = wanted if required is None else required
    found = np.full((len(rows), len(wanted)), np.nan)
    for at, row in enumerate(rows):
        keys = wanted
        if any(name not in row for name in wanted):
            keys_as_text = {str(key): key for key in row}
            find_names(required, keys_as_text, "measured lacks {} chosen features", NAMED)
            keys = [keys_as_text.get(str(name), ABSENT) for name in wanted]
        for j, key in enumerate(keys):
            value = None if key is ABSENT else row[key]
            if value is None:
                continue
            if not _is_number(value):
                where = f" in row {at}" if len(rows) > 1 else ""
                raise TypeInputError(
                    f"measured: {key!r} is {value!r}{where}, not a number; give a number, or None "
                    "if it was not measured"
                )
            try:
                found[at, j] = value
            except OverflowError as error:
                raise TypeInputError(
                    f"measured: {key!r} is a number beyond the range of floating-point numbers; "
                    "give a smaller one, or None if it was not measured"
                ) from error
    if np.isinf(found).any():
        names = None if reconstructor.names is None else [str(name) for name in wanted]
        check_values(found, names, "measured")
    return found


def _are_mappings(measured: Any) -> bool:
    return (
        isinstance(measured, (list, tuple))
        and len(measured) > 0
        and all(isinstance(row, Mapping) for row in measured)
    )


def _is_number(value: Any) -> bool:
    return value is None or isinstance(value, (float, int, Real))


def _is_series(measured: Any) -> bool:
    return bool(nw.dependencies.is_pandas_like_series(measured))


def _numbers(array: Any) -> NDArray:
    """A row of numbers; None is a missing one."""
    try:
        found = np.asarray(array)
        if found.dtype.kind in "cmM":
            raise TypeError(f"it holds {found.dtype}")
        return np.asarray(array, dtype=np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise TypeInputError(
            f"measured contains something other than numbers ({error}); use numbers, with NaN "
            "where a value was not measured"
        ) from error
