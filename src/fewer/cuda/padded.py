"""Linear layers whose sides are rounded up, for GPUs.

Tensor cores read whole 16-byte words. Where the number of features is odd, a product in bfloat16
falls back to kernels five times slower; with some zeros at the end of each row it does not.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fewer.nn.decoder import linear_layer

__all__ = ["PaddedLinear", "padded", "unpadded"]

UNIT = 8
LEAST = 512  # below this side nothing is gained


class PaddedLinear(nn.Module):
    """The same map as a linear layer, kept with zeros beyond its weights, which stay zero."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.inputs, self.outputs = linear.in_features, linear.out_features
        wider, higher = -self.inputs % UNIT, -self.outputs % UNIT
        with torch.no_grad():
            self.weight = nn.Parameter(F.pad(linear.weight, (0, wider, 0, higher)).clone())
            self.bias = None
            if linear.bias is not None:
                self.bias = nn.Parameter(F.pad(linear.bias, (0, higher)).clone())

    def forward(self, x: Tensor) -> Tensor:
        """Map the last axis from inputs to outputs."""
        extra = self.weight.shape[1] - self.inputs
        x = F.pad(x, (0, extra)) if extra else x
        return F.linear(x, self.weight, self.bias)[..., : self.outputs]

    def plain(self) -> nn.Linear:
        """The layer without its zeros."""
        weight = self.weight[: self.outputs, : self.inputs]
        bias = None if self.bias is None else self.bias[: self.outputs]
        return linear_layer(weight, bias).to(weight.device).train(self.training)


def padded(network: nn.Module) -> nn.Module:
    """Change large linear layers of odd size in a sequence, in place."""
    if isinstance(network, nn.Sequential):
        for at, layer in enumerate(network):
            if type(layer) is nn.Linear:
                sides = layer.in_features, layer.out_features
                if min(sides) >= LEAST and any(side % UNIT for side in sides):
                    network[at] = PaddedLinear(layer)
    return network


def unpadded(network: nn.Module) -> nn.Module:
    """Undo `padded`, in place."""
    if isinstance(network, nn.Sequential):
        for at, layer in enumerate(network):
            if isinstance(layer, PaddedLinear):
                network[at] = layer.plain()
    return network
