"""Options checked, rows opened, split and read once: all that the steps of `select` share."""

import zlib
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fewer import distributed
from fewer._checks import check_number, check_observed
from fewer.constraints import Constraints, resolve
from fewer.data.columns import check_range, without_empty
from fewer.data.moments import Moments, moments
from fewer.data.open import as_source
from fewer.data.source import Source, is_remote
from fewer.errors import InputError, warn
from fewer.estimate import describe_protocol
from fewer.selection.context import SelectionCheckpoint, SelectionContext, TimeBudget, WorkPlan
from fewer.selection.features import read_noise, read_weights, taken
from fewer.selection.huber import check_loss, weighted_by_loss
from fewer.selection.predictor import is_auto, resolve_decoder
from fewer.selection.record import describe_data, describe_options
from fewer.selection.robust import check_robust
from fewer.selection.size import Reach, choose_size, with_target
from fewer.selection.strategies import FILTERS_NAME, STRATEGIES
from fewer.selection.target import TargetData, read_named_columns, read_target, with_weights
from fewer.train import Checkpoint, TrainingConfig
from fewer.train.assignment import nodes_for
from fewer.train.checkpoint import stored_seed
from fewer.train.device import float64_device, pick_device
from fewer.train.training_data import check_weights
from fewer.validation import (
    FOLDS,
    Scaling,
    Splits,
    check_row_groups,
    choose_validation,
    fold_covariances,
    split_rows,
)

CONSTRAINTS = (
    "include",
    "exclude",
    "costs",
    "cost_weight",
    "budget",
    "groups",
    "sets",
    "at_least",
    "at_most",
)
# what determines the result, besides the data and the training options
RESULT_OPTIONS = (
    "scale",
    "strategies",
    "validation",
    "k",
    "reconstruct",
    "class_weight",
    "target_kind",
    "target_weight",
    "robust_to",
    "expect_missing",
    "loss",
    "noise",
    "weights",
    *CONSTRAINTS,
)
LOOKED_AT = 500  # rows, to see whether the target is a feature
UNLIMITED = 1e300


def prepare(
    data: Any, options: dict[str, Any], plan: WorkPlan, seed: int | None = None
) -> tuple[SelectionContext, dict[str, Any]]:
    """Open the rows, split them and read them once; also return a description of them."""
    _check_options(options["strategies"], options["time_limit"])
    budget = TimeBudget(options["time_limit"])
    scaling, given, target = Scaling(options["scale"]), data, None
    options, data = read_named_columns(options, data)
    if options["target"] is not None:
        asked = options["target"], data, options["target_kind"], options["target_weight"]
        target, data = read_target(*asked)
    _check_against_target(options, target)
    source = distributed.open_together(lambda: as_source(data, least_rows=3))
    n = source.shape[0]
    target = _check_target(target, n, options)
    device = pick_device(options["device"])
    decoder, linear = resolve_decoder(options, target, source)
    if seed is None:
        seed = distributed.shared_seed(
            options["random_state"], lambda: stored_seed(options["checkpoint"])
        )
    row_groups = check_row_groups(options["row_groups"], n)
    noise = read_noise(options["noise"], source, options, linear=linear)
    scaling = replace(
        scaling, weights=read_weights(options["weights"], source, options, linear=linear)
    )
    row_weights = _row_weights(options, source, target, linear=linear)
    size = None
    if isinstance(options["k"], (str, Reach)):
        plan.begin("size", "choosing k ...")
        size = _choose_size(source, options, scaling, device, seed, row_groups, target)
        options = options | {"k": size["chosen"]}
    k = options["k"]
    constraints = _constraints(source, options)
    _warn_about_costs(constraints)
    nodes = nodes_for(constraints, source, scaling, device)
    validation = choose_validation(
        options["validation"],
        n,
        nodes,
        linear=linear,
        groups=None if row_groups is None else len(np.unique(row_groups)),
        d=source.shape[1] if linear or target is not None else None,
        predicts=target is not None,
    )
    splits = split_rows(n, validation, seed, row_groups)
    _check_fold_weights(row_weights, splits)
    if target is not None:
        target.check_folds(
            [(splits.train_rows(at), splits.held_rows(at)) for at in range(len(splits))]
        )
        _warn_if_a_feature(target, source, constraints)
    with np.errstate(over="ignore", invalid="ignore"):  # what overflows is named below
        covariances = fold_covariances(source, splits, scaling, device, noise, row_weights)
    source, stats = without_empty(source, covariances.stats)
    if source is not covariances.source:
        constraints = _constraints(source, options)
        scaling = replace(scaling, weights=taken(scaling.weights, source))
        own = taken(noise, source)
        covariances = fold_covariances(source, splits, scaling, device, own, row_weights)
    covariances.chosen = nodes
    check_observed(stats.observed, source.names)
    check_range(stats, source.names)
    _warn_about_k(k, n, source.shape[1], stats)
    config = TrainingConfig(
        k=nodes,
        decoder=decoder,
        device=options["device"],
        cost_weight=constraints.cost_weight,
    )
    context = SelectionContext(
        source=source,
        constraints=constraints,
        config=config,
        covariances=weighted_by_loss(options["loss"], covariances, constraints, device),
        validation=validation,
        row_groups=row_groups,
        target=target,
        reconstruct=float(options["reconstruct"]),
        strategies=options["strategies"],
        device=float64_device(device),
        seed=seed,
        protocol=describe_protocol(
            splits,
            validation,
            options["random_state"],
            scaling.how,
            row_groups,
            weighted=scaling.weights is not None,
            noisy=noise is not None,
        ),
        budget=budget,
        checkpoint=_checkpoint(options, stats, seed, row_groups, config),
        plan=plan,
        robust_to=options["robust_to"],
        expect_missing=options["expect_missing"],
        loss=options["loss"],
        size=size,
        chooses_predictor=is_auto(options["decoder"]) and not linear,
    )
    check_robust(context)
    return context, describe_data(given, source, stats)


