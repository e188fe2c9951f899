"""Splits into training and held-out rows, and the error of linear decoders on the latter.

All that a linear panel needs is in the covariance of each part of the rows. `fold_covariances`
reads the rows once and keeps one covariance per held-out part; sums of parts are the covariance
of every training fold and of all rows. With B the linear decoder of the columns S, fitted on the
training rows, and H the second moments of the held-out rows about the training mean, the mean
squared residual of feature j on the held-out rows is

    H_jj - 2 (B' H_S)_jj + (B' H_SS B)_jj.

Of wide data (n < d / 4) the parts are kept as rows, and no d x d matrix is formed. With X the
training rows and Y the held-out rows, both about the training mean and over the root of their
number, Y - W X is what the decoder leaves, W = Y_S (X_S' X_S + ridge I)^-1 X_S', so that the error
of any panel follows from X X' and X Y'.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import stdtrit
from torch import Tensor

from fewer._checks import check_choice
from fewer._threads import LONG_PASS, for_operations
from fewer.data.factored import FactoredCovariance, Matrix
from fewer.data.moments import (
    Covariance,
    Moments,
    Summary,
    covariance,
    is_wide,
    moments,
    part_covariances,
    part_factors,
)
from fewer.data.source import RowView, ScaledSource, Source, View, read_blocks
from fewer.errors import InputError
from fewer.search.eigen import without_chance
from fewer.search.objective import DEPENDENT, Penalty, penalty_at, solve_normal

__all__ = [
    "Fold",
    "Scaling",
    "best_ridge",
    "fold_covariances",
    "paired_interval",
    "split_rows",
]

Columns = NDArray[np.int64]
Vector = NDArray[np.float64]
Validation = int | float | str | NDArray[np.bool_]  # see `split_rows`

FOLDS, NETWORK_FOLDS = 5, 3
ROWS_PER_FEATURE = 100  # with fewer rows per chosen feature, several folds and penalties are tried
FEWEST_FOR_SPLIT = 1000  # rows with a target: a tenth of fewer says little about a predictor
# of rows: between these numbers, a tenth of them says little; of even fewer, more are held out
FEWEST_GROUPS, FEW_GROUPS = 10, 100
FOLD_BYTES = 2**29  # covariances of all folds: larger ones only where rows are few
RIDGES = (0.0, 1e-4, 1e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0, 3.0, 10.0)  # in units of the mean variance
IN_ORDER = ("time", "blocks")  # ways to split rows whose order matters
LEAST_SIGNAL = 1e-3  # of the variance, whatever the noise
FEW_ROWS = 3  # per feature: with fewer, correlations of noisy features may be due to chance
MOST_FITTED = 0.5  # predictors per row that inflate noise
HARDLY_VARIES = 0.1  # of the variance over all rows: less than that in the training rows is chance


# -- splits ------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Splits:
    """Rows divided into parts; each fold holds out one part and trains on some of the others."""

    parts: list[Columns]  # rows of each part, ascending; together they are all rows
    folds: list[tuple[tuple[int, ...], int]]  # parts to train on, and the held-out part

    def __len__(self) -> int:
        return len(self.folds)

    @property
    def n(self) -> int:
        """Number of rows."""
        return sum(len(part) for part in self.parts)

    @property
    def labels(self) -> Columns:
        """The part that each row belongs to."""
        labels = np.zeros(self.n, dtype=np.int64)
        for number, part in enumerate(self.parts):
            labels[part] = number
        return labels

    def held_rows(self, fold: int) -> Columns:
        """Rows that a fold holds out, ascending."""
        return self.parts[self.folds[fold][1]]

    def train_rows(self, fold: int) -> Columns:
        """Rows that a fold trains on, ascending."""
        return np.sort(np.concatenate([self.parts[part] for part in self.folds[fold][0]]))


def split_rows(
    n: int, validation: Validation, seed: int = 0, groups: NDArray | None = None
) -> Splits:
    """Divide n rows into folds; rows with the same label in ``groups`` stay together.

    ``validation`` is the number of folds, the fraction that a single fold holds out, a mask of the
    rows that it holds out, "blocks" for folds of neighbouring rows, or "time" for rows in time
    order: each fold trains on the past and holds out what follows.
    """
    if isinstance(validation, np.ndarray):
        return Splits([np.flatnonzero(validation), np.flatnonzero(~validation)], [((1,), 0)])
    if validation == "blocks":
        return _all_but_one(np.array_split(np.arange(n), min(FOLDS, n)))
    if isinstance(validation, str):
        # scikit-learn takes more memory than most selections, so it is loaded where it is needed
        from sklearn.model_selection import TimeSeriesSplit  # noqa: PLC0415

        splitter = TimeSeriesSplit(min(FOLDS, n - 1))
        held = [part for _, part in splitter.split(np.zeros(n))]
        parts = [np.arange(held[0][0]), *held]
        return Splits(parts, [(tuple(range(at)), at) for at in range(1, len(parts))])
    labels = np.arange(n) if groups is None else np.unique(groups, return_inverse=True)[1]
    order = np.random.default_rng(seed).permutation(int(labels.max()) + 1)
    if isinstance(validation, float):
        count = max(1, min(round(validation * len(order)), len(order) - 1))
        out = np.isin(labels, order[:count])
        return Splits([np.flatnonzero(out), np.flatnonzero(~out)], [((1,), 0)])
    if len(order) < 2:
        return Splits([np.arange(n)], [((0,), 0)])
    held = np.array_split(order, min(validation, len(order)))
    return _all_but_one([np.flatnonzero(np.isin(labels, part)) for part in held])


def _all_but_one(parts: list[Columns]) -> Splits:
    """Each part is held out once, and all others are trained on."""
    numbers = range(len(parts))
    return Splits(parts, [(tuple(set(numbers) - {at}), at) for at in numbers])


def choose_validation(
    validation: Any,
    n: int,
    k: int,
    *,
    linear: bool,
    groups: int | None = None,
    d: int | None = None,
    predicts: bool = False,
) -> Validation:
    """Check a ``validation`` option and resolve "auto" for n rows and k features.

    ``d`` is the number of features that a linear decoder reconstructs, or that a target may be
    predicted from (``predicts``), and ``groups`` the number of groups of rows that are held out
    together. Linear decoders have several folds unless their covariances are large. Whatever is
    trained has a single split if rows are many; a predictor, only if groups are many, too.
    """
    if isinstance(validation, (np.ndarray, list, tuple)) or hasattr(validation, "to_numpy"):
        return _mask(validation, n)
    if isinstance(validation, str) and validation == "auto":
        few = predicts and groups is not None and FEWEST_GROUPS <= groups < FEW_GROUPS
        several = n < ROWS_PER_FEATURE * k
        folds = FOLDS if linear or (few and not several) else NETWORK_FOLDS
        several = several or (predicts and n < FEWEST_FOR_SPLIT)
        cheap = d is not None and folds * 8 * d * d <= FOLD_BYTES and (few or not predicts)
        return min(folds, n) if cheap or several else 0.1
    if isinstance(validation, str) and validation in IN_ORDER:
        if groups is not None:
            raise InputError(
                f"row_groups cannot be combined with validation={validation!r}; drop one of them"
            )
        return validation
    if isinstance(validation, (np.integer, np.floating)):
        validation = validation.item()
    number = isinstance(validation, (int, float)) and not isinstance(validation, bool)
    if not number or not (
        2 <= validation <= n if isinstance(validation, int) else 0 < validation < 1
    ):
        raise InputError(
            f"validation={validation!r} must be a fraction between 0 and 1, a number of folds from "
            f"2 to {n} (the number of rows), 'time', 'blocks' or 'auto', or True for every row to "
            "hold out"
        )
    return validation


def _mask(validation: Any, n: int) -> NDArray[np.bool_]:
    """Which rows are held out."""
    mask = np.asarray(validation)
    if mask.dtype != bool or mask.shape != (n,):
        raise InputError(
            f"validation is an array of {mask.dtype} and shape {mask.shape}; give {n} times True "
            "or False, one per row"
        )
    if not mask.any() or n - mask.sum() < 2:
        raise InputError(
            f"validation holds out {mask.sum():,} of {n:,} rows; leave at least 2, and hold out 1"
        )
    return mask


def check_row_groups(row_groups: Any, n: int) -> NDArray | None:
    """One label per row, as an array; None if there are none."""
    if row_groups is None:
        return None
    labels = np.asarray(row_groups)
    if labels.ndim != 1:
        raise InputError(f"row_groups has shape {labels.shape}; give {n} labels")
    if len(labels) != n:
        raise InputError(f"row_groups has {len(labels)} labels for {n} rows; give one per row")
    blank = [
        at
        for at, label in enumerate(labels.tolist())
        if label is None or (isinstance(label, float) and math.isnan(label))
    ]
    if blank:
        raise InputError(
            f"row_groups of row {blank[0]} is {labels[blank[0]]!r}; give every row a label, "
            "one of its own where it belongs to no group"
        )
    labels = labels.astype(str) if labels.dtype.kind == "O" else labels
    if len(np.unique(labels)) < 2:
        raise InputError("row_groups has a single label; give at least 2, or omit it")
    return labels


# -- scaling -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Scaling:
    """How features are scaled: "standard" (to unit variance) or "none".

    With ``weights``, the squared error of each feature counts so many times: their roots are
    factors of the scaled values.
    """

    how: str
    weights: Vector | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        check_choice("scale", self.how, ("standard", "none"))

    def fit(self, mean: Vector, variance: Vector) -> tuple[Vector, Vector]:
        """Center and scale of every feature; constant features keep their unit."""
        root = 1.0 if self.weights is None else np.sqrt(self.weights)
        if self.how == "none":
            return np.zeros(len(mean)), np.ones(len(mean)) / root
        spread = np.sqrt(variance)
        return mean, np.where(spread > 0, spread, 1.0) / root


# -- fold covariances --------------------------------------------------------------------------

# some rows as a sum of parts: signs and part numbers
Terms = tuple[tuple[int, int], ...]


@dataclass(frozen=True, eq=False)
class Part:
    """Mean (in the units of the data) and covariance (in ``units``) of n rows.

    Where rows have weights, n is their sum.
    """

    n: float
    mean: Tensor
    matrix: Matrix
    units: Vector


@dataclass(frozen=True, eq=False)
class _Grams:
    """Products of the training rows X and held-out rows Y of a fold of wide data."""

    train: Tensor  # X X'
    cross: Tensor  # X Y'
    held: float  # sum of squares of Y


class FoldCovariances:
    """Covariances of parts of the rows, whose sums are those of every fold and of all rows.

    With several folds the parts are what each holds out. A single fold keeps its training rows
    and all rows, each in its own scaled units, so that neither has to be copied; their difference
    is the held-out part. ``everything`` is the fold that trains on all rows and holds out none.

    With ``row_weights``, on average 1, means and covariances are weighted, and so are all errors.

    With ``noise``, the variance of the measurement error of each feature in the units of the data,
    the covariances are those of what is behind it (the signal S = C - N), and so are all errors:
    with B = (S_SS + N_SS)^-1 S_S, the mean squared error of feature j is

        S_jj - 2 (B' S_S)_jj + (B' (S_SS + N_SS) B)_jj.
    """

    def __init__(
        self,
        source: Source,
        stats: Moments,
        splits: Splits,
        scaling: Scaling,
        parts: Sequence[Summary],
        whole: Summary | None = None,
        noise: Vector | None = None,
        row_weights: Vector | None = None,
    ) -> None:
        self.noise, self.row_weights = noise, row_weights
        self.chosen = 0  # features on a panel, if it is known
        self.source, self.stats, self.splits, self.scaling = source, stats, splits, scaling
        ones = np.ones(len(stats.mean))
        means = [part.mean.cpu() for part in parts]
        if stats.has_missing:
            means = [
                _known_mean(RowView(source, rows), mean, stats)
                for rows, mean in zip(splits.parts, means, strict=True)
            ]
        self.parts = [
            Part(part.n, mean, part.matrix, ones) for part, mean in zip(parts, means, strict=True)
        ]
        self._train: list[Terms] = [tuple((1, p) for p in train) for train, _ in splits.folds]
        self._held: list[Terms] = [((1, held),) for _, held in splits.folds]
        self._all: Terms = tuple((1, p) for p in range(len(parts)))
        if whole is not None:  # with missing values, which each summary replaces by its own mean
            self._all = ((1, len(self.parts)),)
            self.parts.append(Part(whole.n, whole.mean.cpu(), whole.matrix, ones))
        if noise is not None:
            for part in self.parts:
                assert isinstance(part.matrix, Tensor)
                part.matrix.diagonal().sub_(torch.from_numpy(noise).to(part.matrix.device))
        self.folds = [self._fold(number) for number in range(len(splits))]
        self.everything = Fold(
            self, None, self.mean(self._all), *scaling.fit(stats.mean, stats.variance)
        )
        # the one training covariance that is assembled at a time, by fold number and scale
        self._assembled: tuple[tuple[int | None, bytes], Matrix] | None = None
        self._for_choice: tuple[tuple[int | None, bytes], Matrix] | None = None
        # of every fold of wide data whose rows have been assembled
        self._grams: dict[tuple[int | None, bytes], _Grams] = {}
        if len(splits) == 1 and whole is None and not self.factored:
            self._keep_train_and_all()

    @property
    def factored(self) -> bool:
        """Whether parts are kept as their rows, since the data are wide."""
        return isinstance(self.parts[0].matrix, FactoredCovariance)

    @property
    def nbytes(self) -> int:
        """Memory of the parts."""
        matrices = [part.matrix for part in self.parts]
        kept = [m.rows if isinstance(m, FactoredCovariance) else m for m in matrices]
        return sum(matrix.nbytes for matrix in kept)

    def _fold(self, number: int) -> "Fold":
        """One fold, scaled by its training rows.

        The other rows count too where a feature hardly varies in the training rows: otherwise a
        few values about which nothing can be learned would dominate the error.
        """
        train, held = self._train[number], self._held[number]
        mean = self.mean(train)
        variance, out = self.diagonal(train, mean), self.diagonal(held, mean)
        n_train, n_held = self._count(train), self._count(held)
        total = (n_train * variance + n_held * out) / (n_train + n_held)
        if len(train) + len(held) < len(self.parts):  # halves of the rows hold out only a part
            total = np.maximum(total, self.diagonal(self._all, self.mean(self._all)))
        spread = np.maximum(variance, HARDLY_VARIES * total)
        spread += 0.0 if self.noise is None else self.noise  # as measured
        return Fold(self, number, mean, *self.scaling.fit(mean.numpy(), spread))

    def _keep_train_and_all(self) -> None:
        """Turn the held-out part into all rows, in place, and scale both."""
        held, train = self.parts
        n, mean = held.n + train.n, self.everything.mean
        whole, own = held.matrix, train.matrix
        assert isinstance(whole, Tensor)
        assert isinstance(own, Tensor)
        whole.mul_(held.n / n).add_(own, alpha=train.n / n)
        for part in (held, train):
            gap = (part.mean - mean).to(whole.device)
            whole.addr_(gap, gap, alpha=part.n / n)
        for fold, matrix in ((self.everything, whole), (self.folds[0], own)):
            ratio = torch.from_numpy(1 / fold.scale).to(matrix.device)
            matrix.mul_(ratio).mul_(ratio[:, None])
        self.parts = [
            Part(n, mean, whole, self.everything.scale),
            Part(train.n, train.mean, own, self.folds[0].scale),
        ]
        self._all, self._train, self._held = ((1, 0),), [((1, 1),)], [((1, 0), (-1, 1))]

    def terms(self, number: int | None, *, held: bool = False) -> Terms:
        """The training rows of a fold, or its held-out rows; all rows if ``number`` is None."""
        if number is None:
            return self._all
        return self._held[number] if held else self._train[number]

    def _count(self, terms: Terms) -> float:
        return sum(sign * self.parts[p].n for sign, p in terms)

    def _weighted(self, terms: Terms) -> Iterator[tuple[float, Part]]:
        n = self._count(terms)
        for sign, p in terms:
            yield sign * self.parts[p].n / n, self.parts[p]

    def mean(self, terms: Terms) -> Tensor:
        """Mean of some rows, in the units of the data."""
        return torch.stack([part.mean * weight for weight, part in self._weighted(terms)]).sum(0)

    def diagonal(self, terms: Terms, mean: Tensor) -> Vector:
        """Mean squares of some rows about a mean, per feature, in the units of the data."""
        found = np.zeros(len(mean))
        for weight, part in self._weighted(terms):
            own = part.matrix.diagonal().cpu().numpy() * part.units**2
            found += weight * (own + (part.mean - mean).numpy() ** 2)
        return np.maximum(found, 0.0) if self.noise is None else found

    def rows_of(self, terms: Terms, mean: Tensor, columns: Tensor) -> Tensor:
        """Rows (k x d) of the second moments of some rows about a mean, in data units."""
        found = torch.zeros(len(columns), len(mean), dtype=torch.float64)
        for weight, part in self._weighted(terms):
            units, gap = torch.from_numpy(part.units), part.mean - mean
            own = part.matrix[columns.to(part.matrix.device)].cpu()
            found += own.mul_(units).mul_(units[columns][:, None]).mul_(weight)
            found.addr_(gap[columns], gap, alpha=weight)
        return found

    def product(self, terms: Terms, mean: Tensor, axes: Tensor) -> Tensor:
        """Second moments of some rows about a mean, in data units, times d x m axes."""
        found = torch.zeros_like(axes)
        for weight, part in self._weighted(terms):
            units, gap = torch.from_numpy(part.units)[:, None], (part.mean - mean)[:, None]
            turned = part.matrix @ (units * axes).to(part.matrix.device)
            found += weight * (units * turned.cpu() + gap @ (gap.T @ axes))
        return found

    def assemble(self, fold: "Fold") -> Matrix:
        """Covariance of a fold's training rows in scaled units; valid until the next call."""
        key = (fold.number, fold.scale.tobytes())
        known = self._assembled  # which another thread may replace
        if known is None or known[0] != key:
            known = self._assembled = None  # free it before another is made
            if self.factored:
                C = FactoredCovariance(self.rows(fold, self.terms(fold.number)))
                known = (key, C)
                if fold.number is not None and key not in self._grams:
                    Y = self.rows(fold, self.terms(fold.number, held=True))
                    held = float(torch.linalg.norm(Y)) ** 2
                    self._grams[key] = _Grams(C.gram, C.rows @ Y.T, held)
            else:
                matrix = self._sum(fold)
                shared = any(matrix is part.matrix for part in self.parts)
                known = (key, fold.with_own_noise(matrix, shared=shared))
            self._assembled = known
        return known[1]

    def assemble_for_choice(self, fold: "Fold") -> Matrix:
        """`assemble`; with noise and few rows, without the correlations that chance explains."""
        matrix = self.assemble(fold)
        if not fold.chancy:
            return matrix
        assert isinstance(matrix, Tensor)
        assert fold.noise is not None
        key = (fold.number, fold.scale.tobytes())
        known = self._for_choice
        if known is None or known[0] != key:
            known = self._for_choice = None
            known = self._for_choice = (key, without_chance(matrix, fold.noise, fold.n_train))
        return known[1]

    def release(self) -> None:
        """Free the covariance that is assembled; it is assembled again when it is needed."""
        self._assembled = self._for_choice = None

    def rows(self, fold: "Fold", terms: Terms, columns: Tensor | None = None) -> Tensor:
        """Rows of wide data about a fold's training mean, in its units, over their root number."""
        n = int(self._count(terms))
        scale = torch.from_numpy(fold.scale)
        device, d = self.parts[0].matrix.device, len(scale)
        found = torch.empty(
            n, d if columns is None else len(columns), dtype=torch.float64, device=device
        )
        start = 0
        for _, p in terms:
            part = self.parts[p]
            assert isinstance(part.matrix, FactoredCovariance)
            own, gap, unit = part.matrix.rows, part.mean - fold.mean, scale
            if columns is not None:
                own, gap, unit = own[:, columns.to(device)], gap[columns], unit[columns]
            here = found[start : start + int(part.n)]
            torch.mul(own, (part.n / n) ** 0.5, out=here)
            here.add_((gap / n**0.5).to(device)).div_(unit.to(device))
            start += int(part.n)
        return found

    def grams(self, fold: "Fold") -> _Grams:
        """Products of a fold's training and held-out rows."""
        key = (fold.number, fold.scale.tobytes())
        if key not in self._grams:
            self.assemble(fold)
        return self._grams[key]

    def _sum(self, fold: "Fold") -> Tensor:
        terms = list(self._weighted(self.terms(fold.number)))
        first = terms[0][1].matrix
        assert isinstance(first, Tensor)
        ratio = torch.from_numpy(terms[0][1].units / fold.scale).to(first.device)
        same = bool((ratio == 1).all())
        if len(terms) == 1 and same:
            return first
        matrix = first * terms[0][0]
        for weight, part in terms[1:]:
            assert isinstance(part.matrix, Tensor)
            matrix.add_(part.matrix, alpha=weight)
        if not same:
            matrix.mul_(ratio).mul_(ratio[:, None])
        for weight, part in terms if len(terms) > 1 else ():
            gap = ((part.mean - fold.mean) / torch.from_numpy(fold.scale)).to(matrix.device)
            matrix.addr_(gap, gap, alpha=weight)
        return matrix


