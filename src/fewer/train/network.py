"""Decoders trained by gradient descent on measured columns."""

import copy
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from functools import partial
from itertools import compress
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fewer._progress import shown as progress_shown
from fewer._threads import for_operations, mapped, own_cores
from fewer.cuda import PaddedLinear, fast_epochs, padded, unpadded
from fewer.data import Moments, RowView, Source, moments, read_blocks
from fewer.data.batches import Batch, Batches
from fewer.distributed import all_reduce, broadcast, broadcast_tensors, is_rank0, rank, world_size
from fewer.nn import Loss, MeasuredDecoder
from fewer.nn.concrete import run_mixed
from fewer.nn.decoder import DecoderStack, LinearStack, hidden_widths
from fewer.train.checkpoint import Checkpoint, TrainingState
from fewer.train.config import REFIT_STEPS, TrainingConfig
from fewer.train.device import enough_memory, float64_device, products, seeded
from fewer.train.last_layer import calibrate, solve_last
from fewer.train.linear import fit_likelihood, fit_linear, fits
from fewer.train.optimize import Adam, CosineDecay, KeepBestMembers
from fewer.train.training_data import TrainingData, new_decoder, prepare

__all__ = [
    "epoch_bar",
    "finetune_decoder",
    "fit_decoder",
    "held_out_losses",
    "stops_after",
    "train_decoder",
    "train_decoders",
]

FINETUNE_RATE = 0.1  # times the initial learning rate: the decoder needs little change
PATIENCE = 30
RATE, CLASS_RATE = 2e-2, 1e-2  # highest learning rates of a short training
NARROW = 64  # inputs of a layer: the rate of wider ones is lower in proportion
SHORT_STEPS, CLASS_STEPS, MANY_ROWS = 600, 1200, 4000  # steps; beyond these rows, more
MOST_CLASS_EPOCHS = 150
USUAL_BATCH = 256  # rows, for which the rate and the steps of classes are meant
WARM_UP = 0.1  # of the epochs
LIKELIHOODS = (
    "cross_entropy",
    "ordinal",
    "poisson",
    "cox",
    "several",
)  # what linear predictors maximise
SHORT = ("mse", "poisson", "cox", "several")  # losses of short trainings, besides smoothed ones
SHARED, CACHED = 2**17, 2**20  # values of the widest layer in a step of each core, and at most

History = list[dict[str, Any]]
Backward = Callable[[Batch], Tensor]
EpochBar = Callable[[dict[str, Any]], None]
Columns = NDArray[np.int64]


def train_decoder(
    source: Source,
    stats: Moments,
    columns: NDArray[np.int64],
    config: TrainingConfig,
    loss: Loss,
    seed: int,
    *,
    targets: Tensor | None = None,
    out: int | None = None,
    groups: NDArray | None = None,
    seconds: float | None = None,
    weights: Tensor | None = None,
) -> MeasuredDecoder:
    """Train the configured decoder on given columns.

    A linear decoder with squared error or cross-entropy is solved exactly. The loss of a network
    that reconstructs the rows does not include the measured columns, whose values are known.

    Parameters
    ----------
    source, stats : Source, Moments
        The rows and their moments.
    columns : array of int
        Measured columns, ascending.
    config, loss : TrainingConfig, Loss
        How to train, and what to minimise.
    seed : int
        Makes the result reproducible, bit for bit on a CPU.
    targets : Tensor, default=None
        Targets (class indices, or n x m values); None for the rows themselves.
    out : int, default=None
        Number of outputs; None is d.
    groups : array of length n, default=None
        Rows with the same label are held out together.
    seconds : float, default=None
        Time limit for training a network; the learning rate decays accordingly.
    weights : Tensor of length n, default=None
        Row weights, if there are targets.

    Returns
    -------
    MeasuredDecoder
        On the CPU in float64; ``epochs`` is the number of epochs to its lowest held-out loss.

    Examples
    --------
    >>> from fewer.data import moments
    >>> from fewer.data.source import array_source
    >>> from fewer.nn import make_loss
    >>> from sklearn.datasets import load_digits
    >>> source = array_source(load_digits().data / 16)
    >>> config = TrainingConfig(k=3, decoder=(16,), refit_epochs=5)
    >>> columns = np.array([20, 34, 43])
    >>> decoder = train_decoder(source, moments(source), columns, config, make_loss("mse"), seed=0)
    >>> decoder(source.rows(np.arange(2), torch.float64)[:, columns]).shape
    torch.Size([2, 64])
    """
    data = prepare(source, stats, config, loss, seed, targets, out, groups, weights)
    return train_decoders(data, [columns], seed, groups=groups, seconds=seconds)[0]


