"""By how much `Panel.held_out` flatters, since the same held-out rows chose between strategies.

    FEWER_DATA=... python benchmarks/optimism.py [--data digits,mice] [--repeats 10]

Rows are split in two parts at random (by mouse where rows come from mice). `select` sees one
part. Its winner, with the decoder of each fold as it was fitted, is tried on the rows that the
fold held out, which chose it, and on the part that `select` never saw: the error there, as a share
of the error on held-out rows, less 1, is optimism and luck. Greedy selection with a small fixed
penalty is tried in the same way, but nothing chose it, so that its difference is luck alone, on
the same rows. What is left when that is taken off is the optimism.
"""

import argparse
from dataclasses import replace

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from sklearn.model_selection import GroupShuffleSplit

from fewer.candidates.comparison import Candidate
from fewer.candidates.held_rows import held_rows
from fewer.candidates.scaling import scaled_folds
from fewer.data import RowView, covariance, open_source
from fewer.datasets import load
from fewer.selection import _Selection
from fewer.train.folds import ScaledFold

# rows that select sees, and k: with few rows a fold decides little, and there is much to choose
CASES = {
    "digits": [(100, 5), (1400, 10)],
    "mice": [(150, 5), (700, 10)],
    "isolet": [(200, 10), (1500, 10)],
    "mnist": [(200, 10), (1500, 10)],
}
OPTIONS = {
    "decoder": "linear",
    "target": None,
    "wishes": {"cost_weight": 0.0},
    "strategies": "auto",
    "time_limit": None,
    "device": "cpu",
    "progress": False,
    "checkpoint": None,
}
NEW = 3000  # rows
RIDGE = 1e-2  # of the control


def rise(candidate: Candidate, ridge: float, folds: list[ScaledFold], new: list) -> float:
    """Logarithm of the error on new rows as a share of that on held-out rows."""
    there = here = 0.0
    for fold, other, panel in zip(folds, new, candidate.panels, strict=True):
        here += fold.error(panel, ridge)
        there += other.error(panel, ridge)
    return float(np.log(there / here))


def seen_anew(fold: ScaledFold, mean: torch.Tensor, matrix: torch.Tensor) -> ScaledFold:
    """The same fold with other rows held out, given by their mean and covariance."""
    ratio = torch.from_numpy(1 / fold.scale)
    gap = mean - fold.mean
    held = (matrix + torch.outer(gap, gap)) * ratio[:, None] * ratio
    return replace(fold, held=held)


def flattery(name: str, rows: int, k: int, seed: int) -> tuple[float, float]:
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
    labels = groups[train] if grouped else None
    # pixels that are nearly always 0 must not be blown up
    scale = "none" if data.image_shape else "standard"
    one = _Selection(X[train], k, row_groups=labels, random_state=seed, scale=scale, **OPTIONS)
    held = held_rows(one.n, k, "auto", labels, linear=True, seed=one.seed)
    folds = scaled_folds(one.raw, held, one.scaling, one.device)
    candidates = one._compared(folds)
    summary = covariance(RowView(open_source(X), rest))
    new = [seen_anew(fold, summary.mean, summary.matrix) for fold in folds]
    greedy = next(c for c in candidates if c.strategy == "greedy")
    variance = float(folds[0].train.diagonal().mean())
    winner = rise(candidates[0], candidates[0].ridge, folds, new)
    return winner, winner - rise(greedy, RIDGE * variance, folds, new)


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
            found = np.array([flattery(name, rows, k, seed) for seed in range(wanted.repeats)])
            row = (name, str(rows), str(k), shown(found[:, 0]), shown(found[:, 1]))
            print(*row, flush=True)
            table.add_row(*row)
    Console().print(table)


if __name__ == "__main__":
    main()
