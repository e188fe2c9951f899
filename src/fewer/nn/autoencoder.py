"""Selector and decoder as one network."""

import torch
from torch import Tensor, nn

from fewer.nn.concrete import ConcreteSelector
from fewer.nn.fused import linear_reconstruction_loss
from fewer.nn.losses import Loss

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

    def loss(self, x: Tensor, target: Tensor, observed: Tensor | None, loss: Loss) -> Tensor:
        """Loss of a batch; a linear autoencoder under squared error takes a shorter way."""
        decoder, selector = self.decoder, self.selector
        if (
            target is x
            and observed is None
            and loss.name == "mse"
            and self.training
            and not self.mixed
            and type(decoder) is nn.Linear
            and decoder.bias is not None
            and isinstance(selector, ConcreteSelector)
            and selector.draw == "batch"
        ):
            return linear_reconstruction_loss(x, selector.sample(), decoder.weight, decoder.bias)
        return loss(self(x), target, observed)

    def forward(self, x: Tensor) -> Tensor:
        """Select k values of each row and decode them."""
        chosen = self.selector(x)
        if not self.mixed:
            return self.decoder(chosen)
        with torch.autocast(x.device.type, dtype=torch.bfloat16):
            return self.decoder(chosen).float()
