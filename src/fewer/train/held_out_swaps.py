r"""Swaps that lower the held-out error itself, where rows are few.

With about as many rows as features, the residual on training rows says little about new rows.
Here the decoder is fitted on the training rows of each fold and the error computed on its held-out
rows. For one fold, with S the panel, X the training rows and Y the held-out rows (both less the
training mean, over the root of their number), C = X'X and a ridge penalty :math:`\lambda`:

.. math:: P = (C_{SS} + \lambda I)^{-1}, \quad B = P C_S, \quad R = Y - Y_S B,
    \quad E = C - C_S^\top B, \quad G = R^\top R

Removing the i-th member changes R by :math:`w_i b_i^\top`, with :math:`w_i = Y_S P_i / P_{ii}`,
and E by :math:`b_i b_i^\top / P_{ii}`; adding j then changes R by
:math:`-R_j E_j^\top / (E_{jj} + \lambda)`. The error after each of the k x d swaps follows from a
few products of k x d with d x d matrices, as exactly as if every decoder had been fitted.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["HeldOut", "held_out_swaps"]

Panel = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class HeldOut:
    """Folds of rows, and the error of panels on their held-out parts.

    Examples
    --------
    >>> rows = np.random.default_rng(0).normal(size=(40, 6))
    >>> folds = HeldOut.of(rows, [np.arange(20), np.arange(20, 40)], ridge=0.1)
    >>> folds.error(np.arange(6)) < folds.error(np.arange(3))
    True
    """

    parts: list[tuple[Tensor, Tensor]]  # training and held-out rows of each fold, float32
    ridge: float

    @classmethod
    def of(cls, rows: NDArray[np.float64], held: list[Panel], ridge: float) -> HeldOut:
        """Folds of rows; ``held`` has the numbers of the rows that each holds out."""
        X = torch.from_numpy(rows).float()
        parts = []
        for index in held:
            out = torch.zeros(len(X), dtype=torch.bool)
            out[torch.from_numpy(index)] = True
            train, rest = X[~out], X[out]
            mean = train.mean(0)
            parts.append(((train - mean) / len(train) ** 0.5, (rest - mean) / len(rest) ** 0.5))
        return cls(parts, ridge)

    def error(self, panel: Panel) -> float:
        """Mean squared residual on held-out rows, over folds and features."""
        S = torch.from_numpy(panel)
        total = sum(float(self._decode(part, S)[2].square().sum()) for part in self.parts)
        return total / len(self.parts) / self.parts[0][0].shape[1]

    def drops(self, panel: Panel) -> NDArray[np.float64]:
        """By how much the error rises when each member is removed."""
        S = torch.from_numpy(panel)
        total = torch.zeros(len(S))
        for part in self.parts:
            P, B, R = self._decode(part, S)
            W = part[1][:, S] @ P / P.diagonal()
            total += 2 * (W.T @ R * B).sum(1) + W.square().sum(0) * B.square().sum(1)
        return (total / len(self.parts) / self.parts[0][0].shape[1]).double().numpy()

    def swaps(self, panel: Panel) -> NDArray[np.float64]:
        """Change of the error by each swap (out i, in j), k x d; infinite for members j."""
        S = torch.from_numpy(panel)
        d = self.parts[0][0].shape[1]
        total = torch.zeros(len(S), d)
        for part in self.parts:
            total += self._swaps(part, S)
        total /= len(self.parts) * d
        total[:, S] = torch.inf
        return total.double().numpy()

    def _decode(self, part: tuple[Tensor, Tensor], S: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        # in float64: with as many features as rows the matrix is nearly singular
        X, Y = part
        Z = X[:, S].double()
        gram = Z.T @ Z + self.ridge * torch.eye(len(S), dtype=torch.float64)
        P = torch.linalg.inv(gram)
        B = P @ (Z.T @ X.double())
        R = Y.double() - Y[:, S].double() @ B
        return P.float(), B.float(), R.float()

    def _swaps(self, part: tuple[Tensor, Tensor], S: Tensor) -> Tensor:
        X, Y = part
        P, B, R = self._decode(part, S)
        p = P.diagonal()[:, None]
        E = X.T @ X
        E -= (X.T @ X[:, S]) @ B
        G = R.T @ R
        W = Y[:, S] @ P / p.T
        U = W.T @ R  # u_i = R' w_i
        c = W.square().sum(0)[:, None]
        bb, ub = B.square().sum(1)[:, None], (U * B).sum(1)[:, None]
        EB, GB, EU = B @ E, B @ G, U @ E
        # products of the changed G and E, row by row: what adding j explains
        explained = (G * E).sum(1) + B * GB / p + U * EB + B * EU + c * B * EB
        explained += B * (U * bb + B * ub + c * bb * B) / p
        pivot = E.diagonal() + B.square() / p + self.ridge
        own = G.diagonal() + 2 * U * B + c * B.square()
        length = E.square().sum(1) + 2 * B * EB / p + B.square() * bb / p.square()
        gain = 2 * explained / pivot - own * length / pivot.square()
        return 2 * ub + c * bb - gain


def held_out_swaps(
    folds: HeldOut,
    start: Panel,
    rounds: int,
    most: int = 32,
    *,
    keep: Panel | None = None,
    shut: Panel | None = None,
    deadline: float | None = None,
) -> Panel:
    """Swap members for others while that lowers the held-out error.

    Each round scores all swaps and makes the best ones that do not conflict together; half as
    many if the error does not fall.

    Parameters
    ----------
    folds : HeldOut
        Where the error is computed.
    start : ndarray of int
        The panel to improve.
    rounds, most : int, default=32 for ``most``
        Maximum number of rounds, and of swaps per round.
    keep, shut : ndarrays of int, default=None
        Features that may not leave the panel, and features that may not enter it.
    deadline : float, default=None
        Value of ``time.monotonic`` after which no further round begins.

    Returns
    -------
    ndarray of int
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
    for _ in range(rounds):
        if deadline is not None and time.monotonic() > deadline:
            break
        change = folds.swaps(panel)
        if keep is not None:
            change[np.isin(panel, keep)] = np.inf
        if shut is not None:
            change[:, shut] = np.inf
        entering, value = change.argmin(axis=1), change.min(axis=1)
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
        if error == before:
            break
    return np.sort(panel)
