"""The evidence behind a panel, computed on demand: reference scores and substitutes."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fewer import __version__, distributed
from fewer._threads import entry_point
from fewer.data.factored import Matrix
from fewer.data.source import RowView, is_remote
from fewer.errors import InputError
from fewer.estimate import (
    Estimate,
    HeldOutSums,
    estimate_over_rows,
    fold_ridges,
    linear_map,
    ratio_of_sums,
    shared_rows,
    squares_about_common_mean,
    sums_of_rows,
)
from fewer.evidence import Evidence
from fewer.joint import residual_factors
from fewer.reconstructor import sample_size
from fewer.search.dependence import dependence
from fewer.search.eigen import leading_eigenvectors
from fewer.search.greedy import nested
from fewer.search.objective import Penalty
from fewer.search.substitutes import substitutes
from fewer.selection.calibrate import coverage_by_feature
from fewer.selection.compare import Candidate, Comparison
from fewer.selection.compare_predictors import TargetComparison
from fewer.selection.context import SelectionContext
from fewer.selection.evidence.significance import (
    DRAWS,
    PanelScores,
    contribution_p_values,
    p_value_of,
    random_draws,
    random_panels,
)
from fewer.selection.evidence.stability import choices_of_halves, describe_choices
from fewer.selection.evidence.target import describe_target, objective, usefulness
from fewer.selection.refit import HeldOutScore
from fewer.selection.size import MOST, SHADOW_ROWS, choose_size, few_groups, with_target
from fewer.selection.strategies import folds_are_plain, greedy_panel, joint_penalty
from fewer.validation import FOLDS, Fold, FoldCovariances, fold_covariances, split_rows

__all__ = ["gather_evidence"]

NEIGHBOURS = 5  # related features and substitutes per chosen feature
MOST_CORRELATED = 512  # chosen features whose correlations are stored
MOST_EPOCHS = 200  # rows of training history that are stored
SUBSAMPLES, THRESHOLD, LEAST_HALVED = 40, 0.75, 20  # of the stability
CHANCE_DRAWS, PERMUTATIONS = 199, 99  # of tests
# chosen features times all features, and multiplications, that take a second or so
QUICK_CHOICE, QUICK_PASS = 2**14, 2**32
QUICK_SIZES = 2**23  # the square of all features times sizes
POINTS = 25  # sizes on the curve
ROUNDING = 1e-12  # of the sum of squares

Columns = NDArray[np.int64]
Vector = NDArray[np.float64]


@entry_point
def gather_evidence(
    context: SelectionContext,
    winner: Candidate,
    columns: Columns,
    held: HeldOutScore,
    comparison: Comparison,
    *,
    linear: bool,
    source: dict[str, Any],
    options: dict[str, Any],
) -> Evidence:
    """Evidence for the final panel, ``columns``; every process can compute it on its own."""
    with distributed.single_process():
        folds = context.covariances.folds
        reference = _ReferenceScores.compute(context, winner, folds, columns if linear else None)
        estimates = reference.estimates(held.explained)
        errors, reconstructed = held.score.errors.copy(), held.reconstructed
        if linear:
            errors, reconstructed = reference.final_errors(), reference.reconstruct(held.rows)
        target = {}
        if isinstance(comparison, TargetComparison):
            random = _random(context, winner.panels)
            target = describe_target(context, comparison, winner, random)
            order, gains, best, losses, lost_without = usefulness(context, columns, NEIGHBOURS)
        everything = context.covariances.everything
        C, penalty = everything.matrix().cpu(), everything.penalty(winner.ridge)
    if not target:
        trace = float(C.trace()) or 1.0
        order, gains = nested(C, columns, penalty)
        gains = gains / trace
        best, lost = substitutes(C, order, context.constraints, ridge=penalty, count=NEIGHBOURS)
        losses = lost / trace
    related, related_correlation, represents, correlation = _correlations(C, order)
    without, dependents, dependent_losses = _dependence(context, C, order, penalty)
    if target and lost_without is not None:
        without = lost_without
    true, guessed = (_some(parts) for parts in (held.rows, reconstructed))
    if everything.noise is None:
        errors[columns] = 0.0  # their values are measured
        guessed[:, columns] = np.where(np.isnan(true), guessed, true)[:, columns]
    else:
        errors = errors.clip(min=0)
        C.diagonal().add_(everything.noise)  # as measured, here and below
    rows = sum(fold.n_held for fold in folds)
    return Evidence(
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        version=__version__,
        source=source | {"held": rows, "folds": len(folds), "draws": DRAWS},
        options=options,
        explained={
            metric: {role: one.value for role, one in roles.items()}
            for metric, roles in estimates.items()
        },
        standard_errors={
            metric: {role: one.standard_error for role, one in roles.items()}
            for metric, roles in estimates.items()
        },
        curve=reference.curve,
        order=order,
        gains=gains,
        substitutes=best,
        losses=losses.astype(np.float32),
        related=related,
        related_correlation=related_correlation,
        represents=represents,
        correlation=correlation,
        errors=errors,
        variance=reference.variance(),
        rows=true,
        reconstructed=guessed,
        factors=residual_factors(C, columns, winner.ridge, context.source.shape[0]),
        history={name: _thin(rows) for name, rows in context.history.items()},
        target=target,
        coverage=coverage_by_feature(context, columns, winner.ridge, held),
        stability=_stability(context, order),
        **_tests(context, order),
        without=without,
        dependents=dependents,
        dependent_losses=dependent_losses,
    )


def _stability(context: SelectionContext, order: Columns) -> dict[str, Any] | None:
    """How often each chosen feature is chosen from half of the rows, where that is quick."""
    n, d = context.source.shape
    long = len(order) * d > QUICK_CHOICE or n * min(n, d) * d > QUICK_PASS
    if long or n < LEAST_HALVED or not _in_memory(context):
        return None
    source, groups, numbers = context.source, context.row_groups, None
    if context.target is not None:
        kept = context.target.rows(np.arange(n))
        numbers, source = context.target.centred(kept), RowView(source, kept)
        groups = None if groups is None else groups[kept]
    try:
        chosen, everything = choices_of_halves(
            source,
            context.constraints,
            SUBSAMPLES,
            scaling=context.covariances.scaling,
            seed=context.seed,
            device=torch.device("cpu"),
            groups=groups,
            target=numbers,
            noise=context.covariances.noise,
        )
    except InputError:  # too few groups of rows
        return None
    found = describe_choices(chosen, everything, THRESHOLD)
    names = ("index", "cluster_index", "false_bound", "subsamples", "threshold")
    return {name: found[name] for name in names} | {
        "frequency": chosen.mean(axis=0)[order].tolist(),
        "interval": list(found["interval"]),
        "cluster_interval": list(found["cluster_interval"]),
        "stable": len(found["stable"]),
        "clusters": [
            {"features": part["features"].tolist(), "frequency": part["frequency"]}
            for part in found["clusters"]
            if np.isin(part["features"], order).any()
        ],
    }


def _tests(context: SelectionContext, order: Columns) -> dict[str, Any]:
    """How the explained variance depends on k, and tests against chance, where they are quick.

    With linear decoders or, with a target, linear maps to it, and always with several folds.
    """
    found: dict[str, Any] = {"size": context.size, "significance": None}
    d, scaling = context.source.shape[1], context.covariances.scaling
    if d**3 > QUICK_PASS or len(order) == d or not _in_memory(context):
        return found
    if not folds_are_plain(context):
        return found
    if context.target is not None and not context.config.linear:
        return found  # what a network predicts need not be linear in any feature
    covariances, groups, more = context.covariances, context.row_groups, 0
    if context.target is not None or len(covariances.folds) < 2:
        whole = context.source
        if context.target is not None:
            whole, more, groups = with_target(whole, context.target, groups)
        splits = split_rows(whole.shape[0], min(FOLDS, whole.shape[0]), context.seed, groups)
        if len(splits) < 2:
            return found
        covariances = fold_covariances(whole, splits, scaling)
    k, most = context.constraints.k, min(MOST, d)
    limited = context.constraints.budget is not None or bool(context.constraints.limits)
    if context.size is None and k and not limited and d * d * most <= QUICK_SIZES:
        size = choose_size(
            k,
            covariances,
            replace(context.constraints, k=len(context.constraints.units)),
            torch.device("cpu"),
            context.seed,
            groups,
            targets=more,
        )
        found["size"] = size if k in size["k"] else None
    found["significance"] = _significance(context, order, covariances, groups, more)
    return found


def _significance(
    context: SelectionContext, order: Columns, covariances: FoldCovariances, groups: Any, more: int
) -> dict[str, Any]:
    """The panel against random ones, and each feature against permuted ones."""
    random = np.random.default_rng(context.seed)
    table, columns = PanelScores(covariances, more), np.sort(order)
    drawn = random_panels(context.constraints, CHANCE_DRAWS, random)
    own, *others = (table.explained(left).value for left in table.of([columns, *drawn]).T)
    found: dict[str, Any] = {
        "random": others,
        "panel": own,
        "p_value": p_value_of(own, np.array(others)),
        "contributions": None,
    }
    few = few_groups(groups, len(columns))
    if few is not None:
        return found | {"few_groups": few}
    rows, d = min(covariances.splits.n, SHADOW_ROWS), context.source.shape[1]
    if rows * d * len(order) * PERMUTATIONS <= QUICK_PASS:
        tests = contribution_p_values(
            covariances,
            columns,
            PERMUTATIONS,
            random,
            groups,
            constraints=context.constraints,
            targets=more,
        )
        by = dict(zip(columns.tolist(), tests, strict=True))
        found["contributions"] = [by[j] for j in order.tolist()]
    return found


def _in_memory(context: SelectionContext) -> bool:
    """Whether rows can be read again at no cost, by this process alone."""
    away = context.source.on_disk or is_remote(context.source)
    return distributed.world_size() == 1 and not away


@dataclass(frozen=True, eq=False)
class _LinearMap:
    """A linear reconstruction in scaled units: from some columns, or along principal axes."""

    role: str
    metric: str | None  # None is for all metrics
    columns: Columns | None
    weights: Tensor  # k x d decoder, or d x k axes of features times ``spread``
    spread: Tensor | None = None

    def apply(self, x: Tensor) -> Tensor:
        """Reconstruct centred rows in scaled units."""
        if self.columns is not None:
            return linear_map(self.columns, self.weights, x)
        assert self.spread is not None
        return ((x * self.spread) @ self.weights) @ self.weights.T / self.spread

    def residuals(self, fold: Fold) -> Tensor:
        """Mean squared residual per feature on complete held-out rows, in scaled units."""
        if self.columns is not None:
            found = fold.residuals(self.columns, self.weights)
            if fold.noise is None:
                found[self.columns] = 0.0  # measured
            return found
        assert self.spread is not None
        axes, spread = self.weights, self.spread[:, None]
        turned = spread * fold.held_product(spread * axes)  # d x k
        left = fold.held_diagonal * self.spread.square() - 2 * (turned * axes).sum(1)
        left = left + (axes * (axes @ (axes.T @ turned))).sum(1)
        return left / self.spread.square()


@dataclass(frozen=True, eq=False)
class _FoldScores:
    """Sums over the observed values of a fold's held-out rows, per feature, in data units."""

    fold: Fold
    maps: list[_LinearMap]
    sums: HeldOutSums


