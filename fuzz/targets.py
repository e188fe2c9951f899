"""What is fuzzed: how whole files are made, and how damaged ones are read.

A target reads a string of bytes as a file, or as a folder of files (`fuzz.mutate.pack`), through
the public functions of fewer. `FewerError` is a right answer, and so is a result; anything else is
a finding.
"""

import atexit
import bz2
import gzip
import io
import random
import shutil
import sqlite3
import tempfile
import warnings
import zipfile
from collections.abc import Callable, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from rich.console import Console

import fewer
from fewer import _threads
from fewer.cli import _parsing
from fewer.data import databases, on_disk, screen
from fewer.data.source import read_metadata
from fewer.errors import FewerError
from fewer.report.summarise import summarise
from fewer.train import Checkpoint
from fuzz import helper
from fuzz.mutate import (
    mutated,
    mutated_bzip2,
    mutated_duckdb,
    mutated_folder,
    mutated_gzip,
    mutated_zip,
    pack,
    unpack,
)


class _OncePerContent(screen._Helper):
    """Reads a file once, however often it is opened while its content stays the same."""

    last: tuple[tuple[str, bytes], str] | None = None

    def ask(self, request: dict[str, Any]) -> str:
        key = request["kind"], Path(request["path"]).read_bytes()
        if self.last is None or self.last[0] != key:
            self.last = key, super().ask(request)
        return self.last[1]


def _next_line(process: Any, seconds: float) -> tuple[str, bool]:
    """An answer of the helper, without a thread that watches the clock: `fuzz.helper` does."""
    return process.stdout.readline(), False


_NOTHING = SimpleNamespace(update=lambda text: None)


def prepare() -> None:
    """Make what reads files faster in this process, for many thousands of executions."""
    screen.LEAST = 2**20  # instead of 64 MB, which takes long to read in small chunks
    screen.PROGRAM = helper.__file__
    screen._answer = _next_line
    screen._helper = _OncePerContent()
    atexit.register(screen._helper.stop)
    databases._connect = helper.Attached()
    _threads.cpu_quota = cache(_threads.cpu_quota)  # read from a dozen files, at every call
    on_disk.memory_quota = cache(on_disk.memory_quota)
    Console.status = lambda *given, **options: nullcontext(_NOTHING)  # no thread that draws it


NAMES = ["alpha", "beta", "gamma", "delta", "epsilon"]
ROWS = np.random.default_rng(0).normal(size=(40, 5)) @ np.random.default_rng(1).normal(size=(5, 5))
LABELS = np.where(ROWS[:, 0] > 0, "high", "low")


@dataclass(frozen=True)
class Target:
    """One kind of file: whole examples, how they are damaged, and how they are read."""

    name: str
    make: Callable[[Path], None]  # writes whole files (or folders) into a folder
    read: Callable[[Path], Any]  # reads one of them
    folder: bool = False
    change: Callable[[bytes, random.Random, Sequence[bytes]], bytes] = mutated

    def seeds(self) -> list[bytes]:
        """Whole examples as bytes."""
        return _seeds(self)

    def mutate(self, data: bytes, rng: random.Random, others: Sequence[bytes] = ()) -> bytes:
        """A damaged example."""
        return (mutated_folder if self.folder else self.change)(data, rng, others)

    def run(self, data: bytes, scratch: Path) -> str:
        """Read bytes as this kind of file; the name of the error, or "read"."""
        place = scratch / self.name
        if self.folder:
            shutil.rmtree(place, ignore_errors=True)
            place.mkdir()
            for name, content in unpack(data).items():
                path = place / name
                if not name or "\0" in name or ".." in name or name.startswith("/"):
                    continue
                try:
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_bytes(content)
                except OSError:  # a name that no file system takes
                    continue
        else:
            place = place.with_name(f"x.{self.name}")
            place.write_bytes(data)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                self.read(place)
            except FewerError as error:
                return type(error).__name__
        return "read"


