"""Training networks with every step replayed as one CUDA graph, and padded linear layers.

A step of a small network is some forty short kernels, and launching them one by one takes ten
times as long as running them; a recorded graph launches them together. The results are those of the
plain loop up to rounding.

Tensor cores read whole 16-byte words: with an odd number of features, a product in bfloat16 is five
times slower than with rows that are padded by zeros.
"""

import gc
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache, partial
from itertools import chain
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fewer.data.batches import Batch
from fewer.errors import warn
from fewer.nn import ConcreteNetwork, ConcreteSelector
from fewer.nn.decoder import (
    ACTIVATIONS,
    NORMS,
    DecoderStack,
    DropoutStack,
    LinearStack,
    NormStack,
    linear_layer,
)

__all__ = [
    "GraphedEpochs",
    "Optimizer",
    "RecordedStep",
    "can_be_recorded",
    "padded",
    "recorded",
    "unpadded",
]

RECORDING = threading.Lock()  # one at a time
TOGETHER = 8  # steps: Python is in the way of other threads
UNIT = 8  # numbers
LEAST = 512  # smaller layers gain nothing


class PaddedLinear(nn.Module):
    """A linear layer with zeros beyond its weights, which stay zero."""

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


class Optimizer(Protocol):
    """What is needed of `fewer.train.optimize.Adam`, which this folder may not import."""

    groups: list[dict[str, Any]]
    rates: list[float]
    shares: Tensor | None

    def zero_grad(self) -> None: ...

    def step(self, rates: list[Tensor] | None = None) -> None: ...


class RecordedStep:
    """A function of no arguments that works on the GPU; after the first call, one CUDA graph.

    ``warm_up`` runs the same kernels once, by default by a call of the function: libraries choose
    theirs then, which cannot be recorded. ``state`` are the tensors that either changes in place:
    recording leaves them as they were, and random numbers as well. ``generators`` are those that
    are drawn from, besides torch's own.
    The caller keeps all tensors that it reads. While one thread records, others must not draw
    random numbers on the GPU. What cannot be recorded is run as it is, with a warning.
    """

    def __init__(
        self,
        step: Callable[[], None],
        state: Sequence[Tensor],
        device: torch.device,
        generators: Sequence[torch.Generator] = (),
        warm_up: Callable[[], None] | None = None,
    ) -> None:
        self.state, self.device, self.generators = state, device, generators
        self.first: Callable[[], None] | None = step  # until it is recorded
        self.warm_up = step if warm_up is None else warm_up
        self.run = step

    def __call__(self) -> None:
        """Run the function."""
        if self.first is not None:
            self.run = self._recorded(self.first)
            # a graph needs none of them; they may refer to what has this step, and memory is short
            self.first, self.warm_up, self.state = None, self.run, ()
        self.run()

    def _recorded(self, step: Callable[[], None]) -> Callable[[], None]:
        before = [part.detach().clone() for part in self.state]
        there = self.device.type == "cuda"
        random = torch.cuda.get_rng_state(self.device) if there else torch.get_rng_state()
        drawn = [generator.get_state() for generator in self.generators]
        run = step
        try:
            run = recorded(step, self.warm_up, self.device, self.generators).replay
        except RuntimeError as error:
            if isinstance(error, torch.OutOfMemoryError):
                raise
            reason = str(error).splitlines()[0]
            warn(
                f"recording a CUDA graph failed ({reason}); training continues without it, "
                "more slowly"
            )
        with torch.no_grad():
            for part, value in zip(self.state, before, strict=True):
                part.copy_(value)
        if there:
            torch.cuda.set_rng_state(random, self.device)
        else:
            torch.set_rng_state(random)
        for generator, place in zip(self.generators, drawn, strict=True):
            generator.set_state(place)
        return run


def recorded(
    step: Callable[[], None],
    warm_up: Callable[[], None],
    device: torch.device,
    generators: Sequence[torch.Generator] = (),
) -> torch.cuda.CUDAGraph:
    """A step as a graph, after a warm-up in which libraries choose their kernels."""
    with RECORDING:
        here, side = torch.cuda.current_stream(device), _side_stream(device)
        side.wait_stream(here)
        with _without_garbage(), torch.cuda.stream(side):
            warm_up()
            try:
                graph = _captured(step, generators)
            except torch.OutOfMemoryError:
                graph = None  # outside the handler, which would keep tensors alive
            if graph is None:  # what PyTorch keeps for later is no use to a graph
                torch.cuda.synchronize(device)
                torch.cuda.empty_cache()
                graph = _captured(step, generators)
        here.wait_stream(side)
    return graph


