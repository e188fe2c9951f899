"""Whether the statistics that fewer reports can be trusted: simulations with known answers.

    FEWER_DATA=... python benchmarks/trust.py [--only size] [--runs 200]

size    The k of ``fewer.select(X, "auto")`` where k sources are planted: each is measured precisely
        by one feature, and seen through others: near copies (noise 0.05), blocks of five noisy
        features (correlations 0.6 to 0.9), or mixtures of all sources (80% signal); with as many
        columns of pure noise. 3 to 8 sources, 100 to 5,000 rows. Then the CPU seconds of the curve
        for k = 1 to 100 on 10,000 images of MNIST.
tests   p-values of `fewer.score` where nothing is related (uniform?), and the power of the test of
        a contribution where a feature has correlation 0.5 with one of ten others, in 100 rows.
twins   Features of a panel with a near copy (noise 0.1) each: is the copy the best substitute?
sure    Columns of noise among the stable features, against the bound of Shah and Samworth, and the
        CPU seconds of 100 subsamples: MNIST (10,000 x 784), and 171 x 5,748 rows of 8 factors.
coverage  Of 90% prediction intervals on new rows (of new speakers, mice and patients), per feature
        that is not measured, and `panel.held_out` beside the score on these rows; runs / 20 splits.
"""

import argparse
import time

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from scipy.stats import kstest
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import GroupShuffleSplit

import fewer
from fewer.assess import curve, stability
from fewer.constraints import resolve
from fewer.data.open import as_source
from fewer.datasets import load
from fewer.selection.size import choose_size
from fewer.validation import fold_covariances, split_rows

KINDS = ("copies", "blocks", "mixtures")
ROWS = (100, 300, 1000, 5000)


def planted(kind: str, n: int, k: int, random: np.random.Generator) -> np.ndarray:
    """Rows of k sources and the features that show them; the first k are precise."""
    sources = random.normal(size=(n, k))
    parts = [sources + 0.05 * random.normal(size=(n, k))]
    if kind == "copies":
        parts.append(np.repeat(sources, 3, axis=1) + 0.05 * random.normal(size=(n, 3 * k)))
    elif kind == "blocks":
        loading = random.uniform(0.6, 0.9, size=5 * k)
        noise = np.sqrt(1 - loading**2) * random.normal(size=(n, 5 * k))
        parts.append(loading * np.repeat(sources, 5, axis=1) + noise)
    else:
        mix = random.normal(size=(k, 6 * k))
        mix /= np.linalg.norm(mix, axis=0)
        parts.append(0.8 * sources @ mix + 0.6 * random.normal(size=(n, 6 * k)))
    return np.hstack([*parts, random.normal(size=(n, k))])


