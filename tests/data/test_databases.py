"""Spreadsheets, databases, archives, standard input and addresses, as people have them."""

import http.server
import io
import sqlite3
import sys
import threading
import zipfile
from contextlib import closing
from functools import partial
from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import fewer
from fewer.cli import app
from fewer.data import fetch
from fewer.data.open import column_names
from fewer.data.source import read_all, read_metadata
from fewer.errors import FewerError, FileFormatError, InputError, MissingExtraError

duckdb = pytest.importorskip("duckdb", reason="duckdb is not installed")
openpyxl = pytest.importorskip("openpyxl", reason="openpyxl is not installed")

RNG = np.random.default_rng(0)
FRAME = pd.DataFrame(RNG.normal(size=(40, 3)), columns=["a", "b", "c"]).assign(
    id=[f"p{i}" for i in range(40)], number=range(100, 140)
)


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FEWER_CACHE", str(tmp_path / "cache"))
    fetch.fetched.cache_clear()


def sqlite(path, **tables):
    with closing(sqlite3.connect(path)) as database:
        for name, frame in (tables or {"rows": FRAME}).items():
            frame.to_sql(name, database, index=False)
        database.commit()
    return path


def duck(path, **tables):
    with closing(duckdb.connect(path)) as database:
        for name, frame in (tables or {"rows": FRAME}).items():
            database.register("frame", frame)
            database.execute(f'CREATE TABLE "{name}" AS SELECT * FROM frame')
    return path


def sheet(path, *rows, title="Sheet", more=()):
    book = openpyxl.Workbook()
    book.active.title = title
    for row in rows:
        book.active.append(row)
    for name in more:
        book.create_sheet(name).append(["x", "y"])
    book.save(path)
    return path


def metadata(source):
    return next(iter(read_metadata(source)))


# -- tables in a file --------------------------------------------------------------------------


@pytest.mark.parametrize("make", [partial(sqlite), partial(duck)])
def test_tables_and_queries(tmp_path, make):
    path = make(
        tmp_path / ("x.db" if make.func is sqlite else "x.duckdb"), one=FRAME, two=FRAME[:5]
    )
    with pytest.raises(InputError, match="holds the tables 'one', 'two'; choose one with dataset="):
        fewer.data.open(path)
    ignore = ["id", "number"]
    found = fewer.data.open(path, dataset="two", ignore=ignore)
    np.testing.assert_allclose(read_all(found), FRAME[["a", "b", "c"]][:5], rtol=1e-6)
    some = fewer.data.open(path, query="SELECT a, b FROM one WHERE a > 0 ORDER BY b")
    expected = FRAME[FRAME.a > 0].sort_values("b")[["a", "b"]]
    np.testing.assert_allclose(read_all(some), expected, rtol=1e-6)
    with pytest.raises(InputError, match="mutually exclusive"):
        fewer.data.open(path, dataset="one", query="SELECT a FROM one")
    with pytest.raises(InputError, match="has no table 'nothing'; it has 'one', 'two': choose"):
        fewer.data.open(path, dataset="nothing")
    with pytest.raises(InputError, match="delimiter=';' does not apply to"):
        fewer.data.open(path, delimiter=";", dataset="one")


@pytest.mark.parametrize("make", [sqlite, duck])
def test_views_are_read_if_they_are_named(tmp_path, make):
    path = make(tmp_path / ("x.db" if make is sqlite else "x.duckdb"))
    connect = sqlite3.connect if make is sqlite else duckdb.connect
    with closing(connect(path)) as database:
        database.execute("CREATE VIEW positive AS SELECT a, b FROM rows WHERE a > 0")
        if make is sqlite:
            database.commit()
    assert fewer.data.open(path, dataset="positive").shape == ((FRAME.a > 0).sum(), 2)
    assert fewer.data.open(path, ignore=["id", "number"]).shape == (40, 3)


