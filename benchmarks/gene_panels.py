"""Gene panels from counts, beside the ways in which panels are usually made.

    python benchmarks/gene_panels.py [--data pbmc,simulated,donors] [--k 32,64,150] [--seeds 3]

Data: "pbmc" are the counts behind scanpy's ``pbmc68k_reduced`` (700 cells, 765 genes, 10 types; the
values of ``raw`` become counts again by the totals in obs); "simulated" are counts of 2,500 cells,
1,500 genes, 12 types from 26% to 0.6% of the cells and 6 donors; "donors" are the same cells, where
one donor per seed is held out instead of 30% of the cells.

Every panel is judged alike, on held-out cells: "variance", of log-normalised counts of all genes,
by ridge regression whose penalty is cross-validated on the training cells; "half", the same where
the panel is measured in one random half of each cell's counts, and the genes are those of the other
half, so that no gene can reproduce its own counting noise; "gene r", the median correlation of
genes with their reconstruction; "accuracy", "macro F1" and "rare F1" (types under 2% of the cells)
of cell types by logistic regression with balanced classes; "neighbours", the fraction of the 15
nearest neighbours (30 principal components of all genes) that are so on the panel; CPU seconds.
"own" is by how much the error of the panel's own decoder, of genes off the panel, exceeds that of
the ridge penalty that is best in hindsight.

"fewer" is ``select_genes(adata, k, groupby=...)``, one panel for both; "fewer, no types" is without
``groupby``; "fewer, as measured" is that with ``noise=None``. "Spapros" is the package, with its
defaults and all genes, and "variable (seurat_v3)" needs scikit-misc; they are left out where these
are not installed. Of geneBasis and Spapros there is the published idea in a few lines: geneBasis,
genes one by one for the largest distance between a gene and its mean over neighbours on the panel;
Spapros, half of the panel by loadings of principal components, half by trees for each type. PERSIST
is not compared: it is not on the package index.
"""

import argparse
import sys
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score
from sklearn.model_selection import train_test_split
from sklearn.neighbors import NearestNeighbors
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.tree import DecisionTreeClassifier

from fewer.anndata import select_genes

Values = NDArray[np.float64]
Genes = NDArray[np.int64]

PENALTIES = np.logspace(-3, 2, 16)  # of the mean variance of the panel
NEIGHBOURS, COMPONENTS = 15, 30
RARE = 0.02
MEASURES = ("variance", "half", "gene r", "accuracy", "macro F1", "rare F1", "neighbours")
SHARES = np.array([26, 20, 15, 12, 9, 6, 4.5, 3, 1.8, 1.2, 0.9, 0.6]) / 100


# -- data --------------------------------------------------------------------------------------


def pbmc() -> tuple[Values, NDArray, None]:
    import scanpy  # noqa: PLC0415

    cells = scanpy.datasets.pbmc68k_reduced().raw.to_adata()
    totals = cells.obs["n_counts"].to_numpy(dtype=float)
    counts = np.rint(np.expm1(cells.X.toarray().astype(float)) * totals[:, None] / 1e4)
    return counts, cells.obs["bulk_labels"].astype(str).to_numpy(), None


def simulated(n: int = 2500, d: int = 1500, depth: float = 3000.0) -> tuple[Any, ...]:
    """Lineages, types, continuous programs, donors, and Poisson counts of log-normal depth."""
    draw = np.random.default_rng(0)
    base = draw.normal(0, 1.6, d)
    lineage = draw.integers(0, 4, len(SHARES))
    lineages = 1.3 * draw.normal(size=(4, d)) * (draw.random((4, d)) < 0.05)
    types = np.abs(draw.normal(0, 1.2, (len(SHARES), d))) * (draw.random((len(SHARES), d)) < 0.012)
    kind = draw.choice(len(SHARES), n, p=SHARES / SHARES.sum())
    programs = (draw.gamma(1.0, size=(n, 5)) - 1) @ (
        draw.normal(0, 0.5, (5, d)) * (draw.random((5, d)) < 0.06)
    )
    donor = draw.integers(0, 6, n)
    batch = draw.normal(0, 0.15, (6, d))[donor]
    extra = draw.normal(0, 0.25, (n, d)) * (draw.random(d) < 0.3)
    rate = np.exp(base + lineages[lineage[kind]] + types[kind] + programs + batch + extra)
    size = np.exp(draw.normal(np.log(depth), 0.35, n))
    counts = draw.poisson(size[:, None] * rate / rate.sum(1, keepdims=True)).astype(float)
    counts = counts[:, (counts > 0).sum(0) >= 10]
    return counts, np.array([f"type {i:02d}" for i in kind]), donor


