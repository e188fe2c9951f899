"""Panels in use: sensors that fail, faults in new rows, panels that tolerate failures.

    FEWER_DATA=... python benchmarks/field.py [missing] [--data sensors,cancer] [--repeats 5]

`missing`: every pattern of one and of two missing sensors of a panel with a linear decoder, on test
rows. Explained variance is per standardised feature. *Refit*: a ridge regression from the sensors
that are left, with the penalty of the panel, on the same training rows; *mean fill*: the missing
values are the training mean. Coverage is that of 90% intervals, over all values that were not
measured. Mean and worst are over patterns, then averaged over repeats.

"sensors" is synthetic: an array of 16 gas sensors, 8 features each, that respond to mixtures of
four gases. Each repeat splits the rows anew, by mouse and by subject where rows have those.
"""

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from rich.console import Console
from rich.table import Table
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import GroupShuffleSplit

import fewer
from fewer.datasets import load

Array = np.ndarray


@dataclass(frozen=True)
class Rows:
    """Training and test rows in the units of the data, and groups of the training rows."""

    train: Array
    test: Array
    groups: Array | None


def sensors(n: int = 4000, seed: int = 0, arrays: int = 16) -> Array:
    """Responses of an array of gas sensors: 8 correlated features of each, d = 8 * arrays."""
    random = np.random.default_rng(seed)
    gases, kinds = 4, 4
    amount = random.gamma(2.0, 0.5, size=(n, gases)) * (random.random((n, gases)) < 0.6)
    affinity = np.exp(random.normal(size=(kinds, gases)))  # sensors of a kind are alike
    humidity = random.normal(size=n)
    found = []
    for sensor in range(arrays):
        own = affinity[sensor % kinds] * np.exp(0.25 * random.normal(size=gases))
        level = np.log1p(amount @ own) * np.exp(0.1 * humidity * random.normal())
        level = level + 0.05 * random.standard_t(5, size=n)  # noise of this sensor
        speed = np.exp(0.3 * random.normal()) / (1 + 0.3 * level)
        for feature in range(4):
            rate = 0.5**feature
            found.append(level * (1 - np.exp(-speed / rate)) + 0.02 * random.normal(size=n))
            found.append(-level * np.exp(-speed * (1 + feature)) + 0.02 * random.normal(size=n))
    gains = np.exp(2 * random.normal(size=8 * arrays))  # every feature has a unit of its own
    return np.stack(found, axis=1) * gains + gains * random.normal(size=8 * arrays)


def split(X: Array, groups: Array | None, seed: int, test: float) -> Rows:
    labels = np.arange(len(X)) if groups is None else groups
    fit, out = next(GroupShuffleSplit(1, test_size=test, random_state=seed).split(X, groups=labels))
    return Rows(X[fit], X[out], None if groups is None else groups[fit])


def cancer(seed: int) -> Rows:
    return split(load_breast_cancer().data, None, seed, 0.3)


def grouped(name: str, seed: int) -> Rows:
    data = load(name)
    return split(data.X.astype(np.float64), data.groups, seed, 0.3)


CASES: dict[str, tuple[int, Callable[[int], Rows]]] = {
    "sensors": (11, lambda seed: split(sensors(), None, seed, 0.5)),
    "cancer": (6, cancer),
    "mice": (10, lambda seed: grouped("mice", seed)),
    "har": (15, lambda seed: grouped("har", seed)),
}


# -- sensors that fail -------------------------------------------------------------------------


def explained(found: Array, rows: Rows) -> float:
    """Mean R squared over standardised features, about the training mean."""
    spread = np.nanvar(rows.train, axis=0)
    use = spread > 0
    wrong = np.nanmean((found - rows.test) ** 2, axis=0)[use] / spread[use]
    total = np.nanmean((rows.test - np.nanmean(rows.train, axis=0)) ** 2, axis=0)[use] / spread[use]
    return float(1 - wrong.sum() / total.sum())


def refit(rows: Rows, columns: Array, ridge: float) -> Array:
    """Ridge regression from some columns to all, as if these had been the panel."""
    mean, spread = np.nanmean(rows.train, axis=0), np.nanstd(rows.train, axis=0)
    spread = np.where(spread > 0, spread, 1.0)
    z = np.nan_to_num((rows.train - mean) / spread)
    gram = z[:, columns].T @ z[:, columns] / len(z) + ridge * np.eye(len(columns))
    weights = np.linalg.solve(gram, z[:, columns].T @ z / len(z))
    found = np.nan_to_num((rows.test[:, columns] - mean[columns]) / spread[columns]) @ weights
    found = found * spread + mean
    measured = rows.test[:, columns]
    found[:, columns] = np.where(np.isnan(measured), found[:, columns], measured)
    return found


def patterns(k: int) -> Iterator[tuple[int, ...]]:
    for size in (0, 1, 2):
        yield from combinations(range(k), size)


def missing(name: str, seed: int) -> dict[int, dict[str, list[float]]]:
    """By number of missing sensors: explained variance and coverage of every pattern."""
    k, make = CASES[name]
    rows = make(seed)
    panel = fewer.select(rows.train, k, row_groups=rows.groups, random_state=seed, device="cpu")
    ridge = panel.settings["ridge"]
    means = np.nanmean(rows.train, axis=0)[panel.indices]
    found: dict[int, dict[str, list[float]]] = {}
    for gone in patterns(k):
        measured = rows.test[:, panel.indices].copy()
        measured[:, list(gone)] = np.nan
        middle, low, high = panel.reconstruct(measured, interval=0.9)
        plain = measured.copy()
        plain[:, list(gone)] = means[list(gone)]
        filled = panel.reconstruct(plain)
        left = np.delete(panel.indices, list(gone))
        asked = ~np.isnan(rows.test)
        asked[:, left] = False
        asked[:, np.nanvar(rows.train, axis=0) == 0] = False
        inside = (low <= rows.test) & (rows.test <= high)
        part = found.setdefault(len(gone), {"fewer": [], "mean": [], "refit": [], "cover": []})
        part["fewer"].append(explained(middle, rows))
        part["mean"].append(explained(filled, rows))
        part["refit"].append(explained(refit(rows, left, ridge), rows))
        part["cover"].append(float(inside[asked].mean()))
    return found


def show_missing(names: list[str], repeats: int, console: Console) -> None:
    table = Table(title="Explained variance and coverage with missing sensors: mean / worst")
    for title in ("data, k", "missing", "patterns", "mean fill", "refit", "fewer", "coverage"):
        table.add_column(title)
    for name in names:
        runs = [missing(name, seed) for seed in range(repeats)]
        for size in runs[0]:
            cells = []
            for kind in ("mean", "refit", "fewer"):
                each = [run[size][kind] for run in runs]
                cells.append(
                    f"{np.mean([np.mean(e) for e in each]):.3f} / "
                    f"{np.mean([min(e) for e in each]):.3f}"
                )
            each = [run[size]["cover"] for run in runs]
            cells.append(
                f"{np.mean([np.mean(e) for e in each]):.1%} / "
                f"{np.mean([min(e) for e in each]):.1%} to {np.mean([max(e) for e in each]):.1%}"
            )
            count = len(runs[0][size]["fewer"])
            table.add_row(f"{name}, {CASES[name][0]}", str(size), str(count), *cells)
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("what", nargs="?", default="missing", choices=["missing"])
    parser.add_argument("--data", default=",".join(CASES))
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    console = Console(width=130)
    if options.what == "missing":
        show_missing(options.data.split(","), options.repeats, console)


if __name__ == "__main__":
    main()
