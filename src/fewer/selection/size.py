"""How many features: held-out scores of every k from one nested path, and rules to choose k."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fewer import distributed
from fewer._checks import check_number
from fewer.constraints import Constraints
from fewer.data.factored import FactoredCovariance, Matrix
from fewer.data.source import AppendedColumns, RowView, Source
from fewer.errors import InputError
from fewer.estimate import (
    Estimate,
    held_out_squares,
    linear_map,
    penalties,
    ratio_of_sums,
    ridge_of_others,
    shared_rows,
    squares_about_common_mean,
    sums_of_rows,
)
from fewer.search import greedy, swap
from fewer.search.eigen import leading_eigenvectors
from fewer.search.objective import DEPENDENT
from fewer.selection.target import TargetData
from fewer.validation import RIDGES, Fold, FoldCovariances

__all__ = [
    "Reach",
    "SizePath",
    "elbow",
    "emphasised",
    "few_groups",
    "noise_limit",
    "one_standard_error",
    "size_path",
    "some_rows",
    "with_target",
]

HARDLY_COUNTS = 0.01  # of all features together as targets beside a target: to break ties
MOST = 100  # features that "auto" considers
FIRST_REACH = 64  # features that `Reach` tries first; twice as many each time
SWAPS_AT = tuple(5 * 2**step for step in range(12))  # sizes at which the nested path is improved
PERMUTATIONS = 19  # of all columns
LEVEL = 0.05 / 8  # of each test: 5% for all that a search by doubling and bisection makes
NEGLIGIBLE = 0.01  # of the variance of one feature: who explains less of all others is noise
LEAST_GROUPS = 20  # of rows: fewer, of one row each, leave a test against chance no power
SHADOW_ROWS = 5000  # that the parallel analysis looks at
SHADOW_VALUES = 2**26  # covariances of features with permuted columns that are kept

Columns = NDArray[np.int64]
Vector = NDArray[np.float64]


@dataclass(frozen=True)
class Reach:
    """As few features as explain this fraction of the variance of held-out rows.

    Pass it as k: ``fewer.select(X, k=fewer.Reach(0.9))``. The explained variance is that of a
    linear decoder, features scaled as `select` scales them.

    Parameters
    ----------
    level : float
        Fraction of the variance, above 0 and below 1.

    Examples
    --------
    >>> import fewer
    >>> from sklearn.datasets import load_wine
    >>> X = load_wine().data
    >>> panel = fewer.select(X, k=fewer.Reach(0.7), strategies=["search"], random_state=0)
    >>> panel.k, panel.settings["k_rule"]
    (6, 'reach 0.7')
    """

    level: float

    def __post_init__(self) -> None:
        check_number("level", self.level, above=0, below=1)


@dataclass(frozen=True, eq=False)
class SizePath:
    """Held-out scores of panels of each size."""

    sizes: list[int]  # features, or groups of features
    wrong: Vector  # sums of squared errors on held-out rows, folds x sizes
    pca_wrong: Vector  # the same for as many principal components
    total: Vector  # sums of squares of the held-out rows, by fold
    r2: Vector  # of each feature, over the held-out rows of all folds, sizes x d
    r2_error: Vector  # its standard error over folds
    shared: float = 0.0  # see `fewer.estimate.shared_rows`

    @cached_property
    def mean(self) -> Vector:
        """Explained variance at each size."""
        return np.array([one.value for one in self._estimates(self.wrong)])

    @cached_property
    def standard_error(self) -> Vector:
        """Of the explained variance, over folds; NaN with a single fold."""
        found = [one.standard_error for one in self._estimates(self.wrong)]
        return np.array([np.nan if error is None else error for error in found])

    @cached_property
    def pca(self) -> Vector:
        """Explained variance of as many principal components."""
        return np.array([one.value for one in self._estimates(self.pca_wrong)])

    def _estimates(self, wrong: Vector) -> list[Estimate]:
        return [ratio_of_sums(each, self.total, self.shared) for each in wrong.T]


def with_target(
    source: Source, target: TargetData, groups: NDArray | None = None
) -> tuple[Source, int, NDArray | None]:
    """Rows that have a target, with its centred numbers as further columns; how many; groups."""
    n = source.shape[0]
    kept = target.rows(np.arange(n))
    numbers = target.centred(kept).numpy()
    source = source if len(kept) == n else RowView(source, kept)
    labels = None if groups is None else groups[kept]
    return AppendedColumns(source, numbers), numbers.shape[1], labels


# -- scores of every size ----------------------------------------------------------------------


def size_path(
    covariances: FoldCovariances,
    constraints: Constraints,
    sizes: Sequence[int],
    device: torch.device,
    *,
    targets: int = 0,
    begin: Callable[[], object] = lambda: None,
) -> SizePath:
    """Held-out scores at each of these sizes, from a nested path per fold.

    Each fold has a greedy path of its training rows, improved by swaps at a few sizes, from where
    it goes on. Where rows are few for a size, its penalty on each fold is what does best on the
    other folds. Scores are those of `fewer.estimate`: of features scaled by the training rows.
    The last ``targets`` columns, which cannot be chosen, are a target, which alone counts then.
    """
    d = len(covariances.folds[0].scale) - targets
    only = slice(d, None) if targets else slice(None)
    rules = constraints.followed_by(targets)
    folds, n = covariances.folds, covariances.splits.n
    unit = float(folds[0].variance.mean())
    few = [len(penalties(n, size, len(folds))) > 1 for size in sizes]
    ridges = RIDGES if any(few) else (0.0,)
    tried, components, paths = [], [], []
    for fold in folds:
        begin()
        C = emphasised(fold.matrix(), d) if targets else fold.matrix()
        paths.append(_pieces(C.to(device), rules, sizes))
        found = [_residuals(fold, paths[-1], sizes, ridge * unit)[:, only] for ridge in ridges]
        tried.append(torch.stack(found))  # ridges x sizes x d
        vectors = leading_eigenvectors(fold.matrix(), sizes[-1], device=device)
        kept = (vectors * fold.held_product(vectors)).sum(0).cumsum(0)
        most = np.minimum(sizes, len(kept)) - 1
        whole = float(fold.held_diagonal.sum())
        components.append(fold.held_weight * (whole - kept.numpy()[most]))
    each = torch.stack(tried)  # folds x ridges x sizes x d
    best = np.where(few, ridge_of_others(each.sum(3).numpy()), 0)  # folds x sizes
    if covariances.stats.has_missing:
        parts = _sums_with_gaps(folds, paths, sizes, np.array(ridges)[best] * unit)
        wrong, squares = [part[:, only] for part in parts[0]], [part[only] for part in parts[1]]
    else:
        at = np.arange(len(sizes))
        chosen = [part[row, at] for part, row in zip(each, best, strict=True)]
        wrong = [fold.held_weight * part.numpy() for fold, part in zip(folds, chosen, strict=True)]
        pairs = zip(held_out_squares(folds), folds, strict=True)
        squares = [(own / fold.scale**2)[only] for own, fold in pairs]
    total = np.sum(squares, axis=0)
    left = np.sum(wrong, axis=0)
    r2 = 1 - left / np.maximum(total, 1e-300)
    shared, count = shared_rows(folds), len(folds)
    # without each fold in turn, as in `ratio_of_sums`
    rests = [
        (left - w) / np.maximum(total - s, 1e-300) for w, s in zip(wrong, squares, strict=True)
    ]
    r2_error = np.std(rests, axis=0) * ((1 + shared) * (count - 1)) ** 0.5
    r2_error = r2_error if count > 1 else np.full_like(r2, np.nan)
    r2[:, total <= 0] = r2_error[:, total <= 0] = np.nan  # constant features
    sums = np.stack([part.sum(axis=1) for part in wrong])
    by_fold = np.array([part.sum() for part in squares])
    return SizePath(list(sizes), sums, np.array(components), by_fold, r2, r2_error, shared)


def emphasised(C: Matrix, d: int) -> Matrix:
    """A covariance where the columns after the first d count as targets, and the others hardly."""
    own = C.diagonal().clamp_min(0)
    factor = (HARDLY_COUNTS * own[d:].sum() / own[:d].sum().clamp_min(1e-300)).sqrt()
    unit = torch.ones_like(own)
    unit[:d] = factor
    if isinstance(C, FactoredCovariance):
        return FactoredCovariance(C.rows * unit)
    return C * unit * unit[:, None]


def _sums_with_gaps(
    folds: Sequence[Fold],
    paths: Sequence[list[tuple[Columns, dict[int, int]]]],
    sizes: Sequence[int],
    ridges: Vector,
) -> tuple[list[Vector], list[Vector]]:
    """Squared errors (sizes x d) and squares (d) of each fold, over observed values, scaled."""
    sums = []
    for at, (fold, pieces) in enumerate(zip(folds, paths, strict=True)):
        panels = {size: order[:count] for order, counts in pieces for size, count in counts.items()}
        maps = [
            partial(linear_map, panels[size], fold.decoder(panels[size], float(ridges[at, row])))
            for row, size in enumerate(sizes)
        ]
        sums.append(sums_of_rows(fold, maps))
    squares = squares_about_common_mean(sums)
    pairs = list(zip(sums, folds, strict=True))
    wrong = [np.stack(one.wrong) / fold.scale**2 for one, fold in pairs]
    return wrong, [part / fold.scale**2 for part, fold in zip(squares, folds, strict=True)]


def _pieces(
    C: Matrix, constraints: Constraints, sizes: Sequence[int]
) -> list[tuple[Columns, dict[int, int]]]:
    """Orders of features, each with how many of its first features are the panel of which size."""
    most, least = sizes[-1], max(1, len(constraints.included_units))
    # the last size only if it is asked for: swaps take longer than the path
    bends = [size for size in SWAPS_AT if least < size <= most]
    found, include = [], constraints.include
    for start, stop in pairwise([least, *bends, most + 1]):
        asked = replace(constraints, k=min(stop, most), include=include)
        path = greedy(C, asked)
        counts = {size: int(path.sizes[size - 1]) for size in sizes if start <= size < stop}
        found.append((path.order, counts))
        if stop <= most:
            include = swap(C, path.panel(stop), replace(constraints, k=stop)).indices
    return found


def _residuals(
    fold: Fold, pieces: list[tuple[Columns, dict[int, int]]], sizes: Sequence[int], ridge: float
) -> Tensor:
    """Mean squared residuals on the held-out rows of the panel of each size (sizes x d)."""
    found: dict[int, Tensor] = {}
    for order, counts in pieces:
        if counts:
            rows = fold.path_residuals(order[: max(counts.values())], ridge)
            found |= {size: rows[count - 1] for size, count in counts.items()}
    return torch.stack([found[size] for size in sizes])


# -- rules -------------------------------------------------------------------------------------


def one_standard_error(path: SizePath) -> int:
    """The smallest size whose score is within one standard error of the best."""
    mean, best = path.mean, int(path.mean.argmax())
    slack = path.standard_error[best]
    enough = mean >= mean[best] - (0.0 if np.isnan(slack) else slack)
    return path.sizes[int(enough.argmax())]


def elbow(sizes: Sequence[int], explained: Sequence[float]) -> int:
    """The size at which the curve is farthest above the line between its ends."""
    x, y = np.asarray(sizes, dtype=float), np.asarray(explained, dtype=float)
    if len(x) < 3 or y[-1] <= y[0]:
        return int(sizes[0])
    above = (y - y[0]) / (y[-1] - y[0]) - (x - x[0]) / (x[-1] - x[0])
    return int(sizes[int(above.argmax())])


def noise_limit(
    covariances: FoldCovariances,
    constraints: Constraints,
    most: int,
    seed: int,
    groups: Any = None,
    *,
    targets: int = 0,
) -> int | None:
    r"""The size after which further features explain no other feature better than chance would.

    Parallel analysis for column subsets. After k features of the greedy path of all rows, E is the
    covariance of what is left. Feature j explains :math:`\sum_{i \ne j} E_{ij}^2 / E_{jj}` of the
    others; a column that is permuted at random explains some of it by chance. Permuting all
    columns gives the largest such gain among as many irrelevant candidates. 19 of these have a
    Gumbel distribution, approximately, and the best real feature counts as noise unless it is
    beyond its upper 0.6%, and explains at least a hundredth of the variance of one feature. The
    size is found by doubling and bisection, in about 8 tests, so that one of them is wrong by
    chance with a probability of about 5%. None if ``most`` features leave more than chance.

    Rows are exchangeable under the null hypothesis. Of rows in ``groups`` one per group is used.
    Where the last ``targets`` columns are a target, only what is explained of it counts.
    """
    fold = covariances.everything
    rules = replace(constraints, k=most).followed_by(targets)
    C = fold.matrix().cpu()
    C = emphasised(C, constraints.d) if targets else C
    order = distributed.on_rank0(lambda: greedy(C, rules))
    random = np.random.default_rng(seed)
    rows = some_rows(covariances.splits.n, groups, random)
    x = fold.rows(rows).rows(slice(0, len(rows)), torch.float64)
    x = (x - x.nanmean(0)).nan_to_num_(nan=0.0)
    shadows = _Shadows(x, random, targets)

    def beats_chance(size: int) -> bool:
        columns = order.order[: order.sizes[size - 1]] if size else order.order[:0]
        return shadows.beats_chance(torch.from_numpy(columns.copy()))

    return distributed.on_rank0(lambda: _first_stop(beats_chance, most))


def _first_stop(goes_on: Callable[[int], bool], most: int) -> int | None:
    """The first number from 0 to ``most`` that does not go on, by doubling and bisection.

    None if every number that was tried goes on.
    """
    low, high = -1, 0  # goes on, not known
    while goes_on(high):
        if high == most:
            return None
        low, high = high, min(2 * high + 1, most)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if goes_on(middle) else (low, middle)
    return high


def some_rows(n: int, groups: Any, random: np.random.Generator) -> Columns:
    """Rows for permutations: one per group, and at most some thousand."""
    rows = np.arange(n)
    if groups is not None:
        shuffled = random.permutation(n)
        rows = shuffled[np.unique(np.asarray(groups)[shuffled], return_index=True)[1]]
    if len(rows) > SHADOW_ROWS:
        rows = random.choice(rows, SHADOW_ROWS, replace=False)
    return np.sort(rows)


def few_groups(groups: Any, k: int = 0) -> int | None:
    """How many groups of rows there are, where they are too few to test k features; else None.

    The test permutes one row of each group, and k features fit k rows whatever they are.
    """
    if groups is None:
        return None
    count = len(np.unique(np.asarray(groups)))
    return count if count < max(LEAST_GROUPS, 2 * k) else None


class _Shadows:
    """Rows, and copies of their columns that are permuted at random, the shadows.

    The last ``targets`` columns are no candidates, and alone to be explained.
    """

    def __init__(self, x: Tensor, random: np.random.Generator, targets: int = 0) -> None:
        n, d = x.shape
        self.x, self.C = x, x.T @ x if n >= d else None
        self.only = slice(d - targets, None) if targets else slice(None)
        self.whole = not targets
        d -= targets
        # as many candidates on both sides; a random part of them where features are many
        count = min(d, max(1, SHADOW_VALUES // (PERMUTATIONS * min(n, d))))
        some = np.sort(random.choice(d, count, replace=False))
        self.candidates = torch.from_numpy(some)
        columns = x[:, self.candidates].numpy()
        self.shadows = [
            torch.from_numpy(random.permuted(columns, axis=0)) for _ in range(PERMUTATIONS)
        ]
        self.squares = (columns**2).sum(axis=0)
        # with many rows only products with all features are needed
        self.products = None
        if self.C is not None:
            self.products = [x.float().T @ one.float() for one in self.shadows]

    def beats_chance(self, chosen: Tensor) -> bool:
        """Whether, beyond ``chosen``, a feature explains more of the others than any shadow."""
        open_ = ~torch.isin(self.candidates, chosen)
        if not open_.any():
            return False
        if self.C is None or self.products is None:
            real, chance = self._by_rows(chosen, open_)
        else:
            real, chance = self._by_features(chosen, open_, self.C, self.products)
        y = self.x[:, self.only]
        least = NEGLIGIBLE * float(y.square().sum()) / y.shape[1]
        return real > max(_upper(np.array(chance)), least)

    def _by_features(
        self, chosen: Tensor, open_: Tensor, C: Tensor, products: list[Tensor]
    ) -> tuple[float, list[float]]:
        L = _factor(C[chosen][:, chosen])
        W = torch.linalg.solve_triangular(L, C[chosen], upper=False)  # k x d
        at = self.candidates
        E = C[:, at] - W.T @ W[:, at]  # d x c
        own, places = E[at, torch.arange(len(at))], torch.arange(len(at))
        fine = open_ & (own > DEPENDENT * C.diagonal()[at])
        mine = own.square() * self.whole
        real = _largest((E[self.only].square().sum(0) - mine) / own, fine)
        found, half, squares = [], W.float(), torch.from_numpy(self.squares)
        for product in products:
            Q = torch.linalg.solve_triangular(L.float(), product[chosen], upper=False)
            D = product - half.T @ Q
            explained = D[self.only].square().sum(0) - D[at, places].square() * self.whole
            found.append(_largest(explained / (squares - Q.square().sum(0)), open_))
        return real, found

    def _by_rows(self, chosen: Tensor, open_: Tensor) -> tuple[float, list[float]]:
        x, at = self.x, self.candidates
        part = x[:, chosen]
        L = _factor(part.T @ part)
        Q = torch.linalg.solve_triangular(L, part.T, upper=False)  # k x n
        left = x - Q.T @ (Q @ x)
        gram, mine = left[:, self.only] @ left[:, self.only].T, left[:, at]  # n x n, n x c
        own = mine.square().sum(0)
        fine = open_ & (own > DEPENDENT * torch.from_numpy(self.squares))
        itself = own.square() * self.whole
        real = _largest(((mine * (gram @ mine)).sum(0) - itself) / own, fine)
        found = []
        for shadow in self.shadows:
            p = shadow - Q.T @ (Q @ shadow)
            explained = (p * (gram @ p)).sum(0) - (mine * p).sum(0).square() * self.whole
            found.append(_largest(explained / p.square().sum(0), open_))
        return real, found


def _upper(largest: Vector) -> float:
    """What the next of these maxima exceeds with the probability `LEVEL`, by a Gumbel fit."""
    scale = float(largest.std(ddof=1)) * 6**0.5 / np.pi
    return float(largest.mean()) - scale * (np.euler_gamma + np.log(-np.log1p(-LEVEL)))


def _factor(A: Tensor) -> Tensor:
    A = A.clone()
    A.diagonal().mul_(1 + DEPENDENT).add_(1e-300)
    return torch.linalg.cholesky(A)


def _largest(values: Tensor, among: Tensor) -> float:
    return float(values[among].nan_to_num_(nan=0.0).max()) if among.any() else 0.0


# -- k of a selection --------------------------------------------------------------------------


def choose_size(
    k: Any,
    covariances: FoldCovariances,
    constraints: Constraints,
    device: torch.device,
    seed: int,
    groups: Any = None,
    *,
    targets: int = 0,
) -> dict[str, Any]:
    """How many features for ``k="auto"`` or a `Reach`, "chosen", and why, as JSON.

    For a number k, the same about k as it was given. Where the last ``targets`` columns are a
    target, it alone counts.
    """
    units, d = len(constraints.units), constraints.d
    least = max(1, len(constraints.included_units))
    if isinstance(k, Reach):
        path, found = _reach(k.level, covariances, constraints, device, least, targets)
        about: dict[str, Any] = {"rule": f"reach {k.level:g}"}
    else:
        # k of all features needs no choice, and k features of k rows fit them whatever they are
        rows = min(len(fold.train_rows) for fold in covariances.folds)
        most = max(least, min(MOST, units, max(1, d - 1), max(1, rows // 2)))
        sizes = list(range(least, most + 1))
        path = _path_on_rank0(covariances, constraints, sizes, device, targets)
        few, limit = few_groups(groups), None
        if few is None:
            limit = noise_limit(covariances, constraints, most, seed, groups, targets=targets)
        within = one_standard_error(path)
        # useless features explain themselves, but no target: there the score is enough
        found = within if limit is None or targets else max(least, min(limit, within))
        about = {"rule": "auto", "one_standard_error": within, "noise": limit}
        about |= {} if few is None else {"few_groups": few}
        about["elbow"] = elbow(path.sizes, path.mean.tolist())
        if k != "auto":
            found, about["rule"] = k, "given"
    errors = path.standard_error
    return about | {
        "chosen": found,
        "k": path.sizes,
        "explained_variance": path.mean.tolist(),
        "standard_error": [None if np.isnan(e) else float(e) for e in errors],
        "pca": None if targets else path.pca.tolist(),
    }


def _reach(
    level: float,
    covariances: FoldCovariances,
    constraints: Constraints,
    device: torch.device,
    least: int,
    targets: int,
) -> tuple[SizePath, int]:
    units = len(constraints.units)
    most = max(least, min(FIRST_REACH, units))
    while True:
        sizes = list(range(least, most + 1))
        path = _path_on_rank0(covariances, constraints, sizes, device, targets)
        enough = np.flatnonzero(path.mean >= level)
        if len(enough):
            return path, path.sizes[int(enough[0])]
        if most == units:
            best = int(path.mean.argmax())
            what = "target" if targets else "variance"
            raise InputError(
                f"k=Reach({level:g}): no panel explains {level:.0%} of the {what} of held-out "
                f"rows; {path.sizes[best]} features explain most, {path.mean[best]:.1%}. Lower the "
                "level, or give k"
            )
        most = min(2 * most, units)


def _path_on_rank0(
    covariances: FoldCovariances,
    constraints: Constraints,
    sizes: list[int],
    device: torch.device,
    targets: int,
) -> SizePath:
    return distributed.on_rank0(
        lambda: size_path(covariances, constraints, sizes, device, targets=targets)
    )
