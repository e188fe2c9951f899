"""``decoder="auto"``: a linear predictor of the target, or an ensemble, as held-out rows prefer."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fewer import distributed
from fewer.data.source import Source, is_remote
from fewer.search import greedy
from fewer.selection.compare import random_parts
from fewer.selection.compare_predictors import JACKKNIFE_PARTS, TargetComparison
from fewer.selection.context import SelectionContext
from fewer.selection.strategies import (
    features_weight,
    joint_covariance,
    joint_penalty,
    network_swaps_panel,
)
from fewer.selection.target import TargetData
from fewer.train import TrainingConfig
from fewer.train.ensemble import Ensemble
from fewer.validation import Fold

__all__ = ["AUTO", "is_auto", "resolve_decoder", "with_predictor"]

AUTO = "auto"
COMPARED = (100,)  # hidden units of the networks that panels are compared with
FEWEST_ROWS = 600  # with a label: with fewer, held-out rows hardly tell which predictor is better
TRIED = Ensemble(COMPARED, 3)
LINEAR = ("weights", "noise")  # options with which the predictor is linear
CLEAR = 2.0  # standard errors by which networks have to be better where one fold decides
TRAININGS = 6  # per fold, in all that follows: so many share a time limit
FEWEST_GROUPS = 3  # held-out groups of rows that tell how much they differ

Columns = NDArray[np.int64]


def is_auto(decoder: Any) -> bool:
    """Whether the decoder is left open."""
    return isinstance(decoder, str) and decoder == AUTO


def resolve_decoder(
    options: dict[str, Any], target: TargetData | None, source: Source
) -> tuple[Any, bool]:
    """The decoder that panels are compared with, and whether it is linear.

    "auto" is linear without a target, and where only linear decoders are possible or few rows have
    a label; otherwise it is a network, unless held-out rows prefer a linear predictor.
    """
    decoder = options["decoder"]
    if is_auto(decoder):
        exact = options["robust_to"] or any(options[name] is not None for name in LINEAR)
        exact = exact or is_remote(source) or distributed.world_size() > 1
        few = target is None or len(target.known) < FEWEST_ROWS
        decoder = "linear" if exact or few else COMPARED
    return decoder, TrainingConfig(k=1, decoder=decoder).linear


def with_predictor(context: SelectionContext) -> SelectionContext:
    """The context, where a decoder was left open: linear unless held-out rows prefer networks.

    Both predict from the panels of greedy selection for the target or, if networks are not better
    then, these from a panel after network swaps on the first fold, since they may need other
    features. The first fold also decides if that is clear.
    """
    if not context.chooses_predictor:
        return context
    config = replace(context.config, decoder="linear")
    linear = replace(context, config=config, chooses_predictor=False)
    context.plan.say("comparing a linear predictor with networks ...")
    folds = context.covariances.folds
    context.budget.per_training(TRAININGS * len(folds) + 2)
    panels = [_greedy_panel(context, folds[0])]
    if len(folds) > 1 and _gain(linear, context, panels, panels) > CLEAR:
        return context
    panels += [_greedy_panel(context, fold) for fold in folds[1:]]
    if _gain(linear, context, panels, panels) > 0:
        return context
    searches = isinstance(context.strategies, str) or "search" in context.strategies
    if context.budget.exhausted or not searches:
        return linear
    context.budget.allocate(2)
    swapped = [network_swaps_panel(context, folds[0], panels[:1])]
    return context if _gain(linear, context, panels[:1], swapped) > CLEAR else linear


def _greedy_panel(context: SelectionContext, fold: Fold) -> Columns:
    C = joint_covariance(context, fold, features_weight(context, fold))
    rules = context.constraints.followed_by(len(C) - context.constraints.d)
    return greedy(C.to(context.search_device), rules, ridge=joint_penalty(fold, C)).panel()


def _gain(
    linear: SelectionContext,
    networks: SelectionContext,
    panels: Sequence[Columns],
    others: Sequence[Columns],
) -> float:
    """By how many standard errors networks on other panels have less error on held-out rows.

    The standard error of the difference is the jackknife's over parts of the rows, or of groups of
    rows if several are held out.
    """
    (own, parts), (other, other_parts) = _errors(linear, panels), _errors(networks, others)
    gap, gaps = own - other, parts - other_parts
    if not gap > 0:  # nor where a network has diverged
        return 0.0
    spread = ((len(gaps) - 1) * float(np.var(gaps))) ** 0.5 if len(gaps) else 0.0
    return gap / spread if spread > 0 else np.inf


def _errors(
    context: SelectionContext, panels: Sequence[Columns]
) -> tuple[float, NDArray[np.float64]]:
    """The mean error over folds, and what it is without each of some parts of the held-out rows.

    A fold has an error of its own: hazards, for one, are comparable within a fold only.
    """
    assert context.target is not None
    comparison = TargetComparison(context, target=context.target)
    comparison.predictor = None if context.config.linear else TRIED
    errors, without = [], []
    for panel, fold in zip(panels, context.covariances.folds, strict=False):
        output, rows = comparison.predictions([panel], [fold])
        groups = context.groups_of(rows)
        if groups is not None and len(np.unique(groups)) < FEWEST_GROUPS:
            groups = None
        count = -(-JACKKNIFE_PARTS // len(panels))
        parts = random_parts(len(rows), groups, count, context.seed)
        kept = [np.arange(len(rows)), *(np.flatnonzero(parts != at) for at in np.unique(parts))]
        whole, *changed = (
            comparison.error_of(output[torch.from_numpy(some)], torch.empty(0), rows[some])
            for some in kept
        )
        errors.append(whole)
        without.append(np.array(changed) - whole)
    mean = float(np.mean(errors))
    return mean, mean + np.concatenate(without) / len(errors)
