"""Data with known answers: what each method finds, and its error with one and the same decoder.

    python benchmarks/planted.py [--cases products,mri] [--methods search,select] [--seeds 5] \
        [--rows 8000] [--steps 2000] [--device auto] [--threads 2] [--out planted.json]

Every method chooses k columns of the same training rows; then the same network, of two hidden
layers of 256, is trained on each panel by `fewer.train.train_decoders` and scored on as many test
rows as a quarter of the training rows. The first table has this error as a ratio to that of the
linear search (`ColumnSubset`) and, where k columns determine all others, how many of them a method
found; the second table has the seconds that each took to choose, among them those of
`fewer.select` from end to end. "annealing" is a long simulated annealing of the error that
`RandomFeatureSurrogate` estimates, in 16 chains of --steps steps from random panels: it shows what
a search of the surrogate can reach. "IP-CAE" is the concrete autoencoder with indirect logits and
the settings of its authors, which take far longer than ours on a CPU.

No files and no network are needed. Results that --out already holds are not computed again, so a
run can be interrupted, or divided by --cases; --merge a.json,b.json only prints the tables.
"""

import argparse
import json
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

import fewer
from fewer.constraints import resolve
from fewer.data import covariance, moments
from fewer.data.source import array_source
from fewer.datasets import load
from fewer.nn import make_loss
from fewer.train import TrainingConfig, choose_by_gradient, network_swaps, train_decoders
from fewer.train.surrogate import RandomFeatureSurrogate
from fewer.train.training_data import prepare

sys.path.insert(0, str(Path(__file__).parents[1]))  # for paper/, which lies beside benchmarks/
from paper.methods import IP_CAE

WIDTHS = (256, 256)
DRAWS = 5  # random panels
CHAINS = 16
PROBES = 4  # swaps of each chain that set the first temperature
COLDEST = 1e-3  # of the first temperature
TEST = 0.25  # test rows for each training row

# data set, its options, k
CASES: dict[str, tuple[str, dict[str, Any], int]] = {
    "products": ("planted-products", {"features": 100, "factors": 8}, 8),
    "products-300": ("planted-products", {"features": 300, "factors": 12}, 12),
    "manifold": ("planted-manifold", {"features": 100}, 10),
    "mri": ("diffusion-mri", {"features": 400, "compartments": 2}, 20),
    "mri-3": ("diffusion-mri", {"features": 400, "compartments": 3}, 20),
    "pulses": ("pulses", {"features": 200}, 12),
}


@dataclass(frozen=True, eq=False)
class Problem:
    """Training rows, how many columns to choose, and where to compute."""

    train: np.ndarray
    test: np.ndarray
    planted: np.ndarray | None  # the columns to find, where as many are chosen
    k: int
    seed: int
    device: str
    steps: int

    @property
    def d(self) -> int:
        return self.train.shape[1]

    @property
    def config(self) -> TrainingConfig:
        return TrainingConfig(k=self.k, decoder=WIDTHS, device=self.device)

    @property
    def common(self) -> dict[str, Any]:
        return {"random_state": self.seed, "device": self.device}

    @property
    def cuda_or_cpu(self) -> str:
        cuda = self.device == "auto" and torch.cuda.is_available()
        return "cuda" if cuda else "cpu" if self.device == "auto" else self.device


def make_problem(name: str, seed: int, options: argparse.Namespace) -> Problem:
    data_set, about, k = CASES[name]
    rows = options.rows
    data = load(data_set, rows=rows + round(TEST * rows), seed=seed, **about)
    planted = None if data.planted is None else np.flatnonzero(data.planted)
    if planted is not None and len(planted) != k:
        planted = None
    X = data.X
    return Problem(X[:rows], X[rows:], planted, k, seed, options.device, options.steps)


# -- methods: each returns one panel, or several whose mean counts ------------------------------


def random_panels(problem: Problem) -> list[np.ndarray]:
    rng = np.random.default_rng(problem.seed)
    return [rng.permutation(problem.d)[: problem.k] for _ in range(DRAWS)]


def linear_search(problem: Problem) -> list[np.ndarray]:
    return [fewer.ColumnSubset(problem.k, **problem.common).fit(problem.train).columns_]


