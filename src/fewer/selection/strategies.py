"""Strategies: each proposes a panel from the training rows of a fold."""

import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fewer import distributed
from fewer._threads import mapped
from fewer.constraints import Constraints
from fewer.data.factored import FactoredCovariance, Matrix
from fewer.data.moments import Summary
from fewer.data.source import Source
from fewer.errors import FewerWarning
from fewer.kinds import Classes
from fewer.nn import make_loss
from fewer.search import greedy, search, swap
from fewer.search.greedy import ClassErrors
from fewer.search.objective import Penalty, penalty_at, residual_of, solve_normal
from fewer.selection.context import SelectionContext
from fewer.selection.filters import FILTERS, filter_panel
from fewer.train import (
    SelectorFit,
    choose_by_gradient,
    fit_closed_form,
    fit_random_features,
    network_swaps,
    refine,
)
from fewer.train.assignment import eligible, obeying_features
from fewer.train.referee import Referee, trained_swaps
from fewer.train.surrogate import network_elimination
from fewer.validation import Fold

__all__ = [
    "FILTERS_NAME",
    "HARDLY",
    "LABEL_FREE",
    "STRATEGIES",
    "Strategy",
    "features_weight",
    "joint_covariance",
    "joint_penalty",
    "network_elimination_panel",
    "network_swaps_panel",
    "propose",
    "propose_on_folds",
    "propose_side_by_side",
    "shortlist",
]

STRATEGIES = ("search", "closed_form", "gradient")
FILTERS_NAME = "filters"  # of features by their relation with a target
LABEL_FREE = "search, without target"
WITH_FEATURES = 0.25  # weight of reconstruction in a search for a target that it may help
FEWEST_FOR_FEATURES = 50  # rows: with fewer, half a batch says nothing
SEARCH_RIDGES = (1e-3, 1e-2, 1e-1)  # in units of the mean variance
NOISY_RIDGES = (0.3, 3.0)  # where the noise of each feature is a penalty already
# rounds without progress that end a search with a penalty, and one that another search continues
FEW_ROUNDS, SOME_ROUNDS = 2, 3
LONG_SEARCH = 2**17  # chosen features times all features: beyond, only swaps on folds that score
FEW_STARTS = 4  # of a search whose panel is compared with others, and improved
FEATURE_STEPS, FEATURE_RATE = 200, 0.2  # of a selector on random features, which swaps improve
SOME_SWAPS = 8  # rounds of network swaps on one of several folds
MANY_ROWS = 20_000  # from which a further search takes little of the time
SMALL = 2000  # folds times features: beyond, the closed form on every fold takes too long
WIDEST_SIDE_BY_SIDE = 4096  # features: beyond, a single search occupies all cores
QUICK_SWAPS = 2**27  # multiplications that score all swaps: beyond, only promising ones on folds
SHORT_STEP = 2**20  # values per operation
CHOICE_BATCH = 128  # rows: a choice needs many steps rather than exact ones
# Of one panel for noisy features and classes: how much of the noise is a target, too, and what is
# added to all variances of inputs, in units of the mean variance, so that quiet features, which a
# decoder with a penalty uses little, count little
OWN_NOISE, QUIET = 0.3, 1.0
TELLING = 80  # features: telling classes counts as much beside one of k as if all of k were so many
HARDLY = 1e-6  # weight of the features as targets, where only the target counts
LEAST_REST = 1e-6  # of the variance: less is nothing
TELLING_ROUNDS, LEAST_TOLD = 3, 1e-3  # panels that show how well classes can be told, and less
FEATURES_WEIGHT = 0.01  # of all features together, relative to the target: they only break ties

Columns = NDArray[np.int64]
Propose = Callable[[SelectionContext, Fold], Columns]


@dataclass(frozen=True)
class Strategy:
    """A way to propose a panel from the training rows of a fold."""

    name: str  # as in the leaderboard
    run: Propose
    all_ranks: bool = False  # run by all processes together, not by rank 0 alone
    searches: bool = False  # a covariance, with a penalty
    restarts: bool = False  # on all rows it starts from the panels that it found on the folds
    on_gpu: bool = False  # if there is one
    weight: float = 0.2  # roughly what it takes, relative to training one decoder
    improves_found: bool = False  # it improves the panels of other strategies, so it runs last
    reruns: bool = True  # on all rows, if its panel from the training rows won


