"""How cost grows with rows n, features d and panel size k: stated order against measured time.

    python benchmarks/growth.py [--sizes 4] [--repeats 3] [--device cpu]

Each task is run at sizes that double, one of n, d and k at a time. Two exponents e of
time ~ size^e are printed: the one that the stated order gives over these sizes, and the one
measured (least squares on logarithms). Time must grow no faster than stated; SLACK allows for a
noisy clock. CPU time of one thread, the best of several repeats; on a GPU, wall time.

Stated orders:
    covariance     n d^2
    greedy         k d^2 + k^2 d
    swaps          k d^2 + k^2 d per scoring of all swaps
    closed form    k d^2 + k^2 d + k^3 per step
    gradient       b k d per step on b rows
"""

import argparse
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from fewer.data import covariance
from fewer.data.batches import Batch, Batches
from fewer.data.source import array_source
from fewer.nn import ConcreteNetwork, ConcreteSelector, make_loss
from fewer.search import greedy, swap
from fewer.train import fit_closed_form
from fewer.train.network import train_epoch
from fewer.train.optimize import Adam

SLACK = 0.2
STEPS = 10
BATCH = 256


@dataclass(frozen=True)
class Size:
    n: int
    d: int
    k: int


def data(size: Size) -> np.ndarray:
    """Correlated rows: a few factors and noise."""
    rng = np.random.default_rng(0)
    factors = rng.standard_normal((size.n, 40), dtype=np.float32)
    noise = rng.standard_normal((size.n, size.d), dtype=np.float32)
    return factors @ rng.standard_normal((40, size.d), dtype=np.float32) + 2 * noise


def matrix(size: Size, device: str) -> torch.Tensor:
    rows = data(Size(3 * size.d, size.d, size.k))
    return torch.from_numpy(np.cov(rows.T)).to(device)


# each makes what it needs, and returns the work to be timed, which says how often it did the
# thing that its order is stated for


def covariance_work(size: Size, device: str) -> Callable[[], float]:
    source = array_source(data(size))

    def work() -> float:
        covariance(source, device=device)
        return 1

    return work


def greedy_work(size: Size, device: str) -> Callable[[], float]:
    C = matrix(size, device)

    def work() -> float:
        greedy(C, size.k)
        return 1

    return work


def swap_work(size: Size, device: str) -> Callable[[], float]:
    C = matrix(size, device)
    start = np.random.default_rng(0).choice(size.d, size.k, replace=False)

    def work() -> float:
        return swap(C, start).evaluations

    return work


def closed_form_work(size: Size, device: str) -> Callable[[], float]:
    C = matrix(size, device)

    def work() -> float:
        fit_closed_form(C, size.k, steps=STEPS, device=device)
        return STEPS

    return work


def gradient_work(size: Size, device: str) -> Callable[[], float]:
    batches = Batches(
        array_source(data(size)),
        np.arange(size.n),
        mean=torch.zeros(size.d),
        has_missing=False,
        device=device,
    )
    selector = ConcreteSelector(size.d, size.k)
    network = ConcreteNetwork(selector, torch.nn.Linear(size.k, size.d)).to(device)
    optimizer = Adam((network.parameters(), 1e-3))
    order = torch.Generator().manual_seed(0)

    def backward(batch: Batch) -> torch.Tensor:
        return network.backward(batch.x, batch.target, batch.observed, make_loss("mse"))

    def work() -> float:
        train_epoch(backward, batches, optimizer, BATCH, order)
        return size.n / BATCH

    return work


@dataclass(frozen=True)
class Case:
    name: str
    make: Callable[[Size, str], Callable[[], float]]
    cost: Callable[[Size, float], float]  # of the work, by its stated order
    base: Size
    varied: str


def search_cost(s: Size, times: float) -> float:
    return times * (s.k * s.d**2 + s.k**2 * s.d)


CASES = [
    Case("covariance", covariance_work, lambda s, t: s.n * s.d**2, Size(5000, 400, 1), "n"),
    Case("covariance", covariance_work, lambda s, t: s.n * s.d**2, Size(4000, 200, 1), "d"),
    Case("greedy", greedy_work, lambda s, t: s.k * s.d**2 + s.k**2 * s.d, Size(0, 400, 32), "d"),
    Case("greedy", greedy_work, lambda s, t: s.k * s.d**2 + s.k**2 * s.d, Size(0, 1200, 16), "k"),
    Case("swaps, per scoring", swap_work, search_cost, Size(0, 400, 16), "d"),
    Case("swaps, per scoring", swap_work, search_cost, Size(0, 1000, 16), "k"),
    Case(
        "closed form, per step",
        closed_form_work,
        lambda s, t: t * (s.k * s.d**2 + s.k**2 * s.d + s.k**3),
        Size(0, 300, 24),
        "d",
    ),
    Case(
        "closed form, per step",
        closed_form_work,
        lambda s, t: t * (s.k * s.d**2 + s.k**2 * s.d + s.k**3),
        Size(0, 800, 16),
        "k",
    ),
    Case("gradient, per step", gradient_work, lambda s, t: t * s.k * s.d, Size(4096, 600, 30), "n"),
    Case("gradient, per step", gradient_work, lambda s, t: t * s.k * s.d, Size(4096, 400, 30), "d"),
    Case("gradient, per step", gradient_work, lambda s, t: t * s.k * s.d, Size(4096, 800, 15), "k"),
]


def timed(work: Callable[[], float], repeats: int, device: str) -> tuple[float, float]:
    """Seconds of the best run, and how often it did what its order is stated for."""
    clock = time.process_time if device == "cpu" else time.perf_counter
    work()
    best, times = float("inf"), 1.0
    for _ in range(repeats):
        began = clock()
        times = work()
        if device != "cpu":
            torch.cuda.synchronize()
        best = min(best, clock() - began)
    return best, times


def slope(sizes: list[int], values: list[float]) -> float:
    return float(np.polyfit(np.log(sizes), np.log(values), 1)[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", type=int, default=4, help="how many, each twice the last")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    torch.set_num_threads(1)
    table = Table(title="cost growth")
    for column in ("work", "varied", "sizes", "milliseconds", "stated", "measured", "no faster"):
        table.add_column(column)
    failed = []
    for case in CASES:
        sizes, seconds, costs = [], [], []
        for doubling in range(options.sizes):
            value = getattr(case.base, case.varied) * 2**doubling
            size = Size(**{**vars(case.base), case.varied: value})
            spent, times = timed(case.make(size, options.device), options.repeats, options.device)
            sizes.append(value)
            seconds.append(spent / times)  # of one step, one scoring
            costs.append(case.cost(size, times) / times)
        stated, measured = slope(sizes, costs), slope(sizes, seconds)
        fine = measured <= stated + SLACK
        if not fine:
            failed.append(f"{case.name} in {case.varied}")
        table.add_row(
            case.name,
            case.varied,
            " ".join(map(str, sizes)),
            " ".join(f"{1000 * value:.3g}" for value in seconds),
            f"{stated:.2f}",
            f"{measured:.2f}",
            "yes" if fine else "NO",
        )
    console = Console(width=120)
    console.print(table)
    console.print(f"{platform.machine()}, torch {torch.__version__}, {options.device}, one thread")
    if failed:
        raise SystemExit(f"grows faster than stated: {', '.join(failed)}")


if __name__ == "__main__":
    main()
