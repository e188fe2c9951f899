"""What users type after options, and files of costs, groups and sets: values, and errors."""

import pytest

from fewer._checks import join_and
from fewer.cli import _parsing as parse
from fewer.errors import InputError

NAMES = ["a", "b", "c, d"]


@pytest.fixture
def file(tmp_path):
    def write(text):
        path = tmp_path / "x.csv"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


def test_files_of_two_columns(file):
    assert parse.costs(file("feature,cost\n\na,1.5\nb,2\n"), NAMES, None) == {"a": 1.5, "b": 2.0}
    table = file('feature;euros;hours\na;1;2\n"c, d";3;4\n')
    found = parse.costs(table, NAMES, {"hours": 5.0, "euros": 9.0})
    assert found == {"hours": {"a": 2.0, "c, d": 4.0}, "euros": {"a": 1.0, "c, d": 3.0}}
    assert parse.groups(file("feature,group\na,left\nb,left\n"), NAMES) == {
        "a": "left",
        "b": "left",
    }
    found = parse.sets(file("feature\tset\na\tone\nb\tone\n"), NAMES, ["1"], ["one=2"])
    assert found == {"sets": {"one": ["a", "b"]}, "at_least": {"one": 1}, "at_most": {"one": 2}}
    assert parse.groups(file("0,left\n2,right\n"), None) == {0: "left", 2: "right"}
    assert parse.costs(None, NAMES, None) is None


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a,1\nb,cheap\n", r"line 2: the cost of 'b' is 'cheap', not a number"),
        ("a,1\nb,2,3\n", r"line 2 has 3 values; it must have two"),
        ("x,1\ny,2\n", r"no feature in --costs .* is in the data: 'x', 'y'"),
        (b"a,1\n\xff,2\n", r"is not a text file of two columns in UTF-8"),
        ('a,"' + "1" * 200_000, r"is not a text file of two columns \(field larger"),
    ],
)
def test_files_of_costs_that_are_wrong(file, text, reason):
    with pytest.raises(InputError, match=reason):
        parse.costs(file(text), NAMES, None)


def test_files_that_cannot_be_read(file, tmp_path, monkeypatch):
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for path, reason in (
        (tmp_path / "nothing", "no such file"),
        (tmp_path, "no such file"),
        (tmp_path / "loop", "cannot be read"),
    ):
        with pytest.raises(InputError, match=reason):
            parse.groups(path, NAMES)
    monkeypatch.setattr(parse, "MOST_TEXT", 10)
    with pytest.raises(InputError, match="has more than 10 bytes; use a text file of two"):
        parse.groups(file("a,left\nb,right\n"), NAMES)


def test_lists_of_features(file):
    assert parse.features(["c, d", "b,a", "*"], NAMES, "--include") == ["c, d", "b", "a"]
    listed = file('# of the first run\nb\n\n"c, d"\na,ignored\n')
    assert parse.features([str(listed)], NAMES, "--include") == ["b", "c, d", "a"]
    assert parse.features(["3,1"], None, "--include") == [3, 1]
    assert parse.split_values("x" * 200_000) == ["x" * 200_000]
    with pytest.raises(InputError, match="--exclude: no feature matches 'q"):
        parse.features(["q*"], NAMES, "--exclude")
    with pytest.raises(InputError, match=r"--include none.txt: no such file or feature"):
        parse.features(["none.txt"], NAMES, "--include")


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (lambda path: parse.budget(["much"]), "--budget much: use a number, or NAME=100"),
        (lambda path: parse.budget(["5", "hours=3"]), "use one --budget, or --budget NAME=100 for"),
        (lambda path: parse.sets(None, NAMES, ["2"], []), "--at-least requires --sets FILE"),
        (lambda path: parse.sets(path, NAMES, [], ["few"]), "few: use a whole number, or NAME=2"),
        (lambda path: parse.sets(path, NAMES, ["x=1"], []), "'x'.*a set of --sets"),
        (lambda path: parse.costs(path, NAMES, {"hours": 1}), "has no column 'hours'; its columns"),
        (lambda path: parse.decoder("320,0"), "--decoder 320,0: use auto, linear, or widths"),
        (lambda path: parse.sizes("1:9:2:3"), "--k 1:9:2:3: use sizes such as"),
        (lambda path: parse.sizes("few"), "--k few: use sizes such as"),
        (lambda path: parse.sizes("5:1"), "--k 5:1: use sizes such as"),
    ],
)
def test_values_that_are_wrong(file, call, reason):
    with pytest.raises(InputError, match=reason):
        call(file("a,one\nb,one\n"))


def test_values():
    assert parse.budget(["5"]) == 5.0
    assert parse.budget(["hours=3", "euros=2"]) == {"hours": 3.0, "euros": 2.0}
    assert parse.budget([]) is None
    assert parse.decoder("32, 16") == (32, 16)
    assert parse.sizes("2:10:4") == [2, 6, 10]
    assert parse.sizes("9,2") == [2, 9]
    assert [parse.validation(text) for text in ("5", "0.2", "time")] == [5, 0.2, "time"]


def test_lists_in_sentences():
    parts = ["a", "b", "c"]
    assert [join_and(parts[:n]) for n in range(1, 4)] == ["a", "a and b", "a, b and c"]
