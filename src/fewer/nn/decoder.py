"""Decoders: from k measured values to predictions."""

import re
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import chain
from numbers import Integral

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from fewer._checks import check_choice, check_number
from fewer.errors import InputError, TypeInputError
from fewer.nn.completion import complete, complete_row

__all__ = [
    "DecoderStack",
    "MeasuredDecoder",
    "SkipConnected",
    "averaged",
    "build_decoder",
    "check_decoder",
    "hidden_widths",
    "linear_layer",
    "links_of",
    "skip_connected",
    "without_norms",
]

DecoderSpec = str | int | Sequence[int] | Callable[[int, int], nn.Module]

ACTIVATIONS: dict[str, type[nn.Module]] = {
    "leaky_relu": nn.LeakyReLU,
    "relu": nn.ReLU,
    "gelu": nn.GELU,
    "silu": nn.SiLU,
    "tanh": nn.Tanh,
}
# by name rather than by function, so that a decoder can be saved
LINKS: dict[str, Callable[[Tensor], Tensor]] = {
    "sigmoid": torch.sigmoid,
    "exp": torch.exp,
    "softplus": nn.functional.softplus,
    "softmax": partial(torch.softmax, dim=-1),
}
SEVERAL = re.compile(r"(?:(?:none|sigmoid|exp|softmax):[1-9]\d{0,6},)+")
NORMS: dict[str, type[nn.Module]] = {"batch": nn.BatchNorm1d, "layer": nn.LayerNorm}


def build_decoder(
    spec: DecoderSpec,
    k: int,
    out: int,
    *,
    activation: str = "leaky_relu",
    dropout: float = 0.0,
    norm: str | None = None,
) -> nn.Module:
    """Build a decoder from k inputs to ``out`` outputs.

    Parameters
    ----------
    spec : "linear", width(s) of hidden layers, or callable ``(k, out) -> nn.Module``
        An empty sequence of widths is linear too.
    k, out : int
        Number of inputs and outputs.
    activation : {"leaky_relu", "relu", "gelu", "silu", "tanh"}, default="leaky_relu"
        Activation after each hidden layer.
    dropout : float, default=0.0
        Dropout rate of hidden layers.
    norm : {"batch", "layer"}, default=None
        Normalisation after each hidden layer.

    Examples
    --------
    >>> build_decoder((32,), k=10, out=64, activation="relu")
    Sequential(
      (0): Linear(in_features=10, out_features=32, bias=True)
      (1): ReLU()
      (2): Linear(in_features=32, out_features=64, bias=True)
    )
    """
    check_decoder(spec, activation, dropout, norm)
    if isinstance(spec, nn.Module):
        name = type(spec).__name__
        raise TypeInputError(
            f"decoder={name}(...) is a module; pass a function (k, out) -> module that makes a "
            f"new one each time, such as lambda k, out: {name}(...)"
        )
    if callable(spec):
        return _checked(spec(k, out), k, out)
    layers: list[nn.Module] = []
    width = k
    for hidden in () if isinstance(spec, str) else hidden_widths(spec):
        layers.append(nn.Linear(width, hidden))
        if norm is not None:
            layers.append(NORMS[norm](hidden))
        layers.append(ACTIVATIONS[activation]())
        if dropout:
            layers.append(nn.Dropout(dropout))
        width = hidden
    last = nn.Linear(width, out)
    return nn.Sequential(*layers, last) if layers else last


def check_decoder(spec: object, activation: object, dropout: object, norm: object) -> None:
    """Refuse unknown options, whether there are hidden layers or not."""
    if isinstance(spec, str) and spec != "linear":
        raise InputError(
            f"decoder={spec!r} is not valid; use 'linear', hidden widths such as (75,), or a "
            "function (k, out) -> nn.Module"
        )
    check_choice("activation", activation, tuple(ACTIVATIONS))
    check_choice("norm", norm, (*NORMS, None))
    check_number("dropout", dropout, below=1)


def links_of(link: str) -> list[tuple[str | None, int]]:
    """The parts of a link of several targets, such as "softmax:3,none:1", with their outputs.

    Examples
    --------
    >>> links_of("softmax:3,none:1")
    [('softmax', 3), (None, 1)]
    """
    if SEVERAL.fullmatch(link + ",") is None:
        raise ValueError(f"the link {link[:40]!r} is unknown")
    pairs = (part.split(":") for part in link.split(","))
    return [(None if name == "none" else name, int(count)) for name, count in pairs]