def propose(context: SelectionContext, strategy: Strategy, fold: Fold) -> Columns:
    """The panel of a strategy on a fold, on every rank; recalled if it is already known."""
    panel = _recall(context, strategy, fold)
    if panel is None:
        if strategy.all_ranks:
            panel = strategy.run(context, fold)
        else:
            panel, history = distributed.on_rank0(
                lambda: (strategy.run(context, fold), context.history)
            )
            context.history.update(history)
        _record(context, strategy, fold, panel)
    context.found[strategy.name, fold.number] = panel
    return panel


def propose_on_folds(
    context: SelectionContext, strategy: Strategy, folds: Sequence[Fold]
) -> list[Columns]:
    """The panels of a strategy on several folds, in parallel where a search leaves cores idle."""
    new = [fold for fold in folds if _recall(context, strategy, fold) is None]
    wide = context.covariances.factored or context.source.shape[1] > WIDEST_SIDE_BY_SIDE
    if len(new) > 1 and not wide and not strategy.all_ranks and context.search_device.type == "cpu":
        run, stop = partial(strategy.run, context), context.budget.cancel
        most = 2 if context.short_search else None
        found = distributed.on_rank0(lambda: mapped(run, new, most=most, on_error=stop))
        for fold, panel in zip(new, found, strict=True):
            _record(context, strategy, fold, panel)
    return [propose(context, strategy, fold) for fold in folds]


def propose_side_by_side(
    context: SelectionContext, strategies: Sequence[Strategy], fold: Fold
) -> dict[str, float]:
    """Run strategies that do not depend on others in parallel, one per core; the seconds of each.

    `propose` then recalls their panels. A search consists of thousands of steps that are too short
    to be shared between cores; whole searches are not. Those that use a GPU do so one after the
    other; and more than two or three that take short steps would wait for each other, in Python.
    """
    several = distributed.world_size() > 1
    alone = [
        one for one in strategies if not one.improves_found and not (one.all_ranks and several)
    ]
    new = [one for one in alone if _recall(context, one, fold) is None]
    factored = context.covariances.factored
    wide = context.source.shape[1] > WIDEST_SIDE_BY_SIDE and not factored
    if len(new) < 2 or wide:
        return {}
    if factored and new[0].name == "greedy":  # the others start from it
        propose(context, new.pop(0), fold)
    new.sort(key=lambda one: -one.weight)  # the longest ones first
    lines = [[one] for one in new]
    if context.device.type == "cuda":
        # one line: while a graph is recorded, nothing else may draw random numbers on the GPU
        there = context.search_device.type == "cuda"
        lines = [[one for one in new if one.on_gpu or there]]
        lines += [[one] for one in new if one not in lines[0]]

    def run(line: list[Strategy]) -> list[tuple[str, Columns, float]]:
        found = []
        for strategy in line:
            start = time.perf_counter()
            panel = strategy.run(context, fold)
            found.append((strategy.name, panel, time.perf_counter() - start))
        return found

    def run_all() -> tuple[list[tuple[str, Columns, float]], dict[str, list[dict[str, Any]]]]:
        fold.matrix_for_choice()  # assembled before the threads share it
        most = 2 if context.short_search else 3 if context.device.type == "cuda" else None
        found = mapped(run, [line for line in lines if line], most=most, on_error=budget.cancel)
        return list(chain(*found)), context.history

    budget = context.budget
    found, history = distributed.on_rank0(run_all)
    context.history.update(history)
    panels = {name: panel for name, panel, _ in found}
    for strategy in new:
        _record(context, strategy, fold, panels[strategy.name])
    return {name: seconds for name, _, seconds in found}


def _recall(context: SelectionContext, strategy: Strategy, fold: Fold) -> Columns | None:
    """The panel that a strategy proposed on a fold, in this call or an interrupted one."""
    found = context.found.get((strategy.name, fold.number))
    if found is None and context.checkpoint is not None:
        found = context.checkpoint.recall(strategy.name, fold)
    return found


def _record(context: SelectionContext, strategy: Strategy, fold: Fold, panel: Columns) -> None:
    context.found[strategy.name, fold.number] = panel
    if context.checkpoint is not None and not context.budget.slot_over:
        context.checkpoint.record(strategy.name, fold, panel)


