"""How each strategy of `fewer.select` chooses columns from the training rows of a fold."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import wraps
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from fewer.candidates.clock import Clock
from fewer.candidates.kept import KeptChoices
from fewer.constraints import Constraints
from fewer.data import Covariance, Moments, Source, moments
from fewer.distributed import on_rank0
from fewer.errors import FewerWarning
from fewer.nn import make_loss
from fewer.search import greedy, search, swap
from fewer.train import (
    TrainingConfig,
    fit_closed_form,
    fit_gradient,
    fit_random_features,
    network_swaps,
    obeying_features,
)
from fewer.train.eligible import eligible
from fewer.train.folds import ScaledFold

__all__ = ["Choose", "Strategies", "searched_on_rank0"]

S = TypeVar("S")

Choose = Callable[[ScaledFold, int], NDArray[np.int64]]


def searched_on_rank0(
    choose: Callable[[S, ScaledFold, int], NDArray[np.int64]],
) -> Callable[[S, ScaledFold, int], NDArray[np.int64]]:
    """Let rank 0 choose for all: a search is not the same to the last bit on every machine."""

    @wraps(choose)
    def run(self: S, fold: ScaledFold, seed: int) -> NDArray[np.int64]:
        return on_rank0(lambda: choose(self, fold, seed))

    return run


@dataclass(frozen=True)
class Strategies:
    """The strategies, with what they share. Each takes a fold of scaled rows and a seed.

    All ranks call them. Trainings by gradient are done by all together, the others by rank 0.
    """

    constraints: Constraints
    settings: TrainingConfig
    device: torch.device  # one that has float64
    rows: Callable[[ScaledFold], Source]  # scaled training rows of a fold
    labels: Callable[[ScaledFold], NDArray | None]  # groups of those rows
    clock: Clock
    # what each strategy has found, for those that build on others
    found: dict[tuple[str, int, int], NDArray[np.int64]] = field(default_factory=dict)
    # how the first training of each went that learns
    history: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    kept: KeptChoices | None = None  # what was found before a crash

    def once(self, name: str, choose: Choose) -> Choose:
        """A strategy that remembers what it chose."""

        def remembered(fold: ScaledFold, seed: int) -> NDArray[np.int64]:
            key = (name, id(fold), seed)  # folds live as long as the call of select
            if key not in self.found:
                before = None if self.kept is None else self.kept.recall(name, fold, seed)
                self.found[key] = choose(fold, seed) if before is None else before
                if self.kept is not None and before is None and not self.clock.over:
                    self.kept.note(name, fold, seed, self.found[key])
            return self.found[key]

        return remembered

    @searched_on_rank0
    def greedy(self, fold: ScaledFold, seed: int) -> NDArray[np.int64]:
        """Greedy selection: what everything else has to beat."""
        return greedy(fold.train.to(self.device), self.constraints).panel()

    @searched_on_rank0
    def search(self, fold: ScaledFold, seed: int) -> NDArray[np.int64]:
        """Greedy, swaps, and walks from perturbed panels."""
        return search(
            fold.train.to(self.device), self.constraints, seed=seed, time_limit=self.clock.left()
        ).indices

    def penalised(self, ridge: float) -> Choose:
        """The search with a penalty, given as a share of the mean variance."""

        def choose(fold: ScaledFold, seed: int) -> NDArray[np.int64]:
            variance = float(fold.train.diagonal().mean())
            return search(
                fold.train.to(self.device),
                self.constraints,
                ridge=ridge * variance,
                stall=2,
                seed=seed,
                time_limit=self.clock.left(),
            ).indices

        return lambda fold, seed: on_rank0(lambda: choose(fold, seed))

    @searched_on_rank0
    def closed_form(self, fold: ScaledFold, seed: int) -> NDArray[np.int64]:
        """A concrete selector with the linear decoder solved, then swaps."""
        include, allowed = eligible(self.constraints, self._stats(fold), self.settings.k)
        found = fit_closed_form(
            fold.train,
            self.settings.k,
            include=include,
            allowed=allowed,
            seed=seed,
            device=self.device,
            costs=self.constraints.costs,
            cost_weight=self.constraints.cost_weight,
            on_row=self.stops,
        )
        self.history.setdefault("closed form", found.history)
        start = self.constraints.complete(
            obeying_features(found.logits[0], self.constraints, fold.train)
        )
        left = self.clock.left()
        return swap(fold.train.to(self.device), start, self.constraints, time_limit=left).indices

    @searched_on_rank0
    def for_the_network(self, fold: ScaledFold, seed: int) -> NDArray[np.int64]:
        """Swaps judged by a stand-in for the network, from the best proposal so far."""
        begun = [panel for (_, at, _), panel in self.found.items() if at == id(fold)]
        n = len(fold.train_index)
        mean = torch.from_numpy((fold.mean.numpy() - fold.center) / fold.scale)
        return network_swaps(
            self.rows(fold),
            Covariance(n, mean, fold.train),
            begun or [self.search(fold, seed)],
            self.constraints,
            seed=seed,
            device=self.device,
            labels=self.labels(fold),
            time_limit=self.clock.left(),
        )

    @searched_on_rank0
    def random_features(self, fold: ScaledFold, seed: int) -> NDArray[np.int64]:
        """A concrete selector with a decoder on random features solved."""
        part = self.rows(fold)
        include, allowed = eligible(self.constraints, self._stats(fold), self.settings.k)
        found = fit_random_features(
            part,
            self.settings.k,
            include=include,
            allowed=allowed,
            seed=seed,
            device=self.device,
            on_row=self.stops,
        )
        self.history.setdefault("random features", found.history)
        return self.constraints.complete(
            obeying_features(found.logits[0], self.constraints, fold.train)
        )

    def gradient(self, fold: ScaledFold, seed: int) -> NDArray[np.int64]:
        """The paper's method, with the decoder that was asked for."""
        part = self.rows(fold)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FewerWarning)
            fit = fit_gradient(
                part,
                moments(part),
                self.gradient_settings(fold),
                loss=make_loss("mse"),
                seed=seed,
                constraints=self.constraints,
                groups=self.labels(fold),
            )
        self.history.setdefault("gradient", fit.history)
        return fit.columns

    def gradient_settings(self, fold: ScaledFold) -> TrainingConfig:
        """Options for training on a fold: the decoder comes later, the time is limited."""
        kept = None if self.kept is None else self.kept.training("gradient", fold)
        return replace(self.settings, refit="none", on_epoch=self.stops, checkpoint=kept)

    def stops(self, row: dict[str, Any]) -> bool:
        """Whether a training that has come so far has to end."""
        return self.clock.over

    def _stats(self, fold: ScaledFold) -> Moments:
        """What `eligible` needs to know: which features vary in this fold."""
        variance = fold.train.diagonal().numpy()
        zero = np.zeros(len(variance))
        return Moments(
            n=len(fold.train_index),
            observed=np.full(len(variance), len(fold.train_index)),
            mean=zero,
            variance=variance,
            minimum=zero,
            maximum=variance,
        )