def train_decoders(
    data: TrainingData,
    panels: Sequence[NDArray[np.int64]],
    seed: int,
    *,
    groups: NDArray | None = None,
    seconds: float | None = None,
    tuned: Sequence[float | None] | None = None,
    effort: float = 1.0,
    distinct: bool = False,
) -> list[MeasuredDecoder]:
    """Train a decoder for each of several panels on the same rows.

    Networks with the same number of inputs are trained as one, distributed over the cores of a
    CPU; all start from the same weights and see the rows in the same order.

    Parameters
    ----------
    data : TrainingData
        The rows, what to predict, and how to train.
    panels : list of arrays of int
        Measured columns, ascending.
    seed, groups, seconds
        As in `train_decoder`; ``seconds`` are for all of them.
    tuned : list of float, default=None
        What held-out rows chose elsewhere, where there are none here: the penalty of each last
        layer or, with classes, the factor of outputs.
    effort : float, default=1.0
        Factor of the number of epochs, unless that is configured: 0.5 is enough for a comparison.
    distinct : bool, default=False
        Whether networks start from weights of their own, as those of an ensemble do.

    Examples
    --------
    >>> from fewer.data import moments
    >>> from fewer.data.source import array_source
    >>> from fewer.nn import make_loss
    >>> from sklearn.datasets import load_digits
    >>> source = array_source(load_digits().data / 16)
    >>> config = TrainingConfig(k=3, decoder=(16,), refit_epochs=5)
    >>> data = prepare(source, moments(source), config, make_loss("mse"), seed=0)
    >>> len(train_decoders(data, [np.array([20, 34, 43]), np.array([20, 34, 60])], seed=0))
    2
    """
    config = data.config
    values = config.values_per_operation(max(data.out, *map(len, panels)))
    alone = config.linear or callable(config.decoder)
    with (
        for_operations(values),
        enough_memory(data.device, config.batch_size),
        products(data.precision),
    ):
        if alone or world_size() > 1:
            found = []
            for at, columns in enumerate(panels):
                with seeded(seed + at * distinct, data.device) as generator:
                    own = None if tuned is None else tuned[at : at + 1]
                    found.append(_fit(data, columns, generator, groups, seconds, own, effort))
        else:
            found = _fit_together(data, panels, seed, seconds, tuned, effort, distinct)
    for decoder in found:
        decoder.cpu().double().eval()
    return found


def _fit(
    data: TrainingData,
    columns: NDArray[np.int64],
    generator: torch.Generator,
    groups: NDArray | None,
    seconds: float | None,
    tuned: Sequence[float | None] | None,
    effort: float,
) -> MeasuredDecoder:
    """One decoder, whatever it is."""
    if data.config.linear:
        return fit_decoder(data, columns, generator, groups=groups, seconds=seconds)[0]
    net = new_decoder(data, len(columns))
    options: dict[str, Any] = {"seconds": seconds, "tuned": tuned, "effort": effort}
    return _fit_networks([net], data, columns[None], generator, **options)[0]


