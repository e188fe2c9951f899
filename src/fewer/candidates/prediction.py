"""Panels that predict a target: how they are proposed and compared."""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fewer.candidates.clock import Clock
from fewer.candidates.comparison import Candidate, Rows, repeat_close
from fewer.candidates.strategies import Strategies, searched_on_rank0
from fewer.candidates.training import trained_decoder
from fewer.candidates.wanted import Wanted
from fewer.constraints import Constraints
from fewer.data import Source, moments, read_blocks
from fewer.distributed import on_rank0
from fewer.errors import FewerWarning
from fewer.nn import MeasuredDecoder
from fewer.search import search
from fewer.train import TrainingConfig, fit_gradient
from fewer.train.folds import ScaledFold

__all__ = ["TargetComparison", "TargetStrategies"]

# what the other features together weigh beside the target: they only break ties
ASIDE = 0.01


@dataclass(frozen=True)
class TargetStrategies:
    """Proposals for a target, each from a fold of scaled rows and a seed."""

    plain: Strategies
    wanted: Wanted

    def search(self, fold: ScaledFold, seed: int) -> NDArray[np.int64]:
        """The features that reconstruct the others, which know nothing of the target."""
        return self.plain.search(fold, seed)

    @searched_on_rank0
    def for_the_target(self, fold: ScaledFold, seed: int) -> NDArray[np.int64]:
        """The search for a line from features to the target.

        The target joins the covariance as columns that cannot be chosen. A choice does not depend
        on the scale of what is chosen, so features made small count for little as targets.
        """
        y = self.wanted.columns(fold.train_index)
        n, d = y.shape[0], len(fold.train)
        cross = torch.zeros(d, y.shape[1], dtype=torch.float64)
        mean = torch.from_numpy((fold.mean.numpy() - fold.center) / fold.scale)
        for rows, x in read_blocks(self.plain.rows(fold)):
            cross += torch.nan_to_num(x - mean, nan=0.0).T @ y[rows]
        own = y.T @ y / n
        small = (ASIDE * own.trace() / fold.train.trace().clamp_min(1e-300)).sqrt()
        top = torch.cat([small**2 * fold.train, small * cross / n], dim=1)
        joint = torch.cat([top, torch.cat([small * cross.T / n, own], dim=1)])
        found = search(
            joint.to(self.plain.device),
            _beside(self.plain.constraints, y.shape[1]),
            seed=seed,
            time_limit=self.plain.clock.left(),
        )
        return found.indices

    def gradient(self, fold: ScaledFold, seed: int) -> NDArray[np.int64]:
        """The paper's supervised selector, with the decoder that was asked for."""
        part = self.plain.rows(fold)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FewerWarning)
            fit = fit_gradient(
                part,
                moments(part),
                self.plain.gradient_settings(fold),
                loss=self.wanted.loss,
                seed=seed,
                targets=_in_own_units(self.wanted, fold.train_index),
                out=self.wanted.out,
                constraints=self.plain.constraints,
                groups=self.plain.labels(fold),
            )
        self.plain.history.setdefault("gradient", fit.history)
        return fit.columns


