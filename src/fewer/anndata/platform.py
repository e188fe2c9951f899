r"""What a spatial instrument will measure of the cells that a panel is made from.

Of c counts of a gene the instrument detects Binomial(c, efficiency), and Poisson(background) false
ones besides. Only genes on the panel are seen, so they are normalised by their own sum: with y_j
counts of gene j, and s_j its usual share of all counts,

.. math:: z_j = \log(1 + \mathrm{target\_sum}\, y_j / t), \qquad t = \sum_i y_i / \sum_i s_i.

What a gene would read in full, x, is estimated from all that was measured, by least squares on
simulated measurements of the training cells. Genes are chosen for that, too: taking z_j as a line
in x_j plus an independent error, of which a simulation of all genes gives slope and variance.
"""

import base64
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fewer._checks import check_number, check_whole
from fewer.anndata.large import MOST_GENES, for_genes
from fewer.constraints import resolve
from fewer.data import ColumnView, Source, covariance, read_blocks
from fewer.data.counts import NormalizedCounts
from fewer.data.source import View
from fewer.errors import InputError
from fewer.estimate import Estimate, Score
from fewer.panel import Panel
from fewer.search import search
from fewer.selection import select
from fewer.selection.prepare import CONSTRAINTS

__all__ = ["Calibration", "MeasuredCounts", "Platform", "select_for_platform"]

LEAST_SLOPE = 0.02  # below it a gene says nothing, and its error is as if it were that
CANDIDATES = 2000  # genes that may be chosen, those that the instrument measures best
SMALL = 1e-3  # of simulated measurements beside what they are for, so that they do not count
RIDGES = (1e-3, 1e-2, 0.1, 0.3, 1.0, 3.0)  # relative to the mean variance of measurements
SEEDS = (1, 2, 3)  # of the simulations for choice and calibration, and of the held-out cells

Vector = NDArray[np.float64]


@dataclass(frozen=True)
class Platform:
    """A model of the instrument that a panel is for.

    Parameters
    ----------
    efficiency : float, default=1.0
        Fraction of the counts in the training cells that the instrument detects, above 0 and at
        most 1.
    background : float, default=0.0
        Mean number of false counts per gene and cell.
    lost : int, default=0
        How many probes of the panel may fail. Genes are then preferred that others can stand in
        for.

    Examples
    --------
    >>> import anndata, numpy as np
    >>> from fewer.anndata import Platform, impute, select_genes
    >>> rng = np.random.default_rng(0)
    >>> programs = rng.gamma(1.0, size=(300, 2)) @ rng.gamma(1.0, size=(2, 12))
    >>> cells = anndata.AnnData(X=rng.poisson(10 * programs).astype(np.float32))
    >>> panel = select_genes(cells, 4, platform=Platform(efficiency=0.2), random_state=0)
    >>> spots = cells[:, panel.features].copy()
    >>> spots.X = rng.binomial(spots.X.astype(int), 0.2).astype(np.float32)
    >>> impute(spots, panel).shape
    (300, 12)
    """

    efficiency: float = 1.0
    background: float = 0.0
    lost: int = 0

    def __post_init__(self) -> None:
        check_number("efficiency", self.efficiency, above=0)
        if self.efficiency > 1:
            raise InputError(f"efficiency={self.efficiency!r} is a fraction of counts, at most 1")
        check_number("background", self.background)
        check_whole("lost", self.lost, 0)

    def measure(self, counts: NDArray, draw: np.random.Generator) -> Vector:
        """Counts that the instrument might detect."""
        found = draw.binomial(np.rint(counts).astype(np.int64), self.efficiency)
        if self.background:
            found = found + draw.poisson(self.background, found.shape)
        return found.astype(np.float64)


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


class WithColumns(View):
    """Rows of another source with some columns replaced."""

    is_sparse = False
    dtype = np.dtype(np.float64)

    def __init__(self, source: Source, columns: NDArray[np.int64], values: Vector) -> None:
        super().__init__(source)
        self.columns, self.values = torch.from_numpy(columns), values

    def over(self, source: Source | None, rows: np.ndarray) -> "WithColumns":
        other = super().over(source, rows)
        other.values = self.values[rows]
        return other

    def rows(self, index: np.ndarray | slice, dtype: torch.dtype = torch.float32) -> Tensor:
        found = self.source.rows(index, dtype).clone()
        found[:, self.columns] = torch.from_numpy(self.values[index]).to(dtype)
        return found


def select_for_platform(source: Source, k: int | None, platform: Platform, **options: Any) -> Panel:
    """`fewer.select` for what a platform measures of the counts in ``source``."""
    for name in ("target", "groups", "cost_weight", "robust_to"):
        if options.get(name):
            instead = "; lost= of the platform is for that" if name == "robust_to" else ""
            shown = "groupby" if name == "target" else name
            raise InputError(f"platform cannot be combined with {shown}{instead}")
    if not isinstance(platform, Platform):
        raise InputError(f"platform={platform!r}; give Platform(efficiency=0.2)")
    if not isinstance(source, NormalizedCounts):
        raise InputError("platform needs raw counts; name their layer=")
    if not isinstance(k, (int, np.integer)):
        raise InputError(f"k={k!r}: with platform, give a number of genes")
    if source.shape[1] > MOST_GENES:
        raise InputError(
            f"platform compares all genes at once, at most {MOST_GENES:,}, not "
            f"{source.shape[1]:,}; keep the most variable ones first"
        )
    asked = {name: options.pop(name) for name in CONSTRAINTS if name in options}
    seed = options.get("random_state")
    seed = int(seed) if isinstance(seed, (int, np.integer)) else 0
    chosen = _choose(source, int(k), platform, asked, seed)
    counts, full = _simulated(source, platform, chosen, seed)
    calibration = Calibration.fit(counts, full, source.target_sum)
    rows = WithColumns(source, chosen, calibration.values(counts))
    names: list[Any] = source.names or list(range(source.shape[1]))
    panel = select(rows, len(chosen), include=[names[j] for j in chosen], **options)
    ridge = float(panel.settings["ridge"] or 0.0)
    if options.get("scale") == "standard":  # its penalty is one on standardised values
        ridge *= float(full.var(axis=0).mean())
    panel.held_out = _held_out(source, chosen, counts, full, ridge, seed)
    panel.estimates = {"units": Estimate(float(panel.held_out))}
    panel.settings["platform"] = vars(platform) | calibration.describe()
    return panel