def gradient(problem: Problem, **changes: Any) -> list[np.ndarray]:
    """The relaxation alone: what the concrete autoencoder's gradient chooses, without swaps."""
    source = array_source(problem.train)
    config, loss = replace(problem.config, **changes), make_loss("mse")
    data = prepare(source, moments(source), config, loss, problem.seed)
    return [choose_by_gradient(data, problem.seed)[0]]


def ip_cae(problem: Problem) -> list[np.ndarray]:
    return gradient(problem, **IP_CAE)


def select(problem: Problem) -> list[np.ndarray]:
    options: dict[str, Any] = {"decoder": WIDTHS, "scale": "none", **problem.common}
    return [fewer.select(problem.train, problem.k, **options).indices]


def estimator(problem: Problem) -> list[np.ndarray]:
    model = fewer.ConcreteAutoencoder(problem.k, decoder=WIDTHS, **problem.common)
    return [model.fit(problem.train).columns_]


def surrogate_swaps(problem: Problem) -> list[np.ndarray]:
    """From the panel of the linear search."""
    source = array_source(problem.train)
    found = network_swaps(
        source,
        covariance(source),
        linear_search(problem),
        resolve(None, problem.d, problem.k),
        seed=problem.seed,
        device=problem.cuda_or_cpu,
    )
    return [found]


def annealing(problem: Problem) -> list[np.ndarray]:
    """Single swaps, accepted by the rule of Metropolis; the temperature falls geometrically."""
    source, k = array_source(problem.train), problem.k
    surrogate = RandomFeatureSurrogate(
        source, covariance(source), k=k, seed=problem.seed, device=problem.cuda_or_cpu
    )
    rng = np.random.default_rng(problem.seed)
    panels = np.stack([rng.permutation(problem.d)[:k] for _ in range(CHAINS)])

    def errors(of: np.ndarray) -> np.ndarray:
        return surrogate.errors([np.sort(panel) for panel in of])

    def swapped() -> np.ndarray:
        after = panels.copy()
        for panel in after:
            others = np.setdiff1d(np.arange(problem.d), panel)
            panel[rng.integers(k)] = rng.choice(others)
        return after

    now = errors(panels)
    best, lowest = panels[now.argmin()].copy(), float(now.min())
    hot = float(np.mean([np.abs(errors(swapped()) - now).mean() for _ in range(PROBES)]))
    for step in range(problem.steps):
        temperature = hot * COLDEST ** (step / problem.steps)
        tried = swapped()
        found = errors(tried)
        accepted = rng.random(CHAINS) < np.exp(np.minimum((now - found) / temperature, 0))
        panels, now = np.where(accepted[:, None], tried, panels), np.where(accepted, found, now)
        if now.min() < lowest:
            best, lowest = panels[now.argmin()].copy(), float(now.min())
    return [best]


METHODS: dict[str, Callable[[Problem], list[np.ndarray]]] = {
    "search": linear_search,
    "random": random_panels,
    "gradient": gradient,
    "IP-CAE": ip_cae,
    "select": select,
    "estimator": estimator,
    "swaps": surrogate_swaps,
    "annealing": annealing,
}
LABELS = {
    "search": "linear search",
    "gradient": "gradient CAE",
    "estimator": "ConcreteAE",
    "swaps": "surrogate swaps",
}


# -- the same decoder for all -------------------------------------------------------------------


def decoder_errors(problem: Problem, panels: list[np.ndarray]) -> list[float]:
    """Test error of each panel; the networks are trained as one, from the same weights."""
    source = array_source(problem.train)
    data = prepare(source, moments(source), problem.config, make_loss("mse"), problem.seed)
    columns = [np.sort(panel) for panel in panels]
    test = torch.from_numpy(problem.test)
    found = []
    for panel, decoder in zip(columns, train_decoders(data, columns, problem.seed), strict=True):
        with torch.no_grad():
            found.append(float((decoder(test[:, panel]) - test).square().mean()))
    return found


def complete(cell: dict[str, Any], problem: Problem, methods: list[str], save: Callable) -> None:
    """Run what a cell lacks: panels first, then the decoders of all new panels together."""
    n, d = problem.train.shape
    cell |= {"k": problem.k, "rows": n, "columns": d}
    for method in methods:
        if method in cell:
            continue
        began, worked = time.perf_counter(), time.process_time()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", fewer.errors.FewerWarning)
            panels = METHODS[method](problem)
        seconds = {"seconds": time.perf_counter() - began, "cpu": time.process_time() - worked}
        cell[method] = {"panels": [np.sort(panel).tolist() for panel in panels], **seconds}
        if problem.planted is not None:
            counts = [len(set(panel) & set(problem.planted)) for panel in panels]
            cell[method]["found"] = float(np.mean(counts))
        save()
    lacking = [method for method in methods if "error" not in cell[method]]
    panels = [np.array(panel) for method in lacking for panel in cell[method]["panels"]]
    errors = iter(decoder_errors(problem, panels) if panels else [])
    for method in lacking:
        cell[method]["error"] = float(np.mean([next(errors) for _ in cell[method]["panels"]]))
    save()


