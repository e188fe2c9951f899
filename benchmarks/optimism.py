"""How optimistic `Panel.held_out` is, since the same held-out rows chose between strategies.

    FEWER_DATA=... python benchmarks/optimism.py [--data digits,mice] [--repeats 10]

Rows are split in two parts at random (by mouse where rows come from mice). `select` sees one part,
in five folds: its held-out error is compared with the error of the panel on the part that it never
saw. That difference has three causes: the panel is refitted on more rows than a fold has, chance,
and optimism. Greedy selection with a fixed penalty, cross-validated on the same part, has the first
two but not the third, since nothing was chosen by its held-out error; what exceeds it is optimism.
"""

import argparse

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from sklearn.linear_model import Ridge
from sklearn.model_selection import GroupKFold, GroupShuffleSplit, KFold

import fewer
from fewer.baselines import Greedy
from fewer.datasets import load

# rows that select sees, and k: with few rows a fold decides little, and there is much to choose
CASES = {
    "digits": [(100, 5), (1400, 10)],
    "mice": [(150, 5), (700, 10)],
    "isolet": [(200, 10), (1500, 10)],
    "mnist": [(200, 10), (1500, 10)],
}
FOLDS = 5
NEW = 3000  # rows
RIDGE = 1e-2  # of the control, in units of the mean variance


def optimism(name: str, rows: int, k: int, seed: int) -> tuple[float, float]:
    """Logarithm of the error on new rows over the held-out error; how much of it is optimism."""
    data = load(name)
    X = data.X.astype(np.float64)
    grouped = name == "mice"
    groups = data.groups if grouped else np.arange(len(X))
    size = min(0.8, rows / len(X))
    halves = GroupShuffleSplit(1, train_size=size, random_state=seed).split(X, groups=groups)
    train, rest = next(halves)
    random = np.random.default_rng(seed)
    train, rest = random.permutation(train)[:rows], random.permutation(rest)[:NEW]
    spread = np.nanstd(X[train], axis=0)
    X = np.where(np.isnan(X), np.nanmean(X[train], axis=0), X)[:, spread > 0]
    if not data.image_shape:  # pixels that are nearly always 0 must not be blown up
        X = X / spread[spread > 0]
    seen, new, labels = X[train], X[rest], groups[train] if grouped else None
    panel = fewer.select(
        seen, k, scale="none", row_groups=labels, validation=FOLDS, random_state=seed, device="cpu"
    )
    rise = np.log((1 - panel.score(new)) / (1 - float(panel.held_out)))
    folds = GroupKFold(FOLDS) if grouped else KFold(FOLDS, shuffle=True, random_state=seed)
    parts = folds.split(seen, groups=labels)
    held = [greedy_error(k, seen[fit], seen[out]) for fit, out in parts]
    control = np.log(greedy_error(k, seen, new) / np.mean(held))
    return float(rise), float(rise - control)


def greedy_error(k: int, fit: np.ndarray, other: np.ndarray) -> float:
    """Unexplained variance of other rows, by ridge regression from greedily chosen features."""
    columns = Greedy(k).fit(fit).columns_
    decoder = Ridge(RIDGE * fit.var(axis=0).mean() * len(fit)).fit(fit[:, columns], fit)
    left = np.square(decoder.predict(other[:, columns]) - other).sum()
    return float(left / np.square(other - other.mean(axis=0)).sum())


def shown(values: np.ndarray) -> str:
    """Mean and standard error, in percent."""
    percent = 100 * np.expm1(values)
    return f"{percent.mean():+.1f} ± {percent.std(ddof=1) / len(percent) ** 0.5:.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", default=",".join(CASES))
    parser.add_argument("--repeats", type=int, default=10)
    options = parser.parse_args()
    torch.set_num_threads(1)
    table = Table("data", "rows", "k", "error on new rows, %", "of which optimism, %")
    for name in options.data.split(","):
        for rows, k in CASES[name]:
            found = np.array([optimism(name, rows, k, seed) for seed in range(options.repeats)])
            row = (name, str(rows), str(k), shown(found[:, 0]), shown(found[:, 1]))
            print(*row, flush=True)
            table.add_row(*row)
    Console().print(table)


if __name__ == "__main__":
    main()
