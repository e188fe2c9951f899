"""Epochs of a linear concrete autoencoder: a step is one compiled function, replayed as a graph.

Autograd would read and write some thirty k x d matrices per step. With the gradients written out,
torch.compile fuses what is between the matrix products, and a CUDA graph launches everything at
once. Matrices are padded with zeros, which stay zero, so that rows are aligned to cache lines. The
state between epochs is in the network and its optimizer. Gradients equal autograd's up to rounding:
relative to their norm, 1e-4 in float32, 5e-3 in tf32 and 2e-2 in bfloat16.
"""

import types
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._triton import has_triton

from fewer.cuda.graphs import Optimizer, recorded
from fewer.data.moments import free_bytes, tf32
from fewer.errors import warn
from fewer.nn import ConcreteSelector

__all__ = ["CompiledEpochs"]

PAD = 64  # features and nodes
LARGE_BATCH = 768

Parameter = tuple[Tensor, Tensor, Tensor]  # its value and Adam's two moments


class CompiledEpochs:
    """Buffers and graph for the steps of one selector and its linear decoder."""

    def __init__(
        self,
        selector: ConcreteSelector,
        decoder: nn.Linear,
        rows: Tensor,
        optimizer: Optimizer,
        *,
        batch_size: int,
        precision: str,
    ) -> None:
        self.selector, self.decoder, self.optimizer = selector, decoder, optimizer
        self.k, self.d, self.precision = selector.k, selector.d, precision
        n, device = len(rows), rows.device
        self.batch = min(n, batch_size + (n % batch_size == 1 and n > batch_size))
        # at least one spare feature: padded nodes choose it, see _load
        wide, high = (size + -size % PAD for size in (self.d + 1, self.k))
        kind = torch.bfloat16 if precision == "bfloat16" else torch.float32

        def zeros(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        self.logits, self.weight = zeros(3, high, wide), zeros(3, high, wide)  # and their moments
        self.bias = zeros(3, wide)
        self.low_weight = zeros(high, wide, dtype=kind)  # as the products take it
        self.noise = zeros(high, wide)
        self.total = zeros()  # of the losses
        self.clock = zeros(1, dtype=torch.int64)  # steps of this epoch
        self.order = zeros(0, self.batch, dtype=torch.int64)
        self.plan = zeros(0, 6)
        self.rows = rows
        low = kind is torch.bfloat16 and rows.is_cuda
        if low and 3 * n * wide * kind.itemsize < free_bytes(device):
            self.rows = zeros(n, wide, dtype=kind)  # ready for the products
            self.rows[:, : self.d] = rows
        self.graph: torch.cuda.CUDAGraph | None = None
        self.step: Callable[..., None] = linear_step
        if rows.is_cuda and has_triton():
            self.step = _compiled(linear_step)

    def epoch(self, order: list[Tensor], temperatures: list[float] | None = None) -> float:
        """Train on these batches of row numbers, each at its temperature; the mean loss."""
        temperatures = temperatures or [self.selector.temperature] * len(order)
        steps = len(order)
        done = int(self.optimizer.groups[0]["state_steps"][0])
        if len(self.order) != steps:  # a graph stores the addresses of these buffers
            self.order = self.order.new_zeros(steps, self.batch)
            self.plan = self.plan.new_zeros(steps, self.plan.shape[1])
            self.graph = None
        padded = nn.utils.rnn.pad_sequence(order, batch_first=True)
        self.order[:, : padded.shape[1]] = padded.to(self.order.device)
        plan = [
            _plan(done + at, temperature, self.optimizer.rates, len(batch), self.d)
            for at, (batch, temperature) in enumerate(zip(order, temperatures, strict=True), 1)
        ]
        self.plan.copy_(torch.tensor(plan, dtype=torch.float64))
        self._load()
        if self.rows.is_cuda:
            if self.graph is None:
                self.graph = self._recorded()
                self._load()  # recording changed the state
            replay: Callable[[], None] = self.graph.replay
        else:
            replay = self._step
        for _ in range(steps):
            replay()
        self._save(done + steps)
        self.selector.temperature = temperatures[-1]
        return float(self.total) / steps

    def _step(self) -> None:
        self.noise.exponential_()  # faster than noise in compiled code
        with torch.no_grad():
            self.step(
                self.rows,
                self.order,
                self.plan,
                self.clock,
                self.noise,
                self.logits.unbind(),
                self.weight.unbind(),
                self.bias.unbind(),
                self.low_weight,
                self.total,
            )

    def _warm_up(self) -> None:
        """Make a first step, which compiles it and allocates the workspace of cuBLAS."""
        try:
            with warnings.catch_warnings():  # float32 was requested
                warnings.filterwarnings("ignore", message="TensorFloat32")
                self._step()
        except RuntimeError as error:
            if self.step is linear_step or isinstance(error, torch.OutOfMemoryError):
                raise
            reason = str(error).splitlines()[0]
            warn(f"torch.compile failed ({reason}); training continues uncompiled, more slowly")
            self.step = linear_step
            self._step()
        self.clock.zero_()

    def _recorded(self) -> torch.cuda.CUDAGraph:
        device = self.rows.device
        random = torch.cuda.get_rng_state(device)
        with _products(self.precision):
            graph = recorded(self._step, self._warm_up, device)
        torch.cuda.set_rng_state(random, device)  # so that a resumed fit draws the same noise
        return graph

    @torch.no_grad()
    def _load(self) -> None:
        """Read the state of the network and its optimizer."""
        k, d = self.k, self.d
        self.clock.zero_()
        self.total.zero_()
        self.logits[0].fill_(-torch.inf)
        self.logits[0, :k, :d] = self.selector.logits
        self.logits[0, k:, -1] = 0.0  # padded nodes select a padded feature, which is zero
        self.weight[0, :k, :d] = self.decoder.weight.T
        self.low_weight.copy_(self.weight[0])
        self.bias[0, :d] = self.decoder.bias
        for mine, theirs in self._moments():
            mine.copy_(theirs)

    @torch.no_grad()
    def _save(self, steps: int) -> None:
        """Write the state back, except for forbidden features."""
        k, d = self.k, self.d
        weight, forbidden = self.selector.weight, self.selector.forbidden
        learned = self.logits[0, k - len(weight) : k, :d]
        if forbidden is not None:
            learned = torch.where(forbidden, weight, learned)
        weight.copy_(learned)
        self.decoder.weight.copy_(self.weight[0, :k, :d].T)
        self.decoder.bias.copy_(self.bias[0, :d])
        for mine, theirs in self._moments():
            theirs.copy_(mine)
        for group in self.optimizer.groups:
            for count in group["state_steps"]:
                count.fill_(steps)

    def _moments(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Adam's moments here and in the optimizer."""
        k, d = self.k, self.d
        fixed = k - len(self.selector.weight)
        one, two = self.optimizer.groups
        for at, name in ((1, "exp_avgs"), (2, "exp_avg_sqs")):
            yield self.logits[at, fixed:k, :d], one[name][0]
            yield self.weight[at, :k, :d], two[name][0].T
            yield self.bias[at, :d], two[name][1]


def linear_step(
    rows: Tensor,
    order: Tensor,
    plan: Tensor,
    clock: Tensor,
    noise: Tensor,
    logits: Parameter,
    weight: Parameter,
    bias: Parameter,
    low_weight: Tensor,
    total: Tensor,
) -> None:
    """One step in place, number ``clock`` of the epoch: select, decode, gradients, Adam.

    With M a draw of the selector (nodes x features), W the decoder (the same), u = x M' and
    r = u W + b - x: the gradients of |r|^2 are r W' =: g for u, g' x =: D for M, u' r for W. That
    of the logits is M (D - sum_j M_j D_j) / T, and the sum over features is that over rows of g u.
    """
    inverse_temperature, logits_rate, rate, root, n, scale = plan.index_select(0, clock)[0]
    index = order.index_select(0, clock)[0]
    kind, wide = low_weight.dtype, low_weight.shape[1]
    x = F.pad(rows.index_select(0, index).to(kind), (0, wide - rows.shape[1]))
    gumbel = -noise.clamp_min(torch.finfo(torch.float32).tiny).log()  # of exponential noise
    M = torch.softmax((logits[0] + gumbel) * inverse_temperature, dim=1).to(kind)
    u = x @ M.T
    r = (u @ low_weight).float() + bias[0] - x.float()
    r = torch.where(torch.arange(len(index), device=r.device)[:, None] < n, r, 0.0)
    total.add_(r.square().sum() * (scale / 2))
    low_r = r.to(kind)
    g = low_r @ low_weight.T
    inner = (g.float() * u.float()).sum(0)
    if len(index) < LARGE_BATCH:  # small products are faster together
        to_M, to_weight = torch.bmm(torch.stack([g, u]).mT, torch.stack([x, low_r]))
    else:
        to_M, to_weight = g.T @ x, u.T @ low_r
    to_logits = M.float() * (to_M.float() - inner[:, None]) * (inverse_temperature * scale)
    _adam(*logits, to_logits, logits_rate, root)
    _adam(*weight, to_weight.float() * scale, rate, root)
    low_weight.copy_(weight[0])
    _adam(*bias, r.sum(0) * scale, rate, root)
    clock.add_(1)


def _adam(p: Tensor, m: Tensor, v: Tensor, gradient: Tensor, rate: Tensor, root: Tensor) -> None:
    m.lerp_(gradient, 0.1)
    v.mul_(0.999).addcmul_(gradient, gradient, value=0.001)
    p.sub_(rate * m / (v.sqrt() * root + 1e-8))


def _plan(step: int, temperature: float, rates: list[float], rows: int, d: int) -> list[float]:
    """The numbers that a step needs; Adam's ``step`` is counted from 1.

    1 / T; both learning rates over Adam's first bias correction; 1 over the root of the second;
    rows; and 2 / (rows d), by which sums of residuals become the gradient of a mean.
    """
    first, second = 1 - 0.9**step, 1 - 0.999**step
    both = [rate / first for rate in rates]
    return [1 / temperature, *both, second**-0.5, float(rows), 2 / (rows * d)]


def _compiled(function: Any) -> Callable[..., None]:
    # torch.compile caches few versions of a code object, so each size gets its own copy
    own = types.FunctionType(function.__code__.replace(), function.__globals__, function.__name__)
    return torch.compile(own, dynamic=False)


@contextmanager
def _products(precision: str) -> Iterator[None]:
    """Precision of matrix products while a graph is recorded."""
    switches: Any = torch.backends.cuda.matmul
    before = switches.allow_bf16_reduced_precision_reduction
    switches.allow_bf16_reduced_precision_reduction = False  # sums in float32
    try:
        with tf32(precision == "tf32"):
            yield
    finally:
        switches.allow_bf16_reduced_precision_reduction = before
