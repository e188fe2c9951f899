"""`fewer.select`: propose panels by several strategies and compare them on held-out rows."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from inspect import signature
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fewer import distributed
from fewer._progress import Lines
from fewer._threads import LONG_OPERATION, LONG_PASS, for_operations, mapped, owned
from fewer.cells import cells_like
from fewer.data.moments import Moments
from fewer.errors import InputError, warn
from fewer.estimate import Score, fold_ridges, penalties
from fewer.kinds import Several
from fewer.panel import Leaderboard, Panel
from fewer.reconstructor import Reconstructor
from fewer.selection.calibrate import Calibration, calibrate, some_residuals
from fewer.selection.compare import (
    Candidate,
    Comparison,
    LinearComparison,
    NetworkComparison,
    complete,
)
from fewer.selection.compare_predictors import TargetComparison
from fewer.selection.context import SelectionContext, WorkPlan
from fewer.selection.edit import Editor
from fewer.selection.evidence import gather_evidence
from fewer.selection.missing import prepare_for_missing
from fewer.selection.predictor import AUTO, with_predictor
from fewer.selection.prepare import CONSTRAINTS, prepare
from fewer.selection.record import GIVEN_ROWS, describe_settings, not_default
from fewer.selection.refit import (
    HeldOutScore,
    choose_on_other_folds,
    gain_over_linear,
    refit_on_all_rows,
    score_on_held_out_rows,
    to_data_units,
)
from fewer.selection.robust import make_robust
from fewer.selection.size import Reach
from fewer.selection.strategies import propose, propose_side_by_side, shortlist
from fewer.storage import restore_parameters
from fewer.target import Target
from fewer.train.checkpoint import released
from fewer.validation import Fold, best_ridge

__all__ = ["attach", "select"]

PER_TARGET = ("target_kind", "target_weight", "class_weight", "reconstruct")
EDITS = {"extended": "extend", "shrunk": "shrink"}  # methods of `Panel`, by what they make
FOR_TRAINING = 0.75  # of the time limit, where decoders are trained on the proposed panels
# steps, besides those of strategies, and what they take relative to training one decoder
PANELS, DECODERS, FINAL = "panels", "decoders", "all rows"
LINEAR_WEIGHT = 0.01
POOR = -10.0  # explained variance of held-out rows that asks for a warning
EAGER_BYTES = 2**30  # of fold covariances: beyond it, evidence is computed at once


def select(
    data: Any,
    k: int | str | Reach | None = None,
    *,
    decoder: Any = "auto",
    target: Any = None,
    target_kind: Any = "auto",
    target_weight: Any = None,
    reconstruct: float = 0.0,
    include: Any = (),
    exclude: Any = (),
    costs: Any = None,
    cost_weight: float = 0.0,
    budget: Any = None,
    groups: Any = None,
    sets: Any = None,
    at_least: Any = None,
    at_most: Any = None,
    sample_weight: Any = None,
    class_weight: Any = None,
    weights: Any = None,
    noise: Any = None,
    scale: str = "standard",
    strategies: Any = "auto",
    validation: Any = "auto",
    row_groups: Any = None,
    robust_to: int = 0,
    expect_missing: float = 0.0,
    loss: str = "mse",
    time_limit: float | None = None,
    random_state: Any = None,
    device: str = "auto",
    progress: Any = False,
    checkpoint: Any = None,
) -> Panel:
    """Choose k features and fit a decoder that reconstructs the others.

    Strategies propose panels on training rows, your decoder is fitted to each panel, and
    held-out rows decide; the winning strategy is rerun and its decoder refitted on all rows.
    With a single split, linear panels within 2% of the best are ranked by their error on the
    training rows. With folds, networks more than 2% behind on the first fold are pruned; for the
    others, the panels chosen on all rows are compared on the same folds. With a linear decoder
    and fewer than ten rows per chosen feature, final swaps minimise the held-out error directly.
    ``panel.held_out`` is the score on held-out rows with its standard error, corrected for
    selection bias.

    Parameters
    ----------
    data : array, sparse matrix, table, path or source of shape (n, d)
        Training rows, in any form that `fewer.data.open` accepts; NaN marks missing values.
    k : int, "auto", Reach or None, default=None
        Number of features to choose; None, with ``costs`` and ``budget``, spends the budget.
        ``fewer.Reach(0.9)``: the smallest k that explains 90% of the variance on held-out rows.
        "auto": the smaller of two values, up to 100: the smallest k within one standard error of
        the best, and the number of features that explain others better than permuted columns do.
        Both rules use linear decoders.
    decoder : "auto", "linear", tuple of int or callable, default="auto"
        Model that reconstructs the features: a linear map, a network with hidden layers of these
        widths, or your own function ``(k, d) -> torch.nn.Module``. "auto" is linear without a
        target. With one, from 600 rows with a label on, it is linear unless held-out rows prefer
        networks: then panels are compared with networks of 100 hidden units, and the predictor is
        the mean of several networks with one or two hidden layers, as held-out rows prefer. It is
        linear with ``weights``, ``noise`` or ``robust_to``, in several processes, and where the
        rows are in Dask.
    target : array of length n or (n, m), name(s) of columns, mapping or table, default=None
        Choose features that predict this instead: text, integers and booleans are classes,
        floating-point numbers are quantities, an ordered pandas Categorical is ordinal. More than
        20 different integers raise a warning if they look like a quantity; see ``target_kind``.
        ``decoder`` is then the predictor (``panel.predict``); the other features are reconstructed
        by a linear decoder. Rows whose target is missing (None, NaN) are only used for that
        reconstruction. A list of names, a mapping from names to arrays, or a table means several
        targets at once; a row needs all of them, and ``panel.predict`` returns a dictionary.
        Values belong to rows by position; a pandas Series with the labels of the rows in another
        order is refused.
    target_kind : {"auto", "class", "number", "count", "ordinal", "survival"}, default="auto"
        Kind of target. "count": whole numbers, Poisson loss. "ordinal": ordered classes.
        "survival": ``target`` is (time, event), as two arrays, two columns or two names; event is 1
        if it was observed and 0 if the row was censored; Cox's partial likelihood with
        Efron's method for ties. For several targets, one kind for all, or a mapping by name.
    target_weight : mapping from name to number, or list, default=None
        Weight of each of several targets; losses are relative to those of a constant prediction.
    reconstruct : float, default=0.0
        With a target, the weight of reconstructing the other features, below 1: the panel
        minimises ``1 - reconstruct`` times the loss of the predictor plus ``reconstruct`` times
        the reconstruction error, each relative to that of the best panel for that goal alone. The
        report shows the trade-off for other weights. With ``noise`` and classes, one greedy search
        is for both goals, and further features for a class that the panel already separates well
        count little.
    include, exclude : lists of names or column numbers, default=()
        Features that must be in the panel, and features that must not.
    costs : mapping from feature to cost, or array, default=None
        Cost of measuring each feature. For several costs, each with its own budget, a mapping by
        name: ``costs={"money": ..., "minutes": ...}``.
    cost_weight : float, default=0.0
        Penalty per unit of cost, added to the mean squared error in scaled units.
    budget : float or mapping, default=None
        Maximum cost of the panel; for several costs, ``{"money": 100, "minutes": 30}``.
    groups : list of lists of features, or one label per feature, default=None
        Features that are measured together and count once towards k.
    sets : mapping from name to list of features, or list of lists, default=None
        Sets of features limited by ``at_least`` and ``at_most``. They may overlap; the sets of a
        list are named "0", "1", ...
    at_least, at_most : mapping from name of a set to int, or int for every set, default=None
        Limits on the number of features per set, such as ``at_least={"north": 2}`` or
        ``at_most=1``. Limits that no panel can meet raise an error that names the conflict.
    sample_weight : array of length n, or name of a column, default=None
        Non-negative weights of the rows: in the covariance, so that the search for a linear
        decoder stays exact, and in decoders and scores; with a target, in its predictor, too.
        Prediction intervals do not use them. Without a target, for linear decoders.
    class_weight : "balanced" or mapping from class to weight, default=None
        Weight of the rows of each class in selection and training; "balanced" gives all classes
        the same total weight. Scores do not use it.
    weights : mapping from feature to number, or array of length d, default=None
        How much the error of each feature counts, 1 where a mapping names none; names may be
        patterns: ``{"RP*": 0, "CD8A": 5}``. Features of weight 0 may still be chosen, for what they
        say about others. Scores are weighted, too. For linear decoders.
    noise : mapping from feature to number, array of length d or (n, d), or number, default=None
        Variance of the measurement error of each feature, in the squared units of the data (0
        where a mapping names none); or a second measurement of the same rows, from which it is
        estimated. What counts is then the signal behind the noise: a noisy feature is not chosen
        for reproducing its own errors, ``panel.reconstruct`` denoises what was measured, and scores
        are of the signal (expected squares of errors are subtracted). Errors of different features
        are taken to be independent. For linear decoders.
    scale : {"standard", "none"}, default="standard"
        "standard": all features have equal weight, whatever their units. "none": features are
        weighted by their variance. Results are in the units of the data either way.
    strategies : "auto" or list of {"search", "closed_form", "gradient", "filters"}, default="auto"
        Strategies that propose panels. For a linear decoder, "auto" is the search, plus the
        closed form if there are few enough features; for a network, it is all three. With a
        network, "search" also improves the best panel by swaps scored with a surrogate model.
        Greedy selection is always part of the comparison; with a target, it is the search without
        the target. "filters" rank features by ANOVA, mutual information, mRMR, tree importance and
        an L1 penalty; they require a target, for which they are part of "auto". With ``noise``,
        classes and ``reconstruct``, the search for both goals is compared with neither.
    validation : float, int, "time", "blocks", "auto" or array of n bool, default="auto"
        Fraction of rows held out, or number of folds. "time" is for rows in chronological order:
        each fold trains on the past and holds out the rows that follow. "blocks" makes folds of
        contiguous rows, for rows that resemble their neighbours. An array marks the rows to hold
        out. "auto" is 5 folds for a linear decoder. Networks, predictors of a target, and linear
        decoders whose 5 fold covariances would take more than 512 MB, use 3 folds (5 with
        ``decoder="linear"``) with fewer than 100 rows per chosen feature or, with a target, fewer
        than 1000 rows, and otherwise hold out a tenth of the rows. With 10 to 99 different
        ``row_groups``, of which a tenth would say little, predictors use 5 folds. The final panel
        is fitted on all rows.
    row_groups : array of length n, or name of a column, default=None
        Rows with the same label (one patient, one animal) are held out together.
    robust_to : int, default=0
        1 or 2: minimise the error with the worst 1 or 2 features missing, among panels whose
        error with all features is at most 2.5% above the smallest (on training rows, with linear
        decoders). The leaderboard has both held-out errors; if the robust panel is no better with
        features missing, the plain panel is kept. With ``groups``, whole groups are missing; with
        ``target``, the error is that of its prediction.
    expect_missing : float, default=0.0
        For networks: the fraction of measured values that will be missing, such as 0.05. The
        network is trained with inputs dropped at this rate if that lowers the held-out error with
        as many values missing; with ``robust_to``, the default rate is that divided by the number
        of features.
    loss : {"mse", "huber"}, default="mse"
        Loss of selection and decoder. "huber" is for heavy tails: a row whose error exceeds
        1.5 times the median of all rows is weighted by its error instead of its square; for a
        network, this applies to each value, from an error of one standard deviation. Scores use
        all rows.
    time_limit : float, default=None
        Seconds for the whole call. When they are used up, the current strategy or training stops
        and later ones are skipped; one quick candidate is always finished.
    random_state : int, RandomState or None, default=None
        Makes the result reproducible.
    device : str, default="auto"
        "auto" (CUDA, MPS or CPU), or any torch device.
    progress : bool or callable, default=False
        Print each step, a line at least every ten seconds, and the remaining time. A function is
        called as ``progress(message, fraction)``, with the fraction of the work done, which is
        based on measured times and never decreases.
    checkpoint : path, default=None
        Folder for proposed panels and, every minute, the state of gradient training; deleted at
        the end. After a crash or Ctrl-C, the same call resumes from there.

    Returns
    -------
    Panel

    Notes
    -----
    Under ``torchrun``, every process makes the same call: each reads its own rows, sums and
    gradients are all-reduced, rank 0 searches and prints, and all return the same panel.

    Examples
    --------
    >>> import fewer
    >>> from sklearn.datasets import load_digits
    >>> X = load_digits(as_frame=True).data
    >>> panel = fewer.select(X[:1400], k=10, scale="none", random_state=0)
    >>> panel.features[:3]
    ['pixel_0_5', 'pixel_1_2', 'pixel_2_4']
    >>> panel.reconstruct(X[1400:][panel.features[::-1]]).shape
    (397, 64)
    >>> round(panel.score(X[1400:]), 2)
    0.61
    """
    options = {name: value for name, value in locals().items() if name != "data"}
    alone = released(checkpoint)
    with owned(), distributed.joined(device), alone, _shown(progress) as plan:
        context, described = prepare(data, options, plan)
        n, d = context.source.shape
        long = LONG_PASS if context.covariances.factored else LONG_OPERATION
        with for_operations(min(n, d) * d, long):
            panel = _choose(context, options, described)
        if context.checkpoint is not None:
            context.checkpoint.checkpoint.finish()
        return panel


def _choose(context: SelectionContext, options: dict[str, Any], described: dict[str, Any]) -> Panel:
    """Propose, compare, refit."""
    context = with_predictor(context)
    folds = context.covariances.folds
    comparison = _comparison(context)
    candidates = _compare(context, comparison, context.compared_folds)
    context.plan.begin(FINAL, "fitting on all rows ...")
    choose_on_other_folds(context, candidates[0], folds)
    winner, columns = refit_on_all_rows(context, candidates, comparison, folds)
    if context.robust_to:
        context.plan.begin(FINAL, "tolerating missing features ...")
        winner, columns = make_robust(context, comparison, candidates, winner, columns, folds)
    candidates.sort(key=lambda candidate: (candidate is not winner, candidate.objective))
    gain = missing = None
    if isinstance(comparison, NetworkComparison):
        comparison, missing = prepare_for_missing(context, comparison, winner, folds)
        gain = gain_over_linear(comparison, winner, folds)
        _warn_if_linear_is_as_good(winner, folds, gain)
    panel = _wrap(context, comparison, candidates, columns, folds, options, described)
    if gain is not None:
        panel.settings["network_gain"] = gain
    if missing is not None:
        panel.settings["expect_missing"] = missing
    return panel


def _warn_about_outliers(score: Score, stats: Moments, names: list[str] | None) -> None:
    """Warn if held-out rows are reconstructed much worse than by their mean."""
    if score >= POOR:
        return
    j = int(np.argmax(score.errors))
    name = j if names is None else repr(names[j])
    far = max(stats.maximum[j] - stats.mean[j], stats.mean[j] - stats.minimum[j])
    warn(
        f"the explained variance on held-out rows is {float(score):.3g}: most of the error is in "
        f"column {name}, whose values go up to {far:.3g} from their mean of {stats.mean[j]:.3g} "
        f"(its standard deviation is {stats.variance[j] ** 0.5:.3g}); look for outliers there, and "
        "set wrong values to NaN"
    )


@contextmanager
def _shown(progress: Any) -> Iterator[WorkPlan]:
    """A plan that prints its progress, or passes it to the caller's function; on rank 0 only."""
    if not progress or not distributed.is_rank0():
        yield WorkPlan()
    elif callable(progress):
        yield WorkPlan(progress)
    else:
        with Lines(partial(print, flush=True), messages=True) as lines:
            yield WorkPlan(lines.update)


