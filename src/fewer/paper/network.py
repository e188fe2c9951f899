"""Decoders with hidden layers, trained the same way for every method."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from fewer.nn import build_decoder
from fewer.paper.case import Values

__all__ = ["Recipe", "best_epochs", "train_network"]


@dataclass(frozen=True)
class Recipe:
    """How a network is trained: Adam, squared error, nothing else."""

    epochs: int = 200
    rate: float = 1e-3
    decay: float = 1.0  # of the rate, each epoch
    batch: int = 256
    dropout: float = 0.0


def train_network(
    inputs: Values, targets: Values, hidden: tuple[int, ...], recipe: Recipe, seed: int
) -> Callable[[Values], Values]:
    """Train a network from inputs to targets and return its predictions as a function.

    Inputs are standardised by the training rows and targets centred, inside.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> x = rng.normal(size=(400, 2))
    >>> predict = train_network(x, x[:, :1] * x[:, 1:], (32,), Recipe(epochs=60, rate=1e-2), 0)
    >>> bool(np.mean((predict(x)[:, 0] - x[:, 0] * x[:, 1]) ** 2) < 0.1)
    True
    """
    seen, wanted, middle = _standardised(inputs, targets)
    x, t = seen(inputs), wanted(targets)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net = _trained(x, t, hidden, recipe)

    @torch.no_grad()
    def predict(rows: Values) -> Values:
        return net(seen(rows)).double().numpy() + middle

    return predict


def best_epochs(
    train: tuple[Values, Values],
    held: tuple[Values, Values],
    hidden: tuple[int, ...],
    recipe: Recipe,
    seed: int,
) -> int:
    """After how many epochs the error on held-out rows is lowest; 0 if training never helps.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> noise = rng.normal(size=(40, 3)), rng.normal(size=(40, 5))
    >>> best_epochs(noise, (-noise[0], noise[1]), (32,), Recipe(epochs=30), 0) < 10
    True
    """
    seen, wanted, _ = _standardised(*train)
    (x, t), (new, truth) = ((seen(a), wanted(b)) for a, b in (train, held))
    errors = [float(truth.square().mean())]

    def look(net: nn.Module) -> None:
        errors.append(float(nn.functional.mse_loss(net(new), truth)))

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        _trained(x, t, hidden, recipe, look)
    return int(np.argmin(errors))


def _standardised(
    inputs: Values, targets: Values
) -> tuple[Callable[[Values], Tensor], Callable[[Values], Tensor], Values]:
    """How rows become inputs and targets of a network, and the mean of the targets."""
    center, scale = inputs.mean(axis=0), inputs.std(axis=0)
    scale = np.where(scale > 0, scale, 1.0)
    middle = targets.mean(axis=0)
    return (
        lambda rows: torch.from_numpy((rows - center) / scale).float(),
        lambda rows: torch.from_numpy(rows - middle).float(),
        middle,
    )


def _trained(
    x: Tensor,
    t: Tensor,
    hidden: tuple[int, ...],
    recipe: Recipe,
    look: Callable[[nn.Module], None] | None = None,
) -> nn.Module:
    net = build_decoder(hidden or "linear", x.shape[1], t.shape[1], dropout=recipe.dropout)
    net.train()
    adam = torch.optim.Adam(net.parameters(), lr=recipe.rate, fused=True)
    rate = torch.optim.lr_scheduler.ExponentialLR(adam, recipe.decay)
    for _ in range(recipe.epochs):
        for rows in torch.randperm(len(x)).split(recipe.batch):
            adam.zero_grad()
            nn.functional.mse_loss(net(x[rows]), t[rows]).backward()
            adam.step()
        rate.step()
        if look is not None:
            with torch.no_grad():
                look(net.eval())
            net.train()
    return net.eval()
