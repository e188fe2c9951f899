"""The evidence behind a panel, computed on demand: reference scores and substitutes."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fewer import __version__, distributed
from fewer._threads import entry_point
from fewer.constraints import Constraints
from fewer.data.factored import Matrix
from fewer.data.source import RowView, Source, read_blocks
from fewer.evidence import Evidence
from fewer.joint import residual_factors
from fewer.reconstructor import sample_size
from fewer.search.dependence import dependence
from fewer.search.eigen import leading_eigenvectors
from fewer.search.exchange import swap_losses
from fewer.search.greedy import nested
from fewer.selection.compare import Candidate
from fewer.selection.context import SelectionContext
from fewer.selection.refit import HeldOutScore
from fewer.selection.strategies import greedy_panel
from fewer.validation import RIDGES, Fold, best_ridge

__all__ = ["gather_evidence"]

NEIGHBOURS = 5  # related features and substitutes per chosen feature
MOST_CORRELATED = 512  # chosen features whose correlations are stored
MOST_EPOCHS = 200  # rows of training history that are stored
DRAWS = 5  # random panels
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
    *,
    linear: bool,
    source: dict[str, Any],
    options: dict[str, Any],
) -> Evidence:
    """Evidence for the final panel, ``columns``; every process can compute it on its own."""
    with distributed.single_process():
        folds = context.covariances.folds
        reference = _ReferenceScores.compute(context, winner, folds, columns if linear else None)
        explained = reference.explained(held.fold_errors)
        errors, reconstructed = held.score.errors.copy(), held.reconstructed
        if linear:
            errors, reconstructed = reference.final_errors(), reference.reconstruct(held.rows)
        C = context.covariances.everything.matrix().cpu()
    trace = float(C.trace()) or 1.0
    order, gains = nested(C, columns, winner.ridge)
    related, related_correlation, represents, correlation = _correlations(C, order)
    substitutes, losses = _substitutes(C, order, winner.ridge, context.constraints.exclude)
    without, dependents, dependent_losses = _dependence(C, order, context.constraints, winner.ridge)
    true, guessed = (_some(parts) for parts in (held.rows, reconstructed))
    errors[columns] = 0.0  # their values are measured
    guessed[:, columns] = np.where(np.isnan(true), guessed, true)[:, columns]
    rows = sum(fold.n_held for fold in folds)
    return Evidence(
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        version=__version__,
        source=source | {"held": rows, "folds": len(folds), "draws": DRAWS},
        options=options,
        explained=explained,
        curve=reference.curve,
        order=order,
        gains=gains / trace,
        substitutes=substitutes,
        losses=(losses / trace).astype(np.float32),
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
        size=context.size,
        without=without,
        dependents=dependents,
        dependent_losses=dependent_losses,
    )


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
            return x[:, self.columns] @ self.weights
        assert self.spread is not None
        return ((x * self.spread) @ self.weights) @ self.weights.T / self.spread

    def residuals(self, fold: Fold) -> Tensor:
        """Mean squared residual per feature on complete held-out rows, in scaled units."""
        if self.columns is not None:
            return fold.residuals(self.columns, self.weights)
        assert self.spread is not None
        axes, spread = self.weights, self.spread[:, None]
        turned = spread * fold.held_product(spread * axes)  # d x k
        left = fold.held_diagonal * self.spread.square() - 2 * (turned * axes).sum(1)
        left = left + (axes * (axes @ (axes.T @ turned))).sum(1)
        return left / self.spread.square()


@dataclass(frozen=True, eq=False)
class _FoldScores:
    """Sums over the observed entries of a fold's held-out rows, per feature, in data units."""

    fold: Fold
    maps: list[_LinearMap]
    errors: list[Tensor]  # sum of squared errors of each map
    total: Tensor  # squares about the rows' own mean
    count: Tensor
    gap: Tensor  # the rows' own mean less the training mean


