"""Files that somebody made to harm: refused with one error, and nothing else happens."""

import bz2
import io
import json
import os
import pickle
import signal
import threading
import time
import tracemalloc
import warnings
import zipfile

import h5py
import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file, save_file
from scipy import sparse

import fewer
from fewer.data import read_all, screen
from fewer.data.source import read_metadata
from fewer.errors import FileFormatError, InputError

X = np.random.default_rng(0).normal(size=(60, 5)) @ np.random.default_rng(1).normal(size=(5, 5))


@pytest.fixture(scope="module")
def panel():
    return fewer.select(X, 2, strategies=["search"], validation=0.2, random_state=0)


@pytest.fixture(scope="module")
def predictor():
    target = {"kind": np.arange(60) % 3, "size": X[:, 0] + X[:, 1]}
    options = {"strategies": ["search"], "validation": 0.2, "random_state": 0}
    return fewer.select(X, 2, target=target, **options)


@pytest.fixture
def saved(panel, tmp_path):
    panel.save(tmp_path / "p")
    return tmp_path / "p"


@pytest.fixture
def saved_predictor(predictor, tmp_path):
    predictor.save(tmp_path / "q")
    return tmp_path / "q"


def change(folder, **values):
    """Change values of the description, named by dotted paths."""
    meta = json.loads((folder / "panel.json").read_text())
    for path, value in values.items():
        *parents, last = path.split("__")
        place = meta
        for name in parents:
            place = place[int(name) if name.isdigit() else name]
        place[last] = value
    (folder / "panel.json").write_text(json.dumps(meta))


def deep(levels):
    value = 0
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"version": 0}, "its version is 0"),
        ({"version": 3}, "version 3.*upgrade"),
        ({"d": 10**9}, "errors has the shape"),
        ({"names": ["a"] * 4}, "4 names for 5 features"),
        ({"names": [1, 2, 3, 4, 5]}, r"'names\[0\]' is 1; it must be text"),
        ({"indices": [0, 7]}, "'indices' must be numbers from 0 to 4"),
        ({"held_out": "good"}, "'held_out' is 'good'; it must be a number"),
        ({"leaderboard": [{"strategy": "x"}]}, r"'leaderboard\[0\].error' is missing"),
        ({"link": "eval"}, "'link' is 'eval'; it must be"),
        ({"settings__decoder": [10**9]}, "weights of 'decoder' are described"),
        ({"settings__decoder": {"mapping": 3}}, "option 'decoder' cannot be read"),
        ({"settings__activation": "os.system", "settings__decoder": []}, "is not valid"),
        ({"settings__note": deep(40)}, "more than 32 levels"),
        ({"settings__note": 10**30}, "a number of 31 digits"),
        ({"evidence__curve": {"k": [1, 2], "units": {"pca": [0.1]}}}, "not of the same length"),
        ({"evidence__source": {}}, r"'evidence.source.kind' is missing"),
        ({"evidence": []}, "'evidence' is .*; it must be an object"),
        ({"estimates": {}}, "estimates do not fit the score"),
        ({"estimates__units": [0.5]}, "estimates do not fit the score"),
        ({"evidence__size__chosen": 9}, "lines of evidence.size do not fit its sizes"),
        ({"evidence__size__rule": "magic"}, "the rule 'magic', which is unknown"),
        ({"evidence__stability__frequency": [1.0]}, "stability is not that of the chosen"),
        (
            {"evidence__stability__clusters": [{"features": [9], "frequency": 1.0}]},
            "stability has numbers that are not columns",
        ),
        ({"evidence__significance__contributions": [0.1]}, "significance is not that of the"),
        ({"evidence__explained": {"units": {"panel": "much"}}}, "explained.units.panel' is 'much'"),
        ({"statistics__rows": 0}, "statistics.rows is 0, not a number of rows"),
        ({"joint__ridge": -1.0}, "joint.ridge is -1.0, not a penalty"),
    ],
)
def test_descriptions_are_checked(saved, values, reason):
    change(saved, **values)
    with pytest.raises(FileFormatError, match=reason):
        fewer.Panel.load(saved)


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"link": "softmax:2,none:2"}, "links of the targets do not fit their outputs"),
        ({"link": "softmax:3,evil:1"}, "the link 'softmax:3,evil:1' is unknown"),
        ({"link": None}, "2 targets do not have 4 outputs"),
        ({"parts": [], "kind": "number", "link": "eval"}, "the link 'eval' is unknown"),
        ({"parts__0__weight": 0.0}, "weights of 0, or names that are repeated"),
        ({"parts__1__name": "kind"}, "weights of 0, or names that are repeated"),
        ({"parts__0__classes": [0, 1]}, "2 classes for 3 outputs of the predictor"),
        ({"parts__0__classes": [0, 1, 1]}, "class labels are missing or repeated"),
        ({"parts__0__classes": None}, "a target of kind 'class' with classes None"),
        ({"parts__0__dtype": "|V8"}, r"class labels of type \|V8 are not known"),
        ({"parts__0__dtype": "<U99999999"}, "3 class labels of 399,999,996 bytes each"),
        ({"parts__1__outputs": 0}, "0 outputs of kind 'number'"),
    ],
)
def test_descriptions_of_targets_are_checked(saved_predictor, values, reason):
    change(saved_predictor, **{f"target__{name}": value for name, value in values.items()})
    with pytest.raises(FileFormatError, match=reason):
        fewer.Panel.load(saved_predictor)


