"""Selector and decoder as one network."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from fewer.nn.concrete import ConcreteSelector
from fewer.nn.fused import linear_reconstruction_gradients
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

    def backward(
        self,
        x: Tensor,
        target: Tensor,
        observed: Tensor | None,
        loss: Loss,
        penalty: Callable[[], Tensor] | None = None,
    ) -> Tensor:
        """Leave the gradients of a batch's loss in the parameters and return the loss.

        A linear autoencoder under squared error takes a shorter way than autograd.
        """
        selector, decoder = self.selector, self.decoder
        if (
            target is x
            and observed is None
            and penalty is None
            and loss.name == "mse"
            and not self.mixed
            and type(decoder) is nn.Linear
            and decoder.bias is not None
            and isinstance(selector, ConcreteSelector)
            and selector.draw == "batch"
            and selector.embedding is None
        ):
            with torch.no_grad():
                choice = selector.sample()
                value, d_choice, decoder.weight.grad, decoder.bias.grad = (
                    linear_reconstruction_gradients(x, choice, decoder.weight, decoder.bias)
                )
                selector.accumulate(choice, d_choice)
            return value
        value = loss(self(x), target, observed)
        (value if penalty is None else value + penalty()).backward()
        return value.detach()

    def forward(self, x: Tensor) -> Tensor:
        """Select k values of each row and decode them."""
        chosen = self.selector(x)
        if not self.mixed:
            return self.decoder(chosen)
        with torch.autocast(x.device.type, dtype=torch.bfloat16):
            return self.decoder(chosen).float()
