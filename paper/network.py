"""Decoders with hidden layers, trained the same way for every method.

`train_on_panel` and `train_on_panels` train as `fewer` does; the others are plain loops, as in the
paper.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fewer.data import moments
from fewer.data import open as open_rows
from fewer.nn import build_decoder, make_loss
from fewer.train import TrainingConfig, prepare, train_decoders
from paper.case import Columns, Values

__all__ = [
    "Recipe",
    "best_epochs",
    "standardised",
    "train_module",
    "train_network",
    "train_on_panel",
    "train_on_panels",
]

ROWS = 4096  # held-out rows at once


@dataclass(frozen=True)
class Recipe:
    """How a network is trained: Adam on the squared error."""

    epochs: int = 200
    rate: float = 1e-3
    decay: float = 1.0  # of the rate, per epoch
    batch: int = 256
    dropout: float = 0.0


def train_network(
    inputs: Values, targets: Values, hidden: tuple[int, ...], recipe: Recipe, seed: int
) -> Callable[[Values], Values]:
    """Train a network from inputs to targets and return its predictions as a function.

    Inputs are standardised by the training rows and targets centred, inside.
    """
    seen, wanted, middle = standardised(inputs, targets)
    net = train_module(seen(inputs), wanted(targets), hidden, recipe, seed)

    @torch.no_grad()
    def predict(rows: Values) -> Values:
        return net(seen(rows)).double().numpy() + middle

    return predict


def train_on_panel(
    rows: Values,
    columns: Columns,
    hidden: tuple[int, ...],
    seed: int,
    groups: NDArray[np.generic] | None = None,
) -> Callable[[Values], Values]:
    """Train a network from columns of rows to whole rows; a function of whole rows.

    Rows of one group, such as a mouse, are held out together where training has to stop.
    """
    return train_on_panels(rows, [columns], hidden, seed, groups=groups)[0]


def train_on_panels(
    rows: Values,
    panels: Sequence[Columns],
    hidden: tuple[int, ...],
    seed: int,
    targets: Values | None = None,
    groups: NDArray[np.generic] | None = None,
) -> list[Callable[[Values], Values]]:
    """As `train_on_panel`, for several panels of one size at once, and to targets if given."""
    source = open_rows(rows)
    config = TrainingConfig(k=len(panels[0]), decoder=hidden)
    wanted = None if targets is None else torch.from_numpy(targets)
    out = None if wanted is None else wanted.shape[1]
    data = prepare(source, moments(source), config, make_loss("mse"), seed, wanted, out, groups)
    decoders = train_decoders(data, panels, seed, groups=groups)

    @torch.no_grad()
    def predict(decoder: nn.Module, columns: Columns, new: Values) -> Values:
        return decoder(torch.from_numpy(new[:, columns])).numpy()

    return [
        partial(predict, decoder, columns)
        for decoder, columns in zip(decoders, panels, strict=True)
    ]


def best_epochs(
    train: tuple[Tensor, Tensor],
    held: tuple[Tensor, Tensor],
    hidden: tuple[int, ...],
    recipe: Recipe,
    seed: int,
) -> int:
    """The epoch at which the error on held-out rows is lowest; 0 if training never helps.

    Inputs and targets are used as they are, on their own device.
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
    """Train on tensors, on their own device; ``look`` sees the network after each epoch."""
    devices = [x.device] if x.device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):  # the caller's random state stays as it was
        torch.manual_seed(seed)
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
    """Functions that turn rows into inputs and targets of a network; the mean of the targets."""
    center, scale = inputs.mean(axis=0), inputs.std(axis=0)
    scale = np.where(scale > 0, scale, 1.0)
    middle = targets.mean(axis=0)
    return (
        lambda rows: torch.from_numpy((rows - center) / scale).float(),
        lambda rows: torch.from_numpy(rows - middle).float(),
        middle,
    )
