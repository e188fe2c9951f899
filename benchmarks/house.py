"""How much house there is, and how much of it a call of `fewer.select` walks through.

    python benchmarks/house.py

Prints, for a linear panel and for a network (200 x 16 values from a CSV file): files of fewer,
functions and file-to-file calls that are walked through. For linear panels: how often each row is
read, and how many matrices of d x d numbers are alive at the peak. And the lines of each folder.
"""

import sys
import tempfile
import threading
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import fewer
from fewer.data import Source

ROOT = Path(fewer.__file__).parent


def walked(work: Callable[[], Any]) -> tuple[int, int, int]:
    """Files of fewer, functions in them, and calls from one file to another."""
    files: set[str] = set()
    functions: set[Any] = set()
    edges: set[tuple[str, str]] = set()

    def look(frame: Any, event: str, argument: Any) -> None:
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(str(ROOT)):
            return
        files.add(code.co_filename)
        functions.add(code)
        caller = frame.f_back
        while caller is not None and not caller.f_code.co_filename.startswith(str(ROOT)):
            caller = caller.f_back
        if caller is not None and caller.f_code.co_filename != code.co_filename:
            edges.add((caller.f_code.co_filename, code.co_filename))

    threading.setprofile(look)
    sys.setprofile(look)
    try:
        work()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return len(files), len(functions), len(edges)


class Counted(Source):
    """Rows that count how often they are read."""

    def __init__(self, array: np.ndarray) -> None:
        self.array, self.read = torch.from_numpy(array), 0

    @property
    def shape(self) -> tuple[int, int]:
        return self.array.shape[0], self.array.shape[1]

    def rows(self, index: Any, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        found = self.array[index].to(dtype)
        self.read += len(found)
        return found.clone()


class SquareMatrices(TorchDispatchMode):
    """Counts tensors of d x d numbers that are alive at the same time."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.d, self.peak = d, 0
        self.alive: dict[int, StorageWeakRef] = {}

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        found = function(*args, **(kwargs or {}))
        for leaf in tree_leaves(found):
            if isinstance(leaf, torch.Tensor) and leaf.shape == (self.d, self.d):
                storage = leaf.untyped_storage()
                if storage.nbytes() >= 4 * self.d**2:
                    self.alive[storage._cdata] = StorageWeakRef(storage)
        self.alive = {key: ref for key, ref in self.alive.items() if not ref.expired()}
        self.peak = max(self.peak, len(self.alive))
        return found


def main() -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    random = np.random.default_rng(0)
    console = Console()
    rows = random.normal(size=(200, 4)) @ random.normal(size=(4, 16))
    rows += 0.3 * random.normal(size=rows.shape)
    table = Table("select", "files", "functions", "file-to-file calls")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.csv"
        names = ",".join(f"x{j}" for j in range(16))
        np.savetxt(path, rows, delimiter=",", header=names, comments="")
        for name, options in (("linear", {}), ("network", {"decoder": (4,)})):
            call = {"k": 3, "random_state": 0, "device": "cpu", **options}
            fewer.select(path, **call)  # imports are not calls
            found = walked(lambda call=call: fewer.select(path, **call))
            table.add_row(name, *map(str, found))
    console.print(table)

    n, d = 1500, 1000  # wide enough for work in blocks to be smaller than a matrix
    rows = random.normal(size=(n, 8)) @ random.normal(size=(8, d))
    rows += 0.3 * random.normal(size=rows.shape)
    table = Table("linear select", "folds", "passes over rows", "peak d x d", "allowed")
    for name, validation in (("one held-out part", 0.2), ("5 folds", 5)):
        folds = 1 if isinstance(validation, float) else validation
        source = Counted(rows)
        with SquareMatrices(d) as squares:
            fewer.select(source, 5, validation=validation, random_state=0, device="cpu")
        table.add_row(name, str(folds), f"{source.read / n:.2f}", str(squares.peak), str(folds + 2))
    console.print(table)

    lines: Counter[str] = Counter()
    files: Counter[str] = Counter()
    for path in ROOT.rglob("*.py"):
        part = path.relative_to(ROOT).parts[0]
        lines[part] += len(path.read_text(encoding="utf-8").splitlines())
        files[part] += 1
    table = Table("folder or file", "files", "lines")
    for part in sorted(lines, key=lines.__getitem__, reverse=True):
        table.add_row(part, str(files[part]), str(lines[part]))
    table.add_row("together", str(sum(files.values())), str(sum(lines.values())))
    console.print(table)


if __name__ == "__main__":
    main()
