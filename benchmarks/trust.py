"""Whether the statistics that fewer reports can be trusted: simulations with known answers.

    FEWER_DATA=... python benchmarks/trust.py [--only size] [--runs 200] [--out results/trust.json]

size    The k of ``fewer.select(X, "auto")`` where k sources are planted: each is measured precisely
        by one feature, and seen through others: near copies (noise 0.05), blocks of five noisy
        features (correlations 0.6 to 0.9), or mixtures of all sources (80% signal); with as many
        columns of pure noise. 3 to 8 sources, 100 to 5,000 rows.
tests   p-values of `fewer.score` where nothing is related (uniform?), without and with a target,
        and the power of the test of a contribution where a feature has correlation 0.5 with one of
        ten others, or with the target, in 100 rows.
twins   Features of a panel with a near copy (noise 0.1) each: is the copy the best substitute?
sure    Columns of noise among the stable features, against the bound of Shah and Samworth.
coverage  Of 90% prediction intervals on new rows (of new speakers, mice and patients), of features
        that are not measured; and how often the score of the new rows is in the interval that the
        reported score has for so many new rows. runs / 4 splits.
times   Seconds of the curve for k = 1 to 100 on 10,000 images of MNIST, and of 100 subsamples of
        these and of 171 x 5,748 rows of 8 factors.

Each run is written to --out at once, and those that it holds are not computed again: a run that
was interrupted goes on, parts can run side by side with --only, and the table is printed from it.
"""

import argparse
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

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
from fewer.estimate import ratio_of_sums, sums_of_groups
from fewer.selection.size import choose_size
from fewer.validation import fold_covariances, split_rows

KINDS = ("copies", "blocks", "mixtures")
ROWS = (100, 300, 1000, 5000)
SAVE_EVERY = 20.0  # seconds


class Results:
    """Results of runs by name, in a file."""

    def __init__(self, path: Path | None) -> None:
        self.path = path

    def read(self) -> dict[str, list[Any]]:
        """What the file holds now; others may write to it as well."""
        if self.path is None or not self.path.exists():
            return {}
        found: dict[str, list[Any]] = json.loads(self.path.read_text())
        return found

    def runs(self, name: str, count: int, run: Callable[[int], Any]) -> list[Any]:
        """The first ``count`` runs of this name, computed as far as they are not known."""
        found, saved = self.read().get(name, []), time.monotonic()
        for number in range(len(found), count):
            found.append(run(number))
            if time.monotonic() - saved > SAVE_EVERY:
                self.write(name, found)
                saved = time.monotonic()
        self.write(name, found)
        return found[:count]

    def write(self, name: str, found: list[Any]) -> None:
        """Replace the results of this name."""
        if self.path is None:
            return
        draft = self.path.with_name(f"{self.path.name}.{os.getpid()}.part")
        parts = self.read() | {name: found}
        lines = ",\n".join(f"{json.dumps(key)}: {json.dumps(parts[key])}" for key in sorted(parts))
        draft.write_text(f"{{\n{lines}\n}}\n")
        draft.replace(self.path)


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


def size(runs: int, results: Results, screen: Console) -> None:
    """How often "auto" finds the planted number, or one beside it."""
    table = Table(
        "planted", "rows", "right", "within one", "too many", title=f"k, {runs} runs each"
    )
    each = []
    for kind in KINDS:
        for n in ROWS:
            gaps = results.runs(f"size {kind} {n}", runs, lambda run, at=(kind, n): _gap(*at, run))
            each += gaps
            add(table, kind, n, np.array(gaps))
    add(table, "all", "", np.array(each))
    screen.print(table)


def _gap(kind: str, n: int, run: int) -> int:
    """By how many features "auto" misses the planted number."""
    random = np.random.default_rng([run, n, KINDS.index(kind)])
    k = int(random.integers(3, 9))
    X = planted(kind, n, k, random)
    folds = fold_covariances(as_source(X), split_rows(n, 5, run), "standard")
    any_size = resolve(None, X.shape[1], X.shape[1])
    return int(choose_size("auto", folds, any_size, torch.device("cpu"), run)["chosen"]) - k


def add(table: Table, kind: str, n: object, gaps: np.ndarray) -> None:
    """A row of the table of sizes."""
    shares = (gaps == 0, np.abs(gaps) <= 1, gaps > 1)
    table.add_row(kind, str(n), *(f"{share.mean():.1%}" for share in shares))


def tests(runs: int, results: Results, screen: Console) -> None:
    """p-values under the null hypothesis, and power, without and with a target."""
    for what in ("features", "target"):
        with_target = what == "target"
        null = np.array(
            results.runs(f"null {what}", 5 * runs, lambda r, t=with_target: _null(r, t))
        )
        for column, name in enumerate(("panel", "contribution")):
            values = null[:, column] - np.random.default_rng(0).uniform(0, 0.01, len(null))
            p = kstest(values, "uniform").pvalue
            screen.print(f"{name}, {what}: {len(null)} p-values, nothing related: KS p = {p:.3f}")
        hits = results.runs(f"power {what}", runs, lambda r, t=with_target: _hit(r, t))
        screen.print(f"correlation 0.5, {what}, 100 rows: p <= 0.05 in {np.mean(hits):.1%}")