def _comparison(context: SelectionContext) -> Comparison:
    if context.target is not None:
        return TargetComparison(context, target=context.target)
    return LinearComparison(context) if context.config.linear else NetworkComparison(context)


def _compare(
    context: SelectionContext, comparison: Comparison, folds: Sequence[Fold]
) -> list[Candidate]:
    """Candidates with their panels and held-out errors, best first."""
    candidates = [Candidate(strategy) for strategy in shortlist(context)]
    budget, plan = context.budget, context.plan
    linear = isinstance(comparison, LinearComparison)
    for candidate in candidates:
        plan.expect(candidate.strategy.name, len(folds), candidate.strategy.weight)
    stages = comparison.stages(folds)
    # roughly what these take; of strategies side by side, all together
    plan.expect(PANELS, 0, 0.4 if linear else 4.0)
    plan.expect(DECODERS, len(stages), LINEAR_WEIGHT if linear else 1.5)
    plan.expect(FINAL, 1, 0.3 if linear else 2.5)
    budget.reserve = 0.0 if linear else FOR_TRAINING * (budget.limit or 0.0)
    slowest = 0.0
    for stage in stages:
        _propose_all(context, candidates, folds, stage)
        start = time.perf_counter()
        plan.begin(DECODERS, "comparing panels ...")
        comparison.measure(candidates, folds[: stage.stop])
        slowest = max(slowest, (time.perf_counter() - start) / len(stage))
        # for measuring the other folds, and for fitting the winner on all rows
        budget.reserve = slowest * (len(folds) - stage.stop + 1)
        for candidate in candidates:
            if candidate.pruned_by is not None:
                plan.expect(candidate.strategy.name, 0)
            if candidate.errors and (candidate.pruned_by or stage.stop == len(folds)):
                plan.say(f"{candidate.strategy.name}: held-out error {candidate.error:.6g}")
    # what was pruned is known relative to its leader, which may have run out of time
    done = {c for c in candidates if len(c.errors) == len(folds)}
    candidates = [c for c in candidates if c in done or (c.pruned_by and c.pruned_by[0] in done)]
    if not budget.exhausted:
        comparison.break_ties(candidates, folds)
    again = slowest * len(folds) if isinstance(comparison, NetworkComparison) else 0.0
    budget.reserve = again + slowest  # a last comparison, and the final fit
    return sorted(candidates, key=lambda candidate: candidate.sort_key)


