"""Panels that predict classes: test accuracy of features chosen with labels, without, and by peers.

    FEWER_DATA=... python benchmarks/supervised.py [--data mnist,isolet] [--k 50,25] [--seeds 3] \
        [--methods select,label-free] [--device auto] [--out FILE] [--quick] [--both]

MNIST and Fashion-MNIST (60,000 images to fit), ISOLET and HAR have their official test rows;
COIL-20 (32 x 32) and Mice are split 80/20 at random by the seed, Mice also by mouse. Where other
people or mice are tested (ISOLET, HAR, Mice by mouse), ours is told which rows belong together.
Features are standardised by the training rows. "own" is the accuracy that a user gets, from the
predictor that comes with the choice (of "select", the default; of "select 67" and
"ConcreteClassifier", one hidden layer of 67 units, as in the literature); "network" that of one
hidden layer of 67 units, trained in the same way for all (`ConcreteClassifier` on the chosen
features); "trees" that of 50 extremely randomised trees. LassoNet and STG are there if they are
installed; they, and the L1 penalty, see at most --peer-rows rows. Results that --out already holds
are not computed again, and --merge a.json,b.json only prints the tables. --both compares one panel
for predicting and reconstructing with the two specialists, with each of --shares for reconstruct=;
it also knows "pbmc", 700 cells that come with scanpy. --quick is a smoke test on digits.
"""

import argparse
import json
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from sklearn.ensemble import ExtraTreesClassifier
from sklearn.feature_selection import SelectFromModel
from sklearn.svm import LinearSVC

import fewer
import peer_methods
from fewer.datasets import load
from fewer.datasets.catalogue import find_file
from fewer.errors import FewerWarning
from fewer.selection.filters import rank_features

NAMES = ("mnist", "fashion", "isolet", "har", "coil20", "mice", "mice-by-mouse")
HIDDEN, TREES = (67,), 50
PENALTY = 0.01  # of the L1 penalty; scores are compared, so it hardly matters
SHARES = (0.5, 0.7, 0.8, 0.9)  # of reconstruction, with --both
# test accuracy at k = 50: Yasuda et al., Sequential Attention (ICLR 2023)
PUBLISHED = {
    "mnist": 0.956,
    "fashion": 0.854,
    "isolet": 0.920,
    "har": 0.931,
    "coil20": 0.997,
    "mice": 0.993,
}


@dataclass(frozen=True)
class Labelled:
    """Standardised rows to fit on and to test on, with their classes."""

    fit: np.ndarray
    labels: np.ndarray
    test: np.ndarray
    test_labels: np.ndarray
    groups: np.ndarray | None = None

    def fewer_rows(self, most: int, seed: int) -> "Labelled":
        """At most so many rows to fit on, at random."""
        if len(self.fit) <= most:
            return self
        at = np.sort(np.random.default_rng(seed).choice(len(self.fit), most, replace=False))
        groups = None if self.groups is None else self.groups[at]
        return replace(self, fit=self.fit[at], labels=self.labels[at], groups=groups)


def load_labelled(name: str, seed: int) -> Labelled:
    """The rows of a data set, split and standardised by those to fit on."""
    groups = None
    if name == "coil20":
        path = find_file("coil20_32x32.npz")
        if path is None:
            raise SystemExit("coil20_32x32.npz is not in FEWER_DATA")
        with np.load(path, allow_pickle=False) as stored:
            X, y = stored["X"], stored["y"].astype(np.int64)
        test = _random_test(len(X), seed)
    elif name == "pbmc":
        X, y = _pbmc()
        test = _random_test(len(X), seed)
    else:
        data = load("mice" if name == "mice-by-mouse" else name)
        assert data.y is not None
        X, y = data.X, data.y
        if data.official is not None:
            test = data.official
            groups = data.groups if name in ("isolet", "har") else None
        elif name == "mice-by-mouse":
            test = np.isin(np.arange(len(X)), data.split("clean", seed).test)
            groups = data.groups
        else:
            test = _random_test(len(X), seed)
    X = X.astype(np.float32)
    mean, spread = np.nanmean(X[~test], axis=0), np.nanstd(X[~test], axis=0)
    X = np.nan_to_num((X - mean) / np.where(spread > 0, spread, 1.0), nan=0.0)
    own = None if groups is None else groups[~test]
    return Labelled(X[~test], y[~test], X[test], y[test], own)


def _pbmc() -> tuple[np.ndarray, np.ndarray]:
    """700 blood cells x 765 genes, with their types, as they come with scanpy (not imported)."""
    import anndata  # noqa: PLC0415 (optional)

    found = find_spec("scanpy")
    if found is None or found.origin is None:
        raise SystemExit("pbmc68k_reduced comes with scanpy: pip install scanpy")
    cells = anndata.read_h5ad(Path(found.origin).parent / "datasets/10x_pbmc68k_reduced.h5ad")
    return np.asarray(cells.X), cells.obs["bulk_labels"].cat.codes.to_numpy().astype(np.int64)


