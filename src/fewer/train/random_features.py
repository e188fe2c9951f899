"""The closed form for decoders that are not linear: random features instead of a trained network.

At every step a fresh random layer stands in for the network: Phi = relu(u R + c) of the k selected
values u, beside u itself. Ridge regression from Phi to the targets is solved exactly on one half
of a batch, the loss is taken on the other half, and its gradient goes through the solution to the
selector. Targets are the leading principal components of the rows, which carry nearly all of the
squared error in a fraction of the columns.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fewer.data import Source, covariance
from fewer.data.batches import Batches
from fewer.nn import gumbel_noise, relaxed_choice
from fewer.nn.schedule import exponential
from fewer.train.adam import Adam
from fewer.train.closed_form import REPORT_EVERY, SelectorFit, finished, taken_and_barred
from fewer.train.device import seeded

__all__ = ["fit_random_features"]


def fit_random_features(
    source: Source,
    k: int,
    *,
    include: np.ndarray | None = None,
    allowed: np.ndarray | None = None,
    steps: int = 600,
    width: int = 256,
    batch: int = 1024,
    components: int = 128,
    learning_rate: float = 0.1,
    start_temperature: float = 3.0,
    end_temperature: float = 0.1,
    ridge: float = 1e-2,
    seed: int = 0,
    device: torch.device | str = "cpu",
    on_row: Callable[[dict[str, Any]], bool | None] | None = None,
) -> SelectorFit:
    """Train a selector against the best decoder on fresh random features.

    Parameters
    ----------
    source : Source
        Rows; missing values take their mean.
    k : int
        Features to choose, included ones among them.
    include : array of int, default=None
        Features that are on the panel in any case.
    allowed : array of bool (d), default=None
        Features that may be chosen.
    steps : int, default=600
        Of Adam on the logits.
    width : int, default=256
        Random features at each step.
    batch : int, default=1024
        Rows in each half of a step.
    components : int, default=128
        Principal components that are predicted.
    learning_rate, start_temperature, end_temperature : float, default=0.1, 3.0, 0.1
        Of Adam; the temperature falls exponentially.
    ridge : float, default=1e-2
        Penalty of the regression, on features of unit variance.
    seed : int, default=0
        Fixes the result on a CPU.
    device : torch.device, default="cpu"
        Where to work.
    on_row : callable, default=None
        Called with each row of the history; training ends where it returns True.

    Examples
    --------
    >>> import numpy as np
    >>> from fewer.data.source import array_source
    >>> rows = np.random.default_rng(0).normal(size=(300, 4)) * [1, 3, 2, 0.1]
    >>> found = fit_random_features(array_source(rows), k=2, steps=150, width=32, batch=100)
    >>> sorted(found.features[0].tolist())
    [1, 2]
    """
    device = torch.device(device)
    n, d = source.shape
    summary = covariance(source, device=device)
    variance = float(summary.matrix.diagonal().mean()) or 1.0
    rows = Batches(
        source,
        np.arange(n),
        mean=summary.mean.cpu(),
        center=summary.mean.cpu(),
        scale=variance**0.5,
        device=device,
    )
    axes = torch.linalg.eigh(summary.matrix)[1].flip(1)[:, :components].float().to(device)
    fixed, forbidden = taken_and_barred(d, include, allowed, device)
    half = min(batch, n // 2)
    temperature = exponential(start_temperature, end_temperature, steps)
    history: list[dict[str, Any]] = []
    with seeded(seed, device) as order:
        logits = 0.01 * torch.randn(k - len(fixed), d, device=device)
        logits.masked_fill_(forbidden, -torch.inf).requires_grad_()
        optimizer = Adam(([logits], learning_rate))
        drawn = rows.draws(2 * half, order)
        for step in range(steps if len(logits) else 0):
            T = temperature(step)
            M = relaxed_choice(logits, T, gumbel_noise(logits))
            x = next(drawn).x
            chosen = torch.cat([x[:, fixed], x @ M.T], dim=1)
            loss = _held_half_error(chosen, x @ axes, half, width, ridge)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if (step + 1) % REPORT_EVERY == 0:
                settled = torch.softmax(logits.detach(), dim=-1).amax(dim=-1)
                row = {
                    "step": step + 1,
                    "temperature": T,
                    "loss": float(loss.detach()) * variance / d,
                    "mean_max_probability": float(settled.sum() + len(fixed)) / k,
                    "distinct": len(logits.argmax(dim=-1).unique()) + len(fixed),
                }
                history.append(row)
                if on_row is not None and on_row(row):
                    break
    return finished(logits.detach()[None], fixed, history)


def _held_half_error(u: Tensor, y: Tensor, half: int, width: int, ridge: float) -> Tensor:
    """Squared error on the second half of ridge regression on random features of the first."""
    spread = u.detach().std(dim=0).clamp_min(1e-3)
    z = u / spread
    mix = torch.randn(z.shape[1], width, device=u.device) / z.shape[1] ** 0.5
    shift = torch.randn(width, device=u.device)
    phi = torch.cat([torch.relu(z @ mix + shift), z, torch.ones_like(z[:, :1])], dim=1)
    fit, check = phi[:half], phi[half:]
    gram = fit.T @ fit / half
    penalty = torch.full((len(gram),), ridge, device=u.device)
    penalty[width:] = ridge / 100  # the linear part may do as it likes
    weights = torch.linalg.solve(gram + torch.diag(penalty), fit.T @ y[:half] / half)
    return (check @ weights - y[half:]).square().sum(dim=1).mean()
