"""Spreadsheets and databases: files in which tables have names (.xlsx, SQLite, DuckDB).

Cells of spreadsheets and of SQLite have types of their own, one by one: what a column holds is
decided by its first rows, and a cell that does not fit is named by its place.
"""

import datetime
import warnings
import zipfile
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import quote

from fewer._checks import join_names
from fewer._optional import import_optional
from fewer.data.columns import choose_columns
from fewer.data.csv import DASHES, MISSING
from fewer.data.on_disk import (
    check_expansion,
    damaged,
    damaged_where_unreadable,
    holds_numbers,
    source_of_tables,
)
from fewer.data.screen import most_bytes, screen
from fewer.data.source import Source
from fewer.errors import FileFormatError, InputError

__all__ = [
    "DUCKDB",
    "EXCEL",
    "SQLITE",
    "open_duckdb",
    "open_excel",
    "open_sqlite",
    "table_columns",
]

EXCEL = (".xlsx", ".xlsm")
SQLITE = (".sqlite", ".sqlite3", ".db")
DUCKDB = (".duckdb",)
SAMPLE_ROWS = 1000  # that decide what a column holds
BATCH_ROWS = 2**13
EXCEL_ROWS, EXCEL_COLUMNS = 2**20, 2**14  # that a sheet can have
MOST_TEXT = 64 * 2**20  # bytes of a cell
BAD_SHOWN = 5

Row = Sequence[Any]
Rows = Generator[Row, None, None]


@dataclass(frozen=True)
class _Cells:
    """A table whose cells have types of their own."""

    path: Path
    names: list[str]
    rows: Callable[[], Iterator[Row]]  # all of them, from the first, each time
    place: Callable[[int, int], str]  # of a row and a column, for people
    missing: frozenset[str]


# -- Excel -------------------------------------------------------------------------------------


def open_excel(
    path: Path,
    dataset: str | None,
    header: bool | None,
    ignore: Sequence[str],
    missing: Sequence[str],
    memory_limit: int,
) -> Source:
    """A source of a sheet of an Excel file: the first, or that of a name."""
    cells, named = _excel_cells(path, dataset, header, missing)
    source = _open_cells(cells, ignore, {"sheet": dataset, "header": header}, memory_limit)
    if not named:
        source.names = None
    return source


def excel_columns(path: Path, sheet: str | None) -> list[str] | None:
    """Names of the columns of a sheet; None where its first row holds numbers."""
    cells, named = _excel_cells(path, sheet, None, ())
    return cells.names if named else None


def _excel_cells(
    path: Path, sheet: str | None, header: bool | None, missing: Sequence[str]
) -> tuple[_Cells, bool]:
    _check_archive(path)
    first = 0
    with closing(_sheet_rows(path, sheet)) as rows:
        for row in rows:
            if any(cell is not None for cell in row):
                break
            first += 1
        else:
            raise InputError(f"{path}: the sheet is empty; choose another with dataset=")
    named = not all(_is_number(cell) for cell in row) if header is None else header
    width = max(at + 1 for at, cell in enumerate(row) if cell is not None)
    names = [str(j) for j in range(width)]
    if named:
        names = [
            f"(column {j})" if cell is None else str(cell).strip()
            for j, cell in enumerate(row[:width])
        ]
    start = first + int(named)

    def all_rows() -> Iterator[Row]:
        with closing(_sheet_rows(path, sheet)) as rows:
            for number, row in enumerate(islice(rows, start, None)):
                more = [at for at, cell in enumerate(row) if at >= width and cell is not None]
                if more:
                    raise InputError(
                        f"{path}: {place(number, more[0])} has a value, but no column "
                        "name; add one in the first row, or clear the cell"
                    )
                if any(cell is not None for cell in row):
                    yield (*row[:width], *[None] * (width - len(row)))

    def place(row: int, column: int) -> str:
        letters, left = "", column + 1
        while left:
            left, digit = divmod(left - 1, 26)
            letters = chr(ord("A") + digit) + letters
        return f"cell {letters}{start + row + 1}"

    return _Cells(path, names, all_rows, place, frozenset([*MISSING, *DASHES, *missing])), named


def _check_archive(path: Path) -> None:
    """Refuse an archive that claims to unpack to more than its size explains."""
    with damaged_where_unreadable(path), zipfile.ZipFile(path) as archive:
        claimed = sum(item.file_size for item in archive.infolist())
    check_expansion(path, claimed, path.stat().st_size)


