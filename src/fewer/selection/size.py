"""How many features: held-out scores of every k from one nested path, and rules to choose k."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fewer import distributed
from fewer._checks import check_number
from fewer.constraints import Constraints
from fewer.data.factored import Matrix
from fewer.errors import InputError
from fewer.search import greedy, swap
from fewer.search.eigen import leading_eigenvectors
from fewer.search.objective import DEPENDENT
from fewer.validation import RIDGES, ROWS_PER_FEATURE, Fold, FoldCovariances

__all__ = [
    "Reach",
    "SizePath",
    "elbow",
    "noise_limit",
    "one_standard_error",
    "ridge_of_others",
    "size_path",
    "some_rows",
]

MOST = 100  # features that "auto" considers
FIRST_REACH = 64  # features that `Reach` tries first; twice as many each time
SWAPS_AT = tuple(5 * 2**step for step in range(12))  # sizes at which the nested path is improved
PERMUTATIONS = 19  # the largest of 20 exchangeable numbers is the real one with probability 5%
NEGLIGIBLE = 0.01  # of the variance of one feature: who explains less of all others is noise
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
    explained: Vector  # explained variance, folds x sizes
    pca: Vector  # the same for as many principal components
    r2: Vector  # of each feature, over the held-out rows of all folds, sizes x d

    @property
    def mean(self) -> Vector:
        """Explained variance at each size, over the folds."""
        return self.explained.mean(axis=0)

    @property
    def standard_error(self) -> Vector:
        """Of the mean over folds; NaN with a single fold."""
        folds = len(self.explained)
        if folds < 2:
            return np.full(len(self.sizes), np.nan)
        found: Vector = self.explained.std(axis=0, ddof=1) / folds**0.5
        return found


# -- scores of every size ----------------------------------------------------------------------


def size_path(
    covariances: FoldCovariances,
    constraints: Constraints,
    sizes: Sequence[int],
    device: torch.device,
    *,
    panels: Callable[[Matrix, int], Columns] | None = None,
    begin: Callable[[], object] = lambda: None,
) -> SizePath:
    """Held-out scores at each of these sizes, from a nested path per fold.

    Each fold has a greedy path of its training rows, improved by swaps at a few sizes, from where
    it goes on. ``panels`` chooses the panel of each size instead. Where rows are few, the penalty
    of each size and fold is what does best on the other folds.
    """
    few = covariances.splits.n < ROWS_PER_FEATURE * sizes[-1] and len(covariances.folds) > 1
    left, totals, components = [], [], []
    for fold in covariances.folds:
        begin()
        C = fold.matrix().to(device)
        if panels is None:
            pieces = _pieces(C, constraints, sizes)
        else:
            pieces = [(panel, {size: len(panel)}) for size, panel in _each(panels, C, sizes)]
        unit = float(fold.variance.mean())
        ridges = [ridge * unit for ridge in (RIDGES if few else (0.0,))]
        found = [_residuals(fold, pieces, sizes, ridge) for ridge in ridges]
        left.append(torch.stack(found))  # ridges x sizes x d
        totals.append(fold.held_diagonal)
        vectors = leading_eigenvectors(fold.matrix(), sizes[-1], device=device)
        kept = (vectors * fold.held_product(vectors)).sum(0).cumsum(0)
        most = np.minimum(sizes, len(kept)) - 1
        components.append((kept / totals[-1].sum().clamp_min(1e-300)).numpy()[most])
    each = torch.stack(left)  # folds x ridges x sizes x d
    best = ridge_of_others(each.sum(3).numpy())  # folds x sizes
    at = np.arange(len(sizes))
    chosen = torch.stack([part[row, at] for part, row in zip(each, best, strict=True)])
    weights = torch.tensor([fold.n_held for fold in covariances.folds], dtype=torch.float64)
    whole = torch.stack(totals)
    unexplained = torch.einsum("f,fsd->sd", weights, chosen)
    r2 = 1 - unexplained / (weights @ whole).clamp_min(1e-300)
    r2[:, weights @ whole <= 0] = torch.nan  # constant features
    explained = 1 - (chosen.sum(2) / whole.sum(1, keepdim=True).clamp_min(1e-300)).numpy()
    return SizePath(list(sizes), explained, np.array(components), r2.numpy())


def _each(
    panels: Callable[[Matrix, int], Columns], C: Matrix, sizes: Sequence[int]
) -> list[tuple[int, Columns]]:
    return [(size, panels(C, size)) for size in sizes]


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


def ridge_of_others(errors: Vector) -> NDArray[np.int64]:
    """For each fold and size, the penalty that does best on the other folds.

    ``errors`` is folds x penalties x sizes.
    """
    if len(errors) == 1:
        return np.zeros((1, errors.shape[2]), dtype=np.int64)
    others = errors.sum(axis=0) - errors
    best: NDArray[np.int64] = others.argmin(axis=1)
    return best


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
    covariances: FoldCovariances, constraints: Constraints, most: int, seed: int, groups: Any = None
) -> int | None:
    r"""The size after which further features explain no other feature better than chance would.

    Parallel analysis for column subsets. After k features of the greedy path of all rows, E is the
    covariance of what is left. Feature j explains :math:`\sum_{i \ne j} E_{ij}^2 / E_{jj}` of the
    others; a column that is permuted at random explains some of it by chance. Permuting all
    columns gives the largest such gain among as many irrelevant candidates, and the best real
    feature counts as noise unless it beats the largest of 19 of these (a test at the level 5%),
    and explains at least a hundredth of the variance of one feature.
    The size is found by doubling and bisection. None if ``most`` features leave more than chance.

    Rows are exchangeable under the null hypothesis. Of rows in ``groups`` one per group is used.
    """
    fold = covariances.everything
    order = distributed.on_rank0(lambda: greedy(fold.matrix().cpu(), replace(constraints, k=most)))
    random = np.random.default_rng(seed)
    rows = some_rows(covariances.splits.n, groups, random)
    x = fold.rows(rows).rows(slice(0, len(rows)), torch.float64)
    x = (x - x.nanmean(0)).nan_to_num_(nan=0.0)
    shadows = _Shadows(x, random)

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


class _Shadows:
    """Rows, and copies of their columns that are permuted at random, the shadows."""

    def __init__(self, x: Tensor, random: np.random.Generator) -> None:
        n, d = x.shape
        self.x, self.C = x, x.T @ x if n >= d else None
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
        least = NEGLIGIBLE * float(self.x.square().sum()) / self.x.shape[1]
        return real > max(*chance, least)

    def _by_features(
        self, chosen: Tensor, open_: Tensor, C: Tensor, products: list[Tensor]
    ) -> tuple[float, list[float]]:
        L = _factor(C[chosen][:, chosen])
        W = torch.linalg.solve_triangular(L, C[chosen], upper=False)  # k x d
        at = self.candidates
        E = C[:, at] - W.T @ W[:, at]  # d x c
        own, places = E[at, torch.arange(len(at))], torch.arange(len(at))
        fine = open_ & (own > DEPENDENT * C.diagonal()[at])
        real = _largest((E.square().sum(0) - own.square()) / own, fine)
        found, half, squares = [], W.float(), torch.from_numpy(self.squares)
        for product in products:
            Q = torch.linalg.solve_triangular(L.float(), product[chosen], upper=False)
            D = product - half.T @ Q
            explained = D.square().sum(0) - D[at, places].square()
            found.append(_largest(explained / (squares - Q.square().sum(0)), open_))
        return real, found

    def _by_rows(self, chosen: Tensor, open_: Tensor) -> tuple[float, list[float]]:
        x, at = self.x, self.candidates
        part = x[:, chosen]
        L = _factor(part.T @ part)
        Q = torch.linalg.solve_triangular(L, part.T, upper=False)  # k x n
        left = x - Q.T @ (Q @ x)
        gram, mine = left @ left.T, left[:, at]  # n x n, n x c
        own = mine.square().sum(0)
        fine = open_ & (own > DEPENDENT * torch.from_numpy(self.squares))
        real = _largest(((mine * (gram @ mine)).sum(0) - own.square()) / own, fine)
        found = []
        for shadow in self.shadows:
            p = shadow - Q.T @ (Q @ shadow)
            explained = (p * (gram @ p)).sum(0) - (mine * p).sum(0).square()
            found.append(_largest(explained / p.square().sum(0), open_))
        return real, found


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
) -> dict[str, Any]:
    """How many features for ``k="auto"`` or a `Reach`, "chosen", and why, as JSON."""
    units, d = len(constraints.units), constraints.d
    least = max(1, len(constraints.included_units))
    if isinstance(k, Reach):
        path, found = _reach(k.level, covariances, constraints, device, least)
        about: dict[str, Any] = {"rule": f"reach {k.level:g}"}
    else:
        # k of all features needs no choice, and k features of k rows fit them whatever they are
        rows = min(len(fold.train_rows) for fold in covariances.folds)
        most = max(least, min(MOST, units, max(1, d - 1), max(1, rows // 2)))
        sizes = list(range(least, most + 1))
        path = _path_on_rank0(covariances, constraints, sizes, device)
        limit = noise_limit(covariances, constraints, most, seed, groups)
        within = one_standard_error(path)
        found = within if limit is None else max(least, min(limit, within))
        about = {"rule": "auto", "one_standard_error": within, "noise": limit}
        about["elbow"] = elbow(path.sizes, path.mean.tolist())
    errors = path.standard_error
    return about | {
        "chosen": found,
        "k": path.sizes,
        "explained_variance": path.mean.tolist(),
        "standard_error": [None if np.isnan(e) else float(e) for e in errors],
        "pca": path.pca.mean(axis=0).tolist(),
    }


def _reach(
    level: float,
    covariances: FoldCovariances,
    constraints: Constraints,
    device: torch.device,
    least: int,
) -> tuple[SizePath, int]:
    units = len(constraints.units)
    most = max(least, min(FIRST_REACH, units))
    while True:
        path = _path_on_rank0(covariances, constraints, list(range(least, most + 1)), device)
        enough = np.flatnonzero(path.mean >= level)
        if len(enough):
            return path, path.sizes[int(enough[0])]
        if most == units:
            best = int(path.mean.argmax())
            raise InputError(
                f"k=Reach({level:g}): no panel explains {level:.0%} of the variance of held-out "
                f"rows; {path.sizes[best]} features explain most, {path.mean[best]:.1%}. Lower the "
                "level, or give k"
            )
        most = min(2 * most, units)


def _path_on_rank0(
    covariances: FoldCovariances, constraints: Constraints, sizes: list[int], device: torch.device
) -> SizePath:
    return distributed.on_rank0(lambda: size_path(covariances, constraints, sizes, device))
