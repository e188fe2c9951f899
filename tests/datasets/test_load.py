"""Loading by name: what is there, what is missing, what is damaged."""

from types import SimpleNamespace

import numpy as np
import pytest

from fewer.datasets import NAMES, load
from fewer.datasets import load as load_function
from fewer.datasets.catalogue import read_npz
from fewer.datasets.loader import canonical, from_arrays
from fewer.errors import FileFormatError, InputError

SHAPES = {
    "mnist": (70000, 784, 10),
    "fashion": (70000, 784, 10),
    "isolet": (7797, 617, 26),
    "coil20": (1440, 400, 20),
    "mice": (1080, 77, 8),
    "har": (10299, 561, 6),
    "tcga": (1204, 3556, 11),
    "luad": (576, 20502, 2),
    "digits": (1797, 64, 10),
}


@pytest.fixture
def empty(tmp_path, monkeypatch):
    """No data set anywhere: an empty data folder and an empty cache."""
    monkeypatch.setenv("FEWER_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(
        "fewer.datasets.loader.fetch_openml", lambda **options: pytest.fail("network")
    )
    (tmp_path / "data").mkdir()
    return tmp_path


@pytest.mark.parametrize("name", SHAPES)
def test_what_a_set_holds(data_folder, name):
    data = load(name)
    n, d, classes = SHAPES[name]
    assert data.X.shape == (n, d)
    assert len(data.names) == d
    assert len(data.y) == n
    assert sorted(set(data.y)) == list(range(classes))
    assert len(data.target_names) == classes
    assert data.groups is None or len(data.groups) == n
    assert data.image_shape is None or np.prod(data.image_shape) == d
    assert data.largest is None or data.largest == data.X.max()
    assert all((data.description, data.source, data.licence, data.digest))
    assert not data.synthetic


def test_landmarks(data_folder):
    assert load("tcga").landmarks.sum() == 450
    assert load("luad").landmarks.sum() == 978


def test_missing_values_stay_missing(data_folder):
    assert np.isnan(load("mice").X).sum() == 1396


@pytest.mark.parametrize(
    ("name", "way"),
    [
        ("mnist", r"load\('mnist', download=True\) fetches it from OpenML \(set 554\)"),
        ("tcga", r"cannot be fetched automatically: .*Genomic Data Commons"),
        ("geo", r"preprocess.sh.*load\('geo-synthetic'\)"),
    ],
)
def test_a_missing_file_says_where_to_get_it(empty, name, way):
    with pytest.raises(InputError, match=way):
        load(name)


def test_an_unknown_name_has_a_suggestion():
    with pytest.raises(
        InputError, match=r"no data set 'coil'; did you mean 'coil20'\? available: mn"
    ):
        load("coil")
    with pytest.raises(InputError, match=r"no data set 'xyz'; available: mnist, "):
        load("xyz")
    with pytest.raises(InputError, match=r"digits has no options; got 'n'"):
        load("digits", n=3)


def test_other_values_are_refused(empty, data_folder_copy):
    stored = dict(data_folder_copy)
    stored["X"] = stored["X"].copy()
    stored["X"][3, 5] += 0.01
    path = empty / "data" / "mice_protein.npz"
    np.savez_compressed(path, **stored)
    with pytest.raises(FileFormatError, match=r"does not hold the published values of mice"):
        load("mice")
    changed = load("mice", verify=False)
    assert changed.X[3, 5] == stored["X"][3, 5]
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(FileFormatError, match=r"mice_protein.npz cannot be read"):
        load("mice")
    np.savez_compressed(path, **{"X": stored["X"]})
    with pytest.raises(FileFormatError, match=r"lacks y, target_names"):
        load("mice")


def test_pickled_objects_are_refused(empty):
    path = empty / "data" / "mice_protein.npz"
    np.savez(path, X=np.array([{"a": 1}], dtype=object))
    with pytest.raises(FileFormatError, match="cannot be read"):
        load("mice")


