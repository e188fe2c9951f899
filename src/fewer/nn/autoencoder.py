"""Selector and decoder as one network."""

from torch import Tensor, nn

from fewer.nn.concrete import ConcreteSelector

__all__ = ["ConcreteNetwork"]


class ConcreteNetwork(nn.Module):
    """Concrete selector in front of a decoder: all d features through k nodes.

    Examples
    --------
    >>> import torch
    >>> network = ConcreteNetwork(ConcreteSelector(d=64, k=10), torch.nn.Linear(10, 64))
    >>> network(torch.rand(5, 64)).shape
    torch.Size([5, 64])
    """

    def __init__(self, selector: ConcreteSelector, decoder: nn.Module) -> None:
        super().__init__()
        self.selector = selector
        self.decoder = decoder

    def forward(self, x: Tensor) -> Tensor:
        """Select k values of each row and decode them."""
        return self.decoder(self.selector(x))
