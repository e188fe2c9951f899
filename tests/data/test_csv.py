"""How text files are understood: separators, decimal commas, row labels, cells in errors."""

import gzip
import zipfile

import numpy as np
import pytest

import fewer
from fewer.data import read_all
from fewer.data.csv import Dialect, file_form, only_member
from fewer.errors import FewerWarning, FileFormatError, InputError


def opened(path, text, **options):
    path.write_text(text, encoding="utf-8")
    return fewer.data.open(path, **options)


@pytest.mark.parametrize(
    ("text", "names", "rows"),
    [
        ("a,b\n1,2\n3,4\n", ["a", "b"], [[1, 2], [3, 4]]),
        ("a;b\n1;2\n3;4\n", ["a", "b"], [[1, 2], [3, 4]]),
        ("a\tb\n1\t2\n3\t4\n", ["a", "b"], [[1, 2], [3, 4]]),
        # as many commas as semicolons in the first line: the comma is the more usual one
        ("a;x,b\n1,2\n3,4\n", ["a;x", "b"], [[1, 2], [3, 4]]),
        ("a\tx,b\n1,2\n3,4\n", ["a\tx", "b"], [[1, 2], [3, 4]]),
        # more semicolons than commas: the comma belongs to a name, or to a number
        ("a;b,x;c\n1;2;3\n4;5;6\n", ["a", "b,x", "c"], [[1, 2, 3], [4, 5, 6]]),
        ("a;b\n1,5;2\n3;4,25\n", ["a", "b"], [[1.5, 2], [3, 4.25]]),
        # a single decimal comma, in the last column of the last row
        ("a;b\n1;2\n3;4,5\n", ["a", "b"], [[1, 2], [3, 4.5]]),
        ("a;note\n1,5;x,y\n2;z\n", ["a"], [[1.5], [2]]),
        # a comma in text is no decimal comma
        ("a;note\n1.5;x,y\n2.5;z\n", ["a"], [[1.5], [2.5]]),
        ("one\n1\n2\n", ["one"], [[1], [2]]),
        ("a,b\n1,2\n\n3,4\n", ["a", "b"], [[1, 2], [3, 4]]),
    ],
)
@pytest.mark.filterwarnings("ignore:.*non-numeric columns were ignored")
def test_separators_and_decimal_commas(tmp_path, text, names, rows):
    source = opened(tmp_path / "x.csv", text)
    assert source.names == names
    np.testing.assert_array_equal(read_all(source), rows)


def test_a_tsv_is_separated_by_tabs_whatever_it_holds(tmp_path):
    source = opened(tmp_path / "x.tsv", "a,b,c\td\n1\t2\n")
    assert source.names == ["a,b,c", "d"]


def test_a_given_delimiter_wins(tmp_path):
    source = opened(tmp_path / "x.csv", "a|b,c|d\n1|2|3\n", delimiter="|")
    assert source.names == ["a", "b,c", "d"]


@pytest.mark.parametrize(
    "text",
    [
        ",a,b\nr1,1,2\nr2,3,4\n",
        "a,b\nr1,1,2\nr2,3,4\n",
        '"",a,b\n7,1,2\n8,3,4\n',
        "a,b\nr1,1,2\n",
    ],
)
def test_row_labels_without_a_name_are_metadata(tmp_path, text):
    source = opened(tmp_path / "x.csv", text)
    assert source.names == ["a", "b"]
    assert source.metadata_columns == ("(row labels)",)
    np.testing.assert_array_equal(read_all(source), [[1, 2], [3, 4]][: source.shape[0]])


