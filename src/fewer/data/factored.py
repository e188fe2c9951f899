"""The covariance of few rows and many features, as the rows themselves."""

from functools import cached_property
from typing import Any

import torch
from torch import Tensor

__all__ = ["FactoredCovariance", "Matrix"]

SOME_COLUMNS = 2048  # at a time, where a result has as many numbers as the rows


class FactoredCovariance:
    r"""A covariance :math:`C = X^\top X` that is known by X alone: r rows, d features.

    It has the few operations of a d x d tensor that a search needs, in O(r d) instead of
    O(d^2): rows ``C[index]``, products ``w @ C`` and ``C @ w``, the diagonal and the trace.
    The Gram matrix :math:`G = X X^\top` (r x r) stands for what sums over all features.

    Examples
    --------
    >>> C = FactoredCovariance(torch.tensor([[1.0, 2.0, 0.0]]))
    >>> C[torch.tensor([1])], C.trace()
    (tensor([[2., 4., 0.]]), tensor(5.))
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
        return self._diagonal.sum()

    @cached_property
    def gram(self) -> Tensor:
        """G = X X', r x r."""
        return self.rows @ self.rows.T

    @cached_property
    def squares(self) -> Tensor:
        """The diagonal of C squared: sums of squared covariances with all features."""
        return self.squares_of(self.rows)

    def squares_of(self, Y: Tensor) -> Tensor:
        """x' G x of each column of Y (r x d), a few columns at a time."""
        parts = Y.split(SOME_COLUMNS, dim=1)
        return torch.cat([((self.gram @ part) * part).sum(0) for part in parts])


Matrix = Tensor | FactoredCovariance
