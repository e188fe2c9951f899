"""A gene panel from more cells than fit into memory: time and peak memory of `select_genes`.

    python benchmarks/gene_scale.py [--cells 200000] [--genes 20000] [--k 150] [--threads 2]
                                    [--folder DIR] [--keep]

The cells are synthetic counts, written as a sparse .h5ad file just before: 40 types of very
different frequency, 60 programs that vary within types, about 1,500 counts per cell.
`select_genes` runs in a process of its own, with its defaults. Reported are its wall-clock and CPU
seconds, those of the evidence that saving the panel computes, and the peak resident memory of both
(VmHWM); and the explained variance of 2,000 cells that were not in the file, beside that of as many
genes of the largest variance with a ridge decoder. Asked: 200,000 x 20,000 within 8 GB and 10
minutes on two cores.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table
from scipy import sparse

TYPES, PROGRAMS, DEPTH, BLOCK = 40, 60, 1500, 5000
NEW = 2000  # cells that are only scored

CHILD = """
import json, resource, sys, time
from fewer.anndata import select_genes
path, k, panel = sys.argv[1], int(sys.argv[2]), sys.argv[3]
began, cpu = time.perf_counter(), time.process_time()
found = select_genes(path, k, random_state=0)
spent = {"seconds": time.perf_counter() - began, "cpu": time.process_time() - cpu}
found.save(panel)
spent |= {"save": time.perf_counter() - began, "save_cpu": time.process_time() - cpu}
with open("/proc/self/status") as file:
    peak = next(int(line.split()[1]) for line in file if line.startswith("VmHWM"))
print(json.dumps(spent | {"peak": peak * 1024, "held_out": float(found.held_out)}))
"""


class Cells:
    """Draws sparse counts of cells of many types."""

    def __init__(self, genes: int, seed: int = 0) -> None:
        draw = np.random.default_rng(seed)
        level = draw.lognormal(0, 1.8, genes)
        types = level * draw.lognormal(0, 0.7, (TYPES, genes))
        programs = level * draw.lognormal(0, 1.5, (PROGRAMS, genes))
        self.genes, self.share = genes, draw.dirichlet(np.full(TYPES, 0.6))
        self.of = [draw.choice(PROGRAMS, 4, replace=False) for _ in range(TYPES)]
        shapes = np.concatenate([types, programs])
        self.steps = np.cumsum(shapes / shapes.sum(1, keepdims=True), axis=1)

    def draw(self, count: int, seed: int) -> sparse.csr_matrix:
        """Counts of so many cells."""
        draw = np.random.default_rng([1, seed])
        kind = draw.choice(TYPES, count, p=self.share)
        depth = draw.poisson(DEPTH * draw.lognormal(0, 0.3, count))
        mix = draw.dirichlet([4, 1, 1, 1, 1], count)
        keys = []
        for cell in range(count):
            parts = draw.multinomial(depth[cell], mix[cell])
            for part, row in zip(parts, (kind[cell], *(TYPES + self.of[kind[cell]])), strict=True):
                keys.append(cell * self.genes + np.searchsorted(self.steps[row], draw.random(part)))
        at, values = np.unique(np.concatenate(keys), return_counts=True)
        cells, genes = np.divmod(np.minimum(at, count * self.genes - 1), self.genes)
        values = values.astype(np.float32)
        return sparse.csr_matrix((values, (cells, genes)), shape=(count, self.genes))


def write(path: Path, cells: Cells, count: int) -> None:
    """An .h5ad file of sparse counts, some thousand cells at a time."""
    import anndata  # noqa: PLC0415
    import h5py  # noqa: PLC0415
    import pandas as pd  # noqa: PLC0415
    from anndata.io import sparse_dataset  # noqa: PLC0415

    pd.set_option("future.infer_string", False)
    names = pd.Index([f"g{j}" for j in range(cells.genes)], dtype=object)
    first = cells.draw(min(BLOCK, count), 0)
    obs = pd.Index([f"c{i}" for i in range(count)], dtype=object)
    anndata.AnnData(obs=pd.DataFrame(index=obs), var=pd.DataFrame(index=names)).write_h5ad(path)
    with h5py.File(path, "r+") as file:
        if "X" in file:
            del file["X"]
        anndata.io.write_elem(file, "X", first)
        matrix = sparse_dataset(file["X"])
        for start in range(BLOCK, count, BLOCK):
            matrix.append(cells.draw(min(BLOCK, count - start), start))


def explained(panel_folder: Path, cells: Cells) -> tuple[float, float]:
    """Of new cells: of the panel, and of the genes of the largest variance."""
    import anndata  # noqa: PLC0415
    from sklearn.linear_model import Ridge  # noqa: PLC0415

    import fewer  # noqa: PLC0415
    from fewer.anndata import open_cells  # noqa: PLC0415
    from fewer.data import read_all  # noqa: PLC0415

    panel = fewer.Panel.load(panel_folder)
    parts = []
    for seed in (10**9, 10**9 + 1):
        found = anndata.AnnData(cells.draw(NEW, seed))
        found.var_names = [f"g{j}" for j in range(cells.genes)]
        parts.append(read_all(open_cells(found, like=panel)))
    train, test = parts
    ours = panel.reconstructor.decode(test[:, panel.indices])
    loud = np.argsort(-train.var(0))[: panel.k]
    theirs = Ridge(alpha=100.0).fit(train[:, loud], train).predict(test[:, loud])
    total = ((test - test.mean(0)) ** 2).sum()
    return tuple(float(1 - ((x - test) ** 2).sum() / total) for x in (ours, theirs))


def main() -> None:
    """Write the cells, choose in another process, print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cells", type=int, default=200_000)
    parser.add_argument("--genes", type=int, default=20_000)
    parser.add_argument("--k", type=int, default=150)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--folder", type=Path)
    parser.add_argument(
        "--keep", action="store_true", help="keep, and use, a file of the same size"
    )
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.folder or Path(temporary)
        path = folder / f"cells-{args.cells}-{args.genes}.h5ad"
        cells = Cells(args.genes)
        if not path.exists():
            began = time.perf_counter()
            write(path, cells, args.cells)
            print(
                f"wrote {path.stat().st_size / 1e9:.2f} GB in {time.perf_counter() - began:.0f} s"
            )
        env = os.environ | {"OMP_NUM_THREADS": str(args.threads)}
        command = [sys.executable, "-c", CHILD, str(path), str(args.k), str(folder / "panel")]
        done = subprocess.run(command, env=env, stdout=subprocess.PIPE, text=True, check=True)
        spent = json.loads(done.stdout.splitlines()[-1])
        ours, theirs = explained(folder / "panel", cells)
        if not args.keep:
            path.unlink()
    table = Table("measure", "value")
    table.add_row("cells x genes, k", f"{args.cells:,} x {args.genes:,}, {args.k}")
    table.add_row("seconds", f"{spent['seconds']:.0f}")
    table.add_row("CPU seconds", f"{spent['cpu']:.0f}")
    saved = f"{spent['save']:.0f} / {spent['save_cpu']:.0f}"
    table.add_row("with saving: seconds / CPU seconds", saved)
    table.add_row("peak memory", f"{spent['peak'] / 1e9:.2f} GB")
    table.add_row("explained variance, held-out cells", f"{spent['held_out']:.4f}")
    table.add_row(f"... of {NEW:,} new cells", f"{ours:.4f}")
    table.add_row("... with the largest variances", f"{theirs:.4f}")
    Console().print(table)


if __name__ == "__main__":
    main()