@dataclass(frozen=True, eq=False)
class Fold:
    """Training rows and held-out rows, in the scaled units (x - center) / scale."""

    covariances: FoldCovariances
    number: int | None  # None is all rows, with none held out
    mean: Tensor  # of the training rows, in the units of the data
    center: Vector
    scale: Vector

    @property
    def train_rows(self) -> Columns:
        """Numbers of the training rows, ascending."""
        splits = self.covariances.splits
        return np.arange(splits.n) if self.number is None else splits.train_rows(self.number)

    @property
    def matrix_rows(self) -> Columns:
        """Numbers of the training rows in the order of `matrix`, where that is their rows."""
        parts = [*self.covariances.splits.parts, np.arange(self.covariances.splits.n)]
        return np.concatenate([parts[p] for _, p in self.covariances.terms(self.number)])

    @property
    def held_rows(self) -> Columns:
        """Numbers of the held-out rows, ascending."""
        splits = self.covariances.splits
        return np.arange(0) if self.number is None else splits.held_rows(self.number)

    @property
    def n_train(self) -> int:
        """Number of training rows."""
        return len(self.train_rows)

    @property
    def n_held(self) -> int:
        """Number of held-out rows."""
        return len(self.held_rows)

    def weights_of(self, rows: Columns) -> Vector | None:
        """Weights of some rows, on average 1 over all rows; None where all count the same."""
        weights = self.covariances.row_weights
        return None if weights is None else weights[rows]

    @property
    def held_weight(self) -> float:
        """Sum of the weights of the held-out rows; their number where all count the same."""
        weights = self.weights_of(self.held_rows)
        return float(self.n_held) if weights is None else float(weights.sum())

    def unit(self, metric: str) -> Vector:
        """Of each feature in a metric: "units", as in the data, or "equal", as it is scaled."""
        weights = self.covariances.scaling.weights
        if metric == "equal":
            return self.scale
        return np.ones(len(self.scale)) if weights is None else 1 / np.sqrt(weights)

    def rows(self, index: Columns) -> Source:
        """Some rows in scaled units."""
        return ScaledSource(RowView(self.covariances.source, index), self.center, self.scale)

    @property
    def train_source(self) -> Source:
        """The training rows in scaled units."""
        return self.rows(self.train_rows)

    @property
    def scaled_mean(self) -> Tensor:
        """Mean of the training rows in scaled units."""
        return (self.mean - torch.from_numpy(self.center)) / torch.from_numpy(self.scale)

    def matrix(self) -> Matrix:
        """Covariance of the training rows, d x d; valid until that of another fold is computed."""
        return self.covariances.assemble(self)

    def matrix_for_choice(self) -> Matrix:
        """What a search minimises the residual of; `matrix`, or a better estimate of the signal."""
        return self.covariances.assemble_for_choice(self)

    @property
    def chancy(self) -> bool:
        """Whether rows are so few that chance correlations of noisy features matter."""
        return self.noise is not None and self.n_train < FEW_ROWS * len(self.scale)

    @cached_property
    def _noise(self) -> tuple[Tensor, Tensor] | None:
        """Noise in scaled units, and what it is less than in all rows: few rows may vary less."""
        if self.covariances.noise is None:
            return None
        whole = self.covariances.noise / self.scale**2
        signal = self.covariances.diagonal(self.covariances.terms(self.number), self.mean)
        measured = np.maximum(signal / self.scale**2 + whole, 0.0)
        own = np.minimum(whole, (1 - LEAST_SIGNAL) * measured)
        return torch.from_numpy(own), torch.from_numpy(whole - own)

    @property
    def noise(self) -> Tensor | None:
        """Variance of the measurement error of each feature, in scaled units."""
        return None if self._noise is None else self._noise[0]

    def _signal(self, diagonal: Vector) -> Vector:
        """Variances of the parts, which lack the noise in all rows, with that of this fold."""
        return diagonal if self._noise is None else diagonal + self._noise[1].numpy()

    def with_own_noise(self, matrix: Tensor, *, shared: bool) -> Tensor:
        """A covariance that lacks the noise in all rows on its diagonal, with that of this fold."""
        if self._noise is None or not self._noise[1].any():
            return matrix
        matrix = matrix.clone() if shared else matrix
        matrix.diagonal().add_(self._noise[1].to(matrix.device))
        return matrix

    def penalty(self, ridge: float) -> Penalty:
        """What is added to the variance of each feature as an input: a penalty, and its noise.

        Weights do not change what features are as inputs. With noise, penalties are in proportion
        to the measured variances, as if all errors were larger.
        """
        found: Penalty = ridge
        if self.noise is not None:
            measured = torch.from_numpy(self.measured_variance)
            return self.noise + ridge * measured / measured.mean()
        if self.covariances.scaling.weights is not None:
            found = ridge * torch.from_numpy(self.covariances.scaling.weights)
        return found

    def penalty_for_choice(self, C: Matrix, ridge: float = 0.0) -> Penalty:
        """`penalty` beside `matrix_for_choice` C: variance that is not in it counts as noise.

        Few rows inflate the noise by :math:`(1 - k / n)^{-2}`, as generalised cross-validation does
        the error of k predictors (Golub, Heath and Wahba, 1979).
        """
        found = self.penalty(ridge)
        if not self.chancy:
            return found
        dropped = (torch.from_numpy(self.variance) - C.diagonal().cpu()).clamp_min(0.0)
        return (found + dropped) / (
            1 - min(self.covariances.chosen / self.n_train, MOST_FITTED)
        ) ** 2

    @property
    def variance(self) -> Vector:
        """Of each feature over the training rows; of what is behind its noise."""
        terms = self.covariances.terms(self.number)
        return self._signal(self.covariances.diagonal(terms, self.mean) / self.scale**2)

    @property
    def measured_variance(self) -> Vector:
        """Of each feature over the training rows, as it is measured."""
        return self.variance if self.noise is None else self.variance + self.noise.numpy()

    def moments(self, device: torch.device | str | None = None) -> Moments:
        """What each feature looks like over the training rows, in scaled units.

        Unless values are missing, the rows are not read again, and ranges are known of constant
        features only.
        """
        if self.covariances.stats.has_missing:
            return moments(self.train_source, device)
        mean, variance = self.scaled_mean.numpy(), self.measured_variance
        gap = np.where(variance > 0, np.inf, 0.0)
        observed = np.full(len(mean), self.n_train)
        return Moments(self.n_train, observed, mean, variance, mean - gap, mean + gap)

    @property
    def _held(self) -> Terms:
        return self.covariances.terms(self.number, held=True)

    @property
    def held_mean(self) -> Tensor:
        """Mean of the held-out rows, in the units of the data."""
        return self.covariances.mean(self._held)

    @property
    def held_diagonal(self) -> Tensor:
        """Mean squares of the held-out rows about the training mean, per feature."""
        found = self.covariances.diagonal(self._held, self.mean) / self.scale**2
        return torch.from_numpy(self._signal(found))

    def held_squares(self, mean: Tensor) -> Vector:
        """Mean squares of the held-out rows about any mean, per feature, in data units."""
        found = self.covariances.diagonal(self._held, mean)
        more = 0.0 if self._noise is None else self._noise[1].numpy() * self.scale**2
        return found + more

    def held_product(self, axes: Tensor) -> Tensor:
        """Second moments of the held-out rows about the training mean, times d x m axes."""
        unit = torch.from_numpy(1 / self.scale)[:, None]
        found = unit * self.covariances.product(self._held, self.mean, unit * axes)
        return found if self._noise is None else found + self._noise[1][:, None] * axes

    def _scaled_rows(self, terms: Terms, columns: Columns) -> Tensor:
        ratio, at = torch.from_numpy(1 / self.scale), torch.from_numpy(columns)
        rows = self.covariances.rows_of(terms, self.mean, at)
        rows.mul_(ratio).mul_(ratio[at][:, None])
        if self._noise is not None:
            rows[torch.arange(len(at)), at] += self._noise[1][at]
        return rows

    def cross(self, columns: Columns) -> Tensor:
        """Covariance (k x d) of these columns with all on the training rows, in scaled units."""
        return self._scaled_rows(self.covariances.terms(self.number), columns)

    def gram(self, columns: Columns) -> Tensor:
        """Covariance of these columns as they are measured, on the training rows."""
        found = self.cross(columns)[:, columns].clone()
        if self.noise is not None:
            found.diagonal().add_(self.noise[columns])
        return found

    def decoder(self, columns: Columns, ridge: float = 0.0) -> Tensor:
        """Best linear map (k x d) from these columns on the training rows, in scaled units."""
        rows = self.cross(columns)
        penalty = penalty_at(self.penalty(ridge), torch.from_numpy(columns))
        return solve_normal(rows[:, columns], rows, penalty)

    def residuals(self, columns: Columns, decoder: Tensor) -> Tensor:
        """Mean squared residual of each feature on the held-out rows, in scaled units."""
        held = self._scaled_rows(self._held, columns)
        return _residuals(decoder, self.held_diagonal, held, columns, self.noise)

    def path_residuals(self, order: Columns, ridge: float = 0.0) -> Tensor:
        r"""`residuals` from the first 1, 2, ..., k of these columns (k x d); 0 once measured.

        With :math:`L L^\top = C_{SS} + \lambda I`, :math:`W = L^{-1} C_S` and, of the held-out
        rows, :math:`T = L^{-1} H_S` and :math:`Q = L^{-1} H_{SS} L^{-\top}`, column m changes the
        residual of feature i by :math:`W_{mi} (Q_{mm} W_{mi} + 2 \sum_{l < m} Q_{ml} W_{li} -
        2 T_{mi})`: one factorisation serves all sizes.
        """
        train = self._scaled_rows(self.covariances.terms(self.number), order)
        held = self._scaled_rows(self._held, order)
        A, inner, noise = train[:, order], held[:, order], self.noise
        # columns that depend on earlier ones get a weight of 0, up to rounding
        A.diagonal().mul_(1 + DEPENDENT).add_(1e-300)
        A.diagonal().add_(penalty_at(self.penalty(ridge), torch.from_numpy(order)))
        if noise is not None:
            inner.diagonal().add_(noise[order])
        L, failed = torch.linalg.cholesky_ex(A)
        more = DEPENDENT * float(A.diagonal().mean())
        while failed:  # columns that hardly vary in these rows
            A.diagonal().add_(more)
            L, failed = torch.linalg.cholesky_ex(A)
            more *= 10
        W = torch.linalg.solve_triangular(L, train, upper=False)
        T = torch.linalg.solve_triangular(L, held, upper=False)
        Q = torch.linalg.solve_triangular(L, inner, upper=False)
        Q = torch.linalg.solve_triangular(L, Q.T, upper=False)
        change = W * (Q.diagonal()[:, None] * W + 2 * (Q.tril(-1) @ W - T))
        found = self.held_diagonal + change.cumsum(0)
        if noise is not None:
            return found
        places = torch.arange(len(order))
        found[:, order] = found[:, order].masked_fill(places[:, None] >= places, 0.0)
        return found.clamp_min_(0.0)

    def error(self, columns: Columns, ridge: float = 0.0, *, known: bool = False) -> float:
        """Mean squared residual on the held-out rows; 0 for the columns where they are known."""
        return self.errors(columns, [ridge], known=known)[0]

    def errors(
        self, columns: Columns, ridges: Sequence[float], *, known: bool = False
    ) -> list[float]:
        """`error` for each of several penalties."""
        if self.covariances.factored:
            grams = self.covariances.grams(self)
            with for_operations(grams.train.numel()):  # short products: threads would wait
                return self._errors_of_rows(grams, columns, ridges, known)
        train = self._scaled_rows(self.covariances.terms(self.number), columns)
        held, diagonal = self._scaled_rows(self._held, columns), self.held_diagonal
        found = []
        at = torch.from_numpy(columns)
        for ridge in ridges:
            decoder = solve_normal(train[:, columns], train, penalty_at(self.penalty(ridge), at))
            each = _residuals(decoder, diagonal, held, columns, self.noise)
            if known and self.noise is None:
                each[columns] = 0.0
            found.append(float(each.sum()) / len(each))
        return found

    def _errors_of_rows(
        self, grams: _Grams, columns: Columns, ridges: Sequence[float], known: bool
    ) -> list[float]:
        covariances, at = self.covariances, torch.from_numpy(columns)
        Z = covariances.rows(self, covariances.terms(self.number), at)  # X_S
        Y = covariances.rows(self, self._held, at)  # Y_S
        values, vectors = torch.linalg.eigh(Z.T @ Z)
        values = values.clamp_min_(0)
        right, left = vectors.T @ Z.T, Y @ vectors  # W = left / (values + ridge) right
        gram, cross = right @ grams.train @ right.T, right @ grams.cross
        found = []
        for ridge in ridges:
            if ridge == 0:  # which may be singular
                W = Y @ solve_normal(Z.T @ Z, Z.T)
                total = float((W * (W @ grams.train - 2 * grams.cross.T)).sum())
                own = Y - W @ Z
            else:
                weighted = left / (values + ridge)
                total = float((weighted.T @ weighted * gram).sum() - 2 * (weighted.T * cross).sum())
                own = left * (ridge / (values + ridge))
            total += grams.held - (float(own.square().sum()) if known else 0.0)
            found.append(total / len(self.scale))
        return found