@dataclass(frozen=True, eq=False)
class _ReferenceScores:
    """Scores of PCA, greedy and random panels on the held-out rows."""

    scores: list[_FoldScores]
    squares: list[Vector]  # of the held-out rows of each fold, about their common mean
    metrics: tuple[str, ...]
    curve: dict[str, object]
    groups: NDArray | None = None  # of the held-out rows of the only fold, if they have any
    by_row: bool = False  # whether there is one fold, whose rows tell the standard errors

    @classmethod
    def compute(
        cls,
        context: SelectionContext,
        winner: Candidate,
        folds: Sequence[Fold],
        final: Columns | None,
    ) -> "_ReferenceScores":
        standard = context.covariances.scaling.how != "none"
        metrics = ("units", "equal") if standard else ("units",)
        known = (context.found.get(("greedy", fold.number)) for fold in folds)
        greedy = [
            greedy_panel(context, fold) if panel is None else panel
            for fold, panel in zip(folds, known, strict=True)
        ]
        n = context.source.shape[0]
        panels = [("greedy", greedy), *(("random", p) for p in _random(context, winner.panels))]
        linear = [(role, one, fold_ridges(folds, one, n)) for role, one in panels]
        if final is not None:
            linear.append(("final", [final] * len(folds), [winner.ridge] * len(folds)))
        k = min(len(panel) for panel in winner.panels)
        sizes = np.unique(np.linspace(1, k, min(k, POINTS)).round().astype(int))
        scores = []
        curves: dict[str, dict[str, list[Vector]]] = {metric: {} for metric in metrics}
        for at, fold in enumerate(folds):
            maps = [
                _LinearMap(role, None, one[at], fold.decoder(one[at], ridges[at]))
                for role, one, ridges in linear
            ]
            C = fold.matrix().cpu()
            for metric in metrics:
                spread = _spread(fold, metric)
                count = len(winner.panels[at])
                axes = leading_eigenvectors(C, count, scale=spread, device=context.device)
                maps.append(_LinearMap("pca", metric, None, axes, spread))
            scores.append(_score_fold(context, fold, maps))
            own = winner.ridge_of(fold)
            orders = {
                "panel": (nested(C, winner.panels[at], fold.penalty(own))[0], own),
                "greedy": (nested(C, greedy[at], fold.penalty(0.0))[0], linear[0][2][at]),
            }
            for metric in metrics:
                for role, values in _fold_curve(scores[-1], metric, orders, sizes).items():
                    curves[metric].setdefault(role, []).append(values)
        sums = [one.sums for one in scores]
        squares = squares_about_common_mean(sums)
        groups, quick = None, False
        if len(folds) == 1:
            held = folds[0].held_rows
            groups = context.groups_of(held)
            work = len(held) * context.source.shape[1] * k * len(scores[0].maps)
            quick = work <= QUICK_PASS and folds[0].noise is None and _in_memory(context)
        found = cls(scores, squares, metrics, {"k": sizes.tolist()}, groups, quick)
        for metric in metrics:
            whole = found._totals(metric)
            if whole.sum() > 0:
                found.curve[metric] = {
                    role: (1 - np.sum(parts, axis=0) / whole.sum()).tolist()
                    for role, parts in curves[metric].items()
                }
            else:
                found.curve[metric] = {}
        return found

    def _totals(self, metric: str) -> Vector:
        """Squares of the held-out rows of each fold."""
        pairs = zip(self.scores, self.squares, strict=True)
        return np.array([float(_weight(one.fold, metric) @ part) for one, part in pairs])

    def estimates(self, panel: dict[str, Estimate]) -> dict[str, dict[str, Estimate]]:
        """Explained variance of the panel, which is given, and of the references, by metric."""
        found: dict[str, dict[str, Estimate]] = {}
        shared = shared_rows([one.fold for one in self.scores])
        for metric in self.metrics:
            wrong: dict[str, list[list[float]]] = {}  # by role: of each fold, of each draw
            for one in self.scores:
                weight = _weight(one.fold, metric)
                here: dict[str, list[float]] = {}
                for each, sse in zip(one.maps, one.sums.wrong, strict=True):
                    if each.metric in (None, metric) and each.role != "final":
                        here.setdefault(each.role, []).append(float(weight @ sse))
                for role, values in here.items():
                    wrong.setdefault(role, []).append(values)
            total = self._totals(metric)
            found[metric] = {"panel": panel[metric]} | {
                role: self._over_rows(
                    metric, role, ratio_of_sums(np.mean(values, axis=1), total, shared)
                )
                for role, values in wrong.items()
            }
        return found

    def _over_rows(self, metric: str, role: str, score: Estimate) -> Estimate:
        """The same score; of a single fold, with its standard error over rows."""
        if not self.by_row:
            return score
        fold, maps = self.scores[0].fold, self.scores[0].maps
        apply = [one.apply for one in maps if one.role == role and one.metric in (None, metric)]
        found = estimate_over_rows(fold, apply, self.groups, _spread(fold, metric))
        return found._replace(value=score.value)

    def final_errors(self) -> Vector:
        """Mean squared error per feature with the final panel, decoded per fold, in data units."""
        wrong = np.sum([one.sums.wrong[_final(one)] for one in self.scores], axis=0)
        count: Vector = np.sum([one.sums.counts for one in self.scores], axis=0)
        return wrong / count

    def reconstruct(self, shown: Sequence[NDArray[np.float64]]) -> list[NDArray[np.float64]]:
        """Reconstructions of some held-out rows of each fold from the final panel."""
        found = []
        for one, rows in zip(self.scores, shown, strict=True):
            scale, mean = _scale(one.fold), one.fold.mean
            x = ((torch.from_numpy(rows) - mean) / scale).nan_to_num_(nan=0.0)
            found.append((one.maps[_final(one)].apply(x) * scale + mean).numpy())
        return found

    def variance(self) -> Vector:
        """Variance of each feature over the held-out rows of all folds."""
        count: Vector = np.sum([one.sums.counts for one in self.scores], axis=0)
        return np.sum(self.squares, axis=0) / count


