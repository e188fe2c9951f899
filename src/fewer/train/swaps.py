"""Swaps that lower other errors than the residual of a covariance.

`network_swaps` is for nonlinear decoders. Training a network for every swap would take hours; ridge
regression on random features ranks panels nearly as the network does, and is solved exactly in
milliseconds: Phi = [relu(Z_S R_S / sqrt(k) + c), Z_S, 1], with one fixed row of R per column of the
data, so that panels with common features have common random features, which reduces the noise of
differences between them. Every fold of the rows is held out once.

`held_out_swaps` is for linear decoders where rows are few: the residual on the training rows then
says little about new rows, and the error on the held-out rows of each fold is minimised instead.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fewer._threads import mapped, own_cores
from fewer.constraints import Constraints
from fewer.data import Source
from fewer.data.factored import Matrix, symmetric_product
from fewer.data.moments import Summary
from fewer.search.eigen import leading_eigenvectors
from fewer.search.exchange import swap_losses
from fewer.search.objective import residual_of

__all__ = ["HeldOut", "RandomFeatureSurrogate", "held_out_swaps", "network_swaps"]

COMPONENTS = 128
# on random features of about unit variance, more where rows are few; a hundredth of it on the
# linear part
RIDGE, MANY_ROWS = 1e-2, 2000
SUBSTITUTES = 2  # per chosen unit, tried directly
POOL = 64  # units that are tried as additions, half of them at random
VERIFIED = (12, 24, 48)  # swaps that the finer surrogate checks: more after a failed round
MOST_SWAPS = 4  # in a round
VALUES_ON_GPU = 2**26  # of random features of panels that are solved at once
COARSE, FINE = (128, 1200, 2), (384, 3000, 4)  # random features, rows, folds of the surrogates
FEWEST, ROWS_PER_FEATURE = 128, 5  # where rows are few, there are fewer random features
MOST_ENTERING = 1024  # features that later rounds of swaps on held-out rows consider
SOME = 2048  # features that are scored at a time, since each takes as many numbers as rows
PROGRESS = 1e-4  # minimum relative improvement

Columns = NDArray[np.int64]
Judge = Callable[[Sequence[Sequence[int]]], NDArray[np.float64]]  # errors of panels of units


class RandomFeatureSurrogate:
    """Held-out error of panels of about k features, by ridge regression on random features.

    ``seed`` determines the random layer (of ``width`` features, fewer where rows are few), the rows
    used (at most ``rows``) and the ``folds``, each of which is held out once; rows with the same
    label stay together. Missing values are replaced by the mean. What is predicted are the rows
    themselves, by their leading components (``axes``, if known), or ``targets`` (n x m), whose rows
    may have ``weights``.
    """

    def __init__(
        self,
        source: Source,
        summary: Summary,
        *,
        k: int,
        width: int = 512,
        rows: int = 6000,
        folds: int = 4,
        seed: int = 0,
        device: torch.device | str = "cpu",
        labels: NDArray | None = None,
        targets: Tensor | None = None,
        weights: Tensor | None = None,
        axes: Tensor | None = None,
    ) -> None:
        n, d = source.shape
        index = np.random.default_rng(seed).permutation(n)[: min(n, rows)]
        if labels is not None:  # groups one after the other, so that the cut can respect them
            groups = _shuffled(labels, seed)
            index = index[np.argsort(groups[index], kind="stable")]
        order = np.argsort(index)  # sources read ascending rows fastest
        x = source.rows(index[order], torch.float64)[torch.from_numpy(np.argsort(order))]
        x = torch.nan_to_num(x - summary.mean, nan=0.0)
        spread = summary.matrix.diagonal().sqrt()
        if targets is None:
            axes = leading_eigenvectors(summary.matrix, COMPONENTS) if axes is None else axes
            y = x @ axes
            self.targets = (y / spread.square().mean().sqrt()).float().to(device)
        else:
            self.targets = targets[torch.from_numpy(index)].float().to(device)
        self.root: Tensor | None = None  # of the weight of each row
        if weights is not None:
            own = weights[torch.from_numpy(index)]
            self.root = (own / own.mean()).sqrt()[:, None].float().to(device)
            self.targets = self.targets * self.root
        z = x / torch.where(spread > 0, spread, 1.0)
        # a column of zeros is "no feature", so that panels of different sizes can be batched
        self.inputs = torch.cat([z, torch.zeros(len(z), 1)], dim=1).float().to(device)
        width = min(width, max(FEWEST, len(z) // ROWS_PER_FEATURE))
        generator = torch.Generator().manual_seed(seed)
        self.mix = torch.randn(d + 1, width, generator=generator).to(device) / k**0.5
        self.shift = torch.randn(width, generator=generator).to(device)
        edges = np.arange(1, len(z))
        if labels is not None and len(np.unique(groups[index])) > 1:
            edges = np.flatnonzero(np.diff(groups[index])) + 1
        self.folds = _folds(len(z), edges, folds)
        held = torch.tensor([part.stop - part.start for part in self.folds])
        self.others = (len(z) - held)[:, None, None].to(device)  # rows that are not held out
        self.squares = torch.stack([self.targets[rows].square().sum() for rows in self.folds])
        self.variance = float(spread.square().mean()) or 1.0
        self.one_by_one = torch.device(device).type == "cpu"
        ridge = RIDGE * max(1.0, MANY_ROWS / len(z))
        penalty = [torch.full((width,), ridge), torch.full((d + 1,), ridge / 100)]
        self.penalty = torch.cat(penalty).to(device)
        self.known: dict[bytes, float] = {}  # the round after a failed one meets the same panels

    def errors(self, panels: Sequence[Columns]) -> NDArray[np.float64]:
        """Mean squared error of each panel on the held-out rows, in units of the mean variance."""
        new = {panel.tobytes(): panel for panel in panels}
        new = {key: panel for key, panel in new.items() if key not in self.known}
        self.known |= zip(new, self._computed(list(new.values())), strict=True)
        return np.array([self.known[panel.tobytes()] for panel in panels])

    def _computed(self, panels: list[Columns]) -> list[float]:
        if not panels or self.one_by_one:  # some panels on each core
            parts = [range(at, len(panels), own_cores()) for at in range(own_cores())]
            found = mapped(lambda part: self._one_by_one([panels[at] for at in part]), parts)
            pairs = zip(chain(*parts), chain(*found), strict=True)
            return [error for _, error in sorted(pairs)]
        table = np.full((len(panels), max(map(len, panels))), self.inputs.shape[1] - 1)
        for row, panel in zip(table, panels, strict=True):
            row[: len(panel)] = panel
        most = max(1, VALUES_ON_GPU // (len(self.inputs) * (len(self.shift) + table.shape[1])))
        parts = torch.from_numpy(table).to(self.inputs.device).split(most)
        return torch.cat([self._errors(part) for part in parts]).double().cpu().tolist()

    def _errors(self, panels: Tensor) -> Tensor:
        z = self.inputs[:, panels].transpose(0, 1)  # panels x rows x k
        random = torch.relu(z @ self.mix[panels] + self.shift)
        phi = torch.cat([random, z, torch.ones_like(z[..., :1])], dim=-1)
        if self.root is not None:
            phi = phi * self.root
        parts = [phi[:, rows] for rows in self.folds]
        return self._held_out(
            torch.stack([part.mT @ part for part in parts], dim=1),
            torch.stack(
                [
                    part.mT @ self.targets[rows]
                    for part, rows in zip(parts, self.folds, strict=True)
                ],
                dim=1,
            ),
        )

    def _one_by_one(self, panels: Sequence[Columns]) -> list[float]:
        """The same for each panel in turn, in one buffer: new memory costs as much as the sums."""
        rows, width, found = len(self.inputs), len(self.shift), []
        phi = torch.zeros(0, 0)
        for columns in panels:
            panel = torch.from_numpy(columns)
            if phi.shape[1] != width + len(panel) + 1:
                phi = torch.ones(rows, width + len(panel) + 1, dtype=self.inputs.dtype)
            z = self.inputs[:, panel]
            torch.addmm(self.shift, z, self.mix[panel], out=phi[:, :width]).relu_()
            phi[:, width:-1] = z
            if self.root is not None:
                phi[:, -1] = 1.0
                phi.mul_(self.root)
            size = phi.shape[1]
            grams = torch.empty(len(self.folds), size, size)
            rights = torch.empty(len(self.folds), size, self.targets.shape[1])
            for gram, right, fold in zip(grams, rights, self.folds, strict=True):
                torch.mm(phi[fold].T, phi[fold], out=gram)
                torch.mm(phi[fold].T, self.targets[fold], out=right)
            found.append(float(self._held_out(grams, rights)))
        return found

    def _held_out(self, grams: Tensor, rights: Tensor) -> Tensor:
        """Errors of ridge regressions without each fold on that fold, from sums over its rows."""
        fit = (grams.sum(-3, keepdim=True) - grams).div_(self.others)
        fit.diagonal(dim1=-2, dim2=-1).add_(self.penalty[: fit.shape[-1]])
        right = (rights.sum(-3, keepdim=True) - rights).div_(self.others)
        weights = torch.cholesky_solve(right, torch.linalg.cholesky(fit))
        wrong = self.squares + (weights * (grams @ weights - 2 * rights)).sum((-2, -1))
        return wrong.sum(-1) / (len(self.inputs) * (self.inputs.shape[1] - 1))


def _folds(rows: int, edges: NDArray[np.int64], count: int) -> list[slice]:
    """Up to ``count`` parts of about as many rows that begin at ``edges``, at least two of them."""
    wanted = np.arange(1, count) * rows / count
    cuts = np.unique([edges[np.abs(edges - cut).argmin()] for cut in wanted])
    return [slice(int(a), int(b)) for a, b in pairwise([0, *cuts, rows])]


def _shuffled(labels: NDArray, seed: int) -> NDArray[np.int64]:
    """Labels as numbers in random order."""
    number = np.unique(labels, return_inverse=True)[1]
    return np.random.default_rng(seed).permutation(number.max() + 1)[number]


def network_swaps(
    source: Source,
    summary: Summary,
    starts: Sequence[Columns],
    constraints: Constraints,
    *,
    rounds: int = 40,
    time_limit: float | None = None,
    seed: int = 0,
    device: torch.device | str = "cpu",
    labels: NDArray | None = None,
    targets: Tensor | None = None,
    linear: Matrix | None = None,
    weights: Tensor | None = None,
    reconstruct: float = 0.0,
) -> Columns:
    """Swap features while that lowers the error of a surrogate of a network.

    Each round uses a coarse surrogate to score removing every unit, adding each of a pool, and
    swapping every unit for its best linear substitutes; a finer surrogate scores the most promising
    swaps, and the best that are confirmed are made.

    Parameters
    ----------
    source, summary : Source, Covariance
        Rows, in the units in which errors are measured, and their covariance.
    starts : list of arrays of int
        Panels that obey the constraints; the best of them is improved.
    constraints : Constraints
        What every panel must obey.
    rounds, time_limit : int, float, default=40, None
        Maximum number of rounds, and of seconds after which no round starts.
    seed : int, default=0
        Makes the result reproducible, unless time runs out.
    device : torch.device, default="cpu"
        Where to compute.
    labels : array of length n, default=None
        Rows with the same label are not split.
    targets, linear : Tensor (n x m), covariance, default=None, None
        Centred numbers to predict instead of the rows, and the covariance of features and targets,
        which suggests swaps.
    weights : Tensor of length n, default=None
        How much each row counts, where there are targets.
    reconstruct : float, default=0.0
        How much reconstructing the rows by a linear decoder counts beside the targets, below 1;
        both relative to the best of the starts.

    Returns
    -------
    array of int
        Columns, ascending.

    Examples
    --------
    A feature and its square are linearly unrelated.

    >>> import numpy as np
    >>> from fewer.constraints import resolve
    >>> from fewer.data import covariance
    >>> from fewer.data.source import array_source
    >>> x = np.random.default_rng(0).normal(size=(500, 2))
    >>> rows = np.hstack([x, x**2 / 2**0.5 + 0.1 * x])
    >>> source = array_source(rows)
    >>> network_swaps(source, covariance(source), [np.array([2, 3])], resolve(None, 4, 2))
    array([0, 1])
    """
    began = time.perf_counter()
    options: dict[str, Any] = {"k": len(starts[0]), "seed": seed, "device": device}
    options |= {"labels": labels, "targets": targets, "weights": weights}
    if targets is None:
        options["axes"] = leading_eigenvectors(summary.matrix, COMPONENTS)

    def judge(width: int, rows: int, folds: int) -> Judge:
        size: dict[str, Any] = {"width": width, "rows": rows, "folds": folds}
        surrogate = RandomFeatureSurrogate(source, summary, **size, **options)
        return partial(_judged, surrogate, constraints)

    coarse, fine = judge(*COARSE), judge(*FINE)
    random, guide = np.random.default_rng(seed), summary.matrix if linear is None else linear
    panels = [list(np.unique(constraints.unit_of[start])) for start in starts]
    if reconstruct:
        C = summary.matrix
        least = min(residual_of(C, start, 0.0) for start in starts)
        factor = reconstruct / (1 - reconstruct) * float(fine(panels).min()) / (least or 1.0)
        coarse, fine = (
            partial(_with_residual, one, C, constraints, factor) for one in (coarse, fine)
        )
    errors = fine(panels)
    units, now = panels[int(errors.argmin())], float(errors.min())
    failed = 0  # rounds
    for _ in range(rounds):
        tried = _promising(coarse, guide, constraints, units, random)[: VERIFIED[failed]]
        errors = fine([_after(units, *swap) for swap in tried])
        before = now
        for out, into in [tried[at] for at in np.argsort(errors)[:MOST_SWAPS]]:
            if out in units and into not in units and _affordable(constraints, units, out, into):
                after = _after(units, out, into)
                error = float(fine([after])[0])
                if error < now * (1 - PROGRESS):
                    units, now = after, error
        failed = failed + 1 if now == before else 0
        late = time_limit is not None and time.perf_counter() - began > time_limit
        if failed == len(VERIFIED) or late:
            break
    return constraints.features(units)


def _promising(
    judge: Judge, C: Matrix, constraints: Constraints, units: list[int], random: np.random.Generator
) -> list[tuple[int, int]]:
    """Swaps (out, into), best first according to the coarse surrogate."""
    included = set(constraints.included_units.tolist())
    free = [unit for unit in units if unit not in included]
    others = np.setdiff1d(np.arange(len(constraints.units)), units)
    if not free or not len(others):
        return []
    losses = _unit_losses(C, constraints, units, free, others)
    near = others[np.argsort(losses.min(axis=0))[: POOL // 2]]
    rest = np.setdiff1d(others, near)
    pool = np.concatenate([near, random.permutation(rest)[: POOL - len(near)]]).tolist()
    base, *drops = judge([units, *([u for u in units if u != out] for out in free)])
    adds = judge([[*units, unit] for unit in pool])
    guess = {
        (out, into): drop + add - base
        for out, drop in zip(free, drops, strict=True)
        for into, add in zip(pool, adds, strict=True)
        if _affordable(constraints, units, out, into)
    }
    direct = [
        (out, into)
        for out, row in zip(free, losses, strict=True)
        for into in others[np.argsort(row)[:SUBSTITUTES]].tolist()
        if _affordable(constraints, units, out, into)
    ]
    scores = judge([_after(units, *swap) for swap in direct])
    guess |= dict(zip(direct, scores, strict=True))
    return sorted(guess, key=guess.__getitem__)


def _judged(
    surrogate: RandomFeatureSurrogate, constraints: Constraints, panels: Sequence[Sequence[int]]
) -> NDArray[np.float64]:
    """Errors of panels of units, plus their prices if costs have weight."""
    columns = [constraints.features(units) for units in panels]
    prices = np.array([constraints.price(panel) for panel in columns])
    return surrogate.errors(columns) + prices / (constraints.d * surrogate.variance)


def _with_residual(
    judge: Judge,
    C: Matrix,
    constraints: Constraints,
    factor: float,
    panels: Sequence[Sequence[int]],
) -> NDArray[np.float64]:
    """What a surrogate says of panels of units, plus a factor times what they leave of the rows."""
    left = [residual_of(C, constraints.features(units), 0.0) for units in panels]
    return judge(panels) + factor * np.array(left)


def _unit_losses(
    C: Matrix, constraints: Constraints, units: list[int], free: list[int], others: Columns
) -> NDArray[np.float32]:
    """Linear loss of swapping each free unit for each other unit, by their best features."""
    columns = constraints.features(units)
    losses = swap_losses(C, columns)
    table = np.empty((len(free), len(others)), dtype=np.float32)
    parts = [constraints.units[other] for other in others]
    features = np.concatenate(parts)
    first = np.cumsum([0, *map(len, parts[:-1])])  # of each unit
    for row, unit in zip(table, free, strict=True):
        own = losses[np.isin(columns, constraints.units[unit])].min(axis=0)
        row[:] = np.minimum.reduceat(own[features], first)
    return table


def _after(units: list[int], out: int, into: int) -> list[int]:
    return [into if unit == out else unit for unit in units]


def _affordable(constraints: Constraints, units: list[int], out: int, into: int) -> bool:
    if constraints.budget is None:
        return True
    return bool(constraints.unit_costs[_after(units, out, into)].sum() <= constraints.ceiling)


@dataclass(frozen=True, eq=False)
class HeldOut:
    r"""Folds of rows, and the error of linear decoders on their held-out parts.

    For one fold, with S the panel, X the training rows and Y the held-out rows (both minus the
    training mean, over the root of their number), C = X'X and a ridge penalty :math:`\lambda`:

    .. math:: P = (C_{SS} + \lambda I)^{-1}, \quad B = P C_S, \quad R = Y - Y_S B,
        \quad E = C - C_S^\top B, \quad G = R^\top R

    Removing the i-th member changes R by :math:`w_i b_i^\top`, with
    :math:`w_i = Y_S P_i / P_{ii}`, and E by :math:`b_i b_i^\top / P_{ii}`; adding j then changes R
    by :math:`-R_j E_j^\top / (E_{jj} + \lambda)`. With :math:`A = P X_S^\top`, B is A X, and
    :math:`E = X^\top T` with :math:`T = X - X_S B`. So no d x d matrix is formed, and what sums
    over all features follows from the products of rows X X' and X Y'. Where there are more rows
    than features, X and Y are the triangular factors of the rows, which have the same errors.

    Examples
    --------
    >>> rows = np.random.default_rng(0).normal(size=(40, 6))
    >>> folds = HeldOut.of(rows, [np.arange(20), np.arange(20, 40)], ridge=0.1)
    >>> folds.error(np.arange(6)) < folds.error(np.arange(3))
    True
    """

    parts: list["_FoldRows"]
    ridge: float

    @classmethod
    def of(cls, rows: NDArray, held: list[Columns], ridge: float) -> "HeldOut":
        """Folds of rows; ``held`` has the numbers of the rows that each holds out."""
        X = torch.from_numpy(rows).float()
        parts = []
        for index in held:
            out = torch.from_numpy(index)
            train = torch.from_numpy(np.setdiff1d(np.arange(len(rows)), index))
            mean = X.index_select(0, train).mean(0)
            parts.append(_FoldRows.of(*(_Rows(X, at, mean).short() for at in (train, out))))
        return cls(parts, ridge)

    @property
    def d(self) -> int:
        """Number of features."""
        return self.parts[0].train.table.shape[1]

    def error(self, panel: Columns) -> float:
        """Mean squared residual on held-out rows, over folds and features."""
        S = torch.from_numpy(panel)
        total = 0.0
        for part in self.parts:
            W = part.held[S].double() @ part.decode(S, self.ridge)[1]  # R = Y - W X
            total += part.total + float((W * (W @ part.gram - 2 * part.cross.T)).sum())
        return total / len(self.parts) / self.d

    def drops(self, panel: Columns) -> NDArray[np.float64]:
        """Increase of the error when each member is removed."""
        S = torch.from_numpy(panel)
        total = torch.zeros(len(S), dtype=torch.float64)
        for part in self.parts:
            total += part.swaps(S, self.ridge, [])[0][:, 0]
        return (total / len(self.parts) / self.d).numpy()

    def swaps(self, panel: Columns, columns: Columns | None = None) -> NDArray[np.float64]:
        """Change of the error by each swap (out i, in j), k x d; infinite for members j.

        With ``columns``, only of swaps that bring one of these, in their order.
        """
        S = torch.from_numpy(panel)
        into = np.arange(self.d) if columns is None else columns
        blocks: list[Tensor | slice] = [slice(at, at + SOME) for at in range(0, self.d, SOME)]
        if columns is not None:
            blocks = list(torch.from_numpy(columns).split(SOME))
        total = torch.zeros(len(S), len(into), dtype=torch.float64)
        for part in self.parts:
            total += torch.cat(part.swaps(S, self.ridge, blocks)[1:], dim=1)
        total /= len(self.parts) * self.d
        total[:, torch.from_numpy(np.isin(into, panel))] = torch.inf
        return total.numpy()


@dataclass(frozen=True, eq=False)
class _Rows:
    """Some rows of a table that folds share, about a mean and over the root of their number."""

    table: Tensor  # float32
    index: Tensor
    mean: Tensor
    unit: float | None = None  # in place of the root

    def __getitem__(self, columns: Tensor | slice) -> Tensor:
        """Some columns of these rows."""
        if isinstance(columns, slice):
            x = self.table[:, columns].index_select(0, self.index)
        else:
            x = self.table[self.index[:, None], columns]
        return x.sub_(self.mean[columns]).div_(self.unit or len(self.index) ** 0.5)

    def short(self) -> "_Rows":
        """No more rows than columns, with the same products x' x."""
        if len(self.index) <= self.table.shape[1]:
            return self
        R = torch.linalg.qr(self[:], mode="r")[1]
        return _Rows(R, torch.arange(len(R)), torch.zeros_like(self.mean), 1.0)


