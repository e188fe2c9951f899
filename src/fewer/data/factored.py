"""The covariance of few rows and many features, as the rows themselves."""

from functools import cached_property
from typing import Any

import torch
from torch import Tensor

__all__ = ["WIDE", "FactoredCovariance", "Matrix", "symmetric_product"]

WIDE = 4  # features per row: with more, rows take less memory and time than their covariance
SOME_COLUMNS = 2048  # at a time, where a result has as many numbers as the rows
PANELS, LEAST_PANEL = 4, 64  # of rows of symmetric products, and the fewest rows of one


class FactoredCovariance:
    r"""A covariance :math:`C = X^\top X` that is known by X alone: r rows, d features.

    It has the few operations of a d x d tensor that a search needs, in O(r d) instead of
    O(d^2): rows ``C[index]``, products ``w @ C`` and ``C @ w``, the diagonal and the trace.
    The Gram matrix :math:`G = X X^\top` (r x r) stands for what sums over all features.
    """

    def __init__(self, rows: Tensor) -> None:
        self.rows = rows  # centred, over the root of their number

    def __len__(self) -> int:
        return self.rows.shape[1]

    @property
    def shape(self) -> tuple[int, int]:
        """d x d."""
        return len(self), len(self)

    @property
    def device(self) -> torch.device:
        """Where the rows are."""
        return self.rows.device

    @property
    def dtype(self) -> torch.dtype:
        """Of the rows."""
        return self.rows.dtype

    @property
    def is_cuda(self) -> bool:
        """Whether the rows are on a GPU."""
        return self.rows.is_cuda

    def to(self, device: torch.device | str) -> "FactoredCovariance":
        """The same on a device."""
        return self if self.device == torch.device(device) else type(self)(self.rows.to(device))

    def cpu(self) -> "FactoredCovariance":
        """The same on the CPU."""
        return self.to("cpu")

    def __getitem__(self, index: Any) -> Tensor:
        """Rows of C (index of any shape, then d)."""
        at = torch.as_tensor(index, device=self.device)
        return self.columns(at) @ self.rows

    def __matmul__(self, right: Tensor) -> Tensor:
        return self.rows.T @ (self.rows @ right)

    def __rmatmul__(self, left: Tensor) -> Tensor:
        return (left @ self.rows.T) @ self.rows

    def columns(self, index: Tensor) -> Tensor:
        """Columns of X, each as a row (index of any shape, then r)."""
        return self.rows[:, index].movedim(0, -1)

    def diagonal(self) -> Tensor:
        """Variances."""
        return self._diagonal

    @cached_property
    def _diagonal(self) -> Tensor:
        return torch.linalg.vector_norm(self.rows, dim=0).square_()

    def trace(self) -> Tensor:
        """Sum of the variances."""
        return self._trace

    @cached_property
    def _trace(self) -> Tensor:
        return self._diagonal.sum()

    def among(self, index: Tensor) -> "FactoredCovariance":
        """The covariance of some features, in which sums over features are still over all."""
        found = type(self)(self.rows[:, index])
        found.gram, found.squares, found._trace = self.gram, self.squares[index], self._trace
        return found

    @cached_property
    def gram(self) -> Tensor:
        """G = X X', r x r."""
        return symmetric_product(self.rows, self.rows)

    @cached_property
    def squares(self) -> Tensor:
        """The diagonal of C squared: sums of squared covariances with all features."""
        return self.squares_of(self.rows)

    def squares_of(self, Y: Tensor) -> Tensor:
        """x' G x of each column of Y (r x d), a few columns at a time."""
        half = self.gram.tril()  # G is symmetric: what is below the diagonal counts twice
        half.diagonal().mul_(0.5)
        found = Y.new_zeros(Y.shape[1])
        for at in range(0, Y.shape[1], SOME_COLUMNS):
            part = Y[:, at : at + SOME_COLUMNS]
            for start, end in _panels(len(Y)):
                product = half[start:end, :end] @ part[:end]
                found[at : at + SOME_COLUMNS] += product.mul_(part[start:end]).sum(0)
        return found.mul_(2)


def symmetric_product(x: Tensor, y: Tensor) -> Tensor:
    """X Y' (m x m) where it is symmetric: only panels on and above the diagonal are computed."""
    found = x.new_empty(len(x), len(x))
    for start, end in _panels(len(x)):
        torch.mm(x[start:end], y[start:].T, out=found[start:end, start:])
        found[end:, start:end] = found[start:end, end:].T
    return found


def _panels(m: int) -> list[tuple[int, int]]:
    size = max(LEAST_PANEL, -(-m // PANELS))
    return [(start, min(start + size, m)) for start in range(0, m, size)]


Matrix = Tensor | FactoredCovariance