def _final(one: _FoldScores) -> int:
    return next(at for at, each in enumerate(one.maps) if each.role == "final")


def _scale(fold: Fold) -> Tensor:
    return torch.from_numpy(fold.scale)


def _spread(fold: Fold, metric: str) -> Tensor:
    """Factors that convert scaled features to the units of a metric."""
    return _scale(fold) / torch.from_numpy(fold.unit(metric))


def _weight(fold: Fold, metric: str) -> Vector:
    """What squares in the units of the data count in a metric."""
    return (_spread(fold, metric) / _scale(fold)).square().numpy()


def _random(context: SelectionContext, panels: Sequence[Columns]) -> list[list[Columns]]:
    """Random panels of the same sizes, with the features that must be included."""
    must, exclude = context.constraints.include, context.constraints.exclude
    free = np.setdiff1d(np.arange(context.constraints.d), np.concatenate([must, exclude]))
    return random_draws([len(panel) for panel in panels], free, context.seed, must)


def _score_fold(context: SelectionContext, fold: Fold, maps: list[_LinearMap]) -> _FoldScores:
    """Sums over a fold's held-out rows, from their covariance or, with gaps, from the rows."""
    if context.covariances.stats.has_missing:
        return _FoldScores(fold, maps, sums_of_rows(fold, [each.apply for each in maps]))
    n, square = fold.held_weight, fold.scale**2
    least = 0.0 if fold.noise is None else -np.inf  # an estimate of the signal may be below 0
    errors = [n * each.residuals(fold).clamp_min(least).numpy() * square for each in maps]
    mean = fold.held_mean
    squares = n * fold.held_squares(mean)
    second = n * fold.held_diagonal.numpy() * square
    if fold.noise is None:
        squares = np.where(squares > ROUNDING * second, squares, 0.0)  # a constant has no variance
    count = np.full(len(square), n)
    return _FoldScores(fold, maps, HeldOutSums(errors, squares, count, mean.numpy()))