def fill(name, value):
    """A change of one tensor of a saved panel: all of its values."""
    return lambda tensors: tensors[name].fill_(value)


def put(name, tensor):
    return lambda tensors: tensors.update({name: tensor})


def drop(name):
    return lambda tensors: tensors.pop(name)


def reshape(tensors):
    tensors["quantiles"] = tensors["quantiles"].T.contiguous()


def whole_numbers(tensors):
    tensors["errors"] = tensors["errors"].long()


def foreign_columns(tensors):
    tensors["joint.columns"] = 1 - tensors["joint.columns"]


def short_statistics(tensors):
    tensors["statistics.mean"] = tensors["statistics.mean"][:1].clone()


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (fill("decoder.net.weight", float("nan")), "decoder.net.weight holds NaN"),
        (drop("decoder.net.bias"), "Missing key|bias"),
        (put("decoder.net.more", torch.zeros(2)), "Unexpected key|more"),
        (put("more", torch.zeros(2)), "tensors that do not belong there: 'more'"),
        (reshape, "quantiles has the shape"),
        (whole_numbers, "errors has the shape .* type int64"),
        (fill("decoder.order", 0), "decoder.order is not an order"),
        (fill("decoder.scale", 0.0), "decoder.scale is 0"),
        (put("decoder.out_center", torch.zeros(3, 5).double()), "are not those of its outputs"),
        (fill("evidence.substitutes", 99), "evidence.substitutes has numbers that are not columns"),
        (fill("evidence.order", 0), "evidence.order is not an order of the chosen features"),
        (fill("evidence.gains", float("nan")), "evidence.gains holds NaN or infinite values"),
        (fill("evidence.losses", float("inf")), "evidence.losses holds infinite values"),
        (put("evidence.correlation", torch.zeros(3, 3)), "correlation is of 3 features, not 2"),
        (drop("evidence.dependents"), "dependents or their losses, but not both"),
        (foreign_columns, "joint.columns are not the chosen features"),
        (short_statistics, "statistics.mean has the shape"),
        (put("statistics.distance", torch.zeros(1).double()), "statistics hold no quantiles"),
        (put("joint.by_pattern", torch.zeros(2, 2).double()), "joint.by_pattern holds values that"),
        (fill("joint.factors", 0.0), "joint.factors hold values that are not above 0"),
        (fill("joint.variance", -1.0), "joint.scale and joint.variance hold values that no data"),
        (put("joint.gram", 9 - 8 * torch.eye(2).double()), "joint.gram is not a covariance"),
        (put("difficulty", torch.zeros(0, 2).double()), "difficulty is not a table of distances"),
        (fill("difficulty", 0.0), "difficulty is not a table of distances and factors"),
    ],
)
def test_tensors_are_checked(saved, spoil, reason):
    tensors = load_file(saved / "tensors.safetensors")
    spoil(tensors)
    save_file(tensors, saved / "tensors.safetensors")
    with pytest.raises(FileFormatError, match=reason):
        fewer.Panel.load(saved)


@pytest.mark.parametrize("name", ["panel.json", "tensors.safetensors"])
def test_links_out_of_the_folder_are_not_followed(saved, tmp_path, name):
    (saved / name).rename(tmp_path / "elsewhere")
    (saved / name).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(FileFormatError, match="is a link to a file outside its folder"):
        fewer.Panel.load(saved)


