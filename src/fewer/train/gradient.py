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
from fewer.data import Moments, Source, covariance
from fewer.data.reading import blocks
from fewer.distributed import is_rank0, on_rank0, rank, world_size
from fewer.errors import InputError, NotConvergedWarning, warn
from fewer.nn import ConcreteNetwork, ConcreteSelector, Loss, MeasuredDecoder
from fewer.nn.padded import padded, unpadded
from fewer.nn.philox import CountedGumbel
from fewer.nn.schedule import make_schedule
from fewer.train.adam import Adam
from fewer.train.assignment import obeying_features
from fewer.train.averaging import same_everywhere
from fewer.train.checkpoint import Checkpoint, State, flat_state, taken_state
from fewer.train.device import enough_memory, pick_device, products, seeded
from fewer.train.fit import Fit
from fewer.train.fused import fused_epochs
from fewer.train.loop import evaluate, train_epoch
from fewer.train.problem import Problem, new_decoder, prepare
from fewer.train.progress import epoch_bar
from fewer.train.refit import refit_decoder
from fewer.train.settings import TrainingConfig
from fewer.train.state import SharedGumbel, Training
from fewer.train.stopping import KeepBest

__all__ = ["fit_gradient"]


def fit_gradient(
    source: Source,
    stats: Moments,
    settings: TrainingConfig,
    *,
    loss: Loss,
    seed: int,
    targets: Tensor | None = None,
    out: int | None = None,
    constraints: Constraints | None = None,
    groups: np.ndarray | None = None,
) -> Fit:
    """Choose ``settings.k`` features of a source and fit the decoder.

    Parameters
    ----------
    source, stats : Source, Moments
        The rows and their summary.
    settings : TrainingConfig
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
        What the panel must obey; ``settings.k`` is then the number of nodes.
    groups : array of length n, default=None
        Rows with the same label are held out together.

    Notes
    -----
    A step costs O(batch k d), and as much memory as selector and decoder three times over. Each
    rank takes its rows of a batch, and gradients are averaged: all make the step that one process
    would make. With ``settings.checkpoint`` the state is kept, and the same call
    goes on from there.

    Examples
    --------
    >>> from fewer.data import moments
    >>> from fewer.data.source import array_source
    >>> from fewer.nn import make_loss
    >>> from sklearn.datasets import load_digits
    >>> source = array_source(load_digits().data / 16)
    >>> settings = TrainingConfig(k=10)
    >>> fit = fit_gradient(source, moments(source), settings, loss=make_loss("mse"), seed=0)
    >>> fit.columns.shape, fit.converged
    ((10,), True)
    """
    if constraints is None:
        constraints = resolve(None, source.shape[1], settings.k)
    with enough_memory(pick_device(settings.device), settings.batch_size):
        problem = prepare(source, stats, settings, loss, seed, targets, out, constraints, groups)
        kept = _begun(problem, seed)
        starts: list[_Start] = []
        while len(starts) < settings.n_init and not (starts and starts[-1].stopped):
            starts.append(_train_start(problem, seed, len(starts), kept))
        best = starts[0]
        if len(starts) > 1:
            best = min(starts, key=lambda start: _held_out(start, seed))
        settled = best.history[-1]["mean_max_probability"] >= settings.stop_probability
        if not settled and not starts[-1].stopped:
            _warn(best.history[-1], settings)
        features = best.features
        decoder, refit_history = best.refit(seed, kept=kept)
    if kept is not None:
        kept.finish()
    # float64 from here on, so that a prediction does not depend on how rows are batched
    decoder = decoder.cpu().double().eval()
    return Fit(
        features,
        problem.constraints.complete(features),
        best.logits,
        decoder,
        best.history,
        refit_history,
        best.converged,
        best.conflicts,
    )


@dataclass(eq=False)
class _Start:
    """One trained start, before the decoder is fitted to its choice."""

    problem: Problem
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
        constraints = self.problem.constraints
        C = None
        if constraints.groups is not None:
            C = covariance(self.problem.source, device=self.problem.device).matrix
        return obeying_features(self.logits, constraints, C)

    @property
    def conflicts(self) -> int:
        wanted = self.logits.argmax(dim=1).numpy()
        return int((wanted != self.features[: len(wanted)]).sum())

    def refit(
        self, seed: int, *, hold_out: bool = False, kept: Checkpoint | None = None
    ) -> tuple[MeasuredDecoder, list[dict[str, Any]]]:
        # another seed than training's: a refit must not depend on how long training took
        with (
            products(self.problem.precision),
            seeded(seed + 7919, self.problem.device) as generator,
        ):
            return refit_decoder(
                self.problem,
                copy.deepcopy(self.network.decoder),
                self.features,
                conflicts=self.conflicts,
                generator=generator,
                hold_out=hold_out,
                kept=kept,
            )