@dataclass(frozen=True, eq=False)
class _FoldRows:
    """Training rows X and held-out rows Y of a fold, and their products in float64."""

    train: _Rows
    held: _Rows
    gram: Tensor  # X X'
    cross: Tensor  # X Y'
    total: float  # sum of squares of Y

    @classmethod
    def of(cls, train: _Rows, held: _Rows) -> "_FoldRows":
        n, m = len(train.index), len(held.index)
        gram, cross = (torch.zeros(n, count, dtype=torch.float64) for count in (n, m))
        total = 0.0
        for at in range(0, train.table.shape[1], SOME):
            X, Y = (rows[slice(at, at + SOME)].double() for rows in (train, held))
            gram += symmetric_product(X, X)
            cross += X @ Y.T
            total += float(Y.square().sum())
        return cls(train, held, gram, cross, total)

    def decode(self, S: Tensor, ridge: float) -> tuple[Tensor, Tensor]:
        """P and A; in float64, since with as many features as rows P is nearly singular."""
        Z = self.train[S].double()
        P = torch.linalg.inv(Z.T @ Z + ridge * torch.eye(len(S), dtype=torch.float64))
        return P, P @ Z.T

    def swaps(self, S: Tensor, ridge: float, into: Sequence[Tensor | slice]) -> list[Tensor]:
        """Change of the squared error by removals, then by swaps that bring these columns."""
        X_S, Y_S = self.train[S], self.held[S]
        P, A = self.decode(S, ridge)
        p = P.diagonal()[:, None]
        M = self.cross.T - Y_S.double() @ A @ self.gram  # R X'
        W = Y_S.double() @ P / p.T
        AG, WM = A @ self.gram, W.T @ M
        c = W.square().sum(0)[:, None]
        bb, ub = (AG * A).sum(1)[:, None], (WM * A).sum(1)[:, None]  # with u_i = R' w_i
        found = [removed := 2 * ub + c * bb]
        M, W, AG, WM, AM, A, p, c, bb, ub, G = (
            x.float() for x in (M, W, AG, WM, A @ M.T, A, p, c, bb, ub, self.gram)
        )
        for columns in into:
            X, Y = self.train[columns], self.held[columns]
            B = A @ X
            T = torch.addmm(X, X_S, B, alpha=-1)
            R = Y.addmm_(Y_S, B, alpha=-1)
            U, EB, GB, EU = W.T @ R, AG @ T, AM @ R, WM @ T
            # products of the changed G and E, row by row: what adding j explains
            explained = (R * (M @ T)).sum(0) + B * GB / p + U * EB + B * EU + c * B * EB
            explained += B * (U * bb + B * ub + c * bb * B) / p
            pivot = (X * T).sum(0) + B.square() / p + ridge
            own = R.square().sum(0) + 2 * U * B + c * B.square()
            length = (T * (G @ T)).sum(0)
            length = length + 2 * B * EB / p + B.square() * bb / p.square()
            found.append(removed - (2 * explained / pivot - own * length / pivot.square()))
        return found


