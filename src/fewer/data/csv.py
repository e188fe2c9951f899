"""CSV and TSV files, plain or compressed: one, or many with the same columns."""

import codecs
import csv
import io
import re
import sys
import zipfile
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from fewer._checks import join_names
from fewer._optional import import_optional
from fewer.data.columns import check_same_columns, choose_columns
from fewer.data.on_disk import holds_numbers, source_of_tables
from fewer.data.screen import most_bytes
from fewer.data.source import Source
from fewer.errors import FileFormatError, InputError, warn

TEXT = (".csv", ".tsv", ".txt")
COMPRESSED = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2", ".zip": "zip"}
BLOCK_BYTES = 16 * 2**20
BLOCK_SHARE = 16  # of the memory limit: Arrow reads some blocks ahead
SAMPLE_BYTES = 2**20
SPARE_BYTES = 2**25  # by which a line may be longer than those seen first
LONGER = 8  # times the longest line of the sample: what the longest of a file may be
FIRST_LINES, MOST_LINES = 5, 200  # that are looked at, at least and at most
MOST_CELLS = 1000  # that tell whether a column holds numbers
DIGITS = 19  # of a whole number; longer ones are measurements
MOST_FIRST = 2**29  # bytes of the first lines
MISSING = ["", "NA", "N/A", "#N/A", "NaN", "nan", "-nan", "null", "NULL", "None", "?", "."]
DASHES = ["-", "--", "n/a", "na"]  # also missing; a warning says so, since they could be text
SEARCHED_BYTES = 64 * 2**20  # of a file, for the words above
MOST_BAD, BAD_SHOWN = 1000, 5  # cells of a column that are not numbers, and cells that are shown
# Arrow takes 9 kB to guess the type of a column: a thousand times the size of the file, and 1 GB
FREE_COLUMNS, BYTES_PER_COLUMN = 100_000, 9
LABEL = "(row labels)"  # the name given to a first column that has none


@dataclass(frozen=True)
class Dialect:
    """How numbers and columns of a text file are written."""

    delimiter: str = ","
    decimal: str = "."


@dataclass(frozen=True)
class _Layout:
    """How a text file is written, as its first lines show."""

    path: Path
    delimiter: str
    decimal: str
    header: bool
    names: list[str]
    text: list[str]  # columns that do not hold numbers
    logical: list[str]  # columns of true and false
    longest: int  # characters of the longest line seen
    missing: tuple[str, ...]  # what a cell without a value holds