def _held_out(start: _Start, seed: int) -> float:
    """Held-out loss of a start with its decoder fitted, which is what a user would get."""
    problem = start.problem
    if problem.valid is None:
        return start.history[-1]["loss"]
    decoder, history = start.refit(seed, hold_out=True)
    if history:
        return min(row["val_loss"] for row in history)
    if problem.settings.refit == "none":
        return start.loss
    index, columns = problem.valid.index, problem.constraints.complete(start.features)
    wrong = seen = 0.0
    with torch.no_grad():
        for rows in blocks(len(index), problem.source.shape[1]):
            x = problem.source.rows(index[rows], torch.float64)
            target = x if problem.targets is None else problem.targets[index[rows]].double()
            error = (decoder(x[:, columns]) - target).square()
            wrong += float(error.nansum())
            seen += float((~torch.isnan(error)).sum())
    return wrong / max(seen, 1.0)


def _begun(problem: Problem, seed: int) -> Checkpoint | None:
    """Where the state is kept, after a look at whether it is that of the same fit."""
    wanted = problem.settings.checkpoint
    if wanted is None:
        return None
    n, d = problem.source.shape
    kept = Checkpoint.of(wanted)
    facts = {"rows": n, "features": d, "spread": problem.stats.scale, "seed": seed}
    kept.begin(facts | {"loss": problem.loss.name} | problem.settings.facts())
    return kept


def _train_start(problem: Problem, seed: int, start: int, kept: Checkpoint | None) -> _Start:
    """One start: train; if the selector has not settled, again with twice the epochs."""
    settings = problem.settings
    done = None if kept is None else kept.load(f"start-{start}")
    if done is not None:
        return _finished(problem, done)
    epochs = settings.epochs_for(len(problem.train))
    if len(problem.include) == settings.k and settings.refit == "scratch":
        epochs = 1  # nothing to choose, and the decoder will be a new one
    history: list[dict[str, Any]] = []
    begun = None if kept is None else kept.load("training")
    if begun is not None and begun[0]["start"] != start:
        begun = None
    found: _Start | None = None
    for attempt in range(1, settings.tries + 1):
        if begun is not None and attempt < begun[0]["try"]:
            epochs *= 2
            continue
        if begun is not None:
            history = begun[0]["before"]

        def keep(training: Training, attempt: int = attempt, before: Any = history) -> None:
            if kept is not None and kept.due():
                training.save(
                    kept, "training", **{"start": start, "try": attempt, "before": before}
                )

        with products(problem.precision), seeded(seed + start, problem.device) as generator:
            network, rows, best, stopped, same = _train_once(
                problem, epochs, attempt, generator, begun, keep
            )
        begun = None
        history = history + rows
        last = rows[-1]
        if not np.isfinite(last["loss"]):
            raise InputError(
                f"the loss became {last['loss']} in epoch {last['epoch']}: lower learning_rate "
                f"(now {settings.decoder_rate:g}), or scale X, whose values are too spread out"
            )
        settled = last["mean_max_probability"] >= settings.stop_probability
        # the state that is kept may be an earlier one, which has not settled for what it wants
        found = _Start(problem, network, history, settled and same, best, stopped)
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


def _finished(problem: Problem, state: State) -> _Start:
    """A start that was trained before."""
    notes, tensors = state
    with seeded(0, problem.device):  # its first weights are replaced anyway
        network = _new_network(problem)
    network.load_state_dict(taken_state("network", tensors))
    return _Start(
        problem, network, notes["history"], notes["converged"], notes["loss"], notes["stopped"]
    )


def _new_network(problem: Problem) -> ConcreteNetwork:
    settings = problem.settings
    selector = ConcreteSelector(
        problem.source.shape[1],
        settings.k,
        temperature=settings.start_temperature,
        draw=settings.draw,
        logits=settings.logits,
        embedding=settings.embedding,
        allowed=problem.allowed,
        include=problem.include,
    )
    decoder = new_decoder(problem, settings.k)
    return ConcreteNetwork(selector, decoder, mixed=problem.mixed).to(problem.device)


