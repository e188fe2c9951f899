"""Swaps of features after the selector has been trained, and a comparison of the panels.

A selector sees mixtures of features until the temperature is low, so its choice can usually be
improved by exchanging single features, judged as they would be measured:

- a linear decoder with squared error: all exchanges on the covariance, exactly, and a search from
  greedy selection besides;
- a network with squared error: exchanges judged by its surrogate (`network_swaps`), from the
  selector's choice and from the linear search's;
- targets: the same, with what is predicted in place of the rows; classes as indicators.

Except for linear decoders of the rows, this is only a proposal: a decoder is trained for either
panel, and the one with the lower loss on held-out rows is kept. The swaps always minimise a squared
error, whatever the loss is; with other losses they are therefore kept only where held-out rows say
so.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fewer.constraints import Constraints
from fewer.data import Log1pSource, RowView, Source, read_blocks
from fewer.data.factored import FactoredCovariance, Matrix
from fewer.data.moments import Summary, is_wide, summarize
from fewer.distributed import on_rank0
from fewer.nn import MeasuredDecoder
from fewer.search import greedy, search, swap
from fewer.search.eigen import without_chance
from fewer.train.device import float64_device
from fewer.train.linear_choice import Trust
from fewer.train.referee import Referee, clearly_best, trained_swaps
from fewer.train.training_data import TrainingData, weighted_mean

__all__ = [
    "centred_classes",
    "has_covariance",
    "held_out_loss",
    "joint_covariance",
    "refined",
    "searched",
    "target_products",
]

# features up to which the covariance and its copies, 4 x 8 d^2 bytes, fit: 3 GB, on a GPU 13 GB
MOST_FOR_COVARIANCE, MOST_ON_CUDA = 10_000, 20_000
FEWEST_FOR_SURROGATE = 50  # rows: with fewer, half of them say nothing
PROGRESS = 1e-4  # minimum relative improvement: closer panels are the same but for chance
CHANCE = 2.0  # standard errors of a covariance with the target that are due to chance
FEATURES_WEIGHT = 0.01  # of all features together, relative to the target: they only break ties

Columns = NDArray[np.int64]
Refit = Callable[[Columns, bool], tuple[MeasuredDecoder, list[dict[str, Any]]]]


def has_covariance(source: Source, device: torch.device) -> bool:
    """Whether the covariance of the features fits into memory, whole or as few rows."""
    most = MOST_ON_CUDA if device.type == "cuda" else MOST_FOR_COVARIANCE
    return source.shape[1] <= most or is_wide(source)


def refined(
    data: TrainingData,
    start: Columns,
    constraints: Constraints,
    seed: int,
    refit: Refit,
    trust: Trust = "all",
) -> tuple[Columns, MeasuredDecoder, list[dict[str, Any]]]:
    """The better of a panel and of what swaps make of it, with its decoder and their history.

    ``refit`` fits a decoder to columns, if its second argument is True without the held-out rows
    where that is a matter of choice. ``trust`` is for linear decoders of the rows (see `searched`).
    """
    of_rows = data.targets is None and data.loss.name == "mse"
    exact = of_rows and data.config.linear
    device = float64_device(data.device)
    if constraints.only_choice or not has_covariance(data.source, device):
        return start, *refit(start, False)
    source = data.source
    if not exact and data.valid is not None:  # which is to judge the proposal
        source = RowView(source, data.train.index)
    source = Log1pSource(source) if data.log_inputs else source
    summary = summarize(source, device)  # by all ranks together
    if exact:
        options: dict[str, Any] = {"ridge": data.config.ridge, "seed": seed, "trust": trust}
        other = on_rank0(lambda: searched(summary.matrix, constraints, start, **options))
    else:
        found = on_rank0(lambda: _proposed(data, source, summary, start, constraints, seed))
        near, other = found
        if of_rows and data.valid is not None and Referee.judges(data.config, source.shape, device):
            config = replace(data.config, device=str(data.device))
            referee = Referee(source, constraints, config, seed)
            on_cpu = Summary(summary.n, summary.mean.cpu(), summary.matrix.cpu())
            refereed = trained_swaps(referee, other, rank=referee.ranking(on_cpu))
            panel = clearly_best(data, constraints, near, [start, other, refereed], seed)
            return panel, *refit(panel, False)
    if exact or np.array_equal(other, start):
        return other, *refit(other, False)
    if data.valid is None:  # the surrogate has held-out rows of its own
        panel = other if of_rows else start
        return panel, *refit(panel, False)
    panels, prices = (start, other), constraints.cost_weight
    fits = [refit(panel, False) for panel in panels]
    losses = []
    for panel, fit in zip(panels, fits, strict=True):
        known = any(row["val_loss"] is not None for row in fit[1])
        # an exact decoder has seen all rows
        loss = held_out_loss(data, panel, *(fit if known else refit(panel, True)))
        losses.append(loss + (prices * constraints.cost(panel) if prices else 0.0))
    best = int(np.argmin(losses))
    return panels[best], *fits[best]


def held_out_loss(
    data: TrainingData, columns: Columns, decoder: MeasuredDecoder, history: list[dict[str, Any]]
) -> float:
    """Loss on the held-out rows: the lowest of its training, or the error of an exact decoder."""
    known = [row["val_loss"] for row in history if row["val_loss"] is not None]
    if known:
        return float(min(known))
    assert data.valid is not None
    index = data.valid.index
    wrong = seen = 0.0
    with torch.no_grad():
        for rows, x in read_blocks(RowView(data.source, index)):
            target = x if data.targets is None else data.targets[index[rows]].double()
            error = (decoder(x[:, columns]) - target).square()
            weight = torch.ones(len(x)) if data.weights is None else data.weights[index[rows]]
            wrong += float(weight.to(error) @ error.nansum(1))
            seen += float(weight.to(error) @ (~torch.isnan(error)).sum(1).to(error))
    return wrong / max(seen, 1.0)


# -- proposals ---------------------------------------------------------------------------------


def searched(
    C: Matrix,
    constraints: Constraints,
    start: Columns,
    *,
    ridge: float = 0.0,
    seed: int = 0,
    trust: Trust = "all",
) -> Columns:
    """The panel of a search, or that of swaps from ``start`` where it is better.

    Where rows are few or tails heavy, only what did well on folds is to be trusted.
    """
    if trust == "greedy":
        return greedy(C, constraints).panel()
    stall = 0 if trust == "swaps" else None
    found = search(C, constraints, ridge=ridge, stall=stall, seed=seed)
    if trust != "all":
        return found.indices
    own = swap(C, start, constraints, ridge=ridge)
    return own.indices if own.objective < found.objective * (1 - PROGRESS) else found.indices


def _proposed(
    data: TrainingData,
    source: Source,
    summary: Summary,
    start: Columns,
    constraints: Constraints,
    seed: int,
) -> tuple[Columns, Columns]:
    """The panel of the linear search, and what swaps on the rows of a source make of a panel.

    For decoders that are not exact.
    """
    from fewer.train import network_swaps  # noqa: PLC0415 (the package imports this module)

    config, device, n = data.config, summary.matrix.device, source.shape[0]
    guide, y, weights = summary.matrix, None, data.weights
    if weights is not None and n != len(weights):
        weights = weights[data.train.index]
    for_search = for_swaps = constraints
    if data.targets is not None:
        targets = data.targets if n == len(data.targets) else data.targets[data.train.index]
        y, unit = _numbers(targets, data.out)
        guide = joint_covariance(summary.matrix.cpu(), source, summary.mean, y, device=device)
        # prices are relative to the squared error of the target, not of the features
        weight = constraints.cost_weight * y.shape[1] / unit**2 / constraints.d
        for_search = constraints.followed_by(y.shape[1])
        for_search = replace(for_search, cost_weight=weight * constraints.d / for_search.d)
        variance = float(summary.matrix.diagonal().mean())
        for_swaps = replace(constraints, cost_weight=weight * variance)
    if config.linear:
        panel = searched(guide, for_search, start, ridge=config.ridge, seed=seed)
        return panel, panel
    near = search(guide, for_search, stall=0, seed=seed).indices
    if n < FEWEST_FOR_SURROGATE:
        return near, near
    found = network_swaps(
        source,
        Summary(summary.n, summary.mean.cpu(), summary.matrix.cpu()),
        [start, near],
        for_swaps,
        seed=seed,
        device=device,
        targets=y,
        linear=None if y is None else guide,
        weights=weights,
    )
    return near, found


# -- targets -----------------------------------------------------------------------------------


def _numbers(targets: Tensor, out: int) -> tuple[Tensor, float]:
    """Targets as centred numbers, in units of the one that is returned besides."""
    if not targets.is_floating_point():
        return centred_classes(targets, out), 1.0
    y = targets.double() - targets.double().mean(0)
    unit = float(y.square().mean().sqrt()) or 1.0
    return y / unit, unit


def centred_classes(codes: Tensor, classes: int) -> Tensor:
    """An indicator of each class about its mean, scaled so that rare classes count, too."""
    y = nn.functional.one_hot(codes, classes).double()
    y = y / y.mean(0).clamp_min(1 / len(y)).sqrt()
    return y - y.mean(0)


def joint_covariance(
    C: Matrix,
    source: Source,
    mean: Tensor,
    y: Tensor,
    *,
    features: float = FEATURES_WEIGHT,
    weights: Tensor | None = None,
    noise: Tensor | None = None,
    chancy: bool = False,
    device: torch.device | str = "cpu",
    products: tuple[Tensor, Tensor | None] | None = None,
) -> Matrix:
    """The covariance of features (C) and centred targets, whose columns follow the features.

    Features are scaled so that together they have the variance ``features`` times that of the
    targets: what counts as a target, which does not change how well they predict. Rows may have
    ``weights``; a factored C has the same rows as y. ``noise`` is what C lacks on its diagonal of
    the variances of the rows. Where that is ``chancy`` (see `Fold`), covariances with the target
    are reduced by two standard errors: many features predict it a little by chance. The rows are
    not read where ``products`` are known, those of `target_products`.
    """
    given = weights
    if weights is not None:
        weights = weights / weights.sum()
    if isinstance(C, FactoredCovariance):
        x, y = C.rows, y / len(y) ** 0.5
        if weights is not None:
            root = (weights * len(y)).sqrt()[:, None]
            x, y = (x - weighted_mean(x, weights)) * root, y * root
        scale = (features * y.square().sum() / x.square().sum().clamp_min(1e-300)).sqrt()
        return FactoredCovariance(torch.cat([scale * x, y], dim=1))
    cross, gram = products or target_products(source, mean, y, given, device)
    C = C if gram is None else gram
    if weights is not None and noise is not None:  # computed from the rows
        C = C - torch.diag(noise)
    own = y.T @ y / len(y) if weights is None else (y * weights[:, None]).T @ y
    if chancy and noise is not None:
        n = len(y) if weights is None else 1 / float(weights.square().sum())
        if weights is not None:
            C = without_chance(C, noise, round(n))
        spread = (C.diagonal() + noise).clamp_min(0.0)[:, None] * own.diagonal()
        cross = cross.sign() * (cross.abs() - CHANCE * (spread / n).sqrt()).clamp_min(0.0)
    scale = (features * own.trace() / C.trace().clamp_min(1e-300)).sqrt()
    top = torch.cat([scale**2 * C, scale * cross], dim=1)
    return torch.cat([top, torch.cat([scale * cross.T, own], dim=1)])


def target_products(
    source: Source,
    mean: Tensor,
    y: Tensor,
    weights: Tensor | None = None,
    device: torch.device | str = "cpu",
) -> tuple[Tensor, Tensor | None]:
    """Covariance of features with targets and, where rows have weights, among themselves."""
    mean = mean.to(device, torch.float64)
    share = torch.full((len(y),), 1 / len(y), dtype=torch.float64)
    if weights is not None:
        share = weights / weights.sum()
    first, cross = mean.new_zeros(len(mean)), mean.new_zeros(len(mean), y.shape[1])
    gram = None if weights is None else mean.new_zeros(len(mean), len(mean))
    for rows, block in read_blocks(source):
        x = torch.nan_to_num(block.to(device) - mean, nan=0.0)
        weighted = x * share[rows].to(device)[:, None]
        cross += weighted.T @ y[rows].to(device)
        if gram is not None:
            gram += weighted.T @ x
            first += weighted.sum(0)
    if gram is None:
        return cross.cpu(), None
    return cross.cpu(), (gram - torch.outer(first, first)).cpu()
