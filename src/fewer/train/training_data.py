"""Input and output of training: rows that are split, scaled and on the device; and a fit."""

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fewer._checks import check_number, join_names
from fewer.constraints import Constraints
from fewer.data import Log1pSource, Moments, Source, moments
from fewer.data.batches import Batches
from fewer.errors import InputError, TypeInputError
from fewer.nn import Loss, MeasuredDecoder, build_decoder
from fewer.train.assignment import matched_nodes
from fewer.train.config import TrainingConfig
from fewer.train.device import pick_device, pick_precision

__all__ = [
    "Fit",
    "TrainingData",
    "check_weights",
    "class_weights",
    "new_decoder",
    "prepare",
    "weighted_mean",
]

FEWEST_FOR_VALIDATION = 20
MOST_HELD = 1.5  # times the requested number of rows, where groups are large


@dataclass(frozen=True)
class TrainingData:
    """Everything that is the same for all starts and tries."""

    config: TrainingConfig
    source: Source
    stats: Moments
    inputs: Moments  # of what the network sees: the rows, or their logarithms
    log_inputs: bool
    loss: Loss
    out: int
    train: Batches
    valid: Batches | None
    device: torch.device
    precision: str
    center: Tensor
    scale: float
    out_center: Tensor
    out_scale: float
    offset: Tensor  # of the network's output, before the link
    targets: Tensor | None  # in their own units, all rows
    given_loss: Loss  # for outputs and targets in their own units
    weights: Tensor | None = None  # of the rows, with targets

    @property
    def mixed(self) -> bool:
        """Whether decoders run in mixed precision."""
        return self.precision == "bfloat16"

    @property
    def keeps_measured(self) -> bool:
        """Whether decoders return measured features unchanged."""
        return self.config.keep_measured and self.targets is None

    def known(self, columns: np.ndarray) -> Tensor | None:
        """Outputs of a decoder of these columns that are returned as measured; None if none."""
        return torch.from_numpy(columns) if self.keeps_measured else None


@dataclass(frozen=True)
class Fit:
    """The result of training: chosen features, their decoder and the history.

    Examples
    --------
    >>> import numpy as np
    >>> from fewer.constraints import resolve
    >>> from fewer.data import moments
    >>> from fewer.data.source import array_source
    >>> from fewer.train import TrainingConfig
    >>> from fewer.train.closed_form import fit_covariance
    >>> source = array_source(np.random.default_rng(0).normal(size=(200, 3)) * [1, 5, 3])
    >>> config = TrainingConfig(k=2)
    >>> any_two = resolve(None, 3, 2)
    >>> fit = fit_covariance(source, moments(source), config, seed=0, constraints=any_two)
    >>> fit.columns, fit.converged
    (array([1, 2]), True)
    """

    features: np.ndarray  # of each node, all distinct
    columns: np.ndarray  # measured, ascending: these features and their groups
    logits: Tensor  # k x d
    decoder: MeasuredDecoder  # takes measured values in ascending column order
    history: list[dict[str, Any]]
    refit_history: list[dict[str, Any]]
    converged: bool
    selected: np.ndarray | None = None  # what the nodes had chosen before swaps, if any were made
    n_swapped: int = 0  # columns that swaps brought in

    @property
    def conflicts(self) -> int:
        """Number of nodes that preferred a feature which another node got."""
        preferred = self.logits.argmax(dim=1).numpy()
        chosen = self.features if self.selected is None else self.selected
        return int((preferred != chosen[: len(preferred)]).sum())

    def swapped(self, constraints: Constraints, columns: np.ndarray) -> "Fit":
        """The same selector after swaps that led to these columns."""
        if np.array_equal(columns, self.columns):
            return self
        features, nodes = matched_nodes(self.logits, columns, constraints)
        return replace(
            self,
            features=features,
            columns=columns,
            logits=self.logits[torch.from_numpy(nodes)],
            selected=self.features[nodes],
            n_swapped=len(np.setdiff1d(columns, self.columns)),
        )