def _sheet_rows(path: Path, sheet: str | None) -> Rows:
    """Rows of a sheet as they are stored: nothing is made by a length that the file claims."""
    openpyxl = import_optional("openpyxl")
    with damaged_where_unreadable(path), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of parts that are not read
        book = openpyxl.load_workbook(path, read_only=True, data_only=True, keep_links=False)
    with closing(book), damaged_where_unreadable(path):
        sheets = {one.title: one for one in book.worksheets}
        if not sheets or (sheet is not None and sheet not in sheets):
            raise InputError(
                f"{path} has no sheet {sheet!r}; it has {join_names(list(sheets)) or 'none'}"
            )
        chosen = next(iter(sheets.values())) if sheet is None else sheets[sheet]
        chosen.reset_dimensions()
        for number, row in enumerate(chosen.iter_rows(values_only=True)):
            if number == EXCEL_ROWS or len(row) > EXCEL_COLUMNS:
                raise ValueError("cells beyond the maximum size of a sheet")
            yield row


# -- SQLite ------------------------------------------------------------------------------------


def open_sqlite(
    path: Path,
    dataset: str | None,
    query: str | None,
    ignore: Sequence[str],
    missing: Sequence[str],
    memory_limit: int,
) -> Source:
    """A source of a table of an SQLite file, or of what a query returns."""
    with _sqlite(path) as database:
        statement = _statement(path, dataset, query, lambda: _sqlite_tables(database))
        names = _described(path, statement, database.execute(statement))

    def rows() -> Iterator[Row]:
        with _sqlite(path) as database:
            yield from database.execute(statement)

    words = frozenset([*MISSING, *DASHES, *missing])
    cells = _Cells(path, names, rows, lambda row, column: f"row {row}", words)
    return _open_cells(cells, ignore, {"statement": statement}, memory_limit)


def sqlite_columns(path: Path, table: str | None, query: str | None) -> list[str]:
    """Names of the columns of a table, or of what a query returns."""
    with _sqlite(path) as database:
        statement = _statement(path, table, query, lambda: _sqlite_tables(database))
        return _described(path, statement, database.execute(statement))


@contextmanager
def _sqlite(path: Path) -> Iterator[Any]:
    """A file open for reading: nothing is written, no other file is attached."""
    import sqlite3  # noqa: PLC0415 (not in every build of Python)

    # a file that nobody writes to needs no locks; one with a log beside it may be in use
    log = path.with_name(f"{path.name}-wal").exists()
    address = f"file:{quote(str(path.absolute()))}?mode=ro{'' if log else '&immutable=1'}"
    allowed = (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_RECURSIVE)

    def authorize(action: int, first: str | None, second: str | None, *rest: Any) -> int:
        fine = action in allowed or (
            action == sqlite3.SQLITE_FUNCTION and second != "load_extension"
        )
        return sqlite3.SQLITE_OK if fine else sqlite3.SQLITE_DENY

    if not log:
        _check_pages(path)
    try:
        with closing(sqlite3.connect(address, uri=True)) as database:
            database.execute("PRAGMA trusted_schema = OFF")
            database.execute("PRAGMA cell_size_check = ON")
            database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MOST_TEXT)
            database.text_factory = lambda text: text.decode("utf-8", "replace")
            database.set_authorizer(authorize)
            yield database
    except sqlite3.OperationalError as error:  # of a query, or of a file that cannot be opened
        raise InputError(f"{path} cannot be read ({error})") from error
    except (sqlite3.Error, UnicodeDecodeError, OverflowError) as error:
        if str(error) == "not authorized":
            raise InputError(f"{path}: query= may only SELECT from this file") from error
        raise damaged(path, error) from error


def _check_pages(path: Path) -> None:
    """Refuse a truncated file, whose last page SQLite would take for zeros."""
    with path.open("rb") as file:
        head = file.read(100)
    size = int.from_bytes(head[16:18], "big")
    size = 65536 if size == 1 else size
    pages = int.from_bytes(head[28:32], "big")
    current = head[24:28] == head[92:96]  # whether the number of pages is up to date
    held = path.stat().st_size
    if len(head) < 100 or not size or held % size or (current and held < pages * size):
        raise damaged(path, "not a whole number of pages, or fewer than it says")


def _sqlite_tables(database: Any) -> dict[str, bool]:
    """Names of tables (True) and views (False)."""
    found = database.execute(
        "SELECT name, type FROM sqlite_master WHERE type IN ('table', 'view') AND name NOT LIKE "
        "'sqlite\\_%' ESCAPE '\\'"
    )
    return {str(name): kind == "table" for name, kind in found}


def _described(path: Path, statement: str, cursor: Any) -> list[str]:
    if cursor.description is None:
        raise InputError(f"{path}: query={statement!r} returns no rows; give a SELECT")
    return [str(column[0]) for column in cursor.description]


# -- DuckDB ------------------------------------------------------------------------------------


