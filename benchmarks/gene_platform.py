"""What a gene panel loses on an instrument that detects a fifth of the counts and loses probes.

    python benchmarks/gene_platform.py [--k 32,64,150] [--repeats 3] [--efficiency 0.2] [--lost 5]
                                       [--cells 3000] [--genes 1500] [--threads 1]

Synthetic counts of `gene_scale.py`: 40 types, 60 programs, about 1,500 counts per cell. Explained
variance of all genes, log(1 + counts per 10,000) in full depth, of 1,500 new cells: "in full", a
panel of `select_genes` whose genes are measured in full depth, with known totals; "unprepared", the
same panel on counts thinned to ``--efficiency`` with ``--lost`` random probes missing (NaN), and
totals unknown; "prepared", a panel of `select_genes(platform=Platform(...))` on such counts. "loss"
is what the prepared panel loses from "in full", over what the unprepared one loses; asked: at most
0.5. "only decoder": the unprepared genes with a decoder prepared for the platform. Means over draws
of cells and of lost probes.
"""

import argparse
import warnings

import anndata
import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from fewer.anndata import Platform, impute, open_cells, select_genes
from fewer.data import read_all
from gene_scale import Cells

QUICK = {"strategies": ["search"], "validation": 0.2}


def explained(rebuilt: np.ndarray, truth: np.ndarray) -> float:
    return float(1 - ((rebuilt - truth) ** 2).sum() / ((truth - truth.mean(0)) ** 2).sum())


def annotated(counts: np.ndarray, names: list[str]) -> anndata.AnnData:
    found = anndata.AnnData(counts.astype(np.float32))
    found.var_names = names
    return found


def main() -> None:
    """Print a row for each k."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--k", default="32,64,150")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--efficiency", type=float, default=0.2)
    parser.add_argument("--lost", type=int, default=5)
    parser.add_argument("--cells", type=int, default=3000)
    parser.add_argument("--genes", type=int, default=1500)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    warnings.filterwarnings("ignore", message="only the")  # totals are estimated: that is the point
    cells, names = Cells(args.genes), [f"g{j}" for j in range(args.genes)]
    columns = ("in full", "unprepared", "only decoder", "prepared", "loss")
    table = Table("k", *columns)
    for k in map(int, args.k.split(",")):
        found = []
        for repeat in range(args.repeats):
            train = annotated(cells.draw(args.cells, 10 * repeat).toarray(), names)
            test = cells.draw(1500, 10 * repeat + 1).toarray()
            options = {"random_state": repeat, "inplace": False, **QUICK}
            plain = select_genes(train, k, **options)
            platform = Platform(args.efficiency, lost=args.lost)
            ready = select_genes(train, k, platform=platform, **options)
            same = select_genes(train, k, platform=platform, include=plain.features, **options)
            truth = read_all(open_cells(annotated(test, names), like=plain))
            draw = np.random.default_rng(repeat)
            thinned = draw.binomial(test.astype(int), args.efficiency).astype(float)
            missing = draw.choice(k, args.lost, replace=False)
            scores = [explained(plain.reconstructor.decode(truth[:, plain.indices]), truth)]
            for panel in (plain, same, ready):
                measured = thinned[:, panel.indices]
                measured[:, missing] = np.nan
                scores.append(
                    explained(impute(annotated(measured, panel.features), panel).X, truth)
                )
            found.append(scores)
        full, unprepared, only, prepared = np.mean(found, axis=0)
        loss = (full - prepared) / (full - unprepared)
        row = (full, unprepared, only, prepared, loss)
        table.add_row(str(k), *(f"{value:.3f}" for value in row))
    Console().print(table)


if __name__ == "__main__":
    main()
