"""One row at a time: what a call of a panel costs.

    python -m benchmarks.rows [--calls 2000] [--features 6,30]

CPU milliseconds per call, the median over batches of 50 calls, of panels with a linear decoder on
breast cancer data (30 features), and the largest difference between a row alone and the same row
among others, in standard deviations of each feature. *Missing*: one value in five.
"""

import argparse
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from rich.console import Console
from rich.table import Table
from sklearn.datasets import load_breast_cancer

import fewer

BATCH = 50


def milliseconds(call: Callable[[Any], object], rows: list[Any], calls: int) -> float:
    """Median CPU time of a call, over batches."""
    call(rows[0])
    found = []
    for batch in range(max(1, calls // BATCH)):
        began = time.process_time()
        for at in range(BATCH):
            call(rows[(batch * BATCH + at) % len(rows)])
        found.append((time.process_time() - began) / BATCH)
    return 1000 * float(np.median(found))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--calls", type=int, default=2000, help="per line")
    parser.add_argument("--features", default="6,15", help="numbers of chosen features")
    given = parser.parse_args()
    X, y = load_breast_cancer(return_X_y=True, as_frame=True)
    table = Table(title="CPU milliseconds per row")
    for title in ("k", "row", "reconstruct", "missing", "interval", "predict", "check", "differs"):
        table.add_column(title, justify="left" if title == "row" else "right")
    for k in map(int, given.features.split(",")):
        quick: dict[str, Any] = {"strategies": ["search"], "validation": 0.2, "random_state": 0}
        panel = fewer.select(X[:400], k, target=y[:400], **quick)
        whole = X[panel.features].to_numpy()[400:]
        random = np.random.default_rng(0)
        gaps = np.where(random.random(whole.shape) < 0.2, np.nan, whole)
        alone = np.stack([panel.reconstruct(row) for row in gaps])
        gap = np.abs(alone - panel.reconstruct(gaps)) / X.to_numpy().std(axis=0)
        forms: dict[str, Callable[[np.ndarray], Any]] = {
            "array": lambda row: row,
            "dict": lambda row, names=panel.features: dict(zip(names, row.tolist(), strict=True)),
            "Series": lambda row, names=panel.features: pd.Series(row, index=names),
        }
        for name, form in forms.items():
            rows, some = [form(row) for row in whole], [form(row) for row in gaps]
            cells = [
                milliseconds(panel.reconstruct, rows, given.calls),
                milliseconds(panel.reconstruct, some, given.calls),
                milliseconds(partial(panel.reconstruct, interval=0.9), rows, given.calls),
                milliseconds(panel.predict, rows, given.calls),
                milliseconds(panel.check, rows, given.calls // 10),
            ]
            differs = f"{gap.max():.0e}" if name == "array" else ""
            table.add_row(str(k), name, *(f"{cell:.3f}" for cell in cells), differs)
    Console().print(table)


if __name__ == "__main__":
    main()