def prepare(
    source: Source,
    stats: Moments,
    config: TrainingConfig,
    loss: Loss,
    seed: int,
    targets: Tensor | None = None,
    out: int | None = None,
    groups: np.ndarray | None = None,
    weights: Tensor | None = None,
) -> TrainingData:
    """Split the rows, without splitting ``groups``, and determine the scaling.

    Parameters
    ----------
    source, stats, config, loss, seed, targets, out, groups, weights
        As in `train_decoder`.

    Returns
    -------
    TrainingData
        What `train_decoders` and `choose_by_gradient` take.

    Examples
    --------
    >>> from fewer.data import moments
    >>> from fewer.data.source import array_source
    >>> from fewer.nn import make_loss
    >>> from sklearn.datasets import load_digits
    >>> source = array_source(load_digits().data / 16)
    >>> config = TrainingConfig(k=3, validation_fraction=0.2)
    >>> data = prepare(source, moments(source), config, make_loss("mse"), seed=0)
    >>> len(data.train), len(data.valid)
    (1438, 359)
    """
    n, d = source.shape
    device = pick_device(config.device)
    mean = torch.from_numpy(stats.mean)
    # a log rate that is linear in counts explodes beyond the largest count seen; one that is
    # linear in their logarithms is a power law
    log_inputs = config.normalize and targets is None and loss.link == "exp"
    inputs = moments(Log1pSource(source)) if log_inputs else stats
    center = torch.from_numpy(inputs.mean) if config.normalize else torch.zeros_like(mean)
    scale = inputs.scale if config.normalize else 1.0
    # center and scale of what is predicted; classes have none
    zero = torch.zeros(())
    offset, out_center, out_scale, scaled, given = zero, zero, 1.0, targets, loss
    if targets is None:
        out_center, out_scale = mean, stats.scale
    elif targets.is_floating_point() and loss.whole is None:
        out_center = weighted_mean(targets.double(), weights)
        squares = (targets.double() - out_center).square()
        out_scale = float(weighted_mean(squares, weights).mean().sqrt()) or 1.0
    rescale = config.normalize and loss.degree is not None
    if rescale:
        loss = loss.in_units_of(out_scale)
        if targets is not None:
            scaled = (targets.double() - out_center) / out_scale
    elif loss.whole is not None:
        pass
    elif config.normalize and loss.link is None:
        loss = loss.of_scaled(out_scale, out_center.float().to(device))
    else:
        if loss.link is not None and (targets is None or targets.is_floating_point()):
            offset = loss.offset(out_center)
            loss = loss.of_scaled(1.0, offset.float().to(device))
        out_center, out_scale = zero, 1.0
    if scaled is not None and scaled.is_floating_point():
        scaled = scaled.float()
    train, valid = _split(n, config.validation_fraction, seed, groups)

    def batches(index: np.ndarray) -> Batches:
        return Batches(
            source,
            index,
            mean=mean,
            center=center,
            scale=scale,
            targets=None if scaled is None else scaled[index],
            weights=None if weights is None else weights[index],
            log_inputs=log_inputs,
            raw_targets=config.normalize and not rescale,  # without it x is raw anyway
            has_missing=stats.has_missing,
            device=device,
        )

    return TrainingData(
        config=config,
        source=source,
        stats=stats,
        inputs=inputs,
        log_inputs=log_inputs,
        loss=loss,
        out=d if out is None else out,
        train=batches(train),
        valid=batches(valid) if len(valid) else None,
        device=device,
        precision=pick_precision(config.precision, device),
        center=center,
        scale=scale,
        out_center=out_center,
        out_scale=out_scale,
        offset=offset,
        targets=targets,
        given_loss=given,
        weights=weights,
    )


def check_weights(weights: Any, n: int, name: str = "sample_weight") -> np.ndarray:
    """Weights of rows, as floats of at least 0."""
    try:
        found = np.array(weights, dtype=np.float64)
    except (TypeError, ValueError):
        raise TypeInputError(f"{name} is not an array of numbers; give one for each row") from None
    if found.shape != (n,):
        raise InputError(f"{name} has shape {found.shape}; give one number for each of {n} rows")
    bad = np.flatnonzero(~(np.isfinite(found) & (found >= 0)))
    if len(bad):
        raise InputError(
            f"{name} of row {bad[0]} is {found[bad[0]]:g}; give finite numbers of at least 0"
        )
    if not found.any():
        raise InputError(f"{name} is zero for every row; give some a weight")
    return found


def class_weights(
    class_weight: Any, codes: np.ndarray, labels: np.ndarray, rows: np.ndarray
) -> np.ndarray:
    """Weight of each class: as given, or "balanced", so that all have the same in total.

    ``rows`` are the weights of the rows with these class numbers.
    """
    if isinstance(class_weight, str) and class_weight == "balanced":
        total = np.bincount(codes, weights=rows, minlength=len(labels))
        return rows.sum() / (len(labels) * np.maximum(total, 1e-300))
    if not isinstance(class_weight, Mapping):
        raise InputError(
            f"class_weight={class_weight!r}: use 'balanced', None or a dictionary from class to "
            "weight"
        )
    known = labels.tolist()
    for label, weight in class_weight.items():
        if label not in known:
            raise InputError(
                f"class_weight has {label!r}, which is not a class; those are {join_names(known)}"
            )
        check_number(f"class_weight[{label!r}]", weight, above=0)
    return np.array([float(class_weight.get(label, 1.0)) for label in known])


def weighted_mean(values: Tensor, weights: Tensor | None) -> Tensor:
    """Mean over the rows (n x m)."""
    return values.mean(0) if weights is None else weights.to(values) @ values / weights.sum()


def _split(
    n: int, fraction: float, seed: int, groups: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    """Training rows and held-out rows, ascending; none are held out where rows are few."""
    held = round(n * fraction) if n >= FEWEST_FOR_VALIDATION else 0
    random = np.random.default_rng(seed)
    if groups is None or not held:
        order = random.permutation(n)
        return np.sort(order[held:]), np.sort(order[:held])
    labels, sizes = np.unique(groups, return_inverse=True, return_counts=True)[1:]
    chosen: list[int] = []
    for group in random.permutation(len(sizes)):
        rows = sizes[chosen].sum()
        if rows < held and rows + sizes[group] <= MOST_HELD * held and len(chosen) < len(sizes) - 1:
            chosen.append(int(group))
    if not chosen and len(sizes) > 1:  # all are large
        chosen = [int(sizes.argmin())]
    out = np.isin(labels, chosen)
    return np.flatnonzero(~out), np.flatnonzero(out)


def new_decoder(data: TrainingData, inputs: int) -> nn.Module:
    """A new decoder as configured, with initial weights drawn on the GPU if there is one."""
    config = data.config
    there = data.device.type == "cuda" and not callable(config.decoder)
    with data.device if there else nullcontext():
        return build_decoder(
            config.decoder,
            inputs,
            data.out,
            activation=config.activation,
            dropout=config.dropout,
            norm=config.norm,
        )
