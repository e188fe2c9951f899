"""How optimistic `Panel.held_out` is, since the same held-out rows chose between strategies.

    FEWER_DATA=... python benchmarks/optimism.py [--data digits,mice] [--repeats 10]

Rows are split in two parts at random (by mouse where rows come from mice). `select` sees one
part. The ratio of its panel's error on the other part to the error that it reports for its
held-out rows, less 1, is optimism and luck. A second panel has the features of greedy selection
as the only choice, so that nothing was chosen on held-out rows: its ratio is luck alone, on the
same rows. What is left when that is taken off is the optimism.
"""

import argparse

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from sklearn.model_selection import GroupShuffleSplit

import fewer
from fewer.datasets import load

# rows that select sees, and k: with few rows a fold decides little, and there is much to choose
CASES = {
    "digits": [(100, 5), (1400, 10)],
    "mice": [(150, 5), (700, 10)],
    "isolet": [(200, 10), (1500, 10)],
    "mnist": [(200, 10), (1500, 10)],
}
NEW = 3000  # rows


def rise(panel: fewer.Panel, new: np.ndarray) -> float:
    """Logarithm of the ratio of the error on new rows to that on held-out rows."""
    others = np.setdiff1d(np.arange(panel.d), panel.indices)  # what is measured has no error
    return float(
        np.log(panel.score(new).errors[others].mean())
        - np.log(panel.held_out.errors[others].mean())
    )


def optimism(name: str, rows: int, k: int, seed: int) -> tuple[float, float]:
    """How much larger the error is on new rows, and how much of that is optimism."""
    data = load(name)
    X = data.X.astype(np.float64)
    grouped = name == "mice"
    groups = data.groups if grouped else np.arange(len(X))
    train, rest = next(
        GroupShuffleSplit(1, train_size=min(0.8, rows / len(X)), random_state=seed).split(
            X, groups=groups
        )
    )
    random = np.random.default_rng(seed)
    train, rest = random.permutation(train)[:rows], random.permutation(rest)[:NEW]
    X = X[:, np.nanstd(X[train], axis=0) > 0]
    options = {
        "row_groups": groups[train] if grouped else None,
        # pixels that are nearly always 0 must not be scaled up
        "scale": "none" if data.image_shape else "standard",
        "random_state": seed,
        "device": "cpu",
    }
    panel = fewer.select(X[train], k, **options)
    greedy = next(row for row in panel.leaderboard if row["strategy"] == "greedy")
    control = fewer.select(X[train], k, include=greedy["features"], **options)
    winner = rise(panel, X[rest])
    return winner, winner - rise(control, X[rest])


def shown(values: np.ndarray) -> str:
    """Mean and standard error, in percent."""
    percent = 100 * np.expm1(values)
    return f"{percent.mean():+.1f} ± {percent.std(ddof=1) / len(percent) ** 0.5:.1f}"


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    asked.add_argument("--data", default=",".join(CASES))
    asked.add_argument("--repeats", type=int, default=10)
    wanted = asked.parse_args()
    torch.set_num_threads(1)
    table = Table("data", "rows", "k", "error on new rows, %", "of it optimism, %")
    for name in wanted.data.split(","):
        for rows, k in CASES[name]:
            found = np.array([optimism(name, rows, k, seed) for seed in range(wanted.repeats)])
            row = (name, str(rows), str(k), shown(found[:, 0]), shown(found[:, 1]))
            print(*row, flush=True)
            table.add_row(*row)
    Console().print(table)


if __name__ == "__main__":
    main()