def apply_link(link: str, output: Tensor) -> Tensor:
    """Outputs of a network in the units of what it predicts."""
    if link in LINKS:
        return LINKS[link](output)
    names, sizes = zip(*links_of(link), strict=True)
    parts = output.split(list(sizes), dim=-1)
    return torch.cat(
        [
            part if name is None else LINKS[name](part)
            for name, part in zip(names, parts, strict=True)
        ],
        dim=-1,
    )


class MeasuredDecoder(nn.Module):
    """A trained decoder with its scaling, from measured values to the units of the target.

    Inputs are k values in column order, in the units of the data; missing ones (NaN) are replaced
    by the training mean or, with ``precision`` (the inverse covariance of the inputs), by
    their best linear prediction from the others. ``order[i]`` is the input of node i of ``net``.
    With ``known``, input i is also output ``known[i]``, which is returned unchanged.

    Examples
    --------
    >>> import torch
    >>> net = torch.nn.Linear(2, 3)
    >>> decoder = MeasuredDecoder(net, fill=torch.tensor([5.0, 7.0]))
    >>> missing = decoder(torch.tensor([[float("nan"), 1.0]]))
    >>> bool((missing == decoder(torch.tensor([[5.0, 1.0]]))).all())
    True
    >>> decoder.known = torch.tensor([0, 2])
    >>> decoder(torch.tensor([[4.0, 1.0]]))[0, [0, 2]]
    tensor([4., 1.], grad_fn=<IndexBackward0>)
    """

    def __init__(
        self,
        net: nn.Module,
        *,
        fill: Tensor,
        center: Tensor | None = None,
        scale: Tensor | None = None,
        order: Tensor | None = None,
        out_center: Tensor | None = None,
        out_scale: Tensor | None = None,
        offset: Tensor | None = None,
        link: str | None = None,
        log_inputs: bool = False,
        known: Tensor | None = None,
    ) -> None:
        super().__init__()
        self.net = net
        self.link = link
        zero = torch.zeros((), dtype=fill.dtype)
        self.register_buffer("log_inputs", torch.tensor(log_inputs))
        self.register_buffer("fill", fill)
        self.register_buffer("center", torch.zeros_like(fill) if center is None else center)
        self.register_buffer("scale", torch.ones_like(fill) if scale is None else scale)
        self.register_buffer("order", torch.arange(len(fill)) if order is None else order)
        self.register_buffer("out_center", zero if out_center is None else out_center)
        self.register_buffer("out_scale", zero + 1 if out_scale is None else out_scale)
        self.register_buffer("offset", zero if offset is None else offset)
        # not stored, because a panel stores its columns already
        self.register_buffer("known", known, persistent=False)
        self.register_buffer("precision", None, persistent=False)

    fill: Tensor
    center: Tensor
    scale: Tensor
    order: Tensor
    out_center: Tensor
    out_scale: Tensor
    offset: Tensor
    log_inputs: Tensor
    known: Tensor | None
    precision: Tensor | None
    epochs: int | None = None  # of training until its held-out loss was lowest
    tuned: float | None = None  # what held-out rows chose: a penalty, or a factor of outputs

    def complete(self, measured: Tensor) -> Tensor:
        """Missing values predicted from the others, where their covariance is known."""
        if self.precision is None:
            return measured
        return complete(measured.to(self.precision.dtype), self.fill, self.precision)

    def inputs(self, measured: Tensor) -> Tensor:
        """Inputs of the network: without gaps, centred, scaled and in node order."""
        filled = torch.where(torch.isnan(measured), self.fill, measured)
        if self.log_inputs:  # counts
            filled = torch.log1p(filled.clamp_min(0))
        return ((filled - self.center) / self.scale)[:, self.order]

    def forward(self, measured: Tensor) -> Tensor:
        """Decode n x k measured values."""
        measured = self.complete(measured)
        output = self.net(self.inputs(measured))
        if self.link is not None:
            output = apply_link(self.link, output + self.offset)
        output = output * self.out_scale + self.out_center
        if self.known is None:
            return output
        guessed = output[:, self.known]
        measured = torch.where(torch.isnan(measured), guessed, measured.to(output.dtype))
        return output.index_copy(1, self.known, measured)

    def decode_row(self, measured: NDArray[np.float64]) -> NDArray[np.float64] | None:
        """The same for one row and a linear decoder on the CPU, in NumPy; None for any other.

        Torch takes longer to start these operations than NumPy to do them.
        """
        net = self.net
        if not isinstance(net, nn.Linear) or self.link is not None or self.log_inputs:
            return None
        if self.precision is None or self.fill.is_cuda or measured.dtype != np.float64:
            return None
        if not net.weight.dtype == self.fill.dtype == self.precision.dtype == torch.float64:
            return None
        full = complete_row(measured, self.fill.numpy(), self.precision.numpy())
        inputs = ((full - self.center.numpy()) / self.scale.numpy())[self.order.numpy()]
        output: NDArray[np.float64] = net.weight.detach().numpy() @ inputs
        if net.bias is not None:
            output += net.bias.detach().numpy()
        output = output * self.out_scale.numpy() + self.out_center.numpy()
        if self.known is not None:
            output[self.known.numpy()] = full
        return output


