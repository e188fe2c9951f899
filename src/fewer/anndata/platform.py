r"""What a spatial instrument will measure of the cells that a panel is made from.

Of c counts of a gene the instrument detects Binomial(c, efficiency), and Poisson(background) false
ones besides. Only genes on the panel are seen, so they are normalised by their own sum: with y_j
counts of gene j, and s_j its usual share of all counts,

.. math:: z_j = \log(1 + \mathrm{target\_sum}\, y_j / t), \qquad t = \sum_i y_i / \sum_i s_i.

What a gene would read in full, x, is estimated from all that was measured, by least squares on
simulated measurements of the training cells. Genes are chosen for that, too: taking z_j as a line
in x_j plus an independent error, of which a simulation of all genes gives slope and variance.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
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
from fewer.data.measured import Calibration, Vector
from fewer.data.source import View
from fewer.errors import InputError
from fewer.estimate import Estimate, Score
from fewer.evidence import Evidence
from fewer.panel import Panel
from fewer.reconstructor import Reconstructor
from fewer.search import search
from fewer.selection import select
from fewer.selection.calibrate import conformal_quantiles
from fewer.selection.prepare import CONSTRAINTS
from fewer.selection.record import describe_options, describe_spending

__all__ = ["Platform", "select_for_platform"]

LEAST_SLOPE = 0.02  # below it a gene says nothing, and its error is as if it were that
CANDIDATES = 2000  # genes that may be chosen, those that the instrument measures best
SMALL = 1e-3  # of simulated measurements beside what they are for, so that they do not count
SEEDS = (1, 2, 3)  # of the simulations for choice and calibration, and of the held-out cells


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
    panel.held_out, gaps, values = _held_out(source, chosen, counts, full, ridge, seed)
    panel.reconstructor = _with_intervals(panel.reconstructor, gaps, values)
    panel.estimates = {"units": Estimate(float(panel.held_out))}
    panel.settings["platform"] = vars(platform) | calibration.describe()
    rules = resolve(source.names, source.shape[1], len(chosen), **asked)
    panel.settings |= describe_spending(rules, panel.indices)
    given = {name: value for name, value in asked.items() if _is_given(value)}
    made = panel._evidence if callable(panel._evidence) else None
    if made is not None:
        panel.evidence = partial(_evidence, made, describe_options(given), vars(platform))
    return panel


def _is_given(value: Any) -> bool:
    return value is not None and not (hasattr(value, "__len__") and len(value) == 0)


def _evidence(
    make: Callable[[], Evidence], asked: dict[str, Any], platform: dict[str, Any]
) -> Evidence:
    """Evidence without the references, which had to be the same genes, and what was asked for."""
    known = make()
    options = {name: value for name, value in known.options.items() if name != "include"}
    return replace(
        known,
        options=options | asked | {"platform": dict(platform)},
        explained={},
        standard_errors=None,
        curve={
            name: {role: line for role, line in lines.items() if role != "greedy"}
            if isinstance(lines, dict)
            else lines
            for name, lines in known.curve.items()
        },
        size=None,
        stability=None,
        significance=None,
    )


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
) -> tuple[Score, Vector, Vector]:
    """Explained variance of all genes of a fifth of the cells, calibrated and fitted on the rest.

    Genes on the panel are compared with what they read in full, not with their own estimates: also
    by how much these miss, and the estimates.
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
    score = Score(float(1 - wrong.sum() / total.sum()), wrong / held.sum())
    return score, full[held] - z[held], z[held]


def _with_intervals(made: Reconstructor, gaps: Vector, values: Vector) -> Reconstructor:
    """The same, with intervals of genes on the panel, whose estimates miss by ``gaps``."""
    if made.quantiles is None:
        return made
    quantiles = made.quantiles.copy()
    own = conformal_quantiles([gaps], factor=made.difficulty_of(values))
    quantiles[:, made.columns] = own
    return replace(made, quantiles=quantiles, estimated=True)