def _propose_all(
    context: SelectionContext,
    candidates: Sequence[Candidate],
    folds: Sequence[Fold],
    stage: range,
) -> None:
    """Let the remaining candidates propose panels on some folds, as far as time allows."""
    budget, plan = context.budget, context.plan
    left = complete(candidates, folds[: stage.start])
    if budget.limit is None:
        # fold by fold, so that the covariance of each is assembled once
        for at in stage:
            which = f", fold {at + 1} of {len(folds)}" if len(folds) > 1 else ""
            plan.begin(PANELS, f"proposing panels{which} ...")
            seconds = propose_side_by_side(context, [c.strategy for c in left], folds[at])
            for name in seconds:
                plan.expect(name, 0)
                plan.expect(PANELS, len(folds) - at - 1)
            for candidate in left:
                _propose(context, candidate, folds[at], len(folds))
                candidate.seconds += seconds.get(candidate.strategy.name, 0.0)
        return
    for number, candidate in enumerate(left):
        for at in stage:
            if number and budget.exhausted:  # the first one is always finished
                return
            budget.allocate(2 * (len(folds) - at))  # half the time is for the next candidates
            _propose(context, candidate, folds[at], len(folds))


def _propose(context: SelectionContext, candidate: Candidate, fold: Fold, folds: int) -> None:
    """Add the panel of a candidate's strategy on one fold."""
    start = time.perf_counter()
    which = f", fold {len(candidate.panels) + 1} of {folds}" if folds > 1 else ""
    name = candidate.strategy.name
    if (name, fold.number) not in context.found:
        context.plan.begin(name, f"{name}{which} ...")
    candidate.panels.append(propose(context, candidate.strategy, fold))
    candidate.seconds += time.perf_counter() - start


