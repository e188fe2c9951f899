"""Concrete autoencoders on MNIST: paper preset, defaults, and the four schedules.

    FEWER_DATA=... python benchmarks/mnist.py [--seeds 3] [--threads 2] [--skip-paper]

The 10,000 official test images in [0, 1], shuffled by seed 0: 6000 rows to train and validate,
4000 to test. Error: mean squared residual on the test rows of a linear regression from the chosen
pixels to all pixels, fitted on the 6000. The paper reports .026 for its method at k = 50.
"""

import argparse
import time
import warnings
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from sklearn.decomposition import PCA
from sklearn.linear_model import LinearRegression

from fewer import PAPER, ColumnSubset, ConcreteAutoencoder
from fewer.datasets import load
from fewer.errors import NotConvergedWarning

SCHEDULES = {
    "high, constant 10": {"schedule": "constant", "start_temperature": 10, "end_temperature": 10},
    "low, constant .01": {
        "schedule": "constant",
        "start_temperature": 0.01,
        "end_temperature": 0.01,
    },
    "exponential 10 to .01": {
        "schedule": "exponential",
        "start_temperature": 10,
        "end_temperature": 0.01,
    },
    "abrupt 10 to .01": {"schedule": "abrupt", "start_temperature": 10, "end_temperature": 0.01},
}


def rows() -> tuple[np.ndarray, np.ndarray]:
    data = load("mnist")
    split = data.split()
    X = data.X.astype(np.float32) / 255
    return X[split.fit], X[split.test]


def measure(
    train: np.ndarray, test: np.ndarray, seeds: int, method: Any, **options: Any
) -> tuple[list[float], int, float, float]:
    errors, distinct, settled = [], [], []
    began = time.perf_counter()
    for seed in range(seeds):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", NotConvergedWarning)
            model = method(random_state=seed, device="cpu", **options).fit(train)
        chosen = model.get_support(indices=True)
        decoder = LinearRegression().fit(train[:, chosen], train)
        errors.append(float(((decoder.predict(test[:, chosen]) - test) ** 2).mean()))
        if method is ConcreteAutoencoder:
            distinct.append(len(set(model.logits_.argmax(axis=1))))
            settled.append(model.history_[-1]["mean_max_probability"])
        else:
            distinct.append(len(chosen))
            settled.append(np.nan)
    seconds = (time.perf_counter() - began) / seeds
    return errors, min(distinct), float(np.mean(settled)), seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--skip-paper", action="store_true", help="leave the slow preset out")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    train, test = rows()
    runs: dict[str, dict[str, Any]] = {
        "k = 50, ColumnSubset": {"k": 50},
        "k = 50, defaults": {"k": 50},
        "k = 50, closed form alone": {"k": 50, "refine": None},
        "k = 50, gradient alone": {"k": 50, "solver": "gradient", "refine": None},
    }
    if not options.skip_paper:
        runs["k = 50, paper preset"] = {"k": 50, **PAPER}
    for name, schedule in SCHEDULES.items():
        runs[f"k = 20, {name}"] = {
            "k": 20,
            "solver": "gradient",
            "tries": 1,
            "epochs": 100,
            "refine": None,
            **schedule,
        }
    table = Table(title=f"MNIST 6000/4000, linear decoder, {options.seeds} seeds")
    for column in ("run", "test error", "by seed", "fewest distinct", "mean max prob.", "s a fit"):
        table.add_column(column, justify="left" if column == "run" else "right")
    for name, settings in runs.items():
        method = ColumnSubset if name.startswith("k = 50, ColumnSubset") else ConcreteAutoencoder
        errors, distinct, settled, seconds = measure(train, test, options.seeds, method, **settings)
        each = " ".join(f"{error:.5f}" for error in errors)
        table.add_row(
            name, f"{np.mean(errors):.5f}", each, str(distinct), f"{settled:.3f}", f"{seconds:.1f}"
        )
    pca = PCA(50).fit(train)
    bound = float(((pca.inverse_transform(pca.transform(test)) - test) ** 2).mean())
    table.add_row("k = 50, PCA (bound)", f"{bound:.5f}", "", "", "", "")
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
