"""Parse what users type: features, costs, groups, decoders, strategies, sizes."""

import csv
import fnmatch
import glob
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from fewer._checks import join_names
from fewer.errors import InputError, warn

DIGITS = 19  # of a whole number
MOST_TEXT = 64 * 2**20  # bytes of a list of features, costs or groups


def features(texts: Sequence[str], names: Sequence[str] | None, option: str) -> list[Any]:
    """Features from texts, each a file of names, a pattern or comma-separated names.

    Without ``names``, column numbers are expected.
    """
    known = set(names or ())
    found: dict[Any, None] = {}
    for text in texts:
        for item in _items(text, known, option):
            found |= dict.fromkeys(_matching(item, names, known, option))
    return list(found)


def _items(text: str, known: set[str], option: str) -> Iterator[str]:
    if text in known:
        yield text
        return
    path = Path(text).expanduser()
    if path.is_file():
        for line in _text(path, option, "a text file with one name per line").splitlines():
            item = line.strip()
            if item and not item.startswith("#"):
                yield item if item in known else (split_values(item) or [item])[0]
    elif path.suffix in (".txt", ".csv", ".tsv") and not glob.has_magic(text):
        raise InputError(f"{option} {text}: no such file or feature")
    else:
        yield from split_values(text)


def split_values(text: str) -> list[str]:
    """Comma-separated values; one that holds a comma itself is in double quotes."""
    try:
        found = next(csv.reader([text], skipinitialspace=True), [])
    except csv.Error:  # longer than any value
        found = [text]
    return [item.strip() for item in found if item.strip()]


def _text(path: Path, option: str, what: str) -> str:
    """The text of a file."""
    try:
        if path.stat().st_size > MOST_TEXT:
            raise InputError(f"{option} {path} has more than {MOST_TEXT:,} bytes; use {what}")
        return path.read_text(encoding="utf-8-sig")
    except (FileNotFoundError, IsADirectoryError):
        raise InputError(f"{option} {path}: no such file") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{option} {path} is not {what} in UTF-8 ({error})") from error
    except OSError as error:
        raise InputError(f"{option} {path} cannot be read ({error.strerror or error})") from error


def _matching(item: str, names: Sequence[str] | None, known: set[str], option: str) -> list[Any]:
    if item in known:
        return [item]
    if glob.has_magic(item) and names is not None:
        matched = fnmatch.filter(names, item)
        if not matched:
            raise InputError(
                f"{option}: no feature matches {item!r}; the features are {join_names(list(names))}"
            )
        return matched
    return [_number(item)]  # unknown names raise an error later


def budget(texts: Sequence[str]) -> float | dict[str, float] | None:
    """--budget: a number, or NAME=NUMBER for each of several costs."""
    found = {}
    for text in texts:
        name, _, value = str(text).rpartition("=")
        try:
            found[name] = float(value)
        except ValueError:
            raise InputError(f"--budget {text}: use a number, or NAME=100") from None
    if "" in found and len(texts) > 1:
        raise InputError("use one --budget, or --budget NAME=100 for each of several costs")
    return found.get("", found or None)


def costs(
    path: Path | None, names: Sequence[str] | None, budgets: float | dict[str, float] | None
) -> dict[Any, Any] | None:
    """Costs from a file of two columns, feature and cost; or of a column for each of budgets."""
    if path is None:
        return None
    if not isinstance(budgets, dict):
        return numbers(path, names, "--costs", "cost")
    titles = next(iter(_table(path, "--costs")), (0, [""]))[1][1:]
    missing = [name for name in budgets if name not in titles]
    if missing:
        raise InputError(f"--costs {path} has no column {missing[0]!r}; its columns are {titles}")
    return {
        name: numbers(path, names, "--costs", "cost", 1 + titles.index(name), None)
        for name in budgets
    }


def numbers(
    path: Path | None,
    names: Sequence[str] | None,
    option: str,
    what: str,
    column: int = 1,
    width: int | None = 2,
) -> dict[Any, float] | None:
    """A number for each feature, the first column of a file, from another of its columns."""
    if path is None:
        return None
    found = {}
    for line, cells in _table(path, option, width, what):
        try:
            found[cells[0]] = float(cells[column])
        except (ValueError, IndexError):
            if line == 1:  # a header
                continue
            text = cells[column] if column < len(cells) else ""
            raise InputError(
                f"{option} {path}, line {line}: the {what} of {cells[0]!r} is {text!r}, not a "
                "number"
            ) from None
    return _known(found, names, f"{option} {path}")


def sets(
    path: Path | None,
    names: Sequence[str] | None,
    at_least: Sequence[str],
    at_most: Sequence[str],
) -> dict[str, Any]:
    """Sets from a file of two columns, feature and set, and how many of each."""
    found: dict[str, dict[str, None]] = {}
    for line, feature, own in _pairs(path, "--sets", "set"):
        if line > 1 or names is None or feature in names:  # else a header
            found.setdefault(own, {})[feature] = None
    options: dict[str, Any] = {"sets": None}
    if path is not None:
        what = f"--sets {path}"
        options["sets"] = {own: list(_known(all_, names, what)) for own, all_ in found.items()}
    for name, texts in (("at_least", at_least), ("at_most", at_most)):
        option = f"--{name.replace('_', '-')}"
        if texts and path is None:
            raise InputError(f"{option} requires --sets FILE, with the features of each set")
        counts = _by_name([str(text) for text in texts], option, list(found), "a set of --sets")
        for own, text in counts.items():
            if not text.isdecimal():
                raise InputError(f"{option} {text}: use a whole number, or NAME=2")
            options.setdefault(name, {})[own] = int(text)
    return options


