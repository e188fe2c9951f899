"""The paper's method: selector and decoder trained together by gradient descent."""

import copy
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fewer.constraints import Constraints, resolve
from fewer.cuda import fast_epochs, padded, unpadded
from fewer.data import Moments, Source, covariance
from fewer.data.batches import Batch
from fewer.data.reading import blocks
from fewer.distributed import is_rank0, on_rank0, rank, world_size
from fewer.errors import InputError, NotConvergedWarning, warn
from fewer.nn import ConcreteNetwork, ConcreteSelector, Loss, MeasuredDecoder
from fewer.nn.schedule import make_schedule
from fewer.train.assignment import eligible, obeying_features
from fewer.train.checkpoint import Checkpoint, State, TrainingState, flat_state, taken_state
from fewer.train.config import TrainingConfig
from fewer.train.device import enough_memory, pick_device, products, seeded
from fewer.train.network import (
    epoch_bar,
    evaluate,
    finetune_decoder,
    fit_decoder,
    same_on_all_ranks,
    stops_after,
    train_epoch,
)
from fewer.train.optimize import Adam, KeepBest
from fewer.train.training_data import Fit, TrainingData, new_decoder, prepare

__all__ = ["fit_gradient"]


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
) -> Fit:
    """Choose ``config.k`` features of a source and fit the decoder.

    Parameters
    ----------
    source, stats : Source, Moments
        The rows and their summary.
    config : TrainingConfig
        All options.
    loss : Loss
        What to minimise.
    seed : int
        Fixes everything on a CPU, bit for bit.
    targets : Tensor, default=None
        What to predict (class numbers, or n x m values); the rows themselves if None.
    out : int, default=None
        Outputs of the decoder; d if None.
    constraints : Constraints, default=None
        What the panel must obey; ``config.k`` is then the number of nodes.
    groups : array of length n, default=None
        Rows with the same label are held out together.

    Notes
    -----
    A step costs O(batch k d), and as much memory as selector and decoder three times over. Each
    rank takes its rows of a batch, and gradients are averaged: all make the step that one process
    would make. With ``config.checkpoint`` the state is kept, and the same call
    goes on from there.

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
    if constraints is None:
        constraints = resolve(None, source.shape[1], config.k)
    with enough_memory(pick_device(config.device), config.batch_size):
        data = prepare(source, stats, config, loss, seed, targets, out, groups)
        include, allowed = eligible(constraints, stats, config.k)
        choice = _Choice(constraints, include.tolist(), allowed)
        kept = _begun(data, seed)
        starts: list[_Start] = []
        while len(starts) < config.n_init and not (starts and starts[-1].stopped):
            starts.append(_train_start(data, choice, seed, len(starts), kept))
        best = starts[0]
        if len(starts) > 1:
            best = min(starts, key=lambda start: _held_out(start, seed))
        settled = best.history[-1]["mean_max_probability"] >= config.stop_probability
        if not settled and not starts[-1].stopped:
            _warn(best.history[-1], config)
        features = best.features
        decoder, refit_history = best.refit(seed, kept=kept)
    if kept is not None:
        kept.finish()
    # float64 from here on, so that a prediction does not depend on how rows are batched
    decoder = decoder.cpu().double().eval()
    return Fit(
        features,
        constraints.complete(features),
        best.logits,
        decoder,
        best.history,
        refit_history,
        best.converged,
        best.conflicts,
    )


@dataclass(frozen=True)
class _Choice:
    """Which features the nodes may and must take."""

    constraints: Constraints
    include: list[int]  # of the fixed nodes
    allowed: np.ndarray


@dataclass(eq=False)
class _Start:
    """One trained start, before the decoder is fitted to its choice."""

    data: TrainingData
    choice: _Choice
    network: ConcreteNetwork
    history: list[dict[str, Any]]
    converged: bool
    loss: float  # lowest seen on held-out rows
    stopped: bool = False  # on_epoch wanted no more

    @property
    def logits(self) -> Tensor:
        selector = self.network.selector
        assert isinstance(selector, ConcreteSelector)
        return selector.logits.detach().cpu()

    @cached_property
    def features(self) -> np.ndarray:
        constraints = self.choice.constraints
        C = None
        if constraints.groups is not None:
            C = covariance(self.data.source, device=self.data.device).matrix
        return obeying_features(self.logits, constraints, C)

    @property
    def conflicts(self) -> int:
        wanted = self.logits.argmax(dim=1).numpy()
        return int((wanted != self.features[: len(wanted)]).sum())

    def refit(
        self, seed: int, *, hold_out: bool = False, kept: Checkpoint | None = None
    ) -> tuple[MeasuredDecoder, list[dict[str, Any]]]:
        """The decoder for the features chosen, as ``config.refit`` asks."""
        data, mode = self.data, self.data.config.refit
        columns = self.choice.constraints.complete(self.features)
        # features measured together bring inputs that the trained decoder lacks
        scratch = mode == "scratch" or len(columns) > data.config.k
        # a node that changed its feature needs a decoder that knows
        train = mode == "finetune" or self.conflicts > 0
        # another seed than training's: a refit must not depend on how long training took
        with products(data.precision), seeded(seed + 7919, data.device) as generator:
            if scratch:
                return fit_decoder(data, columns, generator, hold_out=hold_out, checkpoint=kept)
            trained = copy.deepcopy(self.network.decoder)
            return finetune_decoder(
                data, trained, self.features, generator, train=train, checkpoint=kept
            )


def _held_out(start: _Start, seed: int) -> float:
    """Held-out loss of a start with its decoder fitted, which is what a user would get."""
    data = start.data
    if data.valid is None:
        return start.history[-1]["loss"]
    decoder, history = start.refit(seed, hold_out=True)
    if history:
        return min(row["val_loss"] for row in history)
    if data.config.refit == "none":
        return start.loss
    index, columns = data.valid.index, start.choice.constraints.complete(start.features)
    wrong = seen = 0.0
    with torch.no_grad():
        for rows in blocks(len(index), data.source.shape[1]):
            x = data.source.rows(index[rows], torch.float64)
            target = x if data.targets is None else data.targets[index[rows]].double()
            error = (decoder(x[:, columns]) - target).square()
            wrong += float(error.nansum())
            seen += float((~torch.isnan(error)).sum())
    return wrong / max(seen, 1.0)


def _begun(data: TrainingData, seed: int) -> Checkpoint | None:
    """Where the state is kept, after a look at whether it is that of the same fit."""
    wanted = data.config.checkpoint
    if wanted is None:
        return None
    n, d = data.source.shape
    kept = Checkpoint.of(wanted)
    facts = {"rows": n, "features": d, "spread": data.stats.scale, "seed": seed}
    kept.begin(facts | {"loss": data.loss.name} | data.config.facts())
    return kept


def _train_start(
    data: TrainingData, choice: _Choice, seed: int, start: int, kept: Checkpoint | None
) -> _Start:
    """One start: train; if the selector has not settled, again with twice the epochs."""
    config = data.config
    done = None if kept is None else kept.load(f"start-{start}")
    if done is not None:
        return _finished(data, choice, done)
    epochs = config.epochs_for(len(data.train))
    if len(choice.include) == config.k and config.refit == "scratch":
        epochs = 1  # nothing to choose, and the decoder will be a new one
    history: list[dict[str, Any]] = []
    begun = None if kept is None else kept.load("training")
    if begun is not None and begun[0]["start"] != start:
        begun = None
    found: _Start | None = None
    for attempt in range(1, config.tries + 1):
        if begun is not None and attempt < begun[0]["try"]:
            epochs *= 2
            continue
        if begun is not None:
            history = begun[0]["before"]

        def keep(training: TrainingState, attempt: int = attempt, before: Any = history) -> None:
            if kept is not None and kept.due():
                training.save(
                    kept, "training", **{"start": start, "try": attempt, "before": before}
                )

        with products(data.precision), seeded(seed + start, data.device) as generator:
            network, rows, best, stopped, same = _train_once(
                data, choice, epochs, attempt, generator, begun, keep
            )
        begun = None
        history = history + rows
        last = rows[-1]
        if not np.isfinite(last["loss"]):
            raise InputError(
                f"the loss became {last['loss']} in epoch {last['epoch']}: lower learning_rate "
                f"(now {config.decoder_rate:g}), or scale X, whose values are too spread out"
            )
        settled = last["mean_max_probability"] >= config.stop_probability
        # the state that is kept may be an earlier one, which has not settled for what it wants
        found = _Start(data, choice, network, history, settled and same, best, stopped)
        if settled or stopped:
            break
        epochs *= 2
    assert found is not None
    if kept is not None:
        notes = {"history": history, "converged": found.converged, "loss": found.loss}
        tensors = flat_state("network", found.network.state_dict())
        kept.save(f"start-{start}", notes | {"stopped": found.stopped}, tensors)
        kept.drop("training")
    return found


def _finished(data: TrainingData, choice: _Choice, state: State) -> _Start:
    """A start that was trained before."""
    notes, tensors = state
    with seeded(0, data.device):  # its first weights are replaced anyway
        network = _new_network(data, choice)
    network.load_state_dict(taken_state("network", tensors))
    outcome = (notes[name] for name in ("history", "converged", "loss", "stopped"))
    return _Start(data, choice, network, *outcome)


def _new_network(data: TrainingData, choice: _Choice) -> ConcreteNetwork:
    config = data.config
    selector = ConcreteSelector(
        data.source.shape[1],
        config.k,
        temperature=config.start_temperature,
        draw=config.draw,
        logits=config.logits,
        embedding=config.embedding,
        allowed=None if choice.allowed.all() else torch.from_numpy(choice.allowed),
        include=choice.include,
    )
    decoder = new_decoder(data, config.k)
    return ConcreteNetwork(selector, decoder, mixed=data.mixed).to(data.device)


def _train_once(
    data: TrainingData,
    choice: _Choice,
    epochs: int,
    attempt: int,
    generator: torch.Generator,
    begun: State | None,
    keep: Callable[[TrainingState], None],
) -> tuple[ConcreteNetwork, list[dict[str, Any]], float, bool, bool]:
    # the network at its best, how it went, the lowest loss, whether on_epoch wanted no more, and
    # whether the nodes want what they wanted at the end
    config, train = data.config, data.train
    network = _new_network(data, choice)
    selector, decoder = network.selector, network.decoder
    assert isinstance(selector, ConcreteSelector)
    selector.generator = _shared_generator(data)
    if data.device.type == "cuda":
        padded(decoder)
    same_on_all_ranks(network)
    optimizer = Adam(
        (selector.parameters(), config.selector_rate),
        (decoder.parameters(), config.decoder_rate),
    )
    temperature = _Temperature(config, epochs, train.steps(config.batch_size))

    best = KeepBest(config.patience)
    training = TrainingState(network, optimizer, best, generator, data.device, selector.generator)
    history = training.history
    unit = data.out_scale ** (data.loss.degree or 0)  # losses in the data's own units
    penalty = _cost_penalty(data, choice, selector, unit)

    def backward(batch: Batch) -> Tensor:
        selector.temperature = temperature.next()
        return network.backward(batch.x, batch.target, batch.observed, data.loss, penalty)

    options: dict[str, Any] = {"batch_size": config.batch_size, "precision": data.precision}
    fast = fast_epochs(network, train, optimizer, data.loss, penalty=penalty, **options)
    began, stopped = time.perf_counter(), False
    if begun is not None:
        training.restore(begun)
        temperature.step = history[-1]["epoch"] * train.steps(config.batch_size)
        began -= history[-1]["seconds"]
    shown = config.progress and is_rank0()
    with epoch_bar(f"try {attempt}", epochs, shown) as bar:
        for epoch in range(len(history) + 1, epochs + 1):
            if world_size() > 1:  # what each draws for its own rows: dropout, draws for rows
                torch.manual_seed(hash((generator.initial_seed(), attempt, epoch, rank())))
            network.train()
            if fast is not None:
                order = list(train.shuffled_positions(config.batch_size, generator))
                loss = fast.epoch(order, [temperature.next() for _ in order])
            else:
                loss = train_epoch(backward, train, optimizer, config.batch_size, generator)
            optimizer.rates[1] *= config.learning_rate_decay
            network.eval()
            held_out = None if data.valid is None else evaluate(network, data.valid, data.loss)
            row = {
                "try": attempt,
                "epoch": epoch,
                "temperature": selector.temperature,
                "loss": loss * unit,
                "val_loss": None if held_out is None else held_out * unit,
                **_certainty(selector),
                "seconds": time.perf_counter() - began,
            }
            # rank 0 decides when to stop, so that all do
            row, held_out, stopped = on_rank0(partial(_decided, config, row, held_out))
            history.append(row)
            bar(row)
            # early on the temperature is high and the held-out loss says little about the end
            exhausted = held_out is not None and best.seen(
                held_out, network, counts=epoch > epochs // 2
            )
            settled = row["mean_max_probability"] >= config.stop_probability
            decided = settled and config.k > len(choice.include)
            if decided or exhausted or stopped or not np.isfinite(loss):
                break
            keep(training)
    same = _restored(network, selector, best)
    unpadded(decoder)
    return network, history, best.loss * unit, stopped, same


def _decided(
    config: TrainingConfig, row: dict[str, Any], held_out: float | None
) -> tuple[dict[str, Any], float | None, bool]:
    """What an epoch came to, and whether ``on_epoch`` wants no more."""
    return row, held_out, stops_after(config, row)


@torch.no_grad()
def _restored(network: ConcreteNetwork, selector: ConcreteSelector, best: KeepBest) -> bool:
    """Put the best state back; whether its nodes want what they want now."""
    wanted = selector.logits.argmax(dim=1)
    best.restore(network)
    return bool((selector.logits.argmax(dim=1) == wanted).all())


def _shared_generator(data: TrainingData) -> torch.Generator | None:
    """One that all ranks draw the same noise from, as one process would from torch's own."""
    if world_size() == 1 or data.config.draw == "row":
        return None
    there = data.device.type == "cuda"
    generator = torch.Generator(data.device if there else "cpu")
    generator.set_state(torch.cuda.get_rng_state(data.device) if there else torch.get_rng_state())
    return generator


