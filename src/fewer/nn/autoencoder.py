"""Selector and decoder as one network."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from fewer.nn.concrete import ConcreteSelector
from fewer.nn.losses import Loss

__all__ = ["ConcreteNetwork", "linear_parts", "linear_reconstruction_gradients"]


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
        plain = target is x and observed is None and penalty is None and not self.mixed
        if plain and (parts := linear_parts(self, loss)) is not None:
            selector, decoder = parts
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


def linear_parts(network: ConcreteNetwork, loss: Loss) -> tuple[ConcreteSelector, nn.Linear] | None:
    """Selector and decoder of a network whose gradients are written out, None for any other."""
    selector, decoder = network.selector, network.decoder
    if (
        loss.name == "mse"
        and type(decoder) is nn.Linear
        and decoder.bias is not None
        and isinstance(selector, ConcreteSelector)
        and selector.draw == "batch"
        and selector.embedding is None
    ):
        return selector, decoder
    return None


@torch.no_grad()
def linear_reconstruction_gradients(
    x: Tensor, choice: Tensor, weight: Tensor, bias: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Mean squared error of decoding ``x @ choice.T`` back to x, and its gradients.

    With u = x M' and reconstruction u W' + b, these need only x M', x W, u' x and g' x, where g is
    the gradient with respect to u: the n x d reconstruction itself cancels out. Autograd would use
    five products and several passes over n x d numbers.

    The loss equals ``mse_loss(linear(x @ choice.T, weight, bias), x)`` up to rounding: expanding
    the square loses about as many digits as the error is smaller than x itself.
    """
    n, k = len(x), len(choice)
    both = x @ torch.cat([choice, weight.T]).T  # n x 2k
    u, xw = both[:, :k], both[:, k:]
    gram, wb = weight.T @ weight, bias @ weight
    g = torch.addmm(wb, u, gram)  # (u W' + b) W
    # |u W' + b - x|^2 = <u, (u W' + b) W> + <1 b, u W' + b> - 2 <u, x W> - 2 <1 b, x> + |x|^2
    u_sum, x_sum = u.sum(0), x.sum(0)
    flat = x.reshape(-1)
    total = (
        (u * (g - 2 * xw)).sum() + u_sum @ wb + n * (bias @ bias) - 2 * (bias @ x_sum) + flat @ flat
    )
    scale = 2.0 / x.numel()
    g, scaled = g.sub_(xw).mul_(scale), u * scale
    sides = torch.cat([scaled, g], dim=1).T @ x  # 2k x d: u' x and g' x
    d_weight = torch.addmm(sides[:k].T, weight, scaled.T @ u, beta=-1)
    d_weight.addr_(bias, u_sum, alpha=scale)
    d_bias = (weight @ u_sum).add_(bias, alpha=n).sub_(x_sum).mul_(scale)
    return total / x.numel(), sides[k:], d_weight, d_bias
