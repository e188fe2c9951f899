"""Loss and gradients of a linear concrete autoencoder in two matrix products.

With u = x M' and reconstruction u W' + b, the squared error and all its gradients need only
x M', x W, u' x and g' x, where g is the gradient with respect to u: the n x d reconstruction
itself cancels out. Autograd would use five products and several passes over n x d numbers.
"""

import torch
from torch import Tensor

__all__ = ["linear_reconstruction_gradients"]


@torch.no_grad()
def linear_reconstruction_gradients(
    x: Tensor, choice: Tensor, weight: Tensor, bias: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Mean squared error of decoding ``x @ choice.T`` back to x, and its gradients.

    The loss equals ``mse_loss(linear(x @ choice.T, weight, bias), x)`` up to rounding: expanding
    the square loses about as many digits as the error is smaller than x itself.

    Parameters
    ----------
    x : Tensor (n, d)
        Rows.
    choice : Tensor (k, d)
        A draw of the selector.
    weight, bias : Tensor (d, k), (d,)
        The linear decoder.

    Returns
    -------
    loss, and its gradients with respect to choice, weight and bias

    Examples
    --------
    >>> import torch
    >>> import torch.nn.functional as F
    >>> _ = torch.manual_seed(0)
    >>> x, M, W, b = torch.rand(9, 5), torch.rand(2, 5), torch.rand(5, 2), torch.rand(5)
    >>> plain = F.mse_loss(F.linear(x @ M.T, W, b), x)
    >>> torch.allclose(linear_reconstruction_gradients(x, M, W, b)[0], plain)
    True
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