class SkipConnected(nn.Sequential):
    """Layers of which the last takes the inputs of the first, too."""

    def forward(self, x: Tensor) -> Tensor:
        """Decode n x k inputs."""
        *layers, last = self
        hidden = x
        for layer in layers:
            hidden = layer(hidden)
        output: Tensor = last(torch.cat([hidden, x], dim=-1))
        return output


class DecoderStack(nn.Module):
    """Decoders of the same layers that run as one: from n x m x k inputs to m x n x out outputs.

    A step of a small network takes longer to start than to compute; m networks together take
    hardly longer than one. `members` are the decoders, with the weights as they are now.
    """

    skip = False  # whether the last layer takes the inputs of the first, too

    def __init__(self, decoders: Sequence[nn.Module]) -> None:
        super().__init__()
        self.decoders = [list(part) for part in decoders if isinstance(part, nn.Sequential)]
        self.layers = nn.ModuleList(_stacked(parts) for parts in zip(*self.decoders, strict=True))

    def hidden(self, x: Tensor) -> Tensor:
        """What the last layer takes (m x n x width); n x k inputs are those of a single member."""
        x = x[None] if x.ndim == 2 else x.transpose(0, 1)
        hidden = x
        for layer in self.layers[:-1]:
            hidden = layer(hidden)
        return torch.cat([hidden, x], dim=-1) if self.skip else hidden

    def forward(self, x: Tensor) -> Tensor:
        """Decode the inputs of every member."""
        output: Tensor = self.layers[-1](self.hidden(x))
        return output

    @property
    def last(self) -> "LinearStack":
        """The last layer of all members."""
        layer = self.layers[-1]
        assert isinstance(layer, LinearStack)
        return layer

    def seed(self, seed: int) -> None:
        """Draw what is dropped from a generator that other threads do not use."""
        for layer in self.layers:
            if isinstance(layer, DropoutStack):
                layer.generator = torch.Generator().manual_seed(seed)

    def add_skip(self) -> None:
        """Let the last layer take the inputs of the first, too, with weights of zero."""
        first, weight = self.layers[0], self.last.weight
        assert isinstance(first, LinearStack)
        zeros = weight.new_zeros(*weight.shape[:2], first.weight.shape[-1])
        self.last.weight = nn.Parameter(torch.cat([weight.detach(), zeros], dim=-1))
        self.skip = True

    def members(self) -> list[nn.Module]:
        """The decoders one by one; those with no weight for a skip connection have none."""
        found: list[nn.Module] = []
        for at, layers in enumerate(self.decoders):
            decoder, last = nn.Sequential(*layers), layers[-1]
            assert isinstance(last, nn.Linear)
            if self.skip and self.last.weight[at, :, last.in_features :].any():
                decoder = skip_connected(decoder)
            for layer, stacked in zip(decoder, self.layers, strict=True):
                if isinstance(stacked, (LinearStack, NormStack)):
                    stacked.write(at, layer)
            found.append(decoder)
        return found


