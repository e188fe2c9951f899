"""The paper's method: selector and decoder trained jointly by gradient descent."""

import copy
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import count
from typing import Any

import numpy as np
import torch
from torch import Tensor

import fewer.errors
from fewer._stored import misfit
from fewer._threads import for_operations
from fewer.constraints import Constraints, resolve
from fewer.cuda import fast_epochs, padded, unpadded
from fewer.data import Moments, Source
from fewer.data.batches import Batch
from fewer.data.moments import summarize
from fewer.distributed import broadcast, broadcast_tensors, is_rank0, on_rank0, rank, world_size
from fewer.errors import InputError, warn
from fewer.nn import ConcreteNetwork, ConcreteSelector, Loss, MeasuredDecoder
from fewer.nn.schedule import make_schedule
from fewer.train.assignment import eligible, obeying_features
from fewer.train.checkpoint import (
    Checkpoint,
    State,
    TrainingState,
    flat_state,
    released,
    taken_state,
)
from fewer.train.config import TrainingConfig
from fewer.train.device import enough_memory, pick_device, products, seeded
from fewer.train.epochs import epochs_on_cpu
from fewer.train.linear_choice import Trust
from fewer.train.network import (
    epoch_bar,
    evaluate,
    finetune_decoder,
    fit_decoder,
    stops_after,
    train_epoch,
)
from fewer.train.optimize import Adam, KeepBest
from fewer.train.refine import held_out_loss, refined
from fewer.train.training_data import Fit, TrainingData, new_decoder, prepare

__all__ = ["choose_by_gradient", "fit_gradient"]


def fit_gradient(
    source: Source,
    stats: Moments,
    config: TrainingConfig,
    *,
    loss: Loss,
    seed: int,
    targets: Tensor | None = None,
    out: int | None = None,
    constraints: Constraints | None = None,
    groups: np.ndarray | None = None,
    weights: Tensor | None = None,
    refine: Trust | None = None,
) -> Fit:
    """Choose ``config.k`` features of a source and fit the decoder.

    A step costs O(batch k d) and takes three times the memory of selector and decoder. Each rank
    computes the gradients of its rows of a batch, and their mean is that of a single process. With
    ``config.checkpoint`` the state is saved, and the same call resumes from it.

    Parameters
    ----------
    source, stats, config, loss, seed, targets, out, groups, weights
        As in `train_decoder`.
    constraints : Constraints, default=None
        Constraints on the panel; ``config.k`` is then the number of nodes.
    refine : {"all", "search", "swaps", "greedy"}, default=None
        "all" exchanges chosen features for others while that helps (see
        `fewer.ConcreteAutoencoder`), unless ``config.refit`` keeps the decoder that was trained
        with the selector. The others are for linear decoders of rows that are too few to trust
        anything but a search, swaps from greedy selection, or that, and take its panel.

    Examples
    --------
    >>> from fewer.data import moments
    >>> from fewer.data.source import array_source
    >>> from fewer.nn import make_loss
    >>> from sklearn.datasets import load_digits
    >>> source = array_source(load_digits().data / 16)
    >>> config = TrainingConfig(k=10)
    >>> fit = fit_gradient(source, moments(source), config, loss=make_loss("mse"), seed=0)
    >>> fit.columns.shape, fit.converged
    ((10,), True)
    """
    with (
        released(config.checkpoint),
        for_operations(config.values_per_operation(source.shape[1])),
        enough_memory(pick_device(config.device), config.batch_size),
    ):
        data = prepare(source, stats, config, loss, seed, targets, out, groups, weights)
        best, checkpoint = _best_start(data, seed, constraints)
        panel, rules = best.columns, best.constraints
        if refine is not None and config.refit == "scratch":
            refit = partial(best.refit_columns, seed, checkpoint=checkpoint)
            panel, decoder, refit_history = refined(data, panel, rules, seed, refit, refine)
        else:
            decoder, refit_history = best.refit(seed, checkpoint=checkpoint)
        if checkpoint is not None:
            checkpoint.finish()
    # float64 from here on, so that a prediction does not depend on how rows are batched
    decoder = decoder.cpu().double().eval()
    found = Fit(
        best.features,
        best.columns,
        best.logits,
        decoder,
        best.history,
        refit_history,
        best.converged,
    )
    return found.swapped(rules, panel)


