"""Decoders with hidden layers, trained the same way for every method."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from fewer.nn import build_decoder
from fewer.paper.case import Values
from fewer.train.device import seeded

__all__ = ["Recipe", "best_epochs", "standardised", "train_module", "train_network"]

ROWS = 4096  # held-out rows at once


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
    seen, wanted, middle = standardised(inputs, targets)
    net = train_module(seen(inputs), wanted(targets), hidden, recipe, seed)

    @torch.no_grad()
    def predict(rows: Values) -> Values:
        return net(seen(rows)).double().numpy() + middle

    return predict


def best_epochs(
    train: tuple[Tensor, Tensor],
    held: tuple[Tensor, Tensor],
    hidden: tuple[int, ...],
    recipe: Recipe,
    seed: int,
) -> int:
    """After how many epochs the error on held-out rows is lowest; 0 if training never helps.

    Inputs and targets are taken as they are, on the device where they lie.

    Examples
    --------
    >>> noise = torch.randn(80, 8, generator=torch.Generator().manual_seed(0))
    >>> train, held = noise[:40].split([3, 5], 1), noise[40:].split([3, 5], 1)
    >>> best_epochs(train, held, (32,), Recipe(epochs=30), 0) < 10
    True
    """
    errors = [_error(lambda x: 0.0, held)]
    train_module(*train, hidden, recipe, seed, lambda net: errors.append(_error(net, held)))
    return int(np.argmin(errors))


def train_module(
    x: Tensor,
    t: Tensor,
    hidden: tuple[int, ...],
    recipe: Recipe,
    seed: int,
    look: Callable[[nn.Module], None] | None = None,
) -> nn.Module:
    """Train on tensors, where they lie; ``look`` sees the network after each epoch.

    Examples
    --------
    >>> x = torch.linspace(-1, 1, 64)[:, None]
    >>> net = train_module(x, 2 * x, (), Recipe(epochs=300, rate=0.1), 0)
    >>> bool((net(x) - 2 * x).abs().max() < 0.01)
    True
    """
    with seeded(seed, x.device):
        net = build_decoder(hidden or "linear", x.shape[1], t.shape[1], dropout=recipe.dropout)
        net.to(x.device).train()
        adam = torch.optim.Adam(net.parameters(), lr=recipe.rate, fused=True)
        rate = torch.optim.lr_scheduler.ExponentialLR(adam, recipe.decay)
        for _ in range(recipe.epochs):
            for rows in torch.randperm(len(x)).to(x.device).split(recipe.batch):
                adam.zero_grad()
                nn.functional.mse_loss(net(x[rows]), t[rows]).backward()
                adam.step()
            rate.step()
            if look is not None:
                with torch.no_grad():
                    look(net.eval())
                net.train()
    return net.eval()


def _error(net: Callable[[Tensor], Tensor | float], held: tuple[Tensor, Tensor]) -> float:
    parts = zip(*(values.split(ROWS) for values in held), strict=True)
    return sum(float((t - net(x)).square().sum()) for x, t in parts) / held[1].numel()


def standardised(
    inputs: Values, targets: Values
) -> tuple[Callable[[Values], Tensor], Callable[[Values], Tensor], Values]:
    """How rows become inputs and targets of a network, and the mean of the targets.

    Examples
    --------
    >>> seen, wanted, mean = standardised(np.array([[1.0], [5.0]]), np.array([[2.0], [4.0]]))
    >>> seen(np.array([[5.0]])), wanted(np.array([[4.0]])), mean
    (tensor([[1.]]), tensor([[1.]]), array([3.]))
    """
    center, scale = inputs.mean(axis=0), inputs.std(axis=0)
    scale = np.where(scale > 0, scale, 1.0)
    middle = targets.mean(axis=0)
    return (
        lambda rows: torch.from_numpy((rows - center) / scale).float(),
        lambda rows: torch.from_numpy(rows - middle).float(),
        middle,
    )