@pytest.mark.parametrize("make", [sqlite, duck])
def test_a_query_reaches_nothing_but_its_file(tmp_path, make):
    path = make(tmp_path / ("x.db" if make is sqlite else "x.duckdb"))
    other = tmp_path / "other.db"
    before = path.read_bytes()
    for query in (
        f"ATTACH '{other}' AS other",
        "DROP TABLE rows",
        "INSERT INTO rows (a) VALUES (1)",
        f"SELECT * FROM read_csv('{__file__}')",
        "PRAGMA temp_store_directory = '/'",
        f"COPY rows TO '{other}'",
        "SELECT",
        "",
    ):
        with pytest.raises(FewerError):
            fewer.data.open(path, query=query)
    assert not other.exists()
    assert path.read_bytes() == before


def test_metadata_keeps_its_types(tmp_path):
    when = pd.Timestamp("2026-03-01 12:30")
    frame = FRAME.assign(when=when)
    frame.to_excel(tmp_path / "x.xlsx", index=False)
    ignore = ["id", "number", "when"]
    for path in (tmp_path / "x.xlsx", duck(tmp_path / "x.duckdb", rows=frame)):
        found = metadata(fewer.data.open(path, ignore=ignore))
        assert str(found.schema.field("number").type) == "int64"
        assert found.column("when").to_pylist()[0] == when
    found = metadata(fewer.data.open(sqlite(tmp_path / "x.db"), ignore=["id", "number"]))
    assert found.column("number").to_pylist() == list(range(100, 140))


def test_first_or_named_sheet_leading_rows_and_columns_without_names(tmp_path):
    path = sheet(
        tmp_path / "x.xlsx",
        [],
        ["a", None, "b"],
        [1, 2, 3],
        [],
        [4, "n/a", None],
        more=["other"],
    )
    found = fewer.data.open(path)
    assert found.names == ["a", "(column 1)", "b"]
    np.testing.assert_array_equal(read_all(found), [[1, 2, 3], [4, np.nan, np.nan]])
    with pytest.raises(InputError, match="names of columns but no rows"):
        fewer.data.open(path, dataset="other")
    with pytest.raises(InputError, match="no sheet 'none'; it has 'Sheet', 'other'"):
        fewer.data.open(path, dataset="none")
    numbers = sheet(tmp_path / "n.xlsx", [1, 2], [3, 4])
    assert fewer.data.open(numbers).names is None
    assert fewer.data.open(numbers).shape == (2, 2)
    assert fewer.data.open(numbers, header=True).names == ["1", "2"]


def test_wrong_cells_are_named_by_their_place(tmp_path):
    rows = [[i, i / 2] for i in range(10)]
    rows[6][1] = "broken"
    path = sheet(tmp_path / "x.xlsx", ["a", "b"], *rows)
    with pytest.raises(InputError, match="cell B8, column 'b', holds 'broken'; numbers are expec"):
        fewer.data.open(path)
    assert fewer.data.open(path, ignore=["b"]).shape == (10, 1)
    np.testing.assert_array_equal(
        np.isnan(read_all(fewer.data.open(path, missing=["broken"]))[:, 1]), np.arange(10) == 6
    )
    with pytest.raises(InputError, match="cell C2 has a value, but no column name"):
        fewer.data.open(sheet(tmp_path / "y.xlsx", ["a", "b"], [1, 2, 3]))


def test_a_wrong_cell_far_down_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr("fewer.data.databases.SAMPLE_ROWS", 5)
    with closing(sqlite3.connect(tmp_path / "x.db")) as database:
        database.execute("CREATE TABLE rows (a, b)")
        database.executemany("INSERT INTO rows VALUES (?, 1.0)", [[1.5]] * 8 + [["late"]])
        database.commit()
    with pytest.raises(InputError, match="row 8, column 'a', holds 'late'"):
        fewer.data.open(tmp_path / "x.db")


# -- files that lie ----------------------------------------------------------------------------


def edited(path, name, change):
    """An Excel file with one of its parts changed."""
    with zipfile.ZipFile(path) as archive:
        parts = {item: archive.read(item) for item in archive.namelist()}
    parts[name] = change(parts[name])
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for item, content in parts.items():
            archive.writestr(item, content)
    return path


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b'<dimension ref="A1:B2"', b'<dimension ref="A1:XFD1048576"'),
        (b'<row r="2"', b'<row r="99999"'),
    ],
)
def test_claimed_sizes_of_a_sheet_take_no_memory(tmp_path, before, after):
    path = sheet(tmp_path / "x.xlsx", ["a", "b"], [1, 2])
    edited(path, "xl/worksheets/sheet1.xml", lambda text: text.replace(before, after))
    assert fewer.data.open(path).shape == (1, 2)