@cache
def _seeds(target: Target) -> list[bytes]:
    with tempfile.TemporaryDirectory() as scratch:
        target.make(Path(scratch))
        found = []
        for path in sorted(Path(scratch).iterdir()):
            if target.folder:
                files = {
                    file.relative_to(path).as_posix(): file.read_bytes()
                    for file in path.rglob("*")
                    if file.is_file()
                }
                found.append(pack(files))
            else:
                found.append(path.read_bytes())
    return found


# -- data ----------------------------------------------------------------------------------------


def read_data(path: Path) -> None:
    """Open a file and read all rows and metadata, as a file in memory and as one on disk."""
    for limit in (None, 400):
        source = fewer.data.open(path, memory_limit=limit)
        for _ in zip(fewer.data.read_blocks(source), read_metadata(source), strict=True):
            pass
        source.rows(np.array([0, source.shape[0] - 1]))


def _frame() -> Any:
    import pandas as pd

    frame = pd.DataFrame(ROWS, columns=NAMES)
    frame.loc[3, "beta"] = None
    return frame.assign(sample=[f"s{i}" for i in range(len(frame))], count=range(len(frame)))


def make_csv(folder: Path) -> None:
    frame = _frame()
    frame.to_csv(folder / "a.csv", index=False)
    frame.head(12).to_csv(folder / "b.csv", sep=";", decimal=",")
    frame[NAMES].head(12).to_csv(folder / "c.csv", sep="\t", header=False, index=False)
    text = "a,b,flag\n1,2,true\n,3,false\n" + "9" * 60 + ",1e5,true\n"
    (folder / "d.csv").write_text(text, encoding="utf-8")
    (folder / "e.csv").write_text('"x ""1""","Größe, cm"\n1,"2"\nNA,4\n', encoding="utf-8")


def make_csv_gz(folder: Path) -> None:
    _frame().to_csv(folder / "a.csv.gz", index=False)
    (folder / "b.csv.gz").write_bytes(gzip.compress(b"a,b\n" + b"1,2\n" * 500))


def make_csv_bz2(folder: Path) -> None:
    _frame().to_csv(folder / "a.csv.bz2", index=False)
    (folder / "b.csv.bz2").write_bytes(bz2.compress(b"a,b\n" + b"1,2\n" * 500))


def make_csv_zip(folder: Path) -> None:
    for name, method in (("a", zipfile.ZIP_DEFLATED), ("b", zipfile.ZIP_BZIP2), ("c", 0)):
        with zipfile.ZipFile(folder / f"{name}.csv.zip", "w", method) as archive:
            archive.writestr("rows.csv", _frame().to_csv(index=False))


def make_xlsx(folder: Path) -> None:
    frame = _frame()
    frame.to_excel(folder / "a.xlsx", index=False)
    frame.head(12).assign(when=np.datetime64("2026-01-01", "ns"), odd="NA").to_excel(
        folder / "b.xlsx", startrow=2, sheet_name="two"
    )


def make_sqlite(folder: Path) -> None:
    for name, rows in (("a", 40), ("b", 5)):
        with closing(sqlite3.connect(folder / f"{name}.sqlite")) as database:
            _frame().head(rows).to_sql("rows", database, index=False)
            database.commit()


def make_duckdb(folder: Path) -> None:
    import duckdb

    with closing(duckdb.connect()) as database:  # in small blocks: 28 kB instead of 536
        database.execute(f"ATTACH '{folder / 'a.duckdb'}' AS file (BLOCK_SIZE 16384)")
        database.register("frame", _frame())
        database.execute("CREATE TABLE file.rows AS SELECT * FROM frame")
        database.execute("DETACH file")


def make_npy(folder: Path) -> None:
    np.save(folder / "a.npy", ROWS)
    np.save(folder / "b.npy", np.asfortranarray(ROWS.astype(np.float32)))
    np.save(folder / "c.npy", np.arange(12, dtype=np.int16).reshape(4, 3))