def _residuals(
    decoder: Tensor, diagonal: Tensor, held: Tensor, columns: Columns, noise: Tensor | None = None
) -> Tensor:
    """Mean squared residuals, from the second moments of held-out rows: diagonal, k x d rows."""
    inside = (decoder * (held[:, columns] @ decoder)).sum(0)
    if noise is not None:
        inside = inside + noise[columns] @ decoder.square()
    return diagonal - 2 * (decoder * held).sum(0) + inside


def fold_covariances(
    source: Source,
    splits: Splits,
    scaling: str | Scaling = "none",
    device: torch.device | None = None,
    noise: Vector | None = None,
    row_weights: Vector | None = None,
) -> FoldCovariances:
    """Read the rows once and keep the covariance of every part of them.

    ``row_weights`` are on average 1. Where values are missing, or the device cannot hold all parts
    at once, each part is read separately. Every process reads its own rows, and all get the result.
    """
    scaling = Scaling(scaling) if isinstance(scaling, str) else scaling
    if row_weights is not None:
        found = _weighted_parts(source, splits, row_weights, device)
        return FoldCovariances(source, found[0], splits, scaling, *found[1:], noise, row_weights)
    if is_wide(source) and noise is None and scaling.weights is None:
        with for_operations(math.prod(source.shape), LONG_PASS):
            found = part_factors(source, splits.labels, len(splits.parts), device)
        return FoldCovariances(source, found[0], splits, scaling, *found[1:])
    stats, parts = part_covariances(source, splits.labels, len(splits.parts), device)
    if stats is not None and parts is not None:
        return FoldCovariances(source, stats, splits, scaling, parts, noise=noise)
    stats = moments(source, device) if stats is None else stats
    parts = [_on_cpu(covariance(RowView(source, rows), device=device)) for rows in splits.parts]
    whole = _on_cpu(covariance(source, device=device)) if stats.has_missing else None
    return FoldCovariances(source, stats, splits, scaling, parts, whole, noise)