def _random_test(n: int, seed: int) -> np.ndarray:
    """A random fifth of the rows."""
    order = np.random.default_rng(seed).permutation(n)
    return np.isin(np.arange(n), order[: round(0.2 * n)])


# -- methods: the columns, and the accuracy of their own predictor, if any ------------------------

Choice = tuple[np.ndarray, float | None]


def select(
    data: Labelled, k: int, seed: int, device: str, decoder: str | tuple[int, ...] = "auto"
) -> Choice:
    """The panel that a user gets."""
    panel = fewer.select(
        data.fit,
        k,
        target=data.labels,
        decoder=decoder,
        row_groups=data.groups,
        random_state=seed,
        device=device,
    )
    right = panel.predict(data.test[:, panel.indices]) == data.test_labels
    return panel.indices, float(right.mean())


def classifier(data: Labelled, k: int, seed: int, device: str) -> Choice:
    """The estimator with its defaults."""
    model = fewer.ConcreteClassifier(k, decoder=HIDDEN, random_state=seed, device=device)
    model.fit(data.fit, data.labels)
    return model.columns_, float(model.score(data.test, data.test_labels))


def everything(data: Labelled, k: int, seed: int, device: str) -> Choice:
    """All features, with the predictor that `select` makes: about the most that can be had."""
    return select(data, data.fit.shape[1], seed, device)


def label_free(data: Labelled, k: int, seed: int, device: str) -> Choice:
    """Features from which the others are reconstructed."""
    return fewer.ColumnSubset(k, random_state=seed, device=device).fit(data.fit).columns_, None


def ranked(name: str, data: Labelled, k: int, seed: int, device: str) -> Choice:
    """The first features of a ranking."""
    x = data.fit.astype(np.float64)
    return rank_features(name, x, data.labels, seed, most=k)[:k], None


def l1(data: Labelled, k: int, seed: int, device: str) -> Choice:
    """The largest coefficients of a linear support vector machine with an L1 penalty."""
    model = LinearSVC(penalty="l1", dual=False, C=PENALTY, max_iter=300, random_state=seed)
    found = SelectFromModel(model, threshold=-np.inf, max_features=k).fit(data.fit, data.labels)
    return np.flatnonzero(found.get_support()), None


def peer(name: str, data: Labelled, k: int, seed: int, device: str) -> Choice:
    """Another package."""
    rows = peer_methods.Rows(data.fit, data.labels, data.groups, k, seed)
    return np.asarray(peer_methods.LABELLED[name].choose(rows)()), None


Method = Callable[[Labelled, int, int, str], Choice]
METHODS: dict[str, Method] = {
    "select": select,
    "select 67": partial(select, decoder=HIDDEN),
    "ConcreteClassifier": classifier,
    "all features": everything,
    "label-free": label_free,
    "trees": partial(ranked, "tree importance"),
    "ANOVA": partial(ranked, "ANOVA"),
    "mRMR": partial(ranked, "mRMR"),
    "L1": l1,
    "LassoNet": partial(peer, "LassoNet"),
    "STG": partial(peer, "STG"),
}
SLOW = ("L1", "LassoNet", "STG")
PACKAGES = {"LassoNet": "lassonet", "STG": "stg"}


def cell(name: str, k: int, method: str, seed: int, options: argparse.Namespace) -> dict[str, Any]:
    """Accuracies of one method on one data set with one seed."""
    data = load_labelled(name, seed)
    seen = data.fewer_rows(options.peer_rows, seed) if method in SLOW else data
    began = time.perf_counter()
    columns, own = METHODS[method](seen, k, seed, options.device)
    seconds = time.perf_counter() - began
    fit, test = data.fit[:, columns], data.test[:, columns]
    network = None
    if len(columns) == k:
        network = fewer.ConcreteClassifier(
            k, include=range(k), decoder=HIDDEN, random_state=seed, device=options.device
        ).fit(fit, data.labels)
    trees = ExtraTreesClassifier(TREES, random_state=seed, n_jobs=-1).fit(fit, data.labels)
    return {
        "own": own,
        "network": None if network is None else float(network.score(test, data.test_labels)),
        "trees": float(trees.score(test, data.test_labels)),
        "rows": len(seen.fit),
        "seconds": seconds,
        "columns": np.sort(columns).tolist(),
    }


