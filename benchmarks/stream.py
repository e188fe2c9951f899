"""Data larger than memory: how much memory fits take, and how fast rows are read.

    python benchmarks/stream.py [--threads 2] [--limit 64MB] [--rounds 3] [--folder DIR]
                                [--only memory|speed|rates]

1. A .npy file 16 times as large as the memory limit: ColumnSubset, and an epoch of a gradient
   ConcreteAutoencoder, each in its own process; peak resident memory (VmHWM) must stay below
   the limit + 1 GB.
2. One covariance pass over files against the same products on data already in memory, dense
   (torch, float64 blocks that only need multiplying) and sparse (SciPy's product of the whole
   matrix): at least 60% of that speed.
3. Rates at which Parquet and CSV are read, block by block, ready for use.

Files are written to a temporary folder just before, so they are likely in the system's page
cache: this measures the reader, not the disk.
"""

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
import torch
from pyarrow import csv, parquet
from rich.console import Console
from rich.table import Table
from scipy import sparse

import fewer
from fewer.data.on_disk import readable_size, size_in_bytes, write_npy_header

TIMES = 16  # as large as the memory limit
ALLOWED = 10**9  # resident memory beyond the limit
LEAST = 0.6  # of the speed in memory
WIDE = 2000


def low_rank(rng: np.random.Generator, rows: int, W: np.ndarray) -> np.ndarray:
    noise = rng.random((rows, W.shape[1]), dtype=np.float32)
    return rng.standard_normal((rows, len(W)), dtype=np.float32) @ W + noise


def write_dense(path: Path, rows: int, columns: int) -> Path:
    rng = np.random.default_rng(0)
    W = rng.standard_normal((20, columns), dtype=np.float32)
    with path.open("wb") as file:
        write_npy_header(file, (rows, columns), np.dtype(np.float32))
        for start in range(0, rows, 20_000):
            file.write(low_rank(rng, min(20_000, rows - start), W).data)
    return path


def write_sparse(path: Path, rows: int, columns: int, density: float) -> Path:
    """An .h5ad file with a CSR matrix of counts."""
    rng = np.random.default_rng(0)
    a_row = round(density * columns)
    with h5py.File(path, "w") as file:
        file.attrs["encoding-type"] = "anndata"
        group = file.create_group("X")
        group.attrs.update({"encoding-type": "csr_matrix", "shape": np.array([rows, columns])})
        entries = rows * a_row
        data = group.create_dataset("data", entries, np.float32, chunks=(2**17,))
        indices = group.create_dataset("indices", entries, np.int32, chunks=(2**17,))
        group["indptr"] = np.arange(rows + 1, dtype=np.int64) * a_row
        for start in range(0, rows, 10_000):
            part = min(10_000, rows - start)
            columns_of = rng.random((part, columns)).argpartition(a_row, axis=1)[:, :a_row]
            columns_of.sort(axis=1)
            place = slice(start * a_row, (start + part) * a_row)
            indices[place] = columns_of.ravel()
            data[place] = rng.integers(1, 9, part * a_row)
        for name, count in (("obs", rows), ("var", columns)):
            frame = file.create_group(name)
            frame.attrs["_index"] = "_index"
            frame["_index"] = np.arange(count)
    return path


# -- 1. memory -------------------------------------------------------------------------------


def fit_alone(path: str, what: str, limit: int, threads: int) -> None:
    """What a child process does: fit, and print what it took."""
    torch.set_num_threads(threads)
    at_start = resident()
    source = fewer.data.open(path, memory_limit=limit)
    began = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # an epoch is not enough to settle
        if what == "ColumnSubset":
            fewer.ColumnSubset(k=20, random_state=0).fit(source)
        else:
            fewer.ConcreteAutoencoder(
                k=20,
                solver="gradient",
                epochs=1,
                tries=1,
                batch_size=1024,
                refine=None,
                random_state=0,
            ).fit(source)
    seconds = time.perf_counter() - began
    print(json.dumps({"start": at_start, "peak": resident(), "seconds": seconds}))


