"""Fewer on one GPU at the size of the paper's gene expression set, beside plain PyTorch.

    python benchmarks/geo.py [--landmarks] [--rows 88807] [--features 10463] [--k 943]

Synthetic GEO: 600 normal factors, the i-th with weight i^-0.6, times normal loadings give z; a gene
is tanh(0.15 z) plus normal noise whose standard deviation, 0.25 U(0, 1), is drawn once per gene;
standardised by the training rows (`fewer.datasets` has the same as "geo-synthetic"). Nothing here
is a claim about real expression data: it fixes the sizes and a spectrum that decays like theirs.

Three tables: a training step of the linear concrete autoencoder, choosing k genes, and, with
--landmarks, the paper's experiment: k from 750 to 943, decoders with 0, 1 and 2 hidden layers of
9000. Errors are mean squared residuals on rows that nothing was fitted to.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from fewer.cuda.linear import CompiledEpochs
from fewer.data import covariance, moments
from fewer.data.source import array_source
from fewer.nn import ConcreteSelector, make_loss
from fewer.search import search, swap
from fewer.search.objective import solve_normal
from fewer.train.closed_form import fit_closed_form
from fewer.train.config import TrainingConfig
from fewer.train.device import products, seeded
from fewer.train.network import fit_decoder
from fewer.train.optimize import Adam
from fewer.train.training_data import TrainingData, prepare

RANK, DECAY, SQUASH, NOISE = 600, 0.6, 0.15, 0.25
TEST_ROWS = 12_263
CLOSED_FORM = {
    "steps": 600,
    "learning_rate": 0.3,
    "start_temperature": 1.0,
    "end_temperature": 0.1,
    "noise": 0.3,
}
NETWORKS = {"batch_size": 512, "refit_epochs": 12}
LANDMARKS = (750, 800, 850, 900, 943)
CUDA = torch.device("cuda")


def synthetic_geo(rows: int, test_rows: int, d: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Training and test rows, on the GPU."""
    draw = torch.Generator(CUDA).manual_seed(seed)
    weights = torch.arange(1, RANK + 1, device=CUDA).float() ** -DECAY
    loadings = torch.randn(RANK, d, generator=draw, device=CUDA) * weights[:, None]
    spread = NOISE * torch.rand(d, generator=draw, device=CUDA)
    X = torch.empty(rows + test_rows, d, device=CUDA)
    for part in X.split(8192):
        z = torch.randn(len(part), RANK, generator=draw, device=CUDA) @ loadings
        part.copy_(torch.tanh(SQUASH * z))
        part.add_(spread * torch.randn(part.shape, generator=draw, device=CUDA))
    mean = X[:rows].mean(0)
    X -= mean
    deviation = X[:rows].square().mean(0).sqrt()
    X /= deviation
    return X[:rows], X[rows:]


# -- a training step -------------------------------------------------------------------------


def plain_step(X: Tensor, k: int, batch: int) -> Callable[[], None]:
    """What one would write: eager, tf32, torch's fused Adam."""
    n, d = X.shape
    torch.manual_seed(0)
    logits = nn.Parameter(torch.randn(k, d, device=CUDA) * 0.01)
    decoder = nn.Linear(k, d).to(CUDA)
    groups = [{"params": [logits], "lr": 0.1}, {"params": decoder.parameters(), "lr": 1e-2}]
    optimizer = torch.optim.Adam(groups, fused=True)

    def step() -> None:
        x = X[torch.randint(n, (batch,), device=CUDA)]
        gumbel = -torch.log(-torch.log(torch.rand(k, d, device=CUDA).clamp(1e-20, 1)) + 1e-20)
        choice = F.softmax((logits + gumbel) / 0.5, dim=-1)
        loss = F.mse_loss(decoder(x @ choice.T), x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def compiled_epochs(X: Tensor, k: int, batch: int, precision: str) -> CompiledEpochs:
    """Ours, as `fewer` trains linear concrete autoencoders on CUDA."""
    torch.manual_seed(0)
    selector = ConcreteSelector(X.shape[1], k).to(CUDA)
    decoder = nn.Linear(k, X.shape[1]).to(CUDA)
    optimizer = Adam((selector.parameters(), 0.1), (decoder.parameters(), 1e-2))
    return CompiledEpochs(selector, decoder, X, optimizer, batch_size=batch, precision=precision)


def milliseconds(work: Callable[[], object], repeats: int = 5, inner: int = 1) -> float:
    """Median time of ``work`` on the GPU, divided by how many steps it makes."""
    work()
    times = []
    for _ in range(repeats):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        work()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / inner)
    return statistics.median(times)


