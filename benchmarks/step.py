"""Time of a training step: fewer's loops against a plain eager PyTorch loop of the same model.

    python benchmarks/step.py [--threads 1,2] [--epochs 4] [--rounds 15]

MNIST-sized rows (the real ones where FEWER_DATA is set), k = 50, linear decoder, batch 256. All
loops do the same work for every step: shuffle, take rows, draw one concrete sample, decode, squared
error, backward, Adam with two learning rates. "plain step" is fewer's fallback
(`ConcreteNetwork.backward` in `train_epoch`), "reused memory" what it uses on a CPU. Rounds
alternate; the ratio is that of the CPU times, which other work on the machine disturbs least. The
last row is the time of the two matrix products that no such step can do without, x [M; W']' and
[u g]' x (2k x d with b rows each), measured in the same rounds.
"""

import argparse
import os
import platform
import statistics
import time
from collections.abc import Callable
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
from fewer.train.epochs import epochs_on_cpu
from fewer.train.network import train_epoch
from fewer.train.optimize import Adam

K, BATCH = 50, 256


def rows() -> tuple[np.ndarray, str]:
    folder = os.environ.get("FEWER_DATA")
    if folder:
        with np.load(Path(folder) / "mnist.npz", allow_pickle=False) as stored:
            return stored["X"][stored["is_test"]][:6000].astype(np.float32) / 255, "MNIST"
    return np.random.default_rng(0).random((6000, 784), dtype=np.float32), "random numbers"


def eager(X: torch.Tensor, epochs: int) -> Callable[[], None]:
    """What one would write in an afternoon."""
    torch.manual_seed(0)
    n, d = X.shape
    logits = nn.Parameter(torch.randn(K, d) * 0.01)
    decoder = nn.Linear(K, d)
    optimizer = torch.optim.Adam(
        [{"params": [logits], "lr": 0.1}, {"params": decoder.parameters(), "lr": 1e-2}]
    )
    steps = epochs * -(-n // BATCH)

    def run() -> None:
        step = 0
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

    return run


def ours(X: torch.Tensor, epochs: int, *, reused: bool) -> Callable[[], None]:
    torch.manual_seed(0)
    n, d = X.shape
    batches = Batches(array_source(X.numpy()), np.arange(n), mean=torch.zeros(d), has_missing=False)
    selector = ConcreteSelector(d, K)
    network = ConcreteNetwork(selector, nn.Linear(K, d))
    optimizer = Adam((selector.parameters(), 0.1), (network.decoder.parameters(), 1e-2))
    temperature = exponential(3.0, 0.1, epochs * -(-n // BATCH))
    generator = torch.Generator().manual_seed(0)
    loss = make_loss("mse")
    clock = iter(range(epochs * -(-n // BATCH)))
    fast = epochs_on_cpu(network, batches, optimizer, loss, BATCH)
    assert fast is not None

    def backward(batch: Batch) -> torch.Tensor:
        selector.temperature = temperature(next(clock))
        return network.backward(batch.x, batch.target, batch.observed, loss)

    def run() -> None:
        for _ in range(epochs):
            if reused:
                order = list(batches.shuffled_positions(BATCH, generator))
                fast.epoch(order, [temperature(next(clock)) for _ in order])
            else:
                train_epoch(backward, batches, optimizer, BATCH, generator)

    return run


def products(X: torch.Tensor, epochs: int) -> Callable[[], None]:
    """The two products alone."""
    d = X.shape[1]
    x, stacked = X[:BATCH].clone(), torch.rand(2 * K, d)
    both, sides = torch.empty(2 * K, BATCH), torch.empty(2 * K, d)

    def run() -> None:
        for _ in range(epochs * -(-len(X) // BATCH)):
            torch.mm(stacked, x.T, out=both)
            torch.mm(both, x, out=sides)

    return run


def timed(prepared: Callable[[], None], steps: int) -> tuple[float, float]:
    """Seconds and CPU seconds of a step."""
    wall, cpu = time.perf_counter(), time.process_time()
    prepared()
    return (time.perf_counter() - wall) / steps, (time.process_time() - cpu) / steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    array, name = rows()
    X = torch.from_numpy(array)
    loops: dict[str, Callable[[torch.Tensor, int], Callable[[], None]]] = {
        "plain eager PyTorch": eager,
        "fewer, plain step": lambda X, epochs: ours(X, epochs, reused=False),
        "fewer, reused memory": lambda X, epochs: ours(X, epochs, reused=True),
        "two products alone": products,
    }
    steps = options.epochs * -(-len(X) // BATCH)
    table = Table(
        title=f"{name} {len(X)} x {X.shape[1]}, k = {K}, batch {BATCH}, "
        f"torch {torch.__version__}, {platform.machine()}"
    )
    for column in ("threads", "loop", "ms per step", "CPU ms per step", "fastest", "ratio"):
        table.add_column(column, justify="left" if column == "loop" else "right")
    for threads in map(int, options.threads.split(",")):
        torch.set_num_threads(threads)
        found: dict[str, list[tuple[float, float]]] = {loop: [] for loop in loops}
        for _ in range(options.rounds):
            for loop, make in loops.items():
                found[loop].append(timed(make(X, options.epochs), steps))
        base = statistics.median(cpu for _, cpu in found["plain eager PyTorch"])
        for loop, times in found.items():
            wall, cpu = (statistics.median(part) * 1e3 for part in zip(*times, strict=True))
            fastest = min(part for _, part in times) * 1e3
            cells = [f"{wall:.3f}", f"{cpu:.3f}", f"{fastest:.3f}", f"{cpu / base / 1e3:.2f}"]
            table.add_row(str(threads), loop, *cells)
        table.add_section()
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