@pytest.mark.parametrize("name", ["panel.json", "tensors.safetensors"])
def test_files_of_many_gigabytes_are_not_read(saved, name):
    os.truncate(saved / name, 2**40)  # without taking room on the disk
    with pytest.raises(FileFormatError, match=rf"{name}.*1,099,511,627,776 bytes"):
        fewer.Panel.load(saved)


# -- data: code ----------------------------------------------------------------------------------


class Code:
    """Makes a folder when it is read from a pickle."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return os.mkdir, (self.path,)


def pickled_npy(path, made):
    np.save(path / "x.npy", np.array([[Code(made)]]), allow_pickle=True)
    return path / "x.npy"


def pickled_npz(path, made):
    np.savez(path / "x.npz", X=np.array([[Code(made)]]))
    return path / "x.npz"


def pickled_zarr(path, made):
    """Names of cells, as anndata stores them, behind a codec that is pickle."""
    anndata = pytest.importorskip("anndata")
    text = pd.Index(["a", "b"], dtype=object)
    cells = anndata.AnnData(X[:2, :2], obs=pd.DataFrame(index=text), var=pd.DataFrame(index=text))
    with anndata.settings.override(zarr_write_format=2), warnings.catch_warnings(action="ignore"):
        cells.write_zarr(path / "x.zarr")
    names = path / "x.zarr" / "obs" / "_index"
    about = json.loads((names / ".zarray").read_text()) | {"compressor": {"id": "pickle"}}
    (names / ".zarray").write_text(json.dumps(about))
    (names / "0").write_bytes(pickle.dumps(Code(made)))
    return path / "x.zarr"


@pytest.mark.parametrize("make", [pickled_npy, pickled_npz, pickled_zarr])
def test_pickled_code_is_not_run(tmp_path, monkeypatch, make):
    # new versions of numcodecs refuse it themselves
    monkeypatch.setattr("numcodecs.pickles.ALLOW_UNSAFE_PICKLE_DECODE", True, raising=False)
    path = make(tmp_path, tmp_path / "made")
    with pytest.raises(FileFormatError, match=r"Python objects|allow_pickle"):
        list(read_metadata(fewer.data.open(path)))
    assert not (tmp_path / "made").exists()


def test_a_zarr_folder_with_a_link_out_of_it(tmp_path):
    zarr = pytest.importorskip("zarr")
    zarr.create_array(str(tmp_path / "x.zarr"), data=X, chunks=(60, 5))
    chunk = tmp_path / "x.zarr" / "c" / "0" / "0"
    chunk.rename(tmp_path / "elsewhere").replace(tmp_path / "there")
    chunk.symlink_to(tmp_path / "there")
    with pytest.raises(FileFormatError, match="is a link out of its folder"):
        fewer.data.open(tmp_path / "x.zarr")


# -- data: lengths that a file merely claims ------------------------------------------------------


def claiming_h5(path):
    with h5py.File(path, "w") as file:
        file.create_dataset("X", shape=(10**9, 10), chunks=(100, 10), dtype="f8")


def claiming_npy(path):
    np.save(path, X)
    data = path.read_bytes().replace(b"(60, 5)", b"(6000000000, 5)")
    path.write_bytes(data)


def claiming_npz(path):
    np.savez(path, X=X)
    data = path.read_bytes().replace(b"(60, 5)", b"(6000000000, 5)"[:7])
    path.write_bytes(data.replace(b"(600000", b"(99, 5)"))


def claiming_zarr(path):
    pytest.importorskip("zarr").create_array(
        str(path), shape=(10**6, 5), chunks=(10, 5), dtype="f8"
    )


@pytest.mark.parametrize(
    ("name", "make", "reason"),
    [
        ("x.zarr", claiming_zarr, "claims 100,000 chunks"),  # found by fuzzing: it took minutes
        ("x.h5", claiming_h5, "claims more than"),
        ("x.npy", claiming_npy, "truncated"),
        ("x.npz", claiming_npz, "expected|CRC"),
    ],
)
def test_lengths_are_not_believed(tmp_path, name, make, reason):
    make(tmp_path / name)
    with pytest.raises(FileFormatError, match=reason):
        fewer.data.open(tmp_path / name)


def test_a_few_bytes_do_not_hold_a_million_columns(tmp_path):
    path = tmp_path / "x.csv.bz2"
    path.write_bytes(bz2.compress(b"," * 2**17))  # found by fuzzing: 48 bytes took 9.8 GB
    with pytest.raises(FileFormatError, match=r"131,073 columns in \d\d bytes; at most 100,00\d"):
        fewer.data.open(path)


def write_packed(path, text):
    """Text in a .gz, .bz2, .zst or .zip file."""
    import pyarrow as pa

    if path.suffix == ".zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("x.csv", text)
    else:
        with pa.output_stream(str(path), compression="detect") as file:
            file.write(text)


@pytest.mark.parametrize("packing", ["gz", "bz2", "zst", "zip"])
def test_nothing_unpacks_without_end(tmp_path, monkeypatch, packing):
    write_packed(tmp_path / f"x.csv.{packing}", b"a,b\n" + b"1,2\n" * 2**20)
    np.savez_compressed(tmp_path / "x.npz", X=np.zeros((1000, 1000)))
    monkeypatch.setattr(screen, "LEAST", 2**20)
    monkeypatch.setattr(screen, "RATIO", 10)
    with pytest.raises(FileFormatError, match="unpacks to more than"):
        fewer.data.open(tmp_path / f"x.csv.{packing}")
    with pytest.raises(FileFormatError, match="declares 8 MB of data in a file of"):
        fewer.data.open(tmp_path / "x.npz")


@pytest.mark.parametrize("packing", ["gz", "bz2", "zst", "zip"])
def test_damaged_files_leave_no_memory_behind(tmp_path, packing):
    path = tmp_path / f"x.csv.{packing}"
    write_packed(path, b"a,b\n" + np.random.default_rng(0).bytes(3000).hex().encode())
    data = path.read_bytes()
    rest = b"" if packing == "zst" else data[1100:]  # Arrow writes no checksums there
    path.write_bytes(data[:900] + bytes(200) + rest)

    def refused():
        with pytest.raises(FileFormatError, match="damaged"):
            fewer.data.open(path)

    refused()
    tracemalloc.start()
    for _ in range(5):
        refused()
    left, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert left < 2**19  # Arrow's stream.read leaves 1 MB every time


def test_bzip2_streams_that_arrow_cannot_read(tmp_path):
    path = tmp_path / "x.csv.bz2"
    path.write_bytes(bz2.compress(b"a,b\n1,2\n") + 2 * bz2.compress(b""))
    with pytest.raises(FileFormatError, match=r"damaged.*bz2"):
        fewer.data.open(path)


def test_json_that_is_too_deep_for_python(saved):
    text = (saved / "panel.json").read_text()
    (saved / "panel.json").write_text(text.replace("{", '{"x":' + "[" * 9999 + "]" * 9999 + ",", 1))
    with pytest.raises(FileFormatError, match="more than 32 levels"):
        fewer.Panel.load(saved)


def test_values_in_other_files_are_not_read(tmp_path):
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["secret"] = X
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["link"] = h5py.ExternalLink(str(tmp_path / "other.h5"), "secret")
        layout = h5py.VirtualLayout(shape=X.shape, dtype="f8")
        layout[:] = h5py.VirtualSource(tmp_path / "other.h5", "secret", shape=X.shape)
        file.create_virtual_dataset("virtual", layout)
        raw = [(str(tmp_path / "other.h5"), 0, h5py.h5f.UNLIMITED)]
        file.create_dataset("raw", shape=(4, 2), dtype="f8", external=raw)
    for name in ("link", "virtual", "raw"):
        with pytest.raises(FileFormatError, match=r"not in .* but in other files"):
            fewer.data.open(tmp_path / "x.h5", dataset=name)


def test_index_arrays_of_sparse_matrices_are_checked(tmp_path):
    matrix = sparse.csr_array(np.where(X > 1, X, 0))
    matrix.indices[0] = 10**6
    sparse.save_npz(tmp_path / "x.npz", matrix)
    with pytest.raises(FileFormatError, match=r"not a whole \.npz file"):
        fewer.data.open(tmp_path / "x.npz")


def test_encrypted_members(tmp_path):
    np.savez(tmp_path / "x.npz", X=X)
    data = bytearray((tmp_path / "x.npz").read_bytes())
    for at in (data.index(b"PK\x03\x04") + 6, data.index(b"PK\x01\x02") + 8):
        data[at] |= 1
    (tmp_path / "x.npz").write_bytes(data)
    with pytest.raises(FileFormatError, match=r"not a whole \.npz file .*encrypted"):
        fewer.data.open(tmp_path / "x.npz")


def test_a_number_of_5000_digits(tmp_path):
    (tmp_path / "x.csv").write_text("1,2\n" + "9" * 5000 + ",4\n" + "1,5\n")
    with pytest.raises(InputError, match=r"contains infinity: row \d, column"):
        read_all(fewer.data.open(tmp_path / "x.csv"))
    (tmp_path / "y.csv").write_text("9" * 5000 + "," + "9" * 5001 + "\n1,2\n2,3\n")
    with pytest.raises(InputError, match="contains infinity"):
        read_all(fewer.data.open(tmp_path / "y.csv"))


@pytest.mark.parametrize("text", [False, True])
def test_invalid_utf8_after_the_first_block(tmp_path, text):
    good = b"1.25,ab\n" * 300_000
    bad = b"1.25,\xff\xfe\n" if text else b"\xff\xfe,ab\n"
    (tmp_path / "x.csv").write_bytes(b"a,note\n" + good + bad)

    def read():
        list(fewer.data.open(tmp_path / "x.csv", ignore=["note"]).metadata())

    with pytest.raises(FileFormatError, match=r"x\.csv is damaged or truncated .*utf-8"):
        read()


# -- files that change, and libraries that die ---------------------------------------------------


def test_a_file_that_shrinks_is_an_error_not_the_end(tmp_path):
    for order in "CF":
        np.save(tmp_path / "x.npy", np.asarray(np.tile(X, (200, 1)), order=order))
        source = fewer.data.open(tmp_path / "x.npy", memory_limit=20_000)
        mapped = fewer.data.open(np.load(tmp_path / "x.npy", mmap_mode="r"))
        assert source.on_disk
        np.testing.assert_array_equal(source.rows(slice(3, 9), torch.float64), X[3:9])
        os.truncate(tmp_path / "x.npy", 1000)
        for one in (source, mapped):
            with pytest.raises(InputError, match="changed while it was read"):
                one.rows(slice(11_000, 11_500))


@pytest.mark.parametrize("dies", [False, True])
def test_a_helper_that_hangs_or_dies(tmp_path, monkeypatch, dies):
    os.mkfifo(tmp_path / "x.feather")  # reading it never ends
    monkeypatch.setattr(screen, "SECONDS", 30.0 if dies else 0.3)

    def kill():
        while screen._helper.process is None:
            time.sleep(0.01)
        time.sleep(0.3)
        os.kill(screen._helper.process.pid, signal.SIGSEGV)

    if dies:
        threading.Thread(target=kill, daemon=True).start()
    reason = "makes the library that reads it crash" if dies else "takes more than 0 seconds"
    with pytest.raises(FileFormatError, match=reason):
        screen.screen(tmp_path / "x.feather", "arrow")
    monkeypatch.undo()
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["X"] = X
    assert fewer.data.open(tmp_path / "x.h5").shape == X.shape  # by a new helper


def test_a_crash_or_a_hang_ends_only_the_fork_that_reads(monkeypatch):
    def crash(path, whole, most):
        os.kill(os.getpid(), signal.SIGKILL)

    readers = {"fine": lambda *given: None, "crash": crash, "hang": lambda *given: time.sleep(60)}
    monkeypatch.setattr(screen, "READERS", readers)
    found = {
        kind: screen._read_in_fork({"kind": kind, "path": "", "size": 0, "seconds": seconds})
        for kind, seconds in (("crash", 30.0), ("hang", 0.2), ("fine", 30.0))
    }
    assert found["fine"] == ""
    assert "crash" in found["crash"]
    assert "takes more than" in found["hang"]


def test_a_wrong_length_in_feather_is_found_before_it_is_used(tmp_path):
    import pyarrow as pa

    with pa.OSFile(str(tmp_path / "x.feather"), "wb") as file:
        table = pa.table({"a": [1.0, 2.0], "note": ["x", "yy"]})
        with pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table)
    data = (tmp_path / "x.feather").read_bytes()
    offsets, wrong = (np.array([0, 1, last], np.int32).tobytes() for last in (3, 10**9))
    assert data.count(offsets) == 1
    (tmp_path / "x.feather").write_bytes(data.replace(offsets, wrong))
    source = fewer.data.open(tmp_path / "x.feather", ignore=["note"])
    with pytest.raises(FileFormatError, match="damaged"):
        list(source.metadata())


def test_npz_members_are_read_as_numpy_writes_them(tmp_path):
    file = io.BytesIO()
    np.save(file, np.asfortranarray(X))
    with zipfile.ZipFile(tmp_path / "x.npz", "w", zipfile.ZIP_BZIP2) as archive:
        archive.writestr("X.npy", file.getvalue())
    np.testing.assert_array_equal(read_all(fewer.data.open(tmp_path / "x.npz")), X)