def _known_mean(rows: Source, mean: Tensor, stats: Moments) -> Tensor:
    """The mean of some rows, of features without any value there that of all rows.

    Nothing is then explained, and nothing is wrong, of a feature that no training row has.
    """
    if (stats.observed > stats.n - rows.shape[0]).all():  # too many values to lie elsewhere
        return mean
    absent = torch.from_numpy(moments(rows).observed == 0)
    return torch.where(absent, torch.from_numpy(stats.mean), mean)


class _RootWeighted(View):
    """Rows about a center times the roots of their weights, with these roots as a last column.

    Second moments about zero then hold the sums of weights, of weighted rows and of their products.
    Missing values are those of the center, which adds nothing.
    """

    dtype = np.dtype(np.float64)
    is_sparse = False
    names = None

    def __init__(self, source: Source, center: Vector, weights: Vector) -> None:
        super().__init__(source)
        self.shape = source.shape[0], source.shape[1] + 1
        self.center, self.roots = torch.from_numpy(center), torch.from_numpy(np.sqrt(weights))

    def over(self, source: Source | None, rows: np.ndarray) -> Self:
        other = super().over(source, rows)
        other.roots = self.roots[torch.from_numpy(rows)]
        return other

    def rows(self, index: np.ndarray | slice, dtype: torch.dtype = torch.float32) -> Tensor:
        x = self.source.rows(index, torch.float64).sub_(self.center).nan_to_num_(nan=0.0)
        root = self.roots[index][:, None]
        return torch.cat([x.mul_(root), root], 1).to(dtype)

    def sparse_rows(self, index: np.ndarray | slice) -> None:
        return None


