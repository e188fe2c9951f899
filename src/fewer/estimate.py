r"""Scores of held-out rows with their standard errors: one protocol for every command.

Rows are held out in folds. With :math:`e_b` the sum of squared errors in the held-out rows of fold
b, and :math:`t_b` their sum of squares about the mean of all held-out rows, the explained variance
is :math:`1 - \sum_b e_b / \sum_b t_b`, with the jackknife's standard error of such a ratio,
corrected for training rows that folds share. Where there is a single split, or networks are too
expensive for many folds, the sums are those of rows, or of groups of rows, instead.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import stdtrit
from torch import Tensor

from fewer._checks import check_number, check_whole
from fewer._tables import percent_text
from fewer._threads import for_operations
from fewer.data.source import RowView, Source, read_blocks, reduce_rows, shard_of_rank
from fewer.distributed import all_or_raise, all_reduce, shard_bounds
from fewer.nn import MeasuredDecoder
from fewer.validation import (
    RIDGES,
    ROWS_PER_FEATURE,
    Fold,
    FoldCovariances,
    Splits,
    ridge_errors,
)

__all__ = [
    "ErrorSums",
    "Estimate",
    "HeldOutSums",
    "Score",
    "about_common_mean",
    "describe_protocol",
    "estimate_over_rows",
    "fold_ridges",
    "held_out_squares",
    "linear_map",
    "panel_sums",
    "penalties",
    "pooled_squares",
    "ratio_of_sums",
    "ridge_of_others",
    "scaled_estimate",
    "shared_rows",
    "squares_about_common_mean",
    "sums_of_groups",
    "sums_of_rows",
    "sums_over_rows",
    "without_noise",
]

Columns = NDArray[np.int64]
Vector = NDArray[np.float64]
Visit = Callable[[slice, Tensor, Tensor], None]

ROUNDING = 1e-12  # of the sum of squares


class Estimate(NamedTuple):
    """A score, its standard error (None if unknown) and the degrees of freedom of that.

    ``sampling_error`` is the part of the standard error that comes from which rows were held out,
    ``units`` in number (rows, or groups of rows); the rest is that of choosing and fitting.
    """

    value: float
    standard_error: float | None = None
    degrees: int | None = None
    sampling_error: float | None = None
    units: int | None = None

    def interval(
        self, level: float = 0.9, new_rows: int | None = None
    ) -> tuple[float, float] | None:
        """As `Score.interval`."""
        check_number("level", level, above=0, below=1)
        error = self.standard_error
        if new_rows is not None and error is not None:
            check_whole("new_rows", new_rows)
            if self.sampling_error is None or self.units is None:
                return None
            error = math.hypot(error, self.sampling_error * math.sqrt(self.units / new_rows))
        if error is None or self.degrees is None:
            return None
        half = float(stdtrit(self.degrees, (1 + level) / 2)) * error
        return self.value - half, self.value + half


class Score(float):
    """Explained variance, 1 - SSE / SST over all entries, with its standard error.

    Attributes
    ----------
    errors : array (d)
        Mean squared error per feature.
    standard_error : float or None
        Over folds, or over rows; None if unknown.
    degrees : int or None
        Degrees of freedom of the standard error.
    sampling_error, units : float and int, or None
        The part of the standard error that comes from which rows were held out, and how many they
        were: rows, or groups of rows.

    Examples
    --------
    >>> score = Score(0.9, errors=np.array([0.1, 0.2]), standard_error=0.01, degrees=4)
    >>> score > 0.8, score.errors
    (True, array([0.1, 0.2]))
    >>> print(score.text())
    90.0% ± 1.0%
    >>> low, high = score.interval(0.9)
    >>> round(low, 3), round(high, 3)
    (0.879, 0.921)
    """

    errors: Vector
    standard_error: float | None
    degrees: int | None
    sampling_error: float | None
    units: int | None

    def __new__(
        cls,
        value: float,
        errors: Vector,
        standard_error: float | None = None,
        degrees: int | None = None,
        sampling_error: float | None = None,
        units: int | None = None,
    ) -> "Score":
        """Attach the errors to a number."""
        self = super().__new__(cls, value)
        self.errors, self.standard_error, self.degrees = errors, standard_error, degrees
        self.sampling_error, self.units = sampling_error, units
        return self

    def __getnewargs__(self) -> tuple[Any, ...]:
        return float(self), self.errors, *self.estimate()[1:]

    def at_most_all(self) -> "Score":
        """Without negative errors, which are chance where the noise is subtracted from few rows."""
        return Score(min(float(self), 1.0), np.maximum(self.errors, 0.0), *self.estimate()[1:])

    def estimate(self) -> Estimate:
        """The score without the errors of single features."""
        parts = self.standard_error, self.degrees, self.sampling_error, self.units
        return Estimate(float(self), *parts)

    def interval(
        self, level: float = 0.9, new_rows: int | None = None
    ) -> tuple[float, float] | None:
        """Interval of the score with this confidence, by Student's t.

        Parameters
        ----------
        level : float, default=0.9
            The confidence.
        new_rows : int, default=None
            None: the interval of the score of all such rows. A number: the interval that contains
            the score of so many new rows (where rows come in groups, so many new groups), which is
            wider, since they are only a sample as well.

        Returns
        -------
        (low, high), or None where the standard error is unknown
        """
        return self.estimate().interval(level, new_rows)

    def text(self) -> str:
        """Percentages for a person: the score and its standard error."""
        return percent_text(float(self), self.standard_error)


def ratio_of_sums(
    wrong: Vector, total: Vector, shared: float = 0.0, units: int | None = None
) -> Estimate:
    """Explained variance from sums of squares per fold (or row, or group of rows).

    The standard error is the jackknife's: from the ratios without each fold in turn. Its square
    is increased by the fraction ``shared``; see `shared_rows`. ``units`` is the number of rows, or
    groups of rows, if it is known.
    """
    count, whole = len(total), float(total.sum())
    if whole <= 0:
        return Estimate(float(wrong.sum() == 0))
    left = float(wrong.sum()) / whole
    if count < 2:
        return Estimate(1.0 - left)
    rest = whole - total
    if not (rest > 0).all():  # all that varies is in one of them
        return Estimate(1.0 - left)
    without = (float(wrong.sum()) - wrong) / rest
    spread = float(((without - without.mean()) ** 2).sum())
    square = (count - 1) / count * spread
    error = ((1 + shared) * square) ** 0.5
    return Estimate(1.0 - left, error, count - 1, None if units is None else square**0.5, units)


def shared_rows(folds: Sequence[Fold]) -> float:
    """What the training rows that folds share add to the square of a standard error.

    Folds differ less than independent samples would, since features are chosen from, and decoders
    fitted on, mostly the same rows. With J folds and held-out and training rows in the ratio r,
    the variance over folds counts 1 / J + r instead of 1 / J (Nadeau and Bengio, 2003).
    """
    return len(folds) * float(np.mean([fold.n_held / max(fold.n_train, 1) for fold in folds]))


def sums_of_groups(values: Vector, groups: NDArray | None) -> Vector:
    """Sums of values per row over groups of rows; the values themselves without groups."""
    if groups is None:
        return values
    labels = np.unique(groups, return_inverse=True)[1]
    return np.bincount(labels, weights=values).astype(np.float64)


def about_common_mean(
    counts: Sequence[Vector], means: Sequence[Vector], squares: Sequence[Vector]
) -> list[Vector]:
    """Sums of squares of parts, given about their own means, about the mean of all parts."""
    total = np.maximum(np.sum(counts, axis=0), 1)
    centre = np.sum([n * mean for n, mean in zip(counts, means, strict=True)], axis=0) / total
    parts = zip(counts, means, squares, strict=True)
    return [own + n * (mean - centre) ** 2 for n, mean, own in parts]


def held_out_squares(folds: Sequence[Fold]) -> list[Vector]:
    """Sums of squares of the held-out rows of each fold about their common mean, per feature.

    From covariances, in the units of the data; rows are complete.
    """
    sizes = np.array([fold.held_weight for fold in folds], dtype=np.float64)
    means = torch.stack([fold.held_mean for fold in folds])
    centre = torch.from_numpy(sizes / sizes.sum()) @ means
    found = [n * fold.held_squares(centre) for n, fold in zip(sizes, folds, strict=True)]
    if folds[0].noise is not None:
        return found
    constant = np.sum(found, axis=0) <= ROUNDING**2 * sizes.sum() * centre.numpy() ** 2
    return [np.where(constant, 0.0, part) for part in found]


class HeldOutSums(NamedTuple):
    """Sums over the observed values of a fold's held-out rows, per feature, in data units."""

    wrong: list[Vector]  # squared errors of each reconstruction
    squares: Vector  # about the rows' own mean
    counts: Vector
    mean: Vector