def held_out_swaps(
    folds: HeldOut,
    start: Columns,
    rounds: int,
    most: int = 32,
    *,
    keep: Columns | None = None,
    shut: Columns | None = None,
    deadline: float | None = None,
) -> Columns:
    """Swap members for others while that lowers the held-out error.

    Each round scores all swaps and makes the best compatible ones together, half as many if the
    error does not fall. Of many features, the first round finds the most promising ones, and the
    next rounds score only these, until they no longer help.

    Parameters
    ----------
    folds, start : HeldOut, array of int
        Where the error is computed, and the panel to improve.
    rounds, most : int, default=32 for ``most``
        Maximum number of rounds, and of swaps per round.
    keep, shut : arrays of int, default=None
        Features that may not leave the panel, and features that may not enter it.
    deadline : float, default=None
        Value of ``time.monotonic`` after which no round starts.

    Returns
    -------
    array of int
        The improved panel, ascending.

    Examples
    --------
    >>> rows = np.random.default_rng(0).normal(size=(40, 6)) * np.arange(6)
    >>> folds = HeldOut.of(rows, [np.arange(20), np.arange(20, 40)], ridge=0.1)
    >>> better = held_out_swaps(folds, np.array([0, 1]), rounds=5)
    >>> folds.error(better) < folds.error(np.array([0, 1]))
    True
    """
    panel = start.copy()
    error = folds.error(panel)
    some: Columns | None = None  # features that may enter, if not all
    for _ in range(rounds):
        if deadline is not None and time.monotonic() > deadline:
            break
        change = folds.swaps(panel, some)
        into = np.arange(folds.d) if some is None else some
        if keep is not None:
            change[np.isin(panel, keep)] = np.inf
        if shut is not None:
            change[:, np.isin(into, shut)] = np.inf
        entering, value = into[change.argmin(axis=1)], change.min(axis=1)
        order = [i for i in np.argsort(value) if value[i] < 0]
        # one feature cannot enter twice
        order = [i for at, i in enumerate(order) if entering[i] not in entering[order[:at]]]
        before, size = error, min(most, len(order))
        while size and error == before:
            tried = panel.copy()
            tried[order[:size]] = entering[order[:size]]
            if (found := folds.error(tried)) < error:
                panel, error = tried, found
            size //= 2
        if error == before and some is None:
            break
        if error == before:
            some = None  # all of them once more
        elif some is None and folds.d > 2 * MOST_ENTERING:
            some = np.argsort(change.min(axis=0), kind="stable")[:MOST_ENTERING]
    return np.sort(panel)