def test_rows_beyond_the_largest_sheet_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("fewer.data.databases.EXCEL_ROWS", 10_000)
    path = sheet(tmp_path / "x.xlsx", ["a", "b"], [1, 2])
    edited(
        path,
        "xl/worksheets/sheet1.xml",
        lambda text: text.replace(b'<row r="2"', b'<row r="999999999999"'),
    )
    with pytest.raises(FileFormatError, match="damaged or truncated"):
        fewer.data.open(path)


def test_entities_that_expand_without_end_are_refused(tmp_path):
    path = sheet(tmp_path / "x.xlsx", ["a", "b"], [1, 2])
    names = "abcdefghij"
    entities = '<!ENTITY a "aaaaaaaaaa">' + "".join(
        f'<!ENTITY {name} "{f"&{before};" * 10}">' for before, name in pairwise(names)
    )

    def change(text):
        return f"<!DOCTYPE x [{entities}]>".encode() + text.replace(b"<v>1</v>", b"<v>&j;</v>")

    edited(path, "xl/worksheets/sheet1.xml", change)
    with pytest.raises(FileFormatError, match="damaged or truncated"):
        fewer.data.open(path)


def test_a_sheet_that_unpacks_to_far_more_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("fewer.data.screen.LEAST", 1000)
    monkeypatch.setattr("fewer.data.screen.RATIO", 2)
    path = sheet(tmp_path / "x.xlsx", ["a", "b"], *[[1, 2]] * 5000)
    with pytest.raises(FileFormatError, match=r"declares .* of data in a file"):
        fewer.data.open(path)


def test_an_archive_that_unpacks_to_far_more_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("fewer.data.screen.LEAST", 1000)
    monkeypatch.setattr("fewer.data.screen.RATIO", 10)
    for name in ("x.csv.zip", "x.csv.bz2"):
        pd.DataFrame({"a": [1] * 50_000, "b": 2}).to_csv(tmp_path / name, index=False)
        with pytest.raises(FileFormatError, match="unpacks to more than"):
            fewer.data.open(tmp_path / name)


@pytest.mark.parametrize("form", ["x.xlsx", "x.db", "x.duckdb", "x.csv.zip", "x.csv.bz2"])
def test_truncated_files(tmp_path, form):
    path = tmp_path / form
    if form == "x.db":
        sqlite(path)
    elif form == "x.duckdb":
        duck(path)
    elif form == "x.xlsx":
        FRAME.to_excel(path, index=False)
    else:
        FRAME.to_csv(path, index=False)
    whole = path.read_bytes()
    for share in (0, 0.3, 0.9):
        path.write_bytes(whole[: int(share * len(whole))])
        with pytest.raises((FileFormatError, InputError)):
            fewer.data.open(path, ignore=["id", "number"])


def test_other_archives_in_a_folder_are_passed_over(tmp_path):
    (tmp_path / "rows").mkdir()
    FRAME.to_csv(tmp_path / "rows" / "a.csv.zip", index=False)
    with zipfile.ZipFile(tmp_path / "rows" / "pictures.zip", "w") as archive:
        archive.writestr("one.png", b"x")
    (tmp_path / "rows" / "broken.zip").write_bytes(b"PK")
    assert fewer.data.open(tmp_path / "rows", ignore=["id", "number"]).shape == (40, 3)
    with pytest.raises(InputError, match=r"holds 'one\.png'; only an archive of a single"):
        fewer.data.open(tmp_path / "rows" / "pictures.zip")
    with pytest.raises(FileFormatError, match="damaged or truncated"):
        fewer.data.open(tmp_path / "rows" / "broken.zip")