def held_out_losses(
    data: TrainingData, panels: Sequence[NDArray[np.int64]], seed: int
) -> NDArray[np.float64]:
    """The lowest loss on held-out rows of a network on each panel, without keeping the networks."""
    found = np.full(len(panels), np.inf)

    def keep(members: list[int], nets: list[nn.Module], columns: Columns, **options: Any) -> None:
        trained = _train_networks(nets, data, columns, factor=_unit(data, columns)[1], **options)
        if trained.lowest is not None:
            found[members] = trained.lowest.double().cpu().numpy()

    config = data.config
    with (
        for_operations(config.values_per_operation(max(data.out, *map(len, panels)))),
        enough_memory(data.device, config.batch_size),
        products(data.precision),
    ):
        _together(data, panels, seed, keep, effort=0.5)  # enough for a comparison
    return found


def _fit_together(
    data: TrainingData,
    panels: Sequence[NDArray[np.int64]],
    seed: int,
    seconds: float | None,
    tuned: Sequence[float | None] | None,
    effort: float,
    distinct: bool,
) -> list[MeasuredDecoder]:
    """Networks of as many inputs as one; on a CPU, some of them on each core."""
    found: dict[int, MeasuredDecoder] = {}

    def fit(members: list[int], nets: list[nn.Module], columns: Columns, **options: Any) -> None:
        own = None if tuned is None else [tuned[member] for member in members]
        decoders = _fit_networks(nets, data, columns, seconds=seconds, tuned=own, **options)
        found.update(zip(members, decoders, strict=True))

    _together(data, panels, seed, fit, distinct=distinct, effort=effort)
    return [found[at] for at in range(len(panels))]


def _together(
    data: TrainingData,
    panels: Sequence[NDArray[np.int64]],
    seed: int,
    train: Callable[..., None],
    *,
    distinct: bool = False,
    **options: Any,
) -> None:
    """Call ``train`` with new networks for the panels of each share.

    All start from the same weights, or each from its own, whatever the shares are.
    """
    shares, starts = [], []
    for members in _shares(panels, data):
        with seeded(seed, data.device) as generator:
            net = new_decoder(data, len(panels[members[0]]))
        nets = [net, *(copy.deepcopy(net) for _ in members[1:])]
        for at, member in enumerate(members if distinct else []):
            with seeded(seed + member, data.device):
                nets[at] = new_decoder(data, len(panels[member]))
        shares.append(members)
        starts.append((nets, generator))

    def run(at: int) -> None:
        members, (nets, generator) = shares[at], starts[at]
        columns = np.stack([panels[member] for member in members])
        with torch.enable_grad():
            train(members, nets, columns, generator=generator, together=True, **options)

    if data.device.type == "cpu":
        mapped(run, range(len(shares)))
    else:
        for at in range(len(shares)):
            run(at)