def test_the_cache_is_searched(empty, data_folder_copy):
    (empty / "cache" / "fewer").mkdir(parents=True)
    np.savez_compressed(empty / "cache" / "fewer" / "mice_protein.npz", **data_folder_copy)
    assert load("mice").X.shape == (1080, 77)


def test_a_download_is_verified_and_cached(empty, data_folder_copy, monkeypatch):
    """With OpenML's answer put together from the local file: its order of rows and types."""
    stored = data_folder_copy

    class Answer:
        data = stored["X"].astype(np.float64)
        target = stored["target_names"][stored["y"]].astype(object)
        feature_names = tuple(stored["feature_names"])

    monkeypatch.setattr("fewer.datasets.loader.fetch_openml", lambda **options: Answer)
    data = load_function("mice", download=True)
    mouse = stored["mouse_id"]
    assert np.array_equal(data.groups[:-1] == data.groups[1:], mouse[:-1] == mouse[1:])
    monkeypatch.setattr(
        "fewer.datasets.loader.fetch_openml", lambda **options: pytest.fail("fetched twice")
    )
    again = load("mice")  # now from the cache
    assert again.digest == data.digest
    assert [path.name for path in (empty / "cache" / "fewer").iterdir()] == ["mice_protein.npz"]
    Answer.data = Answer.data + 1
    (empty / "cache" / "fewer" / "mice_protein.npz").unlink()
    monkeypatch.setattr("fewer.datasets.loader.fetch_openml", lambda **options: Answer)
    with pytest.raises(FileFormatError, match="what OpenML sent does not hold the published"):
        load("mice", download=True)
    assert list((empty / "cache" / "fewer").iterdir()) == []


def test_a_download_with_other_values_than_our_copy_loads_again(empty, data_folder, monkeypatch):
    stored = read_npz(data_folder / "har.npz")

    class Answer:
        data = stored["X"] + 1  # OpenML's HAR differs from the copy that was recomputed
        target = (stored["y"] + 1).astype(str).astype(object)
        feature_names = tuple(stored["feature_names"])

    monkeypatch.setattr("fewer.datasets.loader.fetch_openml", lambda **options: Answer)
    first = load("har", download=True)
    assert load("har").digest == first.digest


def test_a_network_failure_is_one_error(empty, monkeypatch):
    def fail(**options):
        raise OSError("no route to host")

    monkeypatch.setattr("fewer.datasets.loader.fetch_openml", fail)
    with pytest.raises(FileFormatError, match=r"could not be fetched.*no route to host.*FEWER_"):
        load("isolet", download=True)


def test_a_copy_without_subjects_cannot_be_split_by_subject(data_folder):
    stored = read_npz(data_folder / "har.npz")
    arrays = canonical("har", stored["X"], stored["y"] + 1, stored["feature_names"])
    data = from_arrays("har", arrays)
    with pytest.raises(InputError, match="does not say which rows belong to one subject"):
        data.split("clean")
    assert len(data.split("paper").test) == 2060


@pytest.fixture(scope="session")
def data_folder_copy(data_folder):
    return read_npz(data_folder / "mice_protein.npz")


def test_every_name_is_documented():
    for name in NAMES:
        assert f'"{name}"' in load.__doc__


@pytest.mark.parametrize("what", ["mouse_id", "feature_names", "target_names"])
def test_other_groups_and_names_are_refused(empty, data_folder_copy, what):
    stored = dict(data_folder_copy)
    stored[what] = np.roll(stored[what], 1)
    np.savez_compressed(empty / "data" / "mice_protein.npz", **stored)
    meant = {"mouse_id": "groups", "feature_names": "names"}.get(what, what)
    with pytest.raises(FileFormatError, match=f"does not hold the published {meant} of mice"):
        load("mice")
    assert load("mice", verify=False).X.shape == (1080, 77)


def test_order_of_rows_and_labels_of_groups_do_not_matter(empty, data_folder_copy):
    order = np.random.default_rng(0).permutation(1080)
    stored = {
        key: part[order] if len(part) == 1080 else part for key, part in data_folder_copy.items()
    }
    stored["mouse_id"] = np.unique(stored["mouse_id"], return_inverse=True)[1].astype(str)
    np.savez_compressed(empty / "data" / "mice_protein.npz", **stored)
    assert len(np.unique(load("mice").groups)) == 72