def logarithms(counts: Values) -> Values:
    return np.log1p(counts * 1e4 / np.maximum(counts.sum(1, keepdims=True), 1))


class Case:
    """Training and test cells, and a random half of the counts of each."""

    def __init__(self, counts: Values, types: NDArray, test: Genes, seed: int) -> None:
        draw = np.random.default_rng(seed)
        self.test, self.train = test, np.setdiff1d(np.arange(len(counts)), test)
        self.counts, self.types, self.x = counts, types, logarithms(counts)
        half = draw.binomial(counts.astype(int), 0.5)
        self.first, self.second = logarithms(half), logarithms(counts - half)
        pca = PCA(COMPONENTS, random_state=0).fit(self.x[self.train])
        self.near = neighbours(pca.transform(self.x[test]))
        self.labels, sizes = np.unique(types, return_counts=True)
        self.rare = sizes < RARE * len(types)

    def annotated(self) -> Any:
        import anndata  # noqa: PLC0415
        import pandas as pd  # noqa: PLC0415

        names = [f"gene{j}" for j in range(self.counts.shape[1])]
        obs = pd.DataFrame({"type": self.types[self.train]}, dtype="category")
        obs.index = obs.index.astype(str)
        cells = anndata.AnnData(self.counts[self.train].astype(np.float32), obs=obs)
        cells.var_names = names
        return cells


# -- measures ----------------------------------------------------------------------------------


def ridge_path(x: Values, y: Values, new: Values) -> Iterator[Values]:
    """Reconstructions of new cells with each penalty."""
    mean, middle, unit = x.mean(0), y.mean(0), x.var(0).mean()
    values, vectors = np.linalg.eigh((x - mean).T @ (x - mean) / len(x))
    inside = vectors.T @ ((x - mean).T @ (y - middle)) / len(x)
    turned = (new - mean) @ vectors
    for penalty in PENALTIES:
        yield turned @ (inside / (np.maximum(values, 0) + penalty * unit)[:, None]) + middle


def tuned_ridge(x: Values, y: Values, new: Values) -> Values:
    """The penalty of five folds of the training cells."""
    fold, wrong = np.arange(len(x)) % 5, np.zeros(len(PENALTIES))
    for at in range(5):
        out = fold == at
        wrong += [((one - y[out]) ** 2).sum() for one in ridge_path(x[~out], y[~out], x[out])]
    return list(ridge_path(x, y, new))[int(wrong.argmin())]


def explained(rebuilt: Values, truth: Values) -> float:
    return float(1 - ((rebuilt - truth) ** 2).sum() / ((truth - truth.mean(0)) ** 2).sum())


def gene_correlation(rebuilt: Values, truth: Values) -> float:
    a, b = rebuilt - rebuilt.mean(0), truth - truth.mean(0)
    size = np.sqrt((a**2).sum(0) * (b**2).sum(0))
    varies = (b**2).sum(0) > 0
    return float(np.median(np.divide((a * b).sum(0), size, where=size > 0, out=0 * size)[varies]))


def neighbours(points: Values) -> Genes:
    return NearestNeighbors(n_neighbors=NEIGHBOURS).fit(points).kneighbors(return_distance=False)


