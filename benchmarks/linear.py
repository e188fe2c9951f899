"""Linear reconstruction: test error and time of every method on eight data sets, and heavy tails.

    FEWER_DATA=... python benchmarks/linear.py [--data mnist,tcga] [--k 10,20,50] [--threads 2] \
        [--methods greedy,ColumnSubset] [--out linear.json]
    python benchmarks/linear.py --merge a.json,b.json

Features are at their own scale (see cases.py: splits by mouse, patient, official, or random, all
scaling fitted on training rows). Error: mean squared residual on the test rows over all features,
of least squares from the chosen features, fitted on the training rows; `ConcreteAutoencoder`,
`ColumnSubset` and `select` use their own decoder. "gradient CAE" and "closed form CAE" are
selectors alone, without swaps. "train" is the sum of residual variances on the training rows,
relative to greedy's. "gas-0" to "gas-2" are synthetic gas sensors in their own units (seeds 0 to
2): variances over ten orders of magnitude and heavy tails, 5,358 rows to fit and 20,000 to test,
since of fewer a single row may be half of the error. Last, the lab notes' own splits against their
targets.

--methods leaves others out (greedy is always there), --out keeps the results, and --merge only
prints the tables of what several runs kept.
"""

import argparse
import json
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from scipy.linalg import qr
from sklearn.decomposition import PCA
from sklearn.linear_model import LinearRegression

import fewer
from cases import LAB_TARGETS, NAMES, Case, lab_case, load_case
from fewer.datasets import load
from fewer.errors import FewerWarning
from fewer.search import greedy, residual, search

SEED = 0
HEAVY, FIT_ROWS, TEST_ROWS = ("gas-0", "gas-1", "gas-2"), 5_358, 20_000
METHODS = (
    "PCA bound",
    "random",
    "greedy",
    "greedy + swaps",
    "pivoted QR",
    "gradient CAE",
    "closed form CAE",
    "ConcreteAutoencoder",
    "ColumnSubset",
    "select",
)

Row = tuple[float, float, float]  # test error, training residual over greedy's, seconds


def any_case(name: str) -> Case:
    if name not in HEAVY:
        return load_case(name)
    X = load("gas-sensors", rows=FIT_ROWS + TEST_ROWS, seed=int(name[-1])).X
    return Case(name, X[:FIT_ROWS], X[FIT_ROWS:], "independent rows")


def linear_error(case: Case, chosen: np.ndarray) -> float:
    # on standardised inputs: the solver drops what is small beside the largest
    unit = case.train[:, chosen].std(axis=0)
    unit = np.where(unit > 0, unit, 1.0)
    decoder = LinearRegression().fit(case.train[:, chosen] / unit, case.train)
    return mean_square(decoder.predict(case.test[:, chosen] / unit), case.test)


def mean_square(found: np.ndarray, expected: np.ndarray) -> float:
    return float(((found - expected) ** 2).mean())


def random_error(case: Case, k: int) -> float:
    rng = np.random.default_rng(SEED)
    draws = [rng.choice(case.train.shape[1], k, replace=False) for _ in range(5)]
    return float(np.mean([linear_error(case, draw) for draw in draws]))


def pca_error(case: Case, k: int) -> float:
    pca = PCA(k, random_state=SEED).fit(case.train)
    return mean_square(pca.inverse_transform(pca.transform(case.test)), case.test)


def chooser(case: Case, C: np.ndarray, k: int) -> dict[str, Callable[[], np.ndarray]]:
    centred = case.train - case.train.mean(axis=0)
    options = {"k": k, "random_state": SEED, "device": "cpu"}
    selector = {"refine": None, "ridge": 0.0, **options}
    return {
        "greedy": lambda: greedy(C, k).panel(),
        "greedy + swaps": lambda: search(C, k, stall=0, seed=SEED).indices,
        "pivoted QR": lambda: np.sort(qr(centred, mode="r", pivoting=True)[1][:k]),
        "gradient CAE": lambda: (
            fewer.ConcreteAutoencoder(solver="gradient", **selector).fit(case.train).columns_
        ),
        "closed form CAE": lambda: (
            fewer.ConcreteAutoencoder(solver="closed_form", **selector).fit(case.train).columns_
        ),
    }