class _Temperature:
    """The temperature of one step after another."""

    def __init__(self, config: TrainingConfig, epochs: int, steps_per_epoch: int) -> None:
        self.step = 0
        self._per = 1 if config.anneal == "step" else steps_per_epoch
        total = epochs * steps_per_epoch if config.anneal == "step" else epochs
        start, end = config.start_temperature, config.end_temperature
        self._at = make_schedule(config.schedule, start, end, total)

    def next(self) -> float:
        self.step += 1
        return self._at((self.step - 1) // self._per)


@torch.no_grad()
def _certainty(selector: ConcreteSelector) -> dict[str, Any]:
    """How decided the nodes are, and how many features they want between them."""
    logits = selector.logits
    return {
        "mean_max_probability": torch.softmax(logits, dim=1).amax(dim=1).mean().item(),
        "distinct": len(logits.argmax(dim=1).unique()),
    }


def _cost_penalty(
    data: TrainingData, choice: _Choice, selector: ConcreteSelector, unit: float
) -> Callable[[], Tensor] | None:
    """Expected cost of the panel times its weight, in the units of the training loss."""
    weight, costs = data.config.cost_weight, choice.constraints.costs
    if costs is None or not weight:
        return None
    prices = torch.from_numpy(costs * (weight / unit)).to(data.device, torch.float32)

    def expected_cost() -> Tensor:
        return (selector.probabilities() @ prices).sum()

    return expected_cost


def _warn(last: dict[str, Any], config: TrainingConfig) -> None:
    warn(
        f"the selector has not settled: mean max probability {last['mean_max_probability']:.3f} "
        f"after {config.tries} tries, the last of {last['epoch']} epochs, below "
        f"stop_probability={config.stop_probability}. The features are still {config.k} "
        "distinct ones, but may be poor: raise epochs or selector_learning_rate (now "
        f"{config.selector_rate:g}), or lower end_temperature (now "
        f"{config.end_temperature:g}). Features that are copies of one another stay undecided "
        "without harm.",
        NotConvergedWarning,
    )
