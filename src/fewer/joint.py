"""The covariance of the chosen features with all others, and what follows for incomplete rows.

Residuals of a row whose chosen features M are missing have two parts: what the whole panel leaves
unexplained, and B_M' e_M, where e_M is the error of predicting x_M from the other chosen features
and B the linear decoder. The two are uncorrelated, so that their squares add up, and held-out
quantiles of both are known.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fewer._stored import require_array
from fewer.data.factored import FactoredCovariance, Matrix
from fewer.nn.completion import complete, gap_patterns
from fewer.search.eigen import leading_eigenvectors
from fewer.search.objective import solve_normal

__all__ = [
    "Corrected",
    "JointCovariance",
    "TrainingStatistics",
    "check_joint",
    "check_statistics",
    "residual_factors",
]

Values = NDArray[np.float64]
Columns = NDArray[np.int64]

DEPENDENT = 1e-9  # fraction of its variance that is added to each chosen feature: for copies
LEAST_NOISE = 1e-6  # fraction of a feature's variance that no other feature predicts
FACTOR_VALUES = 500_000  # numbers that are stored of the residual covariance
LEAST_FACTORS = 32
EXPLICIT = 2000  # features, beyond which the residual covariance is not formed
EXTRA, ROUNDS = 20, 5  # of the subspace iteration
LEVELS = 201  # of quantiles of chosen features
BINS = 10  # of distances, each with its expected error


@dataclass(frozen=True, eq=False)
class JointCovariance:
    """Means, variances and covariances that a panel keeps of its training rows.

    ``variance``, ``gram`` and ``cross`` are in scaled units: (x - mean) / scale.

    Attributes
    ----------
    columns : array of int (k)
        The chosen features.
    mean, scale, variance : arrays (d)
        Of all features.
    gram, cross : arrays (k, k) and (k, d)
        Covariance of the chosen features with each other, and with all features.
    ridge : float
        Penalty of the linear decoder.
    quantiles : array (levels, k)
        Of held-out errors of each chosen feature, predicted from the others; in data units.
    factors : array (2)
        By which bounds are wider with one, and with two or more, chosen features missing, such that
        they cover held-out values. Panels of earlier versions have 1.
    by_pattern : array (k, k) or None
        By which they are still wider where feature i alone (i, i), or features i and j are missing.

    Examples
    --------
    >>> import fewer
    >>> from sklearn.datasets import load_iris
    >>> panel = fewer.select(load_iris().data, 2, strategies=["search"], random_state=0)
    >>> joint = panel.reconstructor.joint
    >>> joint.cross.shape, joint.gram.shape
    ((2, 4), (2, 2))
    """

    columns: Columns
    mean: Values
    scale: Values
    variance: Values
    gram: Values
    cross: NDArray[np.floating]
    ridge: float
    quantiles: Values
    factors: Values = field(default_factory=lambda: np.ones(2))
    by_pattern: Values | None = None

    @cached_property
    def precision(self) -> Tensor:
        """Inverse of the covariance of the chosen features, in the units of the data."""
        return precision_of(
            torch.from_numpy(self.gram), self.ridge, torch.from_numpy(self.scale[self.columns])
        )

    @cached_property
    def weights(self) -> Values:
        """The linear decoder (k x d), in the units of the data."""
        B = solve_normal(
            torch.from_numpy(self.gram), torch.from_numpy(self.cross).double(), self.ridge
        ).numpy()
        found: Values = B * self.scale / self.scale[self.columns][:, None]
        found[:, self.columns] = np.eye(len(self.columns))
        return found

    @cached_property
    def residual_variance(self) -> Values:
        """What the whole panel leaves unexplained of each feature, in the units of the data."""
        cross = self.cross.astype(np.float64)
        B = self.weights * self.scale[self.columns][:, None] / self.scale
        inside = np.einsum("kd,kd->d", B, self.gram @ B) - 2 * np.einsum("kd,kd->d", B, cross)
        left: Values = np.clip(self.variance + inside, 0.0, None)
        left[self.columns] = 0.0
        return left * self.scale**2

    def errors_of_missing(self, gone: Columns) -> Values:
        """Covariance of the errors of predicting these chosen features from the others."""
        block = self.precision[gone][:, gone]
        found: Values = torch.cholesky_inverse(torch.linalg.cholesky(block)).numpy()
        return found

    def widened(
        self, gaps: NDArray[np.bool_], bounds: tuple[Values, Values], own: tuple[Values, Values]
    ) -> tuple[Values, Values]:
        """Offsets of both bounds of all features where some chosen features are missing.

        ``bounds`` (d) are the offsets with the whole panel, ``own`` (k) those of each chosen
        feature predicted from all other chosen ones.
        """
        gone = np.flatnonzero(gaps)
        errors = self.errors_of_missing(gone)
        spread = np.sqrt(np.diag(errors))
        alone = 1 / np.sqrt(self.precision.diagonal().numpy()[gone])
        B = self.weights[gone]
        total = np.einsum("md,md->d", B, errors @ B)
        parts = B**2 * np.diag(errors)[:, None]
        parts /= np.maximum(parts.sum(axis=0), 1e-300)
        # quantiles of the errors of missing features, in units of their standard deviation
        low, high = (np.square(side[gone] / alone)[:, None] for side in own)
        found = []
        for sign, bound, side in ((-1, bounds[0], own[0]), (1, bounds[1], own[1])):
            same, other = (low, high) if sign < 0 else (high, low)
            shape = (parts * np.where(B > 0, same, other)).sum(axis=0)
            one: Values = sign * np.sqrt(np.maximum(sign * bound, 0) ** 2 + total * shape)
            one[self.columns] = 0.0
            one[self.columns[gone]] = side[gone] * spread / alone
            found.append(one * self._factor(gone))
        return found[0], found[1]

    def _factor(self, gone: Columns) -> float:
        """By which bounds are wider where these chosen features are missing."""
        whole = float(self.factors[min(len(gone), len(self.factors)) - 1])
        if self.by_pattern is None or len(gone) > len(self.factors):
            return whole
        return whole * float(self.by_pattern[gone[0], gone[-1]])

    def corrected(
        self, found: Values, seen: Values, factors: NDArray[np.float32]
    ) -> "Iterator[Corrected]":
        """Reconstructions corrected by what was measured of the other features.

        ``found`` (n x d) is reconstructed from the chosen features, ``seen`` (n x d) is what was
        measured, with NaN elsewhere; ``factors`` are those of `residual_factors`. One result for
        each pattern of measured features that has some besides the chosen ones.
        """
        F = factors.astype(np.float64) * self.scale
        variance = self.residual_variance
        noise = np.maximum(
            variance - np.square(F).sum(axis=0), LEAST_NOISE * self.variance * self.scale**2
        )
        noise = np.where(noise > 0, noise, 1.0)  # constant features
        missing, which = gap_patterns(np.isnan(seen))
        for number, gaps in enumerate(missing):
            gone = np.flatnonzero(gaps[self.columns])
            others = np.setdiff1d(np.flatnonzero(~gaps), self.columns)
            if not len(others):
                continue
            G = F
            if len(gone):
                root = np.linalg.cholesky(self.errors_of_missing(gone))
                G = np.concatenate([F, root.T @ self.weights[gone]])
            inside = G[:, others] / noise[others]
            A = np.eye(len(G)) + inside @ G[:, others].T
            rows = np.flatnonzero(which == number)
            gap = (seen[rows][:, others] - found[rows][:, others]) @ inside.T
            pulled = np.linalg.solve(A, np.concatenate([gap, G.T]).T)
            at = np.flatnonzero(gaps)
            before = np.square(G[:, at]).sum(axis=0) + noise[at]
            after = (G[:, at] * pulled[:, len(rows) + at]).sum(axis=0) + noise[at]
            values = found[rows][:, at] + pulled[:, : len(rows)].T @ G[:, at]
            yield Corrected(rows, at, values, np.sqrt(after / before))


@dataclass(frozen=True, eq=False)
class Corrected:
    """Values of some rows and columns, and how much smaller their errors have become."""

    rows: Columns
    columns: Columns
    values: Values
    ratio: Values  # of standard deviations, per column


@dataclass(frozen=True, eq=False)
class TrainingStatistics:
    """What the chosen features looked like in the training rows, to check new rows against.

    Attributes
    ----------
    rows, sampled : int
        Number of training rows, and of held-out rows that quantiles are computed from.
    mean, spread, minimum, maximum, missing : arrays (k)
        Per chosen feature: mean, standard deviation, range and fraction of missing values.
    common : array (k)
        Fraction of the most frequent value.
    quantiles : array (levels, k)
        At equally spaced levels from 0 to 1.
    distance : array (levels)
        Quantiles of the distance of held-out rows, as in `Distances.normal`.
    errors : array (bins, 2)
        Mean distance and mean squared error (per standardised feature) of held-out rows, ordered
        by distance.
    """

    rows: int
    sampled: int
    mean: Values
    spread: Values
    minimum: Values
    maximum: Values
    missing: Values
    common: Values
    quantiles: Values
    distance: Values
    errors: Values

    @classmethod
    def of(
        cls,
        rows: int,
        basic: tuple[Values, Values, Values, Values, Values],
        sample: Values,
        distance: Values,
        errors: Values,
    ) -> "TrainingStatistics":
        """From mean, spread, range and missing fraction, and a sample of rows."""
        levels = np.linspace(0, 1, LEVELS)
        common, quantiles = [], []
        for column in sample.T:
            seen = column[~np.isnan(column)]
            seen = seen if len(seen) else np.zeros(1)
            common.append(np.unique(seen, return_counts=True)[1].max() / len(seen))
            quantiles.append(np.quantile(seen, levels))
        order = np.argsort(distance, kind="stable")
        bins = [part for part in np.array_split(order, BINS) if len(part)]
        table = [[distance[part].mean(), np.nanmean(errors[part])] for part in bins]
        return cls(
            rows,
            len(sample),
            *basic,
            np.array(common),
            np.stack(quantiles, axis=1),
            np.quantile(distance, levels),
            np.array(table),
        )

    def p_values(self, distance: Values) -> Values:
        """Fraction of training rows that are at least as far away, never below 1 / (rows + 1)."""
        below = np.interp(distance, self.distance, np.linspace(0, 1, len(self.distance)))
        found: Values = (1 + (1 - below) * self.sampled) / (1 + self.sampled)
        return found

    def expected_error(self, distance: Values) -> Values:
        """Mean squared error of rows at these distances, per standardised feature."""
        found: Values = np.interp(distance, self.errors[:, 0], self.errors[:, 1])
        return found


@dataclass(frozen=True, eq=False)
class Distances:
    """Distances of rows from the mean, in units of the covariance."""

    squared: Values  # Mahalanobis
    present: NDArray[np.int64]  # number of values that are not missing
    normal: Values  # the same for any number of values: nearly standard normal for normal rows


def distances_of(values: Values, mean: Tensor, precision: Tensor) -> Distances:
    """Mahalanobis distances of rows, of which some values may be missing."""
    given = torch.from_numpy(np.asarray(values, dtype=np.float64))
    centred = complete(given, mean, precision) - mean
    squared = ((centred @ precision) * centred).sum(1).clamp_min(0).numpy()
    present = (~torch.isnan(given)).sum(1).numpy()
    p = np.maximum(present, 1)
    # Wilson and Hilferty: the cube root of a chi-squared variable is nearly normal
    normal = (np.cbrt(squared / p) - (1 - 2 / (9 * p))) / np.sqrt(2 / (9 * p))
    return Distances(squared, present, np.where(present > 0, normal, 0.0))


def check_statistics(found: TrainingStatistics, k: int) -> None:
    """Refuse statistics of a saved panel whose parts do not fit it, by a ValueError."""
    for name in ("mean", "spread", "minimum", "maximum", "missing", "common"):
        require_array(f"statistics.{name}", getattr(found, name), (k,), "f")
    require_array("statistics.quantiles", found.quantiles, (None, k), "f")
    require_array("statistics.distance", found.distance, (None,), "f")
    require_array("statistics.errors", found.errors, (None, 2), "f")
    for name in ("rows", "sampled"):
        value = getattr(found, name)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ValueError(f"statistics.{name} is {value!r}, not a number of rows")
    if min(len(found.quantiles), len(found.distance)) < 2 or not len(found.errors):
        raise ValueError("statistics hold no quantiles")


def check_joint(found: JointCovariance, columns: Columns, d: int) -> None:
    """Refuse covariances of a saved panel whose parts do not fit it, by a ValueError."""
    k = len(columns)
    shapes: dict[str, tuple[tuple[int | None, ...], str]] = {
        "columns": ((k,), "i"),
        "mean": ((d,), "f"),
        "scale": ((d,), "f"),
        "variance": ((d,), "f"),
        "gram": ((k, k), "f"),
        "cross": ((k, d), "f"),
        "quantiles": ((None, k), "f"),
        "factors": ((2,), "f"),
    }
    for name, (shape, kind) in shapes.items():
        require_array(f"joint.{name}", getattr(found, name), shape, kind)
    if found.by_pattern is not None:
        require_array("joint.by_pattern", found.by_pattern, (k, k), "f")
        if not (found.by_pattern > 0).all():
            raise ValueError("joint.by_pattern holds values that are not above 0")
    if found.columns.tolist() != columns.tolist():
        raise ValueError("joint.columns are not the chosen features")
    if not (isinstance(found.ridge, float) and 0 <= found.ridge < np.inf):
        raise ValueError(f"joint.ridge is {found.ridge!r}, not a penalty")
    if not (found.factors > 0).all():
        raise ValueError("joint.factors hold values that are not above 0")
    if not (found.scale > 0).all() or (found.variance < 0).any():
        raise ValueError("joint.scale and joint.variance hold values that no data have")
    try:
        found.precision  # noqa: B018 -- needs a positive definite matrix
    except RuntimeError as error:
        raise ValueError("joint.gram is not a covariance") from error


def precision_of(gram: Tensor, ridge: float, scale: Tensor) -> Tensor:
    """Inverse of a covariance that is known in scaled units, in the units of the data."""
    spread = gram.diagonal() + ridge
    spread = torch.where(spread > 0, spread, 1.0)
    root = spread.sqrt()
    A = (gram + ridge * torch.eye(len(gram), dtype=gram.dtype)) / (root[:, None] * root)
    A = A + (DEPENDENT + 1 - A.diagonal()).diag()  # constant features too have a unit diagonal
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(A))
    unit = root * scale
    return inverse / (unit[:, None] * unit)


def errors_from_others(values: Values, mean: Tensor, precision: Tensor) -> Values:
    """Errors of predicting each value of a row from the others; NaN where it is missing."""
    given = torch.from_numpy(values)
    centred = complete(given, mean, precision) - mean
    errors = (centred @ precision) / precision.diagonal()
    return torch.where(torch.isnan(given), torch.nan, errors).numpy()


def residual_factors(C: Matrix, columns: Columns, ridge: float, n: int) -> NDArray[np.float32]:
    """Factors F (r x d): F'F is the covariance of what the panel leaves unexplained, shrunk.

    ``C`` is in scaled units. Correlations of residuals are shrunk by oracle approximating
    shrinkage, as far as ``n`` rows require; what the factors leave of the variance is noise.
    """
    d, k = len(C), len(columns)
    count = min(d - k, max(LEAST_FACTORS, FACTOR_VALUES // d))
    if count <= 0:
        return np.zeros((0, d), dtype=np.float32)
    at = torch.from_numpy(columns)
    cross = C[at].cpu()
    B = solve_normal(cross[:, columns], cross, ridge)
    if isinstance(C, FactoredCovariance):
        rows = C.rows.cpu() - C.rows.cpu()[:, at] @ B
        rows[:, at] = 0.0
        axes = leading_eigenvectors(FactoredCovariance(rows), min(count, len(rows)))
        values = (rows @ axes).square().sum(0)
        variance = rows.square().sum(0)
    else:
        C = C.cpu()
        variance = C.diagonal() - 2 * (B * cross).sum(0) + (B * (cross[:, columns] @ B)).sum(0)
        axes = _leading_residual(C, cross, B, at, count)
        values = (axes * _residual_product(C, cross, B, at, axes)).sum(0)
    F = (axes * values.clamp_min(0).sqrt()).T
    F[:, at] = 0.0
    spread = variance.clamp_min(0).sqrt()
    unit = torch.where(spread > 0, 1 / spread.clamp_min(1e-300), 0.0)
    return (F * (1 - _shrinkage(F * unit, d - k, n)) ** 0.5).numpy().astype(np.float32)


def _residual_product(C: Tensor, cross: Tensor, B: Tensor, at: Tensor, axes: Tensor) -> Tensor:
    """(C - cross' B) axes, without the chosen features."""
    found = C @ axes - cross.T @ (B @ axes)
    found[at] = 0.0
    return found


def _leading_residual(C: Tensor, cross: Tensor, B: Tensor, at: Tensor, count: int) -> Tensor:
    d = len(C)
    if d <= EXPLICIT:
        E = C - cross.T @ B
        E = (E + E.T) / 2
        E[at], E[:, at] = 0.0, 0.0
        return leading_eigenvectors(E, count)
    axes = torch.randn(d, count + EXTRA, generator=torch.Generator().manual_seed(0)).double()
    axes[at] = 0.0
    for _ in range(ROUNDS):
        axes = torch.linalg.qr(_residual_product(C, cross, B, at, axes))[0]
    inside = axes.T @ _residual_product(C, cross, B, at, axes)
    return axes @ torch.linalg.eigh((inside + inside.T) / 2)[1].flip(1)[:, :count]


def _shrinkage(F: Tensor, p: int, n: int) -> float:
    """Oracle approximating shrinkage of p correlations from n rows, towards none."""
    own = F.square().sum(0)
    rest = (1 - own).clamp_min(0)
    squares = float((F @ F.T).square().sum() + (2 * own * rest + rest.square()).sum())
    above = (1 - 2 / p) * squares + p**2
    below = (n + 1 - 2 / p) * (squares - p)
    return min(1.0, above / below) if below > 0 else 1.0