# -- tables -------------------------------------------------------------------------------------


def by_case(results: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    cases: dict[str, list[dict[str, Any]]] = {}
    for key, cell in results.items():
        cases.setdefault(key.split("|")[0], []).append(cell)
    return cases


def show(results: dict[str, Any], where: str) -> None:
    """Errors as ratios of means over seeds to the linear search, and seconds to choose."""
    methods = [one for one in METHODS if any(one in cell for cell in results.values())]
    labels = [LABELS.get(one, one) for one in methods]
    title = f"Test error / linear search's, same decoder {WIDTHS} (planted columns found)"
    errors = Table(title=f"{title}; {where}")
    seconds = Table(title=f"Seconds to choose, mean over seeds; {where}")
    for table in (errors, seconds):
        for name in ("case", "rows x columns", "k", "seeds"):
            table.add_column(name, justify="right")
    errors.add_column("error", justify="right")
    for label in labels:
        errors.add_column(label, justify="right")
        seconds.add_column(label, justify="right")
    for name, cells in by_case(results).items():
        first = cells[0]
        size = f"{first['rows']} x {first['columns']}"
        about = (name, size, str(first["k"]), str(len(cells)))

        def mean(method: str, what: str, cells: list[dict[str, Any]] = cells) -> float:
            values = [cell[method][what] for cell in cells if what in cell.get(method, {})]
            return float(np.mean(values)) if len(values) == len(cells) else np.nan

        base = mean("search", "error")
        shown = []
        for method in methods:
            found = mean(method, "found")
            text = f"{mean(method, 'error') / base:.4f}"
            shown.append(text if np.isnan(found) else f"{text} ({found:.1f}/{first['k']})")
        errors.add_row(*about, f"{base:.5f}", *shown)
        seconds.add_row(*about, *(f"{mean(method, 'seconds'):.1f}" for method in methods))
    console = Console(width=190)
    console.print(errors)
    console.print(seconds)
    waits = [cell for name, cells in by_case(results).items() for cell in cells]
    waits = [c for c in waits if c["columns"] == 100 and "seconds" in c.get("select", {})]
    if waits:
        times = ", ".join(f"{cell['select']['seconds']:.1f}" for cell in waits)
        console.print(f"select from end to end, {waits[0]['rows']} x 100, {WIDTHS}: {times} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rows", type=int, default=8000, help="training rows")
    parser.add_argument("--steps", type=int, default=2000, help="of each chain of the annealing")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", default="planted.json")
    parser.add_argument("--merge", help="print the tables of these results, comma-separated")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    cuda = options.device != "cpu" and torch.cuda.is_available()
    where = torch.cuda.get_device_name() if cuda else f"{options.threads} threads of a CPU"
    if options.merge:
        merged: dict[str, Any] = {}
        for file in options.merge.split(","):
            for key, cell in json.loads(Path(file).read_text()).items():
                merged[key] = merged.get(key, {}) | cell
        show(merged, where)
        return
    if cuda:
        torch.zeros(1, device="cuda")  # starting CUDA is not part of any method
    out = Path(options.out)
    results: dict[str, Any] = json.loads(out.read_text()) if out.exists() else {}

    def save() -> None:
        draft = out.with_name(out.name + ".part")
        draft.write_text(json.dumps(results))
        draft.replace(out)

    for seed in range(options.seeds):
        for name in options.cases.split(","):
            problem = make_problem(name, seed, options)
            cell = results.setdefault(f"{name}|{options.rows}|{seed}", {})
            complete(cell, problem, options.methods.split(","), save)
            ratios = {
                one: round(cell[one]["error"] / cell["search"]["error"], 4)
                for one in METHODS
                if one in cell and "search" in cell
            }
            print(f"{name}, seed {seed}: {ratios}", flush=True)
    show(results, where)


if __name__ == "__main__":
    main()
