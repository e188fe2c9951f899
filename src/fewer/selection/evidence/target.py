"""Evidence for a panel with a target: its predictions, baselines, gains and substitutes."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fewer.data.factored import Matrix
from fewer.data.moments import Summary
from fewer.kinds import Classes, Kind, Ordinal, Several, Survival, survival_by_risk
from fewer.search import greedy, swap
from fewer.search.greedy import nested
from fewer.search.substitutes import substitutes
from fewer.selection.compare import Candidate
from fewer.selection.compare_predictors import TargetComparison
from fewer.selection.context import SelectionContext
from fewer.selection.strategies import (
    HARDLY,
    LABEL_FREE,
    features_weight,
    joint_covariance,
    joint_penalty,
    search_panel,
)
from fewer.train.surrogate import RandomFeatureSurrogate
from fewer.validation import Fold

__all__ = ["describe_target", "usefulness"]

SURROGATE: dict[str, Any] = {"width": 256, "rows": 2000, "folds": 4}
MOST_ORDERED = 24  # columns that a surrogate orders, within seconds
LITTLE = 0.01  # of the variance of the target: held-out rows hardly tell less from nothing
DRAWS = 3  # random panels
SHARES = (0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99)  # of reconstruction, on the trade-off curve
# numbers that a predictor of all features reads or, where classes are solved exactly, computes
MOST_READ, MOST_SOLVED = 2**27, 2**23
SHOWN = 400  # held-out rows of the plot of numbers

Columns = NDArray[np.int64]
Floats = NDArray[np.float64]


def objective(context: SelectionContext) -> Matrix:
    """The covariance of features and target of all rows, as much as each counts."""
    everything = context.covariances.everything
    return joint_covariance(context, everything, features_weight(context, everything, least=HARDLY))


def usefulness(
    context: SelectionContext, columns: Columns, count: int
) -> tuple[Columns, Floats, Columns, Floats, Floats | None]:
    """Columns by usefulness for the target, gain of each, best substitutes and their losses.

    Last, of a network, what is lost without each. Gains and losses are fractions of the variance
    of the target (for classes, of their indicators, each class counting the same) that a linear map
    explains. A network is represented by the surrogate that judges swaps, on held-out rows, which
    also orders up to `MOST_ORDERED` columns. With a linear map, where reconstructing the features
    counts as well, fractions are of the variance of both, weighted.
    """
    everything, C = context.covariances.everything, objective(context)
    trace = float(C.trace()) or 1.0
    penalty = joint_penalty(everything, C)
    order, gains = nested(C, columns, penalty)
    surrogate = None
    if not context.config.linear:
        surrogate = _Surrogate(context, everything, order)
        if len(order) <= MOST_ORDERED:
            order = surrogate.ordered(order)
    best, lost = substitutes(C, order, context.constraints, ridge=penalty, count=count)
    if surrogate is None:
        return order, gains / trace, best, lost / trace, None
    # a network may need what has nothing to do with the target by itself, and so its relatives
    own, penalty = everything.matrix().cpu(), everything.penalty(0.0)
    alike = substitutes(own, order, context.constraints, ridge=penalty, count=count)[0]
    rows = [list(dict.fromkeys([*one, *other])) for one, other in zip(best, alike, strict=True)]
    tried = np.full((len(order), 2 * count), -1)
    for row, found in zip(tried, rows, strict=True):
        row[: len(found)] = found
    tried, losses = surrogate.substituted(order, tried)
    without = surrogate.lost_without(order)
    return order, surrogate.gains(order), tried[:, :count], losses[:, :count], without


class _Surrogate:
    """What a network can predict from columns, as held-out rows tell by a surrogate of it.

    Everything is a fraction of the variance of the target.
    """

    def __init__(self, context: SelectionContext, fold: Fold, columns: Columns) -> None:
        assert context.target is not None
        rows = context.target.rows(fold.train_rows)
        self.constraints = context.constraints
        self.model = RandomFeatureSurrogate(
            fold.rows(rows),
            Summary(fold.n_train, fold.scaled_mean, fold.matrix().cpu()),
            k=len(columns),
            seed=context.seed,
            device=context.device,
            labels=context.groups_of(rows),
            targets=context.target.centred(rows),
            weights=context.target.weights_of(rows),
            **SURROGATE,
        )
        self.nothing = float(self.model.squares.sum()) / self.model.inputs[:, 1:].numel()

    def errors(self, panels: Sequence[Columns]) -> Floats:
        """What panels leave; of an empty one, everything."""
        known = iter(self.model.errors([np.sort(panel) for panel in panels if len(panel)]))
        return np.array([next(known) / self.nothing if len(panel) else 1.0 for panel in panels])

    def gains(self, order: Columns) -> Floats:
        """What each column adds to those before it."""
        return -np.diff(self.errors([order[:size] for size in range(len(order) + 1)]))

    def lost_without(self, order: Columns) -> Floats:
        """What is lost without each column and its group."""
        return self.errors([self._rest(order, j) for j in order]) - self.errors([order])

    def ordered(self, columns: Columns) -> Columns:
        """Columns by what they add to those before, the most first.

        Where no other one adds much by itself, the one that the panel needs most is next: the
        factors of a product add nothing but together.
        """
        needed = dict(zip(columns.tolist(), self.lost_without(columns), strict=True))
        order: list[int] = []
        before = 1.0
        while rest := [j for j in columns.tolist() if j not in order]:
            left = self.errors([np.array([*order, j]) for j in rest])
            at = int(left.argmin())
            if before - left[at] < LITTLE:
                at = int(np.argmax([needed[j] for j in rest]))
            order.append(rest[at])
            before = float(left[at])
        return np.array(order, dtype=np.int64)

    def substituted(self, order: Columns, tried: Columns) -> tuple[Columns, Floats]:
        """Substitutes of each column (-1: none), best first, and what is lost with them."""
        places = np.argwhere(tried >= 0)
        swapped = [
            np.r_[self._rest(order, order[place]), self.constraints.complete([int(into)])]
            for (place, _), into in zip(places, tried[tried >= 0], strict=True)
        ]
        losses = np.full(tried.shape, np.nan)
        losses[tuple(places.T)] = self.errors(swapped) - self.errors([order])
        ranked = np.argsort(losses, axis=1, kind="stable")  # NaN is last
        ranks = partial(np.take_along_axis, indices=ranked, axis=1)
        return ranks(tried), ranks(losses)

    def _rest(self, order: Columns, column: Any) -> Columns:
        return np.setdiff1d(order, self.constraints.complete([int(column)]))


def describe_target(
    context: SelectionContext,
    comparison: TargetComparison,
    winner: Candidate,
    random: Sequence[Sequence[Columns]],
) -> dict[str, Any]:
    """Held-out scores of the panel and its baselines, and what it predicts, as JSON can hold it."""
    folds, target = context.covariances.folds, comparison.target
    output, rows = comparison.predictions(winner.panels, folds)
    scores = {"panel": comparison.score_of(output, rows)}
    truth = target.values[torch.from_numpy(rows)]
    if comparison.predictor is not None:  # baselines are predicted by one network each
        scores["one_network"] = comparison.score_of(
            *comparison.predictions(winner.panels, folds, 0)
        )
    free = [context.found.get((LABEL_FREE, fold.number)) for fold in folds]
    panels = [
        search_panel(context, fold) if one is None else one
        for fold, one in zip(folds, free, strict=True)
    ]
    # trained together, where they are networks
    for at, fold in enumerate(folds):
        comparison.train([panels[at], *(draw[at] for draw in random[:DRAWS])], fold)
    scores["label_free"] = comparison.score_of(*comparison.predictions(panels, folds, 0))
    draws = [comparison.score_of(*comparison.predictions(one, folds, 0)) for one in random[:DRAWS]]
    scores["random"] = float(np.mean(draws))
    if _trainable(context, target.outputs if target.classes is not None else 1):
        whole = [np.arange(context.source.shape[1])] * len(folds)
        scores["all"] = comparison.score_of(*comparison.predictions(whole, folds, 0))
    scores["constant"] = comparison.score_of(*_constant(comparison, folds))
    found: dict[str, Any] = {
        "metric": target.kind.metric,
        "note": target.kind.metric_note,
        "scores": scores,
        "rows": len(truth),
    }
    if context.reconstruct:
        found["tradeoff"] = _tradeoff(context, comparison, winner)
    if not isinstance(target.kind, Several):
        return found | _described(target.kind, output, truth)
    found["parts"] = [
        {
            "name": part.name,
            "kind": part.kind.name,
            "metric": part.kind.metric,
            "weight": part.weight,
            "score": score,
            **_described(part.kind, own, values),
        }
        for (part, own, values), score in zip(
            target.kind.each(output, truth), comparison.scores_of_parts(output, rows), strict=True
        )
    ]
    return found


def _described(kind: Kind, output: Tensor, truth: Tensor) -> dict[str, Any]:
    """What held-out rows are, and what they were predicted to be."""
    some = np.unique(np.linspace(0, len(truth) - 1, min(len(truth), SHOWN)).astype(int))
    if isinstance(kind, Survival):
        return {"survival": survival_by_risk(truth, output[:, 0])}
    if not isinstance(kind, Classes):
        return {"true": truth[some].tolist(), "predicted": output[some].tolist()}
    assert kind.classes is not None
    m, guess = len(kind.classes), torch.from_numpy(kind.ranks(output.numpy()))
    found: dict[str, Any] = {
        "confusion": torch.bincount(truth * m + guess, minlength=m * m).view(m, m).tolist(),
        "classes": [str(label) for label in kind.classes],
    }
    if isinstance(kind, Ordinal):
        gap = (guess - truth).abs().double()
        found["rank_error"], found["accuracy"] = (
            float(gap.mean()),
            float((gap == 0).double().mean()),
        )
    return found


def _tradeoff(
    context: SelectionContext, comparison: TargetComparison, winner: Candidate
) -> dict[str, list[float]]:
    """Held-out score and explained variance of linear searches for different shares, on one fold.

    The last point is the panel itself.
    """
    fold, constraints = context.covariances.folds[0], context.constraints
    panels, start = [], winner.panels[0]
    for share in SHARES:
        C = joint_covariance(context, fold, features_weight(context, fold, share))
        rules = constraints.followed_by(len(C) - constraints.d)
        penalty = joint_penalty(fold, C)
        starts = [start, greedy(C, rules, ridge=penalty).panel()]  # the last panel is close
        swapped = (swap(C, one, rules, ridge=penalty) for one in starts)
        start = min(swapped, key=lambda one: one.objective).indices
        panels.append(start)
    panels.append(winner.panels[0])
    comparison.train(panels, fold)
    whole = float(fold.held_diagonal.mean()) or 1.0
    return {
        "reconstruct": [*SHARES, context.reconstruct],
        "score": [comparison.score_of(*comparison.predictions([one], [fold], 0)) for one in panels],
        "explained": [1 - fold.error(one, known=True) / whole for one in panels],
    }


def _trainable(context: SelectionContext, classes: int) -> bool:
    """Whether training a predictor of all features takes no longer than the selection."""
    size = context.source.shape[0] * context.source.shape[1]
    exact = context.config.linear and classes > 1
    return size * classes <= MOST_SOLVED if exact else size <= MOST_READ


def _constant(comparison: TargetComparison, folds: Sequence[Fold]) -> tuple[Tensor, Columns]:
    """The best prediction that is the same for all rows, by the training rows."""
    target, outputs, rows = comparison.target, [], []
    for fold in folds:
        train_rows, held = comparison.rows(fold, 0)
        train, weights = target.values[torch.from_numpy(train_rows)], target.weights_of(train_rows)
        outputs.append(target.kind.constant(train, weights).expand(len(held), -1))
        rows.append(held)
    return torch.cat(outputs), np.concatenate(rows)
