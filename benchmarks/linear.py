"""Linear reconstruction: test error and time of every method on eight data sets.

    FEWER_DATA=... python benchmarks/linear.py [--data mnist,tcga] [--k 10,20,50] [--threads 2]

Features are at their own scale (see cases.py: splits by mouse, patient, official, or random, all
scaling fitted on training rows). Error: mean squared residual on the test rows over all features,
of least squares from the chosen features, fitted on the training rows; `ColumnSubset` and
`select` use their own decoder. "train" is the sum of residual variances on the training rows,
relative to greedy's. Last, the lab notes' own splits against their targets.
"""

import argparse
import time
from collections.abc import Callable

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from scipy.linalg import qr
from sklearn.decomposition import PCA
from sklearn.linear_model import LinearRegression

import fewer
from cases import LAB_TARGETS, NAMES, Case, lab_case, load_case
from fewer.search import greedy, residual, search

SEED = 0


def linear_error(case: Case, chosen: np.ndarray) -> float:
    decoder = LinearRegression().fit(case.train[:, chosen], case.train)
    return float(((decoder.predict(case.test[:, chosen]) - case.test) ** 2).mean())


def random_error(case: Case, k: int) -> float:
    rng = np.random.default_rng(SEED)
    draws = [rng.choice(case.train.shape[1], k, replace=False) for _ in range(5)]
    return float(np.mean([linear_error(case, draw) for draw in draws]))


def pca_error(case: Case, k: int) -> float:
    pca = PCA(k, random_state=SEED).fit(case.train)
    return float(((pca.inverse_transform(pca.transform(case.test)) - case.test) ** 2).mean())


def chooser(case: Case, C: np.ndarray, k: int) -> dict[str, Callable[[], np.ndarray]]:
    centred = case.train - case.train.mean(axis=0)
    options = {"k": k, "random_state": SEED, "device": "cpu"}
    return {
        "greedy": lambda: greedy(C, k).panel(),
        "greedy + swaps": lambda: search(C, k, stall=0, seed=SEED).indices,
        "pivoted QR": lambda: np.sort(qr(centred, mode="r", pivoting=True)[1][:k]),
        "gradient CAE": lambda: (
            fewer.ConcreteAutoencoder(solver="gradient", **options).fit(case.train).columns_
        ),
        "closed form CAE": lambda: (
            fewer.ConcreteAutoencoder(solver="closed_form", **options).fit(case.train).columns_
        ),
    }


def run(case: Case, k: int) -> dict[str, tuple[float, float, float]]:
    """Test error, residual on the training rows as a share of greedy's, and seconds."""
    began = time.perf_counter()
    centred = case.train - case.train.mean(axis=0)
    C = centred.T @ centred / len(centred)
    covariance_seconds = time.perf_counter() - began
    found: dict[str, tuple[float, float, float]] = {
        "PCA bound": (pca_error(case, k), np.nan, np.nan),
        "random": (random_error(case, k), np.nan, np.nan),
    }
    base = np.nan
    for name, choose in chooser(case, C, k).items():
        began = time.perf_counter()
        chosen = choose()
        seconds = time.perf_counter() - began
        left = residual(C, chosen)
        base = left if name == "greedy" else base
        extra = covariance_seconds if name.startswith("greedy") else 0.0
        found[name] = (linear_error(case, chosen), left / base, seconds + extra)
    began = time.perf_counter()
    subset = fewer.ColumnSubset(k, random_state=SEED, device="cpu").fit(case.train)
    seconds = time.perf_counter() - began
    error = float(((subset.reconstruct(case.test) - case.test) ** 2).mean())
    found["ColumnSubset"] = (error, residual(C, subset.columns_) / base, seconds)
    began = time.perf_counter()
    panel = fewer.select(
        case.train, k, scale="none", row_groups=case.groups, random_state=SEED, device="cpu"
    )
    seconds = time.perf_counter() - began
    error = float(panel.score(case.test).errors.mean())
    found["select"] = (error, residual(C, panel.indices) / base, seconds)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default=",".join(NAMES))
    parser.add_argument("--k", default="10,20,50")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    console = Console(width=150)
    results: dict[tuple[str, int], dict[str, tuple[float, float, float]]] = {}
    for name in options.data.split(","):
        case = load_case(name)
        for k in map(int, options.k.split(",")):
            results[name, k] = run(case, k)
            best = {method: f"{row[0]:.5f}" for method, row in results[name, k].items()}
            print(name, case.train.shape, case.split, k, best, flush=True)
    methods = list(next(iter(results.values())))
    table = Table(title=f"Test error / greedy's, {options.threads} threads, seed {SEED}")
    for column in ("data", "k", "greedy", *methods):
        table.add_column(column, justify="right")
    for (name, k), found in results.items():
        base = found["greedy"][0]
        table.add_row(
            name, str(k), f"{base:.5f}", *(f"{found[method][0] / base:.3f}" for method in methods)
        )
    means = [np.mean([f[m][0] / f["greedy"][0] for f in results.values()]) for m in methods]
    table.add_row("mean", "", "", *(f"{value:.4f}" for value in means), style="bold")
    worst = [np.max([f[m][1] for f in results.values()]) for m in methods]
    table.add_row("worst train", "", "", *("" if np.isnan(v) else f"{v:.4f}" for v in worst))
    for (name, k), found in results.items():
        times = ("" if np.isnan(found[m][2]) else f"{found[m][2]:.2f} s" for m in methods)
        table.add_row(name, str(k), "time", *times, style="dim")
    console.print(table)
    for (name, k), target in LAB_TARGETS.items():
        if name not in options.data.split(","):
            continue
        case = lab_case(name)
        subset = fewer.ColumnSubset(k, random_state=SEED, device="cpu").fit(case.train)
        error = linear_error(case, subset.columns_)
        console.print(f"lab notes' split, {name}, k = {k}: {error:.5f} (target: {target:.5f})")


if __name__ == "__main__":
    main()