def test_archives_must_hold_one_text_file(tmp_path):
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        archive.writestr("a.csv", "a,b\n1,2\n")
    assert fewer.data.open(tmp_path / "x.zip").shape == (1, 2)
    with zipfile.ZipFile(tmp_path / "x.zip", "a") as archive:
        archive.writestr("b.csv", "a,b\n1,2\n")
    with pytest.raises(InputError, match=r"holds 'a.csv', 'b.csv'; only an archive of a single"):
        fewer.data.open(tmp_path / "x.zip")


# -- standard input and addresses --------------------------------------------------------------


class Stdin:
    def __init__(self, content):
        self.buffer = io.BytesIO(content)

    def isatty(self):
        return False


def test_standard_input(monkeypatch):
    monkeypatch.setattr(sys, "stdin", Stdin(FRAME.to_csv(index=False).encode()))
    assert fewer.data.open("-", ignore=["id", "number"]).shape == (40, 3)
    assert fewer.data.open("-", ignore=["id", "number"]).shape == (40, 3)  # it is kept
    fetch.fetched.cache_clear()
    monkeypatch.setattr(sys, "stdin", Stdin(b""))
    with pytest.raises(InputError, match="is empty") as caught:
        fewer.data.open("-")
    assert fetch.name_originals(str(caught.value)).startswith("standard input is empty")


def test_standard_input_may_be_parquet(monkeypatch):
    content = io.BytesIO()
    FRAME.to_parquet(content)
    monkeypatch.setattr(sys, "stdin", Stdin(content.getvalue()))
    assert fewer.data.open("-", ignore=["id"]).shape == (40, 4)


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *words):
        pass


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_addresses_are_fetched(tmp_path):
    FRAME.to_csv(tmp_path / "rows.csv", index=False)
    handler = partial(Quiet, directory=tmp_path)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}"
        found = fewer.data.open(f"{address}/rows.csv?version=2", ignore=["id", "number"])
        np.testing.assert_allclose(read_all(found), FRAME[["a", "b", "c"]], rtol=1e-6)
        with pytest.raises(InputError, match=r"http://127.*gone.csv does not exist"):
            fewer.data.open(f"{address}/gone.csv")
        with pytest.raises(InputError, match="is not a file"):
            fewer.data.open(address)
        options = {"strategies": ["search"], "validation": 0.2, "random_state": 0}
        with pytest.warns(fewer.errors.FewerWarning, match="non-numeric columns"):
            panel = fewer.select(f"{address}/rows.csv?key=secret", 2, **options)
        assert panel.evidence.source["path"] == f"{address}/rows.csv"  # a query may be a key
        server.shutdown()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_buckets_are_read(tmp_path, monkeypatch):
    """Against a server on this machine; `pip install "moto[server]" s3fs` runs it."""
    moto = pytest.importorskip("moto.server", reason="needs moto[server]")
    pytest.importorskip("s3fs")
    boto3 = pytest.importorskip("boto3")
    server = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    try:
        host, port = server.get_host_and_port()
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "somebody")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        client = boto3.client("s3")
        client.create_bucket(Bucket="lab")
        FRAME.to_csv(tmp_path / "rows.csv", index=False)
        FRAME.to_parquet(tmp_path / "rows.parquet")
        for name in ("rows.csv", "rows.parquet"):
            client.upload_file(str(tmp_path / name), "lab", f"2026/{name}")
            found = fewer.data.open(f"s3://lab/2026/{name}", ignore=["id", "number"])
            np.testing.assert_allclose(read_all(found), FRAME[["a", "b", "c"]], rtol=1e-6)
        with pytest.raises(InputError, match=r"there is no s3://lab/gone\.csv"):
            fewer.data.open("s3://lab/gone.csv")
        with pytest.raises(InputError, match=r"s3://nobody/rows\.csv"):
            fewer.data.open("s3://nobody/rows.csv")
        words = ["select", "s3://lab/2026/rows.csv", "-k", "2", "--ignore", "id,number"]
        result = CliRunner().invoke(app, [*words, "--out", str(tmp_path / "panel")])
        assert result.exit_code == 0, result.output
        panel = fewer.Panel.load(tmp_path / "panel")
        assert panel.evidence.source["path"] == "s3://lab/2026/rows.csv"
    finally:
        server.stop()


