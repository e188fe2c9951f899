"""Networks that expect missing inputs: trained with inputs dropped, if held-out rows prefer that.

A panel completes missing inputs by their linear prediction before the network sees them. A network
that was trained on such inputs may do better with them, and worse without.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fewer import distributed
from fewer._checks import check_number
from fewer.data.moments import moments
from fewer.data.source import array_source, is_remote
from fewer.errors import InputError
from fewer.joint import precision_of
from fewer.nn import MeasuredDecoder
from fewer.nn.completion import complete
from fewer.selection.compare import FULL, Candidate, NetworkComparison, TrainedComparison
from fewer.selection.context import SelectionContext
from fewer.train import TrainingConfig, train_decoders
from fewer.train.training_data import prepare
from fewer.validation import Fold

__all__ = ["check_missing", "completed_inputs", "held_out_values", "prepare_for_missing"]

COPIES = 4  # of the training rows, each with other inputs missing
MOST_VALUES = 2**26  # of all copies
MOST_ROWS = 2000  # held-out rows that are reconstructed with missing inputs

Columns = NDArray[np.int64]


def check_missing(context: SelectionContext) -> None:
    """Refuse rates that are none, and decoders that need no training for missing inputs."""
    rate = context.expect_missing
    check_number("expect_missing", rate, least=0)
    if rate >= 1:
        raise InputError(f"expect_missing={rate!r} is a fraction of values, at least 0 and below 1")
    if rate and context.target is not None:
        raise InputError(f"expect_missing={rate} cannot be combined with target; drop one of them")
    if rate and context.config.linear:
        raise InputError(
            f"expect_missing={rate} is for networks: a linear decoder always uses the best "
            "prediction from what is there; leave it out, or give decoder=(64,)"
        )


def prepare_for_missing(
    context: SelectionContext,
    comparison: NetworkComparison,
    winner: Candidate,
    folds: Sequence[Fold],
) -> tuple[NetworkComparison, dict[str, Any] | None]:
    """Networks that do best on held-out rows with missing inputs, and what was compared.

    Either plain ones, or networks that are trained with inputs dropped at the expected rate.
    """
    units = len(np.unique(context.constraints.unit_of[winner.panels[0]]))
    rate = context.expect_missing or context.robust_to / units
    n, d = context.source.shape
    elsewhere = is_remote(context.source) or distributed.world_size() > 1
    if not rate or n * d > MOST_VALUES or elsewhere:
        return comparison, None
    trained = [key for key in comparison.decoders if key[2] == FULL]
    plain = {key: part for key, part in comparison.decoders.items() if key not in trained}
    dropped = DroppedInputs(context, comparison.errors, plain, rate=rate)
    errors = [
        float(np.mean([_error(one, winner, fold, rate) for fold in folds]))
        for one in (comparison, dropped)
    ]
    found = {"rate": rate, "error": errors[0], "error_dropped": errors[1]}
    return (dropped if errors[1] < errors[0] else comparison), found


@dataclass
class DroppedInputs(NetworkComparison):
    """Networks trained on rows whose inputs are dropped at a rate, and completed linearly."""

    rate: float = 0.0

    def train(
        self,
        panels: Sequence[Columns],
        fold: Fold,
        repeat: int = 0,
        config: TrainingConfig | None = None,
        tuned: float | None = None,
    ) -> list[MeasuredDecoder]:
        """As `TrainedComparison.train`; networks that only compare see all inputs."""
        if repeat != FULL:
            return super().train(panels, fold, repeat, config, tuned)
        keys = [(panel.tobytes(), fold.number, FULL) for panel in panels]
        for key, panel in zip(keys, panels, strict=True):
            if key not in self.decoders:
                self.decoders[key] = self._trained(panel, fold, config, tuned)
        return [self.decoders[key] for key in keys]

    def _trained(
        self, panel: Columns, fold: Fold, config: TrainingConfig | None, tuned: float | None
    ) -> MeasuredDecoder:
        context, rows = self.context, fold.train_rows
        x = fold.rows(rows).rows(slice(0, len(rows)), torch.float64)
        copies = max(1, min(COPIES, MOST_VALUES // x.numel()))
        rng = np.random.default_rng(context.seed)
        parts = [self._dropped(x[:, panel], panel, rng) for _ in range(copies)]
        inputs = torch.cat([completed_inputs(part, panel, fold) for part in parts])
        weights, mean = fold.decoder(panel), fold.scaled_mean
        guess = (completed_inputs(x[:, panel], panel, fold) - mean[panel]) @ weights + mean
        x = torch.where(torch.isnan(x), guess, x)
        source = array_source(inputs.numpy())
        config, loss = self.recipe(config or context.config, len(inputs))
        labels = context.groups_of(rows)
        groups = np.tile(rows if labels is None else labels, copies)
        data = prepare(
            source,
            moments(source),
            config,
            loss.apart_from(torch.from_numpy(panel)),
            context.seed,
            targets=x.float().repeat(copies, 1),
            out=x.shape[1],
            groups=groups,
        )
        places = np.arange(len(panel))
        seconds = context.budget.per_training(1)
        own = None if tuned is None else [tuned]
        found = train_decoders(
            data, [places], context.seed, groups=groups, seconds=seconds, tuned=own
        )[0]
        found.known = torch.from_numpy(panel)
        return found

    def _dropped(self, measured: Tensor, panel: Columns, rng: np.random.Generator) -> Tensor:
        return drop(measured, self.context.constraints.unit_of[panel], self.rate, rng)


def drop(measured: Tensor, units: Columns, rate: float, rng: np.random.Generator) -> Tensor:
    """Values of which units (features, or groups of them) are missing at random."""
    labels = np.unique(units, return_inverse=True)[1]
    gone = rng.random((len(measured), int(labels.max()) + 1)) < rate
    return measured.masked_fill(torch.from_numpy(gone[:, labels]), torch.nan)


def completed_inputs(measured: Tensor, panel: Columns, fold: Fold, ridge: float = 0.0) -> Tensor:
    """Inputs of a decoder, in scaled units, with missing ones predicted as on a panel."""
    ones = torch.ones(len(panel), dtype=torch.float64)
    precision = precision_of(fold.gram(panel), ridge, ones)
    return complete(measured, fold.scaled_mean[panel], precision)


def held_out_values(comparison: TrainedComparison, fold: Fold) -> tuple[Columns, Tensor]:
    """Some held-out rows of a fold, and their values in scaled units."""
    held = comparison.rows(fold, 0)[1]
    held = held[:: max(1, len(held) // MOST_ROWS)]
    return held, fold.rows(held).rows(slice(0, len(held)), torch.float64)


@torch.no_grad()
def _error(comparison: NetworkComparison, winner: Candidate, fold: Fold, rate: float) -> float:
    """Held-out error with inputs missing at a rate, the same ones for every comparison."""
    assert fold.number is not None
    panel, context = winner.panels[fold.number], comparison.context
    decoder = comparison.fit(winner, panel, fold)
    held, x = held_out_values(comparison, fold)
    rng = np.random.default_rng(context.seed + 1)
    measured = drop(x[:, panel], context.constraints.unit_of[panel], rate, rng)
    output = decoder(completed_inputs(measured, panel, fold))
    return comparison.error_of(output, x, held)