def _weighted_parts(
    source: Source, splits: Splits, weights: Vector, device: torch.device | None
) -> tuple[Moments, list[Summary], Summary | None]:
    """Weighted moments of all rows, and the weighted covariance of each part."""
    stats = moments(source, device)
    center = stats.mean
    if stats.has_missing:  # missing values count as the weighted mean of the others
        total, seen = np.zeros(len(center)), np.zeros(len(center))
        for rows, x in read_blocks(source):
            w = torch.from_numpy(weights[rows])
            total += (w @ (x - torch.from_numpy(center)).nan_to_num(nan=0.0).double()).numpy()
            seen += (w @ (~torch.isnan(x)).double()).numpy()
        center = center + total / np.where(seen > 0, seen, 1.0)
    view = _RootWeighted(source, center, weights)
    _, found = part_covariances(view, splits.labels, len(splits.parts), device)
    if found is None:
        found = [_on_cpu(covariance(RowView(view, rows), device=device)) for rows in splits.parts]
    parts, middle = [], torch.from_numpy(center)
    for one in found:
        mean, products = one.mean.cpu(), one.matrix.cpu()
        products.addr_(mean, mean)  # about zero
        share = max(float(products[-1, -1]), 1e-300)  # all weights of a part may be 0
        gap = products[:-1, -1] / share
        matrix = (products[:-1, :-1] / share).addr_(gap, gap, alpha=-1)
        parts.append(Covariance(one.n * share, middle + gap, matrix))  # type: ignore[arg-type]
    n = sum(part.n for part in parts)
    mean = sum((part.mean * (part.n / n) for part in parts), torch.zeros_like(middle))
    squares = [
        (part.matrix.diagonal() + (part.mean - mean).square()) * (part.n / n) for part in parts
    ]
    variance = sum(squares, torch.zeros_like(middle)).clamp_min(0)
    stats = replace(stats, mean=mean.numpy(), variance=variance.numpy())
    return stats, list(parts), None