def judge(case: Case, genes: Genes) -> dict[str, float]:
    train, test, truth = case.train, case.test, case.x[case.test]
    x, new = case.x[train][:, genes], case.x[test][:, genes]
    rebuilt = tuned_ridge(x, case.x[train], new)
    first = case.first[train][:, genes], case.first[test][:, genes]
    other = tuned_ridge(first[0], case.second[train], first[1])
    teller = make_pipeline(
        StandardScaler(), LogisticRegression(C=0.1, max_iter=500, class_weight="balanced")
    )
    told = teller.fit(x, case.types[train]).predict(new)
    right = case.types[test]
    each = f1_score(right, told, average=None, labels=case.labels, zero_division=0)
    pca = PCA(min(COMPONENTS, len(genes)), random_state=0).fit(x)
    near = neighbours(pca.transform(new))
    same = [len(np.intersect1d(a, b)) for a, b in zip(near, case.near, strict=True)]
    return {
        "variance": explained(rebuilt, truth),
        "half": explained(other, case.second[test]),
        "gene r": gene_correlation(rebuilt, truth),
        "accuracy": float((told == right).mean()),
        "macro F1": float(each.mean()),
        "rare F1": float(each[case.rare].mean()) if case.rare.any() else np.nan,
        "neighbours": float(np.mean(same)) / NEIGHBOURS,
    }


def own_decoder(case: Case, panel: Any) -> float:
    """Excess error of the panel's decoder over that of the best penalty, off the panel."""
    train, test, genes = case.train, case.test, panel.indices
    x, new = case.x[train][:, genes], case.x[test][:, genes]
    off = np.setdiff1d(np.arange(case.x.shape[1]), genes)
    truth = case.x[test][:, off]
    best = min(((one - truth) ** 2).sum() for one in ridge_path(x, case.x[train][:, off], new))
    return float(((panel.reconstruct(new)[:, off] - truth) ** 2).sum() / best - 1)


# -- panels ------------------------------------------------------------------------------------


def highly_variable(cells: Any, k: int, flavor: str) -> Genes:
    import scanpy  # noqa: PLC0415

    if flavor == "pearson":
        choose = scanpy.experimental.pp.highly_variable_genes
        found = choose(cells, n_top_genes=k, layer="counts", inplace=False)
    else:
        layer = "counts" if flavor == "seurat_v3" else None
        choose = scanpy.pp.highly_variable_genes
        found = choose(cells, n_top_genes=k, flavor=flavor, layer=layer, inplace=False)
    return np.flatnonzero(found["highly_variable"].to_numpy())


def markers(cells: Any, k: int) -> Genes:
    """The best genes of each type against the others by Wilcoxon's test, in turns."""
    import scanpy  # noqa: PLC0415

    scanpy.tl.rank_genes_groups(cells, "type", method="wilcoxon")
    ranked, number = (
        cells.uns["rank_genes_groups"]["names"],
        dict(zip(cells.var_names, range(cells.n_vars), strict=True)),
    )
    found: dict[int, None] = {}
    for row in ranked:
        for name in row:
            if len(found) < k:
                found[number[name]] = None
    return np.array(list(found))


def spapros(cells: Any, k: int) -> Genes:
    from spapros import se  # noqa: PLC0415

    asked = {"celltype_key": "type", "genes_key": None, "n": k, "verbosity": 0, "n_jobs": 1}
    selector = se.ProbesetSelector(cells, **asked)
    selector.select_probeset()
    chosen = selector.probeset["selection"].astype(bool)
    return np.sort(cells.var_names.get_indexer(chosen.index[chosen]))