def _warn_if_linear_is_as_good(
    winner: Candidate, folds: Sequence[Fold], gain: dict[str, float] | None
) -> None:
    if gain is None:
        panels = zip(folds, winner.panels, strict=True)
        linear = float(np.mean([fold.error(panel) for fold, panel in panels]))
        good, told = winner.error < linear, f"{winner.error:.4g} against {linear:.4g}"
    else:
        good = gain["low"] > 0
        told = f"lower by {gain['gain']:.1%} ({gain['low']:.1%} to {gain['high']:.1%})"
    if not good:
        warn(
            f"the network does not clearly beat a linear decoder: held-out error {told}. Use "
            "decoder='linear', which is exact and faster, or give the network more rows"
        )


def _wrap(
    context: SelectionContext,
    comparison: Comparison,
    candidates: list[Candidate],
    columns: NDArray[np.int64],
    folds: Sequence[Fold],
    options: dict[str, Any],
    described: dict[str, Any],
    *,
    given: bool = False,
) -> Panel:
    """Fit the decoder on all rows and score it; a report computes the rest on demand.

    ``given``: the first candidate was not chosen by its error.
    """
    winner, everything = candidates[0], context.covariances.everything
    # with a target, the other features are reconstructed by a linear decoder
    rebuilding = LinearComparison(context) if context.target is not None else comparison
    linear = isinstance(rebuilding, LinearComparison)
    if context.target is not None:
        winner = _with_penalty(context, winner, folds)
    context.covariances.release()  # what follows needs its parts only
    decoder = to_data_units(rebuilding.fit(winner, columns, everything), columns, everything)
    alone = given or context.target is not None or context.robust_to
    rivals = [winner] if alone else candidates
    scored = rebuilding.scored(rivals, folds)

    def score() -> tuple[HeldOutScore, Calibration]:
        held = score_on_held_out_rows(context, scored, folds, rebuilding, columns)
        ridge = winner.ridge
        if not linear and len(folds) > 1:  # for what completes the inputs of a network
            ridge = best_ridge(folds, [columns] * len(folds))
        return held, calibrate(context, columns, ridge, held)

    steps: list[Callable[[], Any]] = [score]
    if isinstance(comparison, TargetComparison):
        comparison.choose_predictor(winner, folds)
        steps.append(partial(comparison.fit, winner, columns, everything))
    (held, known), *trained = _independent(context, steps)
    held = replace(held, residuals=some_residuals(held))  # all are as large as the rows themselves
    target = None
    if isinstance(comparison, TargetComparison):
        data, predictor = comparison.target, trained[0]
        predicted = comparison.estimate(candidates, folds, given=given)
        kind = data.kind
        if isinstance(kind, Several):
            kind = kind.scored(
                comparison.scores_of_parts(*comparison.predictions(winner.panels, folds))
            )
        target = Target(
            to_data_units(predictor, columns, everything, outputs=False),
            kind,
            predicted.value,
            data.name,
            data.one,
            comparison.misses(winner, folds),
            data.columns,
            predicted.standard_error,
        )
    evidence = partial(
        gather_evidence,
        context,
        scored,
        columns,
        held,
        comparison,
        linear=linear,
        source=described,
        options=not_default(options, _defaults()),
    )
    d, names = context.source.shape[1], context.source.names
    _warn_about_outliers(Score(held.fold_mean, held.score.errors), context.covariances.stats, names)
    ensemble = comparison.predictor if isinstance(comparison, TargetComparison) else None
    settings = describe_settings(context, winner, columns, options, ensemble)
    tails = held.tails()
    if tails is not None:
        settings["tails"] = tails
    labels = None if names is None else np.array(names, dtype=object)
    large = context.covariances.nbytes > EAGER_BYTES
    edited = partial(_finish, options=options, described=described)
    return Panel(
        Reconstructor(
            columns,
            decoder,
            d,
            labels,
            known.quantiles,
            known.joint,
            known.statistics,
            known.difficulty,
            context.covariances.noise,
        ),
        held_out=held.score,
        leaderboard=Leaderboard(
            {
                "strategy": c.strategy.name,
                "error": c.error,
                "seconds": c.seconds,
                "price": c.price,
                "worst": c.worst,
                "ridge": c.ridge,
                "estimated": c.pruned_by is not None,
                "features": [int(j) if names is None else names[j] for j in c.panels[0]],
            }
            for c in candidates
        ),
        target=target,
        estimates=held.explained,
        fold_panels=scored.panels,
        evidence=evidence() if large else evidence,
        editor=None if large else Editor(context, columns, edited),
        settings=settings,
    )


