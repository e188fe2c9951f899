"""The helper that reads files first: what each of its readers opens, and what it refuses."""

import io
import json

import duckdb
import h5py
import numpy as np
import pandas as pd
import pytest

from fewer.data import screen

FRAME = pd.DataFrame({"a": np.arange(50.0), "b": 1.0, "note": "x"})


@pytest.fixture
def files(tmp_path):
    """A small file for each reader."""
    paths = {kind: str(tmp_path / f"x.{kind}") for kind in screen.READERS}
    FRAME.to_feather(paths["arrow"])
    FRAME.to_parquet(paths["parquet"])
    for kind in ("hdf5", "h5ad"):
        with h5py.File(paths[kind], "w") as file:
            file.attrs["title"] = "x"
            group = file.create_group("deep")
            group.create_dataset("X", data=np.ones((40, 5)), compression="gzip", chunks=(8, 5))
            group["again"] = h5py.SoftLink("/deep/X")
            file["same"] = group  # a second name for one group
            file["scalar"] = 3.0
    with duckdb.connect(paths["duckdb"]) as database:
        database.execute('CREATE TABLE "a ""table" AS SELECT range AS v FROM range(50)')
    return paths


@pytest.mark.parametrize("kind", screen.READERS)
def test_each_reader_reads_its_kind_of_file_to_the_end(files, kind):
    read = screen.READERS[kind]
    read(files[kind], True, 2**20)
    read(files[kind], False, 2**20)  # only its structure
    with pytest.raises(screen._Refused, match="claims more than 40 bytes"):
        read(files[kind], True, 40)


def test_hdf5_that_leads_elsewhere_or_has_damaged_chunks(files, tmp_path, monkeypatch):
    def add(name, kind="h5ad"):
        with h5py.File(files[kind], "a") as file:
            if name == "link":
                file[name] = h5py.ExternalLink("other.h5", "X")
            else:
                file.create_dataset(name, (4, 2), "f8", external=[("other.raw", 0, 64)])

    for name, reason in (("link", "'link' is a link to another"), ("raw", "'raw' are in other")):
        add(name)
        with pytest.raises(screen._Refused, match=reason):
            screen.READERS["h5ad"](files["h5ad"], True, 2**20)
        add(name, "hdf5")
        screen.READERS["hdf5"](files["hdf5"], True, 2**20)  # there it is read only if asked for
        with h5py.File(files["h5ad"], "a") as file:
            del file[name]

    with h5py.File(files["hdf5"]) as file:
        chunk = file["deep/X"].id.get_chunk_info(0)
    with open(files["hdf5"], "r+b") as raw:
        raw.seek(chunk.byte_offset)
        raw.write(bytes(chunk.size))
    with pytest.raises(screen._Refused, match="X: "):
        screen.READERS["hdf5"](files["hdf5"], True, 2**20)

    monkeypatch.setattr(screen, "MOST_OBJECTS", 3)
    with pytest.raises(screen._Refused, match="more than 3 objects"):
        screen.READERS["h5ad"](files["h5ad"], True, 2**20)


def test_the_helper_answers_one_line_per_request(files, tmp_path, monkeypatch, capsys):
    (tmp_path / "bad").write_bytes(b"not HDF5")
    asked = [(kind, files[kind]) for kind in ("hdf5", "duckdb", "parquet")]
    asked.append(("hdf5", str(tmp_path / "bad")))
    requests = [
        json.dumps({"kind": kind, "path": path, "size": 2000, "seconds": 20.0})
        for kind, path in asked
    ]
    monkeypatch.setattr("sys.stdin", io.StringIO("\n".join(requests)))
    screen._main()
    lines = capsys.readouterr().out.splitlines()
    assert lines[::2] == ["ready"] * 4
    refused = [json.loads(line)["refused"] for line in lines[1::2]]
    assert refused[:-1] == [""] * 3
    assert "signature" in refused[-1]


@pytest.mark.parametrize(
    ("error", "reason"),
    [(screen._Refused("too large"), "too large"), (MemoryError(), "more memory"), (OSError(), "")],
)
def test_what_a_reader_raises_becomes_the_reason(monkeypatch, error, reason):
    def read(*given):
        raise error

    monkeypatch.setitem(screen.READERS, "arrow", read)
    request = {"kind": "arrow", "path": "", "size": 2**30}  # too large to be read to its end
    assert reason in screen._read(request)
    assert bool(screen._read(request)) == bool(reason)