def test_an_unnamed_column_in_the_middle_is_named_by_its_place(tmp_path):
    assert opened(tmp_path / "x.csv", "a,,c\n1,2,3\n").names == ["a", "(column 1)", "c"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b\n1,2\n3,4\n5,oops\n", r"line 4 \(row 2\), column 'b' holds 'oops'"),
        ("a,b\n1,2\n3,x4\n5,6\n7,8\n", r"line 3 \(row 1\), column 'b' holds 'x4'"),
        ("a;b\n1,5;2\n2,5;3\n3.5;4\n", r"line 4 \(row 2\), column 'a' holds '3.5'"),
        ("a,b\n1,2\n3\n", r"line 3 \(row 1\) has 1 values, but there are 2 columns"),
        ("a,b\n1\n2,3\n", r"line 2 \(row 0\) has 1 values, but there are 2 columns"),
        ("a,b\n1,2\n\n3,4,5\n", r"line 4 \(row 1\) has 3 values, but there are 2 columns"),
        ("5,2\n3,4\n5,oops\n", r"line 3 \(row 2\), column '1' holds 'oops'"),
        ("a,b\n1,true\n2,3\n3,4\n4,5\n", r"line 2 \(row 0\), column 'b' holds 'true'"),
        ("a,b\n1\n2,3\n", "2 columns; fix that line$"),
        ("a,b\n1\n2,3\n4,5,6\n", "2 columns; fix those lines$"),
        ("a,b\n1,2\n3,x\n4,5\n", "which is not a number; fix it, leave it empty"),
        ("a,b\n1,2\n3,x\n4,y\n5,6\n7,8\n", "which are not numbers; fix them, leave them empty"),
        ("a,b\n" + "1\n" * 5 + "3,4\n", r"line 6 \(row 4\) has 1 values, but"),
        ("a,b\n" + "1\n" * 6 + "3,4\n", r"line 6 \(row 4\) has 1 values; and 1 more, but"),
        # columns that hold as many words as numbers are not about numbers
        (
            "a,note\n1,x\n2,3\n5\n",
            r"line 4 \(row 2\) has 1 values, but there are 2 columns; [^;]*$",
        ),
    ],
)
def test_the_first_wrong_cell_is_named(tmp_path, text, message):
    with pytest.raises(InputError, match=message):
        read_all(opened(tmp_path / "x.csv", text))


def test_all_wrong_lines_and_cells_are_in_one_message(tmp_path):
    text = "id,a,b\n0,1,2\ny,bad,4\nz,5\nw,7,bad\nv,8,err\nu,9,10\nt,11,12\n"
    with pytest.raises(InputError) as caught:
        opened(tmp_path / "x.csv", text)
    message = str(caught.value)
    for part in (
        "line 4 (row 2) has 2 values, but there are 3 columns",
        "line 3 (row 1), column 'a' holds 'bad'",
        "line 5 (row 3), column 'b' holds 'bad'",
        "line 6 (row 4), column 'b' holds 'err'",
        "missing=['bad', 'err']",
        "ignore=['a', 'b']",
    ):
        assert part in message
    assert "'id'" not in message


def test_many_wrong_cells_are_counted(tmp_path, monkeypatch):
    monkeypatch.setattr("fewer.data.csv.MOST_BAD", 6)  # of which the place is kept
    rows = "".join(f"{i},{'x' if i % 3 == 0 else i}\n" for i in range(30))
    with pytest.raises(InputError, match=r"holds 'x'; and 5 more, which are not numbers"):
        opened(tmp_path / "x.csv", "a,b\n" + rows)


def test_dashes_are_missing_and_named_once(tmp_path):
    text = "name,a,b\nna,1,-\nn/a,2,n/a\nz,--,4\ny,3,-\n"
    with pytest.warns(FewerWarning) as caught:
        source = opened(tmp_path / "x.csv", text, ignore=["name"])
    assert len(caught) == 1
    message = str(caught[0].message)
    assert "'-' (2)" in message
    assert "'--' (1)" in message
    assert "'n/a' (1)" in message
    assert "'na'" not in message  # only in a text column
    expected = [[1, np.nan], [2, np.nan], [np.nan, 4], [3, np.nan]]
    np.testing.assert_array_equal(read_all(source), expected)
    names = [value for part in source.metadata() for value in part.column("name").to_pylist()]
    assert names == ["na", "n/a", "z", "y"]


def test_dashes_that_were_asked_for_are_not_named(tmp_path, recwarn):
    opened(tmp_path / "x.csv", "a,b\n1,-\n2,3\n", missing=["-"])
    assert not recwarn