def _on_cpu(found: Covariance) -> Covariance:
    return Covariance(found.n, found.mean.cpu(), found.matrix.cpu())


def ridge_errors(
    folds: Sequence[Fold], panels: Sequence[Columns], ridges: Sequence[float] = RIDGES
) -> tuple[list[float], NDArray[np.float64]]:
    """Penalties and their errors on held-out rows (folds x penalties), with one panel per fold.

    ``ridges`` are the penalties to try, in units of the mean variance of the first fold.
    """
    unit = float(np.mean(folds[0].variance))
    pairs = zip(folds, panels, strict=True)
    penalties = [ridge * unit for ridge in ridges]
    table = [fold.errors(panel, penalties, known=True) for fold, panel in pairs]
    return penalties, np.array(table)


def best_ridge(
    folds: Sequence[Fold], panels: Sequence[Columns], ridges: Sequence[float] = RIDGES
) -> float:
    """The penalty that does best on held-out rows, as `ridge_errors` measures it."""
    tried, table = ridge_errors(folds, panels, ridges)
    return tried[int(table.mean(axis=0).argmin())]


def paired_interval(
    gaps: Vector, folds: Columns, groups: NDArray | None = None, level: float = 0.95
) -> tuple[float, float, float]:
    """Mean of paired differences of rows, and an interval of it.

    The interval is the wider of two: over rows, or over groups of rows where rows of one group
    are alike; and over folds, by Student's t with the correction of Nadeau and Bengio (2003) for
    the training rows that folds share. ``folds`` is the fold that held out each row.
    """
    mean, n = float(gaps.mean()), len(gaps)
    labels = np.arange(n) if groups is None else np.unique(groups, return_inverse=True)[1]
    sums = np.bincount(labels, weights=gaps - mean)
    count = len(sums)
    half = 0.0
    if count > 1:
        error = (float((sums**2).sum()) * count / (count - 1)) ** 0.5 / n
        half = float(stdtrit(count - 1, (1 + level) / 2)) * error
    numbers = np.unique(folds)
    if len(numbers) > 1:
        means = np.array([gaps[folds == number].mean() for number in numbers])
        f = len(numbers)
        error = float(means.std(ddof=1)) * (1 / f + 1 / (f - 1)) ** 0.5
        half = max(half, float(stdtrit(f - 1, (1 + level) / 2)) * error)
    return mean, mean - half, mean + half