def choose_by_gradient(
    data: TrainingData, seed: int, *, constraints: Constraints | None = None
) -> tuple[np.ndarray, list[dict[str, Any]]]:
    """The columns that `fit_gradient` would choose, and the history, without a decoder for them.

    Parameters
    ----------
    data : TrainingData
        The rows, what to predict, and how to train.
    seed, constraints
        As in `fit_gradient`.

    Examples
    --------
    >>> from fewer.data import moments
    >>> from fewer.data.source import array_source
    >>> from fewer.nn import make_loss
    >>> source = array_source(np.random.default_rng(0).normal(size=(200, 3)) * [1, 5, 3])
    >>> config, loss = TrainingConfig(k=2), make_loss("mse")
    >>> columns, history = choose_by_gradient(prepare(source, moments(source), config, loss, 0), 0)
    >>> columns
    array([1, 2])
    """
    config = data.config
    with (
        released(config.checkpoint),
        for_operations(config.values_per_operation(data.source.shape[1])),
        enough_memory(pick_device(config.device), config.batch_size),
    ):
        best, checkpoint = _best_start(data, seed, constraints)
        if checkpoint is not None:
            checkpoint.finish()
    return best.columns, best.history


def _best_start(
    data: TrainingData, seed: int, constraints: Constraints | None
) -> tuple["_Start", Checkpoint | None]:
    """The best of all starts, and the checkpoint in which the state is saved."""
    config, (n, d) = data.config, data.source.shape
    if constraints is None:
        constraints = resolve(None, d, config.k)
    checkpoint = None
    if config.checkpoint is not None:
        checkpoint = Checkpoint.of(config.checkpoint)
        facts = {"rows": n, "features": d, "spread": data.stats.scale, "seed": seed}
        checkpoint.begin(facts | {"loss": data.loss.name} | config.facts())
    starts: list[_Start] = []
    while len(starts) < config.n_init and not (starts and starts[-1].stopped):
        starts.append(_train_start(data, constraints, seed, len(starts), checkpoint))
    best = starts[0]
    if len(starts) > 1:
        best = min(starts, key=lambda start: start.held_out_loss(seed))
    settled = best.history[-1]["mean_max_probability"] >= config.enough_at_end
    if not settled and not starts[-1].stopped:
        last = best.history[-1]
        warn(
            "the selector has not converged: mean max probability "
            f"{last['mean_max_probability']:.3f} after {config.tries} tries, the last of "
            f"{last['epoch']} epochs, below {config.enough_at_end:g}. The "
            f"{config.k} features are distinct, but may be poor: raise epochs or "
            f"selector_learning_rate (now {config.selector_rate:g}), or lower end_temperature "
            f"(now {config.end_temperature:g}). For identical features, convergence is not "
            "needed.",
            fewer.errors.NotConvergedWarning,
        )
    return best, checkpoint


@dataclass(eq=False)
class _Start:
    """One trained start, before the decoder is fitted to its choice."""

    data: TrainingData
    constraints: Constraints
    network: ConcreteNetwork
    history: list[dict[str, Any]]
    converged: bool
    loss: float  # lowest seen on held-out rows
    stopped: bool  # by on_epoch

    @property
    def logits(self) -> Tensor:
        selector = self.network.selector
        assert isinstance(selector, ConcreteSelector)
        return selector.logits.detach().cpu()

    @cached_property
    def features(self) -> np.ndarray:
        data = self.data
        return obeying_features(
            self.logits,
            self.constraints,
            lambda: summarize(data.source, data.device).matrix,
        )

    @property
    def columns(self) -> np.ndarray:
        return self.constraints.complete(self.features)

    def refit(
        self, seed: int, *, hold_out: bool = False, checkpoint: Checkpoint | None = None
    ) -> tuple[MeasuredDecoder, list[dict[str, Any]]]:
        """The decoder for the chosen features, refitted as configured."""
        data, mode, features = self.data, self.data.config.refit, self.features
        # groups add inputs that the trained decoder does not have
        if mode == "scratch" or len(self.columns) > data.config.k:
            return self.refit_columns(seed, self.columns, hold_out, checkpoint=checkpoint)
        # where a node did not get the feature that it preferred, the decoder has to adapt
        preferred = self.logits.argmax(dim=1).numpy()
        train = mode == "finetune" or bool((preferred != features[: len(preferred)]).any())
        with self._refitting(seed) as generator:
            trained = copy.deepcopy(self.network.decoder)
            return finetune_decoder(
                data, trained, features, generator, train=train, checkpoint=checkpoint
            )

    def refit_columns(
        self,
        seed: int,
        columns: np.ndarray,
        hold_out: bool = False,
        *,
        checkpoint: Checkpoint | None = None,
    ) -> tuple[MeasuredDecoder, list[dict[str, Any]]]:
        """A new decoder for these columns; the checkpoint is that of the chosen ones."""
        own = checkpoint if np.array_equal(columns, self.columns) else None
        with self._refitting(seed) as generator:
            return fit_decoder(self.data, columns, generator, hold_out=hold_out, checkpoint=own)

    @contextmanager
    def _refitting(self, seed: int) -> Iterator[torch.Generator]:
        # a seed of its own: a refit must not depend on how long training took
        with (
            products(self.data.precision),
            seeded(seed + 7919, self.data.device) as generator,
        ):
            yield generator

    def held_out_loss(self, seed: int) -> float:
        """Held-out loss with the refitted decoder."""
        if self.data.valid is None:
            return self.history[-1]["loss"]
        decoder, history = self.refit(seed, hold_out=True)
        if not history and self.data.config.refit == "none":
            return self.loss
        return held_out_loss(self.data, self.columns, decoder, history)