def open_csv(
    paths: Sequence[Path],
    ignore: Sequence[str],
    delimiter: str | None,
    header: bool | None,
    missing: Sequence[str],
    memory_limit: int,
    what: str,
) -> Source:
    """A source of text files: in memory where they are small, else a binary copy made once."""
    import_optional("pyarrow")
    how = delimiter, header, tuple(missing)
    first = _layout(paths[0], how, ignore)
    labels = [name for name in first.names if name == LABEL]
    features, metadata = choose_columns(str(paths[0]), first.names, first.text, ignore, labels)
    layouts = {paths[0]: first}
    for path in paths[1:]:
        layouts[path] = _layout(path, how, ignore)
        check_same_columns(str(path), layouts[path].names, str(paths[0]), first.names)
    block = min(BLOCK_BYTES, max(SAMPLE_BYTES, memory_limit // BLOCK_SHARE))
    source = source_of_tables(
        paths,
        features,
        metadata,
        lambda path: _reader(layouts[path], features, block),
        lambda path: _reader(layouts[path], list(metadata), numbers=False),
        lambda path, error: _explained(layouts[path], features, error),
        {"text": [*how, sorted(ignore)]},
        memory_limit,
        what,
    )
    if _may_lack_values(source):
        _tell_of_dashes([layouts[path] for path in paths], features, missing)
    source.missing = first.missing
    if file_form(paths[0]) != ".tsv":  # whose name says it all
        source.dialect = Dialect(first.delimiter, first.decimal)
    if not first.header:
        source.names = None
    return source


def file_form(path: Path) -> str:
    """The suffix that tells what a file holds; that of compressed text is the inner one."""
    form = path.suffix.lower()
    inner = path.with_suffix("").suffix.lower()
    if form == ".zip":
        with suppress(InputError, FileFormatError):  # some other archive, or none yet
            inner = Path(only_member(path).filename).suffix.lower()
    return inner if form in COMPRESSED and inner in TEXT else form


def only_member(path: Path) -> zipfile.ZipInfo:
    """The only file of a .zip archive, which must be text."""
    try:
        with zipfile.ZipFile(path) as archive:
            held = [
                item
                for item in archive.infolist()
                if not item.is_dir() and not item.filename.startswith("__MACOSX/")
            ]
    except Exception as error:  # of names that are empty, flags that are not known, and so on
        raise FileFormatError(f"{path} is damaged or truncated ({error})") from error
    if len(held) != 1 or Path(held[0].filename).suffix.lower() not in TEXT:
        names = join_names([item.filename for item in held]) or "no file"
        raise InputError(
            f"{path} holds {names}; only an archive of a single .csv, .tsv or .txt file can be "
            "read: unpack it first"
        )
    return held[0]


def csv_columns(
    path: Path, delimiter: str | None = None, header: bool | None = None
) -> list[str] | None:
    """Names of all columns of a text file, whatever its cells hold; None without a header."""
    import_optional("pyarrow")
    layout = _layout_of_names(path, (delimiter, header, ()))
    return layout.names if layout.header else None


def _reader(
    layout: _Layout, wanted: list[str] | None, block: int = BLOCK_BYTES, numbers: bool = True
) -> Any:
    """Arrow's reader: with types guessed for a first look, as numbers once columns are known."""
    pa, arrow_csv = import_optional("pyarrow"), import_optional("pyarrow.csv")
    types = {name: pa.float64() if numbers else pa.string() for name in wanted or []}
    if numbers:
        types |= {name: pa.bool_() for name in layout.logical if name in types}
    packed = layout.path.suffix.lower() in COMPRESSED
    return arrow_csv.open_csv(
        pa.PythonFile(_stream(layout.path), mode="r") if packed else str(layout.path),
        read_options=arrow_csv.ReadOptions(
            column_names=layout.names,
            skip_rows=int(layout.header),
            # Arrow refuses lines longer than that
            block_size=max(block, min(LONGER * layout.longest, layout.longest + SPARE_BYTES)),
        ),
        parse_options=arrow_csv.ParseOptions(delimiter=layout.delimiter),
        convert_options=arrow_csv.ConvertOptions(
            column_types=types,
            include_columns=wanted,
            null_values=list(layout.missing),
            strings_can_be_null=numbers,
            decimal_point=layout.decimal,
        ),
    )


def _stream(path: Path) -> Any:
    """The text of a file; compressed text only up to what a file of its size should hold."""
    packed = COMPRESSED.get(path.suffix.lower())
    if packed == "zip":
        return _Text(_Member(path), path, packed=True)
    stream = import_optional("pyarrow").input_stream(str(path), compression=packed)
    return _Text(stream, path, packed is not None)


class _Member:
    """The text in a .zip archive."""

    def __init__(self, path: Path) -> None:
        member = only_member(path)
        try:
            self.archive = zipfile.ZipFile(path)
            self.file = self.archive.open(member)
        except Exception as error:  # encryption is a RuntimeError
            raise FileFormatError(f"{path} is damaged or truncated ({error})") from error

    def read(self, size: int) -> bytes:
        return self.file.read(size)

    def close(self) -> None:
        self.file.close()
        self.archive.close()


class _Text(io.RawIOBase):
    """A stream that ends with an error when it has become too long for its file.

    Whatever is wrong with it is an OSError: Arrow, zlib, bz2 and lzma have others of their own.
    """

    def __init__(self, stream: Any, path: Path, packed: bool) -> None:
        self.stream, self.taken = stream, 0
        # where there is one, since Arrow's read leaks the memory for its result when it fails
        self.take = getattr(stream, "read_buffer", stream.read)
        self.most = most_bytes(path.stat().st_size) if packed else sys.maxsize

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1, /) -> bytes:
        """Some bytes."""
        try:
            part = bytes(self.take(size))
        except OSError:
            raise
        except Exception as error:
            raise OSError(str(error)) from error
        self.taken += len(part)
        if self.taken > self.most:
            raise OSError(
                f"it unpacks to more than {self.most:,} bytes, 64 MB and 1,000 times its size; "
                "unpack it first"
            )
        return part

    def close(self) -> None:
        """Close the file."""
        self.stream.close()
        super().close()


# -- the first look --------------------------------------------------------------------------


def _layout(
    path: Path, how: tuple[str | None, bool | None, tuple[str, ...]], ignore: Sequence[str]
) -> _Layout:
    return _with_types(_layout_of_names(path, how), ignore)


def _layout_of_names(path: Path, how: tuple[str | None, bool | None, tuple[str, ...]]) -> _Layout:
    sample = _first_lines(path)
    lines = [line for line in sample.splitlines()[:MOST_LINES] if line.strip()]
    if not lines:
        raise InputError(f"{path} is empty")
    by_name = "\t" if file_form(path) == ".tsv" else None
    delimiter = how[0] or by_name or max(",;\t", key=lines[0].count)
    try:
        reader = csv.reader(lines, delimiter=delimiter)
        rows = [next(reader)]
        _check_width(path, len(rows[0]))
        rows += reader
    except csv.Error as error:
        raise FileFormatError(f"{path} cannot be read as text with columns ({error})") from error
    names = [cell.strip() for cell in rows[0]]
    decimal = "."
    if delimiter == ";":  # a text column may hold a few numbers with the other mark
        cells = [cell for row in rows for cell in row]
        commas = sum("," in cell and is_number(cell, ",") for cell in cells)
        points = sum("." in cell and is_number(cell) for cell in cells)
        decimal = "," if commas > points else "."
    header = _has_header(path, rows, decimal) if how[1] is None else how[1]
    if not header:
        names = [str(j) for j in range(len(names))]
    elif len(rows) > 1 and len(rows[1]) == len(names) + 1:
        names = ["", *names]  # R writes no name above its row labels
    if header and names[0] == "":
        names[0] = LABEL
    names = [name or f"(column {j})" for j, name in enumerate(names)]
    longest = max(len(line) for line in lines)
    missing = tuple(dict.fromkeys([*MISSING, *DASHES, *how[2]]))
    layout = _Layout(path, delimiter, decimal, header, names, [], [], longest, missing)
    if len(rows) == 1 and header:
        raise InputError(f"{path} holds names of columns but no rows")
    return layout


def _check_width(path: Path, columns: int) -> None:
    """Refuse columns that take far more memory than the file has bytes: a few can hold many."""
    size = path.stat().st_size
    most = FREE_COLUMNS + size // BYTES_PER_COLUMN
    if columns > most:
        raise FileFormatError(
            f"{path} has {columns:,} columns in {size:,} bytes; at most {most:,} are read from a "
            "file of that size: write it as .parquet or .npy"
        )


def _first_lines(path: Path) -> str:
    """The beginning of a file: some lines at least; anything but UTF-8 is refused."""
    found = bytearray()
    try:
        with _stream(path) as stream:
            while found.count(b"\n") < FIRST_LINES and (part := stream.read(SAMPLE_BYTES)):
                found += part
                if len(found) > MOST_FIRST:
                    raise OSError(f"{MOST_FIRST:,} bytes without {FIRST_LINES} lines")
    except FileNotFoundError:
        raise
    except OSError as error:
        raise FileFormatError(f"{path} is damaged or truncated ({error})") from error
    encoding, reason = "utf-16", "it is UTF-16"
    if not found.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        try:
            # a character that the sample cuts in two is no error
            return codecs.getincrementaldecoder("utf-8-sig")().decode(bytes(found), final=False)
        except UnicodeDecodeError as error:
            line = found[: error.start].count(b"\n") + 1
            encoding, reason = "latin1", f"byte {found[error.start]:#x} in line {line}"
    raise InputError(
        f"{path} is not UTF-8 text ({reason}); save it as UTF-8, for example by "
        f"iconv -f {encoding} -t utf-8 {path.name} > utf8.csv"
    )


def _has_header(path: Path, rows: list[list[str]], decimal: str) -> bool:
    """Whether the first line names columns: not if it holds numbers, unless they count columns."""
    first = [cell.strip() for cell in rows[0]]
    if not all(is_number(cell, decimal) or cell in MISSING for cell in first):
        return True
    if not _ascends(first):
        return False
    if [int(cell) for cell in first] in ([*range(len(first))], [*range(1, len(first) + 1)]):
        return True
    if len(rows) > 1 and not _ascends([cell.strip() for cell in rows[1]]):
        warn(
            f"{path}: the first line, {join_names(first)}, was read as data; use "
            "header=True if it contains column names, header=False if not"
        )
    return False


def _ascends(cells: list[str]) -> bool:
    """Whether these are two or more whole numbers, each larger than the one before."""
    if len(cells) < 2 or not all(cell.isdecimal() and len(cell) < DIGITS for cell in cells):
        return False
    return all(int(a) < int(b) for a, b in pairwise(cells))


def _with_types(layout: _Layout, ignore: Sequence[str]) -> _Layout:
    """Tell columns of numbers from others by what the first block holds."""
    pa = import_optional("pyarrow")
    try:
        block = next(iter(_reader(layout, None, SAMPLE_BYTES)))
    except StopIteration:
        raise InputError(f"{layout.path} holds no rows") from None
    except Exception as error:  # Arrow has many kinds of its own
        raise _explained(layout, [], error) from error
    text, mixed = [], []
    for name, column in zip(block.schema.names, block.columns, strict=True):
        if holds_numbers(column.type):
            continue
        text.append(name)
        if pa.types.is_string(column.type) and name not in ignore:
            cells = [cell for cell in column[:MOST_CELLS].to_pylist() if cell is not None]
            numbers = sum(is_number(cell, layout.decimal) for cell in cells)
            if 2 * numbers > len(cells):
                mixed.append(name)
    if mixed:  # numbers for the most part: a cell is wrong, not the column
        raise _explained(layout, mixed, f"the columns {join_names(mixed)} are not all numbers")
    kinds = zip(block.schema.names, block.schema.types, strict=True)
    logical = [name for name, kind in kinds if pa.types.is_boolean(kind)]
    return replace(layout, text=text, logical=logical)


def is_number(cell: str, decimal: str = ".") -> bool:
    """Whether a cell holds a number."""
    if decimal != "." and "." in cell:
        return False
    try:
        float(cell.strip().replace(decimal, "."))
    except ValueError:
        return False
    return True


# -- what went wrong -------------------------------------------------------------------------


def _may_lack_values(source: Source) -> bool:
    """Whether a cell was missing, or whether that is not known since rows are not in memory."""
    array = getattr(source, "array", None)
    with np.errstate(over="ignore", invalid="ignore"):
        return array is None or bool(np.isnan(array.sum()))


def _tell_of_dashes(layouts: Iterable[_Layout], features: list[str], asked: Sequence[str]) -> None:
    """Say which cells of features were read as missing although they hold a word or a dash."""
    words = [word for word in DASHES if word not in asked]
    found: Counter[str] = Counter()
    first, left = "", SEARCHED_BYTES
    for layout in layouts if words else ():
        with _stream(layout.path) as stream:
            start = stream.read(left)
        if len(start) == left:  # which may be the middle of a line
            start = start[: start.rfind(b"\n") + 1]
        left -= len(start)
        here = _words(layout, start, features, words)
        first = first or (str(layout.path) if here else "")
        found += here
    if found:
        cells = join_names([f"{word!r} ({count:,})" for word, count in found.items()], quoted=False)
        warn(
            f"{first}: cells with {cells} were read as missing values; "
            f"missing={list(found)!r} silences this warning"
        )


def _words(layout: _Layout, start: bytes, features: list[str], words: list[str]) -> Counter[str]:
    """How often features hold these words, in the first bytes of a file."""
    edge = rb"[\r\n" + re.escape(layout.delimiter.encode()) + rb"]"
    anyone = b"|".join(re.escape(word.encode()) for word in words)
    pattern = re.compile(edge + rb'"?(?:' + anyone + rb')"?' + edge)
    if not pattern.search(start + b"\n"):  # nearly always, and quick
        return Counter()
    pa, arrow_csv = import_optional("pyarrow"), import_optional("pyarrow.csv")
    compute = import_optional("pyarrow.compute")
    rows = arrow_csv.read_csv(
        pa.BufferReader(start),
        read_options=arrow_csv.ReadOptions(
            column_names=layout.names,
            skip_rows=int(layout.header),
            block_size=len(start),
        ),
        parse_options=arrow_csv.ParseOptions(delimiter=layout.delimiter),
        convert_options=arrow_csv.ConvertOptions(
            column_types=dict.fromkeys(features, pa.string()), include_columns=features
        ),
    )
    found: Counter[str] = Counter()
    for column in rows.columns:
        hits = column.filter(compute.is_in(column, value_set=pa.array(words)))
        found += Counter(hits.to_pylist())
    return found


def _explained(layout: _Layout, numbers: list[str], error: object) -> Exception:
    """The reason that Arrow gave, as the lines and columns that it is about."""
    try:
        found = _bad_cells(layout, numbers)
    except (OSError, EOFError, ValueError, csv.Error) as broken:
        found = FileFormatError(f"{layout.path} is damaged or truncated ({broken})")
    if found is not None:
        return found
    return FileFormatError(f"{layout.path} cannot be read as text with columns ({error})")


def _bad_cells(layout: _Layout, numbers: list[str]) -> Exception | None:
    """Read line by line, which is slow, and list all rows and cells that are not as they should."""
    wanted = [*enumerate(layout.names)]
    wanted = [(at, name) for at, name in wanted if name in numbers] or wanted
    logical = {"true", "false"} if layout.logical else set()
    fine = set(layout.missing)
    expected = len(layout.names)
    lines: list[str] = []  # of another length
    cells: list[tuple[str, str, str]] = []  # place, column and content
    right: Counter[str] = Counter()  # cells of a column
    wrong: Counter[str] = Counter()
    with io.TextIOWrapper(_stream(layout.path), encoding="utf-8-sig", newline="") as text:
        reader = csv.reader(text, delimiter=layout.delimiter)
        row = -int(layout.header)
        for found in reader:
            if not found:
                continue
            place = f"line {reader.line_num} (row {row})"
            if row >= 0 and len(found) != expected:
                lines.append(f"{place} has {len(found)} values")
            for at, name in wanted if row >= 0 and len(found) == expected else ():
                cell = found[at].strip()
                known = is_number(cell, layout.decimal) or cell in fine or cell.lower() in logical
                (right if known else wrong)[name] += 1
                if not known and wrong[name] <= MOST_BAD:
                    cells.append((place, name, cell))
            row += 1
    if not numbers:  # which columns should hold numbers is known from most of their cells only
        cells = [cell for cell in cells if right[cell[1]] > wrong[cell[1]]]
    problems = []
    if lines:
        which = "that line" if len(lines) == 1 else "those lines"
        problems.append(
            f"{_some(lines, len(lines))}, but there are {expected} columns; fix {which}"
        )
    if cells:
        words = list(dict.fromkeys(cell for _, _, cell in cells))
        columns = list(dict.fromkeys(name for _, name, _ in cells))
        count = sum(wrong[name] for name in columns)
        places = [f"{place}, column {name!r} holds {cell!r}" for place, name, cell in cells]
        shown = _some(places, count)
        what, it = "which is not a number", "it"
        if count > 1:
            what, it = "which are not numbers", "them"
        problems.append(
            f"{shown}, {what}; fix {it}, leave {it} empty or give missing={words[:BAD_SHOWN]} if "
            f"missing, or give ignore={columns[:BAD_SHOWN]}"
        )
    return InputError(f"{layout.path}: {'; '.join(problems)}") if problems else None


def _some(items: list[str], count: int) -> str:
    """The first few of so many items, and how many more there are."""
    more = count - BAD_SHOWN
    return "; ".join(items[:BAD_SHOWN]) + (f"; and {more:,} more" if more > 0 else "")