def _search_ridges(context: SelectionContext) -> tuple[float, ...]:
    if context.covariances.noise is not None:
        return NOISY_RIDGES
    return SEARCH_RIDGES if context.config.linear else SEARCH_RIDGES[-1:]


def folds_are_plain(context: SelectionContext) -> bool:
    """Whether a penalty is the same for all features, and what is measured is the truth."""
    covariances = context.covariances
    return covariances.noise is None and covariances.scaling.weights is None


def shortlist(context: SelectionContext) -> list[Strategy]:
    """Strategies to compare, with those that build on others last."""
    constraints, asked = context.constraints, context.strategies
    linear = context.config.linear
    folds, rows = len(context.compared_folds), context.source.shape[0]
    if constraints.only_choice:
        return [Strategy("only choice", greedy_panel)]
    if context.target is not None:
        return _shortlist_for_target(context)
    if asked == "auto":
        few = 2 if folds * constraints.d <= SMALL else 1
        few = few if folds_are_plain(context) else 1
        asked = STRATEGIES[:few] if linear else STRATEGIES
    plain = Strategy("greedy", greedy_panel, weight=0.02)
    found = [plain] if linear else []
    if "search" in asked:
        found.append(Strategy("search", search_panel, searches=True, restarts=True))
        if folds > 1:
            found += [
                Strategy(
                    f"search, ridge {ridge:g}", partial(search_panel, ridge=ridge), searches=True
                )
                for ridge in _search_ridges(context)
            ]
    if not linear:
        found.append(plain)
    if "closed_form" in asked:
        found.append(Strategy("closed form, swaps", closed_form_panel, on_gpu=True))
        if not linear and rows >= FEWEST_FOR_FEATURES:
            features = Strategy("random features", random_features_panel, on_gpu=True, weight=5.0)
            found.append(features)
    if "gradient" in asked:
        found.append(GRADIENT)
    if "search" in asked and not linear:
        found.append(NETWORK_SWAPS)
        if _has_referee(context):
            found.append(TRAINED_SWAPS)
    return found


def _has_referee(context: SelectionContext) -> bool:
    """Whether trained networks judge swaps: many of them at once, with enough rows to tell."""
    plain = context.loss == "mse" and not context.expect_missing
    single = len(context.covariances.folds) == 1
    return plain and single and Referee.judges(context.config, context.source.shape, context.device)


def _shortlist_for_target(context: SelectionContext) -> list[Strategy]:
    asked = (*STRATEGIES, FILTERS_NAME) if context.strategies == "auto" else context.strategies
    # of noisy features and classes one search is for both, and others are not compared with it
    both = for_both(context) and "search" in asked
    # always there: what knowing the target has to beat
    found = [] if both else [Strategy(LABEL_FREE, search_panel)]
    scaled = context.covariances.scaling.how == "standard" and not context.covariances.factored
    if scaled and not both and "search" in asked and context.source.shape[0] >= MANY_ROWS:
        # features that hardly ever vary, such as pixels at a margin, then hardly count
        run = partial(search_panel, in_data_units=True)
        found.append(Strategy(f"{LABEL_FREE}, unscaled", run))
    if "search" in asked:
        found.append(Strategy("search", supervised_search_panel))
    if "search" in asked and not both:
        share = 0.0 if context.reconstruct else WITH_FEATURES
        other = "search, target only" if context.reconstruct else "search, target and features"
        run = partial(supervised_search_panel, share=share)
        found.append(Strategy(other, run))
    if FILTERS_NAME in asked and not (both and context.strategies == "auto"):
        found += [Strategy(name, partial(filter_panel, name=name), weight=0.05) for name in FILTERS]
    if "gradient" in asked:
        found.append(GRADIENT)
    enough = context.source.shape[0] >= FEWEST_FOR_FEATURES
    if "search" in asked and enough and not context.config.linear:
        found.append(NETWORK_SWAPS)
    return found


def greedy_panel(context: SelectionContext, fold: Fold) -> Columns:
    """Greedy selection, the baseline."""
    C = fold.matrix_for_choice().to(context.search_device)
    return greedy(C, context.constraints, ridge=fold.penalty_for_choice(C)).panel()


