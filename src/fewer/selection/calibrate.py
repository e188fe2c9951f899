r"""What a panel keeps of its held-out rows: prediction intervals, missing values, checks.

Intervals are conformal. With :math:`r_{ij}` the residual of feature j of row i, held out by the
decoder that reconstructs it, and :math:`s_i` the difficulty of the row, the bounds of a new row are
quantiles of :math:`r_{ij} / s_i`, times its own difficulty. A share p of new values lies below the
rank p (n + 1) of n, if new rows are like those held out. Where rows come in groups, each group has
the same weight, and a new row is one of a new group.

The difficulty follows from how far the measured values are from the mean: the root mean squared
error of held-out rows at that distance, relative to that of all.

With chosen features M missing, the residual of a held-out row is r + B_M' e_M, where e_M is the
error of predicting x_M from the other chosen features and B the linear decoder. The bounds that
`JointCovariance.widened` derives are multiplied by the factor with which they cover such residuals:
one for all patterns of one missing feature, another for all of two. Patterns differ, above all
where tails are heavy, and by chance. The factor of each is therefore shrunk towards the common one,
in logarithms, by its reliability, which halves of the rows tell (Spearman and Brown).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from math import comb
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fewer._threads import mapped
from fewer.joint import (
    JointCovariance,
    TrainingStatistics,
    distances_of,
    errors_from_others,
    precision_of,
)
from fewer.nn.completion import complete
from fewer.reconstructor import QUANTILE_LEVELS, between, interpolated
from fewer.selection.context import SelectionContext
from fewer.selection.refit import HeldOutScore
from fewer.validation import FOLDS, split_rows

__all__ = [
    "Calibration",
    "calibrate",
    "conformal_quantiles",
    "coverage_by_feature",
    "own_factors",
    "some_residuals",
]

SOME_FEATURES = 1024  # whose quantiles are computed at a time
MANY_GROUPS = 40  # of rows: with fewer, the quantile of 95% could not be one of a new group
MOST_BINS, ROWS_PER_BIN = 10, 50  # of distances, with the error of held-out rows at each
LEAST_FACTOR, MOST_FACTOR = 1 / 3, 3.0  # of difficulty
COVERED = 0.9  # the intervals whose coverage is checked
WIDE, MOST_COVERED = 8192, 2**21  # features, and values that are looked at for it
# patterns of missing features, other features that are looked at, and values of some or of all
# patterns, which have factors of their own
MOST_PATTERNS, SOME_OTHERS, SOME_SCORES, MOST_SCORES = 128, 64, 2**18, 2**19
LEAST_PATTERNS = 3  # that tell how much patterns differ
LEAST_ROWS = 30  # without missing values
LEAST_WIDER = 0.1  # factor

Columns = NDArray[np.int64]
Vector = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Calibration:
    """Quantiles of held-out residuals, and what the training rows looked like."""

    quantiles: Vector  # of residuals over difficulty, by level and feature
    difficulty: Vector  # bins x 2: distance, and the difficulty of rows at that distance
    joint: JointCovariance
    statistics: TrainingStatistics


def calibrate(
    context: SelectionContext, columns: Columns, ridge: float, held: HeldOutScore
) -> Calibration:
    """Calibrate intervals, completion of missing values and checks on the held-out rows."""
    errors, distances = [], []
    for fold, values in zip(context.covariances.folds, held.chosen, strict=True):
        gram = fold.gram(columns)
        precision = precision_of(gram, ridge, torch.from_numpy(fold.scale[columns]))
        errors.append(errors_from_others(values, fold.mean[columns], precision))
        distances.append(distances_of(values, fold.mean[columns], precision).normal)
    far = np.concatenate(distances)
    row_errors = np.concatenate(held.row_errors)
    table = _difficulty(far, row_errors)
    factor = interpolated(table, far)
    groups = context.groups_of(np.concatenate(held.sampled))
    quantiles = conformal_quantiles(held.residuals, groups, factor)
    own = conformal_quantiles(errors, groups, factor)
    joint = _joint(context, columns, ridge, own)
    return Calibration(
        quantiles,
        table,
        _with_factors(context, joint, quantiles, table, held),
        _statistics(context, columns, np.concatenate(held.chosen), far, row_errors),
    )


def some_residuals(held: HeldOutScore) -> list[NDArray[Any]]:
    """Residuals of some of the held-out rows, evenly spread, for `coverage_by_feature`."""
    step = _step(held)
    return [_shortened(part[::step]) for part in held.residuals] if step else []


def _step(held: HeldOutScore) -> int:
    """Of how many held-out rows one is looked at for the coverage; 0 for very wide data."""
    d = len(held.score.errors)
    return 0 if d > WIDE else 1 + sum(len(part) for part in held.sampled) * d // MOST_COVERED


def coverage_by_feature(
    context: SelectionContext, columns: Columns, ridge: float, held: HeldOutScore
) -> NDArray[np.float32] | None:
    """Fraction of held-out values in 90% intervals that were calibrated on the other folds.

    ``held`` has `some_residuals`. NaN for features that are measured, constant or always missing.
    Of a single split, its rows are divided at random. None for very wide data.
    """
    d, step = context.source.shape[1], _step(held)
    if not step:
        return None
    distances = []
    for fold, values in zip(context.covariances.folds, held.chosen, strict=True):
        gram = fold.gram(columns)
        precision = precision_of(gram, ridge, torch.from_numpy(fold.scale[columns]))
        distances.append(distances_of(values, fold.mean[columns], precision).normal)
    far, errors, sampled = (
        [part[::step] for part in parts] for parts in (distances, held.row_errors, held.sampled)
    )
    groups = context.groups_of(np.concatenate(sampled))
    numbers = np.repeat(np.arange(len(far)), [len(part) for part in far])
    distance, error, residual = (np.concatenate(parts) for parts in (far, errors, held.residuals))
    if len(far) == 1:
        parts = split_rows(len(distance), FOLDS, context.seed, groups).parts
        for number, rows in enumerate(parts):
            numbers[rows] = number
    inside, seen = np.zeros(d), np.zeros(d)
    for number in np.unique(numbers):
        here, rest = numbers == number, numbers != number
        if not rest.any():
            return None
        table = _difficulty(distance[rest], error[rest])
        own = None if groups is None else groups[rest]
        quantiles = conformal_quantiles([residual[rest]], own, interpolated(table, distance[rest]))
        low, high = between(quantiles, COVERED)
        factor, values = interpolated(table, distance[here])[:, None], residual[here]
        inside += ((values >= low * factor) & (values <= high * factor)).sum(axis=0)
        seen += (~np.isnan(values)).sum(axis=0)
    known = (seen > 0) & (context.covariances.stats.variance > 0)
    known[columns] = False
    return np.where(known, inside / np.maximum(seen, 1), np.nan).astype(np.float32)


def _difficulty(distance: Vector, errors: Vector) -> Vector:
    """Root mean squared error of rows by their distance, relative to that of all rows."""
    bins = int(np.clip(len(distance) // ROWS_PER_BIN, 1, MOST_BINS))
    whole = float(np.mean(errors))
    order = np.argsort(distance, kind="stable")
    rows = []
    for part in np.array_split(order, bins):
        factor = (float(errors[part].mean()) / whole) ** 0.5 if whole > 0 else 1.0
        rows.append([float(distance[part].mean()), np.clip(factor, LEAST_FACTOR, MOST_FACTOR)])
    return np.array(rows)


def conformal_quantiles(
    parts: Sequence[Vector], groups: NDArray | None = None, factor: Vector | None = None
) -> Vector:
    """Quantiles of values by level and feature, some features at a time.

    ``parts`` are rows x features, one after the other; row i is divided by ``factor[i]``.
    The i-th of n values has the level i / (n + 1); of G groups, each of which counts the same,
    the sum of the shares of their rows that are below, over G + 1. With few groups no level near 0
    or 1 could be reached that way, and a new row counts as a row, not as a group.
    """
    weights, more = _weights(sum(len(part) for part in parts), groups)

    def of_some(at: int) -> Vector:
        # each feature in one piece is twice as fast
        part = np.hstack([rows[:, at : at + SOME_FEATURES].T for rows in parts])
        part = np.ascontiguousarray(part if factor is None else part / factor)
        if groups is None and not np.isnan(part).any():
            found: Vector = np.quantile(part, QUANTILE_LEVELS, axis=1, method="weibull")
            return found
        return np.stack([_weighted_quantiles(row, weights, more) for row in part], axis=1)

    return np.hstack(mapped(of_some, range(0, parts[0].shape[1], SOME_FEATURES)))


def _weights(n: int, groups: NDArray | None) -> tuple[Vector, float]:
    """The weight of each row, and that of a new one."""
    if groups is None:
        return np.ones(n), 1.0
    labels, counts = np.unique(groups, return_inverse=True, return_counts=True)[1:]
    return 1.0 / counts[labels], 1.0 if len(counts) >= MANY_GROUPS else len(counts) / n


def _weighted_quantiles(values: Vector, weights: Vector, more: float) -> Vector:
    """Quantiles of values with weights, where a new value has the weight ``more``."""
    seen = ~np.isnan(values)
    if not seen.any():
        return np.full(len(QUANTILE_LEVELS), np.nan)
    order = np.argsort(values[seen], kind="stable")
    cumulated = weights[seen][order].cumsum()
    level = cumulated / (cumulated[-1] + more)
    found: Vector = np.interp(QUANTILE_LEVELS, level, values[seen][order])
    return found


def _with_factors(
    context: SelectionContext,
    joint: JointCovariance,
    quantiles: Vector,
    difficulty: Vector,
    held: HeldOutScore,
) -> JointCovariance:
    """Factors by which bounds cover held-out values with one, and with two, features missing.

    From rows whose chosen features are all there; 1 where such rows are few. What a network makes
    of completed inputs is approximated by the linear decoder.
    """
    columns, k, found = joint.columns, len(joint.columns), np.ones(2)
    by_pattern = np.ones((k, k))
    whole = [~np.isnan(part).any(axis=1) for part in held.chosen]
    others = np.setdiff1d(np.flatnonzero(joint.variance > 0), columns)
    numbers = np.concatenate([part[use] for part, use in zip(held.sampled, whole, strict=True)])
    if len(numbers) < LEAST_ROWS or not len(others):
        return joint
    others, every = others[:: -(-len(others) // SOME_OTHERS)], len(others)
    asked = np.concatenate([others, columns])
    groups = context.groups_of(numbers)
    weights, more = _weights(len(numbers), groups)
    at = np.cumsum([use.sum() for use in whole])[:-1]
    parts, halves = np.split(weights, at), np.split(_halved(len(numbers), groups), at)
    larger = 1 + more / weights.sum()
    stands_for = np.repeat([every / len(others), 1.0], [len(others), k])  # features, each column
    bounds, own = between(quantiles, COVERED), between(joint.quantiles, COVERED)
    rng = np.random.default_rng(context.seed)
    for m in range(1, min(2, k) + 1):
        patterns = _some_patterns(k, m, rng)
        offsets = zip(*(joint.widened(gaps, bounds, own) for gaps in patterns), strict=True)
        low, high = (np.stack(one)[:, asked] for one in offsets)
        low[low == 0], high[high == 0] = np.nan, np.nan  # features that are measured
        every_pattern = comb(k, m) == len(patterns)
        most = (MOST_SCORES if every_pattern else SOME_SCORES) // len(asked) // len(parts)
        scores, counts, kinds, sides = [], [], [], []
        for fold, values, residual, use, part, half in zip(
            context.covariances.folds, held.chosen, held.residuals, whole, parts, halves,
            strict=True,
        ):  # fmt: skip
            pairs = min(len(patterns) * len(part), 1 + most)
            which, row = np.arange(pairs) % len(patterns), _shuffled(len(part), pairs, rng)
            measured = values[use][row]
            gappy = np.where(patterns[which], np.nan, measured)
            scale, mean = fold.scale[columns], fold.mean[columns]
            precision = precision_of(fold.gram(columns), joint.ridge, torch.from_numpy(scale))
            errors = measured - complete(torch.from_numpy(gappy), mean, precision).numpy()
            B = fold.decoder(columns, joint.ridge)[:, others].numpy()
            left = residual[use][:, others][row] + errors / scale @ B * fold.scale[others]
            left = np.hstack([left, errors])
            factor = interpolated(difficulty, distances_of(gappy, mean, precision).normal)
            scores.append(np.fmax(left / low[which], left / high[which]) / factor[:, None])
            counts.append(part[row][:, None] * stands_for)
            kinds.append(which)
            sides.append(half[row])
        score, count, kind, side = map(np.concatenate, (scores, counts, kinds, sides))
        common = _covering(score, count, larger)
        if common is None:
            continue
        found[m - 1] = common
        if not every_pattern:
            continue
        apart = own_factors(score, count, kind, side, len(patterns), larger)
        for pattern, factor in zip(patterns, apart, strict=True):
            gone = np.flatnonzero(pattern)
            by_pattern[gone[0], gone[-1]] = by_pattern[gone[-1], gone[0]] = factor
    return replace(joint, factors=found, by_pattern=by_pattern)


def _covering(score: Vector, count: Vector, larger: float) -> float | None:
    """The factor that covers 90% of values with these scores and weights; None without any."""
    seen = ~np.isnan(score)
    if not seen.any():
        return None
    order = np.argsort(score[seen])
    cumulated = count[seen][order].cumsum()
    level = cumulated / cumulated[-1] / larger
    return max(float(np.interp(COVERED, level, score[seen][order])), LEAST_WIDER)


def own_factors(
    score: Vector,
    count: Vector,
    kind: Columns,
    side: NDArray[np.bool_],
    patterns: int,
    larger: float,
) -> Vector:
    """The factor of each pattern, relative to the common one, as far as half of the rows tell."""
    logs = np.zeros((3, patterns))
    for number in range(patterns):
        here = kind == number
        for at, rows in enumerate((here, here & side, here & ~side)):
            factor = _covering(score[rows], count[rows], larger)
            if factor is None:
                return np.ones(patterns)
            logs[at, number] = np.log(factor)
    logs -= logs.mean(axis=1, keepdims=True)
    spread = float(np.prod(logs[1:].std(axis=1)))
    if patterns < LEAST_PATTERNS or not spread:
        return np.ones(patterns)
    alike = max(0.0, float((logs[1] * logs[2]).mean()) / spread)
    found: Vector = np.exp(2 * alike / (1 + alike) * logs[0])
    return found


def _halved(n: int, groups: NDArray | None) -> NDArray[np.bool_]:
    """Which rows, or groups of rows, are in the first half, at random."""
    labels = np.arange(n) if groups is None else np.unique(groups, return_inverse=True)[1]
    count = int(labels.max(initial=-1)) + 1
    first = np.random.default_rng(0).permutation(count) < count // 2
    found: NDArray[np.bool_] = first[labels]
    return found


def _shuffled(n: int, count: int, rng: np.random.Generator) -> Columns:
    """So many numbers below n: all of them in random order, again and again."""
    turns = [rng.permutation(n) for _ in range(0, count, max(n, 1))]
    return np.concatenate([np.zeros(0, np.int64), *turns])[:count]


def _some_patterns(k: int, m: int, rng: np.random.Generator) -> NDArray[np.bool_]:
    """Which of k features are missing, m of them: all patterns, or some at random."""
    if comb(k, m) <= MOST_PATTERNS:
        gone = np.array(list(combinations(range(k), m)))
    else:
        gone = np.array([rng.choice(k, m, replace=False) for _ in range(MOST_PATTERNS)])
    found = np.zeros((len(gone), k), dtype=bool)
    np.put_along_axis(found, gone, True, axis=1)
    return found


def _shortened(values: Vector) -> NDArray[np.floating]:
    """In float32, unless the values are too large for it."""
    large = np.abs(values).max(initial=0.0) > np.finfo(np.float32).max
    return values.copy() if large else values.astype(np.float32)


def _joint(
    context: SelectionContext, columns: Columns, ridge: float, quantiles: Vector
) -> JointCovariance:
    """What the panel keeps of all rows, for rows of which only some features are measured."""
    everything = context.covariances.everything
    cross = everything.cross(columns)
    return JointCovariance(
        columns,
        everything.mean.numpy().copy(),
        everything.scale.copy(),
        everything.measured_variance,
        everything.gram(columns).numpy().copy(),
        _shortened(cross.numpy()),
        ridge,
        quantiles,
    )


def _statistics(
    context: SelectionContext, columns: Columns, sample: Vector, distance: Vector, errors: Vector
) -> TrainingStatistics:
    """What the chosen features look like, to compare new rows with."""
    stats = context.covariances.stats
    lowest, highest = np.nanmin(sample, axis=0), np.nanmax(sample, axis=0)
    known = np.isfinite(stats.minimum[columns])  # else the rows were not read for their range
    return TrainingStatistics.of(
        stats.n,
        (
            stats.mean[columns],
            np.sqrt(stats.variance[columns]),
            np.where(known, stats.minimum[columns], lowest),
            np.where(known, stats.maximum[columns], highest),
            1 - stats.observed[columns] / stats.n,
        ),
        sample,
        distance,
        errors,
    )
