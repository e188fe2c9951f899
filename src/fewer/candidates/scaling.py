"""The scaling of features: taken from training rows, and put around what was fitted on them."""

import numpy as np
import torch
from numpy.typing import NDArray

from fewer.data import Source
from fewer.errors import InputError
from fewer.nn import MeasuredDecoder
from fewer.train.folds import Fold, ScaledFold, make_folds, scaled_fold

__all__ = ["Scaling", "in_units", "inputs_in_units", "scaled_folds"]

Vector = NDArray[np.float64]
KNOWN = ("standard", "none")
HARDLY = 0.1  # of the variance over all rows: less in the training rows is chance


class Scaling:
    """How features are put on one scale.

    Examples
    --------
    >>> Scaling("standard").of(mean=np.array([1.0, 2.0]), variance=np.array([4.0, 0.0]))
    (array([1., 2.]), array([2., 1.]))
    """

    def __init__(self, how: str) -> None:
        if how not in KNOWN:
            raise InputError(f"scale={how!r} is not known; use 'standard' or 'none'")
        self.how = how

    def of(self, mean: Vector, variance: Vector) -> tuple[Vector, Vector]:
        """Centre and spread of every feature; constant features keep their unit."""
        if self.how == "none":
            return np.zeros(len(mean)), np.ones(len(mean))
        spread = np.sqrt(variance)
        return mean, np.where(spread > 0, spread, 1.0)


def scaled_folds(
    source: Source, held: list[NDArray[np.int64]], scaling: Scaling, device: torch.device
) -> list[ScaledFold]:
    """Folds in scaled units; the scaling comes from the training rows of each.

    Where a feature hardly varies there, but does in the held-out rows, these have a say: nothing
    can be learned about it, and a few values of it would drown all other features.
    """
    folds = []
    for fold in make_folds(source, held, device):
        center, scale = scaling.of(fold.mean.numpy(), _spread(fold))
        folds.append(scaled_fold(fold, center, scale))
    return folds


def _spread(fold: Fold) -> Vector:
    variance = fold.train.diagonal().numpy()
    held, train = len(fold.held_index), len(fold.train_index)
    whole = (train * variance + held * fold.held.diagonal().numpy()) / max(train + held, 1)
    return np.maximum(variance, HARDLY * whole)


def inputs_in_units(
    decoder: MeasuredDecoder, columns: NDArray[np.int64], fold: ScaledFold
) -> MeasuredDecoder:
    """Put the scaling of features before a predictor that was fitted on scaled rows."""
    inside, spread = (torch.from_numpy(part)[columns] for part in (fold.center, fold.scale))
    return MeasuredDecoder(
        decoder.net,
        fill=decoder.fill.double() * spread + inside,
        center=decoder.center.double() * spread + inside,
        scale=decoder.scale.double() * spread,
        order=decoder.order,
        out_center=decoder.out_center,
        out_scale=decoder.out_scale,
        offset=decoder.offset,
        link=decoder.link,
    )


def in_units(
    decoder: MeasuredDecoder, columns: NDArray[np.int64], fold: ScaledFold
) -> MeasuredDecoder:
    """Put the scaling of features around a decoder that was fitted on scaled rows."""
    center, scale = torch.from_numpy(fold.center), torch.from_numpy(fold.scale)
    inside, spread = center[columns], scale[columns]
    return MeasuredDecoder(
        decoder.net,
        fill=decoder.fill.double() * spread + inside,
        center=decoder.center.double() * spread + inside,
        scale=decoder.scale.double() * spread,
        order=decoder.order,
        out_center=decoder.out_center.double() * scale + center,
        out_scale=decoder.out_scale.double() * scale,
        known=decoder.known,
    )