def search_panel(
    context: SelectionContext,
    fold: Fold,
    initial: Sequence[Columns] = (),
    ridge: float = 0.0,
    in_data_units: bool = False,
) -> Columns:
    """The search for a linear decoder, with a penalty in units of the mean variance.

    Where rows are many it is shorter, since the search on all rows starts there, and shortest on
    the folds that only score the winner.
    On folds of wide data it ends with the first swaps, of very wide data with those of the most
    promising features: rows are too few to tell what more would find, and the search on all rows,
    with the penalty that did best, is the one that matters.
    """
    compared = fold.number is not None and fold.number < len(context.compared_folds)
    single = len(context.compared_folds) == 1 and fold.number is not None
    stall = FEW_ROUNDS if ridge else SOME_ROUNDS if single else None
    starts = None
    if fold.number is not None and not compared:
        stall, starts = int(context.config.k * context.source.shape[1] <= LONG_SEARCH), FEW_STARTS
    if context.target is not None or not context.config.linear:  # it is not the last word
        stall, starts = 1, _few_starts(context)
    # a penalty is the other remedy for chance correlations: held-out rows tell which is better
    C = fold.matrix() if ridge else fold.matrix_for_choice()
    C, unit = C.to(context.search_device), float(fold.variance.mean())
    penalty = fold.penalty(ridge * unit) if ridge else fold.penalty_for_choice(C)
    if in_data_units and not isinstance(C, FactoredCovariance):
        scale = torch.from_numpy(fold.scale)
        penalty = penalty * scale.square() if isinstance(penalty, Tensor) else 0.0
        C = C * scale.to(C.device) * scale.to(C.device)[:, None]
    if context.covariances.factored and fold.number is not None and not single:
        start = context.found.get(("greedy", fold.number))
        start = greedy_panel(context, fold) if start is None else start
        work = fold.n_train * len(C) * context.constraints.most_units
        options: dict[str, Any] = {"thorough": work < QUICK_SWAPS, "ridge": penalty}
        options["time_limit"] = context.budget.remaining()
        return swap(C, start, context.constraints, **options).indices
    if context.covariances.factored:
        stall = FEW_ROUNDS
    return search(
        C,
        context.constraints,
        ridge=penalty,
        stall=stall,
        starts=starts,
        seed=context.seed,
        time_limit=context.budget.remaining(),
        initial=initial,
    ).indices


def _few_starts(context: SelectionContext) -> int | None:
    """As many as a search would take by itself where it runs on a GPU or takes long steps."""
    return FEW_STARTS if context.short_search and context.search_device.type == "cpu" else None


def closed_form_panel(context: SelectionContext, fold: Fold) -> Columns:
    """A concrete selector with an exact linear decoder, then swaps."""
    constraints, C = context.constraints, fold.matrix()
    fit = partial(fit_closed_form, C, costs=constraints.costs, cost_weight=constraints.cost_weight)
    start = _selected(context, fold, "closed form", fit)
    options: dict[str, Any] = {"time_limit": context.budget.remaining()}
    options["ridge"] = fold.penalty(0.0)
    return swap(C.to(context.search_device), start, constraints, **options).indices


def random_features_panel(context: SelectionContext, fold: Fold) -> Columns:
    """A concrete selector with an exact decoder on random features."""
    fit = partial(fit_random_features, fold.train_source, learning_rate=FEATURE_RATE)
    fit = partial(fit, steps=FEATURE_STEPS)
    return _selected(context, fold, "random features", fit, FEATURE_STEPS)


def _selected(
    context: SelectionContext,
    fold: Fold,
    name: str,
    fit: Callable[..., SelectorFit],
    steps: int | None = None,
) -> Columns:
    constraints, k = context.constraints, context.config.k
    include, allowed = eligible(constraints, fold.variance, k)
    found = fit(
        k,
        include=include,
        allowed=allowed,
        seed=context.seed,
        device=context.device,
        on_row=_stop_when_over(context, steps),
    )
    context.history.setdefault(name, found.history)
    return constraints.complete(obeying_features(found.logits[0], constraints, fold.matrix))