def _choose_size(
    source: Source,
    options: dict[str, Any],
    scaling: Scaling,
    device: torch.device,
    seed: int,
    row_groups: NDArray | None,
    target: TargetData | None,
) -> dict[str, Any]:
    """How k was chosen, for ``k="auto"`` or a `Reach`."""
    k = options["k"]
    if isinstance(k, str) and k != "auto":
        raise InputError(f"k={k!r}: give a number, 'auto' or fewer.Reach(0.9)")
    for name in (
        "budget",
        "sets",
        "reconstruct",
        "noise",
        *(("sample_weight",) if target is None else ()),
        *(() if target is None else ("weights",)),
    ):
        if options[name] is not None and np.any(options[name] != 0):
            raise InputError(f"k={k!r} cannot be combined with {name}; give a number")
    whole, more = source, 0
    if target is not None:
        source, stats = without_empty(source, moments(source))
        whole, more, row_groups = with_target(source, target, row_groups)
    n = whole.shape[0]
    splits = split_rows(n, min(FOLDS, n), seed, row_groups)
    asked = choose_validation(options["validation"], n, 1, linear=True)
    if isinstance(asked, np.ndarray):
        raise InputError(
            f"k={k!r} needs several folds, not one set of held-out rows; give a number"
        )
    if isinstance(asked, str):
        splits = split_rows(n, asked)
    covariances = fold_covariances(whole, splits, scaling, device)
    part = source
    if target is None:
        part, stats = without_empty(source, covariances.stats)
    if part is not source:
        scaling = replace(scaling, weights=taken(scaling.weights, part))
        covariances = fold_covariances(part, splits, scaling, device)
    check_observed(stats.observed, part.names)
    # any number of units, without a limit to what they cost
    costs = np.zeros(part.shape[1]) if options["costs"] is None else options["costs"]
    free = _constraints(part, options | {"k": None, "costs": costs, "budget": UNLIMITED})
    constraints = replace(free, k=len(free.units), budget=None)
    place = float64_device(device)
    return choose_size(k, covariances, constraints, place, seed, row_groups, targets=more)


def _constraints(source: Source, options: dict[str, Any]) -> Constraints:
    asked = {name: options[name] for name in CONSTRAINTS}
    return resolve(source.names, source.shape[1], options["k"], **asked)


def _check_options(strategies: Any, time_limit: Any) -> None:
    """Check options that do not depend on the data."""
    if not (isinstance(strategies, str) and strategies == "auto"):
        several = isinstance(strategies, (list, tuple, set, frozenset))
        known = (*STRATEGIES, FILTERS_NAME)
        if not several or not strategies or any(name not in known for name in strategies):
            raise InputError(
                f"strategies={strategies!r}: use 'auto' or some of {', '.join(known)}, as a list"
            )
    real = isinstance(time_limit, (int, float, np.integer, np.floating))
    real = real and not isinstance(time_limit, bool)
    if time_limit is not None and not (real and time_limit > 0):
        raise InputError(f"time_limit={time_limit!r} must be a number of seconds above 0, or None")


def _check_against_target(options: dict[str, Any], target: TargetData | None) -> None:
    """Check options that are only for panels that predict."""
    if target is None and options["strategies"] != "auto" and FILTERS_NAME in options["strategies"]:
        raise InputError("strategies: 'filters' require a target; pass target=, or omit them")
    for name in ("class_weight", "target_kind", "target_weight"):
        left_out = options[name] is None or (name == "target_kind" and options[name] == "auto")
        if target is None and not left_out:
            raise InputError(f"{name} requires target=")
    check_number("reconstruct", options["reconstruct"], least=0)
    if options["reconstruct"] >= 1 or (target is None and options["reconstruct"]):
        raise InputError(
            f"reconstruct={options['reconstruct']!r} is the weight of the features relative to the "
            "target, at least 0 and below 1; omit it and target= to only reconstruct"
        )