def groups(path: Path | None, names: Sequence[str] | None) -> dict[Any, str] | None:
    """Groups from a file of two columns: feature and the group it is measured with."""
    found = {
        feature: group
        for line, feature, group in _pairs(path, "--groups", "group")
        if line > 1 or names is None or feature in names  # else a header
    }
    return None if path is None else _known(found, names, f"--groups {path}")


def _pairs(path: Path | None, option: str, what: str) -> Iterator[tuple[int, str, str]]:
    for line, cells in () if path is None else _table(path, option, 2, what):
        yield line, cells[0], cells[1]


def _table(
    path: Path, option: str, width: int | None = None, what: str = "costs"
) -> Iterator[tuple[int, list[str]]]:
    """Lines that are not empty, with their numbers, as cells; all of ``width``."""
    text = _text(path.expanduser(), option, "a text file of two columns")
    delimiter = max(",;\t", key=text.split("\n", 1)[0].count)
    rows = csv.reader(text.splitlines(), delimiter=delimiter)
    try:
        cells_of_lines = list(enumerate(rows, start=1))
    except csv.Error as error:
        raise InputError(f"{option} {path} is not a text file of two columns ({error})") from error
    for line, cells in cells_of_lines:
        if not any(cell.strip() for cell in cells):
            continue
        if width is not None and len(cells) != width:
            raise InputError(
                f"{option} {path}, line {line} has {len(cells)} values; it must have two, a "
                f"feature and its {what}, separated by a comma"
            )
        yield line, [cell.strip() for cell in cells]


def _known(found: dict[str, Any], names: Sequence[str] | None, what: str) -> dict[Any, Any]:
    """The entries whose feature is in the data; the file may contain others."""
    if names is None:
        return {_number(key): value for key, value in found.items()}
    known = {*names, *(name for name in found if glob.has_magic(name))}  # or a pattern
    others = [str(name) for name in found if name not in known]
    if others and len(others) == len(found):
        raise InputError(f"no feature in {what} is in the data: {join_names(others)}")
    if others:
        warn(f"{len(others)} features in {what} are not in the data: {join_names(others)}")
    return {name: value for name, value in found.items() if name in known}


def _number(text: str) -> Any:
    """A column number; text of any other kind, or of too many digits, is a name."""
    return int(text) if text.isdecimal() and len(text) < DIGITS else text


def decoder(text: str) -> Any:
    """ "auto", "linear", or the widths of hidden layers such as "320,320"."""
    if text in ("auto", "linear"):
        return text
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and len(part) < DIGITS and int(part) > 0 for part in parts):
        raise InputError(
            f"--decoder {text}: use auto, linear, or widths of hidden layers such as 320,320"
        )
    return tuple(int(part) for part in parts)


def strategies(text: str) -> Any:
    """Comma-separated strategies, or "auto"."""
    return text if text == "auto" else [part.strip() for part in text.split(",") if part.strip()]


def validation(text: str) -> Any:
    """A number of folds, a fraction, or a word such as "time"."""
    try:
        return int(text) if text.isdecimal() and len(text) < DIGITS else float(text)
    except ValueError:
        return text


def sizes(text: str) -> list[int]:
    """Sizes: "10:100:10" (the end is included), "1:20", or "5,10,20"."""
    try:
        if ":" in text:
            first, last, *step = (int(part) for part in text.split(":"))
            sizes = list(range(first, last + 1, *step))
        else:
            sizes = sorted({int(part) for part in text.split(",")})
    except (TypeError, ValueError):  # more than three numbers, or none
        sizes = []
    if not sizes or sizes[0] < 1:
        raise InputError(f"--k {text}: use sizes such as 10:100:10, 1:20 or 5,10,20")
    return sizes


def target(
    names: Sequence[str], kinds: Sequence[str], weights: Sequence[str], event: str | None
) -> dict[str, Any]:
    """The options of `fewer.select` for --target, --target-kind, --target-weight and --event."""
    if not names:
        given = {"--target-kind": kinds, "--target-weight": weights, "--event": event}
        for option, value in given.items():
            if value:
                raise InputError(f"{option} requires --target")
        return {"target": None}
    if event is not None:
        if len(names) > 1 or list(kinds) not in ([], ["survival"]) or weights:
            raise InputError("--event requires a single --target with times, of kind survival")
        return {"target": (names[0], event), "target_kind": "survival"}
    if "survival" in kinds:
        raise InputError("--target-kind survival requires --event COLUMN, and times as --target")
    own = _by_name(kinds, "--target-kind", names)
    heavy = {
        name: _weight(text) for name, text in _by_name(weights, "--target-weight", names).items()
    }
    found: dict[str, Any] = {"target": names[0] if len(names) == 1 else list(names)}
    if own:
        found["target_kind"] = own if len(names) > 1 else next(iter(own.values()))
    return found | ({"target_weight": heavy} if heavy else {})


def _by_name(
    texts: Sequence[str], option: str, names: Sequence[str], what: str = "a --target"
) -> dict[str, str]:
    """NAME=VALUE, or one VALUE for all."""
    found = {}
    for text in texts:
        name, equals, value = text.rpartition("=")
        if not equals:
            found.update(dict.fromkeys(names, value))
        elif name in names:
            found[name] = value
        else:
            raise InputError(f"{option} {text}: {name!r} is not {what}")
    return found


def _weight(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise InputError(f"--target-weight: {text!r} is not a number") from None
