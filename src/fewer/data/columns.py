"""Which columns are features, which are metadata, and which values can be used."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import sparse

from fewer._checks import find_names, join_names
from fewer.data.source import ColumnView, Source
from fewer.errors import InputError, translate_sklearn_errors, warn

if TYPE_CHECKING:
    from fewer.data.moments import Moments

SHOWN = 5  # infinite values
LARGEST, SMALLEST = 1e75, 1e-75  # fourth powers of values are numbers of float64


def check_unique(what: str, names: Iterable[Any], remedy: str, kind: str = "column names") -> None:
    """Refuse names that occur more than once."""
    repeated = sorted(name for name, times in Counter(map(str, names)).items() if times > 1)
    if repeated:
        some = f"{len(repeated)} {kind} occur"
        if len(repeated) == 1:
            some = f"1 {kind.removesuffix('s')} occurs"
        raise InputError(f"{what}: {some} more than once: {join_names(repeated)}; {remedy}")


def choose_columns(
    what: str,
    names: Sequence[str],
    not_numbers: Sequence[str],
    ignore: Sequence[str] = (),
    labels: Sequence[str] = (),
) -> tuple[list[str], tuple[str, ...]]:
    """Features and metadata of a table; a warning lists those not in ``ignore`` or ``labels``."""
    check_unique(what, names, "rename them")
    unknown = [name for name in ignore if name not in names]
    if unknown:
        raise InputError(
            f"{what} has no columns {join_names(unknown)} to ignore; it has {join_names(names)}"
        )
    others = {*not_numbers, *ignore, *labels}
    features = [name for name in names if name not in others]
    if not features:
        raise InputError(f"{what} has no numeric column; its columns are {join_names(names)}")
    silent = {*ignore, *labels}
    text = [name for name in names if name in others and name not in silent]
    if text:
        warn(
            f"{what}: non-numeric columns were ignored ({len(text)}): {join_names(text)}; "
            "name them in ignore= to silence this warning"
        )
    return features, tuple(name for name in names if name in others)


def check_same_columns(what: str, names: Sequence[str], first: str, wanted: Sequence[str]) -> None:
    """Refuse a file of a folder whose columns are not those of the first one."""
    lacks = [name for name in wanted if name not in names]
    extra = [name for name in names if name not in wanted]
    if lacks or extra:
        parts = [f"lacks {join_names(lacks)}"] if lacks else []
        parts += [f"also has {join_names(extra)}"] if extra else []
        raise InputError(
            f"the columns of {what} are not those of {first}: it {' and '.join(parts)}; all files "
            "of one source need the same columns"
        )


def match_columns(
    source: Source, names: Sequence[Any] | np.ndarray | None, d: int, what: str
) -> Source:
    """The features that were fitted, found in a source by name, else by their number."""
    if names is None or source.names is None:
        if source.shape[1] != d:
            raise InputError(
                f"X has {source.shape[1]} features, but {what} is expecting {d} features as input"
            )
        return source
    wanted = [str(name) for name in names]
    if source.names == wanted:
        return source
    return ColumnView(source, np.array(find_names(wanted, source.names, "X lacks {} features")))


def without_empty(source: Source, stats: "Moments") -> tuple[Source, "Moments"]:
    """A source and its moments without the named columns that hold no value, with a warning."""
    empty = stats.observed == 0  # unnamed columns stay: their numbers must not shift
    if source.names is None or not empty.any() or empty.all():
        return source, stats
    gone = [source.names[j] for j in np.flatnonzero(empty)]
    warn(f"columns without any value were ignored ({len(gone)}): {join_names(gone)}; drop them")
    keep = np.flatnonzero(~empty)
    part = ColumnView(source, keep)
    part.metadata_columns = (*source.metadata_columns, *gone)
    return part, stats.of(keep)


def check_range(stats: "Moments", names: Sequence[Any] | np.ndarray | None) -> None:
    """Refuse features whose fourth powers overflow; warn of those that vary too little to count."""
    size = np.maximum(np.abs(stats.minimum), np.abs(stats.maximum))
    seen = stats.observed > 0
    for wrong in np.flatnonzero(seen & (size > LARGEST)).tolist():
        unit = 10.0 ** np.floor(np.log10(size[wrong]))
        raise InputError(
            f"{_column(wrong, names)} has values up to {size[wrong]:.1e}, too large to be squared; "
            f"divide it by a constant such as {unit:.0e}, or set such values to NaN if they mark "
            "missing ones"
        )
    varying = seen & ~stats.constant
    with np.errstate(over="ignore"):
        small = np.flatnonzero(varying & (stats.maximum - stats.minimum < SMALLEST))
    if not len(small):
        return
    shown = join_names(small.tolist() if names is None else [str(names[j]) for j in small.tolist()])
    spread = stats.maximum[small[0]] - stats.minimum[small[0]]
    problem = (
        f"the values of {len(small)} columns differ by less than {SMALLEST:.0e} ({shown}; by "
        f"{spread:.1e} in the first), whose squares are rounded to 0"
    )
    if len(small) == varying.sum():
        raise InputError(f"{problem}; multiply them by a constant such as {1 / SMALLEST:.0e}")
    warn(f"{problem}, so they are treated as constant; multiply them by a constant, or drop them")


def _column(j: int, names: Sequence[Any] | np.ndarray | None) -> str:
    return f"column {j}" if names is None else f"column {str(names[j])!r}"


# -- values ----------------------------------------------------------------------------------


def check_array(X: Any, **options: Any) -> Any:
    """An array or sparse matrix of real numbers, gaps allowed, as scikit-learn checks it."""
    # imported here because it takes more memory than most selections, and files do without
    from sklearn.utils import check_array as sklearn_check_array  # noqa: PLC0415

    with translate_sklearn_errors():
        return sklearn_check_array(X, ensure_all_finite=False, **options)


def check_numbers(what: str, shape: tuple[int, ...], dtype: Any) -> None:
    """Refuse what is not a table of numbers."""
    kind = np.dtype(dtype)
    if kind.kind not in "biuf":
        raise InputError(f"{what} holds {kind}, not real numbers; convert it first")
    if len(shape) != 2:
        raise InputError(
            f"{what} has the shape {tuple(shape)}; rows of features need two dimensions: "
            "reshape it to (rows, features)"
        )
    if 0 in shape:
        raise InputError(f"{what} is empty: {shape[0]} rows of {shape[1]} features")


def check_values(
    X: Any, names: Sequence[Any] | np.ndarray | None = None, what: str = "X", first_row: int = 0
) -> None:
    """Refuse infinite values, saying where the first ones are."""
    values = X.data if sparse.issparse(X) else X
    if values.dtype.kind != "f" or values.size == 0:
        return
    # the sum is finite unless something is not; NaN alone gives NaN, so look again then
    with np.errstate(over="ignore", invalid="ignore"):
        if np.isfinite(values.sum()) or not np.isinf(values).any():
            return
    if sparse.issparse(X):
        entries = X.tocoo()
        at = np.flatnonzero(np.isinf(entries.data))
        rows, columns = (axis[at].tolist() for axis in entries.coords)
        found = entries.data[at]
    else:
        rows, columns = (axis.tolist() for axis in np.nonzero(np.isinf(X)))
        found = X[rows, columns]
    cells = [
        f"row {first_row + row}, {_column(column, names)} is {value}"
        for row, column, value in zip(rows[:SHOWN], columns, found, strict=False)
    ]
    more, it = f"; and {len(rows) - SHOWN} more" if len(rows) > SHOWN else "", "it"
    if len(rows) > 1:
        it = "them"
    raise InputError(
        f"{what} contains infinity: {'; '.join(cells)}{more}; replace {it}, or set {it} to NaN to "
        f"mark {it} as missing"
    )
