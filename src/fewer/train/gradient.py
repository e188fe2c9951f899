"""The paper's method: selector and decoder trained together by gradient descent."""

import copy
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fewer.constraints import Constraints, resolve
from fewer.data import Moments, Source, blocks, covariance
from fewer.errors import InputError, NotConvergedWarning, warn
from fewer.nn import ConcreteNetwork, ConcreteSelector, Loss, MeasuredDecoder
from fewer.nn.padded import padded, unpadded
from fewer.nn.philox import CountedGumbel
from fewer.nn.schedule import make_schedule
from fewer.train.adam import Adam
from fewer.train.assignment import obeying_features
from fewer.train.device import enough_memory, pick_device, products, seeded
from fewer.train.fit import Fit
from fewer.train.fused import fused_epochs
from fewer.train.loop import evaluate, train_epoch
from fewer.train.problem import Problem, new_decoder, prepare
from fewer.train.progress import epoch_bar
from fewer.train.refit import refit_decoder
from fewer.train.settings import GradientSettings
from fewer.train.stopping import KeepBest

__all__ = ["fit_gradient"]


def fit_gradient(
    source: Source,
    stats: Moments,
    settings: GradientSettings,
    *,
    loss: Loss,
    seed: int,
    targets: Tensor | None = None,
    out: int | None = None,
    rule: Constraints | None = None,
) -> Fit:
    """Choose ``settings.k`` features of a source and fit the decoder.

    Parameters
    ----------
    source, stats : Source, Moments
        The rows and their summary.
    settings : GradientSettings
        All options.
    loss : Loss
        What to minimise.
    seed : int
        Fixes everything on a CPU, bit for bit.
    targets : Tensor, default=None
        What to predict (class numbers, or n x m values); the rows themselves if None.
    out : int, default=None
        Outputs of the decoder; d if None.
    rule : Constraints, default=None
        What the panel must obey; ``settings.k`` is then the number of nodes.
    """
    if rule is None:
        rule = resolve(None, source.shape[1], settings.k)
    with enough_memory(pick_device(settings.device), settings.batch_size):
        problem = prepare(source, stats, settings, loss, seed, targets, out, rule)
        starts: list[_Start] = []
        while len(starts) < settings.n_init and not (starts and starts[-1].stopped):
            starts.append(_train_start(problem, seed + len(starts)))
        best = starts[0]
        if len(starts) > 1:
            best = min(starts, key=lambda start: _held_out(start, seed))
        if not best.converged and not starts[-1].stopped:
            _warn(best.history[-1], settings)
        features = best.features
        decoder, refit_history = best.refit(seed)
    # float64 from here on, so that a prediction does not depend on how rows are batched
    decoder = decoder.cpu().double().eval()
    return Fit(
        features,
        problem.rule.complete(features),
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
        rule = self.problem.rule
        C = None
        if rule.groups is not None:
            C = covariance(self.problem.source, device=self.problem.device).matrix
        return obeying_features(self.logits, rule, C)

    @property
    def conflicts(self) -> int:
        wanted = self.logits.argmax(dim=1).numpy()
        return int((wanted != self.features[: len(wanted)]).sum())

    def refit(
        self, seed: int, *, hold_out: bool = False
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
    index, columns = problem.valid.index, problem.rule.complete(start.features)
    wrong = seen = 0.0
    with torch.no_grad():
        for rows in blocks(len(index), problem.source.shape[1]):
            x = problem.source.rows(index[rows], torch.float64)
            target = x if problem.targets is None else problem.targets[index[rows]].double()
            error = (decoder(x[:, columns]) - target).square()
            wrong += float(error.nansum())
            seen += float((~torch.isnan(error)).sum())
    return wrong / max(seen, 1.0)


def _train_start(problem: Problem, seed: int) -> _Start:
    """One start: train; if the selector has not settled, again with twice the epochs."""
    settings = problem.settings
    epochs = settings.epochs_for(len(problem.train))
    if len(problem.include) == settings.k and settings.refit == "scratch":
        epochs = 1  # nothing to choose, and the decoder will be a new one
    history: list[dict[str, Any]] = []
    for attempt in range(1, settings.tries + 1):
        with products(problem.precision), seeded(seed, problem.device) as generator:
            network, rows, best, stopped = _train_once(problem, epochs, attempt, generator)
        history += rows
        last = rows[-1]
        if not np.isfinite(last["loss"]):
            raise InputError(
                f"the loss became {last['loss']} in epoch {last['epoch']}: lower learning_rate "
                f"(now {settings.decoder_rate:g}), or scale X, whose values are too spread out"
            )
        if last["mean_max_probability"] >= settings.stop_probability:
            return _Start(problem, network, history, True, best, stopped)
        if stopped:
            break
        epochs *= 2
    return _Start(problem, network, history, False, best, stopped)


def _train_once(
    problem: Problem, epochs: int, attempt: int, generator: torch.Generator
) -> tuple[ConcreteNetwork, list[dict[str, Any]], float, bool]:
    settings, train = problem.settings, problem.train
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
    there = problem.device.type == "cuda"
    network = ConcreteNetwork(selector, padded(decoder) if there else decoder, mixed=problem.mixed)
    network.to(problem.device)
    if there and settings.draw == "batch":
        # the kernels' noise, whether or not they can be used
        selector.noise = CountedGumbel(generator.initial_seed())
    optimizer = Adam(
        (selector.parameters(), settings.selector_rate),
        (network.decoder.parameters(), settings.decoder_rate),
    )
    steps_an_epoch = train.steps(settings.batch_size)
    learns = settings.k > len(problem.include)
    temperature = make_schedule(
        settings.schedule,
        settings.start_temperature,
        settings.end_temperature,
        epochs * steps_an_epoch if settings.anneal == "step" else epochs,
    )
    step = 0

    def cooler() -> float:
        nonlocal step
        clock = step if settings.anneal == "step" else step // steps_an_epoch
        step += 1
        return temperature(clock)

    def cool() -> None:
        selector.temperature = cooler()

    best = KeepBest(settings.patience)
    history: list[dict[str, Any]] = []
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
    with epoch_bar(f"try {attempt}", epochs, settings.progress) as bar:
        for epoch in range(1, epochs + 1):
            if fused is not None:
                order = list(train.shuffled_positions(settings.batch_size, generator))
                loss = fused.epoch(order, [cooler() for _ in order])
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
            with torch.no_grad():
                logits = selector.logits
                settled = torch.softmax(logits, dim=1).amax(dim=1).mean().item()
                distinct = len(logits.argmax(dim=1).unique())
            row = {
                "try": attempt,
                "epoch": epoch,
                "temperature": selector.temperature,
                "loss": loss * unit,
                "val_loss": None if held_out is None else held_out * unit,
                "mean_max_probability": settled,
                "distinct": distinct,
                "seconds": time.perf_counter() - began,
            }
            history.append(row)
            bar(row)
            stopped = settings.stops_after(row)
            # early on the temperature is high and the held-out loss says little about the end
            exhausted = held_out is not None and best.seen(
                held_out, network, counts=epoch > epochs // 2
            )
            decided = learns and settled >= settings.stop_probability
            if decided or exhausted or stopped or not np.isfinite(loss):
                break
    best.restore(network)
    unpadded(decoder)
    return network, history, best.loss * unit, stopped


def _cost_penalty(
    problem: Problem, selector: ConcreteSelector, unit: float
) -> Callable[[], Tensor] | None:
    """Expected cost of the panel times its weight, in the units of the training loss."""
    weight, costs = problem.settings.cost_weight, problem.rule.costs
    if costs is None or not weight:
        return None
    prices = torch.from_numpy(costs * (weight / unit)).to(problem.device, torch.float32)

    def expected_cost() -> Tensor:
        return (selector.probabilities() @ prices).sum()

    return expected_cost


def _warn(last: dict[str, Any], settings: GradientSettings) -> None:
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