# -- without the benchmark sets: small ones in their form -----------------------------------------


def small_answer(name):
    """Rows in the form in which OpenML sends a set, with the number of rows that it has."""
    n = {"mnist": 70_000, "isolet": 7797, "mice": 150, "har": 60}[name]
    values = np.random.default_rng(0).integers(0, 255, (n, 3)).astype(float)
    labels = np.arange(n) % 6 + (name != "mnist")
    names = np.array(["c-CS-s", "t-SC-m"])[labels % 2] if name == "mice" else labels.astype(str)
    columns = tuple("abc")
    return SimpleNamespace(data=values, target=names.astype(object), feature_names=columns)


@pytest.mark.parametrize(
    ("name", "columns", "parts"),
    [
        ("mnist", ["pixel_0_0", "pixel_0_1"], 70_000),
        ("isolet", ["isolet_0", "isolet_1"], 5),
        ("mice", ["a", "b"], 10),
        ("har", ["a", "b"], None),
    ],
)
def test_the_form_of_openml_becomes_ours(empty, monkeypatch, name, columns, parts):
    answer = small_answer(name)
    monkeypatch.setattr("fewer.datasets.loader.fetch_openml", lambda **options: answer)
    data = load(name, download=True, verify=False)
    np.testing.assert_array_equal(data.X, answer.data)
    assert data.names.tolist()[:2] == columns
    assert data.y.min() == 0
    paper = data.split("paper", seed=1)
    assert not set(paper.fit) & set(paper.test)
    if parts is None:
        with pytest.raises(InputError, match="does not say which rows belong to one subject"):
            data.split()
        assert load(name).digest == data.digest  # from the cache; OpenML's values are not ours
        return
    if data.groups is None:
        assert (len(paper.fit), len(paper.test)) == (6000, 4000)
        assert paper.fit.min() >= 60_000  # only official test images
    else:
        assert len(np.unique(data.groups)) == parts
        clean = data.split(seed=1)
        sides = [set(data.groups[rows]) for rows in (clean.train, clean.validation, clean.test)]
        assert sum(map(len, sides)) == len(set().union(*sides)) == parts
    with pytest.raises(FileFormatError, match=f"does not hold the published .* of {name}"):
        load(name)  # the file in the cache


def test_a_small_file_is_read_with_its_groups(empty):
    y, rows = np.arange(40) % 2, np.arange(80.0).reshape(40, 2)
    barcodes = np.array([f"TCGA-AA-{at // 4:04}-01A" for at in range(40)])
    marks = {"is_l1000_landmark": np.array([True, False]), "feature_names": np.array(["a", "b"])}
    luad = {"X": rows, "y": y, "target_names": np.array(["n", "t"]), "sample_barcode": barcodes}
    np.savez(empty / "data" / "tcga_luad_rnaseq.npz", **luad, **marks)
    data = load("luad", verify=False)
    assert (len(np.unique(data.groups)), data.landmarks.sum(), data.unit) == (10, 1, "patient")
    assert not set(data.groups[data.split("paper").fit]) & set(data.groups[data.split().test])

    subjects = np.repeat(np.arange(10), 4)
    har = {"X": rows, "y": y, "target_names": np.array(["n", "t"]), "subject": subjects}
    np.savez(empty / "data" / "har.npz", **har, is_test=subjects >= 7)
    data = load("har", verify=False)
    assert sorted(data.split().test) == list(range(28, 40))  # the official part
    other = data.split(seed=1)
    assert not set(subjects[other.fit]) & set(subjects[other.test])
    with pytest.raises(FileFormatError, match="does not hold the published values of har"):
        load("har")
    (empty / "data" / "har.npz").write_bytes(b"PK")
    with pytest.raises(FileFormatError, match="cannot be read"):
        load("har")
    np.savez(empty / "data" / "har.npz", X=rows)
    with pytest.raises(FileFormatError, match="lacks y, target_names"):
        load("har")