def open_duckdb(
    path: Path, dataset: str | None, query: str | None, ignore: Sequence[str], memory_limit: int
) -> Source:
    """A source of a table of a DuckDB file, or of what a query returns."""
    statement, schema = _duckdb_schema(path, dataset, query)
    text = [field.name for field in schema if not holds_numbers(field.type)]
    features, metadata = choose_columns(str(path), schema.names, text, ignore)

    def read(path: Path, names: Sequence[str]) -> Iterator[Any]:
        with _duckdb(path) as database:
            for batch in database.sql(statement).to_arrow_reader(BATCH_ROWS):
                if batch.num_rows:
                    yield batch.select(list(names))

    return source_of_tables(
        [path],
        features,
        metadata,
        lambda path: read(path, features),
        lambda path: read(path, metadata),
        damaged,
        {"duckdb": statement, "ignore": sorted(ignore)},
        memory_limit,
        str(path),
    )


def duckdb_columns(path: Path, table: str | None, query: str | None) -> list[str]:
    """Names of the columns of a table, or of what a query returns."""
    return list(_duckdb_schema(path, table, query)[1].names)


def _duckdb_schema(path: Path, table: str | None, query: str | None) -> tuple[str, Any]:
    import_optional("pyarrow")
    import_optional("duckdb")
    screen(path, "duckdb")
    with _duckdb(path) as database:
        statement = _statement(path, table, query, lambda: _duckdb_tables(database))
        found = database.sql(statement)
        if found is None:
            raise InputError(f"{path}: query={statement!r} returns no rows; give a SELECT")
        return statement, found.to_arrow_reader(1).schema


def _duckdb_tables(database: Any) -> dict[str, bool]:
    """Names of tables (True) and views (False)."""
    found = database.execute(
        "SELECT table_name, table_type FROM information_schema.tables "
        "WHERE table_catalog = current_database()"
    )
    return {str(name): kind == "BASE TABLE" for name, kind in found.fetchall()}


def _connect(path: Path) -> AbstractContextManager[Any]:
    """A file open for reading: no other file, address or extension is used."""
    options = {
        "enable_external_access": "false",
        "autoload_known_extensions": "false",
        "autoinstall_known_extensions": "false",
        "lock_configuration": "true",
    }
    duckdb = import_optional("duckdb")
    return closing(duckdb.connect(str(path), read_only=True, config=options))


@contextmanager
def _duckdb(path: Path) -> Iterator[Any]:
    duckdb = import_optional("duckdb")
    try:
        with _connect(path) as database:
            yield database
    except (duckdb.CatalogException, duckdb.ParserException, duckdb.BinderException) as error:
        first = str(error).strip().split("\n")[0]
        raise InputError(f"{path}: the query failed ({first})") from error
    except duckdb.PermissionException as error:
        raise InputError(f"{path}: query= may only SELECT from this file") from error
    except duckdb.Error as error:
        raise damaged(path, error) from error


# -- tables whose cells have types of their own ------------------------------------------------


def _statement(
    path: Path, table: str | None, query: str | None, tables: Callable[[], dict[str, bool]]
) -> str:
    """What to ask of a database: all of its only table, of a named one, or a query."""
    if query is not None:
        if table is not None:
            raise InputError(
                f"dataset={table!r} and query={query!r} are mutually exclusive; use one"
            )
        return query
    held = tables()
    if table is None:
        own = [name for name, stored in held.items() if stored]  # a view may compute anything
        if len(own) != 1:
            raise InputError(
                f"{path} holds the tables {join_names(own) or '(none)'}; choose one with dataset="
            )
        table = own[0]
    elif table not in held:
        raise InputError(
            f"{path} has no table {table!r}; it has {join_names(list(held)) or 'none'}: choose "
            "one with dataset="
        )
    quoted = table.replace('"', '""')
    return f'SELECT * FROM "{quoted}"'


def _open_cells(
    cells: _Cells, ignore: Sequence[str], options: dict[str, Any], memory_limit: int
) -> Source:
    pa = import_optional("pyarrow")
    with closing(_counted(cells)) as rows:
        sample = list(islice(rows, SAMPLE_ROWS))
    if not sample:
        raise InputError(f"{cells.path} holds names of columns but no rows")
    columns = dict(zip(cells.names, zip(*sample, strict=True), strict=False))
    text = _text_columns(cells, columns, ignore)
    features, metadata = choose_columns(str(cells.path), cells.names, text, ignore)
    at = {name: j for j, name in enumerate(cells.names)}
    kinds = {name: _kind(pa, columns[name]) for name in metadata}

    def read_features(path: Path) -> Iterator[Any]:
        for start, batch in _batches(cells):
            values = [
                pa.array(_numbers(cells, batch, at[name], start), type=pa.float64())
                for name in features
            ]
            yield pa.record_batch(values, names=features)

    def read_metadata(path: Path) -> Iterator[Any]:
        for start, batch in _batches(cells):
            values = [
                _carried(cells, [row[at[name]] for row in batch], kinds[name], name, start)
                for name in metadata
            ]
            yield pa.record_batch(values, names=list(metadata))

    source = source_of_tables(
        [cells.path],
        features,
        metadata,
        read_features,
        read_metadata,
        damaged,
        options | {"ignore": sorted(ignore), "missing": sorted(cells.missing)},
        memory_limit,
        str(cells.path),
    )
    source.missing = tuple(cells.missing)
    return source