def _independent(context: SelectionContext, steps: Sequence[Callable[[], Any]]) -> list[Any]:
    """Results of independent steps: training on a GPU leaves the processor to the scores."""
    if context.device.type == "cuda" and distributed.world_size() == 1:
        return mapped(lambda step: step(), steps, on_error=context.budget.cancel)
    return [step() for step in steps]


def _with_penalty(
    context: SelectionContext, candidate: Candidate, folds: Sequence[Fold]
) -> Candidate:
    """A candidate for a target, with the penalty of the decoder that reconstructs the features."""
    n, k = context.source.shape[0], min(len(panel) for panel in candidate.panels)
    tried = penalties(n, k, len(folds))
    ridge = distributed.broadcast(best_ridge(folds, candidate.panels, tried))
    own = distributed.broadcast(fold_ridges(folds, candidate.panels, n))
    return replace(candidate, ridge=ridge, fold_ridges=own)


def _finish(
    context: SelectionContext,
    candidates: list[Candidate],
    *,
    options: dict[str, Any],
    described: dict[str, Any],
) -> Panel:
    """Score candidates whose panels are known, and build a panel from the first."""
    comparison, folds = _comparison(context), context.covariances.folds
    for candidate in candidates:
        if len(candidate.panels[0]) == len(candidates[0].panels[0]):
            comparison.measure([candidate], folds)
            continue
        # a decoder of another size is trained with a configuration of its own
        size = len(np.unique(context.constraints.unit_of[candidate.panels[0]]))
        other = replace(context, config=replace(context.config, k=size))
        _comparison(other).measure([candidate], folds)
    columns = candidates[0].panels[0]
    options = options | {"k": context.constraints.k}
    names = context.source.names
    described = described | {
        "edited": {
            "how": EDITS.get(candidates[0].strategy.name, candidates[0].strategy.name),
            "k": context.constraints.k,
            "features": [int(j) if names is None else str(names[j]) for j in columns],
            "linear": context.config.linear,
        }
    }
    return _wrap(context, comparison, candidates, columns, folds, options, described, given=True)