def _null(run: int, with_target: bool) -> list[float]:
    """p-values of a panel and of a contribution where nothing is related."""
    random = np.random.default_rng([run, 1, with_target])
    X, y = random.normal(size=(60, 12)), random.normal(size=60) if with_target else None
    found = fewer.score(range(3), X, target=y, draws=99, random_state=run, device="cpu")
    return [found.p_value, found.contributions[0]["p_value"]]


def _hit(run: int, with_target: bool) -> bool:
    """Whether a correlation of 0.5 with one of ten features, or with the target, is noticed."""
    random = np.random.default_rng([run, 2, with_target])
    X = random.normal(size=(100, 12))
    related = 0.5 * X[:, 0] + 0.75**0.5 * random.normal(size=100)
    y = related if with_target else None
    if not with_target:
        X[:, 5] = related
    found = fewer.score([0, 1], X, target=y, draws=1, random_state=run, device="cpu")
    return bool(found.contributions[0]["p_value"] <= 0.05)


def twins(runs: int, results: Results, screen: Console) -> None:
    """How often the best substitute of a feature is its planted copy."""
    hits = np.array(results.runs("twins", runs, _twins))
    screen.print(f"best substitute is the planted copy: {hits.mean():.1%} of {hits.size}")


def _twins(run: int) -> list[bool]:
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
    return [int(s[0]) == twin[int(j)] for j, s in zip(*pairs, strict=True)]


def sure(runs: int, results: Results, screen: Console) -> None:
    """The bound on false choices where the truth is known."""
    false, bound = np.mean(results.runs("sure", max(1, runs // 4), _sure), axis=0)
    screen.print(f"stable columns of noise: {false:.2f} per run, bound {bound:.2f}")


def _sure(run: int) -> list[float]:
    random = np.random.default_rng([run, 4])
    X = planted("blocks", 200, 4, random)
    X = np.hstack([X, random.normal(size=(200, 60))])  # noise: alike, so chosen by chance
    found = stability(X, 8, threshold=0.6, random_state=run, device="cpu")
    noise = set(range(24, X.shape[1]))
    return [len(noise & set(found.stable)), found.false_bound]


def times(runs: int, results: Results, screen: Console) -> None:
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


def coverage(runs: int, results: Results, screen: Console, names: list[str]) -> None:
    """Of 90% intervals and of reported scores on new rows, of new groups where rows have groups."""
    columns = ("intervals", "of features", "of rows", "score ±", "new rows", "within")
    table = Table("data", "splits", *columns, title="coverage of 90% intervals on new rows")
    for name in names or REAL:
        data = _rows(name)
        found = results.runs(
            f"coverage {name}", max(1, runs // 4), lambda r, n=name, d=data: _split(n, *d, r)
        )
        row = np.mean(found, axis=0)
        cells = [f"{row[0]:.1%}", f"{row[1]:.0%} to {row[2]:.0%}", f"{row[3]:.0%} to {row[4]:.0%}"]
        cells += [f"{row[5]:.1%} ± {row[6]:.1%}", f"{row[7]:.1%}", f"{row[8]:.0%}"]
        table.add_row(name, str(len(found)), *cells)
    screen.print(table)
    screen.print(
        "intervals: share of the values of features that are not measured; of features, of rows: "
        "5% and 95% quantiles of that share. within: splits whose score on new rows is in the 90% "
        "interval that the panel has for so many new rows (or groups of rows)."
    )


def _split(name: str, X: np.ndarray, groups: np.ndarray | None, run: int) -> list[float]:
    """Coverage on the new rows of one split."""
    most, k, scale = REAL[name]
    labels = np.arange(len(X)) if groups is None else groups
    parts = GroupShuffleSplit(1, test_size=0.4, random_state=run).split(X, groups=labels)
    train, test = next(parts)
    if groups is None:
        both = np.random.default_rng(run).permutation(len(X))
        train, test = both[:most], both[most:]
    own = None if groups is None else labels[train]
    options = {"row_groups": own, "strategies": ["search"], "random_state": run, "device": "cpu"}
    panel = fewer.select(X[train], k, scale=scale, **options)
    return _covered(panel, X[train], X[test], scale, labels[test])


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
    least, most = score.interval(LEVEL, new_rows=len(np.unique(labels))) or (np.nan, np.nan)
    return [
        float(one)
        for one in (
            inside.mean(),
            *np.quantile(inside.mean(axis=0), [0.05, 0.95]),
            *np.quantile(inside.mean(axis=1), [0.05, 0.95]),
            score.value,
            score.standard_error,
            fresh.value,
            least <= fresh.value <= most,
        )
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
    parser.add_argument("--out", type=Path, help="file of results, which are not computed again")
    options = parser.parse_args()
    screen, results = Console(width=130), Results(options.out)
    for name in [options.only] if options.only else PARTS:
        if name in PARTS:
            PARTS[name](options.runs, results, screen)
    if options.only in (None, "coverage"):
        names = [name for name in options.data.split(",") if name]
        coverage(options.runs, results, screen, names)


if __name__ == "__main__":
    main()