def network_swaps_panel(
    context: SelectionContext, fold: Fold, starts: Sequence[Columns] = ()
) -> Columns:
    """Swaps scored with a surrogate of the network, from the best of some panels.

    By default, those are all that were proposed so far.
    """
    starts = list(starts) or [
        panel for (_, number), panel in context.found.items() if number == fold.number
    ]
    several = len(context.covariances.folds) > 1
    source, summary, options = _for_surrogate(context, fold)
    return network_swaps(
        source,
        summary,
        starts or [search_panel(context, fold)],
        context.constraints,
        rounds=SOME_SWAPS if several and fold.number is not None else None,
        further=None if fold.number is not None else 0,  # all rows: it goes on from there
        time_limit=context.budget.remaining(),
        linear=None if context.target is None else _joint_covariance(context, fold),
        **options,
    )


def network_elimination_panel(
    context: SelectionContext, fold: Fold, panel: Columns
) -> Columns | None:
    """The part of a panel that a surrogate of the network needs most; None if none is allowed."""
    source, summary, options = _for_surrogate(context, fold)
    return network_elimination(source, summary, panel, context.constraints, **options)


def _for_surrogate(context: SelectionContext, fold: Fold) -> tuple[Source, Summary, dict[str, Any]]:
    """Training rows of a fold, their covariance, and what a surrogate of the network predicts."""
    rows, targets, weights = fold.train_rows, None, None
    if context.target is not None:
        rows = context.target.rows(rows)
        targets, weights = context.target.centred(rows), context.target.weights_of(rows)
    options: dict[str, Any] = {
        "seed": context.seed,
        "device": context.device,
        "labels": context.groups_of(rows),
        "targets": targets,
        "weights": weights,
        "reconstruct": context.reconstruct,
    }
    summary = Summary(fold.n_train, fold.scaled_mean, fold.matrix().cpu())
    return fold.rows(rows), summary, options


NETWORK_SWAPS = Strategy(
    "search, network swaps", network_swaps_panel, improves_found=True, weight=2.0
)


def trained_swaps_panel(context: SelectionContext, fold: Fold) -> Columns:
    """Swaps judged by trained networks, from the panel of `network_swaps_panel`."""
    start = context.found.get((NETWORK_SWAPS.name, fold.number))
    config = replace(context.config, device=str(context.device))
    labels = context.groups_of(fold.train_rows)
    referee = Referee(fold.train_source, context.constraints, config, context.seed, labels)
    summary = Summary(fold.n_train, fold.scaled_mean, fold.matrix().cpu())
    return trained_swaps(
        referee,
        search_panel(context, fold) if start is None else start,
        rank=referee.ranking(summary),
        time_limit=context.budget.remaining(),
    )


TRAINED_SWAPS = Strategy(
    "search, trained networks", trained_swaps_panel, improves_found=True, reruns=False, weight=2.0
)


def supervised_search_panel(
    context: SelectionContext, fold: Fold, share: float | None = None
) -> Columns:
    """The search for a linear map from features to the target and, with ``share``, to features."""
    if share is None and for_both(context):
        return _panel_for_both(context, fold)
    if share is None:
        joint = _joint_covariance(context, fold)
    else:
        joint = joint_covariance(context, fold, features_weight(context, fold, share))
    found = search(
        joint.to(context.search_device),
        context.constraints.followed_by(len(joint) - context.constraints.d),
        ridge=joint_penalty(fold, joint),
        stall=None if context.config.linear else 0,  # swaps for the network follow
        seed=context.seed,
        time_limit=context.budget.remaining(),
    )
    return found.indices


def for_both(context: SelectionContext) -> bool:
    """Whether a panel is for noisy features and for classes: a greedy search for both at once."""
    target, noise = context.target, context.covariances.noise
    classes = target is not None and target.kind.name == Classes.name
    return classes and noise is not None and context.reconstruct > 0


