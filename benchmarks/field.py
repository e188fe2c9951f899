"""Panels in use: sensors that fail, faults in new rows, panels that tolerate failures.

    FEWER_DATA=... python benchmarks/field.py [missing] [--data sensors,cancer] [--repeats 5]

`missing`: every pattern of one and of two missing sensors of a panel with a linear decoder, on test
rows. Explained variance is per standardised feature. *Refit*: a ridge regression from the sensors
that are left, with the penalty of the panel, on the same training rows; *mean fill*: the missing
values are the training mean. Coverage is that of 90% intervals, over all values that were not
measured. Mean and worst are over patterns, then averaged over repeats. The lowest and the highest
coverage of many patterns are partly those of the test rows: *apart* is the coverage, on one half of
the test rows (by mouse and by subject), of the patterns that are lowest and highest on the other.

`check`: `Panel.check` on 500 rows that the panel never saw, with a simulated fault in one of its
features; how often the fault is found, as what it is and in the right feature, and how often
anything is found in clean rows.

`robust`: `fewer.select(..., robust_to=m)` against a plain panel, both with every pattern of m
missing sensors on test rows; changes are means over repeats, with their standard error. Errors are
those of all test rows, and without the 1% of them that each panel reconstructs worst. Data with
heavy tails are tried with loss="mse" and loss="huber".

"gas" is `fewer.datasets.load("gas-sensors")`, synthetic with heavy tails, and "arrays" another such
array of sensors in every repeat, with 12,000 test rows. "sensors" is synthetic as well: an array
of 16 gas sensors, 8 features each, that respond to mixtures of four gases. Each repeat splits the
rows anew, by mouse and by subject where rows have those.
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
    """Training and test rows in the units of the data, and groups of both."""

    train: Array
    test: Array
    groups: Array | None
    test_groups: Array


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
    return Rows(X[fit], X[out], None if groups is None else groups[fit], labels[out])


def cancer(seed: int) -> Rows:
    return split(load_breast_cancer().data, None, seed, 0.3)


def arrays(seed: int) -> Rows:
    return split(load("gas-sensors", rows=16_000, seed=1 + seed).X, None, seed, 0.75)


def grouped(name: str, seed: int) -> Rows:
    data = load(name)
    return split(data.X.astype(np.float64), data.groups, seed, 0.3)


CASES: dict[str, tuple[int, Callable[[int], Rows]]] = {
    "gas": (11, lambda seed: split(load("gas-sensors").X, None, seed, 0.5)),
    "arrays": (11, arrays),
    "sensors": (11, lambda seed: split(sensors(), None, seed, 0.5)),
    "cancer": (6, cancer),
    "mice": (10, lambda seed: grouped("mice", seed)),
    "har": (15, lambda seed: grouped("har", seed)),
}
HEAVY = ("gas", "arrays")  # tails


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
    halves = np.isin(rows.test_groups, np.unique(rows.test_groups)[::2])
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
        kinds = ("fewer", "mean", "refit", "cover", "first", "second")
        part = found.setdefault(len(gone), {kind: [] for kind in kinds})
        part["fewer"].append(explained(middle, rows))
        part["mean"].append(explained(filled, rows))
        part["refit"].append(explained(refit(rows, left, ridge), rows))
        part["cover"].append(float(inside[asked].mean()))
        for kind, half in (("first", halves), ("second", ~halves)):
            part[kind].append(float(inside[half][asked[half]].mean()))
    return found


def apart(run: dict[str, list[float]]) -> tuple[float, float]:
    """Coverage of the patterns that are lowest and highest on the other half of the test rows."""
    pairs = (run["first"], run["second"]), (run["second"], run["first"])
    low = np.mean([one[int(np.argmin(other))] for one, other in pairs])
    high = np.mean([one[int(np.argmax(other))] for one, other in pairs])
    return float(low), float(high)


def show_missing(names: list[str], repeats: int, console: Console) -> None:
    table = Table(title="Explained variance and coverage with missing sensors: mean / worst")
    titles = ("data, k", "missing", "patterns", "mean fill", "refit", "fewer", "coverage", "apart")
    for title in titles:
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
            low, high = np.mean([apart(run[size]) for run in runs], axis=0)
            cells.append(f"{low:.1%} to {high:.1%}")
            count = len(runs[0][size]["fewer"])
            table.add_row(f"{name}, {CASES[name][0]}", str(size), str(count), *cells)
    console.print(table)


# -- panels that tolerate failures ---------------------------------------------------------------


def errors_of(found: Array, rows: Rows) -> Array:
    """Mean squared error per standardised feature: of all rows, and without the worst 1%."""
    spread = np.nanvar(rows.train, axis=0)
    use = spread > 0
    each = np.nanmean((found - rows.test)[:, use] ** 2 / spread[use], axis=1)
    inner = np.sort(each)[: len(each) - len(each) // 100]
    return np.array([each.mean(), inner.mean()])


def worst_missing(panel: fewer.Panel, rows: Rows, m: int) -> Array:
    """Errors of test rows with all sensors, and with the worst m missing; see `errors_of`."""
    whole = rows.test[:, panel.indices]
    found = []
    for gone in combinations(range(panel.k), m):
        measured = whole.copy()
        measured[:, list(gone)] = np.nan
        found.append(errors_of(panel.reconstruct(measured), rows))
    return np.stack([errors_of(panel.reconstruct(whole), rows), np.max(found, axis=0)])


def show_robust(
    names: list[str], losses: list[str], repeats: int, most: int, console: Console
) -> None:
    """A table of `robust_to` against plain panels: errors on test rows, and their ratio."""
    table = Table(title="Error of test rows, per standardised feature: all sensors / worst missing")
    for title in ("data, k", "loss", "missing", "rows", "plain", "robust_to", "all", "worst"):
        table.add_column(title)
    for name in names:
        k, make = CASES[name]
        for loss in losses if name in HEAVY else ["mse"]:
            for m in range(1, most + 1):
                pairs = []
                for seed in range(repeats):
                    rows = make(seed)
                    options = {"row_groups": rows.groups, "random_state": seed, "device": "cpu"}
                    options |= {"loss": loss}
                    panels = [fewer.select(rows.train, k, robust_to=to, **options) for to in (0, m)]
                    pairs.append([worst_missing(panel, rows, m) for panel in panels])
                errors = np.array(pairs)  # repeats x (plain, robust) x (all, worst) x rows
                for at, which in enumerate(("all", "99%")):
                    part = errors[..., at]
                    plain, robust = part.mean(axis=0)
                    change = part[:, 1] / part[:, 0] - 1
                    spread = (
                        change.std(axis=0, ddof=1) / np.sqrt(repeats) if repeats > 1 else [0, 0]
                    )
                    table.add_row(
                        f"{name}, {k}",
                        loss,
                        str(m),
                        which,
                        f"{plain[0]:.4f} / {plain[1]:.4f}",
                        f"{robust[0]:.4f} / {robust[1]:.4f}",
                        f"{change[:, 0].mean():+.1%} ± {spread[0]:.1%}",
                        f"{change[:, 1].mean():+.1%} ± {spread[1]:.1%}",
                    )
    console.print(table)


# -- faults in new rows ------------------------------------------------------------------------


def unit(factor: float) -> Callable[..., set[str]]:
    def spoil(x: Array, j: int, random: np.random.Generator, span: Array) -> set[str]:
        x[:, j] *= factor
        return {"unit"}

    return spoil


def offset(x: Array, j: int, random: np.random.Generator, span: Array) -> set[str]:
    x[:, j] += random.choice([-2, 2]) * x[:, j].std()
    return {"offset"}


def stuck(x: Array, j: int, random: np.random.Generator, span: Array) -> set[str]:
    half = len(x) // 2
    x[half:, j] = x[half, j]
    return {"stuck"}


def sentinel(x: Array, j: int, random: np.random.Generator, span: Array) -> set[str]:
    codes = np.array([-1.0, 0.0, -999.0, 9999.0])
    code = random.choice(codes[(codes < span[0, j]) | (codes > span[1, j])])
    x[random.random(len(x)) < 0.02, j] = code
    return {"sentinel"}


def swapped(x: Array, j: int, random: np.random.Generator, span: Array) -> set[str]:
    other = random.choice(np.delete(np.arange(x.shape[1]), j))
    x[:, [j, other]] = x[:, [other, j]]
    return {"swapped"}


def drift(x: Array, j: int, random: np.random.Generator, span: Array) -> set[str]:
    x[:, j] += 0.5 * x[:, j].std() * random.choice([-1, 1])
    return {"offset", "shift", "scale"}


def clean(x: Array, j: int, random: np.random.Generator, span: Array) -> set[str]:
    return set()


FAULTS = {
    "clean": clean,
    "unit x10": unit(10),
    "unit x1000": unit(1000),
    "offset of 2 sd": offset,
    "stuck sensor": stuck,
    "sentinel, 2%": sentinel,
    "swapped columns": swapped,
    "drift of 0.5 sd": drift,
}


def check(name: str, trials: int, console: Console) -> None:
    """A table of how often each fault is found."""
    k, make = CASES[name]
    table = Table(title=f"{name}, k = {k}: findings in 500 new rows, {trials} trials per fault")
    for title in ("fault", "found as such", "anything found"):
        table.add_column(title)
    rows = make(0) if name == "sensors" else split(load(name).X.astype(float), None, 0, 0.5)
    panel = fewer.select(rows.train, k, strategies=["search"], random_state=0, device="cpu")
    chosen = rows.train[:, panel.indices]
    span = np.stack([chosen.min(axis=0), chosen.max(axis=0)])
    for title, spoil in FAULTS.items():
        random = np.random.default_rng(0)
        right = anything = 0
        for _ in range(trials):
            some = random.choice(len(rows.test), 500, replace=False)
            x = rows.test[some][:, panel.indices].copy()
            j = int(random.integers(k))
            kinds = spoil(x, j, random, span)
            found = panel.check(x)
            feature = panel.features[j]
            right += any(
                one.kind in kinds and one.feature in (feature, None) for one in found.findings
            )
            anything += not found.ok
        as_such = f"{right / trials:.1%}" if title != "clean" else ""
        table.add_row(title, as_such, f"{anything / trials:.1%}")
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument(
        "what", nargs="?", default="missing", choices=["missing", "robust", "check"]
    )
    parser.add_argument("--data", help="by default all; for check: sensors,har")
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--most", type=int, default=2, help="robust: missing sensors, 1 or 2")
    parser.add_argument("--loss", default="mse,huber", help="robust, where tails are heavy")
    options = parser.parse_args()
    console = Console(width=130)
    if options.what == "missing":
        named = options.data or "gas,sensors,cancer,mice,har"
        show_missing(named.split(","), options.repeats, console)
    elif options.what == "robust":
        named = options.data or "gas,arrays,sensors,cancer,mice"
        losses = options.loss.split(",")
        show_robust(named.split(","), losses, options.repeats, options.most, console)
    else:
        for name in (options.data or "sensors,har").split(","):
            check(name, options.trials, console)


if __name__ == "__main__":
    main()