def step_table(X: Tensor, k: int) -> Table:
    """Plain steps against compiled ones, in whole epochs: rows taken, noise, products, update."""
    table = Table(title=f"a training step, {X.shape[1]:,} features, k = {k}, linear decoder")
    table.add_column("step")
    for batch in (256, 2048):
        table.add_column(f"batch {batch}: ms", justify="right")
        table.add_column("peak GB", justify="right")
    order = torch.randperm(len(X))

    def row(name: str, work: Callable[[int], Callable[[], object]]) -> None:
        cells = []
        for batch in (256, 2048):
            torch.cuda.reset_peak_memory_stats()
            held = torch.cuda.memory_allocated()
            steps = len(X) // batch
            cells.append(f"{milliseconds(work(batch), inner=steps):.3f}")
            cells.append(f"{(torch.cuda.max_memory_allocated() - held) / 1e9:.2f}")
        table.add_row(name, *cells)

    def plain(batch: int) -> Callable[[], object]:
        step = plain_step(X, k, batch)
        return lambda: [step() for _ in range(len(X) // batch)]

    def ours(precision: str) -> Callable[[int], Callable[[], object]]:
        def work(batch: int) -> Callable[[], object]:
            engine = compiled_epochs(X, k, batch, precision)
            parts = list(order.split(batch))[: len(X) // batch]
            return lambda: engine.epoch(parts, [0.5] * len(parts))

        return work

    with products("tf32"):
        row("plain eager PyTorch, tf32, fused Adam", plain)
    for precision in ("float32", "tf32", "bfloat16"):
        row(f"fewer, {precision}", ours(precision))
    return table


# -- choosing genes --------------------------------------------------------------------------


def plain_covariance(X: np.ndarray) -> Tensor:
    x = torch.from_numpy(X).to(CUDA)
    x = x - x.mean(0)
    return x.T @ x / len(x)


def plain_search(C: Tensor, k: int) -> np.ndarray:
    """Greedy by deflating the whole matrix; then the best swap, every gain from scratch."""
    E, chosen = C.clone(), []
    for _ in range(k):
        gain = E.square().sum(0) / E.diagonal().clamp_min(1e-6)
        gain[chosen] = -1
        j = int(gain.argmax())
        chosen.append(j)
        column = E[:, j] / E[j, j].sqrt()
        E -= torch.outer(column, column)
    S = torch.tensor(chosen, device=CUDA)
    while True:
        P = torch.linalg.inv(C[S][:, S].double()).float()
        V = P @ C[S]
        E = C - C[S].T @ V
        weight = V / P.diagonal()[:, None]
        top = (E * E).sum(0) + 2 * weight * (V @ E) + weight**2 * (V * V).sum(1)[:, None]
        gain = top / (E.diagonal() + weight * V).clamp_min(1e-6)
        own = gain.gather(1, S[:, None])
        gain[:, S] = -torch.inf
        best = (gain - own).flatten().max(0)
        if best.values < 1e-5 * E.trace():  # float32 cannot tell smaller gains from rounding
            return np.sort(S.cpu().numpy())
        i, j = divmod(int(best.indices), len(C))
        S[i] = j


def plain_closed_form(C: Tensor, k: int, steps: int) -> None:
    """The same loss by autograd: float32 products, solved in float64."""
    d = len(C)
    logits = nn.Parameter(0.01 * torch.randn(k, d, device=CUDA))
    optimizer = torch.optim.Adam([logits], lr=CLOSED_FORM["learning_rate"], fused=True)
    eye = torch.eye(k, device=CUDA, dtype=torch.float64)
    for _ in range(steps):
        gumbel = -torch.log(-torch.log(torch.rand(k, d, device=CUDA).clamp(1e-20, 1)) + 1e-20)
        M = F.softmax((logits + 0.3 * gumbel) / 0.5, dim=-1)
        MC = M @ C
        A, Q = (MC @ M.T).double(), (MC @ MC.T).double()
        loss = C.trace() - torch.linalg.solve(A + 1e-4 * eye, Q).trace()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def linear_decoder(C: Tensor, columns: np.ndarray) -> Tensor:
    S = torch.as_tensor(columns, device=C.device)
    return solve_normal(C[S][:, S].double(), C[S].double()).float()


def test_error(C: Tensor, columns: np.ndarray, test: Tensor) -> float:
    """Mean squared residual of least squares on the training covariance, rows centred by it."""
    weights = linear_decoder(C, columns)
    S = torch.as_tensor(columns, device=C.device)
    return float(
        sum(((part[:, S] @ weights - part).double() ** 2).sum() for part in test.split(4096))
        / test.numel()
    )


class Clock:
    """Seconds of GPU work, and the most memory it took."""

    def __enter__(self) -> "Clock":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        self.held = torch.cuda.memory_allocated()
        self.start = time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        torch.cuda.synchronize()
        self.seconds = time.perf_counter() - self.start
        self.peak = (torch.cuda.max_memory_allocated() - self.held) / 1e9

    def cells(self) -> tuple[str, str]:
        return f"{self.seconds:.2f}", f"{self.peak:.1f}"


def choice_table(X: np.ndarray, test: Tensor, k: int, *, plain: bool = True) -> Table:
    """Covariance from rows in the computer's memory, then the ways to choose from it."""
    table = Table(title=f"choosing {k} of {X.shape[1]:,} genes from {len(X):,} rows")
    table.add_column("work")
    for column in ("s", "peak GB", "s in all", "test error"):
        table.add_column(column, justify="right")
    source = array_source(X)
    torch.linalg.inv(torch.eye(64, device=CUDA))  # loads cuSOLVER

    def add(name: str, clock: Clock, before: float = 0.0, error: float | None = None) -> None:
        shown = "" if error is None else f"{error:.5f}"
        table.add_row(name, *clock.cells(), f"{before + clock.seconds:.2f}", shown)

    if plain:
        with Clock() as covering:
            C = plain_covariance(X)
        add("plain covariance, float32", covering)
        with Clock() as clock:
            panel = plain_search(C, k)
        add("plain greedy and swaps", clock, covering.seconds, test_error(C, panel, test))
        plain_closed_form(C, k, 3)
        with Clock() as clock:
            plain_closed_form(C, k, 30)
        clock.seconds *= CLOSED_FORM["steps"] / 30
        add("plain closed form (30 steps, times 20)", clock, covering.seconds)
        del C
    with Clock() as covering:
        C = covariance(source, device=CUDA).matrix
    add("fewer: covariance, float64", covering)
    with Clock() as clock:
        found = search(C, k, stall=0)
    add("fewer: greedy and swaps", clock, covering.seconds, test_error(C, found.indices, test))
    with Clock() as training:
        fit = fit_closed_form(C, k, **CLOSED_FORM)
    chosen = np.sort(fit.features[0])
    add("fewer: closed form", training, covering.seconds, test_error(C, chosen, test))
    with Clock() as clock:
        swapped = swap(C, chosen)
    error = test_error(C, swapped.indices, test)
    add("fewer: closed form, then swaps", clock, covering.seconds + training.seconds, error)
    return table


# -- the landmark experiment -----------------------------------------------------------------


def landmark_table(X: np.ndarray, test: Tensor, sizes: tuple[int, ...], width: int) -> Table:
    """Genes by greedy and swaps; decoders of three depths trained on them; test errors."""
    table = Table(title=f"landmarks: test error, hidden layers of {width}")
    for column in ("k", "genes: s", "linear", "s", "1 layer", "s", "2 layers", "s"):
        table.add_column(column, justify="right")
    source = array_source(X)
    C = covariance(source, device=CUDA).matrix
    data = prepare(
        source,
        moments(source, CUDA),
        TrainingConfig(k=max(sizes), decoder=(width,), device="cuda", **NETWORKS),
        make_loss("mse"),
        seed=0,
    )
    for k in sizes:
        with Clock() as choosing:
            panel = search(C, k, stall=0).indices
        with Clock() as linear:
            error = test_error(C, panel, test)
        cells = [str(k), f"{choosing.seconds:.1f}", f"{error:.5f}", f"{linear.seconds:.1f}"]
        for decoder in ((width,), (width, width)):
            with Clock() as clock:
                error = network_error(data, panel, decoder, test)
            cells += [f"{error:.5f}", f"{clock.seconds:.1f}"]
        table.add_row(*cells)
    return table


def network_error(
    data: TrainingData, panel: np.ndarray, decoder: tuple[int, ...], test: Tensor
) -> float:
    """Test error of a network trained on the chosen genes, 10% of the rows held out to stop."""
    data = replace(data, config=replace(data.config, decoder=decoder))
    with products(data.precision), seeded(0, CUDA) as generator:
        network, _ = fit_decoder(data, panel, generator)
    network = network.to(CUDA).float().eval()
    S = torch.as_tensor(panel, device=CUDA)
    wrong = 0.0
    with torch.inference_mode(), products("tf32"):
        for part in test.split(2048):
            wrong += float((network(part[:, S]) - part).double().square().sum())
    return wrong / test.numel()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=88_807)
    parser.add_argument("--features", type=int, default=10_463)
    parser.add_argument("--k", type=int, default=943)
    parser.add_argument("--landmarks", action="store_true", help="the whole experiment (minutes)")
    parser.add_argument("--sizes", type=int, nargs="+", default=LANDMARKS, help="k of landmarks")
    parser.add_argument("--width", type=int, default=9000, help="of hidden layers")
    parser.add_argument("--only", choices=("steps", "choice", "landmarks"))
    options = parser.parse_args()
    if not torch.cuda.is_available():
        parser.exit(1, "this benchmark needs a CUDA device\n")
    console = Console(width=110)
    began = time.perf_counter()
    X, test = synthetic_geo(options.rows, TEST_ROWS, options.features)
    name = torch.cuda.get_device_name()
    console.print(
        f"{name}, torch {torch.__version__}; rows made in {time.perf_counter() - began:.1f} s"
    )
    if options.only in (None, "steps"):
        console.print(step_table(X, options.k))
    host = X.cpu().numpy()
    del X
    if options.only in (None, "choice"):
        console.print(choice_table(host, test, options.k))
    if options.landmarks or options.only == "landmarks":
        with Clock() as clock:
            table = landmark_table(host, test, tuple(options.sizes), options.width)
        console.print(table)
        console.print(f"the whole experiment: {clock.seconds:.0f} s, peak {clock.peak:.0f} GB")


if __name__ == "__main__":
    main()