def sums_of_rows(fold: Fold, reconstruct: Sequence[Callable[[Tensor], Tensor]]) -> HeldOutSums:
    """Read the held-out rows of a fold, some values missing, and reconstruct them in scaled units.

    Missing values that a reconstruction needs are the training mean.
    """
    d, scale = len(fold.scale), torch.from_numpy(fold.scale)
    count, first, second = (torch.zeros(d, dtype=torch.float64) for _ in range(3))
    errors = [torch.zeros(d, dtype=torch.float64) for _ in reconstruct]
    for _, rows in read_blocks(RowView(fold.covariances.source, fold.held_rows)):
        seen = ~torch.isnan(rows)
        x = (rows - fold.mean).nan_to_num_(nan=0.0)
        count += seen.sum(0)
        first += x.sum(0)
        second += x.square().sum(0)
        for wrong, apply in zip(errors, reconstruct, strict=True):
            gap = apply(x / scale) * scale - x
            wrong.add_(torch.where(seen, gap, 0.0).square().sum(0))
    count.clamp_min_(1)
    squares = second - first.square() / count
    squares = torch.where(squares > ROUNDING * second, squares, 0.0)  # constants
    mean = fold.mean + first / count
    found = [wrong.numpy() for wrong in errors]
    return HeldOutSums(found, squares.numpy(), count.numpy(), mean.numpy())


