"""A greedy path of many features: its time against reading the covariance as often.

    python benchmarks/path.py [--features 10463] [--k 943] [--threads 2]

A pick needs one product of the matrix with a vector, so k picks cannot be faster than reading the
matrix k times; the rest is the update of what is explained, k x d numbers at the end. The matrix
is that of factors with decaying weights and noise, like gene expression. For comparison, the plain
way deflates the whole matrix at every pick (timed on a few picks and extrapolated to k).
"""

import argparse
import time
from collections.abc import Callable

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from fewer.search import greedy

RANK, DECAY, NOISE = 600, 0.6, 0.25
PASSES, PICKS = 20, 10


def matrix(d: int, seed: int = 0) -> torch.Tensor:
    draw = torch.Generator().manual_seed(seed)
    weights = torch.arange(1, RANK + 1, dtype=torch.float64) ** -DECAY
    loadings = torch.randn(RANK, d, generator=draw, dtype=torch.float64) * weights[:, None]
    C = loadings.T @ loadings
    C.diagonal().add_((NOISE * torch.rand(d, generator=draw, dtype=torch.float64)) ** 2)
    return C


def plain_picks(C: torch.Tensor, picks: int) -> list[int]:
    E, chosen = C.clone(), []
    for _ in range(picks):
        gain = E.square().sum(0) / E.diagonal()
        gain[chosen] = -1
        j = int(gain.argmax())
        chosen.append(j)
        column = E[:, j] / E[j, j].sqrt()
        E -= torch.outer(column, column)
    return chosen


def seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--features", type=int, default=10_463)
    parser.add_argument("--k", type=int, default=943)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    C, k = matrix(options.features), options.k
    vector = torch.ones(len(C), dtype=C.dtype)
    C.mv(vector)
    read = seconds(lambda: [C.mv(vector) for _ in range(PASSES)]) / PASSES * k
    plain = seconds(lambda: plain_picks(C, PICKS)) / PICKS * k
    began = time.perf_counter()
    path = greedy(C, k)
    ours = time.perf_counter() - began
    # reading again afterwards shows how steady the machine is
    again = seconds(lambda: [C.mv(vector) for _ in range(PASSES)]) / PASSES * k
    assert path.order[:PICKS].tolist() == plain_picks(C, PICKS)
    table = Table(title=f"{k} of {len(C):,} features, float64, {options.threads} threads")
    for column in ("work", "s", "of reading"):
        table.add_column(column, justify="left" if column == "work" else "right")
    gigabytes = C.numel() * 8 / 1e9
    rate = gigabytes * k / read
    for name, value in (
        (f"reading {gigabytes:.2f} GB {k} times ({rate:.0f} GB/s)", read),
        ("the same, afterwards", again),
        (f"deflating the matrix ({PICKS} picks, times {k / PICKS:.0f})", plain),
        ("fewer.search.greedy, the whole path", ours),
    ):
        table.add_row(name, f"{value:.1f}", f"{value / np.mean([read, again]):.2f}")
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