def make_npz(folder: Path) -> None:
    from scipy import sparse

    np.savez(folder / "a.npz", X=ROWS)
    np.savez_compressed(folder / "b.npz", values=ROWS.astype(np.float32))
    sparse.save_npz(folder / "c.npz", sparse.csr_array(np.where(ROWS > 1, ROWS, 0)))
    for at, method in enumerate((zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA)):
        file = io.BytesIO()
        np.save(file, ROWS)
        with zipfile.ZipFile(folder / f"d{at}.npz", "w", method) as archive:
            archive.writestr("X.npy", file.getvalue())


def make_parquet(folder: Path) -> None:
    frame = _frame()
    for codec in ("snappy", "zstd", "none"):
        frame.to_parquet(folder / f"{codec}.parquet", compression=codec, row_group_size=15)


def make_feather(folder: Path) -> None:
    import pyarrow as pa
    from pyarrow import feather

    table = pa.Table.from_pandas(_frame())
    for codec in ("lz4", "zstd", "uncompressed"):
        feather.write_feather(table, folder / f"{codec}.feather", compression=codec, chunksize=15)


def make_h5(folder: Path) -> None:
    import h5py

    with h5py.File(folder / "a.h5", "w") as file:
        file.create_dataset("X", data=ROWS, chunks=(10, 5), compression="gzip", shuffle=True)
    with h5py.File(folder / "b.h5", "w", libver="latest") as file:
        file.create_dataset("deep/X", data=ROWS.astype(np.float32), fletcher32=True, chunks=(8, 5))
        file.attrs["note"] = "text"
    with h5py.File(folder / "c.h5", "w") as file:
        file["X"] = ROWS


def _annotated() -> Any:
    import anndata
    import pandas as pd
    from scipy import sparse

    counts = sparse.csr_matrix(np.round(np.abs(ROWS)))
    obs = pd.DataFrame({"batch": pd.Categorical(LABELS)}, index=[f"c{i}" for i in range(40)])
    return anndata.AnnData(counts, obs=obs, var=pd.DataFrame(index=NAMES))


def make_h5ad(folder: Path) -> None:
    data = _annotated()
    data.write_h5ad(folder / "sparse.h5ad")
    data.X = np.asarray(data.X.todense())
    data.write_h5ad(folder / "dense.h5ad", compression="gzip")


def make_zarr(folder: Path) -> None:
    import zarr

    zarr.create_array(str(folder / "a.zarr"), data=ROWS, chunks=(10, 5))
    zarr.create_array(str(folder / "b.zarr"), data=ROWS, chunks=(10, 5), zarr_format=2)


# -- saved models ---------------------------------------------------------------------------------