def estimate_over_rows(
    fold: Fold,
    reconstruct: Sequence[Callable[[Tensor], Tensor]],
    groups: NDArray | None = None,
    unit: Tensor | None = None,
) -> Estimate:
    """Explained variance of the only fold, with its standard error over rows, or groups of rows.

    ``reconstruct`` maps centred rows in scaled units, with 0 for missing values; errors are the
    mean over several. Features count in their scaled units, or these times ``unit``.
    """
    wrong, total = [], []
    for _, rows in read_blocks(fold.rows(fold.held_rows)):
        gaps = torch.isnan(rows)
        x = (rows - fold.scaled_mean).masked_fill_(gaps, 0.0)
        weight = torch.ones(x.shape[1], dtype=x.dtype) if unit is None else unit.square().to(x)
        left = [(apply(x) - x).masked_fill_(gaps, 0.0).square_() @ weight for apply in reconstruct]
        wrong.append(torch.stack(left).mean(0).numpy())
        total.append((x.square() @ weight).numpy())
    own = fold.weights_of(fold.held_rows)
    parts = [np.concatenate(part) * (1.0 if own is None else own) for part in (wrong, total)]
    e, t = (sums_of_groups(part, groups) for part in parts)
    return ratio_of_sums(e, t, shared_rows([fold]))


# -- rows and their reconstructions ------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class ErrorSums:
    """Sums over the observed values of rows and their reconstructions."""

    count: Vector  # of values, per feature
    mean: Vector
    squares: Vector  # about the mean
    wrong: Vector  # squared errors
    # over rows, with e and t the squared errors of a row, and its squares about an expected row:
    rows: Vector  # their number, and the sums of e, t, e e, e t and t t

    @property
    def errors(self) -> Vector:
        """Mean squared error per feature."""
        return self.wrong / self.count

    def score(self) -> Score:
        """Explained variance of these rows, with its standard error over rows."""
        total, wrong = float(self.squares.sum()), float(self.wrong.sum())
        if total <= 0:
            return Score(float(wrong == 0), self.errors)
        left, (n, e, t, ee, et, tt) = wrong / total, self.rows
        if n < 2:
            return Score(1.0 - left, self.errors)
        # of e - left t, whose mean is nearly 0
        spread = ee - 2 * left * et + left**2 * tt - (e - left * t) ** 2 / n
        error = float((max(spread, 0.0) * n / (n - 1)) ** 0.5 / total)
        return Score(1.0 - left, self.errors, error, int(n) - 1, error, int(n))


@torch.no_grad()
def sums_over_rows(
    decoder: MeasuredDecoder,
    source: Source,
    columns: Columns,
    visit: Visit | None = None,
    weights: Vector | None = None,
    feature_weights: Vector | None = None,
) -> ErrorSums:
    """Read rows, reconstruct them from their chosen columns, and sum over all processes.

    With ``weights``, one for each row, all sums are weighted; with ``feature_weights``, squares.

    ``visit`` is called with each block that this process reads: row numbers, values and
    reconstructions.
    """
    part, start = shard_of_rank(source), shard_bounds(source.shape[0])[0]
    heavy = None if feature_weights is None else torch.from_numpy(feature_weights)
    work = partial(
        _sums, decoder, columns=columns, visit=visit, start=start, weights=weights, heavy=heavy
    )
    with for_operations(part.shape[0] * part.shape[1]):
        if visit is None:  # rows of a cluster stay there
            sums = all_or_raise(lambda: reduce_rows(part, work, add=_add_up))
        else:
            sums = all_or_raise(lambda: work(part))
    all_reduce(*sums)
    count, first, second, wrong, rows = (one.numpy() for one in sums)
    seen = np.maximum(count, 1)
    squares = second - first**2 / seen * (1.0 if feature_weights is None else feature_weights)
    return ErrorSums(seen, _expected_row(decoder).numpy() + first / seen, squares, wrong, rows)