def _counted(cells: _Cells) -> Rows:
    """All rows; refused where they take more memory than a file of that size should hold."""
    size = cells.path.stat().st_size
    most, width = most_bytes(size), 8 * len(cells.names)
    for number, row in enumerate(cells.rows(), 1):
        if number * width > most:
            check_expansion(cells.path, number * width, size)
        yield row


def _batches(cells: _Cells) -> Iterator[tuple[int, list[Row]]]:
    """Some rows at a time, with the number of the first."""
    with closing(_counted(cells)) as rows:
        start = 0
        while batch := list(islice(rows, BATCH_ROWS)):
            yield start, batch
            start += len(batch)


def _is_number(cell: Any) -> bool:
    return isinstance(cell, (int, float))


def _is_missing(cells: _Cells, cell: Any) -> bool:
    return cell is None or (isinstance(cell, str) and cell.strip() in cells.missing)


def _text_columns(
    cells: _Cells, columns: dict[str, tuple[Any, ...]], ignore: Sequence[str]
) -> list[str]:
    """Columns that do not hold numbers; one that mostly does has wrong cells."""
    text, wrong = [], []
    for j, (name, column) in enumerate(columns.items()):
        seen = [(row, x) for row, x in enumerate(column) if not _is_missing(cells, x)]
        other = [(row, x) for row, x in seen if not _is_number(x)]
        if not other:
            continue
        if 2 * len(other) < len(seen) and name not in ignore:
            wrong += [(row, j, name, x) for row, x in other]
        text.append(name)
    if wrong:
        raise _not_numbers(cells, wrong)
    return text


def _not_numbers(cells: _Cells, wrong: list[tuple[int, int, str, Any]]) -> InputError:
    shown = "; ".join(
        f"{cells.place(row, j)}, column {name!r}, holds {str(cell)[:40]!r}"
        for row, j, name, cell in wrong[:BAD_SHOWN]
    )
    more = f"; and {len(wrong) - BAD_SHOWN} more" if len(wrong) > BAD_SHOWN else ""
    return InputError(
        f"{cells.path}: {shown}{more}; numbers are expected there: fix them, name what stands for "
        f"a missing value in missing=, or give ignore=[{wrong[0][2]!r}]"
    )


def _numbers(cells: _Cells, batch: list[Row], j: int, start: int) -> list[float | None]:
    found: list[float | None] = []
    for row, cells_of_row in enumerate(batch):
        cell = cells_of_row[j]
        if _is_number(cell):
            try:
                found.append(float(cell))
            except OverflowError:
                raise _not_numbers(cells, [(start + row, j, cells.names[j], cell)]) from None
        elif _is_missing(cells, cell):
            found.append(None)
        else:
            raise _not_numbers(cells, [(start + row, j, cells.names[j], cell)])
    return found


def _kind(pa: Any, column: Sequence[Any]) -> Any:
    """The Arrow type that a metadata column keeps: whole numbers, numbers, dates, or text."""
    seen = {type(cell) for cell in column if cell is not None}
    kinds: list[tuple[set[type], Any]] = [
        ({bool}, pa.bool_()),
        ({int}, pa.int64()),
        ({int, float}, pa.float64()),
        ({datetime.datetime}, pa.timestamp("us")),
    ]
    return next((kind for types, kind in kinds if seen and seen <= types), pa.string())


def _carried(cells: _Cells, column: list[Any], kind: Any, name: str, start: int) -> Any:
    pa = import_optional("pyarrow")
    if kind == pa.string():
        column = [cell if cell is None else _as_text(cell) for cell in column]
    try:
        return pa.array(column, type=kind)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
        raise FileFormatError(
            f"{cells.path}: from row {start} on, the column {name!r} contains something other than "
            f"{kind} ({error}); use one type per column"
        ) from error


def _as_text(cell: Any) -> str:
    if isinstance(cell, bytes):
        return cell.hex()
    return cell.isoformat() if hasattr(cell, "isoformat") else str(cell)


def table_columns(path: Path, form: str, dataset: str | None, query: str | None) -> Any:
    """Names of all columns of a spreadsheet or database; None where a sheet has none."""
    if form in EXCEL:
        return excel_columns(path, dataset)
    return (sqlite_columns if form in SQLITE else duckdb_columns)(path, dataset, query)
