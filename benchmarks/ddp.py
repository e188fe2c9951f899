"""Two processes against one, on CPUs with one thread each: the same choice, and how much faster.

    python benchmarks/ddp.py [--processes 2] [--rounds 3] [--epochs 3]

On MNIST (60,000 x 784, k = 50) and digits (k = 10): one pass for the covariance; ColumnSubset
without restarts, whose search runs on one process; gradient training of a linear concrete
autoencoder with batches of 256 and of 2048 rows, which the processes share. Runs by one process and
by several alternate; start-up is not counted.

Two speed-ups are printed. Wall: what a user sees, if each process has a core to itself. Processor:
CPU time of one process over that of the busiest of several, which does not depend on other programs
on the same machine.
"""

import argparse
import json
import os
import platform
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

import fewer
from cases import load_case
from fewer import ColumnSubset, ConcreteAutoencoder
from fewer.data import covariance
from fewer.data.source import array_source
from fewer.datasets import load
from fewer.distributed import gather, joined, spawn

PANELS = {"mnist": 50, "digits": 10}


def work(path: Path, k: int, epochs: int) -> dict[str, tuple[list[int], float, float]]:
    """What is chosen, and seconds of wall and processor time, of each piece of work."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    options = {"device": "cpu", "random_state": 0}
    training = {"solver": "gradient", "epochs": epochs, "tries": 1, "refine": None, **options}
    models = {
        "covariance, search": ColumnSubset(k, stall=0, **options),
        "gradient, batch 256": ConcreteAutoencoder(k, **training),
        "gradient, batch 2048": ConcreteAutoencoder(k, batch_size=2048, **training),
    }
    some = np.load(path, mmap_mode="r")[:500]
    found = {}
    with joined("cpu"):
        covariance(array_source(some))  # connections and what is loaded once
        found["covariance"] = timed(lambda: covariance(fewer.data.open(path)) and [])
    for name, model in models.items():
        model.fit(some)
        found[name] = timed(lambda model=model: model.fit(path).columns_.tolist())
    return found


def timed(work: Callable[[], list[int]]) -> tuple[list[int], float, float]:
    """What is chosen, seconds of wall time, and of processor time in the busiest process."""
    wall, processor = time.perf_counter(), time.process_time()
    chosen = work()
    spent, wall = time.process_time() - processor, time.perf_counter() - wall
    with joined("cpu"):
        return chosen, wall, max(gather(spent))


def rows(name: str) -> np.ndarray:
    """The official training images of MNIST, or the training rows of digits, from 0 to 1."""
    if name == "digits":
        return load_case(name).train.astype(np.float32)
    return load(name).X[:60_000].astype(np.float32) / 255


def measure(path: Path, k: int, epochs: int, processes: int) -> dict:
    """The same in so many fresh processes."""
    out = path.with_suffix(".json")
    spawn([__file__, "--worker", str(path), str(k), str(epochs), str(out)], devices=processes)
    return json.loads(out.read_text())


def compare(name: str, k: int, options: argparse.Namespace, table: Table) -> bool:
    """Fill in the rows of one data set; whether the choices agree."""
    same = True
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.npy"
        np.save(path, rows(name))
        n, d = np.load(path, mmap_mode="r").shape
        ones, manys = [], []
        for _ in range(options.rounds):
            ones.append(measure(path, k, options.epochs, 1))
            manys.append(measure(path, k, options.epochs, options.processes))
    for part in ones[0]:
        agree = all(run[part][0] == ones[0][part][0] for run in ones + manys)
        same &= agree
        one, many = (
            [statistics.median(r[part][i] for r in rs) for i in (1, 2)] for rs in (ones, manys)
        )
        table.add_row(
            f"{name} {n} x {d}, k = {k}",
            part,
            "yes" if agree else "NO",
            f"{one[0]:.2f} s",
            f"{many[0]:.2f} s",
            f"{one[0] / many[0]:.2f}",
            f"{one[1] / many[1]:.2f}",
        )
    return same


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--worker", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    if options.worker:
        path, k, epochs, out = options.worker
        found = work(Path(path), int(k), int(epochs))
        if os.environ["RANK"] == "0":
            Path(out).write_text(json.dumps(found))
        return
    load = os.getloadavg()[0]
    table = Table(title=f"{options.processes} processes of one thread against one")
    for column in ("data", "work", "same choice", "one", "several", "wall", "processor"):
        table.add_column(column)
    same = [compare(name, k, options, table) for name, k in PANELS.items()]
    console = Console(width=120)
    console.print(table)
    console.print(
        f"{platform.machine()}, {os.cpu_count()} cores, torch {torch.__version__}, "
        f"load {load:.1f} before and {os.getloadavg()[0]:.1f} after, "
        f"median of {options.rounds}, {options.epochs} epochs"
    )
    if not all(same):
        raise SystemExit("the choices differ")


if __name__ == "__main__":
    main()