def _choose(
    source: NormalizedCounts, k: int, platform: Platform, asked: dict[str, Any], seed: int
) -> NDArray[np.int64]:
    """The genes that reconstruct all best from what the platform measures of them."""
    C = covariance(source).matrix
    variance = C.diagonal().numpy()
    noise = _noise(source, platform, seed)
    chance = platform.lost / k
    if chance >= 1:
        raise InputError(f"lost={platform.lost} of k={k} probes: nothing would be measured")
    # a value that is lost at random says as much as one with this additional error
    noise = noise + chance / (1 - chance) * variance
    value = np.square(variance) / np.maximum(variance + noise, 1e-300)
    names = source.names or [str(j) for j in range(len(variance))]
    needed = {str(name) for name in asked.get("include", ())}
    for own in (asked.get("sets") or {}).values():
        needed |= {str(name) for name in own}
    value = value + np.where([name in needed for name in names], np.inf, 0.0)
    pool = np.sort(np.argsort(-value, kind="stable")[:CANDIDATES])
    rules = resolve([names[j] for j in pool], len(pool), k, **for_genes(asked, names, pool))
    at = torch.from_numpy(pool)
    own = C[at][:, at] + torch.diag(torch.from_numpy(noise[pool]))
    joint = torch.cat(
        [
            torch.cat([SMALL**2 * own, SMALL * C[at]], 1),
            torch.cat([SMALL * C[:, at], C], 1),
        ]
    )
    found = search(joint, rules.followed_by(len(C)), seed=seed, stall=1)
    return pool[found.indices]


def _noise(source: NormalizedCounts, platform: Platform, seed: int) -> Vector:
    """Variance of the error of every gene in its own units, if the total of its cell were known."""
    draw = np.random.default_rng([seed, SEEDS[0]])
    n, d = source.shape
    sums = np.zeros((5, d))
    for (_, c), (_, value) in zip(read_blocks(source.source), read_blocks(source), strict=True):
        raw, x = c.numpy(), value.numpy()
        total = platform.efficiency * raw.sum(axis=1, keepdims=True) + platform.background * d
        rate = source.target_sum / np.where(total > 0, total, np.inf)
        z = np.log1p(platform.measure(raw, draw) * rate)
        for row, part in enumerate((z, x, z * z, z * x, x * x)):
            sums[row] += part.sum(axis=0)
    z, x, zz, zx, xx = sums / n
    variance = np.maximum(xx - x * x, 1e-300)
    slope = (zx - z * x) / variance
    left = np.maximum(zz - z * z - slope**2 * variance, 0.0)
    return left / np.maximum(slope, LEAST_SLOPE) ** 2


def _simulated(
    source: NormalizedCounts, platform: Platform, chosen: NDArray[np.int64], seed: int
) -> tuple[Vector, Vector]:
    """Counts of the chosen genes as the platform might detect them, and their values in full."""
    draw = np.random.default_rng([seed, SEEDS[1]])
    counts, full = np.empty((2, source.shape[0], len(chosen)))
    for rows, c in read_blocks(ColumnView(source.source, chosen)):
        counts[rows] = platform.measure(c.numpy(), draw)
    for rows, x in read_blocks(ColumnView(source, chosen)):
        full[rows] = x.numpy()
    return counts, full


def _held_out(
    source: NormalizedCounts,
    chosen: NDArray[np.int64],
    counts: Vector,
    full: Vector,
    ridge: float,
    seed: int,
) -> Score:
    """Explained variance of all genes of a fifth of the cells, calibrated and fitted on the rest.

    Genes on the panel are compared with what they read in full, not with their own estimates.
    """
    n = len(counts)
    held = np.zeros(n, dtype=bool)
    held[np.random.default_rng([seed, SEEDS[2]]).permutation(n)[: max(1, n // 5)]] = True
    rest = int((~held).sum())
    calibration = Calibration.fit(counts[~held], full[~held], source.target_sum)
    z = calibration.values(counts)
    inputs = z - z[~held].mean(axis=0)
    mean, cross = np.zeros(source.shape[1]), np.zeros((len(chosen), source.shape[1]))
    for rows, x in read_blocks(source):
        own = x.numpy()[~held[rows]]
        mean += own.sum(axis=0) / rest
        cross += inputs[rows][~held[rows]].T @ own / rest
    gram = inputs[~held].T @ inputs[~held] / rest
    least = 1e-9 * np.trace(gram) / len(gram)  # genes may be dependent
    weights = np.linalg.solve(gram + max(ridge, least) * np.eye(len(gram)), cross)
    wrong, total = np.zeros((2, source.shape[1]))
    for rows, x in read_blocks(source):
        left = x.numpy()[held[rows]] - mean
        total += np.square(left).sum(axis=0)
        wrong += np.square(left - inputs[rows][held[rows]] @ weights).sum(axis=0)
    return Score(float(1 - wrong.sum() / total.sum()), wrong / held.sum())