def size(runs: int, screen: Console) -> None:
    """How often "auto" finds the planted number, or one beside it."""
    table = Table("planted", "rows", "right", "within one", "too many", title=f"k, {runs} runs")
    each = []
    for kind in KINDS:
        for n in ROWS:
            gaps = []
            for run in range(max(1, runs // len(ROWS))):
                random = np.random.default_rng([run, n])
                k = int(random.integers(3, 9))
                X = planted(kind, n, k, random)
                folds = fold_covariances(as_source(X), split_rows(n, 5, run), "standard")
                any_size = resolve(None, X.shape[1], X.shape[1])
                found = choose_size("auto", folds, any_size, torch.device("cpu"), run)
                gaps.append(found["chosen"] - k)
            each += gaps
            add(table, kind, n, np.array(gaps))
    add(table, "all", "", np.array(each))
    screen.print(table)
    images = load("mnist").X[:10_000]
    start = time.process_time()
    found = curve(images, range(1, 101), scale="none", random_state=0, device="cpu")
    seconds = time.process_time() - start
    screen.print(f"curve for k = 1 to 100, MNIST 10k: {seconds:.1f} CPU seconds, {found.rules()}")


def add(table: Table, kind: str, n: object, gaps: np.ndarray) -> None:
    """A row of the table of sizes."""
    shares = (gaps == 0, np.abs(gaps) <= 1, gaps > 1)
    table.add_row(kind, str(n), *(f"{share.mean():.1%}" for share in shares))


def tests(runs: int, screen: Console) -> None:
    """p-values under the null hypothesis, and power."""
    null: dict[str, list[float]] = {"panel": [], "contribution": []}
    for run in range(5 * runs):
        random = np.random.default_rng([run, 1])
        X = random.normal(size=(60, 12))
        found = fewer.score(range(3), X, draws=99, random_state=run, device="cpu")
        null["panel"].append(found.p_value)
        null["contribution"].append(found.contributions[0]["p_value"])
    for name, values in null.items():
        spread = np.array(values) - np.random.default_rng(0).uniform(0, 0.01, len(values))
        p = kstest(spread, "uniform").pvalue
        screen.print(f"{name}: {len(values)} p-values where nothing is related, KS p = {p:.3f}")
    hits = []
    for run in range(runs):
        random = np.random.default_rng([run, 2])
        X = random.normal(size=(100, 12))
        X[:, 5] = 0.5 * X[:, 0] + 0.75**0.5 * X[:, 5]
        found = fewer.score([0, 1], X, draws=1, random_state=run, device="cpu")
        hits.append(found.contributions[0]["p_value"] <= 0.05)
    screen.print(
        f"correlation 0.5 with one of ten features, 100 rows: p <= 0.05 in {np.mean(hits):.1%}"
    )


def twins(runs: int, screen: Console) -> None:
    """How often the best substitute of a feature is its planted copy."""
    hits = []
    for run in range(max(1, runs // 5)):
        random = np.random.default_rng([run, 3])
        X = random.normal(size=(300, 20)) @ random.normal(size=(20, 20))
        options = {"strategies": ["search"], "random_state": run, "device": "cpu"}
        best = fewer.select(X, 5, **options).indices
        copies = X[:, best] + 0.1 * X[:, best].std(axis=0) * random.normal(size=(300, 5))
        both = np.hstack([X, copies])
        # the same five features, free to be replaced
        panel = fewer.select(both, 5, include=best, **options)
        panel = fewer.attach(panel, both, include=()).swap(best[0], 20).swap(20, best[0])
        pairs = panel.evidence.order, panel.evidence.substitutes
        twin = {int(j): 20 + at for at, j in enumerate(best)}
        hits += [int(s[0]) == twin[int(j)] for j, s in zip(*pairs, strict=True)]
    screen.print(f"best substitute is the planted copy: {np.mean(hits):.1%} of {len(hits)}")


def sure(runs: int, screen: Console) -> None:
    """The bound on false choices where the truth is known, and CPU seconds of stability."""
    false, bounds = [], []
    for run in range(max(1, runs // 10)):
        random = np.random.default_rng([run, 4])
        X = planted("blocks", 200, 4, random)
        X = np.hstack([X, random.normal(size=(200, 60))])  # noise: alike, so chosen by chance
        found = stability(X, 8, threshold=0.6, random_state=run, device="cpu")
        noise = set(range(24, X.shape[1]))
        false.append(len(noise & set(found.stable)))
        bounds.append(found.false_bound)
    screen.print(
        f"stable columns of noise: {np.mean(false):.2f} per run, bound {np.mean(bounds):.2f}"
    )
    images = load("mnist").X[:10_000].reshape(10_000, -1)
    random = np.random.default_rng(0)
    wide = random.normal(size=(171, 8)) @ random.normal(size=(8, 5748))
    wide += random.normal(size=wide.shape)
    for name, X, scale in (("MNIST 10k", images, "none"), ("171 x 5,748", wide, "standard")):
        start = time.process_time()
        found = stability(X, 50, scale=scale, random_state=0, device="cpu")
        seconds = time.process_time() - start
        screen.print(f"{name}, k = 50, 100 subsamples: {seconds:.1f} CPU seconds")
        screen.print(found.sentence())


REAL = {  # rows to learn from at most, k, scale
    "breast-cancer": (400, 6, "standard"),
    "digits": (1200, 10, "none"),
    "mice": (800, 10, "standard"),
    "isolet": (3000, 20, "standard"),
    "tcga": (1500, 20, "standard"),
    "mnist": (6000, 30, "none"),
}


def coverage(runs: int, screen: Console) -> None:
    """Coverage of 90% intervals on new rows (new groups, where rows have groups), and the score."""
    table = Table("data", "splits", "coverage", "of features: 5% to 95%", "held out", "new rows")
    for name, (most, k, scale) in REAL.items():
        X, groups = _rows(name)
        labels = np.arange(len(X)) if groups is None else groups
        found = []
        for run in range(max(1, runs // 20)):
            parts = GroupShuffleSplit(1, test_size=0.3, random_state=run).split(X, groups=labels)
            train, test = next(parts)
            if len(train) > most and groups is None:
                train = np.random.default_rng(run).choice(train, most, replace=False)
            own = None if groups is None else labels[train]
            options = {"row_groups": own, "strategies": ["search"], "random_state": run}
            panel = fewer.select(X[train], k, scale=scale, device="cpu", **options)
            new = X[test[:3000]]
            _, low, high = panel.reconstruct(new[:, panel.indices], interval=0.9)
            varying = X[train].std(axis=0) > 0
            others = np.setdiff1d(np.flatnonzero(varying), panel.indices)
            inside = ((new >= low) & (new <= high))[:, others].mean(axis=0)
            some = np.quantile(inside, [0.05, 0.95])
            found.append([inside.mean(), *some, float(panel.held_out), float(panel.score(new))])
        mean = np.mean(found, axis=0)
        cells = [f"{mean[0]:.1%}", f"{mean[1]:.1%} to {mean[2]:.1%}"]
        table.add_row(name, str(len(found)), *cells, f"{mean[3]:.3f}", f"{mean[4]:.3f}")
    screen.print(table)


def _rows(name: str) -> tuple[np.ndarray, np.ndarray | None]:
    """Rows without missing values, and their groups."""
    if name == "breast-cancer":
        return load_breast_cancer().data, None
    data = load(name)
    X = data.X.reshape(len(data.X), -1).astype(np.float64)
    X = X[:10_000]
    groups = None if data.groups is None else np.asarray(data.groups)[: len(X)]
    return np.where(np.isnan(X), np.nanmean(X, axis=0), X), groups


PARTS = {"size": size, "tests": tests, "twins": twins, "sure": sure, "coverage": coverage}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=PARTS)
    parser.add_argument("--runs", type=int, default=200)
    options = parser.parse_args()
    screen = Console(width=110)
    for name in [options.only] if options.only else PARTS:
        PARTS[name](options.runs, screen)


if __name__ == "__main__":
    main()
