"""Panels of genes on held-out blood cells, beside highly variable genes at equal k.

    python benchmarks/single_cell.py [--k 10,20,50] [--seeds 3] [--threads 1] [--full]

The cells are scanpy's ``pbmc68k_reduced`` (10x Genomics, CC BY 4.0): 700 cells, 765 genes,
logarithms of normalised counts; those genes are the more variable ones already. Each seed is
another split, stratified by cell type: 490 cells to choose and fit on, 210 to test. "variance":
explained variance of all genes, by ridge regression whose penalty is cross-validated on the
training cells, the same for every panel; "types": accuracy of cell types by logistic regression,
likewise. Both are means over seeds, with standard deviations. PCA is not a panel, since it needs
all genes: it shows what k components reach. ``--full`` chooses with all strategies and five folds,
as `select_genes` does by default, instead of the search and three folds.
"""

import argparse
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression, RidgeCV
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from fewer.anndata import select_genes

QUICK = {"strategies": ["search"], "validation": 3}


def choosers(train: Any, k: int, seed: int, options: dict[str, Any]) -> dict[str, Callable]:
    import scanpy  # noqa: PLC0415

    def variable(flavor: str) -> Any:
        found = scanpy.pp.highly_variable_genes(train, n_top_genes=k, flavor=flavor, inplace=False)
        return train.var_names[found["highly_variable"].to_numpy()]

    def ours(k: int, **more: Any) -> Any:
        return select_genes(train, k, random_state=seed, inplace=False, **options, **more).features

    X = train.X.toarray()
    return {
        "random": lambda: np.random.default_rng(seed).choice(train.var_names, k, replace=False),
        "variable genes (seurat)": lambda: variable("seurat"),
        "variable genes (cell_ranger)": lambda: variable("cell_ranger"),
        "largest variance": lambda: train.var_names[np.argsort(-X.var(axis=0))[:k]],
        "select_genes": lambda: ours(k),
        "select_genes, groupby": lambda: ours(k, groupby="kind"),
        "half by groupby, half without": lambda: ours(k, include=ours(k // 2, groupby="kind")),
    }


def explained(rebuilt: np.ndarray, truth: np.ndarray) -> float:
    return float(1 - ((rebuilt - truth) ** 2).sum() / ((truth - truth.mean(0)) ** 2).sum())


def scores(train: Any, test: Any, genes: Any) -> tuple[float, float]:
    x, x_new = (part[:, list(genes)].X.toarray() for part in (train, test))
    every, every_new = train.X.toarray(), test.X.toarray()
    rebuilt = RidgeCV(alphas=np.logspace(0, 4, 9)).fit(x, every).predict(x_new)
    teller = make_pipeline(StandardScaler(), LogisticRegression(C=0.1, max_iter=2000))
    right = teller.fit(x, train.obs["kind"]).score(x_new, test.obs["kind"])
    return explained(rebuilt, every_new), right


def bound(train: Any, test: Any, k: int) -> tuple[float, float]:
    pca = PCA(k, random_state=0).fit(train.X.toarray())
    parts = [pca.transform(part.X.toarray()) for part in (train, test)]
    teller = make_pipeline(StandardScaler(), LogisticRegression(C=0.1, max_iter=2000))
    right = teller.fit(parts[0], train.obs["kind"]).score(parts[1], test.obs["kind"])
    return explained(pca.inverse_transform(parts[1]), test.X.toarray()), right


def spread(values: list[float]) -> str:
    return f"{np.mean(values):.3f} ± {np.std(values):.3f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--k", default="10,20,50")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--full", action="store_true")
    args = parser.parse_args()
    try:
        import scanpy  # noqa: PLC0415
    except ImportError:
        sys.exit("this benchmark needs scanpy, and its data: pip install scanpy")
    torch.set_num_threads(args.threads)
    cells = scanpy.datasets.pbmc68k_reduced().raw.to_adata()
    cells.obs["kind"] = cells.obs["bulk_labels"].astype(str)
    options = {} if args.full else QUICK
    table = Table("k", "panel", "variance", "types", "seconds", title="700 blood cells, 765 genes")
    for k in map(int, args.k.split(",")):
        found: dict[str, list[tuple[float, float, float]]] = defaultdict(list)
        for seed in range(args.seeds):
            parts = train_test_split(
                np.arange(cells.n_obs), test_size=0.3, stratify=cells.obs["kind"], random_state=seed
            )
            train, test = (cells[part].copy() for part in parts)
            for name, choose in choosers(train, k, seed, options).items():
                began = time.process_time()
                genes = choose()
                seconds = time.process_time() - began
                found[name].append((*scores(train, test, genes), seconds))
                print(k, seed, name, found[name][-1], file=sys.stderr, flush=True)
            found["PCA (all genes)"].append((*bound(train, test, k), 0.0))
        for name, rows in found.items():
            variance, types, seconds = (list(column) for column in zip(*rows, strict=True))
            table.add_row(str(k), name, spread(variance), spread(types), f"{np.mean(seconds):.1f}")
        table.add_section()
    Console().print(table)


if __name__ == "__main__":
    main()