@dataclass(frozen=True, eq=False)
class _ReferenceScores:
    """Scores of PCA, greedy and random panels on the held-out rows."""

    scores: list[_FoldScores]
    metrics: tuple[str, ...]
    curve: dict[str, object]

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
        ridges = RIDGES if len(folds) > 1 else (0.0,)
        panels = [("greedy", greedy), *(("random", p) for p in _random(context, winner.panels))]
        linear = [(role, one, best_ridge(folds, one, ridges)[0]) for role, one in panels]
        if final is not None:
            linear.append(("final", [final] * len(folds), winner.ridge))
        k = min(len(panel) for panel in winner.panels)
        sizes = np.unique(np.linspace(1, k, min(k, POINTS)).round().astype(int))
        scores = []
        curves: dict[str, dict[str, list[Vector]]] = {metric: {} for metric in metrics}
        weights: dict[str, list[int]] = {metric: [] for metric in metrics}
        for at, fold in enumerate(folds):
            maps = [
                _LinearMap(role, None, one[at], fold.decoder(one[at], ridge))
                for role, one, ridge in linear
            ]
            C = fold.matrix().cpu()
            for metric in metrics:
                spread = _spread(fold, metric)
                count = len(winner.panels[at])
                axes = leading_eigenvectors(C, count, scale=spread, device=context.device)
                maps.append(_LinearMap("pca", metric, None, axes, spread))
            scores.append(_score_fold(context, fold, maps))
            orders = {
                "panel": (nested(C, winner.panels[at], winner.ridge)[0], winner.ridge),
                "greedy": (nested(C, greedy[at])[0], linear[0][2]),
            }
            for metric in metrics:
                found = _fold_curve(scores[-1], metric, orders, sizes)
                for role, values in found.items():
                    curves[metric].setdefault(role, []).append(values)
                weights[metric] += [fold.n_held] if found else []
        curve: dict[str, object] = {"k": sizes.tolist()}
        for metric in metrics:
            curve[metric] = {
                role: np.average(parts, axis=0, weights=weights[metric]).tolist()
                for role, parts in curves[metric].items()
            }
        return cls(scores, metrics, curve)

    def explained(self, panel_errors: Sequence[Vector]) -> dict[str, dict[str, float]]:
        """Explained variance of the panel and of the references on held-out rows, by metric.

        ``panel_errors`` has the panel's mean squared errors per feature for each fold. Folds whose
        held-out rows do not vary, such as single rows, do not count.
        """
        found: dict[str, dict[str, list[float]]] = {metric: {} for metric in self.metrics}
        sizes = []
        for one, panel_error in zip(self.scores, panel_errors, strict=True):
            if not float(one.total.sum()) > 0:
                continue
            sizes.append(one.fold.n_held)
            panel = ("panel", None, torch.from_numpy(panel_error) * one.count)
            others = [(m.role, m.metric, e) for m, e in zip(one.maps, one.errors, strict=True)]
            for metric in self.metrics:
                weight = _spread(one.fold, metric).square() / _scale(one.fold).square()
                whole = float(weight @ one.total)
                for role, only, sse in (panel, *others):
                    if only in (None, metric) and role != "final":
                        value = 1 - float(weight @ sse) / whole
                        found[metric].setdefault(role, []).append(value)
        mean = np.array(sizes) / max(sum(sizes), 1)
        return {
            metric: {
                # several draws per fold: their mean first
                role: float(mean @ np.reshape(values, (len(sizes), -1)).mean(axis=1))
                for role, values in by_role.items()
            }
            for metric, by_role in found.items()
        }

    def final_errors(self) -> Vector:
        """Mean squared error per feature with the final panel, decoded per fold, in data units."""
        wrong = torch.stack([one.errors[_final(one)] for one in self.scores]).sum(0)
        count = torch.stack([one.count for one in self.scores]).sum(0)
        return (wrong / count).numpy()

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
        count = torch.stack([one.count for one in self.scores])
        mean = torch.stack([one.fold.mean + one.gap for one in self.scores])
        centre = (count * mean).sum(0) / count.sum(0)
        inside = torch.stack([one.total for one in self.scores]).sum(0)
        between = (count * (mean - centre).square()).sum(0)
        return ((inside + between) / count.sum(0)).clamp_min(0).numpy()


def _final(one: _FoldScores) -> int:
    return next(at for at, each in enumerate(one.maps) if each.role == "final")


def _scale(fold: Fold) -> Tensor:
    return torch.from_numpy(fold.scale)


def _spread(fold: Fold, metric: str) -> Tensor:
    """Factors that convert scaled features to the units of a metric."""
    return _scale(fold) if metric == "units" else torch.ones(len(fold.scale), dtype=torch.float64)


