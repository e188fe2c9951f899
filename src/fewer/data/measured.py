"""Measured counts of a few features as estimates of what those features would read in full.

The logarithms are of counts over their own sum; see `fewer.anndata.Platform`, which has the
equations.
"""

import base64
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fewer.data.source import Source, View
from fewer.errors import InputError

__all__ = ["Calibration", "MeasuredCounts"]

RIDGES = (1e-3, 1e-2, 0.1, 0.3, 1.0, 3.0)  # relative to the mean variance of measurements

Vector = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Calibration:
    """From measured counts of a panel to estimates of what its genes would read in full."""

    share: Vector  # of all counts of a cell, for each gene
    measured_mean: Vector  # of z
    measured_covariance: Vector  # of z, k x k
    mean: Vector  # of x
    weights: Vector  # x - mean(x) = weights (z - mean(z)), k x k
    target_sum: float

    @classmethod
    def fit(cls, counts: Vector, full: Vector, target_sum: float) -> "Calibration":
        """From simulated counts of cells, and what their genes read in full."""
        mean = counts.mean(axis=0)
        if not mean.sum() > 0:
            raise InputError("the platform would detect no counts of this panel")
        usual = np.expm1(full).sum(axis=1).mean() / target_sum  # of the panel in full
        zero, k = np.zeros(len(mean)), len(mean)
        start = cls(usual * mean / mean.sum(), zero, np.eye(k), zero, np.eye(k), target_sum)
        z = start.logarithms(counts)
        centred, wanted = z - z.mean(axis=0), full - full.mean(axis=0)
        halves = centred[::2], wanted[::2], centred[1::2], wanted[1::2]
        errors = {
            ridge: np.square(halves[3] - halves[2] @ _weights(*halves[:2], ridge)).sum()
            for ridge in RIDGES
        }
        weights = _weights(centred, wanted, min(errors, key=lambda ridge: errors[ridge])).T
        gram = centred.T @ centred / len(z) + RIDGES[0] * centred.var() * np.eye(k)
        return cls(start.share, z.mean(axis=0), gram, full.mean(axis=0), weights, target_sum)

    def logarithms(self, counts: Vector) -> Vector:
        """Of counts (n x k) per target_sum, by the sum of the genes that were measured."""
        known = ~np.isnan(counts)
        seen = np.where(known, counts, 0.0).sum(axis=1)
        total = seen / np.maximum(known @ self.share, 1e-300)
        return np.log1p(counts * (self.target_sum / np.where(total > 0, total, np.inf))[:, None])

    def values(self, counts: Vector) -> Vector:
        """Estimates for measured counts; a lost probe (NaN) is estimated from the others."""
        z = self.logarithms(counts) - self.measured_mean
        lost = np.isnan(z)
        for pattern in np.unique(lost[lost.any(axis=1)], axis=0):
            rows = (lost == pattern).all(axis=1)
            have = ~pattern
            inside = self.measured_covariance[np.ix_(have, have)]
            across = self.measured_covariance[np.ix_(have, pattern)]
            z[np.ix_(rows, pattern)] = z[np.ix_(rows, have)] @ np.linalg.solve(inside, across)
        return self.mean + z @ self.weights.T

    def describe(self) -> dict[str, Any]:
        """As text and numbers, for the settings of a panel; matrices in base 64."""
        arrays = {name: value for name, value in vars(self).items() if name != "target_sum"}
        coded = {
            name: base64.b64encode(value.astype("<f4").tobytes()).decode()
            for name, value in arrays.items()
        }
        return {"target_sum": self.target_sum, "calibration": coded}

    @classmethod
    def restore(cls, stored: dict[str, Any], k: int) -> "Calibration":
        """From `describe`."""
        try:
            arrays = {}
            for name, shape in SHAPES.items():
                raw = base64.b64decode(stored["calibration"][name], validate=True)
                arrays[name] = np.frombuffer(raw, "<f4").astype(np.float64).reshape((k,) * shape)
            return cls(**arrays, target_sum=float(stored["target_sum"]))
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"the calibration of this panel is damaged ({error})") from error


def _weights(z: Vector, x: Vector, ridge: float) -> Vector:
    """Least squares from centred z to centred x, with a penalty relative to the variance of z."""
    gram = z.T @ z / len(z)
    gram += ridge * np.trace(gram) / len(gram) * np.eye(len(gram))
    return np.asarray(np.linalg.solve(gram, z.T @ x / len(z)), dtype=np.float64)


SHAPES = {"share": 1, "measured_mean": 1, "measured_covariance": 2, "mean": 1, "weights": 2}


class MeasuredCounts(View):
    """Measured counts of the genes on a panel, in order, as estimates of what they read in full."""

    is_sparse = False
    dtype = np.dtype(np.float64)

    def __init__(self, source: Source, calibration: Calibration) -> None:
        super().__init__(source)
        self.calibration = calibration

    def rows(self, index: np.ndarray | slice, dtype: torch.dtype = torch.float32) -> Tensor:
        counts = self.source.rows(index, torch.float64).numpy()
        if np.nanmin(counts, initial=0.0) < 0:
            raise InputError(f"counts cannot be negative, but there is {np.nanmin(counts):g}")
        return torch.from_numpy(self.calibration.values(counts)).to(dtype)
