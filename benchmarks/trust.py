"""Whether the statistics that fewer reports can be trusted: simulations with known answers.

    FEWER_DATA=... python benchmarks/trust.py [--only size] [--runs 200]

size    The k of ``fewer.select(X, "auto")`` where k sources are planted: each is measured precisely
        by one feature, and seen through others: near copies (noise 0.05), blocks of five noisy
        features (correlations 0.6 to 0.9), or mixtures of all sources (80% signal); with as many
        columns of pure noise. 3 to 8 sources, 100 to 5,000 rows.
tests   p-values of `fewer.score` where nothing is related (uniform?), and the power of the test of
        a contribution where a feature has correlation 0.5 with one of ten others, in 100 rows.
twins   Features of a panel with a near copy (noise 0.1) each: is the copy the best substitute?
sure    Columns of noise among the stable features, against the bound of Shah and Samworth.
times   Seconds of the curve for k = 1 to 100 on 10,000 images of MNIST, and of 100 subsamples of
        these and of 171 x 5,748 rows of 8 factors.
coverage  Of 90% prediction intervals on new rows (of new speakers, mice and patients), of features
        that are not measured; and of the 90% interval of the reported score. runs / 4 splits.
"""

import argparse
import time

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from scipy import stats
from scipy.stats import kstest
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import GroupShuffleSplit

import fewer
from fewer.assess import curve, stability
from fewer.constraints import resolve
from fewer.data.open import as_source
from fewer.datasets import load
from fewer.estimate import interval_of, ratio_of_sums, sums_of_groups
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
    """The bound on false choices where the truth is known."""
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


def times(runs: int, screen: Console) -> None:
    """Seconds of the curve and of the stability, on an otherwise idle machine."""
    images = load("mnist").X[:10_000].reshape(10_000, -1)
    random = np.random.default_rng(0)
    wide = random.normal(size=(171, 8)) @ random.normal(size=(8, 5748))
    wide += random.normal(size=wide.shape)
    options = {"random_state": 0, "device": "cpu"}
    work = {
        "curve for k = 1 to 100, MNIST 10k": lambda: curve(
            images, range(1, 101), scale="none", **options
        ),
        "stability, k = 50, 100 subsamples, MNIST 10k": lambda: stability(
            images, 50, scale="none", **options
        ),
        "stability, k = 50, 100 subsamples, 171 x 5,748": lambda: stability(wide, 50, **options),
    }
    for name, call in work.items():
        wall, cpu = time.perf_counter(), time.process_time()
        call()
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        screen.print(f"{name}: {wall:.1f} s, {cpu:.1f} CPU seconds")


REAL = {  # rows to learn from (of groups 60%), k, scale
    "breast-cancer": (200, 5, "standard"),
    "digits": (600, 10, "none"),
    "mice": (0, 10, "standard"),
    "isolet": (0, 10, "standard"),
    "tcga": (0, 10, "standard"),
    "mnist": (2500, 20, "none"),
}
LEVEL = 0.9


def coverage(runs: int, screen: Console, names: list[str]) -> None:
    """Of 90% intervals and of reported scores on new rows, of new groups where rows have groups."""
    columns = ("intervals", "of features", "of rows", "score ±", "new rows", "within", "allowing")
    table = Table("data", "splits", *columns, title="coverage of 90% intervals on new rows")
    for name in names or REAL:
        most, k, scale = REAL[name]
        X, groups = _rows(name)
        labels = np.arange(len(X)) if groups is None else groups
        found = []
        for run in range(max(1, runs // 4)):
            random = np.random.default_rng(run)
            parts = GroupShuffleSplit(1, test_size=0.4, random_state=run).split(X, groups=labels)
            train, test = next(parts)
            if groups is None:
                both = random.permutation(len(X))
                train, test = both[:most], both[most:]
            own = None if groups is None else labels[train]
            options = {"row_groups": own, "strategies": ["search"], "random_state": run}
            panel = fewer.select(X[train], k, scale=scale, device="cpu", **options)
            found.append(_covered(panel, X[train], X[test], scale, labels[test]))
        row = np.mean(found, axis=0)
        cells = [f"{row[0]:.1%}", f"{row[1]:.0%} to {row[2]:.0%}", f"{row[3]:.0%} to {row[4]:.0%}"]
        cells += [f"{row[5]:.1%} ± {row[6]:.1%}", f"{row[7]:.1%}", f"{row[8]:.0%}", f"{row[9]:.0%}"]
        table.add_row(name, str(len(found)), *cells)
        screen.print(name, len(found), *cells)
    screen.print(table)
    screen.print(
        "intervals: share of the values of features that are not measured; of features, of rows: "
        "5% and 95% quantiles of that share. within: splits whose score on new rows is in the 90% "
        "interval of the reported score; allowing: adding the standard error of the new rows' own "
        "score, which are no more than a sample either."
    )


def _covered(
    panel: fewer.Panel, train: np.ndarray, new: np.ndarray, scale: str, labels: np.ndarray
) -> list[float]:
    """Coverage of intervals, and of the interval of the score, on new rows."""
    guess, low, high = panel.reconstruct(new[:, panel.indices], interval=LEVEL)
    varying = np.flatnonzero(train.std(axis=0) > 0)
    others = np.setdiff1d(varying, panel.indices)
    inside = ((new >= low) & (new <= high))[:, others]
    unit = train.std(axis=0)[varying] if scale == "standard" else np.ones(len(varying))
    wrong = (((guess - new)[:, varying] / unit) ** 2).sum(axis=1)
    total = (((new - new.mean(axis=0))[:, varying] / unit) ** 2).sum(axis=1)
    fresh = ratio_of_sums(*(sums_of_groups(part, labels) for part in (wrong, total)))
    score = panel.estimates["equal" if scale == "standard" else "units"]
    bounds = interval_of(*score, level=LEVEL)
    half = (bounds[1] - bounds[0]) / 2
    other = stats.norm.ppf((1 + LEVEL) / 2) * fresh.standard_error
    gap = abs(score.value - fresh.value)
    return [
        inside.mean(),
        *np.quantile(inside.mean(axis=0), [0.05, 0.95]),
        *np.quantile(inside.mean(axis=1), [0.05, 0.95]),
        score.value,
        score.standard_error,
        fresh.value,
        gap <= half,
        gap <= np.hypot(half, other),
    ]


def _rows(name: str) -> tuple[np.ndarray, np.ndarray | None]:
    """Rows without missing values, and their groups."""
    if name == "breast-cancer":
        return load_breast_cancer().data, None
    data = load(name)
    X = data.X.reshape(len(data.X), -1).astype(np.float64)
    X = X[:10_000]
    groups = None if data.groups is None else np.asarray(data.groups)[: len(X)]
    return np.where(np.isnan(X), np.nanmean(X, axis=0), X), groups


PARTS = {"size": size, "tests": tests, "twins": twins, "sure": sure, "times": times}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=(*PARTS, "coverage"))
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--data", default="", help="of the coverage: some of " + ",".join(REAL))
    options = parser.parse_args()
    screen = Console(width=130)
    for name in [options.only] if options.only else PARTS:
        if name in PARTS:
            PARTS[name](options.runs, screen)
    if options.only in (None, "coverage"):
        coverage(options.runs, screen, [name for name in options.data.split(",") if name])


if __name__ == "__main__":
    main()
