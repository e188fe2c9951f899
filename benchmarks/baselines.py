"""Baselines on MNIST: seconds and test error of linear reconstruction, one table.

    FEWER_DATA=... python benchmarks/baselines.py [--data mnist] [--k 50] [--threads 2] [--all-rows]

Rows, split and scaling as in cases.py (MNIST: the 10,000 official test images, 6000 to train).
Seconds are for one fit on the training rows, decoder included; --all-rows adds those of a fit on
all rows (10,000 x 784), for which the limits are set. UDFS and AEFS are swept on a tenth of the
training rows that is not in those fits, and then fitted on all training rows; the sweep is timed
separately. Error: mean squared residual on the test rows over all features.
"""

import argparse
import os
import time
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from threadpoolctl import threadpool_limits

from cases import Case, load_case
from fewer.baselines import (
    AEFS,
    ALPHAS,
    GAMMAS,
    MCFS,
    PFA,
    UDFS,
    AutoencoderBound,
    Greedy,
    LaplacianScore,
    MaxVariance,
    PCABound,
    PivotedQR,
    RandomSubset,
    sweep,
)

SEED = 0
LIMITS = {"LaplacianScore": 30, "MCFS": 30, "PFA": 10, "AEFS": 180, "UDFS": 300}


def methods(k: int) -> list[tuple[Any, dict[str, tuple[float, ...]] | None]]:
    """Each method with the grid that is swept for it, if any."""
    return [
        (PCABound(k), None),
        (AutoencoderBound(k, device="cpu", random_state=SEED), None),
        (RandomSubset(k, random_state=SEED), None),
        (MaxVariance(k), None),
        (LaplacianScore(k), None),
        (MCFS(k, random_state=SEED), None),
        (UDFS(k), {"gamma": GAMMAS}),
        (AEFS(k, device="cpu", random_state=SEED), {"alpha": ALPHAS}),
        (PFA(k, random_state=SEED), None),
        (PivotedQR(k), None),
        (Greedy(k), None),
    ]


def seconds_to_fit(model: Any, rows: np.ndarray) -> tuple[float, float]:
    """Seconds on the clock and seconds of processor time."""
    clock, processor = time.perf_counter(), time.process_time()
    model.fit(rows)
    return time.perf_counter() - clock, time.process_time() - processor


def held_out(case: Case) -> tuple[np.ndarray, np.ndarray]:
    """Nine tenths of the training rows to fit, one tenth to choose options on."""
    order = np.random.default_rng(SEED).permutation(len(case.train))
    cut = len(order) // 10
    return case.train[order[cut:]], case.train[order[:cut]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="mnist")
    parser.add_argument("--k", type=int, default=50)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--all-rows", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    case = load_case(options.data)
    n, d = case.train.shape
    every = np.vstack([case.train, case.test])
    table = Table(
        title=f"{options.data} {n} x {d}, {case.split}, k = {options.k}, "
        f"{options.threads} threads, seed {SEED}, load {os.getloadavg()[0]:.1f}"
    )
    for column in (
        "method",
        "test error",
        "s",
        "CPU s",
        "sweep s",
        f"s, {len(every)} rows",
        "limit",
    ):
        table.add_column(column, justify="left" if column == "method" else "right")
    with threadpool_limits(options.threads):
        for model, grid in methods(options.k):
            name, swept = type(model).__name__, ""
            if grid is not None:
                began = time.perf_counter()
                found = sweep(model, grid, *held_out(case))
                swept = f"{time.perf_counter() - began:.1f}"
                model.set_params(**found.best_params_)
                name += "".join(f", {key}={value:g}" for key, value in found.best_params_.items())
            clock, processor = seconds_to_fit(model, case.train)
            error = float(np.square(model.reconstruct(case.test) - case.test).mean())
            whole = f"{seconds_to_fit(model, every)[0]:.1f}" if options.all_rows else ""
            limit = LIMITS.get(type(model).__name__)
            row = [name, f"{error:.5f}", f"{clock:.1f}", f"{processor:.1f}", swept, whole]
            table.add_row(*row, "" if limit is None else str(limit))
            print(*row, flush=True)
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
