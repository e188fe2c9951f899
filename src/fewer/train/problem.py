"""A training problem made ready: rows split, scaling fixed, device chosen."""

from contextlib import nullcontext
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from fewer.constraints import Constraints
from fewer.data import Log1pSource, Moments, Source, moments
from fewer.data.batches import Batches
from fewer.nn import Loss, build_decoder
from fewer.train.device import pick_device, pick_precision
from fewer.train.eligible import eligible
from fewer.train.settings import TrainingConfig

__all__ = ["Problem", "new_decoder", "prepare"]

FEWEST_FOR_VALIDATION = 20
MOST_HELD = 1.5  # times the share that was asked for, where groups are large


@dataclass(frozen=True)
class Problem:
    """Everything that stays the same over starts and tries."""

    settings: TrainingConfig
    source: Source
    stats: Moments
    inputs: Moments  # of what the network sees: the rows, or their logarithms
    log_inputs: bool
    loss: Loss
    out: int
    train: Batches
    valid: Batches | None
    constraints: Constraints
    allowed: Tensor | None
    include: list[int]
    device: torch.device
    precision: str
    center: Tensor
    scale: float
    out_center: Tensor
    out_scale: float
    offset: Tensor  # of the network's output, before the link
    targets: Tensor | None  # in their own units, all rows

    @property
    def mixed(self) -> bool:
        """Whether decoders run in mixed precision."""
        return self.precision == "bfloat16"


def prepare(
    source: Source,
    stats: Moments,
    settings: TrainingConfig,
    loss: Loss,
    seed: int,
    targets: Tensor | None,
    out: int | None,
    constraints: Constraints,
    groups: np.ndarray | None = None,
) -> Problem:
    """Split the rows, fix the scaling, and find which features may be chosen.

    Rows with the same label in ``groups`` are held out together.
    """
    given = targets
    n, d = source.shape
    device = pick_device(settings.device)
    mean = torch.from_numpy(stats.mean)
    # a log rate that is linear in counts explodes beyond the largest count seen; in their
    # logarithms it is a power law
    log_inputs = settings.normalize and targets is None and loss.link == "exp"
    inputs = moments(Log1pSource(source)) if log_inputs else stats
    center = torch.from_numpy(inputs.mean) if settings.normalize else torch.zeros_like(mean)
    scale = inputs.scale if settings.normalize else 1.0
    # centre and spread of what is predicted; classes have none
    out_center, out_scale = torch.zeros(()), 1.0
    if targets is None:
        out_center, out_scale = mean, stats.scale
    elif targets.is_floating_point():
        out_center = targets.double().mean(0)
        out_scale = float((targets.double() - out_center).square().mean().sqrt()) or 1.0
    offset = torch.zeros(())
    rescale = settings.normalize and loss.degree is not None
    if rescale:
        loss = loss.in_units_of(out_scale)
        if targets is not None:
            targets = (targets.double() - out_center) / out_scale
    elif loss.link is not None and targets is not None and not targets.is_floating_point():
        out_center, out_scale = torch.zeros(()), 1.0
    elif loss.link is not None:
        offset = loss.offset(out_center)
        loss = loss.of_scaled(1.0, offset)
        out_center, out_scale = torch.zeros(()), 1.0
    elif settings.normalize:
        loss = loss.of_scaled(out_scale, out_center)
    else:
        out_center, out_scale = torch.zeros(()), 1.0
    if targets is not None and targets.is_floating_point():
        targets = targets.float()
    train, valid = _split(n, settings.validation_fraction, seed, groups)

    def batches(index: np.ndarray) -> Batches:
        return Batches(
            source,
            index,
            mean=mean,
            center=center,
            scale=scale,
            targets=None if targets is None else targets[index],
            log_inputs=log_inputs,
            raw_targets=settings.normalize and not rescale,  # without it x is raw anyway
            has_missing=stats.has_missing,
            device=device,
        )

    include, allowed = eligible(constraints, stats, settings.k)
    return Problem(
        settings=settings,
        source=source,
        stats=stats,
        inputs=inputs,
        log_inputs=log_inputs,
        loss=loss,
        out=d if out is None else out,
        train=batches(train),
        valid=batches(valid) if len(valid) else None,
        constraints=constraints,
        allowed=None if allowed.all() else torch.from_numpy(allowed),
        include=include.tolist(),
        device=device,
        precision=pick_precision(settings.precision, device),
        center=center,
        scale=scale,
        out_center=out_center,
        out_scale=out_scale,
        offset=offset,
        targets=given,
    )


def _split(
    n: int, share: float, seed: int, groups: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    """Rows to train on and rows to hold out, ascending; none are held out where rows are few."""
    held = round(n * share) if n >= FEWEST_FOR_VALIDATION else 0
    random = np.random.default_rng(seed)
    if groups is None or not held:
        order = random.permutation(n)
        return np.sort(order[held:]), np.sort(order[:held])
    labels = np.unique(groups, return_inverse=True)[1]
    sizes = np.bincount(labels)
    chosen: list[int] = []
    rows = 0
    for group in random.permutation(len(sizes)):
        if rows < held and rows + sizes[group] <= MOST_HELD * held and len(chosen) < len(sizes) - 1:
            chosen.append(int(group))
            rows += sizes[group]
    if not chosen and len(sizes) > 1:  # all are large
        chosen = [int(sizes.argmin())]
    out = np.isin(labels, chosen)
    return np.flatnonzero(~out), np.flatnonzero(out)


def new_decoder(problem: Problem, inputs: int) -> nn.Module:
    """Make a fresh decoder as the settings ask; for a GPU its first weights are drawn there."""
    options = problem.settings
    there = problem.device.type == "cuda" and not callable(options.decoder)
    with problem.device if there else nullcontext():
        return build_decoder(
            options.decoder,
            inputs,
            problem.out,
            activation=options.activation,
            dropout=options.dropout,
            norm=options.norm,
        )
