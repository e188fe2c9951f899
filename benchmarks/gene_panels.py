"""Gene panels from counts, beside the ways in which panels are usually made.

    python benchmarks/gene_panels.py [--data pbmc,simulated,donors] [--k 32,64,150] [--seeds 3]
                                     [--skip PANELS] [--results FILE [--known]] [--markdown]

Data: "pbmc" are the counts behind scanpy's ``pbmc68k_reduced`` (700 cells, 765 genes, 10 types; the
values of ``raw`` become counts again by the totals in obs); "simulated" are counts of 2,500 cells,
1,500 genes, 12 types from 26% to 0.6% of the cells and 6 donors; "donors" are the same cells, where
one donor per seed is held out instead of 30% of the cells.

Of each measure the table has the mean over splits. Below each k: "best other", the largest mean of
the panels that are not ours, and "fewer less it", the mean difference from that panel over the same
splits and, after it, its standard error. ``--results`` keeps all rows in a file and computes only
those that are not there.

Every panel is judged alike, on held-out cells: "variance", of log-normalised counts of all genes,
by ridge regression whose penalty is cross-validated on the training cells; "half", the same where
the panel is measured in one random half of each cell's counts, and the genes are those of the other
half, so that no gene can reproduce its own counting noise; "gene r", the median correlation of
genes with their reconstruction; "accuracy", "macro F1" and "rare F1" (types under 2% of the cells)
of cell types by logistic regression with balanced classes; "neighbours", the fraction of the 15
nearest neighbours (30 principal components of all genes) that are so on the panel; CPU seconds.
"own" is by how much the error of the panel's own decoder, of genes off the panel, exceeds that of
the ridge penalty that is best in hindsight.

"fewer" is ``select_genes(adata, k, groupby=...)``, one panel for both; "fewer, donors", of the data
"donors" only, is that with ``batch_key``; "fewer, no types" is without ``groupby``; "fewer, half
the noise" and "fewer, as measured" are that with half of the counting noise, and with
``noise=None``: "variance" and "gene r" are also of the noise that a chosen gene reproduces, so that
panels are better at them the less noise is known of, and worse at "half".

"Spapros" is the package, with its defaults and all genes, and "variable (seurat_v3)" needs
scikit-misc; they are left out where these are not installed. Of geneBasis, Spapros and PERSIST,
which is not on the package index, there is the published idea in a few lines: geneBasis, genes one
by one for the largest distance between a gene and its mean over neighbours on the panel; Spapros,
half of the panel by loadings of principal components, half by trees for each type; PERSIST, a
concrete selector of binarised genes with a network that reconstructs all genes, trained together.
"""

import argparse
import json
import sys
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
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

from fewer.anndata import open_cells, select_genes
from fewer.data.counts import counting_noise

Values = NDArray[np.float64]
Genes = NDArray[np.int64]

PENALTIES = np.logspace(-3, 2, 16)  # of the mean variance of the panel
NEIGHBOURS, COMPONENTS = 15, 30
RARE = 0.02
MARKERS = "marker genes (Wilcoxon)"
GENEBASIS = "geneBasis' idea"
SHORT = {MARKERS: "markers", GENEBASIS: "geneBasis", "PERSIST's idea": "PERSIST"}
SHORT |= {f"variable ({name})": name for name in ("seurat", "cell_ranger", "seurat_v3", "pearson")}
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

    def __init__(
        self, counts: Values, types: NDArray, test: Genes, seed: int, donors: NDArray | None = None
    ) -> None:
        draw = np.random.default_rng(seed)
        self.donors = donors
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
        if self.donors is not None:
            obs["donor"] = [f"donor {one}" for one in self.donors[self.train]]
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
    if not hasattr(np, "in1d"):  # which Spapros 0.1.6 calls, and NumPy 2.4 no longer has
        setattr(np, "in1d", np.isin)  # noqa: B010
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


