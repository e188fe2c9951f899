"""The decoder that a user gets: fitted on the final, discrete choice of features."""

import time
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fewer.data import RowView, moments, read_blocks
from fewer.data.batches import Batches
from fewer.distributed import broadcast, is_rank0, rank, world_size
from fewer.nn import ConcreteNetwork, Loss, MeasuredDecoder
from fewer.nn.padded import padded, unpadded
from fewer.train.adam import Adam
from fewer.train.averaging import same_everywhere
from fewer.train.checkpoint import Checkpoint
from fewer.train.cooling import CosineDecay
from fewer.train.device import float64_device
from fewer.train.graphs import graphed_epochs
from fewer.train.least_squares import fit_linear
from fewer.train.logistic import fit_classifier, fits
from fewer.train.loop import evaluate, train_epoch
from fewer.train.problem import Problem, new_decoder
from fewer.train.progress import epoch_bar
from fewer.train.settings import TrainingConfig
from fewer.train.state import Training
from fewer.train.stopping import KeepBest

__all__ = ["refit_decoder", "train_decoder"]

FINETUNE_RATE = 0.1  # of the first learning rate: the decoder is nearly there
PATIENCE = 30


def refit_decoder(
    problem: Problem,
    trained: nn.Module,
    features: np.ndarray,
    *,
    conflicts: int,
    generator: torch.Generator,
    hold_out: bool = False,
    groups: np.ndarray | None = None,
    seconds: float | None = None,
    kept: Checkpoint | None = None,
) -> tuple[MeasuredDecoder, list[dict[str, Any]]]:
    """Fit the decoder for these features as ``settings.refit`` asks.

    A linear decoder under squared error or cross-entropy is solved exactly, over all rows
    (without the held-out ones if ``hold_out``); any other is trained on the training rows and
    kept at its best held-out loss, for ``seconds`` at most. Rows with the same label in
    ``groups`` stay together where a penalty is chosen. Where a state is ``kept``, training goes
    on from it.
    """
    settings, stats = problem.settings, problem.stats
    mode = settings.refit
    if mode == "none" and conflicts:
        mode = "finetune"  # a node that changed its feature needs a decoder that knows
    columns = problem.constraints.complete(features)
    if len(columns) > settings.k:
        mode = "scratch"  # features measured together bring inputs that the old decoder lacks
    fill = torch.from_numpy(stats.mean[columns])
    if mode == "scratch" and settings.linear and problem.loss.name == "mse":
        source, targets = problem.source, problem.targets
        if hold_out:
            source = RowView(source, problem.train.index)
            targets = None if targets is None else targets[problem.train.index]
            stats = moments(source, problem.device)
        exact = fit_linear(
            source, columns, stats, targets=targets, ridge=settings.ridge, device=problem.device
        )
        return MeasuredDecoder(exact, fill=fill), []
    labels = problem.loss.name == "cross_entropy" and problem.targets is not None
    if mode == "scratch" and settings.linear and labels and fits(problem.source, len(columns)):
        return _classifier(problem, columns, hold_out, groups)
    center = problem.center[columns]
    scale = torch.full((len(columns),), problem.scale, dtype=torch.float64)
    spread = torch.from_numpy(np.sqrt(problem.inputs.variance[columns]))
    order = torch.from_numpy(np.argsort(np.argsort(features)))  # node i's place among columns
    history: list[dict[str, Any]] = []
    if mode == "scratch":
        net: nn.Module = new_decoder(problem, len(columns))
        order = torch.arange(len(columns))
        scale = torch.where(spread > 0, spread, 1.0)
    else:
        net = trained
    if mode != "none":
        rescale = _InputScale((problem.scale / scale)[order].float())
        node_columns = columns[order.numpy()]
        valid = problem.valid
        history = train_decoder(
            net,
            rescale,
            problem.train.with_inputs(node_columns),
            None if valid is None else valid.with_inputs(node_columns),
            problem.loss,
            settings,
            mixed=problem.mixed,
            generator=generator,
            finetune=mode == "finetune",
            seconds=seconds,
            kept=kept,
        )
        unit = problem.out_scale ** (problem.loss.degree or 0)
        for row in history:
            row["loss"] *= unit
            row["val_loss"] = None if row["val_loss"] is None else row["val_loss"] * unit
    decoder = MeasuredDecoder(
        net,
        fill=fill,
        center=center.double(),
        scale=scale.double(),
        order=order,
        out_center=problem.out_center.double(),
        out_scale=torch.tensor(problem.out_scale, dtype=torch.float64),
        offset=problem.offset.double(),
        log_inputs=problem.log_inputs,
        link=problem.loss.link,
    )
    return decoder, history


