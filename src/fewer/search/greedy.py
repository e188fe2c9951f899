"""Greedy forward selection: repeatedly add the feature that explains most of the residual."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fewer.constraints import Constraints
from fewer.data.factored import FactoredCovariance, Matrix
from fewer.errors import InputError
from fewer.search.exchange import Limits
from fewer.search.objective import (
    DEPENDENT,
    Penalty,
    check_penalty,
    check_problem,
    covariance,
    on_cpu_if_short,
    padded,
    penalty_at,
    total_variance,
    worth,
)

__all__ = ["ClassErrors", "GreedyPath", "greedy", "nested"]

AT_ONCE, PARTS = 2**22, 8  # numbers in the blocks of units at a time, in at least so many parts
STALE = 1e-3  # blocks are recomputed when the residual has fallen to this fraction
EARLY, SELDOM = 32, 8  # which is looked at after each of so many picks, and then after so many
SHARED = 2.0  # what a unit of a path that got stuck counts, where the largest gain counts 1
# Squared distance, in standard deviations, at which the error of a class has fallen to 1 / e: the
# tail of a normal distribution is about exp(-distance^2 / 8).
SEPARATED = 8.0
MOST_EXPLAINED = 0.999  # of the variance of an indicator


@dataclass(frozen=True, eq=False)
class GreedyPath:
    """Nested panels of every size up to k, from one run.

    Attributes
    ----------
    order : ndarray of int
        Features in the order in which they were chosen (included ones first).
    errors : ndarray of float
        Residual (see `residual`) after each pick.
    sizes : ndarray of int
        Number of features after each pick: 1, 2, ... unless groups are chosen as a whole.

    Examples
    --------
    >>> path = greedy([[4.0, 0, 0], [0, 9.0, 0], [0, 0, 1.0]], 2)
    >>> path.order, path.errors
    (array([1, 0]), array([5., 1.]))
    >>> path.panel(2)
    array([0, 1])
    """

    order: NDArray[np.int64]
    errors: NDArray[np.float64]
    sizes: NDArray[np.int64]

    def panel(self, picks: int | None = None) -> NDArray[np.int64]:
        """Features, ascending, after the first `picks` picks; all of them by default."""
        end = len(self.order) if picks is None else (self.sizes[picks - 1] if picks else 0)
        return np.sort(self.order[:end])


@dataclass(frozen=True, eq=False)
class ClassErrors:
    r"""Classes of rows that chosen features should tell apart, beside what they explain.

    If a linear map from the panel explains the fraction :math:`R^2` of the indicator of a class
    with the share :math:`\pi` of the rows, the means of the class and of the others are

    .. math:: \Delta^2 = \frac{R^2}{(1 - R^2)\, \pi (1 - \pi)}

    apart, squared, in standard deviations (Mahalanobis). The error of the class is taken for
    :math:`\exp(-\Delta^2 / 8)`: it saturates, so that further features for a class that is
    already well separated are worth nothing, and rare classes count as much as others.

    Attributes
    ----------
    cross : tensor, d x m
        Covariances of features and indicators, which may be multiplied by any number each.
    variance, shares : tensors of m
        Variance of the indicators, multiplied likewise, and shares of the classes.
    weight : float
        What the mean error counts in the objective, relative to `residual`.
    ridge : float or tensor of d, default=0.0
        The penalty of the features as inputs of that map.

    Examples
    --------
    >>> classes = ClassErrors(
    ...     cross=torch.tensor([[0.1], [0.0]]),
    ...     variance=torch.tensor([0.09]),
    ...     shares=torch.tensor([0.1]),
    ...     weight=1.0,
    ... )
    >>> classes.errors(torch.tensor([0.0])), classes.errors(torch.tensor([0.6]))
    (tensor([1.]), tensor([0.1245]))
    >>> greedy([[1.0, 0.0], [0.0, 1.1]], 1, classes=classes).order
    array([0])
    """

    cross: Tensor
    variance: Tensor
    shares: Tensor
    weight: float
    ridge: Penalty = 0.0

    def to(self, device: str | torch.device) -> ClassErrors:
        """The same in float64 on a device."""
        cross, variance, shares = (
            part.to(device, torch.float64) for part in (self.cross, self.variance, self.shares)
        )
        ridge = self.ridge
        if isinstance(ridge, Tensor):
            ridge = ridge.to(device, torch.float64)
        return ClassErrors(cross, variance, shares, self.weight, ridge)

    def errors(self, explained: Tensor) -> Tensor:
        """Of each class (last axis), from the explained fraction of its indicator."""
        part = explained.clamp_max(MOST_EXPLAINED)
        spread = (self.shares * (1 - self.shares)).clamp_min(1e-300)
        return (-part / (1 - part) / spread / SEPARATED).exp()


@on_cpu_if_short
def greedy(
    C: Any,
    k: int | Constraints,
    *,
    ridge: Any = 0.0,
    classes: ClassErrors | None = None,
    device: str | torch.device | None = None,
) -> GreedyPath:
    r"""Choose features one by one, each time the one that lowers `residual` most.

    With E the residual covariance given the features so far, adding feature j
    lowers the residual by :math:`|E_j|^2 / (E_{jj} + \lambda)` (Farahat, Ghodsi and Kamel,
    2011). Neither E nor its square is formed: with :math:`E = C - W^\top W`, W one row for
    each pick, the criterion of all features follows from one product of C with a vector,
    so k picks read C k times: O(k d^2 + k^2 d).

    Parameters
    ----------
    C : array or tensor, d x d
        Covariance. Constant, duplicate and dependent columns are chosen only when nothing
        informative is left, constant ones last.
    k : int or Constraints
        Number of features, or the constraints to obey. Included features come first. With groups,
        a pick is a whole group. With a budget, the better of two runs is returned, by gain and by
        gain per cost; without k, it ends when nothing informative is affordable.
    ridge : float or array of d
        The penalty of `residual`.
    classes : ClassErrors, optional
        Classes of rows that the features should tell apart, too. ``errors`` then include theirs. A
        group of features is ranked by the one that separates them best.
    device : str or torch.device, optional
        Where to compute; by default, the device of C. If a GPU has too little memory, the CPU is
        used instead, with a warning.

    Returns
    -------
    GreedyPath

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.datasets import load_iris
    >>> path = greedy(np.cov(load_iris().data.T), 2)
    >>> path.order, path.errors.round(3)
    (array([2, 0]), array([0.362, 0.145]))
    """
    C, constraints, ridge = check_problem(C, k, ridge, device)
    classes = None if classes is None else classes.to(C.device)
    powers = (0.0,) if constraints.budget is None else (0.0, 1.0)
    paths = [_run(C, constraints, ridge, power, classes) for power in powers]
    if constraints.limits:
        paths = [_mended(C, path, constraints, ridge, classes) for path in paths]
    if classes is not None:
        return min(paths, key=lambda path: path.errors[-1:].sum() + constraints.price(path.order))
    return min(paths, key=lambda path: worth(C, path.order, constraints, ridge))


def _mended(
    C: Matrix,
    path: GreedyPath,
    constraints: Constraints,
    ridge: Penalty,
    classes: ClassErrors | None,
) -> GreedyPath:
    """The path, if it ended within the limits; else that through the panel that shares most."""
    units = np.unique(constraints.unit_of[path.order])
    if constraints.within(path.order) and constraints.k in (None, len(units)):
        return path
    scores = np.zeros(len(constraints.units))
    scores[units] = SHARED
    gains = Deflation(C, constraints, ridge, classes).ranking().clamp_min(0).cpu().numpy()
    panel = constraints.best(scores + gains / max(gains.max(), 1e-300))
    if panel is None:
        raise InputError("no panel meets all constraints; relax one of the limits")
    others = np.setdiff1d(np.arange(constraints.d), panel)
    count = len(np.unique(constraints.unit_of[panel]))
    only = replace(constraints, k=count, exclude=others, budget=None, limits=())
    return _run(C, only, ridge, 0.0, classes)


def _run(
    C: Matrix,
    constraints: Constraints,
    ridge: Penalty,
    power: float,
    classes: ClassErrors | None,
) -> GreedyPath:
    """One greedy run that ranks by gain / cost ** power."""
    left = Deflation(C, constraints, ridge, classes)
    picks: list[Tensor] = []
    errors: list[Tensor] = []
    for unit in _picks(left, constraints, power):
        left.take(unit)
        picks.append(unit)
        errors.append(left.objective)
    units = [constraints.units[u] for u in torch.cat(picks).tolist()] if picks else []
    return GreedyPath(
        order=np.concatenate([*units, np.arange(0)]),
        errors=torch.stack([*errors, left.objective])[:-1].clamp_min(0).cpu().numpy(),
        sizes=np.cumsum([len(unit) for unit in units], dtype=np.int64),
    )


def _picks(left: Deflation, constraints: Constraints, power: float) -> Iterator[Tensor]:
    """Units to take, each chosen after the one before it was taken."""
    device = left.C.device
    must = torch.as_tensor(constraints.included_units, device=device)
    shut = torch.ones(len(constraints.units), dtype=torch.bool, device=device)
    shut[must] = False
    for _ in range(len(must)):
        yield _best(left.ranking(), shut)
    shut.fill_(False)
    shut[must] = True
    if constraints.budget is None and not constraints.limits:
        for _ in range(constraints.most_units - len(must)):
            yield _best(left.ranking(), shut)
        return
    limits = Limits(constraints, device)
    S = torch.full((constraints.most_units,), len(shut), device=device)
    S[: len(must)] = must
    costs = torch.as_tensor(constraints.unit_costs, device=device)
    weight = costs.clamp_min(1e-300) ** power  # a free unit comes first
    for place in range(len(must), constraints.most_units):
        value = left.ranking()
        rank = torch.where(value > 0, value / weight, value)
        addable = limits.addable(~shut[None], S[None])[0]
        # without k nothing uninformative is bought, and the budget may be spent
        done = constraints.k is None and place and bool(limits.met(S[None])[0])
        if not addable.any() or (done and rank[addable].max() <= 0):
            return
        pick = _best(rank, ~addable)
        S[place] = pick
        shut.index_fill_(0, pick, True)
        yield pick


def _best(rank: Tensor, shut: Tensor) -> Tensor:
    """Shut and return the best open unit, as a tensor of length 1, without synchronisation."""
    pick = rank.masked_fill(shut, -torch.inf).argmax(keepdim=True)
    shut.index_fill_(0, pick, True)
    return pick


class Deflation:
    """Blocks of E, the covariance of what is unexplained, and of its square on each unit.

    Blocks are m x m for units of m features; without groups they are the two numbers of the
    criterion.
    """

    def __init__(
        self,
        C: Matrix,
        constraints: Constraints,
        ridge: Penalty,
        classes: ClassErrors | None = None,
    ) -> None:
        self.C, self.ridge = C, ridge
        self.classes = None if classes is None else _SeparatedClasses(C, constraints, classes)
        self.table = unit_table(constraints, C.device)  # units x m
        self.floor = DEPENDENT * C.diagonal()
        self.least = self._on_units(self.floor)
        self.unit_ridge = penalty_at(ridge, self.table)
        spread = self.least.sum(1)
        self.last = spread - spread.max()
        picks = min(len(C), constraints.most_units * self.table.shape[1])
        self.W = self.floor.new_zeros(picks, len(C))
        if isinstance(C, FactoredCovariance):
            self.A = self.floor.new_zeros(picks, len(C.rows))  # W = A X
        self.prices = None
        if constraints.unit_prices is not None:
            self.prices = torch.as_tensor(constraints.unit_prices, device=C.device)
        self.count = 0
        self.error = C.diagonal().new_tensor(total_variance(C, ridge))
        self.refresh()

    def refresh(self) -> None:
        """Compute the blocks from scratch, without the rounding errors of the updates."""
        C, W = self.C, self.W[: self.count]
        if isinstance(C, FactoredCovariance):
            Y = C.rows - self.A[: self.count].T @ W if self.count else C.rows
            self.E, self.EE = factored_blocks(C, Y, self.table)
        else:
            self.E, self.EE = unit_blocks(lambda at: C[at] - W[:, at].T @ W, self.table, len(C))
        self.fresh = float(self.error)

    @property
    def objective(self) -> Tensor:
        """What is left unexplained, and the error of classes as much as it counts."""
        return self.error if self.classes is None else self.error + self.classes.mistaken

    def ranking(self) -> Tensor:
        """Gain of each unit minus its price; without prices, 0 at most for uninformative ones."""
        gain, informative = block_gain(self.E, self.EE, self.least, self.unit_ridge)
        if self.classes is not None:
            gain = gain + self.classes.gain()
        if self.prices is not None:
            return torch.where(informative, gain, 0.0) - self.prices
        return torch.where(informative, gain, self.last)

    def take(self, unit: Tensor) -> None:
        """Put a unit on the panel, feature by feature."""
        if self.classes is not None:
            self.classes.take(unit)
        features = self.table[unit].mT  # m x 1
        for j in features:
            if self.table.shape[1] == 1 or int(j) < len(self.C):
                self._take_feature(j)
        # Squares lose twice the digits, so they are renewed in time. Reading the error waits for
        # the device, so later picks, which change less, do so less often.
        check = self.count < EARLY or self.count % SELDOM == 0
        if check and 0 < float(self.error) < STALE * self.fresh:
            self.refresh()

    def _take_feature(self, j: Tensor) -> Tensor:
        """Update for a feature, and return one over the root of its unexplained variance."""
        C, W = self.C, self.W[: self.count]
        W_j = W.index_select(1, j)[:, 0]
        if isinstance(C, FactoredCovariance):
            # E = X' K X with K = I - A' A: E_j = X' y with y = K x_j, and E E_j = X' K X X' y
            A = self.A[: self.count]
            y = C.rows.index_select(1, j)[:, 0] - W_j @ A
            g = C.gram @ y
            w, Ew = torch.stack([y, g - (A @ g) @ A]) @ C.rows
        else:
            w = C.index_select(0, j)[0] - W_j @ W  # the column E_j
        w_j = w.index_select(0, j)
        # a dependent column explains nothing: w = 0
        own = penalty_at(self.ridge, j)
        dependent = _own_part(w_j, own) <= self.floor.index_select(0, j)
        factor = (w_j + own).masked_fill(dependent, torch.inf).rsqrt()
        w = w * factor
        if isinstance(C, FactoredCovariance):
            self.A[self.count], Ew = y * factor, Ew * factor
        else:
            Ew = torch.mv(C, w) - (W @ w) @ W
        norm = w @ w
        self.W[self.count] = w
        self.count += 1
        self.error = self.error - norm
        a, b = self._on_units(w), self._on_units(Ew)
        X = outer(a, b - norm / 2 * a)
        self.EE.sub_(X).sub_(X.mT)
        self.E.addcmul_(a[..., :, None], a[..., None, :], value=-1)
        return factor

    def _on_units(self, x: Tensor) -> Tensor:
        """A vector over features, spread over the units (units x m)."""
        return padded(x)[self.table]


class _SeparatedClasses(Deflation):
    """What the features leave of the indicators of classes, with a penalty of its own."""

    def __init__(self, C: Matrix, constraints: Constraints, given: ClassErrors) -> None:
        super().__init__(C, constraints, given.ridge)
        self.given = given
        self.cross = given.cross.clone()  # with what is left of each feature
        self.explained = torch.zeros_like(self.cross[0])  # explained fraction of each indicator

    @property
    def mistaken(self) -> Tensor:
        """The mean error of the classes, as much as it counts."""
        return self.given.weight * self.given.errors(self.explained).mean()

    def gain(self) -> Tensor:
        """By how much each unit, or the best of its features, lowers it."""
        pivot = self.E.diagonal(dim1=-2, dim2=-1) + self.unit_ridge
        missing = (pivot <= self.least) | (self.table >= len(self.C))  # of a smaller unit
        pivot = pivot.masked_fill(missing, torch.inf)
        cross = self.cross[self.table.clamp_max(len(self.C) - 1)]
        more = cross.square() / pivot[..., None] / self.given.variance
        errors = self.given.errors(self.explained + more).mean(-1).amin(-1)
        return self.mistaken - self.given.weight * errors

    def _take_feature(self, j: Tensor) -> Tensor:
        factor = super()._take_feature(j)
        y = self.cross.index_select(0, j)[0] * factor
        self.explained = self.explained + y.square() / self.given.variance
        self.cross = self.cross - outer(self.W[self.count - 1], y)
        return factor


def unit_table(constraints: Constraints, device: torch.device) -> Tensor:
    """Features of each unit (units x m), padded with d."""
    width = max(len(unit) for unit in constraints.units)
    table = np.full((len(constraints.units), width), constraints.d)
    for row, unit in zip(table, constraints.units, strict=True):
        row[: len(unit)] = unit
    return torch.as_tensor(table, device=device)


def outer(a: Tensor, b: Tensor) -> Tensor:
    """Outer products over the last axis: (..., m) and (..., m) to (..., m, m)."""
    return a[..., :, None] * b[..., None, :]


def unit_blocks(
    rows_of: Callable[[Tensor], Tensor], table: Tensor, d: int
) -> tuple[Tensor, Tensor]:
    """Blocks of a symmetric d x d matrix, given by its rows, and of its square on each unit."""
    width = table.shape[1]
    blocks, squares = [], []
    most = max(1, AT_ONCE // (d * width))
    for part in table.split(min(most, -(-len(table) // PARTS))):
        rows = rows_of(part.clamp_max(d - 1).flatten()).view(*part.shape, d)
        rows = rows * (part < d)[..., None]
        squares.append(rows @ rows.mT)
        blocks.append(padded(rows).gather(2, part[:, None].expand(-1, width, -1)))
    return torch.cat(blocks), torch.cat(squares)


def factored_blocks(C: FactoredCovariance, Y: Tensor, table: Tensor) -> tuple[Tensor, Tensor]:
    """Blocks of E = X' Y, and of its square, on each unit, where Y = K X with a symmetric K."""
    if len(table) == len(C):  # each feature is a unit
        if Y is C.rows:
            return C.diagonal()[:, None, None].clone(), C.squares[:, None, None].clone()
        return (C.rows * Y).sum(0)[:, None, None], C.squares_of(Y)[:, None, None]
    blocks, squares = [], []
    for part in table.split(max(1, AT_ONCE // (len(Y) * table.shape[1]))):
        at, held = part.clamp_max(len(C) - 1), (part < len(C))[..., None]
        x, y = C.columns(at) * held, Y[:, at].movedim(0, -1) * held  # units x m x r
        blocks.append(x @ y.mT)
        squares.append(y @ C.gram @ y.mT)
    return torch.cat(blocks), torch.cat(squares)


def block_gain(E: Tensor, EE: Tensor, least: Tensor, ridge: Penalty) -> tuple[Tensor, Tensor]:
    r"""What taking a whole unit J explains: :math:`tr((E_{JJ} + \lambda I)^{-1} (E^2)_{JJ})`.

    Features of the unit are eliminated one by one, the largest first, so that those that depend on
    others of their unit add nothing.
    """
    *_, m = E.shape
    if m == 1:
        own = ridge[..., 0] if isinstance(ridge, Tensor) else ridge
        gain, useful, _ = _pivot(E[..., 0, 0], EE[..., 0, 0], least[..., 0], own)
        return gain, useful
    total, informative = least.new_zeros(()), torch.zeros((), dtype=torch.bool, device=E.device)
    least = least.expand(E.shape[:-1]).clone()
    for _ in range(m):
        rest = _own_part(E.diagonal(dim1=-2, dim2=-1), ridge)
        at = rest.masked_fill(rest <= least, -torch.inf).argmax(-1, keepdim=True)  # ... x 1
        e, ee = (x.take_along_dim(at[..., None], -1)[..., 0] for x in (E, EE))  # ... x m
        e_j, ee_j, least_j = (x.gather(-1, at)[..., 0] for x in (e, ee, least))
        own = ridge
        if isinstance(ridge, Tensor):
            own = ridge.expand(E.shape[:-1]).gather(-1, at)[..., 0]
        gain, useful, pivot = _pivot(e_j, ee_j, least_j, own)
        least.scatter_(-1, at, torch.inf)  # with a penalty some of its variance is left
        total = total + gain
        informative = informative | useful
        # With w = e / sqrt(pivot) and h = E w = ee / sqrt(pivot), E decreases by w w^T and its
        # square by h w^T + w h^T - |w|^2 w w^T; all is 0 where nothing useful is left.
        w = e / pivot[..., None]
        X = outer(w, ee - gain[..., None] / 2 * e)
        EE = EE - X - X.mT
        E = E - outer(w, e)
    return total, informative


def _pivot(e: Tensor, ee: Tensor, least: Tensor, ridge: Penalty) -> tuple[Tensor, Tensor, Tensor]:
    """Gain |E_j|^2 / (E_jj + ridge), whether column j is independent, and the divisor."""
    useful = _own_part(e, ridge) > least
    pivot = (e + ridge).masked_fill(~useful, torch.inf)
    # |E_j| is at least E_jj, up to rounding
    return torch.maximum(ee, e * e) / pivot, useful, pivot


def _own_part(e: Tensor, ridge: Penalty) -> Tensor:
    """What a feature has of its own: its unexplained variance E_jj, if that is one.

    With a penalty for each feature, C is an estimate of a signal's covariance, in which E_jj may be
    negative; the variance of what is measured is more by the penalty.
    """
    return e + ridge if isinstance(ridge, Tensor) else e


def nested(C: Any, S: Any, ridge: Any = 0.0) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Order the features of a panel as `greedy` would choose them, and the gain of each.

    Only the k rows of C that belong to the panel are used.
    """
    penalty = check_penalty(ridge, len(C))
    matrix = covariance(C, penalty=penalty)
    columns = torch.as_tensor(np.asarray(S, dtype=np.int64), device=matrix.device)
    own_ridge = torch.zeros(len(columns), dtype=matrix.dtype) + penalty_at(penalty, columns.cpu())
    own_ridge = own_ridge.to(matrix.device)
    places = torch.arange(len(columns), device=matrix.device)
    left = matrix[columns]  # k x d: rows of the unexplained covariance
    floor = DEPENDENT * left[places, columns]
    free = torch.ones(len(columns), dtype=torch.bool, device=matrix.device)
    order, gains = [], []
    for _ in range(len(columns)):
        pivot = left[places, columns] + own_ridge
        gain = torch.where(pivot > floor, left.square().sum(1) / pivot, 0.0)
        pick = int(gain.masked_fill(~free, -torch.inf).argmax())
        order.append(pick)
        gains.append(float(gain[pick]))
        free[pick] = False
        if gains[-1] > 0:  # a dependent column changes nothing
            taken = left[pick] / pivot[pick]
            left = left - left[:, columns[pick], None] * taken
    return columns.cpu().numpy()[order], np.array(gains)
