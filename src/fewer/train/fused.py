"""Epochs of a linear concrete autoencoder on CUDA: a whole step as one graph of fused kernels.

A plain step reads and writes some thirty matrices of k x d numbers; this one reads and writes
logits, weights and their moments once, and a copy of sample and weights in the precision of the
products. At d = 10,463, k = 943 that is a fifth of the time.

The state between epochs stays where it always is, in the network and its optimizer. Results
equal those of `fewer.train.loop.train_epoch` with the same counted noise (`fewer.nn.philox`) up
to rounding: for one step, relative to the norm of the gradient, 1e-4 in float32, 5e-3 in tf32 and
2e-2 in bfloat16.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fewer.data.batches import Batches
from fewer.data.moments import free_bytes, tf32
from fewer.nn import ConcreteNetwork, ConcreteSelector, Loss, kernels
from fewer.nn.philox import CountedGumbel, quarter
from fewer.train.adam import Adam

__all__ = ["FusedEpochs", "fused_epochs"]

WIDEST = 32_768  # features: a program of the sampling kernel holds a whole row
SMALLEST = 2**14  # k x d: below, compiling the kernels takes longer than training
PAD_FEATURES, PAD_NODES, PAD_ROWS = 256, 64, 64  # whole tiles


@dataclass(frozen=True)
class Tiles:
    """Tile of a product (its rows, columns, depth), warps, stages, pieces it is finished in."""

    rows: int
    columns: int
    depth: int
    warps: int
    stages: int
    pieces: int = 1

    @property
    def options(self) -> dict[str, int]:
        """As the kernels take them."""
        return {
            "BM": self.rows,
            "BN": self.columns,
            "BK": self.depth,
            "num_warps": self.warps,
            "num_stages": self.stages,
        }


# of the residual and of the update, found by trial on an H200: small and large batches; where
# cuBLAS multiplies (float32, tf32) there is no product to make
SMALL = Tiles(128, 64, 64, 4, 3), Tiles(64, 32, 64, 4, 3)
LARGE = Tiles(128, 256, 64, 8, 3), Tiles(128, 128, 64, 8, 4, pieces=4)
NO_PRODUCT = Tiles(64, 64, 64, 8, 1), Tiles(64, 64, 64, 8, 1)
LARGE_BATCH = 768


def fused_epochs(
    network: ConcreteNetwork,
    batches: Batches,
    optimizer: Adam,
    loss: Loss,
    *,
    batch_size: int,
    precision: str,
    penalty: Callable[[], Tensor] | None = None,
) -> "FusedEpochs | None":
    """The fused way to train this network, or None where only the plain one will do."""
    selector, decoder = network.selector, network.decoder
    rows = batches.resident
    if not (
        batches.device.type == "cuda"
        and kernels.available()
        and torch.cuda.get_device_capability(batches.device) >= (8, 0)
        and penalty is None
        and loss.name == "mse"
        and rows is not None
        and type(decoder) is nn.Linear
        and decoder.bias is not None
        and isinstance(selector, ConcreteSelector)
        and isinstance(selector.noise, CountedGumbel)
        and selector.embedding is None
    ):
        return None
    free, d = selector.weight.shape
    most = -(-(batch_size + 1) // PAD_ROWS) * PAD_ROWS
    fits = selector.k * d >= SMALLEST and free and d <= WIDEST and most * (d + 128) < 2**31
    if not fits:
        return None
    return FusedEpochs(
        selector, decoder, rows, optimizer, batch_size=batch_size, precision=precision
    )


class FusedEpochs:
    """Buffers and graph for the steps of one network; see `fused_epochs`."""

    def __init__(
        self,
        selector: ConcreteSelector,
        decoder: nn.Linear,
        rows: Tensor,
        optimizer: Adam,
        *,
        batch_size: int,
        precision: str,
    ) -> None:
        self.selector, self.decoder, self.optimizer = selector, decoder, optimizer
        self.k, self.d = selector.k, selector.d
        self.precision = precision
        self.multiplies = precision == "bfloat16"
        device = rows.device
        n = len(rows)
        largest = min(n, batch_size + (n % batch_size == 1 and n > batch_size))
        self.batch = _up(largest, PAD_ROWS)
        tiles = LARGE if self.batch >= LARGE_BATCH else SMALL
        self.for_residual, self.for_update = tiles if self.multiplies else NO_PRODUCT
        wide, high = _up(self.d, PAD_FEATURES), _up(self.k, PAD_NODES)
        kind = torch.bfloat16 if precision == "bfloat16" else torch.float32

        def zeros(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.zeros(*shape, dtype=dtype, device=device)

        # part 0 is the selector's, part 1 the decoder's (transposed: nodes x features)
        self.params, self.first, self.second = (zeros(2, high, wide) for _ in range(3))
        self.low = zeros(2, high, wide, dtype=kind)  # sample and weights, as products take them
        self.sides = zeros(2, self.batch, high, dtype=kind)  # g and u
        self.wides = zeros(2, self.batch, wide, dtype=kind)  # x and the residual
        self.bias = zeros(3, wide)  # and its two moments
        self.means = zeros(high)
        down, across = self._residual_grid(wide)
        self.sums = zeros(down, wide)  # of the residual's columns
        self.losses = zeros(down, across)
        # where cuBLAS multiplies: the gradients of both parts
        self.product = self.params[:0] if self.multiplies else zeros(2, high, wide)
        self._pad_rows(rows, wide, kind)
        self.clock = torch.zeros(3, dtype=torch.int64, device=device)
        self.graph: torch.cuda.CUDAGraph | None = None
        self.order = torch.zeros(0, self.batch, dtype=torch.int64, device=device)
        self.plan = zeros(0, kernels.PLAN)
        self.first_block, self.second_block = two_powers(quarter(self.d))
        self.sample_warps = min(16, max(1, self.first_block // 128))

    def epoch(self, batches: list[Tensor], temperatures: list[float]) -> float:
        """Train on these batches of row numbers, each at its temperature; the mean loss."""
        steps = len(batches)
        done = int(self.optimizer.groups[0]["state_steps"][0])
        selector_rate, decoder_rate = self.optimizer.rates
        if len(self.order) != steps:  # graphs keep addresses: of buffers for so many steps
            self.order = self.order.new_zeros(steps, self.batch)
            self.plan = self.plan.new_zeros(steps, kernels.PLAN)
            self.graph = None
        order = torch.nn.utils.rnn.pad_sequence(batches, batch_first=True)
        self.order[:, : order.shape[1]] = order.to(self.order.device)
        plan = [
            plan_row(done + at, temperature, selector_rate, decoder_rate, len(batch), self.d)
            for at, (batch, temperature) in enumerate(zip(batches, temperatures, strict=True), 1)
        ]
        self.plan.copy_(torch.tensor(plan, dtype=torch.float64))
        noise = self.selector.noise
        assert isinstance(noise, CountedGumbel)
        self._load()
        self.losses.zero_()
        if self.graph is None:
            self.clock.copy_(torch.tensor([noise.step, 0, noise.seed]))
            with _products(self.precision):
                self._capture()
            self._load()  # capturing made a step or two
            self.losses.zero_()
        self.clock.copy_(torch.tensor([noise.step, 0, noise.seed]))
        assert self.graph is not None
        for _ in range(steps):
            self.graph.replay()
        self._save(done + steps)
        noise.step += steps
        self.selector.temperature = temperatures[-1]
        return float(self.losses.double().sum()) / steps

    def step(self) -> None:
        """One step, from the clock's: launches only, nothing waits."""
        k, d, batch = self.k, self.d, self.batch
        g, u = self.sides
        x, r = self.wides
        choice, weight = self.low
        wide, high = weight.shape[1], u.shape[1]
        plan, clock = self.plan, self.clock
        block = 2048
        kernels.gather[(batch, -(-self.width // block))](
            self.rows,
            self.order,
            x,
            plan,
            clock,
            self.width,
            self.rows.stride(0),
            wide,
            batch,
            BLOCK=block,
        )
        kernels.sample[(k,)](
            self.params,
            choice,
            plan,
            clock,
            quarter(d),
            wide,
            FIRST=self.first_block,
            REST=self.second_block,
            num_warps=self.sample_warps,
            maxnreg=64,  # so that two rows are worked on at a time
        )
        torch.mm(x, choice.T, out=u)
        if not self.multiplies:
            torch.mm(u, weight, out=r)
        kernels.residual[self._residual_grid(wide)](
            u,
            weight,
            self.bias,
            x,
            r,
            self.sums,
            self.losses,
            plan,
            clock,
            d,
            high,
            batch,
            high,
            wide,
            PRODUCT=self.multiplies,
            **self.for_residual.options,
        )
        torch.mm(r, weight.T, out=g)
        if not self.multiplies:
            torch.bmm(self.sides.mT, self.wides, out=self.product)
        block = 16
        kernels.columns[(wide // block + high // block,)](
            self.sums,
            g,
            u,
            self.means,
            *self.bias,
            plan,
            clock,
            len(self.sums),
            batch,
            wide,
            high,
            wide // block,
            BN=block,
            BK=64 if batch % 256 else 256,
            num_warps=4 if batch % 256 else 8,
        )
        tiles = self.for_update
        kernels.update[(-(-k // tiles.rows), wide // tiles.columns, 2)](
            self.sides,
            self.wides,
            self.product,
            self.params,
            self.first,
            self.second,
            self.low,
            self.means,
            plan,
            clock,
            batch,
            k,
            high,
            wide,
            self.sides.stride(0),
            self.wides.stride(0),
            self.params.stride(0),
            PRODUCT=self.multiplies,
            PIECES=tiles.pieces,
            **tiles.options,
        )
        self.clock[:2].add_(1)

    def _residual_grid(self, wide: int) -> tuple[int, int]:
        tiles = self.for_residual
        return -(-self.batch // tiles.rows), wide // tiles.columns

    def _pad_rows(self, rows: Tensor, wide: int, kind: torch.dtype) -> None:
        """Keep rows ready for the products where there is room: batches are then plain copies."""
        self.rows, self.width = rows, self.d
        size = len(rows) * wide * kind.itemsize
        if self.multiplies and rows.is_cuda and 3 * size < free_bytes(rows.device):
            self.rows = torch.zeros(len(rows), wide, dtype=kind, device=rows.device)
            self.rows[:, : self.d] = rows
            self.width = wide

    def _capture(self) -> None:
        stream = torch.cuda.Stream(self.clock.device)
        stream.wait_stream(torch.cuda.current_stream(self.clock.device))
        with torch.cuda.stream(stream):
            self.step()  # compiles the kernels, lets cuBLAS take its workspace
        torch.cuda.current_stream(self.clock.device).wait_stream(stream)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.step()

    def _load(self) -> None:
        """Take the state from the network and its optimizer."""
        k, d = self.k, self.d
        fixed = k - len(self.selector.weight)
        one, two = self.optimizer.groups
        with torch.no_grad():
            self.params[0].fill_(-torch.inf)
            self.params[0, :k, :d] = self.selector.logits
            self.params[1, :k, :d] = self.decoder.weight.T
            self.bias[0, :d] = self.decoder.bias
            self.low[1].copy_(self.params[1])
            for at, (state, name) in enumerate(
                ((self.first, "exp_avgs"), (self.second, "exp_avg_sqs")), start=1
            ):
                state[0, fixed:k, :d] = one[name][0]
                state[1, :k, :d] = two[name][0].T
                self.bias[at, :d] = two[name][1]

    def _save(self, steps: int) -> None:
        """Give the state back, except what the rules keep out of the selector."""
        k, d = self.k, self.d
        fixed = k - len(self.selector.weight)
        one, two = self.optimizer.groups
        weight, forbidden = self.selector.weight, self.selector.forbidden
        with torch.no_grad():
            learned = self.params[0, fixed:k, :d]
            if forbidden is not None:
                learned = torch.where(forbidden, weight, learned)
            weight.copy_(learned)
            self.decoder.weight.copy_(self.params[1, :k, :d].T)
            self.decoder.bias.copy_(self.bias[0, :d])
            for at, (state, name) in enumerate(
                ((self.first, "exp_avgs"), (self.second, "exp_avg_sqs")), start=1
            ):
                one[name][0].copy_(state[0, fixed:k, :d])
                two[name][0].copy_(state[1, :k, :d].T)
                two[name][1].copy_(self.bias[at, :d])
            for count in (*one["state_steps"], *two["state_steps"]):
                count.fill_(steps)


def plan_row(
    step: int, temperature: float, selector_rate: float, decoder_rate: float, rows: int, d: int
) -> list[float]:
    """What a step's kernels need to know, Adam's ``step`` counted from 1.

    Log2(e) / T; 1 / T; both learning rates over Adam's first bias correction; 1 over the root of
    the second; rows; and 2 / (rows d), by which sums of residuals become the gradient of a mean.

    Examples
    --------
    >>> [round(number, 3) for number in plan_row(1, 0.5, 0.1, 0.01, rows=4, d=5)]
    [2.885, 2.0, 1.0, 0.1, 31.623, 4.0, 0.1, 0.0]
    """
    first, second = 1 - 0.9**step, 1 - 0.999**step
    numbers = [math.log2(math.e) / temperature, 1 / temperature]
    numbers += [selector_rate / first, decoder_rate / first, second**-0.5]
    return [*numbers, float(rows), 2 / (rows * d), 0.0]


def two_powers(length: int, least: int = 16) -> tuple[int, int]:
    """Two powers of 2, the second perhaps 0, that together reach ``length`` with little waste.

    Examples
    --------
    >>> two_powers(2616), two_powers(4000), two_powers(8)
    ((2048, 1024), (4096, 0), (16, 0))
    """
    whole = max(least, 1 << (length - 1).bit_length())
    half = whole // 2
    if half < least or half >= length:
        return whole, 0
    rest = max(least, 1 << (length - half - 1).bit_length())
    return (half, rest) if rest < half else (whole, 0)


def _up(number: int, unit: int) -> int:
    return -(-number // unit) * unit


@contextmanager
def _products(precision: str) -> Iterator[None]:
    """How torch's own products round while a graph is captured."""
    switches: Any = torch.backends.cuda.matmul
    before = switches.allow_bf16_reduced_precision_reduction
    switches.allow_bf16_reduced_precision_reduction = False  # sums in float32
    try:
        with tf32(precision == "tf32"):
            yield
    finally:
        switches.allow_bf16_reduced_precision_reduction = before
