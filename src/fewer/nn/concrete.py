"""The concrete selector layer, and a network around it."""

from collections.abc import Callable, Sequence
from functools import cache

import torch
from torch import Tensor, nn

from fewer._checks import check_choice, check_whole
from fewer.errors import InputError
from fewer.nn.losses import Loss

__all__ = ["ConcreteNetwork", "ConcreteSelector", "gumbel_noise", "linear_parts", "relaxed_choice"]


def gumbel_noise(like: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Gumbel(0, 1) noise in the shape, dtype and device of ``like``: -log(-log u), u uniform.

    Examples
    --------
    >>> import torch
    >>> noise = gumbel_noise(torch.zeros(100_000), torch.Generator().manual_seed(0))
    >>> round(noise.mean().item(), 2)  # Euler's constant is 0.5772
    0.58
    """
    # torch's exponential_ would save a logarithm, but takes six times as long on a CPU
    noise = torch.empty_like(like, requires_grad=False).uniform_(generator=generator)
    info = torch.finfo(like.dtype)
    return noise.clamp_(info.tiny, 1 - info.eps / 2).log_().neg_().log_().neg_()


class SampledGumbel:
    """Gumbel noise for training steps on a CPU, in a third of the time of `gumbel_noise`.

    Every value is one of 65,536 of equal probability, from -2.5 to 11.8: one random number of 64
    bits gives four of them, and no logarithm is needed. Each draw overwrites the one before it.
    """

    def __init__(self, *shape: int) -> None:
        self.noise = torch.empty(shape, dtype=torch.float32)
        size = self.noise.numel()
        self.bits = torch.empty(-(-size // 4), dtype=torch.int64)
        self.at = torch.empty(size, dtype=torch.int32)

    def draw(self, generator: torch.Generator | None = None) -> Tensor:
        """Fresh noise."""
        bits = self.bits.random_(-(2**63), None, generator=generator).view(torch.uint16)
        at = self.at.copy_(bits[: len(self.at)])
        torch.index_select(_gumbel_quantiles(), 0, at, out=self.noise.view(-1))
        return self.noise


@cache
def _gumbel_quantiles() -> Tensor:
    """Of the middles of 2^16 equal intervals, in the order of signed numbers of 16 bits."""
    middle = (torch.arange(2**16, dtype=torch.float64).roll(2**15) + 0.5) / 2**16
    return middle.log_().neg_().log_().neg_().float()


def relaxed_choice(logits: Tensor, temperature: float | Tensor, noise: Tensor) -> Tensor:
    """One draw from Concrete(alpha, T): softmax((log alpha + g) / T) over the last axis.

    Examples
    --------
    >>> import torch
    >>> relaxed_choice(torch.tensor([0.0, 2.0]), 0.1, torch.zeros(2)).round()
    tensor([0., 1.])
    """
    return torch.softmax((logits + noise) / temperature, dim=-1)


class ConcreteSelector(nn.Module):
    """A layer of k nodes, each of which learns to select one of d input features.

    In training mode, node i outputs x . m_i with m_i sampled from Concrete(alpha_i, T), which is
    differentiable; in eval mode, it outputs x[argmax_j alpha_ij]. Lower ``temperature``
    during training (see `fewer.nn.schedule`); any network can follow.

    Parameters
    ----------
    d, k : int
        Number of input features and of nodes.
    temperature : float, default=10.0
        T in the equations; set the attribute to change it.
    draw : {"batch", "row"}, default="batch"
        One sample per batch (the paper), or one per row, which takes rows x k x d numbers.
    logits : {"direct", "indirect"}, default="direct"
        Learn the logits directly (the paper), or as a linear map of a learned embedding of
        each node, which couples all logits of a node and is far more expensive.
    embedding : int, default=None
        Width of that embedding; d if None.
    allowed : bool tensor of length d, default=None
        Features that may be chosen; the others get probability 0.
    include : sequence of int, default=None
        Features that the first nodes always select; only the other nodes learn.
    init_scale : float, default=0.01
        Standard deviation of the initial logits: small, so that all features start equal.

    Examples
    --------
    >>> import torch
    >>> _ = torch.manual_seed(0)
    >>> network = torch.nn.Sequential(ConcreteSelector(d=64, k=10), torch.nn.Linear(10, 64))
    >>> network(torch.rand(32, 64)).shape
    torch.Size([32, 64])
    >>> network[0].temperature = 0.5
    >>> network[0].eval().indices().shape
    torch.Size([10])
    """

    def __init__(
        self,
        d: int,
        k: int,
        *,
        temperature: float = 10.0,
        draw: str = "batch",
        logits: str = "direct",
        embedding: int | None = None,
        allowed: Tensor | None = None,
        include: Sequence[int] | None = None,
        init_scale: float = 0.01,
    ) -> None:
        super().__init__()
        check_whole("d", d)
        check_whole("k", k)
        check_choice("draw", draw, ("batch", "row"))
        check_choice("logits", logits, ("direct", "indirect"))
        fixed = [] if include is None else [int(j) for j in include]
        if len(set(fixed)) < len(fixed) or not all(0 <= j < d for j in fixed) or len(fixed) > k:
            raise InputError(
                f"include={fixed} must hold at most k={k} different columns from 0 to {d - 1}"
            )
        self.d, self.k, self.draw = d, k, draw
        # for draws per batch, which ranks share; None is torch's own
        self.generator: torch.Generator | None = None
        free = k - len(fixed)
        if logits == "direct":
            self.weight = nn.Parameter(torch.randn(free, d) * init_scale)
            self.embedding = None
        else:
            width = d if embedding is None else check_whole("embedding", embedding)
            # unit embeddings times a map of this size give logits of size init_scale
            self.embedding = nn.Parameter(torch.randn(free, width) / width**0.5)
            self.weight = nn.Parameter(torch.randn(width, d) * init_scale)
        self.register_buffer("_temperature", torch.tensor(float(temperature)))
        self.temperature = temperature
        self.register_buffer("forbidden", _forbidden(d, allowed, fixed, free))
        certain = nn.functional.one_hot(torch.tensor(fixed), d).float().log() if fixed else None
        self.register_buffer("certain", certain)

    _temperature: Tensor
    forbidden: Tensor | None
    certain: Tensor | None

    @property
    def temperature(self) -> float:
        """Temperature T: high values mix features, low values select one."""
        return float(self._temperature)

    @temperature.setter
    def temperature(self, value: float) -> None:
        if not value > 0:
            raise InputError(f"temperature={value!r} must be above 0; the paper ends at 0.01")
        self._temperature.fill_(value)

    @property
    def logits(self) -> Tensor:
        """Log alpha, k x d, up to a constant for each node; -inf where not allowed."""
        logits = self.weight if self.embedding is None else self.embedding @ self.weight
        if self.forbidden is not None:
            logits = logits.masked_fill(self.forbidden, -torch.inf)
        return logits if self.certain is None else torch.cat([self.certain, logits])

    @property
    def trains_directly(self) -> bool:
        """Whether `accumulate` has the gradient: one draw per batch, direct logits."""
        return self.draw == "batch" and self.embedding is None

    def accumulate(self, choice: Tensor, gradient: Tensor) -> None:
        """Set the gradient of direct logits, given that of the draw they led to, which is lost.

        ``gradient`` is that of the draw divided by the temperature.
        """
        fixed = 0 if self.certain is None else len(self.certain)
        choice, gradient = choice[fixed:], gradient[fixed:].mul_(choice[fixed:])
        self.weight.grad = gradient.addcmul_(gradient.sum(1, keepdim=True), choice, value=-1)

    def sample(self, rows: int | None = None, generator: torch.Generator | None = None) -> Tensor:
        """Draw m_1 ... m_k: k x d, or rows x k x d when ``rows`` is given."""
        logits = self.logits
        if rows is not None:
            logits = logits.expand(rows, self.k, self.d)
            noise = gumbel_noise(logits, generator)
        else:
            noise = self._noise(logits, self.generator if generator is None else generator)
        return relaxed_choice(logits, self._temperature, noise)

    def _noise(self, logits: Tensor, generator: torch.Generator | None) -> Tensor:
        """Noise for one draw: on a CPU that of `fewer.train.epochs`, in a single draw as well."""
        if logits.device.type != "cpu" or logits.dtype != torch.float32:
            return gumbel_noise(logits, generator)
        fixed = 0 if self.certain is None else len(self.certain)
        noise = SampledGumbel(self.k - fixed, self.d).draw(generator)
        return nn.functional.pad(noise, (0, 0, fixed, 0)) if fixed else noise

    def forward(self, x: Tensor) -> Tensor:
        """Map n x d rows to n x k: a random mixture in training, single features in eval."""
        if x.shape[-1] != self.d:
            raise InputError(f"this selector takes {self.d} features; got {x.shape[-1]}")
        if not self.training:
            return x[..., self.indices()]
        if self.draw == "batch":
            return x @ self.sample().T
        return torch.einsum("nd,nkd->nk", x, self.sample(len(x)))

    def probabilities(self) -> Tensor:
        """alpha_ij / sum_j alpha_ij, k x d: how likely node i is to pick feature j."""
        return torch.softmax(self.logits, dim=1)

    def mean_max_probability(self) -> Tensor:
        """Mean over nodes of the largest probability: 1 when every node has converged."""
        return self.probabilities().amax(dim=1).mean()

    def entropy(self) -> Tensor:
        """Entropy of each node's distribution in nats: log d at the start, 0 when converged."""
        return torch.special.entr(self.probabilities()).sum(dim=1)

    def indices(self) -> Tensor:
        """Most likely feature of each node: k column indices, possibly with repeats."""
        return self.logits.argmax(dim=1)

    def groups(self, m: int) -> Tensor:
        """The m most likely features of each node (k x m), most likely first."""
        return self.logits.topk(m, dim=1).indices

    def extra_repr(self) -> str:
        """What ``repr`` shows."""
        logits = "direct" if self.embedding is None else "indirect"
        return f"d={self.d}, k={self.k}, draw={self.draw!r}, logits={logits!r}"


def _forbidden(d: int, allowed: Tensor | None, fixed: list[int], free: int) -> Tensor | None:
    """Mask of features that free nodes may not take; None if they may take all."""
    if allowed is None and not fixed:
        return None
    barred = torch.zeros(d, dtype=torch.bool)
    if allowed is not None:
        allowed = torch.as_tensor(allowed, dtype=torch.bool)
        if allowed.shape != (d,):
            raise InputError(f"allowed must hold {d} flags; got shape {tuple(allowed.shape)}")
        barred |= ~allowed
    barred[fixed] = True
    if free and barred.all():
        raise InputError(
            f"allowed and include leave none of {d} features for the other {free} nodes; "
            "leave at least one of them"
        )
    return barred


class ConcreteNetwork(nn.Module):
    """Concrete selector in front of a decoder: all d features through k nodes.

    Parameters
    ----------
    selector, decoder : nn.Module
        Modules from d values to k, and from k to the predictions.
    mixed : bool, default=False
        Run the decoder in mixed precision; the selector stays in float32.

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
        """Leave the gradients of a batch's loss in the parameters and return the loss."""
        plain = target is x and observed is None and penalty is None and not self.mixed
        if plain and (parts := linear_parts(self, loss)) is not None:
            selector, decoder = parts
            with torch.no_grad():
                choice = selector.sample()
                stacked = torch.cat([choice, decoder.bias[None], decoder.weight.T])
                value, d_choice, d_decoder = linear_reconstruction_gradients(x, stacked)
                decoder.bias.grad, decoder.weight.grad = d_decoder[0], d_decoder[1:].T.contiguous()
                selector.accumulate(choice, d_choice.div_(selector._temperature))
                flat = x.reshape(-1)
                return (value + flat @ flat) / x.numel()
        value = loss(self(x), target, observed)
        (value if penalty is None else value + penalty()).backward()
        return value.detach()

    def forward(self, x: Tensor) -> Tensor:
        """Select k values of each row and decode them."""
        chosen = self.selector(x)
        return run_mixed(self.decoder, chosen) if self.mixed else self.decoder(chosen)


def run_mixed(net: nn.Module, x: Tensor) -> Tensor:
    """The output of a network in mixed precision, as float32."""
    with torch.autocast(x.device.type, dtype=torch.bfloat16):
        return net(x).float()


def linear_parts(network: ConcreteNetwork, loss: Loss) -> tuple[ConcreteSelector, nn.Linear] | None:
    """Selector and decoder of a network with explicit gradients; None for any other."""
    selector, decoder = network.selector, network.decoder
    if (
        loss.name == "mse"
        and type(decoder) is nn.Linear
        and decoder.bias is not None
        and isinstance(selector, ConcreteSelector)
        and selector.trains_directly
    ):
        return selector, decoder
    return None


def linear_reconstruction_gradients(
    x: Tensor,
    stacked: Tensor,
    *,
    temperature: float = 1.0,
    both: Tensor | None = None,
    out: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Squared error of decoding the draw of a batch back to x, less |x|^2, and gradients.

    ``stacked`` is the draw M (k x d) on top of the decoder [b; W'], its bias and transposed
    weights. The gradients are those of the mean squared error: of M, divided by ``temperature``,
    and of [b; W'], both of them in ``out`` (2k + 2 x d), if given. ``both`` (2k + 2 x n) is memory
    that is overwritten but for its first row of ones.

    With u = [1, x M'] the reconstruction is u [b; W'], so these need only x M', x W, u' x and g' x,
    where g is the gradient with respect to u; autograd would also compute the n x d
    reconstruction. Expanding the square loses about as many digits as the error is smaller than x.
    """
    k = len(stacked) // 2
    if both is None:
        both = torch.ones(2 * k + 2, len(x), dtype=x.dtype, device=x.device)
    decoder = stacked[k:]
    torch.mm(stacked, x.T, out=both[1:])
    u, xw = both[: k + 1], both[k + 1 :]
    g = (decoder @ decoder.T) @ u
    # |u [b; W'] - x|^2 = <u, g> - 2 <u, x [b; W']'> + |x|^2
    total = u.view(-1) @ torch.sub(g, xw, alpha=2).view(-1)
    squares, scale = u @ u.T, 2.0 / x.numel()
    torch.sub(g, xw, out=xw).mul_(scale / temperature)
    sides = torch.mm(both, x, out=out)  # u' x and g' x
    d_decoder = sides[: k + 1].addmm_(squares, decoder, beta=-scale, alpha=scale)
    return total, sides[k + 2 :], d_decoder
