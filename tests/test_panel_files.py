"""Panels read and write files, block by block."""

import h5py
import numpy as np
import pandas as pd
import pyarrow.feather
import pytest
import torch
from sklearn.datasets import load_digits

import fewer
from fewer.errors import FewerWarning, InputError

anndata = pytest.importorskip("anndata", reason="anndata is not installed")

NAMES = [f"pixel{j}" for j in range(64)]


@pytest.fixture(scope="module")
def panel():
    return fewer.select(pd.DataFrame(load_digits().data[:1400], columns=NAMES), k=6, random_state=0)


@pytest.fixture(scope="module")
def frame():
    return pd.DataFrame(load_digits().data[1400:], columns=NAMES)


def test_select_from_a_file_is_that_of_its_table(tmp_path, frame, monkeypatch):
    monkeypatch.setenv("FEWER_CACHE", str(tmp_path / "cache"))
    frame.assign(sample="x").to_csv(tmp_path / "x.csv", index=False)
    frame.to_parquet(tmp_path / "x.parquet", row_group_size=20)
    options = {"k": 2, "strategies": ["search"], "validation": 0.2, "random_state": 0}
    plain = fewer.select(frame, **options)
    with pytest.warns(FewerWarning, match="it was converted once to"):
        in_blocks = fewer.data.open(tmp_path / "x.parquet", memory_limit="100kB")
    assert in_blocks.on_disk
    found = [fewer.select(in_blocks, **options)]
    for data in (
        fewer.data.open(tmp_path / "x.csv", ignore=["sample"]),
        tmp_path / "x.parquet",
    ):
        found.append(fewer.select(data, **options))
    for one in found:
        assert one.features == plain.features
        assert one.held_out == pytest.approx(plain.held_out)
    with pytest.warns(FewerWarning, match=r"were ignored \(1\): 'sample'"):
        fewer.select(tmp_path / "x.csv", **options)


def test_score_and_transform_from_a_file(panel, frame, tmp_path, monkeypatch):
    monkeypatch.setenv("FEWER_CACHE", str(tmp_path / "cache"))
    frame.iloc[:, ::-1].to_parquet(tmp_path / "test.parquet", row_group_size=20)
    with pytest.warns(FewerWarning, match="it was converted once to"):
        source = fewer.data.open(tmp_path / "test.parquet", memory_limit="100kB")
    assert source.on_disk
    for data in (tmp_path / "test.parquet", source):
        score = panel.score(data)
        assert score == pytest.approx(panel.score(frame))
        np.testing.assert_allclose(score.errors, panel.score(frame).errors)
        np.testing.assert_allclose(panel.transform(data), frame[panel.features])


def readers():
    return {
        "npy": np.load,
        "csv": lambda path: pd.read_csv(path).to_numpy(),
        "tsv": lambda path: pd.read_csv(path, sep="\t").to_numpy(),
        "csv.gz": lambda path: pd.read_csv(path).to_numpy(),
        "csv.zst": lambda path: fewer.data.read_all(fewer.data.open(path)),
        "parquet": lambda path: pd.read_parquet(path).to_numpy(),
        "feather": lambda path: pyarrow.feather.read_table(path).to_pandas().to_numpy(),
        "h5": lambda path: h5py.File(path)["X"][:],
        "h5ad": lambda path: anndata.read_h5ad(path).X,
    }


@pytest.mark.parametrize("form", readers())
def test_reconstruct_into_every_kind_of_file(panel, frame, tmp_path, form, monkeypatch):
    monkeypatch.setattr(fewer.data.source, "BLOCK_BYTES", 6 * 8 * 60)  # several blocks
    frame[panel.features[::-1]].to_csv(tmp_path / "measured.csv", index=False)
    out = tmp_path / f"all.{form}"
    assert panel.reconstruct(tmp_path / "measured.csv", out=out) == out
    expected = panel.reconstruct(frame[panel.features]).to_numpy()
    np.testing.assert_allclose(readers()[form](out), expected, rtol=1e-9, atol=1e-9)
    if form not in ("npy", "h5"):
        assert fewer.data.open(out).names == NAMES
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([out.name, "measured.csv"])