@torch.no_grad()
def without_noise(
    sums: ErrorSums, noise: Vector, decoder: MeasuredDecoder, columns: Columns
) -> ErrorSums:
    """Sums of errors and squares of the signal, where measurement errors have these variances.

    What was measured of feature j is :math:`s_j + e_j`, and its reconstruction has a part
    :math:`w_j e_j` where it is chosen, so that the mean squared difference of the two is larger
    than the error of the signal by :math:`(1 - 2 w_j) n_j`.
    """
    own = np.zeros(len(noise))
    base = decoder.fill[None].double()
    eye = torch.eye(len(columns), dtype=torch.float64)
    steps = (decoder(base + eye) - decoder(base))[:, torch.from_numpy(columns)]
    own[columns] = steps.diagonal().numpy()
    more = (1 - 2 * own) * noise
    n, e, t, ee, et, tt = sums.rows
    a, b = float(more.sum()), float(noise.sum())  # of each row
    ee, et = ee - 2 * a * e + n * a * a, et - a * t - b * e + n * a * b
    tt = tt - 2 * b * t + n * b * b
    return replace(
        sums,
        wrong=sums.wrong - sums.count * more,
        squares=sums.squares - sums.count * noise,
        rows=np.array([n, e - n * a, t - n * b, ee, et, tt]),
    )


def pooled_squares(parts: list[ErrorSums]) -> list[Vector]:
    """Sums of squares of several parts about the mean of all of them, per feature."""
    return about_common_mean(
        [part.count for part in parts],
        [part.mean for part in parts],
        [part.squares for part in parts],
    )