class LinearStack(nn.Module):
    """Linear layers of the same size."""

    def __init__(self, layers: Sequence[nn.Linear]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.stack([layer.weight.detach() for layer in layers]))
        self.bias = nn.Parameter(torch.stack([layer.bias.detach()[None] for layer in layers]))

    def forward(self, x: Tensor) -> Tensor:
        """Map the last axis of m x n x inputs."""
        return torch.baddbmm(self.bias, x, self.weight.mT)

    def write(self, at: int, layer: nn.Module) -> None:
        """Copy the weights of a member to its own layer, for as many inputs as that has."""
        assert isinstance(layer, nn.Linear)
        weight = self.weight[at, :, : layer.in_features]
        layer.load_state_dict({"weight": weight, "bias": self.bias[at, 0]})


class NormStack(nn.Module):
    """Layers of batch or layer normalisation of the same width."""

    def __init__(self, layers: Sequence[nn.Module]) -> None:
        super().__init__()
        states = [layer.state_dict() for layer in layers]
        self.batch = "running_mean" in states[0]
        self.weight, self.bias = (
            nn.Parameter(torch.stack([state[name][None] for state in states]))
            for name in ("weight", "bias")
        )
        if self.batch:
            for name in ("running_mean", "running_var"):
                self.register_buffer(name, torch.stack([state[name][None] for state in states]))

    running_mean: Tensor
    running_var: Tensor

    def forward(self, x: Tensor) -> Tensor:
        """Normalise over the rows of a batch, or over the last axis."""
        if self.batch and x.is_cuda:
            return self._at_once(x)
        if not self.batch:
            var, mean = torch.var_mean(x, dim=2, correction=0, keepdim=True)
        elif self.training:
            var, mean = torch.var_mean(x, dim=1, correction=0, keepdim=True)
            with torch.no_grad():  # as nn.BatchNorm1d does by default
                self.running_mean.lerp_(mean, 0.1)
                self.running_var.lerp_(var * (x.shape[1] / max(x.shape[1] - 1, 1)), 0.1)
        else:
            var, mean = self.running_var, self.running_mean
        return torch.addcmul(self.bias, x - mean, torch.rsqrt(var + 1e-5) * self.weight)

    def _at_once(self, x: Tensor) -> Tensor:
        """The same, with the values of all members as those of one: a single kernel on a GPU."""
        m, n, width = x.shape
        found = F.batch_norm(
            x.transpose(0, 1).reshape(n, m * width),
            self.running_mean.view(-1),
            self.running_var.view(-1),
            self.weight.view(-1),
            self.bias.view(-1),
            self.training,
            momentum=0.1,
            eps=1e-5,
        )
        return found.view(n, m, width).transpose(0, 1)

    def write(self, at: int, layer: nn.Module) -> None:
        """Copy the state of a member to its own layer."""
        state = {name: part[at, 0] for name, part in self.state_dict().items()}
        layer.load_state_dict(state, strict=False)  # without the number of batches