def _random(context: SelectionContext, panels: Sequence[Columns]) -> list[list[Columns]]:
    """Random panels of the same sizes, with the features that must be included."""
    random = np.random.default_rng(context.seed)
    must, exclude = context.constraints.include, context.constraints.exclude
    free = np.setdiff1d(np.arange(context.constraints.d), np.concatenate([must, exclude]))

    def draw(size: int) -> Columns:
        count = max(0, min(size - len(must), len(free)))
        return np.sort(np.concatenate([must, random.choice(free, count, replace=False)]))

    return [[draw(len(panel)) for panel in panels] for _ in range(DRAWS)]


def _score_fold(context: SelectionContext, fold: Fold, maps: list[_LinearMap]) -> _FoldScores:
    """Sums over a fold's held-out rows, from their covariance or, with gaps, from the rows."""
    scale = _scale(fold)
    if context.covariances.stats.has_missing:
        return _score_rows(RowView(context.source, fold.held_rows), fold, maps)
    n = float(fold.n_held)
    errors = [n * each.residuals(fold).clamp_min(0) * scale.square() for each in maps]
    second = n * fold.held_diagonal * scale.square()
    total = second - n * (fold.held_mean - fold.mean).square()  # about the rows' own mean
    total = torch.where(total > ROUNDING * second, total, 0.0)  # a constant has no variance
    count = torch.full_like(total, n)
    return _FoldScores(fold, maps, errors, total, count, fold.held_mean - fold.mean)


def _score_rows(source: Source, fold: Fold, maps: list[_LinearMap]) -> _FoldScores:
    d, scale = source.shape[1], _scale(fold)
    count, first, second = (torch.zeros(d, dtype=torch.float64) for _ in range(3))
    errors = [torch.zeros(d, dtype=torch.float64) for _ in maps]
    for _, rows in read_blocks(source):
        seen = ~torch.isnan(rows)
        x = (rows - fold.mean).nan_to_num_(nan=0.0)  # missing values: the training mean
        count += seen.sum(0)
        first += x.sum(0)
        second += x.square().sum(0)
        for wrong, each in zip(errors, maps, strict=True):
            gap = each.apply(x / scale) * scale - x
            wrong.add_(torch.where(seen, gap, 0.0).square().sum(0))
    count.clamp_min_(1)
    total = second - first.square() / count
    total = torch.where(total > ROUNDING * second, total, 0.0)
    return _FoldScores(fold, maps, errors, total, count, first / count)


def _fold_curve(
    scores: _FoldScores,
    metric: str,
    orders: dict[str, tuple[Columns, float]],
    sizes: NDArray[np.int64],
) -> dict[str, Vector]:
    """Explained variance at each size with linear decoders; empty where nothing varies."""
    fold = scores.fold
    weight = _spread(fold, metric).square()
    # the variance of held-out rows is about their own mean, as in R squared
    gap = scores.gap / _scale(fold)
    trace = float(weight @ fold.held_diagonal)
    whole = trace - float(weight @ gap.square())
    if whole <= ROUNDING * trace:
        return {}
    found = {}
    for role, (order, ridge) in orders.items():
        panels = [order[:size] for size in sizes]
        errors = [weight @ fold.residuals(one, fold.decoder(one, ridge)) for one in panels]
        found[role] = 1 - torch.stack(errors).numpy() / whole
    axes = next(m for m in scores.maps if m.role == "pca" and m.metric == metric).weights
    spread = _spread(fold, metric)[:, None]
    turned = spread * axes
    explained = torch.cumsum((turned * fold.held_product(turned)).sum(0), 0).numpy()
    most = np.minimum(sizes, len(explained)) - 1
    found["pca"] = 1 - (trace - explained[most]) / whole
    return found


def _substitutes(
    C: Matrix, order: Columns, ridge: float, exclude: Columns
) -> tuple[Columns, NDArray[np.float64]]:
    """Best substitutes for each chosen feature, best first, and the increase of the residual."""
    losses = swap_losses(C, order, ridge).astype(np.float64)
    losses[np.arange(len(order)), order] = np.inf
    losses[:, exclude] = np.inf
    best, cost = _largest(-losses)
    return best, np.where(np.isfinite(cost), -cost, np.nan)


def _dependence(
    C: Matrix, order: Columns, constraints: Constraints, ridge: float
) -> tuple[Vector, Columns, NDArray[np.float32]]:
    """What is lost without each chosen feature, and by which other features most."""
    increase = dependence(C, order, constraints, ridge)
    total = C.diagonal().clamp_min(0).numpy()
    lost = np.divide(increase, total, out=np.zeros_like(increase), where=total > 0)
    lost[:, order] = -np.inf
    others, losses = _largest(lost)
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