def persist_idea(cells: Any, k: int, epochs: int = 100) -> Genes:
    torch.manual_seed(0)
    y = torch.from_numpy(np.asarray(cells.X, dtype=np.float32))
    x, d = (y > 0).float(), y.shape[1]
    logits = torch.nn.Parameter(0.01 * torch.randn(k, d))
    net = torch.nn.Sequential(
        torch.nn.Linear(k, 128), torch.nn.ReLU(), torch.nn.Linear(128, 128), torch.nn.ReLU()
    )
    net.append(torch.nn.Linear(128, d))
    optimizer = torch.optim.Adam([logits, *net.parameters()], lr=1e-3)
    optimizer.param_groups[0]["lr"] = 1e-2
    for epoch in range(epochs):
        temperature = 10.0 * 0.001 ** (epoch / (epochs - 1))
        for rows in torch.randperm(len(x)).split(64):
            weight = torch.nn.functional.gumbel_softmax(logits, tau=temperature)
            loss = torch.nn.functional.mse_loss(net(x[rows] @ weight.T), y[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    ranked, found = logits.detach().argsort(1, descending=True), dict[int, None]()
    for row in ranked.tolist():  # the best gene of each node that no other has taken
        found[next(j for j in row if j not in found)] = None
    return np.array(list(found))


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
    donors = {"fewer, donors": lambda: ours(groupby="type", batch_key="donor")}
    return {
        "fewer": lambda: ours(groupby="type"),
        **(donors if case.donors is not None else {}),
        "fewer, no types": ours,
        "fewer, half the noise": lambda: ours(noise=0.5 * counting_noise(open_cells(cells))),
        "fewer, as measured": lambda: ours(noise=None),
        **{
            f"variable ({flavor})": lambda flavor=flavor: highly_variable(logged, k, flavor)
            for flavor in flavors
        },
        MARKERS: lambda: markers(logged, k),
        **package,
        "Spapros' idea": lambda: spapros_idea(logged, k),
        GENEBASIS: lambda: genebasis_idea(logged, k),
        "PERSIST's idea": lambda: persist_idea(logged, k),
    }


def cases(name: str, seeds: int) -> Iterator[tuple[int, Case]]:
    counts, types, donors = pbmc() if name == "pbmc" else simulated()
    for seed in range(seeds):
        if name == "donors":
            test = np.flatnonzero(donors == seed)
        else:
            every = np.arange(len(counts))
            _, test = train_test_split(every, test_size=0.3, stratify=types, random_state=seed)
        known = donors if name == "donors" else None
        yield seed, Case(counts, types, np.sort(test), seed, known)


Row = dict[str, float]


def table(name: str, rows: dict[tuple[int, str], dict[int, Row]], seeds: int) -> Table:
    """Means over splits, and how far ours is from the best other panel of each measure."""
    found = Table("k", "panel", *MEASURES, "own", "CPU s", title=f"{name}, {seeds} splits")
    for k in sorted({k for k, _ in rows}):
        here = {label: own for (size, label), own in rows.items() if size == k}
        for label, own in here.items():
            values = [f"{np.mean([row[one] for row in own.values()]):.3f}" for one in MEASURES]
            excess = [row["own"] for row in own.values() if "own" in row]
            seconds = f"{np.mean([row['seconds'] for row in own.values()]):.1f}"
            shown = f"{np.mean(excess):+.1%}" if excess else ""
            found.add_row(str(k), label, *values, shown, seconds)
        best, gaps = [], []
        for one in MEASURES:
            others = {label: own for label, own in here.items() if not label.startswith("fewer")}
            means = {
                label: np.mean([r[one] for r in own.values()]) for label, own in others.items()
            }
            if "fewer" not in here or not means:
                continue
            first = max(means, key=lambda label: means[label])
            best.append(f"{means[first]:.3f}")
            gap, error = difference(here["fewer"], others[first], one)
            gaps.append(f"{gap:+.3f} ({error:.3f})")
        found.add_row("", "best other", *best)
        found.add_row("", "fewer less it", *gaps, end_section=True)
    return found


def markdown(name: str, rows: dict[tuple[int, str], dict[int, Row]]) -> str:
    """Ours, the best other panel of each measure, and the difference with its standard error.

    Means are over the splits of which ours and the slowest idea are known; panels without all of
    these are left out.
    """
    lines = []
    for k in sorted({k for k, _ in rows}):
        here = {label: own for (size, label), own in rows.items() if size == k}
        splits = here.get("fewer", {}).keys() & here.get(GENEBASIS, {}).keys()
        here = {
            label: {seed: own[seed] for seed in splits}
            for label, own in here.items()
            if splits <= own.keys()
        }
        means = {
            label: [np.mean([row[one] for row in own.values()]) for one in MEASURES]
            for label, own in here.items()
        }
        others = [label for label in here if not label.startswith("fewer")]
        for label in (label for label in here if label.startswith("fewer")):
            shown = " | ".join(f"{value:.3f}" for value in means[label])
            lines.append(f"| {name}, {len(splits)} | {k} | {label} | {shown} |")
        best, gaps = [], []
        for at, one in enumerate(MEASURES if others and "fewer" in here else ()):
            first = max(others, key=lambda label: means[label][at])
            best.append(f"{means[first][at]:.3f} {SHORT.get(first, first)}")
            gap, error = difference(here["fewer"], here[first], one)
            gaps.append(f"{gap:+.3f}" + ("" if np.isnan(error) else f" ± {error:.3f}"))
        if best:
            lines.append(f"| | | best other | {' | '.join(best)} |")
            lines.append(f"| | | difference | {' | '.join(gaps)} |")
    return "\n".join(lines)


def difference(ours: dict[int, Row], other: dict[int, Row], measure: str) -> tuple[float, float]:
    """Mean over common splits, and its standard error."""
    both = sorted(ours.keys() & other.keys())
    gap = [ours[seed][measure] - other[seed][measure] for seed in both]
    error = np.std(gap, ddof=1) / len(gap) ** 0.5 if len(gap) > 1 else np.nan
    return float(np.mean(gap)), float(error)


class Results:
    """Rows by data, split, k and panel, kept in a file if there is one."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.rows: dict[str, Row] = {}
        self.read()

    def read(self) -> None:
        """What is in the file, to which others may write, too."""
        if self.path is not None and self.path.exists():
            self.rows = json.loads(self.path.read_text())

    def add(self, key: str, row: Row) -> None:
        self.read()
        self.rows[key] = {one: round(value, 5) for one, value in row.items()}
        print(key, self.rows[key], file=sys.stderr, flush=True)
        if self.path is not None:
            draft = self.path.with_suffix(".new")
            draft.write_text(json.dumps(self.rows, indent=0) + "\n")
            draft.replace(self.path)


def judged(case: Case, choose: Callable[[], Any]) -> Row:
    """Choose a panel, and measure it."""
    began = time.process_time()
    panel = choose()
    seconds = time.process_time() - began
    genes = panel if isinstance(panel, np.ndarray) else panel.indices
    row = judge(case, genes) | {"seconds": seconds}
    return row if genes is panel else row | {"own": own_decoder(case, panel)}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--data", default="pbmc,simulated,donors")
    parser.add_argument("--k", default="32,64,150")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--skip", default="", help="panels to leave out, by ';'")
    parser.add_argument("--results", type=Path, help="a JSON file with all rows")
    parser.add_argument("--known", action="store_true", help="only rows that are in --results")
    parser.add_argument("--markdown", action="store_true", help="print a short table in Markdown")
    args = parser.parse_args()
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    results, skipped = Results(args.results), args.skip.split(";")
    for name in args.data.split(","):
        found: dict[tuple[int, str], dict[int, Row]] = defaultdict(dict)
        for seed, case in cases(name, args.seeds):
            for k in map(int, args.k.split(",")):
                for label, choose in choosers(case, k, seed).items():
                    key = f"{name}; {seed}; {k}; {label}"
                    if label in skipped or (args.known and key not in results.rows):
                        continue
                    if key not in results.rows:
                        results.add(key, judged(case, choose))
                    found[k, label][seed] = results.rows[key]
        if args.markdown:
            print(markdown(name, found))
        else:
            Console(width=180).print(table(name, found, args.seeds))


if __name__ == "__main__":
    main()
