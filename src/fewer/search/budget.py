"""What can still be paid for."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["Purse"]


class Purse:
    """Says what a panel can still take within a budget.

    Parameters
    ----------
    costs : ndarray of float
        Price of each of n things (features, or groups).
    ceiling : float
        Most that a panel may cost.
    exact : bool
        Whether every place of the panel must be filled in the end.
    device : torch.device

    Examples
    --------
    >>> purse = Purse(np.array([1.0, 2.0, 5.0]), 6.0, True, torch.device("cpu"))
    >>> purse.addable(torch.tensor([[True, True, True]]), torch.tensor([[3, 3]]))
    tensor([[True, True, True]])
    >>> purse.addable(torch.tensor([[True, False, True]]), torch.tensor([[1, 3]]))  # 4 left
    tensor([[ True, False, False]])
    """

    def __init__(
        self, costs: NDArray[np.float64], ceiling: float, exact: bool, device: torch.device
    ) -> None:
        self.costs = torch.as_tensor(costs, dtype=torch.float64, device=device)
        self.paid = torch.cat([self.costs, self.costs.new_zeros(1)])  # an empty place is free
        self.ceiling, self.exact = ceiling, exact
        self.sorted, self.order = self.costs.sort()

    def slack(self, S: Tensor) -> Tensor:
        """Money left by panels (B x K places, n where empty), as B x 1."""
        return self.ceiling - self.paid[S].sum(1, keepdim=True)

    def addable(self, open_: Tensor, S: Tensor) -> Tensor:
        """Which of the `open_` things (B x n) can be put into an empty place of S.

        Where every place must be filled, the cheapest others must still be affordable
        for the places that stay empty.
        """
        slack = self.slack(S)
        mask = open_ & (self.costs <= slack)
        if not self.exact:
            return mask
        vacant = S.eq(len(self.costs)).sum(1, keepdim=True)
        ranked = open_[:, self.order]
        # The cheapest open ones that would fill the other vacant places. For one of them
        # no check is needed: the panel so far was built so that they are affordable.
        filler = ranked & (ranked.cumsum(1) < vacant)
        reserve = (filler * self.sorted).sum(1, keepdim=True)
        fits = filler | (self.sorted <= slack - reserve)
        return mask & torch.zeros_like(mask).scatter(1, self.order.expand_as(fits), fits)

    def exchangeable(self, S: Tensor) -> Tensor:
        """Which things are affordable once a place is emptied (B x K x n)."""
        return self.costs <= (self.slack(S) + self.paid[S])[..., None]