def attach(panel: Panel, data: Any, **options: Any) -> Panel:
    """Attach data to a panel, for `Panel.without`, `swap`, `extend` and `shrink`.

    Panels keep their training data unless they were loaded or copied, or their fold covariances
    take more than 1 GiB.

    Parameters
    ----------
    panel : Panel
        The panel.
    data : array, sparse matrix, table, path or source of shape (n, d)
        Rows with all features of the panel, in the same order.
    **options
        Options of `fewer.select` that should differ from those of the panel or are not stored
        with it: ``target``, ``row_groups``, ``sample_weight``, and constraints with more than 1000
        values.

    Returns
    -------
    Panel
        The same panel.

    Examples
    --------
    >>> import tempfile
    >>> import fewer
    >>> from sklearn.datasets import load_iris
    >>> X = load_iris(as_frame=True).data
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     fewer.select(X, 2, strategies=["search"], random_state=0).save(folder + "/iris")
    ...     panel = fewer.Panel.load(folder + "/iris")
    >>> fewer.attach(panel, X).extend(3).k
    3
    """
    panel._check_changeable()
    data = cells_like(panel, data)
    stored = {} if panel.evidence is None else panel.evidence.options
    kept = (*CONSTRAINTS, *PER_TARGET, "row_groups", "sample_weight", "weights", "noise")
    known = {name: part for name, part in stored.items() if name in kept}
    if isinstance(stored.get("random_state"), int):
        known["random_state"] = stored["random_state"]  # how the edited panel can be reproduced
    if panel.target is not None and "target" not in options:
        raise InputError("attach: pass the target again, target=...")
    gone = [
        name
        for name, part in known.items()
        if isinstance(part, dict) and "object" in part and name not in options
    ]
    if gone:
        raise InputError(f"attach: {gone[0]} is not stored with the panel; pass it again")
    settings = {name: panel.settings[name] for name in ("decoder", "scale", "validation")}
    settings["loss"] = panel.settings.get("loss", "mse")
    if settings["validation"] == GIVEN_ROWS and "validation" not in options:
        raise InputError("attach: pass the held-out rows again, validation=...")
    if panel.target is not None:
        left_open = "networks" in panel.settings
        settings["decoder"] = AUTO if left_open else panel.settings["predictor"]
    settings = {name: part for name, part in settings.items() if name not in options}
    known = {name: part for name, part in known.items() if name not in options}
    everything = _defaults() | restore_parameters(known | settings, {}, ())
    everything |= {"k": None} | options
    del everything["data"]
    with owned(), distributed.joined(everything["device"]):
        if everything["budget"] is None or panel.settings.get("k") is not None:
            everything["k"] = panel.settings.get("k", panel.k)
        context, described = prepare(data, everything, WorkPlan(), panel.settings["seed"])
    if list(context.source.names or ()) != list(panel.names or ()):
        raise InputError(
            "attach: the features of the data, or their order, differ from the panel's"
        )
    if context.source.shape[1] != panel.d:
        raise InputError(f"attach: the data have {context.source.shape[1]} features, not {panel.d}")
    context = replace(context, protocol=panel.settings.get("protocol", context.protocol))
    finish = partial(_finish, options=everything, described=described)
    panel.editor = Editor(context, panel.indices, finish)
    return panel


def _defaults() -> dict[str, Any]:
    return {name: part.default for name, part in signature(select).parameters.items()}