def _fold_curve(
    scores: _FoldScores,
    metric: str,
    orders: dict[str, tuple[Columns, float]],
    sizes: NDArray[np.int64],
) -> dict[str, Vector]:
    """Sums of squared errors of the held-out rows at each size, with linear decoders."""
    fold = scores.fold
    weight = _spread(fold, metric).square()
    found = {}
    for role, (order, ridge) in orders.items():
        path = fold.path_residuals(order[: int(sizes[-1])], ridge)
        left = path[torch.from_numpy(np.minimum(sizes, len(path)) - 1)]  # a budget may buy fewer
        found[role] = fold.held_weight * (left @ weight).numpy()
    axes = next(m for m in scores.maps if m.role == "pca" and m.metric == metric).weights
    turned = _spread(fold, metric)[:, None] * axes
    kept = torch.cumsum((turned * fold.held_product(turned)).sum(0), 0).numpy()
    trace = float(weight @ fold.held_diagonal)
    found["pca"] = fold.held_weight * (trace - kept[np.minimum(sizes, len(kept)) - 1])
    return found


def _dependence(
    context: SelectionContext, C: Matrix, order: Columns, ridge: Penalty
) -> tuple[Vector, Columns, NDArray[np.float32]]:
    """What is lost without each chosen feature, and by which other features most.

    With a target, the first is of what the panel is for, as `usefulness` measures it.
    """
    constraints, d = context.constraints, C.shape[0]
    if context.target is not None:
        with distributed.single_process():
            C = objective(context).cpu()
            ridge = joint_penalty(context.covariances.everything, C)
        constraints = constraints.followed_by(C.shape[0] - d)
    increase = dependence(C, order, constraints, ridge)
    total = C.diagonal().clamp_min(0).numpy()
    lost = np.divide(increase, total, out=np.zeros_like(increase), where=total > 0)
    lost[:, order] = -np.inf
    others, losses = _largest(lost[:, :d])
    without = increase.sum(axis=1) / max(float(total.sum()), 1e-300)
    return without, others, np.where(others >= 0, losses, np.nan).astype(np.float32)


