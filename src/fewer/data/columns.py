"""Which columns of a table are features, and which are left out: text, dates, row labels."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from fewer.errors import InputError, warn

__all__ = ["Columns", "check_same_columns", "choose_columns", "join_names", "tell_left_out"]


@dataclass(frozen=True)
class Columns:
    """Names of the features, in order, and of the columns that are none."""

    features: list[str]
    left_out: tuple[str, ...]
    told: bool  # whether all that is left out was named by the user


def choose_columns(
    what: str,
    names: Sequence[str],
    not_numbers: Sequence[str],
    leave_out: Sequence[str] = (),
    labels: Sequence[str] = (),
) -> Columns:
    """Split the columns of a table.

    Parameters
    ----------
    what : str
        The table, for messages.
    names : sequence of str
        All columns.
    not_numbers : sequence of str
        Those that hold something else.
    leave_out : sequence of str, default=()
        Those that the user wants left out.
    labels : sequence of str, default=()
        Those that are known to label rows.

    Examples
    --------
    >>> choose_columns("t.csv", ["id", "a", "b"], ["id"], leave_out=["b", "id"])
    Columns(features=['a'], left_out=('id', 'b'), told=True)
    """
    repeated = sorted(name for name, times in Counter(names).items() if times > 1)
    if repeated:
        raise InputError(
            f"{what}: {len(repeated)} column names occur more than once: {join_names(repeated)}; "
            "rename them"
        )
    unknown = [name for name in leave_out if name not in names]
    if unknown:
        raise InputError(
            f"{what} has no columns {join_names(unknown)} to leave out; it has {join_names(names)}"
        )
    out = {*not_numbers, *leave_out, *labels}
    features = [name for name in names if name not in out]
    if not features:
        raise InputError(f"{what} has no column of numbers; its columns are {join_names(names)}")
    left_out = tuple(name for name in names if name in out)
    return Columns(features, left_out, out <= {*leave_out, *labels})


def check_same_columns(what: str, names: Sequence[str], first: str, wanted: Sequence[str]) -> None:
    """Refuse a file of a folder whose columns are not those of the first one."""
    lacks = [name for name in wanted if name not in names]
    extra = [name for name in names if name not in wanted]
    if lacks or extra:
        parts = [f"lacks {join_names(lacks)}"] if lacks else []
        parts += [f"has {join_names(extra)} besides"] if extra else []
        raise InputError(
            f"the columns of {what} are not those of {first}: it {' and '.join(parts)}; all files "
            "of one source need the same columns"
        )


def tell_left_out(what: str, columns: Columns) -> None:
    """Warn of columns that were left out without being asked."""
    if not columns.told:
        warn(
            f"{what}: non-numeric columns were left out ({len(columns.left_out)}): "
            f"{join_names(columns.left_out)}; name them in leave_out= to say that this is right"
        )


def join_names(names: Sequence[str], most: int = 5) -> str:
    """Some names, quoted, and dots where there are more.

    Examples
    --------
    >>> join_names(["a", "b", "c"], most=2)
    "'a', 'b', ..."
    """
    return ", ".join(map(repr, names[:most])) + (", ..." if len(names) > most else "")