def _captured(
    step: Callable[[], None], generators: Sequence[torch.Generator]
) -> torch.cuda.CUDAGraph:
    # `torch.cuda.graph` would first free what PyTorch keeps, which takes as long as a recording
    graph = torch.cuda.CUDAGraph()
    for generator in generators:
        graph.register_generator_state(generator)
    graph.capture_begin(capture_error_mode="thread_local")  # other threads may use the GPU
    try:
        step()
    except BaseException:
        # what ends here is empty or invalid, of which the reason is that of the step
        with warnings.catch_warnings(), suppress(RuntimeError):
            warnings.simplefilter("ignore")
            graph.capture_end()
        raise
    graph.capture_end()
    return graph


@cache
def _side_stream(device: torch.device) -> torch.cuda.Stream:
    """A stream for warm-ups: on each new one, cuBLAS would keep some memory for good."""
    return torch.cuda.Stream(device)


@contextmanager
def _without_garbage() -> Iterator[None]:
    """Collect no garbage: to free memory of the GPU would end the recording."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def can_be_recorded(network: nn.Module) -> bool:
    """Whether no layer of the network synchronises with the GPU."""
    known = {nn.Sequential, nn.Linear, PaddedLinear, nn.Dropout}
    known |= {*ACTIVATIONS.values(), *NORMS.values()}
    known |= {DecoderStack, DropoutStack, LinearStack, NormStack, nn.ModuleList}
    known |= {ConcreteNetwork, ConcreteSelector}
    return all(type(module) in known for module in network.modules())


class GraphedEpochs:
    """Graphs and buffers for the steps of one network; ``backward`` leaves a batch's gradients.

    An epoch is one copy of the order of its rows, and replays of some batches each. A concrete
    network has a ``temperature``, which every step sets.
    """

    def __init__(
        self,
        network: nn.Module,
        backward: Callable[[Batch], Tensor],
        x: Tensor,
        target: Tensor,
        optimizer: Optimizer,
        temperature: Tensor | None = None,
    ) -> None:
        self.network, self.backward, self.optimizer = network, backward, optimizer
        self.x, self.target, self.temperature = x, target, temperature
        device = x.device
        self.order = torch.zeros(len(x), dtype=torch.long, device=device)
        most = len(x) + 2 * TOGETHER  # steps; a warm-up is one, too
        self.temperatures = torch.ones(most, device=device)
        self.rows = torch.zeros((), dtype=torch.long, device=device)  # of this epoch, so far
        self.steps = torch.zeros((), dtype=torch.long, device=device)
        self.rates = [torch.zeros((), device=device) for _ in optimizer.groups]
        self.total = torch.zeros((), device=device)
        self.recorded: dict[tuple[int, ...], RecordedStep] = {}  # by the sizes of the batches
        self.counted: dict[int, Tensor] = {}  # 0, 1, 2, ...: graphs do not keep what they read
        self.shares = optimizer.shares

    def epoch(self, order: list[Tensor], temperatures: list[float] | None = None) -> float:
        """Train on these batches of row numbers, each at its temperature; the mean loss."""
        if self.shares is not self.optimizer.shares:  # steps have to be recorded anew
            self.shares = self.optimizer.shares
            self.recorded.clear()
        for own, rate in zip(self.rates, self.optimizer.rates, strict=True):
            own.fill_(rate)
        self.order.copy_(torch.cat(order))
        if temperatures is not None:
            self.temperatures[: len(order)] = torch.tensor(temperatures)
        for part in (self.total, self.rows, self.steps):
            part.zero_()
        sizes = [len(batch) for batch in order]
        for at in range(0, len(sizes), TOGETHER):
            self._steps_of(tuple(sizes[at : at + TOGETHER]))()
        return self.total.item() / len(order)

    def _steps_of(self, sizes: tuple[int, ...]) -> RecordedStep:
        """Steps with batches of these sizes."""
        if sizes not in self.recorded:
            for size in sizes:
                if size not in self.counted:
                    self.counted[size] = torch.arange(size, device=self.x.device)
            names = ("exp_avgs", "exp_avg_sqs", "state_steps")
            parts = (group[name] for group in self.optimizer.groups for name in names)
            state = [*self.network.parameters(), *self.network.buffers(), *chain(*parts)]
            state += [self.total, self.rows, self.steps]

            def run(sizes: Iterable[int] = sizes) -> None:
                for size in sizes:
                    self._step(self.counted[size])

            once = partial(run, {*sizes})
            self.recorded[sizes] = RecordedStep(run, state, self.x.device, warm_up=once)
        return self.recorded[sizes]

    @torch.enable_grad()
    def _step(self, counted: Tensor) -> None:
        self.optimizer.zero_grad()
        if self.temperature is not None:
            self.temperature.copy_(self.temperatures.index_select(0, self.steps[None])[0])
        # in a warm-up, too, there must be rows left
        rows = self.order.index_select(0, (self.rows + counted).clamp_max_(len(self.order) - 1))
        x = self.x.index_select(0, rows)
        target = x if self.target is self.x else self.target.index_select(0, rows)
        self.total += self.backward(Batch(x, target, None))
        self.optimizer.step(self.rates)
        self.rows += len(counted)
        self.steps += 1