def test_words_and_numbers_that_stand_for_missing_values(tmp_path):
    text = "a,b\n9999,1\n9999.0,2\n3,absent\n4,-1\n"
    source = opened(tmp_path / "x.csv", text, missing=["absent", 9999])
    np.testing.assert_array_equal(
        read_all(source), [[np.nan, 1], [np.nan, 2], [3, np.nan], [4, -1]]
    )


def zipped(path, files):
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return path


def test_an_archive_is_what_its_only_file_is(tmp_path):
    path = zipped(tmp_path / "x.zip", {"a.tsv": "a\tb,c\n1\t2\n3\t4\n"})
    assert file_form(path) == ".tsv"
    assert fewer.data.open(path).names == ["a", "b,c"]
    mac = zipped(
        tmp_path / "mac.zip", {"x.csv": "a,b\n1,2\n", "__MACOSX/x.csv": "?", "folder/": ""}
    )
    assert file_form(mac) == ".csv"
    assert file_form(tmp_path / "absent.zip") == ".zip"
    assert file_form(tmp_path / "absent.csv.zip") == ".csv"
    assert file_form(tmp_path / "x.h5.gz") == ".gz"
    other = zipped(tmp_path / "other.zip", {"x.npy": "?"})
    assert file_form(other) == ".zip"
    two = zipped(tmp_path / "two.zip", {"x.csv": "a\n1\n", "y.csv": "a\n1\n"})
    assert file_form(two) == ".zip"
    for path, names in (
        (other, "x.npy"),
        (two, "'x.csv', 'y.csv'"),
        (zipped(tmp_path / "e.zip", {}), "no file"),
    ):
        with pytest.raises(InputError, match=names):
            only_member(path)


@pytest.mark.parametrize(
    ("line", "header"),
    [
        ("0,1,2", True),  # the numbers of the columns
        ("1,2,3", True),
        ("2,3,4", False),
        ("1,2,4", False),
        ("1,1,2", False),
        ("3,2,1", False),
        ("a,2,3", True),
        ("1.5,2,3", False),
        ("NA,2,3", False),
    ],
)
@pytest.mark.filterwarnings("ignore:.*was read as data")
def test_numbers_in_the_first_line_are_names_only_if_they_count_columns(tmp_path, line, header):
    source = opened(tmp_path / "x.csv", f"{line}\n7,8,5\n9,6,3\n")
    assert source.shape == (2 if header else 3, 3)
    assert source.names == (line.split(",") if header else None)


def test_a_first_line_that_may_be_names_is_named(tmp_path, recwarn):
    with pytest.warns(FewerWarning, match="was read as data; use header=True"):
        opened(tmp_path / "years.csv", "1990,1995\n7,5\n9,6\n")
    opened(tmp_path / "sorted.csv", "1,5\n2,6\n3,7\n")  # every line ascends
    opened(tmp_path / "plain.csv", "5,1\n2,6\n3,7\n")
    opened(tmp_path / "equal.csv", "5,5\n6,2\n7,3\n")
    opened(tmp_path / "one.csv", "5,7\n")
    assert not [one for one in recwarn if "was read as data" in str(one.message)]


def test_as_many_points_as_commas_are_points(tmp_path):
    with pytest.warns(FewerWarning, match="non-numeric"):
        source = opened(tmp_path / "x.csv", "a;b\n1,5;2.5\n3;4\n")
    assert source.names == ["b"]


def test_an_unfinished_character_at_the_end_of_the_sample_is_no_error(tmp_path, monkeypatch):
    monkeypatch.setattr("fewer.data.csv.SAMPLE_BYTES", 7)
    monkeypatch.setattr("fewer.data.csv.FIRST_LINES", 1)
    source = opened(tmp_path / "x.csv", "a,b\n1,é\n2,è\n", ignore=["b"])  # "é" is bytes 6 and 7
    np.testing.assert_array_equal(read_all(source), [[1], [2]])
    (tmp_path / "y.csv").write_bytes(b"a,b\n1,2\n3,\xe9\n")
    monkeypatch.undo()
    with pytest.raises(InputError, match="byte 0xe9 in line 3"):
        fewer.data.open(tmp_path / "y.csv")