def spapros_idea(cells: Any, k: int) -> Genes:
    x, types = np.asarray(cells.X), cells.obs["type"].to_numpy()
    pca = PCA(20, random_state=0).fit(x)
    order = np.argsort(-(np.abs(pca.components_) * pca.explained_variance_[:, None]).sum(0))
    found = dict.fromkeys(order[: k // 2].tolist())
    trees = [
        DecisionTreeClassifier(max_depth=4, class_weight="balanced", random_state=0)
        .fit(x, types == one)
        .feature_importances_
        for one in np.unique(types)
    ]
    turns = np.array([np.argsort(-tree) for tree in trees]).T.ravel()
    for j in [*turns.tolist(), *order.tolist()]:
        if len(found) < k:
            found[j] = None
    return np.array(list(found))


def genebasis_idea(cells: Any, k: int) -> Genes:
    x = np.asarray(cells.X, dtype=float)
    near = neighbours(PCA(COMPONENTS, random_state=0).fit_transform(x))
    smooth = x[near].mean(1)
    found = [int(np.argmax(x.var(0)))]
    while len(found) < k:
        own = x[:, found]
        if len(found) > COMPONENTS:
            own = PCA(COMPONENTS, random_state=0).fit_transform(own)
        lost = np.linalg.norm(x - x[neighbours(own)].mean(1), axis=0)
        gap = lost - np.linalg.norm(x - smooth, axis=0)
        gap[found] = -np.inf
        found.append(int(np.argmax(gap)))
    return np.array(found)


def choosers(case: Case, k: int, seed: int) -> dict[str, Callable[[], Any]]:
    cells = case.annotated()
    logged = cells.copy()
    logged.layers["counts"], logged.X = cells.X, case.x[case.train].astype(np.float32)

    def ours(**more: Any) -> Any:
        return select_genes(cells, k, random_state=seed, inplace=False, **more)

    flavors = ["seurat", "cell_ranger", "pearson"]
    if find_spec("skmisc") is not None:
        flavors.insert(2, "seurat_v3")
    package = {"Spapros": lambda: spapros(logged, k)} if find_spec("spapros") is not None else {}
    return {
        "fewer": lambda: ours(groupby="type"),
        "fewer, no types": ours,
        "fewer, as measured": lambda: ours(noise=None),
        **{
            f"variable ({flavor})": lambda flavor=flavor: highly_variable(logged, k, flavor)
            for flavor in flavors
        },
        "marker genes (Wilcoxon)": lambda: markers(logged, k),
        **package,
        "Spapros' idea": lambda: spapros_idea(logged, k),
        "geneBasis' idea": lambda: genebasis_idea(logged, k),
    }


def cases(name: str, seeds: int) -> Iterator[tuple[int, Case]]:
    counts, types, donors = pbmc() if name == "pbmc" else simulated()
    for seed in range(seeds):
        if name == "donors":
            test = np.flatnonzero(donors == seed)
        else:
            every = np.arange(len(counts))
            _, test = train_test_split(every, test_size=0.3, stratify=types, random_state=seed)
        yield seed, Case(counts, types, np.sort(test), seed)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--data", default="pbmc,simulated,donors")
    parser.add_argument("--k", default="32,64,150")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--skip", default="", help="panels to leave out, by ';'")
    args = parser.parse_args()
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    for name in args.data.split(","):
        found: dict[tuple[int, str], list[dict[str, float]]] = defaultdict(list)
        for seed, case in cases(name, args.seeds):
            for k in map(int, args.k.split(",")):
                for label, choose in choosers(case, k, seed).items():
                    if label in args.skip.split(";"):
                        continue
                    began = time.process_time()
                    panel = choose()
                    seconds = time.process_time() - began
                    genes = panel if isinstance(panel, np.ndarray) else panel.indices
                    row = judge(case, genes) | {"seconds": seconds}
                    if genes is not panel:
                        row["own"] = own_decoder(case, panel)
                    found[k, label].append(row)
                    print(name, seed, k, label, row, file=sys.stderr, flush=True)
        table = Table("k", "panel", *MEASURES, "own", "CPU s", title=f"{name}, {args.seeds} splits")
        before = None
        for (k, label), rows in sorted(found.items(), key=lambda item: item[0][0]):
            if before not in (None, k):
                table.add_section()
            before = k
            values = [f"{np.mean([row[one] for row in rows]):.3f}" for one in MEASURES]
            own = f"{np.mean([row['own'] for row in rows]):+.1%}" if "own" in rows[0] else ""
            seconds = f"{np.mean([row['seconds'] for row in rows]):.1f}"
            table.add_row(str(k), label, *values, own, seconds)
        Console(width=140).print(table)


if __name__ == "__main__":
    main()
