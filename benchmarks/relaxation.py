"""What a relaxation sees: planted factors that concrete selectors find without any swaps.

    python benchmarks/relaxation.py [--features 40] [--factors 4] [--rows 2000] [--seeds 3] \
        [--steps 1500] [--methods "soft;hard"] [--threads 2]

The columns are independent factors, and products, squares, absolute values and sines of them, which
are hardly correlated with the factors (`load("planted-products")`). As many columns are chosen as
there are factors; the table has how many factors are among them, per seed. All methods have the
same decoder, two hidden layers of 64, and the same temperatures, from 3 to 0.1.

- soft, hard: one draw of the selector per batch; a hard one is a single feature per node, with the
  gradient of the soft one (straight-through). "per row": a draw for each row, so that the decoder
  meets every panel.
- leave-one-out: eight hard panels per batch; the gradient of their probabilities is weighted by the
  error of each minus the mean of the others (score function).
- solved: the last layer is ridge regression on one half of a batch, the loss is on the other half,
  and the gradient flows through the solution; the layers before it are trained.
- random features: `fewer.train.fit_random_features`, in which these are random instead, and new at
  every step.
- swaps: `fewer.ConcreteAutoencoder` by gradient, then network swaps.
"""

import argparse
import time
import warnings

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

import fewer
from fewer.data.source import array_source
from fewer.datasets import load
from fewer.errors import FewerWarning
from fewer.train import fit_random_features

WIDTHS = (64, 64)
HOT, COLD = 3.0, 0.1
BATCH, PANELS = 256, 8
RATE, DECODER_RATE = 0.05, 1e-3
RIDGE = 1e-2
SCORE_WEIGHT = 10.0  # of the score function: errors of panels are close to each other
TRAINED = (
    "soft",
    "hard",
    "soft per row",
    "hard per row",
    "leave-one-out",
    "soft, solved",
    "hard, solved",
)
METHODS = (*TRAINED, "random features", "swaps")


def selected(x: Tensor, logits: Tensor, T: float, *, hard: bool, per_row: bool) -> Tensor:
    """What the nodes pass on: rows x k."""
    shape = (len(x), *logits.shape) if per_row else logits.shape
    noise = -torch.log(-torch.log(torch.rand(shape).clamp(1e-9, 1 - 1e-7)))
    soft = torch.softmax((logits + noise) / T, dim=-1)
    if hard:
        choice = nn.functional.one_hot(soft.argmax(-1), logits.shape[1]).float()
        soft = choice + soft - soft.detach()
    return torch.einsum("rkd,rd->rk", soft, x) if per_row else x @ soft.T


def solved_errors(body: nn.Module, u: Tensor, x: Tensor) -> Tensor:
    """Errors on the second half of the rows with a last layer that is solved on the first."""
    inputs = torch.cat([body(u), u, torch.ones(len(u), 1)], dim=1)
    half = len(u) // 2
    fit, rest = inputs[:half], inputs[half:]
    gram = fit.T @ fit / half + RIDGE * torch.eye(fit.shape[1])
    weights = torch.linalg.solve(gram, fit.T @ x[:half] / half)
    return (rest @ weights - x[half:]).square().mean(1)


def panel_errors(decoder: nn.Module, x: Tensor, logits: Tensor) -> tuple[Tensor, Tensor]:
    """Errors of rows that are shared between hard panels, and the loss of their probabilities."""
    noise = -torch.log(-torch.log(torch.rand(PANELS, *logits.shape).clamp(1e-9, 1 - 1e-7)))
    panels = (logits + noise).argmax(-1)  # panels x k
    own = torch.arange(len(x)) % PANELS
    errors = (decoder(torch.gather(x, 1, panels[own])) - x).square().mean(1)
    each = torch.stack([errors.detach()[own == at].mean() for at in range(PANELS)])
    others = (each.sum() - each) / (PANELS - 1)
    chance = torch.log_softmax(logits, -1).expand(PANELS, -1, -1)
    chance = chance.gather(2, panels[..., None])[..., 0].sum(1)
    return errors, SCORE_WEIGHT * ((each - others) * chance).mean()


def trained(X: Tensor, k: int, method: str, seed: int, steps: int) -> np.ndarray:
    """Columns that a selector prefers after joint training with a decoder."""
    d, solves = X.shape[1], "solved" in method
    options = {"hard": "hard" in method, "per_row": "per row" in method}
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        logits = (0.01 * torch.randn(k, d)).requires_grad_()
        parts: list[nn.Module] = []
        for before, after in zip((k, *WIDTHS[:-1]), WIDTHS, strict=True):
            parts += [nn.Linear(before, after), nn.LeakyReLU()]
        body, last = nn.Sequential(*parts), nn.Linear(WIDTHS[-1], d)
        decoder = nn.Sequential(body, last)
        rates = [{"params": [logits], "lr": RATE}, {"params": decoder.parameters()}]
        optimizer = torch.optim.Adam(rates, lr=DECODER_RATE)
        for step in range(steps):
            x = X[torch.randint(len(X), (2 * BATCH if solves else BATCH,))]
            loss = torch.zeros(())
            if method == "leave-one-out":
                errors, loss = panel_errors(decoder, x, logits)
            else:
                u = selected(x, logits, HOT * (COLD / HOT) ** (step / steps), **options)
                errors = solved_errors(body, u, x) if solves else (decoder(u) - x).square().mean(1)
            optimizer.zero_grad()
            (errors.mean() + loss).backward()
            optimizer.step()
    return np.unique(logits.detach().argmax(1).numpy())


def chosen(X: np.ndarray, k: int, method: str, seed: int, steps: int) -> np.ndarray:
    if method in TRAINED:
        return trained(torch.from_numpy(X).float(), k, method, seed, steps)
    if method == "random features":
        return fit_random_features(array_source(X), k, seed=seed).features[0]
    options = {"decoder": WIDTHS, "random_state": seed, "device": "cpu"}
    return fewer.ConcreteAutoencoder(k, **options).fit(X).columns_


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--features", type=int, default=40)
    parser.add_argument("--factors", type=int, default=4)
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--methods", default=";".join(METHODS), help="separated by semicolons")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    warnings.simplefilter("ignore", FewerWarning)
    k = options.factors
    table = Table(title=f"Factors found, of {k} among {options.features} columns")
    for column in ("selector", *(f"seed {seed}" for seed in range(options.seeds)), "CPU s a fit"):
        table.add_column(column, justify="left" if column == "selector" else "right")
    sets = [
        load("planted-products", rows=options.rows, features=options.features, factors=k, seed=seed)
        for seed in range(options.seeds)
    ]
    for method in options.methods.split(";"):
        began = time.process_time()
        found = [
            int(data.planted[chosen(data.X, k, method, seed, options.steps)].sum())
            for seed, data in enumerate(sets)
        ]
        seconds = (time.process_time() - began) / len(sets)
        table.add_row(method, *map(str, found), f"{seconds:.1f}")
        print(method, found, f"{seconds:.1f} s", flush=True)
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