def test_dashes_are_looked_for_in_the_first_part_of_a_file(tmp_path, monkeypatch):
    text = "a,b\n" + "1,2\n" * 20 + "3,-\n-,-\n"
    with pytest.warns(FewerWarning, match=r"'-' \(3\)"):
        source = opened(tmp_path / "x.csv", text)
    assert source.dialect == Dialect(",", ".")
    assert np.isnan(read_all(source)).sum() == 3
    with pytest.warns(FewerWarning, match=r"'-' \(3\)"):
        opened(tmp_path / "z.csv", text.rstrip())  # without an end of the last line
    # a line that is cut in two is not counted
    monkeypatch.setattr("fewer.data.csv.SEARCHED_BYTES", len(text) - 1)
    with pytest.warns(FewerWarning, match=r"'-' \(1\)"):
        opened(tmp_path / "y.csv", text)


def test_dashes_are_looked_for_in_all_files(tmp_path, monkeypatch):
    texts = ["a,b\n1,2\n", "a,b\n-,2\n3,4\n", "a,b\n--,-\n5,6\n"]
    for number, text in enumerate(texts):
        (tmp_path / f"{number}.csv").write_text(text)
    paths = [tmp_path / f"{number}.csv" for number in range(3)]
    with pytest.warns(FewerWarning) as caught:
        fewer.data.open(paths)
    assert str(caught[0].message) == (
        f"{paths[1]}: cells with '-' (2), '--' (1) were read as missing values; "
        "missing=['-', '--'] silences this warning"
    )
    # up to so many bytes of all of them
    monkeypatch.setattr("fewer.data.csv.SEARCHED_BYTES", len(texts[0] + texts[1]))
    with pytest.warns(FewerWarning, match=r"cells with '-' \(1\) were"):
        fewer.data.open(paths)


def test_files_of_other_columns_are_named(tmp_path):
    for name, text in (("x.csv", "a,b\n1,2\n"), ("y.csv", "a,c\n1,2\n")):
        (tmp_path / name).write_text(text)
    with pytest.raises(InputError, match=r"y\.csv are not those of .*x\.csv: it lacks 'b'"):
        fewer.data.open([tmp_path / "x.csv", tmp_path / "y.csv"])


@pytest.mark.parametrize("packing", ["gz", "zip"])
def test_compressed_text_is_read_up_to_a_limit(tmp_path, packing, monkeypatch):
    text = "a,b\n1,2\n3,4\n"
    path = tmp_path / f"x.csv.{packing}"
    if packing == "zip":
        zipped(path, {"x.csv": text})
    else:
        path.write_bytes(gzip.compress(text.encode()))
    monkeypatch.setattr("fewer.data.csv.most_bytes", lambda size: len(text))
    np.testing.assert_array_equal(read_all(fewer.data.open(path)), [[1, 2], [3, 4]])
    monkeypatch.setattr("fewer.data.csv.most_bytes", lambda size: len(text) - 1)
    with pytest.raises(FileFormatError, match="unpacks to more than 11 bytes"):
        fewer.data.open(path)
    (tmp_path / "plain.csv").write_text(text)
    assert fewer.data.open(tmp_path / "plain.csv").shape == (2, 2)  # has its size


def test_points_need_no_commas(tmp_path):
    source = opened(tmp_path / "x.csv", "a;b\n1.5;2\n3;4\n")
    np.testing.assert_array_equal(read_all(source), [[1.5, 2], [3, 4]])
    assert source.dialect == Dialect(";", ".")
    comma = opened(tmp_path / "y.csv", "a;b\n1,5;2\n3;4\n")
    assert comma.dialect == Dialect(";", ",")
    tabs = opened(tmp_path / "z.tsv", "a\tb\n1\t2\n3\t4\n")
    assert tabs.dialect != Dialect("\t", ".")  # its name says it all