def _classifier(
    problem: Problem, columns: np.ndarray, hold_out: bool, groups: np.ndarray | None
) -> tuple[MeasuredDecoder, list[dict[str, Any]]]:
    """The linear classifier at its minimum, and its losses as a history of one row."""
    source, stats, codes = problem.source, problem.stats, problem.targets
    assert codes is not None
    held = problem.valid if hold_out else None
    if held is not None:
        index = problem.train.index
        source, codes = RowView(source, index), codes[index]
        stats = moments(source, problem.device)
        groups = None if groups is None else groups[index]
    line = fit_classifier(
        source,
        columns,
        stats,
        codes,
        problem.out,
        ridge=problem.settings.ridge,
        groups=groups,
        device=float64_device(problem.device),
    )
    fill = torch.from_numpy(stats.mean[columns])
    decoder = MeasuredDecoder(line, fill=fill, link=problem.loss.link)
    value = None if held is None else _log_loss(decoder, problem, held.index, columns)
    loss = _log_loss(decoder, problem, None, columns)
    return decoder, [{"epoch": 1, "loss": loss, "val_loss": value, "trained": 1}]


@torch.no_grad()
def _log_loss(
    decoder: MeasuredDecoder, problem: Problem, index: np.ndarray | None, columns: np.ndarray
) -> float:
    assert problem.targets is not None
    source = problem.source if index is None else RowView(problem.source, index)
    codes = problem.targets if index is None else problem.targets[index]
    total = 0.0
    for rows, x in read_blocks(source):
        chance = decoder(x[:, columns]).gather(1, codes[rows].cpu()[:, None])
        total -= float(chance.clamp_min(torch.finfo(chance.dtype).tiny).log().sum())
    return total / len(codes)


class _InputScale(nn.Module):
    """Multiply each input by its own constant, so that a fresh network sees unit variances."""

    def __init__(self, factor: Tensor) -> None:
        super().__init__()
        self.register_buffer("factor", factor)

    factor: Tensor

    def forward(self, x: Tensor) -> Tensor:
        """Scale n x k inputs."""
        return x * self.factor


def train_decoder(
    net: nn.Module,
    inputs: nn.Module,
    train: Batches,
    valid: Batches | None,
    loss: Loss,
    settings: TrainingConfig,
    *,
    mixed: bool,
    generator: torch.Generator,
    finetune: bool = False,
    seconds: float | None = None,
    kept: Checkpoint | None = None,
) -> list[dict[str, Any]]:
    """Train ``net`` in place on measured values; keep its state at the best held-out loss.

    The learning rate follows half a cosine to zero, so that the last epochs settle: sooner, from
    the best state, where the held-out loss has not improved for as many epochs as patience has;
    and where ``seconds`` are too few for all epochs, it falls with the time. A row of the history
    says for how many epochs the network of that row was trained.
    """
    began = time.perf_counter()
    there = train.device.type == "cuda"
    network = ConcreteNetwork(inputs, padded(net) if there else net, mixed=mixed)
    network.to(train.device)
    same_everywhere(network)
    cooling = CosineDecay(settings.refit_epochs_for(len(train)))
    rate = settings.decoder_rate * (FINETUNE_RATE if finetune else 1.0)
    optimizer = Adam((net.parameters(), rate))
    patience = PATIENCE if settings.patience is None else settings.patience
    best = KeepBest(patience)
    graphed = graphed_epochs(network, train, optimizer, loss, settings.batch_size)
    training = Training(network, optimizer, best, generator, train.device)
    history = training.history
    begun = None if kept is None else kept.load("decoder")
    if begun is not None:
        training.restore(begun)
        cooling.restore(begun[0]["cooling"])
    with epoch_bar("decoder", cooling.last, settings.progress and is_rank0()) as bar:
        while len(history) < cooling.last:
            epoch = len(history) + 1
            if world_size() > 1:  # what each draws for its own rows: dropout
                torch.manual_seed(hash((generator.initial_seed(), epoch, rank())))
            spent = 0.0
            if seconds is not None:
                spent = broadcast((time.perf_counter() - began) / seconds)
            if spent >= 1 and history:
                break
            optimizer.rates[0] = rate * cooling.share(epoch, spent)
            if graphed is not None:
                value = graphed.run(generator)
            else:
                value = train_epoch(
                    network,
                    train,
                    optimizer,
                    loss,
                    batch_size=settings.batch_size,
                    generator=generator,
                )
            held_out = None if valid is None else evaluate(network, valid, loss)
            value, held_out = broadcast((value, held_out))
            # since the end was brought forward, which began with the best network
            trained = epoch - patience if cooling.hurried else epoch
            row = {"epoch": epoch, "loss": value, "val_loss": held_out, "trained": trained}
            history.append(row)
            bar(row)
            stalled = held_out is not None and best.seen(held_out, network)
            if stalled and not cooling.hurried:
                best.restore(network)
                cooling.hurry(epoch, max(patience, (epoch - patience) // 2))
            if not np.isfinite(value):
                break
            if kept is not None and kept.due():
                training.save(kept, "decoder", cooling=cooling.state())
    best.restore(network)
    unpadded(net)
    return history