class DropoutStack(nn.Module):
    """Dropout of the same values of every member, from a generator of its own on a CPU."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p
        self.generator: torch.Generator | None = None

    def forward(self, x: Tensor) -> Tensor:
        """Drop a share of m x n x width values in training."""
        if not self.training:
            return x
        keep = torch.empty_like(x[0]).bernoulli_(1 - self.p, generator=self.generator)
        return x * keep.div_(1 - self.p)


def _stacked(layers: Sequence[nn.Module]) -> nn.Module:
    if isinstance(layers[0], nn.Dropout):
        return DropoutStack(layers[0].p)
    if isinstance(layers[0], nn.Linear):
        return LinearStack([layer for layer in layers if isinstance(layer, nn.Linear)])
    if isinstance(layers[0], tuple(NORMS.values())):
        return NormStack(layers)
    return layers[0]


def skip_connected(decoder: nn.Sequential) -> SkipConnected:
    """The same layers, with a new last one for their outputs and the inputs of the first."""
    first, last = decoder[0], decoder[-1]
    assert isinstance(first, nn.Linear)
    assert isinstance(last, nn.Linear)
    weight = last.weight.new_zeros(last.out_features, last.in_features + first.in_features)
    *before, _ = decoder
    return SkipConnected(*before, linear_layer(weight, last.bias).to(weight.device))


def without_norms(decoder: nn.Module) -> nn.Module:
    """A decoder whose batch normalisation has become part of the linear layers before it."""
    if not isinstance(decoder, nn.Sequential):
        return decoder
    layers: list[nn.Module] = []
    for layer in decoder:
        if isinstance(layer, nn.BatchNorm1d) and isinstance(linear := layers[-1], nn.Linear):
            assert layer.running_mean is not None
            assert layer.running_var is not None
            factor = layer.weight * torch.rsqrt(layer.running_var + layer.eps)
            bias = (linear.bias - layer.running_mean) * factor + layer.bias
            layers[-1] = linear_layer(linear.weight * factor[:, None], bias).to(bias.device)
        elif not isinstance(layer, nn.Dropout):
            layers.append(layer)
    return type(decoder)(*layers)


def averaged(decoders: Sequence[nn.Module]) -> nn.Sequential:
    """One decoder whose outputs are the mean of those of several with the same layers.

    Hidden units lie side by side. Units of one do not see those of another, so that a second
    hidden layer is block-diagonal.
    """
    stacks = [list(one) for one in decoders if isinstance(one, nn.Sequential)]
    layers: list[nn.Module] = []
    kind, width = nn.Sequential, 0  # of the hidden layer before
    for at, parts in enumerate(zip(*stacks, strict=True)):
        linear = [part for part in parts if isinstance(part, nn.Linear)]
        if not linear:
            layers.append(parts[0])
            continue
        weights, bias = [part.weight for part in linear], torch.cat([part.bias for part in linear])
        if at == len(stacks[0]) - 1:
            hidden = [weight[:, :width] for weight in weights]
            inputs = [weight[:, width:] for weight in weights if weight.shape[1] > width]
            if inputs:  # of some, by skip connections
                kind = SkipConnected
                hidden.append(torch.stack(inputs).sum(0))
            weight = torch.cat(hidden, 1) / len(weights)
            bias = bias.view(len(weights), -1).mean(0)
        else:
            width = len(weights[0])
            weight = torch.block_diag(*weights) if at else torch.cat(weights)
        layers.append(linear_layer(weight, bias))
    return kind(*layers)


def hidden_widths(spec: int | Sequence[int]) -> tuple[int, ...]:
    """Checked widths of hidden layers; a single number is one layer."""
    widths = tuple(spec) if isinstance(spec, Iterable) else (spec,)
    for width in widths:
        if isinstance(width, bool) or not isinstance(width, Integral) or width < 1:
            raise TypeInputError(
                f"decoder={spec!r}: hidden widths must be whole numbers of at least 1, "
                "such as (75,) or (320, 320)"
            )
    return tuple(int(width) for width in widths)


def _checked(module: object, k: int, out: int) -> nn.Module:
    if not isinstance(module, nn.Module):
        raise TypeInputError(
            f"the decoder function returned {type(module).__name__}; return a torch.nn.Module"
        )
    # eval mode: a probe must not move batch statistics
    was_training = module.training
    module.eval()
    with torch.no_grad():
        try:
            output = module(torch.zeros(2, k))
        except RuntimeError as error:
            raise InputError(
                f"the decoder cannot take {k} inputs ({error}); "
                "build it from the (k, out) that it is called with"
            ) from error
        if not isinstance(output, Tensor):
            raise TypeInputError(
                f"the decoder's forward returned {type(output).__name__}; "
                f"return one tensor of shape (n, {out})"
            )
        _try_in_double(module, k)
    module.train(was_training)
    shape = tuple(output.shape)
    if shape != (2, out):
        raise InputError(
            f"the decoder maps 2 rows of {k} values to shape {shape}; it must give (2, {out}): "
            f"make its last layer {out} wide"
        )
    return module


def _try_in_double(module: nn.Module, k: int) -> None:
    # a trained decoder is used in float64, so it is tried before training
    state = {
        name: part.double() if part.is_floating_point() else part
        for name, part in chain(module.named_parameters(), module.named_buffers())
    }
    try:
        torch.func.functional_call(module, state, torch.zeros(2, k, dtype=torch.float64))
    except RuntimeError as error:
        raise InputError(
            f"the decoder works in float32 but not in float64 ({error}); register its tensors "
            "as buffers (self.register_buffer) and do not change the dtype of its input"
        ) from error


def linear_layer(weight: Tensor, bias: Tensor | None = None) -> nn.Linear:
    """A linear layer with given weights (out x in), without changing the random state."""
    # torch's skip_init would import a computer algebra system, which takes a second
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        layer = nn.Linear(
            weight.shape[1], weight.shape[0], bias=bias is not None, dtype=weight.dtype
        )
        layer.weight.copy_(weight)
        if bias is not None:
            layer.bias.copy_(bias)
    return layer