def resident() -> int:
    """Most memory that this process ever held, in bytes."""
    status = Path("/proc/self/status")
    if status.exists():  # unlike ru_maxrss this does not count the parent's memory
        line = next(line for line in status.read_text().splitlines() if "VmHWM" in line)
        return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def memory_table(folder: Path, limit: int, threads: int) -> tuple[Table, bool]:
    columns = 500
    rows = TIMES * limit // (4 * columns)
    path = write_dense(folder / "large.npy", rows, columns)
    size = path.stat().st_size
    table = Table(
        title=f"{rows} x {columns} float32 = {readable_size(size)}, "
        f"{size / limit:.0f} x memory_limit={readable_size(limit)}"
    )
    for name in ("fit", "seconds", "resident: start", "peak", "allowed", ""):
        table.add_column(name, justify="left" if name == "fit" else "right")
    fine = True
    for what in ("ColumnSubset", "ConcreteAutoencoder, 1 epoch"):
        command = [sys.executable, __file__, "--child", str(path), what, str(limit), str(threads)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        found = json.loads(done.stdout)
        good = found["peak"] < limit + ALLOWED
        fine &= good
        table.add_row(
            what,
            f"{found['seconds']:.1f}",
            readable_size(found["start"]),
            readable_size(found["peak"]),
            readable_size(limit + ALLOWED),
            "yes" if good else "NO",
        )
    path.unlink()
    return table, fine


# -- 2. speed --------------------------------------------------------------------------------


def seconds_of(work: Callable[[], object]) -> tuple[float, float]:
    """By the clock, and of all processors together: the latter does not mind a busy machine."""
    began, spent = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - began, time.process_time() - spent


def dense_products(blocks: list[torch.Tensor]) -> torch.Tensor:
    total = torch.zeros(WIDE, WIDE, dtype=torch.float64)
    for x in blocks:
        total.addmm_(x.T, x)
    return total


def speed_table(folder: Path, limit: int, rounds: int) -> tuple[Table, bool]:
    dense = write_dense(folder / "wide.npy", 20_000, WIDE)
    stored = write_sparse(folder / "counts.h5ad", 200_000, WIDE, 0.05)
    dense_source = fewer.data.open(dense, memory_limit=limit)
    sparse_source = fewer.data.open(stored, memory_limit=limit)
    assert dense_source.on_disk
    assert sparse_source.on_disk
    in_memory = list(torch.from_numpy(np.load(dense)).double().split(2000))
    matrix = sparse.csr_array(sparse_source.sparse_rows(slice(None)).astype(np.float64))
    cases = {
        "dense .npy, 20,000 x 2,000": (
            lambda: dense_products(in_memory),
            lambda: fewer.data.covariance(dense_source),
        ),
        "sparse .h5ad, 200,000 x 2,000, 5%": (
            lambda: matrix.T @ matrix,
            lambda: fewer.data.covariance(sparse_source),
        ),
    }
    table = Table(title=f"one covariance pass, memory_limit={readable_size(limit)}")
    for name in ("rows", "in memory, s", "from file, s", "speed", "CPU: s", "s", "speed", ">= 60%"):
        table.add_column(name, justify="left" if name == "rows" else "right")
    fine = True
    for name, (plain, ours) in cases.items():
        times = [(*seconds_of(plain), *seconds_of(ours)) for _ in range(rounds)]
        base, base_cpu, found, found_cpu = (
            statistics.median(part) for part in zip(*times, strict=True)
        )
        good = base / found >= LEAST
        fine &= good
        table.add_row(
            name,
            f"{base:.2f}",
            f"{found:.2f}",
            f"{base / found:.0%}",
            f"{base_cpu:.2f}",
            f"{found_cpu:.2f}",
            f"{base_cpu / found_cpu:.0%}",
            "yes" if good else "NO",
        )
    return table, fine


# -- 3. rates --------------------------------------------------------------------------------


def rate_table(folder: Path, limit: int) -> Table:
    rows, columns = 200_000, 200
    rng = np.random.default_rng(0)
    X = low_rank(rng, rows, rng.standard_normal((20, columns), dtype=np.float32))
    frame = pa.table({f"f{j}": np.ascontiguousarray(X[:, j]) for j in range(columns)})
    parquet.write_table(frame, folder / "x.parquet", row_group_size=8192)
    csv.write_csv(frame, folder / "x.csv")
    np.save(folder / "x.npy", X)
    table = Table(title=f"read once, {rows} x {columns} float32 = {readable_size(X.nbytes)} dense")
    for name in ("file", "size", "seconds", "rows/s", "MB/s of file", "MB/s as float32"):
        table.add_column(name, justify="left" if name == "file" else "right")

    def read(path: Path) -> None:
        for _ in fewer.data.read_blocks(fewer.data.open(path, memory_limit=limit), torch.float32):
            pass

    for label, name in (
        (".npy", "x.npy"),
        ("Parquet, row groups of 8192", "x.parquet"),
        ("CSV, converted and read", "x.csv"),
        ("CSV, again", "x.csv"),
    ):
        path = folder / name
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # says that a copy was made
            seconds = seconds_of(lambda path=path: read(path))[0]
        size = path.stat().st_size
        table.add_row(
            label,
            readable_size(size),
            f"{seconds:.2f}",
            f"{rows / seconds:,.0f}",
            f"{size / seconds / 1e6:.0f}",
            f"{X.nbytes / seconds / 1e6:.0f}",
        )
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--limit", default="64MB")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", default=None, help="where files of some GB may be written")
    parser.add_argument("--only", choices=("memory", "speed", "rates"), default=None)
    parser.add_argument("--child", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        path, what, limit, threads = options.child
        fit_alone(path, what, int(limit), int(threads))
        return
    torch.set_num_threads(options.threads)
    limit = size_in_bytes(options.limit)
    console = Console(width=110)
    console.print(f"{options.threads} threads, torch {torch.__version__}, {platform.machine()}")
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        os.environ["FEWER_CACHE"] = name
        kept = True
        if options.only in (None, "memory"):
            table, fine = memory_table(folder, limit, options.threads)
            kept &= fine
            console.print(table)
        if options.only in (None, "speed"):
            table, fine = speed_table(folder, limit, options.rounds)
            kept &= fine
            console.print(table)
        if options.only in (None, "rates"):
            console.print(rate_table(folder, limit))
    if not kept:
        raise SystemExit("a bound was missed")


if __name__ == "__main__":
    main()