def _panel_for_both(context: SelectionContext, fold: Fold) -> Columns:
    """Greedy selection for features and classes at once, where features are noisy.

    What the features explain counts relative to the most that greedy selection explains; the mean
    error of the classes is that of `fewer.search.greedy.ClassErrors`. The last of k features adds
    about 1 / k of what all explain, so the classes count in proportion to that. Part of the noise
    is a target, too: what a panel reproduces of the values as they are measured.
    """
    joint = _plain_joint_covariance(context, fold, 1.0)
    assert isinstance(joint, Tensor)
    d, device = len(fold.scale), context.search_device
    C, own = joint[:d, :d].clone(), joint.diagonal()[d:]
    penalty = joint_penalty(fold, joint)
    assert isinstance(penalty, Tensor)
    penalty = penalty[:d]
    ratio = float(C.trace()) / float(fold.matrix_for_choice().trace())
    measured = ratio * torch.from_numpy(fold.measured_variance)
    noise = OWN_NOISE * torch.minimum((measured - C.diagonal()).clamp_min(0.0), penalty)
    C.diagonal().add_(noise)
    units = context.covariances.scaling.weights
    unit = torch.ones(d) if units is None else torch.from_numpy(units).clamp_min(1e-12)
    inputs = (penalty - noise).to(device)
    penalty = inputs + (QUIET * unit * (measured / unit).mean()).to(device)
    C = C.to(device)
    plain = greedy(C, context.constraints, ridge=penalty)
    explained = float(C.trace()) + float(penalty.sum()) - float(plain.errors[-1])
    share = context.reconstruct
    classes = ClassErrors(
        joint[:d, d:].to(device),
        own.clamp_min(1e-300).to(device),
        (1 - own).clamp(0.0, 1.0).to(device),
        (1 - share) / share * TELLING / max(len(plain.order), 1) * explained,
        inputs,
    )
    return greedy(C, context.constraints, ridge=penalty, classes=classes).panel()


def _joint_covariance(context: SelectionContext, fold: Fold) -> Matrix:
    """`joint_covariance` of the search, kept for one fold at a time."""
    if fold.number not in context.joint:
        context.joint.clear()
        context.joint[fold.number] = joint_covariance(context, fold, features_weight(context, fold))
    return context.joint[fold.number]


def features_weight(
    context: SelectionContext,
    fold: Fold,
    share: float | None = None,
    least: float = FEATURES_WEIGHT,
) -> float:
    """Weight of the features as targets beside the target, for `joint_covariance`.

    With ``share`` (by default, how much reconstructing them counts) what is left of target and
    features counts relative to what the best panels for each alone leave, as greedy selection
    finds them; with known noise, relative to what these explain.
    """
    share = context.reconstruct if share is None else share
    if not share:
        return least
    C = fold.matrix_for_choice().to(context.search_device)
    rest = _unexplained(C, context.constraints, fold.penalty_for_choice(C))
    joint = joint_covariance(context, fold, HARDLY).to(context.search_device)
    rules = context.constraints.followed_by(len(joint) - context.constraints.d)
    missed = _unexplained(joint, rules, joint_penalty(fold, joint))
    if fold.noise is not None:  # most of what is left is noise, so what is explained counts
        missed, rest = 1 - missed, 1 - rest
    return max(least, share / (1 - share) * max(missed, LEAST_REST) / max(rest, LEAST_REST))


def _unexplained(C: Matrix, constraints: Constraints, penalty: Penalty) -> float:
    """Fraction of the variance that greedy selection leaves."""
    noise = float(penalty.sum()) if isinstance(penalty, Tensor) else 0.0
    panel = greedy(C, constraints, ridge=penalty).panel()
    return (residual_of(C, panel, penalty) - noise) / float(C.trace())


def joint_penalty(fold: Fold, joint: Matrix) -> Penalty:
    """The penalties of a fold's features in `joint_covariance`; targets are never inputs."""
    C, d = fold.matrix_for_choice(), len(fold.scale)
    penalty = fold.penalty_for_choice(C, 0.0)
    if not isinstance(penalty, Tensor):
        return penalty
    # features have been scaled by one number; with weights of rows their variances differ
    own = joint.diagonal()[:d].sum().cpu() / float(C.diagonal().sum())
    return torch.cat([penalty * own, penalty.new_zeros(len(joint) - d)])


def joint_covariance(context: SelectionContext, fold: Fold, features: float) -> Matrix:
    """The covariance of features and target of the training rows of a fold.

    Together, the features count as targets ``features`` times as much as the target. Where
    features are noisy, indicators of classes are scaled so that what a panel for them alone
    explains of each is the same: of a rare class it is little, however well it can be told.
    """
    joint = _plain_joint_covariance(context, fold, features)
    assert context.target is not None
    if fold.noise is None or context.target.kind.name != Classes.name:
        return joint
    assert isinstance(joint, Tensor)
    if fold.number not in context.told:
        context.told[fold.number] = _told(context, fold, joint)
    return _with_scaled_targets(joint, context.told[fold.number].rsqrt())


