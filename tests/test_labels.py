"""Labels as files, tables and arrays have them."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from sklearn.datasets import load_diabetes, load_iris

import fewer
from fewer.labels import are_codes, read_survival, with_gaps
from fewer.selection.target import read_target

CPU = {"random_state": 0, "device": "cpu", "validation": 0.2, "strategies": ["search"]}


@pytest.fixture(scope="module")
def flowers():
    """Flowers with names, some of them without."""
    data = load_iris(as_frame=True)
    names = np.array(["setosa", "versicolor", "virginica"], dtype=object)[data.target]
    names[::7] = None
    return data.data.assign(kind=names)


@pytest.fixture(scope="module")
def patients():
    """Patients with a number to predict, some of them without."""
    data = load_diabetes(as_frame=True)
    return data.data.assign(y=data.target.where(data.target.index % 7 > 0))


@pytest.mark.parametrize("word", ["NA", "?", "null", "-", "n/a"])
def test_words_for_missing_values_are_no_class(flowers, tmp_path, word, recwarn):
    flowers.to_csv(tmp_path / "flowers.csv", index=False, na_rep=word)
    panel = fewer.select(tmp_path / "flowers.csv", 2, target="kind", **CPU)
    assert panel.target.classes.tolist() == ["setosa", "versicolor", "virginica"]
    told = [str(one.message) for one in recwarn if "read as missing" in str(one.message)]
    assert bool(told) == (word in ("-", "n/a"))


@pytest.mark.parametrize("word", ["NA", "?", "--"])
def test_numbers_with_gaps_are_numbers(patients, tmp_path, word):
    patients.to_csv(tmp_path / "patients.csv", index=False, na_rep=word)
    panel = fewer.select(tmp_path / "patients.csv", 3, target="y", **CPU)
    assert panel.target.kind.name == "number"
    expected = fewer.select(patients.drop(columns="y"), 3, target=patients["y"], **CPU)
    assert panel.target.held_out == pytest.approx(expected.target.held_out)


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_numbers_that_mean_missing_are_no_labels(patients, tmp_path, form):
    table = patients.fillna({"y": 9999})
    path = tmp_path / f"patients.{form}"
    table.to_csv(path, index=False) if form == "csv" else table.to_parquet(path)
    source = fewer.data.open(path, ignore=["y"], missing=[9999])
    assert fewer.select(source, 3, target="y", **CPU).target.held_out > 0.3


def test_numbers_with_a_decimal_comma_are_numbers(patients, tmp_path):
    patients.to_csv(tmp_path / "p.csv", index=False, sep=";", decimal=",")
    panel = fewer.select(tmp_path / "p.csv", 3, target="y", **CPU)
    assert panel.target.kind.name == "number"


def test_codes_are_words_or_numbers():
    texts = np.array(["a", " NA ", "9999.0", "1", None], dtype=object)
    assert are_codes(texts, ["NA", "9999"]).tolist() == [False, True, True, False, False]
    assert are_codes(np.array([1, 9999]), ["NA", "9999"]).tolist() == [False, True]
    stored = np.array([-99.9, 1.0], dtype=np.float32)
    assert are_codes(stored, ["-99.9"]).tolist() == [True, False]
    assert not are_codes(np.array([True, False]), ["1"]).any()


def gappy(kind):
    """Classes 0, 1 and 2 with gaps, as several libraries have them."""
    y = [0, 1, 2, None] * 37 + [0, 1]
    made = {
        "pandas array": lambda: pd.array(y, dtype="Int64"),
        "pandas": lambda: pd.Series(y, dtype="Int8"),
        "pandas of Arrow": lambda: pd.Series(y, dtype="int64[pyarrow]"),
        "pandas table": lambda: pd.DataFrame({"y": pd.array(y, dtype="Int64")}),
        "polars": lambda: pytest.importorskip("polars").Series(y),
        "polars table": lambda: pytest.importorskip("polars").DataFrame({"y": y}),
        "Arrow": lambda: pa.array(y),
        "Arrow chunks": lambda: pa.chunked_array([pa.array(y)]),
        "Arrow table": lambda: pa.table({"y": y}),
        "masked": lambda: np.ma.array([one or 0 for one in y], mask=[one is None for one in y]),
    }
    return made[kind]()


@pytest.mark.parametrize(
    "kind",
    [
        *("pandas array", "pandas", "pandas of Arrow", "pandas table", "polars", "polars table"),
        *("Arrow", "Arrow chunks", "Arrow table", "masked"),
    ],
)
def test_whole_numbers_with_gaps_are_classes(flowers, kind):
    y, labelled = with_gaps(gappy(kind))
    assert (y.dtype.kind, y.ravel()[:3].tolist()) == ("i", [0, 1, 2])
    assert labelled[:5].tolist() == [True, True, True, False, True]
    if kind.startswith("Arrow"):
        found, _ = read_target(gappy(kind), flowers.drop(columns="kind"))
        assert (found.kind.name, found.classes.tolist()) == ("class", [0, 1, 2])


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (["a", None, "b"] * 50, "class"),
        ([True, None, False] * 50, "class"),
        ([0.5, None, 1.5] * 50, "number"),
        ([1, 2, 3] * 50, "class"),
    ],
)
def test_arrow_arrays_are_targets(flowers, values, kind):
    found, _ = read_target(pa.array(values), flowers.drop(columns="kind"))
    assert found.kind.name == kind
    assert len(found.known) == (150 if None not in values else 100)


def test_a_table_of_whole_numbers_with_gaps_has_several_targets(flowers):
    y = gappy("pandas")
    found, _ = read_target(pd.DataFrame({"a": y, "b": y}), flowers.drop(columns="kind"))
    assert [part.kind.name for part in found.kind.parts] == ["class", "class"]


def test_whole_numbers_with_gaps_in_a_file_are_classes(flowers, tmp_path):
    table = flowers.drop(columns="kind").assign(y=gappy("pandas"))
    table.to_parquet(tmp_path / "f.parquet")
    found, _ = read_target("y", tmp_path / "f.parquet")
    assert (found.kind.name, found.classes.tolist()) == ("class", [0, 1, 2])
    assert found.labelled.sum() == 113


TIME, EVENT = [3.5, 1.0, 2.0, 1.0], [1, 0, 1, 1]


@pytest.mark.parametrize(
    "fields",
    [
        [("event", int), ("time", float)],
        [("time", float), ("event", int)],
        [("e", bool), ("t", int)],
        [("cens", float), ("day", float)],
        [("day", float), ("cens", np.uint8)],
        [("x", "U1"), ("days", float)],
    ],
)
def test_fields_of_structured_arrays_are_told_apart(fields):
    first = fields[0][0] in ("event", "e", "cens", "x")
    pairs = zip(EVENT, TIME, strict=True) if first else zip(TIME, EVENT, strict=True)
    values, _ = read_survival(np.array(list(pairs), dtype=fields))
    assert values[:, 1].tolist() == EVENT
    assert values[:, 0].tolist() == np.array(TIME, dtype=fields[first][1]).tolist()


def test_labels_with_leading_zeros_are_text(flowers, tmp_path):
    table = flowers.drop(columns="kind").assign(y=["01", "1", "2"] * 50, w=["01", "02", "03"] * 50)
    table.to_csv(tmp_path / "f.csv", index=False)
    panel = fewer.select(tmp_path / "f.csv", 2, target="y", sample_weight="w", **CPU)
    assert panel.target.classes.tolist() == ["01", "1", "2"]
    read = {"y": table["y"].tolist()}
    score = panel.score_target(tmp_path / "f.csv", "y")
    assert score == panel.score_target(table, read["y"])
    found, _ = read_target("w", fewer.data.open(tmp_path / "f.csv", ignore=["y", "w"]), "count")
    assert found.values[:3, 0].tolist() == [1, 2, 3]
