"""Swaps that lower the held-out error, for linear decoders with few rows.

The residual on the training rows then says little about new rows.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fewer.data.factored import symmetric_product

__all__ = ["HeldOut", "held_out_swaps"]

MOST_ENTERING = 1024  # features that later rounds consider
SOME = 2048  # features that are scored at a time, since each takes as many numbers as rows

Columns = NDArray[np.int64]


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
        gram = Z.T @ Z + ridge * torch.eye(len(S), dtype=torch.float64)
        P, singular = torch.linalg.inv_ex(gram)
        if singular:  # a chosen feature is constant on these rows, or equal to another
            P = torch.linalg.pinv(gram, hermitian=True)
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
    """Swap features as long as that lowers the held-out error.

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