def _train_once(
    problem: Problem,
    epochs: int,
    attempt: int,
    generator: torch.Generator,
    begun: State | None,
    keep: Callable[[Training], None],
) -> tuple[ConcreteNetwork, list[dict[str, Any]], float, bool, bool]:
    # the network at its best, how it went, the lowest loss, whether on_epoch wanted no more, and
    # whether the nodes want what they wanted at the end
    settings, train = problem.settings, problem.train
    network = _new_network(problem)
    selector, decoder = network.selector, network.decoder
    assert isinstance(selector, ConcreteSelector)
    noise = _noise(problem, generator)
    selector.noise = noise
    if problem.device.type == "cuda":
        padded(decoder)
    same_everywhere(network)
    optimizer = Adam(
        (selector.parameters(), settings.selector_rate),
        (decoder.parameters(), settings.decoder_rate),
    )
    temperature = _Temperature(settings, epochs, train.steps(settings.batch_size))

    def cool() -> None:
        selector.temperature = temperature.next()

    best = KeepBest(settings.patience)
    training = Training(network, optimizer, best, generator, problem.device, noise)
    history = training.history
    unit = problem.out_scale ** (problem.loss.degree or 0)  # losses in the data's own units
    penalty = _cost_penalty(problem, selector, unit)
    fused = fused_epochs(
        network,
        train,
        optimizer,
        problem.loss,
        batch_size=settings.batch_size,
        precision=problem.precision,
        penalty=penalty,
    )
    began, stopped = time.perf_counter(), False
    if begun is not None:
        training.restore(begun)
        temperature.step = history[-1]["epoch"] * train.steps(settings.batch_size)
        began -= history[-1]["seconds"]
    shown = settings.progress and is_rank0()
    with epoch_bar(f"try {attempt}", epochs, shown) as bar:
        for epoch in range(len(history) + 1, epochs + 1):
            if world_size() > 1:  # what each draws for its own rows: dropout, draws for rows
                torch.manual_seed(hash((generator.initial_seed(), attempt, epoch, rank())))
            if fused is not None:
                order = list(train.shuffled_positions(settings.batch_size, generator))
                loss = fused.epoch(order, [temperature.next() for _ in order])
            else:
                loss = train_epoch(
                    network,
                    train,
                    optimizer,
                    problem.loss,
                    batch_size=settings.batch_size,
                    generator=generator,
                    before_step=cool,
                    penalty=penalty,
                )
            optimizer.rates[1] *= settings.learning_rate_decay
            held_out = None
            if problem.valid is not None:
                held_out = evaluate(network, problem.valid, problem.loss)
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
            row, held_out, stopped = on_rank0(partial(_decided, settings, row, held_out))
            history.append(row)
            bar(row)
            # early on the temperature is high and the held-out loss says little about the end
            exhausted = held_out is not None and best.seen(
                held_out, network, counts=epoch > epochs // 2
            )
            settled = row["mean_max_probability"] >= settings.stop_probability
            decided = settled and settings.k > len(problem.include)
            if decided or exhausted or stopped or not np.isfinite(loss):
                break
            keep(training)
    same = _restored(network, selector, best)
    unpadded(decoder)
    return network, history, best.loss * unit, stopped, same


def _decided(
    settings: TrainingConfig, row: dict[str, Any], held_out: float | None
) -> tuple[dict[str, Any], float | None, bool]:
    """What an epoch came to, and whether ``on_epoch`` wants no more."""
    return row, held_out, settings.stops_after(row)


@torch.no_grad()
def _restored(network: ConcreteNetwork, selector: ConcreteSelector, best: KeepBest) -> bool:
    """Put the best state back; whether its nodes want what they want now."""
    wanted = selector.logits.argmax(dim=1)
    best.restore(network)
    return bool((selector.logits.argmax(dim=1) == wanted).all())


def _noise(problem: Problem, generator: torch.Generator) -> CountedGumbel | SharedGumbel | None:
    """What the selector draws with, where that is not torch's own generator."""
    if problem.settings.draw == "row":
        return None
    if problem.device.type == "cuda":
        return CountedGumbel(generator.initial_seed())  # the kernels', whether or not they are used
    return SharedGumbel() if world_size() > 1 else None


class _Temperature:
    """The temperature of one step after another."""

    def __init__(self, settings: TrainingConfig, epochs: int, steps_per_epoch: int) -> None:
        self.step = 0
        self._per = 1 if settings.anneal == "step" else steps_per_epoch
        total = epochs * steps_per_epoch if settings.anneal == "step" else epochs
        start, end = settings.start_temperature, settings.end_temperature
        self._at = make_schedule(settings.schedule, start, end, total)

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
    problem: Problem, selector: ConcreteSelector, unit: float
) -> Callable[[], Tensor] | None:
    """Expected cost of the panel times its weight, in the units of the training loss."""
    weight, costs = problem.settings.cost_weight, problem.constraints.costs
    if costs is None or not weight:
        return None
    prices = torch.from_numpy(costs * (weight / unit)).to(problem.device, torch.float32)

    def expected_cost() -> Tensor:
        return (selector.probabilities() @ prices).sum()

    return expected_cost


def _warn(last: dict[str, Any], settings: TrainingConfig) -> None:
    warn(
        f"the selector has not settled: mean max probability {last['mean_max_probability']:.3f} "
        f"after {settings.tries} tries, the last of {last['epoch']} epochs, below "
        f"stop_probability={settings.stop_probability}. The features are still {settings.k} "
        "distinct ones, but may be poor: raise epochs or selector_learning_rate (now "
        f"{settings.selector_rate:g}), or lower end_temperature (now "
        f"{settings.end_temperature:g}). Features that are copies of one another stay undecided "
        "without harm.",
        NotConvergedWarning,
    )