def _plain_joint_covariance(context: SelectionContext, fold: Fold, features: float) -> Matrix:
    """`joint_covariance` with the indicators of classes as they are."""
    assert context.target is not None
    C = fold.matrix_for_choice().cpu()
    rows = fold.matrix_rows if isinstance(C, FactoredCovariance) else fold.train_rows
    y, weights = context.target.centred(rows), context.target.all_weights(rows)
    products = None
    if isinstance(C, Tensor):
        products = _target_products(context, fold, y, weights)
    return refine.joint_covariance(
        C,
        fold.train_source,
        fold.scaled_mean,
        y,
        features=features,
        weights=weights,
        noise=fold.noise,
        chancy=fold.chancy,
        device=context.device,
        products=products,
    )


def _target_products(
    context: SelectionContext, fold: Fold, y: Tensor, weights: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """`target_products` of the rows of a fold, read once for all searches on it."""
    with context.reading:
        if fold.number not in context.products:
            context.products.clear()  # of one fold at a time
            context.products[fold.number] = refine.target_products(
                fold.train_source, fold.scaled_mean, y, weights, context.device
            )
        return context.products[fold.number]


def _told(context: SelectionContext, fold: Fold, joint: Tensor) -> Tensor:
    """The most that a panel for the classes alone explains of the indicator of each."""
    assert context.target is not None
    rules = context.constraints.followed_by(context.target.outputs)
    told = torch.full((context.target.outputs,), LEAST_TOLD, dtype=torch.float64)
    scale = torch.ones_like(told)
    joint = _with_scaled_targets(joint, scale, HARDLY)
    for _ in range(TELLING_ROUNDS):
        C = _with_scaled_targets(joint, scale)
        penalty = joint_penalty(fold, C)
        panel = greedy(C.to(context.search_device), rules, ridge=penalty).panel()
        rows, at = C[panel], torch.from_numpy(panel)
        decoder = solve_normal(rows[:, panel], rows, penalty_at(penalty, at))
        part = (decoder * rows).sum(0) / C.diagonal()
        told = torch.maximum(told, part[-len(told) :].clamp_max(1.0))
        scale = told.rsqrt()
    return told


def _with_scaled_targets(joint: Tensor, scale: Tensor, features: float | None = None) -> Tensor:
    """With targets multiplied by ``scale``, and features that count as much relative to them."""
    d = len(joint) - len(scale)
    own, other = joint.diagonal()[d:] * scale.square(), joint.diagonal()[:d].sum()
    ratio = own.sum() / joint.diagonal()[d:].sum()
    if features is not None:
        ratio = features * own.sum() / other
    by = torch.cat([ratio.sqrt().expand(d), scale])
    return joint * by * by[:, None]


def gradient_panel(context: SelectionContext, fold: Fold) -> Columns:
    """The paper's method: selector and decoder, or predictor, trained jointly on all ranks."""
    checkpoint, target = context.checkpoint, context.target
    config = replace(
        context.config,
        batch_size=min(context.config.batch_size, CHOICE_BATCH),
        refit="none",  # starts are compared with their own decoders
        checkpoint=None if checkpoint is None else checkpoint.for_training("gradient", fold),
    )
    d = context.constraints.d
    short = config.values_per_operation(d) < SHORT_STEP
    if short and callable(config.decoder) and distributed.world_size() == 1:
        config.device = "cpu"  # a GPU takes longer to start a step than a CPU to do it
    config.on_epoch = _stop_when_over(context, config.epochs_for(fold.n_train))
    loss = make_loss(context.loss) if target is None else target.loss
    rows = fold.train_rows if target is None else target.rows(fold.train_rows)
    data = context.training_data(fold, rows, config, loss, context.seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FewerWarning)
        columns, history = choose_by_gradient(data, context.seed, constraints=context.constraints)
    context.history.setdefault("gradient", history)
    return columns


GRADIENT = Strategy("gradient", gradient_panel, all_ranks=True, on_gpu=True, weight=2.0)


def _stop_when_over(
    context: SelectionContext, steps: int | None = None
) -> Callable[[dict[str, Any]], bool]:
    """Stop training when its slot of the time limit is over; of ``steps``, show how many."""

    def stop(row: dict[str, Any]) -> bool:
        if steps is not None:
            done = row["step"] if "step" in row else row["epoch"]
            context.plan.inside(min(1.0, done / steps))
        return context.budget.slot_over

    return stop