class TargetComparison:
    """Predictors of the target, trained on each proposal and compared on held-out rows.

    Parameters
    ----------
    rows : callable
        Scaled rows of a fold.
    constraints : Constraints
        Of the panels.
    settings : TrainingConfig
        Of the predictor and its training.
    seed : int
        Of the first training; later ones count on from it.
    wanted : Wanted
        The target.
    labels : callable
        Groups of the training rows of a fold, or None.
    clock : Clock
        Ends trainings that take too long.
    """

    def __init__(
        self,
        rows: Rows,
        constraints: Constraints,
        settings: TrainingConfig,
        seed: int,
        wanted: Wanted,
        labels: Callable[[ScaledFold], NDArray | None],
        clock: Clock,
    ) -> None:
        self.rows, self.constraints, self.settings = rows, constraints, settings
        self.seed, self.wanted, self.labels, self.clock = seed, wanted, labels, clock
        self.known: dict[tuple[bytes, int, int], MeasuredDecoder] = {}
        # several numbers count the same whatever their units; one stays in its own
        several = wanted.classes is None and wanted.out > 1
        self.unit = wanted.values.var(0) if several else torch.ones(1)

    def measure(self, candidate: Candidate, folds: Sequence[ScaledFold]) -> None:
        """Held-out loss: cross-entropy, or mean squared error."""
        self.clock.training(len(folds) + 1)
        candidate.errors = self._errors(candidate, folds, 0)

    def gives_up(self, candidate: Candidate, folds: Sequence[ScaledFold]) -> bool:
        """Never: there are three candidates at most."""
        return False

    def settle(self, candidates: Sequence[Candidate], folds: Sequence[ScaledFold]) -> None:
        """Train again from other starts where candidates are closer than luck."""
        if self.settings.linear:
            return  # solved, so without luck
        repeat_close(candidates, lambda c, repeat: self._errors(c, folds, repeat), self.clock)

    def fitted(
        self, candidate: Candidate, columns: NDArray[np.int64], fold: ScaledFold
    ) -> MeasuredDecoder:
        """The predictor for scaled rows."""
        return self._trained(columns, fold, self.seed)

    def score(self, candidate: Candidate, folds: Sequence[ScaledFold]) -> float:
        """Accuracy, or R squared, on held-out rows."""
        pairs = list(zip(folds, candidate.panels, strict=True))
        decoders = [self._trained(panel, fold, self.seed) for fold, panel in pairs]
        return on_rank0(lambda: self._score(pairs, decoders))

    def _score(
        self,
        pairs: Sequence[tuple[ScaledFold, NDArray[np.int64]]],
        decoders: Sequence[MeasuredDecoder],
    ) -> float:
        outputs, truths = [], []
        for (fold, panel), decoder in zip(pairs, decoders, strict=True):
            outputs.append(_outputs(decoder, self.rows(fold, fold.held_index), panel))
            truths.append(self.wanted.values[torch.from_numpy(fold.held_index)])
        output, truth = torch.cat(outputs), torch.cat(truths)
        if self.wanted.classes is not None:
            return float((output.argmax(1) == truth).double().mean())
        spread = (truth - truth.mean(0)).square().sum(0).clamp_min(1e-300)
        return 1.0 - float(((output - truth).square().sum(0) / spread).mean())

    def _errors(self, candidate: Candidate, folds: Sequence[ScaledFold], more: int) -> list[float]:
        found = []
        for fold, panel in zip(folds, candidate.panels, strict=True):
            decoder = self._trained(panel, fold, self.seed + more)
            found.append(on_rank0(partial(self._error, decoder, fold, panel)))
        return found

    def _error(self, decoder: MeasuredDecoder, fold: ScaledFold, panel: NDArray[np.int64]) -> float:
        output = _outputs(decoder, self.rows(fold, fold.held_index), panel)
        truth = self.wanted.values[torch.from_numpy(fold.held_index)]
        if self.wanted.classes is None:
            return float(((output - truth).square() / self.unit).mean())
        chance = output.gather(1, truth[:, None]).clamp_min(1e-9)
        return float(-chance.log().mean())

    def _trained(self, columns: NDArray[np.int64], fold: ScaledFold, seed: int) -> MeasuredDecoder:
        key = (columns.tobytes(), id(fold), seed)  # folds live as long as the call of select
        if key not in self.known:
            decoder = trained_decoder(
                self.rows(fold, fold.train_index),
                columns,
                self.settings,
                self.wanted.loss,
                seed,
                targets=_in_own_units(self.wanted, fold.train_index),
                out=self.wanted.out,
                groups=self.labels(fold),
                seconds=self.clock.training(1),
            )
            spread = self.wanted.spread(fold.train_index)
            decoder.out_center = decoder.out_center * spread
            decoder.out_scale = decoder.out_scale * spread
            self.known[key] = decoder
        return self.known[key]


def _in_own_units(wanted: Wanted, index: NDArray[np.int64]) -> Tensor:
    """The target of some rows; of several numbers each in units in which it varies by 1."""
    values = wanted.values[torch.from_numpy(index)]
    return values if wanted.classes is not None else values / wanted.spread(index)


@torch.no_grad()
def _outputs(decoder: MeasuredDecoder, source: Source, panel: NDArray[np.int64]) -> Tensor:
    return torch.cat([decoder(x[:, panel]) for _, x in read_blocks(source)])


def _beside(constraints: Constraints, more: int) -> Constraints:
    """The same rule where ``more`` columns follow that cannot be chosen."""
    d = constraints.d + more
    groups = constraints.groups
    if groups is not None:
        groups = np.concatenate([groups, groups.max() + 1 + np.arange(more)])
    costs = constraints.costs
    if costs is not None:
        costs = np.concatenate([costs, np.zeros(more)])
    shut = np.concatenate([constraints.exclude, np.arange(constraints.d, d)])
    return replace(constraints, d=d, exclude=shut, costs=costs, groups=groups)