def _train_start(
    data: TrainingData,
    constraints: Constraints,
    seed: int,
    start: int,
    checkpoint: Checkpoint | None,
) -> _Start:
    """Train one start; if the selector does not settle, again with twice the epochs."""
    config = data.config
    history: list[dict[str, Any]] = []
    first, saved = 1, None
    epochs = config.epochs_for(len(data.train))
    if len(constraints.included_units) == config.k and config.refit == "scratch":
        epochs = 1  # nothing to choose, and the decoder is retrained anyway
    if checkpoint is not None:
        if (done := checkpoint.load(f"start-{start}")) is not None:
            with seeded(0, data.device):  # its weights are replaced
                network = _new_network(data, constraints)
            with checkpoint.reading(f"start-{start}"):
                network.load_state_dict(taken_state("network", done[1]))
                _check_history(done[0]["history"])
                return _Start(data, constraints, network, **done[0])
        with checkpoint.reading("training"):
            saved = checkpoint.load("training")
            if saved is not None and saved[0]["start"] != start:
                saved = None
            if saved is not None:
                first, history = int(saved[0]["try"]), saved[0]["before"]
                if not 1 <= first <= config.tries:
                    raise ValueError(f"try {first} of {config.tries}")
                _check_history(history)
                _check_history(saved[0]["history"], least=1)
    for attempt in range(first, config.tries + 1):
        notes = {"start": start, "try": attempt, "before": history}
        with products(data.precision), seeded(seed + start, data.device) as generator:
            found = _train_once(
                data, constraints, epochs * 2 ** (attempt - 1), generator, notes, saved, checkpoint
            )
        saved, history = None, found.history
        if found.stopped or history[-1]["mean_max_probability"] >= config.enough_at_end:
            break
    if checkpoint is not None:
        facts = {name: getattr(found, name) for name in ("history", "converged", "loss", "stopped")}
        checkpoint.save(f"start-{start}", facts, flat_state("network", found.network.state_dict()))
        checkpoint.drop("training")
    return found


def _check_history(rows: Any, least: int = 0) -> None:
    """Refuse a stored history that is not one row of numbers per epoch."""
    row = {"seconds": float, "mean_max_probability": float, "distinct": int}
    reason = misfit(rows, [row], "history")
    if reason or len(rows) < least:
        raise ValueError(reason or "no history")


def _new_network(data: TrainingData, constraints: Constraints) -> ConcreteNetwork:
    config, stats = data.config, data.stats
    include, allowed = eligible(constraints, stats.variance * ~stats.constant, config.k)
    selector = ConcreteSelector(
        data.source.shape[1],
        config.k,
        temperature=config.start_temperature,
        draw=config.draw,
        logits=config.logits,
        embedding=config.embedding,
        allowed=None if allowed.all() else torch.from_numpy(allowed),
        include=include.tolist(),
    )
    decoder = new_decoder(data, config.k)
    return ConcreteNetwork(selector, decoder, mixed=data.mixed).to(data.device)