def test_addresses_of_other_kinds_say_what_they_need(monkeypatch):
    with pytest.raises(InputError, match=r"odd://x/y.csv cannot be read \(Protocol not known"):
        fewer.data.open("odd://x/y.csv")
    monkeypatch.setitem(sys.modules, "s3fs", None)
    with pytest.raises(MissingExtraError, match=r"s3:// .*pip install 'fewer\[remote\]'"):
        fewer.data.open("s3://bucket/y.csv")
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(MissingExtraError, match=r"need fsspec.*pip install 'fewer\[remote\]'"):
        fewer.data.open("https://example.org/y.csv")


@pytest.mark.parametrize(
    ("module", "name", "extra"), [("openpyxl", "x.xlsx", "excel"), ("duckdb", "x.duckdb", "duckdb")]
)
def test_missing_libraries_are_named(tmp_path, monkeypatch, module, name, extra):
    if name == "x.xlsx":
        sheet(tmp_path / name, ["a", "b"], [1, 2])
    else:
        duck(tmp_path / name)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtraError, match=rf"pip install 'fewer\[{extra}\]'"):
        fewer.data.open(tmp_path / name)


def test_columns_are_named_without_reading_rows(tmp_path):
    excel = sheet(tmp_path / "x.xlsx", list(FRAME), *FRAME[:2].to_numpy().tolist())
    for path in (duck(tmp_path / "x.duckdb"), sqlite(tmp_path / "x.db"), excel):
        assert column_names(path) == list(FRAME)
    assert column_names(sheet(tmp_path / "y.xlsx", [1, 2], [3, 4])) is None
    np.save(tmp_path / "x.npy", np.ones((2, 2)))
    with pytest.raises(InputError, match=r"only tables \(CSV, Parquet, Feather\) can be split"):
        fewer.data.open([tmp_path / "x.npy", tmp_path / "x.npy"])


def test_cells_that_no_column_can_hold(tmp_path, monkeypatch):
    with pytest.raises(InputError, match="the sheet is empty; choose another with dataset="):
        fewer.data.open(sheet(tmp_path / "empty.xlsx"))
    large = sheet(tmp_path / "large.xlsx", ["a", "b"], [1, 2], [12345678, 3])
    edited(large, "xl/worksheets/sheet1.xml", lambda text: text.replace(b"12345678", b"1" * 400))
    with pytest.raises(InputError, match=r"column 'a', holds '1111111.*; numbers are expected"):
        read_all(fewer.data.open(large))
    monkeypatch.setattr("fewer.data.databases.SAMPLE_ROWS", 5)
    with closing(sqlite3.connect(tmp_path / "x.db")) as database:
        database.execute("CREATE TABLE rows (a, note)")
        database.executemany("INSERT INTO rows VALUES (1.5, ?)", [*([7],) * 8, ["text"]])
        database.commit()
    source = fewer.data.open(tmp_path / "x.db", ignore=["note"])
    with pytest.raises(FileFormatError, match=r"from row \d+ on, the column 'note' contains some"):
        list(source.metadata())


def test_bytes_are_carried_as_hexadecimal_text(tmp_path):
    frame = pd.DataFrame({"a": [0.5, 1.5], "b": [1.0, 2.0], "raw": [b"\x01\xff", None]})
    source = fewer.data.open(sqlite(tmp_path / "x.db", rows=frame), ignore=["raw"])
    assert metadata(source)["raw"].to_pylist() == ["01ff", None]


def test_a_query_cannot_make_rows_without_end(tmp_path, monkeypatch):
    monkeypatch.setattr("fewer.data.screen.LEAST", 1000)
    monkeypatch.setattr("fewer.data.screen.RATIO", 2)
    query = "WITH RECURSIVE n(a) AS (SELECT 0 UNION ALL SELECT a + 1 FROM n) SELECT a, a * 2 FROM n"
    with pytest.raises(FileFormatError, match=r"declares .* of data in a file of"):
        fewer.data.open(sqlite(tmp_path / "x.db"), query=query)