@cache
def _panels() -> list[Any]:
    import pandas as pd

    frame = pd.DataFrame(ROWS, columns=NAMES)
    quick = {"random_state": 0, "strategies": ["search"], "validation": 0.2, "device": "cpu"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [
            fewer.select(frame, 2, **quick),
            fewer.select(ROWS, 2, target=LABELS, **quick),
            fewer.select(ROWS, 2, decoder=(4,), **quick),
        ]


def make_panel(folder: Path) -> None:
    for at, panel in enumerate(_panels()):
        panel.save(folder / str(at))


def read_panel(path: Path) -> None:
    """Load a panel and use it: reconstruct, predict, describe, report."""
    panel = fewer.Panel.load(path)
    measured = np.zeros((2, panel.k))
    panel.reconstruct(measured)
    if panel.reconstructor.quantiles is not None:
        panel.reconstruct(measured, interval=0.9)
    if panel.target is not None:
        panel.predict(measured)
    repr(panel), repr(panel.leaderboard), panel._repr_html_()
    summarise(panel)


@cache
def _estimators() -> list[Any]:
    quick = {"k": 2, "random_state": 0, "device": "cpu"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [
            fewer.ColumnSubset(stall=0, **quick).fit(ROWS),
            fewer.ConcreteAutoencoder(decoder=(4,), epochs=3, tries=1, refit_epochs=2, **quick).fit(
                ROWS
            ),
            fewer.ConcreteClassifier(epochs=3, tries=1, refit_epochs=2, **quick).fit(ROWS, LABELS),
        ]


def make_estimator(folder: Path) -> None:
    for at, model in enumerate(_estimators()):
        model.save(folder / str(at))


def read_estimator(path: Path) -> None:
    """Load an estimator as each class, and use it."""
    for kind in (fewer.ColumnSubset, fewer.ConcreteAutoencoder, fewer.ConcreteClassifier):
        try:
            model = kind.load(path)
        except FewerError as error:
            if "; use " in str(error) and kind is not fewer.ConcreteClassifier:
                continue  # of another class
            raise
        rows = np.zeros((2, model.n_features_in_))
        model.reconstruct(rows)
        model.feature_groups()
        if hasattr(model, "predict"):
            model.predict(rows)
        return


def _resumed(folder: Path, stop: int | None) -> Any:
    def interrupt(row: dict[str, Any]) -> None:
        if row["epoch"] == stop:
            raise KeyboardInterrupt

    checkpoint = Checkpoint(folder, every=0)
    options: dict[str, Any] = {"epochs": 4, "tries": 1, "refit_epochs": 2, "random_state": 0}
    options |= {"decoder": (3,), "solver": "gradient", "refine": None, "device": "cpu"}
    model = fewer.ConcreteAutoencoder(2, **options, checkpoint=checkpoint, on_epoch=interrupt)
    return model.fit(ROWS)


def make_checkpoint(folder: Path) -> None:
    for stop in (2, 3):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                _resumed(folder / str(stop), stop)
        except KeyboardInterrupt:
            pass


def read_checkpoint(path: Path) -> None:
    """Resume a fit."""
    _resumed(path, None)


# -- lists and costs -------------------------------------------------------------------------------


BUDGETS = {"cost": 9.0, "hours": 9.0}


def make_lists(folder: Path) -> None:
    (folder / "a.lists").write_text("feature,cost\nalpha,1.5\nbeta,2\n", encoding="utf-8")
    (folder / "b.lists").write_text("# mine\nalpha\nbe*\n3\n", encoding="utf-8")
    (folder / "c.lists").write_text("alpha;one\nbeta;one\n", encoding="utf-8")
    (folder / "d.lists").write_text("feature,cost,hours\nalpha,1,2\n", encoding="utf-8")


def read_lists(path: Path) -> None:
    """A file of costs, of groups and of names."""
    from fewer.constraints import resolve

    failed = None
    for names in (NAMES, None):
        for make in (
            lambda have: {"costs": _parsing.costs(path, have, None)},
            lambda have: {"costs": _parsing.costs(path, have, BUDGETS), "budget": BUDGETS},
            lambda have: {"groups": _parsing.groups(path, have)},
            lambda have: {"include": _parsing.features([str(path)], have, "--include")},
        ):
            try:
                resolve(names, 5, 2, **make(names))
            except FewerError as error:
                failed = error
    if failed is not None:
        raise failed


TARGETS = {
    target.name: target
    for target in (
        Target("csv", make_csv, read_data),
        Target("csv.gz", make_csv_gz, read_data, change=mutated_gzip),
        Target("csv.bz2", make_csv_bz2, read_data, change=mutated_bzip2),
        Target("csv.zip", make_csv_zip, read_data, change=mutated_zip),
        Target("xlsx", make_xlsx, read_data, change=mutated_zip),
        Target("sqlite", make_sqlite, read_data),
        Target("duckdb", make_duckdb, read_data, change=mutated_duckdb),
        Target("npy", make_npy, read_data),
        Target("npz", make_npz, read_data, change=mutated_zip),
        Target("parquet", make_parquet, read_data),
        Target("feather", make_feather, read_data),
        Target("h5", make_h5, read_data),
        Target("h5ad", make_h5ad, read_data),
        Target("zarr", make_zarr, read_data, folder=True),
        Target("panel", make_panel, read_panel, folder=True),
        Target("estimator", make_estimator, read_estimator, folder=True),
        Target("checkpoint", make_checkpoint, read_checkpoint, folder=True),
        Target("lists", make_lists, read_lists),
    )
}
