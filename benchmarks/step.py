"""Time of a training step: fewer's loop against a plain eager PyTorch loop of the same model.

    python benchmarks/step.py [--threads 2] [--epochs 10] [--rounds 7]

MNIST-sized rows (the real ones where FEWER_DATA is set), k = 50, linear decoder, batch 256.
Both loops do the same work for every step: shuffle, take rows, draw one concrete sample, decode,
squared error, backward, Adam with two learning rates. Rounds alternate; medians are compared.
"""

import argparse
import os
import platform
import statistics
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from torch import nn

from fewer.data.batches import Batch, Batches
from fewer.data.source import array_source
from fewer.nn import ConcreteNetwork, ConcreteSelector, make_loss
from fewer.nn.schedule import exponential
from fewer.train.network import train_epoch
from fewer.train.optimize import Adam

K, BATCH = 50, 256


def rows() -> tuple[np.ndarray, str]:
    folder = os.environ.get("FEWER_DATA")
    if folder:
        with np.load(Path(folder) / "mnist.npz", allow_pickle=False) as stored:
            return stored["X"][stored["is_test"]][:6000].astype(np.float32) / 255, "MNIST"
    return np.random.default_rng(0).random((6000, 784), dtype=np.float32), "random numbers"


def plain(X: torch.Tensor, epochs: int) -> float:
    """What one would write in an afternoon."""
    torch.manual_seed(0)
    n, d = X.shape
    logits = nn.Parameter(torch.randn(K, d) * 0.01)
    decoder = nn.Linear(K, d)
    optimizer = torch.optim.Adam(
        [{"params": [logits], "lr": 0.1}, {"params": decoder.parameters(), "lr": 1e-2}]
    )
    steps = epochs * -(-n // BATCH)
    step = 0
    start = time.perf_counter()
    for _ in range(epochs):
        order = torch.randperm(n)
        for at in range(0, n, BATCH):
            x = X[order[at : at + BATCH]]
            temperature = 3.0 * (0.1 / 3.0) ** (step / steps)
            gumbel = -torch.log(-torch.log(torch.rand(K, d).clamp(1e-20, 1)) + 1e-20)
            choice = F.softmax((logits + gumbel) / temperature, dim=-1)
            loss = F.mse_loss(decoder(x @ choice.T), x)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
    return (time.perf_counter() - start) / steps


def ours(X: torch.Tensor, epochs: int) -> float:
    torch.manual_seed(0)
    n, d = X.shape
    batches = Batches(array_source(X.numpy()), np.arange(n), mean=torch.zeros(d), has_missing=False)
    selector = ConcreteSelector(d, K)
    network = ConcreteNetwork(selector, nn.Linear(K, d))
    optimizer = Adam((selector.parameters(), 0.1), (network.decoder.parameters(), 1e-2))
    steps = epochs * -(-n // BATCH)
    temperature = exponential(3.0, 0.1, steps)
    clock = iter(range(steps))

    loss = make_loss("mse")

    def backward(batch: Batch) -> torch.Tensor:
        selector.temperature = temperature(next(clock))
        return network.backward(batch.x, batch.target, batch.observed, loss)

    generator = torch.Generator().manual_seed(0)
    start = time.perf_counter()
    for _ in range(epochs):
        train_epoch(backward, batches, optimizer, BATCH, generator)
    return (time.perf_counter() - start) / steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    array, name = rows()
    X = torch.from_numpy(array)
    plain(X, 2), ours(X, 2)  # warm up
    times: dict[str, list[float]] = {"plain eager PyTorch": [], "fewer": []}
    for _ in range(options.rounds):
        times["plain eager PyTorch"].append(plain(X, options.epochs))
        times["fewer"].append(ours(X, options.epochs))
    base = statistics.median(times["plain eager PyTorch"])
    table = Table(
        title=f"{name} {len(X)} x {X.shape[1]}, k = {K}, batch {BATCH}, {options.threads} threads, "
        f"torch {torch.__version__}, {platform.machine()}"
    )
    for column in ("loop", "ms per step (median)", "fastest round", "ratio"):
        table.add_column(column, justify="left" if column == "loop" else "right")
    for loop, found in times.items():
        middle = statistics.median(found)
        table.add_row(
            loop, f"{middle * 1e3:.3f}", f"{min(found) * 1e3:.3f}", f"{middle / base:.2f}"
        )
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