def _shares(panels: Sequence[NDArray[np.int64]], data: TrainingData) -> list[list[int]]:
    """Panels that are trained as one: of the same size, on a CPU some for each core.

    Short steps are not shared between cores: Python would have to run both at once.
    """
    width = data.out
    if not isinstance(data.config.decoder, str) and not callable(data.config.decoder):
        width = max(width, *hidden_widths(data.config.decoder))
    sizes: dict[int, list[int]] = {}
    for at, panel in enumerate(panels):
        sizes.setdefault(len(panel), []).append(at)
    shares = []
    for members in sizes.values():
        parts, values = 1, data.config.batch_size * width * len(members)
        if data.device.type == "cpu":
            parts = max(min(own_cores(), len(members), values // SHARED), -(-values // CACHED), 1)
        shares += [part.tolist() for part in np.array_split(np.array(members), parts)]
    return shares


def fit_decoder(
    data: TrainingData,
    columns: NDArray[np.int64],
    generator: torch.Generator,
    *,
    hold_out: bool = False,
    groups: NDArray | None = None,
    seconds: float | None = None,
    checkpoint: Checkpoint | None = None,
) -> tuple[MeasuredDecoder, History]:
    """A new decoder for these columns, and a row of history per epoch.

    Exact decoders use all rows, without the held-out ones if ``hold_out``; a network is trained on
    the training rows to its best held-out loss.
    """
    config = data.config
    if config.linear and data.loss.name == "mse":
        source, stats, targets, weights = _rows_to_fit(data, hold_out)
        options: dict[str, Any] = {"ridge": config.ridge, "device": data.device}
        linear = fit_linear(source, columns, stats, targets=targets, weights=weights, **options)
        fill = torch.from_numpy(data.stats.mean[columns])
        return MeasuredDecoder(linear, fill=fill, known=data.known(columns)), []
    likely = data.loss.name in LIKELIHOODS and data.targets is not None
    if config.linear and likely and fits(data.source, len(columns)):
        return _exact_likelihood(data, columns, hold_out, groups)
    net = new_decoder(data, len(columns))
    history: History = []
    decoder = _fit_networks(
        [net],
        data,
        columns[None],
        generator,
        seconds=seconds,
        checkpoint=checkpoint,
        history=history,
    )
    return decoder[0], history


def _fit_networks(
    nets: list[nn.Module],
    data: TrainingData,
    columns: NDArray[np.int64],
    generator: torch.Generator,
    *,
    seconds: float | None = None,
    checkpoint: Checkpoint | None = None,
    history: History | None = None,
    **options: Any,
) -> list[MeasuredDecoder]:
    """Train new networks, one for each row of ``columns``, on inputs of unit variance.

    Columns that are returned as measured do not count in the loss.
    """
    scale, factor = _unit(data, columns)
    trained = _train_networks(
        nets, data, columns, generator, checkpoint, factor, seconds=seconds, **options
    )
    if history is not None:
        history += trained.history
    found = []
    for at, net in enumerate(trained.nets):
        decoder = _measured(data, net, columns[at], scale[at])
        decoder.epochs, decoder.tuned = trained.epochs[at], trained.tuned[at]
        found.append(decoder)
    return found


def _unit(data: TrainingData, columns: Columns) -> tuple[Tensor, Tensor]:
    """The spread of these columns, and what makes it that of the inputs of networks."""
    spread = torch.from_numpy(np.sqrt(data.inputs.variance[columns]))
    scale = torch.where(spread > 0, spread, 1.0)
    return scale, (data.scale / scale).float()


def finetune_decoder(
    data: TrainingData,
    trained: nn.Module,
    features: NDArray[np.int64],
    generator: torch.Generator,
    *,
    train: bool = True,
    checkpoint: Checkpoint | None = None,
) -> tuple[MeasuredDecoder, History]:
    """Fine-tune a decoder that was trained with a selector; its input i is now features[i]."""
    columns = np.sort(features)
    history: History = []
    if train:
        found = _train_networks(
            [trained], data, features[None], generator, checkpoint, finetune=True
        )
        history = found.history
    order = torch.from_numpy(np.argsort(np.argsort(features)))  # position of node i in columns
    scale = torch.full((len(columns),), data.scale, dtype=torch.float64)
    return _measured(data, trained, columns, scale, order), history


@dataclass(frozen=True, eq=False)
class Trained:
    """Trained networks, the epochs of each to its lowest loss, and what held-out rows chose."""

    nets: list[nn.Module]
    history: History
    epochs: list[int | None]
    tuned: list[float | None]
    lowest: Tensor | None  # loss of each on held-out rows


def _train_networks(  # noqa: PLR0912, PLR0915 (the loop reads top to bottom)
    nets: list[nn.Module],
    data: TrainingData,
    columns: NDArray[np.int64],
    generator: torch.Generator,
    checkpoint: Checkpoint | None = None,
    factor: Tensor | None = None,
    *,
    finetune: bool = False,
    seconds: float | None = None,
    tuned: Sequence[float | None] | None = None,
    together: bool = False,
    effort: float = 1.0,
) -> Trained:
    """Train networks on these columns, times ``factor``, each to its best held-out state.

    The learning rate rises, then decays to zero by a cosine: within fewer epochs, from the best
    state, once patience has run out, and within ``seconds``; each network by itself. "trained" in
    the history is the number of epochs that led to a state.
    """
    began = time.perf_counter()
    config, device = data.config, data.device
    one = len(nets) == 1 and not (together and config.dropout)
    train, valid = (
        None if rows is None else rows.with_inputs(columns[0] if one else columns, factor)
        for rows in (data.train, data.valid)
    )
    assert train is not None
    if one and device.type == "cuda":
        padded(nets[0])
    network = nets[0].to(device) if one else DecoderStack(nets).to(device)
    if isinstance(network, DecoderStack) and device.type == "cpu":
        network.seed(generator.initial_seed())
    broadcast_tensors(*network.state_dict().values())
    plan = _Plan.of(data, finetune, effort)
    optimizer = Adam(*plan.groups(network))
    rates = list(optimizer.rates)
    decays = [CosineDecay(0, plan.epochs, warm_up=plan.warm_up) for _ in nets]
    best = KeepBestMembers(plan.patience)
    state = TrainingState(network, optimizer, best, generator, device)
    history = state.history
    if checkpoint is not None and (saved := checkpoint.load("decoder")) is not None:
        with checkpoint.reading("decoder"):
            state.restore(saved)
            first, last, start, *warm_up = saved[0]["decay"]
            decays = [CosineDecay(int(first), int(last), float(start), *map(int, warm_up))]
            if decays[0].last > plan.epochs:
                raise ValueError(f"training until epoch {last} of {plan.epochs}")
    # small networks gain nothing from mixed precision
    run = partial(run_mixed, network) if data.mixed and one else network
    losses = MemberLosses(data.loss, columns if data.keeps_measured else None, data.out, device)

    def forward(x: Tensor) -> Tensor:
        return run(x)[None] if one else run(x)

    def backward(batch: Batch) -> Tensor:
        each = losses(forward(batch.x), batch.target, batch.observed)
        each.sum().backward()
        return each.detach().mean()

    size = config.batch_size
    fast = fast_epochs(network, train, optimizer, data.loss, batch_size=size, backward=backward)
    with epoch_bar("decoder", plan.epochs, config.progress and is_rank0()) as bar:
        while len(history) < max(decay.last for decay in decays):
            epoch = len(history) + 1
            if world_size() > 1:  # dropout differs between ranks
                torch.manual_seed(hash((generator.initial_seed(), epoch, rank())))
            spent = 0.0 if seconds is None else broadcast((time.perf_counter() - began) / seconds)
            if spent >= 1 and history:
                break
            factors = [d.factor(epoch, spent) if epoch <= d.last else 0.0 for d in decays]
            optimizer.rates[:] = [rate * max(factors) for rate in rates]
            if optimizer.shares is not None or len(set(factors)) > 1:  # one has stalled
                optimizer.set_shares(factors)
            network.train()
            if fast is None:
                value = train_epoch(backward, train, optimizer, size, generator)
            else:
                value = fast.epoch(list(train.shuffled_positions(size, generator)))
            network.eval()
            held_out = None
            if valid is not None and (plan.keeps_best or epoch == plan.epochs):
                held_out = evaluate(forward, valid, losses)
            value, held_out = broadcast((value, held_out))
            # a shortened decay starts from the best network
            trained = [epoch - plan.patience if d.shortened else epoch for d in decays]
            mean = None if held_out is None else float(held_out.mean())
            row = {"epoch": epoch, "loss": value, "val_loss": mean, "trained": trained[0]}
            history.append(row)
            bar(row)
            if held_out is not None and plan.keeps_best:
                stalled = best.seen_members(held_out, network, trained)
                new = [now and not d.shortened for now, d in zip(stalled, decays, strict=True)]
                if any(new):
                    best.restore_members(network, new)
                for decay in compress(decays, new):
                    decay.shorten(epoch, max(plan.patience, (epoch - plan.patience) // 2))
            if not np.isfinite(value):
                break
            if checkpoint is not None and checkpoint.due():
                state.save(checkpoint, "decoder", decay=astuple(decays[0]))
    best.restore(network)
    network.eval()
    if one:
        unpadded(network)
    chosen: list[float | None] = [None] * len(nets)
    lowest = best.lowest
    solved = plan.short and data.loss.name == "mse" and train.complete
    if solved or isinstance(network, DecoderStack) or (plan.short and data.loss.smoothing):
        stack = network if isinstance(network, DecoderStack) else DecoderStack(nets).eval()
        if solved:
            held = None if valid is None else partial(evaluate, batches=valid, loss=losses)
            skip = data.targets is not None or data.keeps_measured
            chosen, lowest = solve_last(stack, train, held, lowest, tuned, skip=skip)
        elif plan.short and data.loss.smoothing:
            chosen = calibrate(stack, valid, tuned)
        nets = stack.members()
    unit = data.out_scale ** (data.loss.degree or 0)  # losses in the data's own units
    for entry in history:
        entry["loss"] *= unit
        entry["val_loss"] = None if entry["val_loss"] is None else entry["val_loss"] * unit
    epochs: list[int | None] = [*best.epochs] or [None] * len(nets)
    lowest = None if lowest is None else lowest * unit
    return Trained(nets, history, epochs, chosen, lowest)


@dataclass(frozen=True)
class _Plan:
    """How long and how fast to train networks.

    With squared error, or with smoothed labels and batch normalisation, a short cycle to a high
    rate ends at least as low as one ten times as long at a low rate; wide layers need lower rates.
    """

    short: bool
    rate: float
    epochs: int
    warm_up: int
    patience: int
    scaled: bool  # rates fall with the width of a layer
    # with smoothed labels, networks predict best long after their held-out loss was lowest
    keeps_best: bool

    @classmethod
    def of(cls, data: TrainingData, finetune: bool, effort: float) -> "_Plan":
        config, rows = data.config, len(data.train)
        classes = data.loss.smoothing > 0 and config.norm == "batch"
        short = not finetune and not config.linear and not callable(config.decoder)
        short = short and (classes or data.loss.name in SHORT)
        auto = isinstance(config.learning_rate, str)
        rate = config.decoder_rate * (FINETUNE_RATE if finetune else 1.0)
        if short and auto:
            rate = RATE if data.loss.name == "mse" else CLASS_RATE
        larger = config.batch_size / USUAL_BATCH if short and classes else 1.0
        if auto:  # larger batches: fewer steps at a higher rate
            rate *= larger**0.5
        least = CLASS_STEPS / larger if classes else SHORT_STEPS
        steps = least * max(1.0, rows / MANY_ROWS) ** 0.7 if short else REFIT_STEPS
        epochs = config.refit_epochs_for(rows, round(effort * steps))
        if short and classes and isinstance(config.refit_epochs, str):
            epochs = min(epochs, round(effort * MOST_CLASS_EPOCHS))
        patience = PATIENCE if config.patience is None else config.patience
        warm_up = max(1, round(WARM_UP * epochs)) if short and epochs > 1 else 0
        keeps_best = not (short and classes) or config.patience is not None
        return cls(short, rate, epochs, warm_up, patience, short and auto, keeps_best)

    def groups(self, network: nn.Module) -> list[tuple[list[Tensor], float]]:
        """Parameters by learning rate."""
        wide: dict[int, float] = {}
        for layer in network.modules() if self.scaled else ():
            if isinstance(layer, (nn.Linear, PaddedLinear, LinearStack)):
                wide[id(layer.weight)] = min(1.0, NARROW / layer.weight.shape[-1])
        found: dict[float, list[Tensor]] = {}
        for parameter in network.parameters():
            found.setdefault(wide.get(id(parameter), 1.0), []).append(parameter)
        return [(parameters, self.rate * factor) for factor, parameters in found.items()]


class MemberLosses:
    """The loss of each of several networks, without the columns that each knows."""

    def __init__(
        self, loss: Loss, known: NDArray[np.int64] | None, out: int, device: torch.device
    ) -> None:
        self.loss, self.known, self.weight = loss, None, None
        if known is not None:
            self.known = torch.from_numpy(known).to(device)
            ones = torch.ones(len(known), 1, out, device=device, dtype=torch.float32)
            self.weight = ones.scatter_(2, self.known[:, None], 0.0)

    def __call__(self, output: Tensor, target: Tensor, observed: Tensor | None = None) -> Tensor:
        """Losses (m) of m x n x out outputs."""
        if self.loss.name == "mse" and self.loss.mean is not None and observed is None:
            return MeanSquares.apply(output, target, self.weight)
        if self.loss.name == "cross_entropy":
            classes = target.expand(len(output), *target.shape).flatten(0, 1)  # or probabilities
            each = self.loss.entries(output.flatten(0, 1), classes).view(len(output), -1)
            return each.mean(1) if observed is None else each @ (observed / observed.sum())
        own = [self.loss] * len(output)
        if self.known is not None:
            own = [self.loss.apart_from(known) for known in self.known]
        return torch.stack(
            [one(part, target, observed) for one, part in zip(own, output, strict=True)]
        )


class MeanSquares(torch.autograd.Function):
    """Mean squared error of m x n x d outputs, each entry counted or not; in as few passes."""

    @staticmethod
    def forward(ctx: Any, output: Tensor, target: Tensor, weight: Tensor | None) -> Tensor:
        gap = output - target
        if weight is not None:
            gap.mul_(weight)
        ctx.gap = gap
        return torch.linalg.vector_norm(gap, dim=(1, 2)).square_() / gap[0].numel()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        gap: Tensor = ctx.gap
        del ctx.gap
        return gap.mul_((2 / gap[0].numel()) * grad[:, None, None]), None, None


def train_epoch(
    backward: Backward,
    batches: Batches,
    optimizer: Adam,
    batch_size: int,
    generator: torch.Generator,
) -> float:
    """Train on all rows once, in random order; the mean loss over the batches.

    ``backward`` leaves the gradients of a batch in the parameters and returns its loss. Each rank
    takes its rows of a batch, and gradients are averaged over all of them.
    """
    total = torch.zeros((), device=batches.device)
    steps = 0
    for batch in batches.shuffled(batch_size, generator):
        optimizer.zero_grad()
        value = backward(batch if len(batch.x) else _filled(batch))
        if batches.several:
            value = _average_gradients(optimizer.parameters, value, _entries(batch))
        optimizer.step()
        total += value  # no .item(): it would wait for the GPU at every step
        steps += 1
    return total.item() / steps


@torch.no_grad()
def evaluate(
    forward: Callable[[Tensor], Tensor], batches: Batches, loss: Loss | MemberLosses
) -> Tensor:
    """Mean loss over all rows, of one network or of each."""
    total, weight = torch.zeros((), dtype=torch.float64), 0.0
    for batch in batches.in_order():
        entries = _entries(batch)
        value = loss(forward(batch.x), batch.target, batch.observed)
        total, weight = total + value.double().cpu() * entries, weight + entries
    count = torch.tensor(weight, dtype=torch.float64)
    all_reduce(total)
    all_reduce(count)
    return total / count.clamp_min(1)


def _average_gradients(parameters: Sequence[Tensor], loss: Tensor, entries: float) -> Tensor:
    """Average gradients over the entries of all ranks, in one all-reduce; the mean loss."""
    grads = [parameter.grad for parameter in parameters if parameter.grad is not None]
    parts = [*(grad.flatten() for grad in grads), loss.reshape(1), torch.ones_like(loss.reshape(1))]
    flat = torch.cat(parts).mul_(entries)
    all_reduce(flat)
    flat /= flat[-1].clone()
    for grad, mean in zip(grads, flat[:-2].split([len(part) for part in parts[:-2]]), strict=True):
        grad.copy_(mean.view_as(grad))
    return flat[-2]


def _filled(batch: Batch) -> Batch:
    """Two rows of zeros instead of none: a rank without rows must still draw the noise."""
    x, target, observed = batch
    rows = x.new_zeros(2, *x.shape[1:])
    return Batch(
        rows,
        rows if target is x else target.new_zeros(2, *target.shape[1:]),
        None if observed is None else observed.new_ones(2, *observed.shape[1:]),
    )


def _entries(batch: Batch) -> float:
    """Number of entries that a batch's loss averages: its rows, or the observed values."""
    return float(len(batch.x) if batch.observed is None else batch.observed.sum())


def _measured(
    data: TrainingData,
    net: nn.Module,
    columns: NDArray[np.int64],
    scale: Tensor,
    order: Tensor | None = None,
) -> MeasuredDecoder:
    return MeasuredDecoder(
        net,
        fill=torch.from_numpy(data.stats.mean[columns]),
        center=data.center[columns].double(),
        scale=scale.double(),
        order=order,
        out_center=data.out_center.double(),
        out_scale=torch.tensor(data.out_scale, dtype=torch.float64),
        offset=data.offset.double(),
        log_inputs=data.log_inputs,
        link=data.loss.link,
        known=data.known(columns),
    )


def _rows_to_fit(
    data: TrainingData, hold_out: bool
) -> tuple[Source, Moments, Tensor | None, Tensor | None]:
    """All rows, or the training rows, with their moments, targets and weights."""
    if not hold_out:
        return data.source, data.stats, data.targets, data.weights
    index = data.train.index
    source = RowView(data.source, index)
    targets, weights = (None if x is None else x[index] for x in (data.targets, data.weights))
    return source, moments(source, data.device), targets, weights


def _exact_likelihood(
    data: TrainingData, columns: NDArray[np.int64], hold_out: bool, groups: NDArray | None
) -> tuple[MeasuredDecoder, History]:
    """The exact linear predictor, and its losses as a history of one row."""
    source, stats, targets, weights = _rows_to_fit(data, hold_out)
    assert targets is not None
    if hold_out and groups is not None:
        groups = groups[data.train.index]
    linear = fit_likelihood(
        source,
        columns,
        stats,
        targets,
        data.out,
        data.given_loss,
        ridge=data.config.ridge,
        groups=groups,
        weights=weights,
        device=float64_device(data.device),
    )
    fill = torch.from_numpy(stats.mean[columns])
    decoder = MeasuredDecoder(linear, fill=fill)
    held_out = data.valid.index if hold_out and data.valid is not None else None
    value = None if held_out is None else _loss_of(decoder, data, held_out, columns)
    loss = _loss_of(decoder, data, np.arange(data.source.shape[0]), columns)
    decoder.link = data.loss.link
    return decoder, [{"epoch": 1, "loss": loss, "val_loss": value, "trained": 1}]


@torch.no_grad()
def _loss_of(
    decoder: MeasuredDecoder,
    data: TrainingData,
    index: NDArray[np.int64],
    columns: NDArray[np.int64],
) -> float:
    """The loss of some rows, before the link."""
    assert data.targets is not None
    blocks = [decoder(x[:, columns]) for _, x in read_blocks(RowView(data.source, index))]
    return float(data.given_loss(torch.cat(blocks), data.targets[index].cpu()))


def stops_after(config: TrainingConfig, row: dict[str, Any]) -> bool:
    """Call ``on_epoch`` with a row of history; True, and nothing else, stops training."""
    answer = None if config.on_epoch is None else config.on_epoch(row)
    return isinstance(answer, (bool, np.bool_)) and bool(answer)


@contextmanager
def epoch_bar(title: str, epochs: int, shown: bool) -> Iterator[EpochBar]:
    """Show epochs, temperature, loss, mean max probability, distinct features and time left."""
    if not shown:
        yield lambda row: None
        return
    from rich.console import Console  # noqa: PLC0415 (slow, and most fits show nothing)

    with progress_shown(title, Console(), dense=True) as update:

        def show(row: dict[str, Any]) -> None:
            parts = [title, f"loss {row['loss']:.3g}"]
            if row.get("val_loss") is not None:
                parts.append(f"held out {row['val_loss']:.3g}")
            if "temperature" in row:
                parts.insert(1, f"T {row['temperature']:.2g}")
                parts.append(f"max p {row['mean_max_probability']:.3f}")
                parts.append(f"{row['distinct']} distinct")
            update(" ".join(parts), row["epoch"] / epochs)

        yield show