def _check_target(target: TargetData | None, n: int, options: dict[str, Any]) -> TargetData | None:
    """The target with its weights."""
    check_loss(options["loss"], target=target is not None)
    if target is None:
        return None
    if len(target.values) != n:
        raise InputError(f"target has {len(target.values)} values for {n} rows")
    if options["cost_weight"]:
        raise InputError("cost_weight cannot be combined with target; use costs and a budget")
    if options["strategies"] != "auto" and "closed_form" in options["strategies"]:
        raise InputError("strategies: 'closed_form' cannot use a target; use search, gradient")
    return with_weights(target, options["sample_weight"], options["class_weight"])


def _row_weights(
    options: dict[str, Any], source: Source, target: TargetData | None, *, linear: bool
) -> NDArray[np.float64] | None:
    """How much each row counts in reconstructing the features, on average 1."""
    if options["sample_weight"] is None:
        return None
    found = check_weights(options["sample_weight"], source.shape[0])
    if target is None and not linear:
        raise InputError(
            "sample_weight without target= is for linear decoders; use decoder='linear'"
        )
    if target is None and options["loss"] != "mse":
        raise InputError(f"sample_weight cannot be combined with loss={options['loss']!r}")
    if is_remote(source):
        if target is None:
            raise InputError(
                "sample_weight cannot be used with rows on other machines; open the rows here"
            )
        return None
    return found / found.mean()


def _check_fold_weights(weights: NDArray[np.float64] | None, splits: Splits) -> None:
    """Refuse folds in which no row counts."""
    if weights is None:
        return
    folds = range(len(splits))
    idle = any(not weights[splits.train_rows(at)].any() for at in folds)
    if idle or not any(weights[splits.held_rows(at)].any() for at in folds):
        which = "that a fold trains on" if idle else "that is held out"
        raise InputError(
            f"sample_weight is zero for every row {which}; choose another validation, or give some "
            "of these rows a weight"
        )


def _warn_if_a_feature(target: TargetData, source: Source, constraints: Constraints) -> None:
    """Warn where the target is one of the features, by the first rows that have a label."""
    rows = target.rows(np.arange(source.shape[0]))[:LOOKED_AT]
    numbers = target.kind.numbers(target.values[torch.from_numpy(rows)])
    if numbers is None:
        return
    x = source.rows(rows, torch.float64)
    same = (x[:, :, None] == numbers[:, None]).all(0).any(1).numpy() & constraints.allowed
    for j in np.flatnonzero(same)[:1]:
        feature = j if source.names is None else repr(source.names[j])
        warn(
            f"feature {feature} is equal to the target in all rows that were looked at "
            f"({len(rows)}); a panel with it predicts nothing new. Leave it out with "
            f"exclude=[{feature}]"
        )


def _warn_about_costs(constraints: Constraints) -> None:
    """Say that costs alone do nothing."""
    if constraints.costs is not None and constraints.budget is None and not constraints.cost_weight:
        warn(
            "costs alone do not affect the selection, only the report; also pass budget= or "
            "cost_weight= to reduce the cost"
        )


def _warn_about_k(k: Any, n: int, d: int, stats: Moments) -> None:
    """Warn if k is above the rank of the data."""
    if k is None:
        return
    rank = int((~stats.constant).sum())
    if rank < k <= d:
        warn(f"k={k}, but only {rank} of {d} features vary: the others add no information")
    elif n <= k <= d:
        warn(
            f"k={k} features from {n} rows: the rank is at most {n - 1}, so any choice beyond "
            "that depends only on the penalty; use more rows or a lower k"
        )


def _checkpoint(
    options: dict[str, Any],
    stats: Moments,
    seed: int,
    row_groups: NDArray | None,
    config: TrainingConfig,
) -> SelectionCheckpoint | None:
    if options["checkpoint"] is None:
        return None
    digest = None
    if row_groups is not None:
        codes = np.unique(row_groups, return_inverse=True)[1].astype(np.int64)
        digest = zlib.crc32(codes.tobytes())
    facts: dict[str, Any] = {"rows": stats.n, "features": len(stats.mean), "spread": stats.scale}
    facts |= {"seed": seed, "row_groups": digest}
    if isinstance(options["validation"], np.ndarray):
        facts["held_out"] = zlib.crc32(np.packbits(options["validation"]).tobytes())
    asked = describe_options({name: options[name] for name in RESULT_OPTIONS})
    facts |= asked | config.facts()
    if is_auto(options["decoder"]) and not config.linear:
        facts["decoder"] = options["decoder"]  # which may still become linear
    return SelectionCheckpoint(Checkpoint.of(options["checkpoint"]), facts, len(stats.mean))