def run(case: Case, k: int, methods: list[str]) -> dict[str, Row]:
    """Test error, residual on the training rows as a share of greedy's, and seconds."""
    began = time.perf_counter()
    centred = case.train - case.train.mean(axis=0)
    C = centred.T @ centred / len(centred)
    covariance_seconds = time.perf_counter() - began
    found: dict[str, Row] = {}
    if "PCA bound" in methods:
        found["PCA bound"] = (pca_error(case, k), np.nan, np.nan)
    if "random" in methods:
        found["random"] = (random_error(case, k), np.nan, np.nan)
    base = np.nan
    for name, choose in chooser(case, C, k).items():
        if name not in (*methods, "greedy"):
            continue
        began = time.perf_counter()
        chosen = choose()
        seconds = time.perf_counter() - began
        left = residual(C, chosen)
        base = left if name == "greedy" else base
        extra = covariance_seconds if name.startswith("greedy") else 0.0
        found[name] = (linear_error(case, chosen), left / base, seconds + extra)
    for name in ("ConcreteAutoencoder", "ColumnSubset"):
        if name in methods:
            began = time.perf_counter()
            model = getattr(fewer, name)(k, random_state=SEED, device="cpu").fit(case.train)
            seconds = time.perf_counter() - began
            error = mean_square(model.reconstruct(case.test), case.test)
            found[name] = (error, residual(C, model.columns_) / base, seconds)
    if "select" in methods:
        began = time.perf_counter()
        panel = fewer.select(
            case.train, k, scale="none", row_groups=case.groups, random_state=SEED, device="cpu"
        )
        seconds = time.perf_counter() - began
        error = float(panel.score(case.test).errors.mean())
        found["select"] = (error, residual(C, panel.indices) / base, seconds)
    return found


def show(results: dict[str, dict[str, Row]], title: str) -> None:
    methods = [name for name in METHODS if all(name in found for found in results.values())]
    table = Table(title=f"Test error / greedy's, {title}, seed {SEED}")
    for column in ("data", "k", "greedy", *methods):
        table.add_column(column, justify="right")
    ratios = {
        key: [found[m][0] / found["greedy"][0] for m in methods] for key, found in results.items()
    }
    for key, row in ratios.items():
        base = results[key]["greedy"][0]
        table.add_row(*key.split(), f"{base:.5g}", *(f"{value:.3f}" for value in row))
    each = np.array(list(ratios.values()))
    table.add_row("mean", "", "", *(f"{value:.4f}" for value in each.mean(axis=0)), style="bold")
    table.add_row("worst", "", "", *(f"{value:.4f}" for value in each.max(axis=0)), style="bold")
    worst = [max(found[m][1] for found in results.values()) for m in methods]
    table.add_row("worst train", "", "", *("" if np.isnan(v) else f"{v:.4f}" for v in worst))
    for key, found in results.items():
        times = ("" if np.isnan(found[m][2]) else f"{found[m][2]:.2f} s" for m in methods)
        table.add_row(*key.split(), "time", *times, style="dim")
    Console(width=170).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default=",".join((*NAMES, *HEAVY)))
    parser.add_argument("--k", default="10,20,50")
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", default="", help="JSON file for the results")
    parser.add_argument("--merge", default="", help="only the tables of these files")
    options = parser.parse_args()
    results: dict[str, Any] = {}
    if options.merge:
        for file in options.merge.split(","):
            results |= json.loads(Path(file).read_text())
        show(results, "merged")
        return
    torch.set_num_threads(options.threads)
    warnings.simplefilter("ignore", FewerWarning)
    for name in options.data.split(","):
        case = any_case(name)
        for k in map(int, options.k.split(",")):
            found = results[f"{name} {k}"] = run(case, k, options.methods.split(","))
            best = {method: f"{row[0]:.5g}" for method, row in found.items()}
            print(name, case.train.shape, case.split, k, best, flush=True)
            if options.out:
                draft = Path(options.out + ".part")
                draft.write_text(json.dumps(results))
                draft.replace(options.out)
    show(results, f"{options.threads} threads")
    for (name, k), target in LAB_TARGETS.items():
        if name not in options.data.split(",") or "ColumnSubset" not in options.methods:
            continue
        case = lab_case(name)
        subset = fewer.ColumnSubset(k, random_state=SEED, device="cpu").fit(case.train)
        error = linear_error(case, subset.columns_)
        print(f"lab notes' split, {name}, k = {k}: {error:.5f} (target: {target:.5f})")


if __name__ == "__main__":
    main()