def _correlations(
    C: Matrix, order: Columns
) -> tuple[Columns, NDArray[np.float32], Columns, NDArray[np.float32]]:
    """Most correlated features, their correlations, number represented, and correlations inside."""
    spread = C.diagonal().clamp_min(0).sqrt()
    inverse = torch.where(spread > 0, 1 / spread, 0.0)
    R = (C[order] * inverse[order][:, None] * inverse).clamp(-1, 1).numpy()  # k x d
    strength = np.abs(R)
    others = np.setdiff1d(np.arange(R.shape[1]), order)
    known = others[strength[:, others].max(axis=0) > 0] if len(others) else others
    represents = np.bincount(strength[:, known].argmax(axis=0), minlength=len(order))
    strength[np.arange(len(order)), order] = -np.inf
    related, strongest = _largest(strength)
    signed = np.take_along_axis(R, np.maximum(related, 0), axis=1)
    correlation = np.where(np.isfinite(strongest), signed, np.nan).astype(np.float32)
    among = R[:MOST_CORRELATED, order[:MOST_CORRELATED]].astype(np.float32)
    return related, correlation, represents.astype(np.int64), among


def _largest(values: NDArray[np.float64]) -> tuple[Columns, NDArray[np.float64]]:
    """Indices of the largest values of each row, -1 if not finite, and the values."""
    count = min(NEIGHBOURS, values.shape[1])
    part = np.argpartition(-values, count - 1, axis=1)[:, :count]
    found = np.take_along_axis(values, part, axis=1)
    order = np.argsort(-found, axis=1, kind="stable")
    found = np.take_along_axis(found, order, axis=1)
    part = np.where(np.isfinite(found), np.take_along_axis(part, order, axis=1), -1)
    return part.astype(np.int64), found


def _some(parts: Sequence[NDArray[np.float64]]) -> NDArray[np.float32]:
    rows = np.concatenate(parts).astype(np.float32)
    return rows[: sample_size(rows.shape[1])]


def _thin(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """At most MOST_EPOCHS rows, including the first and last; JSON has no NaN, so that is None."""
    at = np.unique(np.linspace(0, len(rows) - 1, min(len(rows), MOST_EPOCHS)).round().astype(int))
    return [
        {
            name: None if isinstance(value, float) and not np.isfinite(value) else value
            for name, value in rows[i].items()
        }
        for i in at
    ]