def _add_up(parts: list[tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
    return tuple(torch.stack(each).sum(0) for each in zip(*parts, strict=True))


def _expected_row(decoder: MeasuredDecoder) -> Tensor:
    """The reconstruction of a mean row."""
    with torch.no_grad():
        return torch.nan_to_num(decoder(decoder.fill[None])[0]).double()


@torch.no_grad()
def _sums(
    decoder: MeasuredDecoder,
    source: Source,
    columns: Columns,
    visit: Visit | None,
    start: int,
    weights: Vector | None = None,
    heavy: Tensor | None = None,
) -> tuple[Tensor, ...]:
    """Per feature: number of values, their sum and squared sum, and the sum of squared errors.

    Then sums over rows, as in `ErrorSums`.
    """
    d = source.shape[1]
    count, first, second, wrong = (torch.zeros(d, dtype=torch.float64) for _ in range(4))
    over_rows = torch.zeros(6, dtype=torch.float64)
    middle = _expected_row(decoder)  # sums about it, for accuracy
    for rows, x in read_blocks(source):
        gaps = torch.isnan(x)
        output = decoder(x[:, columns])
        if visit is not None:
            visit(slice(start + rows.start, start + rows.stop), x, output)
        # in place: blocks of wide rows are large
        left = output.to(x.dtype).sub_(x).masked_fill_(gaps, 0.0).square_()
        w = None
        if weights is not None:
            own = weights[start + rows.start : start + rows.stop]
            w = torch.from_numpy(own)[:, None].to(x.dtype)
            left.mul_(w)
        if heavy is not None:
            left.mul_(heavy)
        wrong += left.sum(0)
        e = left.sum(1).double()
        x.sub_(middle).masked_fill_(gaps, 0.0)
        count += len(x) - gaps.sum(0) if w is None else ((~gaps) * w).sum(0)
        first += x.sum(0) if w is None else (x * w).sum(0)
        squares = x.square_() if w is None else x.square_().mul_(w)
        if heavy is not None:
            squares.mul_(heavy)
        second += squares.sum(0)
        t = squares.sum(1).double()
        over_rows += torch.stack(
            [torch.tensor(len(x)).double(), e.sum(), t.sum(), e @ e, e @ t, t @ t]
        )
    return count, first, second, wrong, over_rows


def panel_sums(
    covariances: FoldCovariances, panels: Sequence[Columns], ridges: Sequence[float]
) -> list[HeldOutSums]:
    """Sums of the held-out rows of each fold, reconstructed linearly from its panel."""
    found = []
    squares = [] if covariances.stats.has_missing else held_out_squares(covariances.folds)
    for at, (fold, panel, ridge) in enumerate(zip(covariances.folds, panels, ridges, strict=True)):
        decoder = fold.decoder(panel, ridge)
        if covariances.stats.has_missing:
            found.append(sums_of_rows(fold, [partial(linear_map, panel, decoder)]))
            continue
        left = fold.residuals(panel, decoder)
        if fold.noise is None:
            left.clamp_min_(0.0)
            left[panel] = 0.0
        count = np.full(len(left), fold.held_weight)
        wrong = fold.held_weight * left.numpy() * fold.scale**2
        found.append(HeldOutSums([wrong], squares[at], count, fold.held_mean.numpy()))
    if covariances.stats.has_missing:
        parts = zip(found, squares_about_common_mean(found), strict=True)
        found = [one._replace(squares=own) for one, own in parts]
    return found


def linear_map(columns: Columns, decoder: Tensor, x: Tensor) -> Tensor:
    """Reconstruct centred rows from some columns, which stay as they are."""
    found = x[:, columns] @ decoder
    found[:, columns] = x[:, columns]
    return found


def squares_about_common_mean(sums: Sequence[HeldOutSums]) -> list[Vector]:
    """Sums of squares of the held-out rows of each fold about the mean of all of them."""
    return about_common_mean(
        [one.counts for one in sums], [one.mean for one in sums], [one.squares for one in sums]
    )


def scaled_estimate(folds: Sequence[Fold], sums: Sequence[HeldOutSums]) -> Estimate:
    """Explained variance, features scaled as on each fold; several reconstructions on average."""
    pairs = list(zip(folds, sums, strict=True))
    wrong = [np.mean([(one / fold.scale**2).sum() for one in part.wrong]) for fold, part in pairs]
    total = [float((part.squares / fold.scale**2).sum()) for fold, part in pairs]
    return ratio_of_sums(np.array(wrong), np.array(total), shared_rows(folds))


# -- penalties ---------------------------------------------------------------------------------


def penalties(n: int, k: int, folds: int) -> tuple[float, ...]:
    """Ridge penalties to try for k of n rows' features, in units of the mean variance.

    With 100 rows per feature, or a single split to choose on, least squares does as well.
    """
    return RIDGES if n < ROWS_PER_FEATURE * k and folds > 1 else (0.0,)


def ridge_of_others(errors: Vector) -> Columns:
    """For each fold and size, the ridge that does best on the other folds (folds x sizes).

    ``errors`` are folds x ridges x sizes. With a single fold it is the first ridge.
    """
    if len(errors) == 1:
        return np.zeros((1, errors.shape[2]), dtype=np.int64)
    others = errors.sum(axis=0) - errors
    best: Columns = others.argmin(axis=1)
    return best


def fold_ridges(folds: Sequence[Fold], panels: Sequence[Columns], n: int) -> list[float]:
    """For each fold, the penalty of its panel's decoder that does best on the other folds."""
    ridges = penalties(n, min(len(panel) for panel in panels), len(folds))
    if len(ridges) == 1:
        return [0.0] * len(folds)
    tried, errors = ridge_errors(folds, panels, ridges)
    return [tried[at] for at in ridge_of_others(errors[:, :, None])[:, 0]]


# -- what was done, in words -------------------------------------------------------------------


def describe_protocol(
    splits: Splits,
    validation: Any,
    seed: Any,
    scale: str,
    groups: NDArray | None = None,
    *,
    weighted: bool = False,
    noisy: bool = False,
) -> str:
    """How rows were held out and features scaled, in one line."""
    count = len(splits)
    if isinstance(validation, str):
        how = {"time": "in time order", "blocks": "of neighbouring rows"}[validation]
        parts = [f"{count} folds {how}"]
    else:
        held = f"{len(splits.held_rows(0)) / splits.n:.0%} of the rows held out"
        parts = [f"{count} folds" if count > 1 else held]
        given = "rows given" if isinstance(validation, np.ndarray) else "random seed"
        whole = isinstance(seed, (int, np.integer)) and given == "random seed"
        parts.append(f"seed {seed}" if whole else given)
    if groups is not None:
        parts.append("groups of rows kept together")
    parts.append("each feature standardised" if scale == "standard" else "features unscaled")
    if weighted:
        parts.append("counted by their weights")
    if noisy:
        parts.append("against the signal behind the noise")
    return ", ".join(parts)
