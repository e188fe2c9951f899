"""Decoders trained by gradient descent on measured columns, in one plain loop."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import astuple, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fewer._progress import shown as progress_shown
from fewer._threads import for_operations
from fewer.cuda import fast_epochs, padded, unpadded
from fewer.data import Moments, RowView, Source, moments, read_blocks
from fewer.data.batches import Batch, Batches
from fewer.distributed import all_reduce, broadcast, broadcast_tensors, is_rank0, rank, world_size
from fewer.nn import Loss, MeasuredDecoder
from fewer.nn.concrete import run_mixed
from fewer.train.checkpoint import Checkpoint, TrainingState
from fewer.train.config import TrainingConfig
from fewer.train.device import enough_memory, float64_device, products, seeded
from fewer.train.linear import fit_classifier, fit_linear, fits
from fewer.train.optimize import Adam, CosineDecay, KeepBest
from fewer.train.training_data import TrainingData, new_decoder, prepare

__all__ = ["epoch_bar", "finetune_decoder", "fit_decoder", "stops_after", "train_decoder"]

FINETUNE_RATE = 0.1  # times the initial learning rate: the decoder needs little change
PATIENCE = 30

History = list[dict[str, Any]]
Backward = Callable[[Batch], Tensor]
EpochBar = Callable[[dict[str, Any]], None]


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
        What to predict (class numbers, or n x m values); None is the rows themselves.
    out : int, default=None
        Number of outputs; None is d.
    groups : array of length n, default=None
        Rows with the same label are held out together.
    seconds : float, default=None
        Time limit for training a network; the learning rate decays accordingly.

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
    data = prepare(source, stats, config, loss, seed, targets, out, groups)
    known = torch.from_numpy(columns)
    if targets is None:
        data = replace(data, loss=data.loss.apart_from(known.to(data.device)))
    with (
        for_operations(config.values_per_operation(max(data.out, source.shape[1]))),
        enough_memory(data.device, config.batch_size),
        products(data.precision),
        seeded(seed, data.device) as generator,
    ):
        decoder, history = fit_decoder(data, columns, generator, groups=groups, seconds=seconds)
    decoder = decoder.cpu().double().eval()
    decoder.known = known if targets is None else None
    if history and history[0]["val_loss"] is not None:
        decoder.epochs = min(history, key=lambda row: row["val_loss"])["trained"]
    return decoder


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
        source, stats, targets = _rows_to_fit(data, hold_out)
        linear = fit_linear(
            source, columns, stats, targets=targets, ridge=config.ridge, device=data.device
        )
        return MeasuredDecoder(linear, fill=torch.from_numpy(data.stats.mean[columns])), []
    labels = data.loss.name == "cross_entropy" and data.targets is not None
    if config.linear and labels and fits(data.source, len(columns)):
        return _exact_classifier(data, columns, hold_out, groups)
    net = new_decoder(data, len(columns))
    spread = torch.from_numpy(np.sqrt(data.inputs.variance[columns]))
    scale = torch.where(spread > 0, spread, 1.0)  # a new network sees unit variances
    factor = (data.scale / scale).float()
    history = _train_network(net, data, columns, generator, checkpoint, factor, seconds=seconds)
    return _measured(data, net, columns, scale), history


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
        history = _train_network(trained, data, features, generator, checkpoint, finetune=True)
    order = torch.from_numpy(np.argsort(np.argsort(features)))  # position of node i in columns
    scale = torch.full((len(columns),), data.scale, dtype=torch.float64)
    return _measured(data, trained, columns, scale, order), history


def _train_network(  # noqa: PLR0915 (the loop reads top to bottom)
    net: nn.Module,
    data: TrainingData,
    columns: NDArray[np.int64],
    generator: torch.Generator,
    checkpoint: Checkpoint | None,
    factor: Tensor | None = None,
    *,
    finetune: bool = False,
    seconds: float | None = None,
) -> History:
    """Train ``net`` in place on these columns, times ``factor``, to its best held-out state.

    The learning rate decays to zero by a cosine: within fewer epochs, from the best state, once
    patience has run out, and within ``seconds``. "trained" in the history is the number of epochs
    that led to a state.
    """
    began = time.perf_counter()
    config, loss = data.config, data.loss
    train = data.train.with_inputs(columns, factor)
    valid = None if data.valid is None else data.valid.with_inputs(columns, factor)
    if data.device.type == "cuda":
        padded(net)
    net.to(data.device)
    broadcast_tensors(*net.state_dict().values())
    rate = config.decoder_rate * (FINETUNE_RATE if finetune else 1.0)
    optimizer = Adam((net.parameters(), rate))
    decay = CosineDecay(0, config.refit_epochs_for(len(train)))
    patience = PATIENCE if config.patience is None else config.patience
    best = KeepBest(patience)
    state = TrainingState(net, optimizer, best, generator, data.device)
    history = state.history
    if checkpoint is not None and (saved := checkpoint.load("decoder")) is not None:
        state.restore(saved)
        decay = CosineDecay(*saved[0]["decay"])

    forward = partial(run_mixed, net) if data.mixed else net

    def backward(batch: Batch) -> Tensor:
        value = loss(forward(batch.x), batch.target, batch.observed)
        value.backward()
        return value.detach()

    fast = fast_epochs(net, train, optimizer, loss, batch_size=config.batch_size, backward=backward)
    with epoch_bar("decoder", decay.last, config.progress and is_rank0()) as bar:
        while len(history) < decay.last:
            epoch = len(history) + 1
            if world_size() > 1:  # dropout differs between ranks
                torch.manual_seed(hash((generator.initial_seed(), epoch, rank())))
            spent = 0.0 if seconds is None else broadcast((time.perf_counter() - began) / seconds)
            if spent >= 1 and history:
                break
            optimizer.rates[0] = rate * decay.factor(epoch, spent)
            net.train()
            if fast is None:
                value = train_epoch(backward, train, optimizer, config.batch_size, generator)
            else:
                value = fast.epoch(list(train.shuffled_positions(config.batch_size, generator)))
            net.eval()
            held_out = None if valid is None else evaluate(forward, valid, loss)
            value, held_out = broadcast((value, held_out))
            # a shortened decay starts from the best network
            trained = epoch - patience if decay.shortened else epoch
            row = {"epoch": epoch, "loss": value, "val_loss": held_out, "trained": trained}
            history.append(row)
            bar(row)
            stalled = held_out is not None and best.seen(held_out, net)
            if stalled and not decay.shortened:
                best.restore(net)
                decay.shorten(epoch, max(patience, (epoch - patience) // 2))
            if not np.isfinite(value):
                break
            if checkpoint is not None and checkpoint.due():
                state.save(checkpoint, "decoder", decay=astuple(decay))
    best.restore(net)
    unpadded(net)
    unit = data.out_scale ** (loss.degree or 0)  # losses in the data's own units
    for entry in history:
        entry["loss"] *= unit
        entry["val_loss"] = None if entry["val_loss"] is None else entry["val_loss"] * unit
    return history


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
def evaluate(forward: Callable[[Tensor], Tensor], batches: Batches, loss: Loss) -> float:
    """Mean loss over all rows."""
    total = weight = 0.0
    for batch in batches.in_order():
        entries = _entries(batch)
        total += float(loss(forward(batch.x), batch.target, batch.observed)) * entries
        weight += entries
    sums = torch.tensor([total, weight], dtype=torch.float64)
    all_reduce(sums)
    total, weight = sums.tolist()
    return total / max(weight, 1.0)


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
    )


def _rows_to_fit(data: TrainingData, hold_out: bool) -> tuple[Source, Moments, Tensor | None]:
    """All rows, or the training rows, with their moments and targets."""
    if not hold_out:
        return data.source, data.stats, data.targets
    index = data.train.index
    source = RowView(data.source, index)
    targets = None if data.targets is None else data.targets[index]
    return source, moments(source, data.device), targets


def _exact_classifier(
    data: TrainingData, columns: NDArray[np.int64], hold_out: bool, groups: NDArray | None
) -> tuple[MeasuredDecoder, History]:
    """The exact linear classifier, and its losses as a history of one row."""
    source, stats, codes = _rows_to_fit(data, hold_out)
    assert codes is not None
    if hold_out and groups is not None:
        groups = groups[data.train.index]
    linear = fit_classifier(
        source,
        columns,
        stats,
        codes,
        data.out,
        ridge=data.config.ridge,
        groups=groups,
        device=float64_device(data.device),
    )
    fill = torch.from_numpy(stats.mean[columns])
    decoder = MeasuredDecoder(linear, fill=fill, link=data.loss.link)
    held_out = data.valid.index if hold_out and data.valid is not None else None
    value = None if held_out is None else _log_loss(decoder, data, held_out, columns)
    loss = _log_loss(decoder, data, np.arange(data.source.shape[0]), columns)
    return decoder, [{"epoch": 1, "loss": loss, "val_loss": value, "trained": 1}]


@torch.no_grad()
def _log_loss(
    decoder: MeasuredDecoder,
    data: TrainingData,
    index: NDArray[np.int64],
    columns: NDArray[np.int64],
) -> float:
    assert data.targets is not None
    codes = data.targets[index]
    total = 0.0
    for rows, x in read_blocks(RowView(data.source, index)):
        chance = decoder(x[:, columns]).gather(1, codes[rows].cpu()[:, None])
        total -= float(chance.clamp_min(torch.finfo(chance.dtype).tiny).log().sum())
    return total / len(codes)


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
