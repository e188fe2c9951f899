"""Selector and decoder as one network."""

import torch
from torch import Tensor, nn

__all__ = ["ConcreteNetwork"]


class ConcreteNetwork(nn.Module):
    """Concrete selector in front of a decoder: all d features through k nodes.

    Parameters
    ----------
    selector, decoder : nn.Module
        From d values to k, and from k to what is predicted.
    mixed : bool, default=False
        Run the decoder in mixed precision; the choice of features stays in float32.

    Examples
    --------
    >>> import torch
    >>> from fewer.nn import ConcreteSelector
    >>> network = ConcreteNetwork(ConcreteSelector(d=64, k=10), torch.nn.Linear(10, 64))
    >>> network(torch.rand(5, 64)).shape
    torch.Size([5, 64])
    """

    def __init__(self, selector: nn.Module, decoder: nn.Module, *, mixed: bool = False) -> None:
        super().__init__()
        self.selector = selector
        self.decoder = decoder
        self.mixed = mixed

    def forward(self, x: Tensor) -> Tensor:
        """Select k values of each row and decode them."""
        chosen = self.selector(x)
        if not self.mixed:
            return self.decoder(chosen)
        with torch.autocast(x.device.type, dtype=torch.bfloat16):
            return self.decoder(chosen).float()