def _train_once(  # noqa: PLR0915 (the loop reads top to bottom)
    data: TrainingData,
    constraints: Constraints,
    epochs: int,
    generator: torch.Generator,
    notes: dict[str, Any],
    saved: State | None,
    checkpoint: Checkpoint | None,
) -> _Start:
    """One try, resumed from its ``saved`` state if any; checkpoints are saved with ``notes``."""
    config, train, attempt = data.config, data.train, notes["try"]
    network = _new_network(data, constraints)
    selector, decoder = network.selector, network.decoder
    assert isinstance(selector, ConcreteSelector)
    selector.generator = _shared_generator(data)
    if data.device.type == "cuda":
        padded(decoder)
    broadcast_tensors(*network.state_dict().values())
    optimizer = Adam(
        (selector.parameters(), config.selector_rate), (decoder.parameters(), config.decoder_rate)
    )
    best = KeepBest(config.patience)
    training = TrainingState(network, optimizer, best, generator, data.device, selector.generator)
    history = training.history
    began = time.perf_counter()
    unit = data.out_scale ** (data.loss.degree or 0)  # losses in the data's own units
    penalty = _cost_penalty(data, constraints, selector, unit)

    def backward(batch: Batch) -> Tensor:
        return network.backward(batch.x, batch.target, batch.observed, data.loss, penalty)

    options: dict[str, Any] = {"batch_size": config.batch_size, "precision": data.precision}
    options |= {"backward": backward, "penalty": penalty}
    fast = fast_epochs(network, train, optimizer, data.loss, **options)
    if fast is None and penalty is None:
        fast = epochs_on_cpu(network, train, optimizer, data.loss, config.batch_size)
    if saved is not None and checkpoint is not None:
        with checkpoint.reading("training"):
            training.restore(saved)
            began -= history[-1]["seconds"]
    temperatures = _temperatures(config, epochs, train.steps(config.batch_size), len(history))

    def annealed(batch: Batch) -> Tensor:
        selector.temperature = next(temperatures)
        return backward(batch)

    stopped = False
    with epoch_bar(f"try {attempt}", epochs, config.progress and is_rank0()) as bar:
        for epoch in range(len(history) + 1, epochs + 1):
            if world_size() > 1:  # dropout and draws per row differ between ranks
                torch.manual_seed(hash((generator.initial_seed(), attempt, epoch, rank())))
            network.train()
            if fast is not None:
                order = list(train.shuffled_positions(config.batch_size, generator))
                loss = fast.epoch(order, [next(temperatures) for _ in order])
            else:
                loss = train_epoch(annealed, train, optimizer, config.batch_size, generator)
            optimizer.rates[1] *= config.learning_rate_decay
            network.eval()
            held_out = None
            if data.valid is not None:
                held_out = evaluate(network, data.valid, data.loss).item()
            row = {
                "try": attempt,
                "epoch": epoch,
                "temperature": selector.temperature,
                "loss": loss * unit,
                "val_loss": None if held_out is None else held_out * unit,
                "mean_max_probability": selector.mean_max_probability().item(),
                "distinct": len(selector.indices().unique()),
                "seconds": time.perf_counter() - began,
            }
            # rank 0 decides for all when to stop
            row, held_out = broadcast((row, held_out))
            stopped = on_rank0(partial(stops_after, config, row))
            history.append(row)
            bar(row)
            # early on, at a high temperature, the held-out loss says little about the end
            exhausted = held_out is not None and best.seen(
                held_out, network, counts=epoch > epochs // 2
            )
            settled = row["mean_max_probability"] >= config.stop_at
            decided = settled and config.k > len(constraints.included_units)
            if decided or exhausted or stopped or not np.isfinite(loss):
                break
            if checkpoint is not None and checkpoint.due():
                training.save(checkpoint, "training", **notes)
    if not np.isfinite(row["loss"]):
        raise InputError(
            f"the loss became {row['loss']} in epoch {row['epoch']}: lower learning_rate "
            f"(now {config.decoder_rate:g}), or scale X, whose values are too spread out"
        )
    # in the best state, which may be an earlier one, nodes may prefer other features
    preferred = selector.indices()
    best.restore(network)
    settled = row["mean_max_probability"] >= config.enough_at_end
    converged = settled and bool((selector.indices() == preferred).all())
    unpadded(decoder)
    rows = notes["before"] + history
    return _Start(data, constraints, network, rows, converged, best.loss * unit, stopped)


def _shared_generator(data: TrainingData) -> torch.Generator | None:
    """A generator from which all ranks draw the noise that a single process would draw."""
    if world_size() == 1 or data.config.draw == "row":
        return None
    there = data.device.type == "cuda"
    generator = torch.Generator(data.device if there else "cpu")
    generator.set_state(torch.cuda.get_rng_state(data.device) if there else torch.get_rng_state())
    return generator


def _temperatures(config: TrainingConfig, epochs: int, steps: int, done: int) -> Iterator[float]:
    """Temperatures of successive steps, ``steps`` per epoch, after ``done`` epochs."""
    length = 1 if config.anneal == "step" else steps
    start, end = config.start_temperature, config.end_temperature
    schedule = make_schedule(config.schedule, start, end, epochs * steps // length)
    return (schedule(step // length) for step in count(done * steps))


def _cost_penalty(
    data: TrainingData, constraints: Constraints, selector: ConcreteSelector, unit: float
) -> Callable[[], Tensor] | None:
    """Weighted expected cost of the panel, in the units of the training loss."""
    weight, costs = data.config.cost_weight, constraints.costs
    if costs is None or not weight:
        return None
    prices = torch.from_numpy(costs * (weight / unit)).to(data.device, torch.float32)
    return lambda: torch.sum(selector.probabilities() @ prices)