def show(results: dict[str, dict[str, Any]], where: str) -> None:
    """One table per k: mean accuracy over seeds, by data set and method."""
    for k in sorted({key.split("|")[1] for key in results}, key=int, reverse=True):
        table = Table(title=f"Test accuracy, k = {k}, {where}: own / network / trees")
        table.add_column("data")
        methods = [m for m in METHODS if any(key.split("|")[1:3] == [k, m] for key in results)]
        for method in methods:
            table.add_column(method, justify="right")
        table.add_column("published, k = 50", justify="right")
        for name in dict.fromkeys(key.split("|")[0] for key in results):
            row = []
            for method in methods:
                cells = [r for key, r in results.items() if key.split("|")[:3] == [name, k, method]]
                parts = []
                for what in ("own", "network", "trees"):
                    known = [c[what] for c in cells if c[what] is not None]
                    parts.append(f"{np.mean(known):.4f}" if known else "-")
                row.append(" / ".join(parts) if cells else "")
            published = PUBLISHED.get(name)
            table.add_row(name, *row, f"{published:.3f}" if published else "-")
        Console(width=200).print(table)


def show_both(name: str, k: int, seeds: int, device: str, shares: Sequence[float]) -> None:
    """One panel for both beside the two specialists: accuracy and error on the test rows."""
    table = Table(title=f"{name}, k = {k}: one panel for predicting and reconstructing")
    for column in ("panel", "accuracy", "error", "accuracy lost", "error added"):
        table.add_column(column, justify="right")
    found: dict[str, list[tuple[float, float]]] = {}
    for seed in range(seeds):
        data = load_labelled(name, seed)
        common = {"row_groups": data.groups, "random_state": seed, "device": device}
        labelled = {"target": data.labels, **common}
        panels = {
            "predicts": fewer.select(data.fit, k, **labelled),
            "reconstructs": fewer.select(data.fit, k, **common),
        }
        for share in shares:
            panels[f"reconstruct={share}"] = fewer.select(
                data.fit, k, reconstruct=share, **labelled
            )
        for title, panel in panels.items():
            measured = data.test[:, panel.indices]
            right = float("nan")
            if panel.target is not None:
                right = float((panel.predict(measured) == data.test_labels).mean())
            wrong = float(((panel.reconstruct(measured) - data.test) ** 2).mean())
            found.setdefault(title, []).append((right, wrong))
            print(seed, title, f"accuracy {right:.4f}, error {wrong:.5f}", flush=True)
    mean = {title: np.mean(cells, axis=0) for title, cells in found.items()}
    best, lowest = mean["predicts"][0], mean["reconstructs"][1]
    for title, (right, wrong) in mean.items():
        lost, added = f"{100 * (best - right):.1f} points", f"{100 * (wrong / lowest - 1):.1f}%"
        table.add_row(title, f"{right:.4f}", f"{wrong:.5f}", lost, added)
    Console(width=120).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default=",".join(NAMES))
    parser.add_argument("--k", default="50,25")
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--peer-rows", type=int, default=5000)
    parser.add_argument("--out", default="results/cells/supervised.json")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--merge", help="print the tables of these results, comma-separated")
    parser.add_argument("--both", action="store_true")
    parser.add_argument("--shares", default=",".join(map(str, SHARES)), help="with --both")
    options = parser.parse_args()
    if options.quick:
        options.data, options.k, options.seeds = "digits", "10", 1
    warnings.simplefilter("ignore", FewerWarning)
    names, sizes = options.data.split(","), [int(k) for k in options.k.split(",")]
    if options.both:
        for name in names:
            shares = [float(share) for share in options.shares.split(",")]
            show_both(name, sizes[0], options.seeds, options.device, shares)
        return
    if options.merge:
        merged: dict[str, Any] = {}
        for file in options.merge.split(","):
            merged |= json.loads(Path(file).read_text())
        show(merged, options.merge)
        return
    there = options.device != "cpu" and torch.cuda.is_available()
    where = torch.cuda.get_device_name() if there else "CPU"
    out = Path(options.out)
    out.parent.mkdir(parents=True, exist_ok=True)
    results: dict[str, Any] = json.loads(out.read_text()) if out.exists() else {}
    for seed in range(options.seeds):
        for name in names:
            for k in sizes:
                for method in options.methods.split(","):
                    key = f"{name}|{k}|{method}|{seed}"
                    package = PACKAGES.get(method)
                    if key in results or (package is not None and find_spec(package) is None):
                        continue
                    results[key] = cell(name, k, method, seed, options)
                    draft = out.with_name(out.name + ".part")
                    draft.write_text(json.dumps(results, indent=1))
                    draft.replace(out)
                    shown = {what: results[key][what] for what in ("own", "network", "trees")}
                    print(key, shown, f"{results[key]['seconds']:.1f} s", flush=True)
    show(results, where)


if __name__ == "__main__":
    main()