@pytest.mark.parametrize("form", ["csv", "parquet", "feather", "pandas"])
def test_identifiers_are_copied(panel, frame, tmp_path, form, monkeypatch):
    monkeypatch.setattr(fewer.data.source, "BLOCK_BYTES", 6 * 8 * 60)
    labels = [f"row {i}" for i in range(len(frame))]
    measured = frame[panel.features].assign(sample=labels)
    data = tmp_path / f"measured.{form}"
    if form == "csv":
        measured.to_csv(data, index=False)
    elif form == "pandas":
        data = measured
    else:
        getattr(measured, f"to_{form}")(data)
    panel.reconstruct(data, out=tmp_path / "all.parquet")
    found = pd.read_parquet(tmp_path / "all.parquet")
    assert found.columns.tolist() == ["sample", *NAMES]
    assert found["sample"].tolist() == labels


def test_arrays_can_be_written_too(panel, frame, tmp_path):
    values = frame[panel.features].to_numpy()
    panel.reconstruct(values, out=tmp_path / "all.npy")
    np.testing.assert_allclose(np.load(tmp_path / "all.npy"), panel.reconstruct(values))
    plain = fewer.select(torch.from_numpy(load_digits().data), k=3, random_state=0)
    chosen = load_digits().data[:5, plain.indices]
    pd.DataFrame(chosen, columns=plain.indices).to_csv(tmp_path / "m.csv", index=False)
    with pytest.warns(FewerWarning, match="use header=True if it contains column names"):
        assert len(plain.reconstruct(tmp_path / "m.csv")) == 6
    named = fewer.data.open(tmp_path / "m.csv", header=True)
    np.testing.assert_allclose(plain.reconstruct(named), plain.reconstruct(chosen))


def test_nothing_is_left_where_reading_fails(panel, frame, tmp_path):
    measured = frame[panel.features].astype(object)
    measured.iloc[200, 2] = "oops"
    measured.to_csv(tmp_path / "measured.csv", index=False)
    rows = frame[panel.features].to_numpy().copy()
    rows[300, 1] = np.inf
    np.save(tmp_path / "measured.npy", rows)
    source = fewer.data.open(tmp_path / "measured.npy", memory_limit=3000)
    (tmp_path / "all.csv").write_text("an older file")
    for data in (tmp_path / "measured.csv", source):
        with pytest.raises(InputError, match=r"line 202|row 300"):
            panel.reconstruct(data, out=tmp_path / "all.csv")
        assert (tmp_path / "all.csv").read_text() == "an older file"
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["all.csv", "measured.csv", "measured.npy"]


def test_invalid_outputs(panel, frame, tmp_path):
    values = frame[panel.features]
    with pytest.raises(InputError, match=r"ends in '.xlsx'; use .npy"):
        panel.reconstruct(values, out=tmp_path / "all.xlsx")
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="is not a folder; choose another path"):
        panel.reconstruct(values, out=tmp_path / "file" / "all.csv")
    (tmp_path / "file").unlink()
    with pytest.raises(InputError, match="interval=2 must be above 0"):
        panel.reconstruct(values, out=tmp_path / "all.csv", interval=2)
    assert list(tmp_path.iterdir()) == []


def test_bounds_in_files_are_those_in_memory(panel, frame, tmp_path):
    values = frame[panel.features]
    files = panel.reconstruct(values, out=tmp_path / "all.npy", interval=0.9)
    assert [path.name for path in files] == ["all.npy", "all.lower.npy", "all.upper.npy"]
    for path, part in zip(files, panel.reconstruct(values, interval=0.9), strict=True):
        np.testing.assert_allclose(np.load(path), part)
