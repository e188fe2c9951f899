"""What others reach on the rows that were held out: principal components, greedy, chance."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fewer.candidates.comparison import Candidate
from fewer.candidates.lines import LinearComparison
from fewer.candidates.strategies import Choose
from fewer.constraints import Constraints
from fewer.data import RowView, Source, read_blocks
from fewer.search.eigen import leading_eigenvectors
from fewer.search.nested import nested
from fewer.train.folds import ScaledFold

__all__ = ["DRAWS", "HeldOutRivals"]

DRAWS = 5  # random panels
POINTS = 25  # sizes on the curve
ROUNDING = 1e-12  # of the sum of squares

Columns = NDArray[np.int64]
Vector = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class HeldOutRivals:
    """Rivals of a panel, fitted on the training rows of each fold and judged on its held-out rows.

    Attributes
    ----------
    folds : sequence of ScaledFold
        Training and held-out covariances in scaled units.
    panels : sequence of arrays
        The winner's panel of each fold.
    ridge : float
        The winner's penalty.
    final : array of int or None
        The panel that the user gets, where a line reconstructs: each feature is judged by it.
    source : Source
        All rows, in the units of the data.
    constraints : Constraints
        What panels obey.
    comparison : LinearComparison
        Finds the penalties of the rivals.
    greedy : callable
        Greedy selection on the training rows of a fold.
    metrics : sequence of {"units", "equal"}
        Entries in the units of the data, or every feature counting the same.
    device : torch.device
        One that has float64.
    seed : int
        Of the random panels.
    """

    folds: Sequence[ScaledFold]
    panels: Sequence[Columns]
    ridge: float
    final: Columns | None
    source: Source
    constraints: Constraints
    comparison: LinearComparison
    greedy: Choose
    metrics: Sequence[str]
    device: torch.device
    seed: int

    def shares(self, panel_errors: Sequence[Vector]) -> tuple[dict[str, dict[str, float]], Vector]:
        """By metric, the share of held-out variance of the panel and its rivals; the variances.

        ``panel_errors`` are the panel's mean squared errors of each feature, fold by fold. Folds
        whose held-out rows do not vary, such as single rows, do not count.
        """
        found: dict[str, dict[str, list[float]]] = {metric: {} for metric in self.metrics}
        sizes = []
        for at, fold in enumerate(self.folds):
            sums = self._sums[at]
            if not float(sums.total.sum()) > 0:
                continue
            sizes.append(len(fold.held_index))
            panel = ("panel", None, torch.from_numpy(panel_errors[at]) * sums.count)
            for metric in self.metrics:
                weight = self._weight(fold, metric)
                whole = float(weight @ sums.total)
                for role, only, sse in (panel, *sums.errors):
                    if only in (None, metric) and role != "final":
                        found[metric].setdefault(role, []).append(1 - float(weight @ sse) / whole)
        mean = np.array(sizes) / max(sum(sizes), 1)
        shares = {
            metric: {
                # several draws a fold: their mean first
                role: float(mean @ np.reshape(values, (len(sizes), -1)).mean(axis=1))
                for role, values in by_role.items()
            }
            for metric, by_role in found.items()
        }
        return shares, self._variance()

    def judged(
        self, shown: Sequence[NDArray[np.float64]]
    ) -> tuple[Vector, list[NDArray[np.float64]]]:
        """Mean squared error of each feature with the final panel; reconstructions of some rows.

        The final panel was chosen from all rows, its decoder is fitted on the training rows of a
        fold alone. ``shown`` are some held-out rows of each fold.
        """
        assert self.final is not None
        wrong, count = torch.zeros(self.constraints.d), torch.zeros(self.constraints.d)
        rebuilt = []
        for at, (fold, rows) in enumerate(zip(self.folds, shown, strict=True)):
            wrong = wrong + next(e for role, _, e in self._sums[at].errors if role == "final")
            count = count + self._sums[at].count
            one = next(one for role, _, one in self._maps(at) if role == "final")
            x = (torch.from_numpy(rows) - fold.mean).nan_to_num_(nan=0.0)
            rebuilt.append((one(x) + fold.mean).numpy())
        return (wrong / count).numpy(), rebuilt

    def _variance(self) -> Vector:
        """Of each feature over the held-out rows of all folds together."""
        count = torch.stack([sums.count for sums in self._sums])
        mean = torch.stack(
            [fold.mean + sums.gap for fold, sums in zip(self.folds, self._sums, strict=True)]
        )
        centre = (count * mean).sum(0) / count.sum(0)
        inside = torch.stack([sums.total for sums in self._sums]).sum(0)
        between = (count * (mean - centre).square()).sum(0)
        return ((inside + between) / count.sum(0)).clamp_min(0).numpy()

    def curve(self) -> dict[str, object]:
        """By metric, held-out shares at smaller sizes, with linear decoders."""
        k = min(len(panel) for panel in self.panels)
        sizes = np.unique(np.linspace(1, k, min(k, POINTS)).round().astype(int))
        found: dict[str, object] = {"k": sizes.tolist()}
        for metric in self.metrics:
            lines: dict[str, list[Vector]] = {}
            weights = []
            for at, fold in enumerate(self.folds):
                for role, line in self._lines(at, fold, metric, sizes):
                    lines.setdefault(role, []).append(line)
                    if role == "panel":
                        weights.append(len(fold.held_index))
            found[metric] = {
                role: np.average(parts, axis=0, weights=weights).tolist()
                for role, parts in lines.items()
            }
        return found

    # -- rivals ------------------------------------------------------------------------------

    @cached_property
    def _greedy(self) -> Candidate:
        return self._candidate("greedy", [self.greedy(fold, self.seed) for fold in self.folds])

    @cached_property
    def _random(self) -> list[Candidate]:
        random = np.random.default_rng(self.seed)
        must = self.constraints.include
        free = np.setdiff1d(
            np.arange(self.constraints.d), np.concatenate([must, self.constraints.exclude])
        )
        draws = []
        for _ in range(DRAWS):
            panels = []
            for panel in self.panels:
                more = max(0, min(len(panel) - len(must), len(free)))
                drawn = random.choice(free, more, replace=False)
                panels.append(np.sort(np.concatenate([must, drawn])))
            draws.append(self._candidate("random", panels))
        return draws

    def _candidate(self, name: str, panels: list[Columns]) -> Candidate:
        found = Candidate(name, lambda fold, seed: panels[0], panels=panels)
        self.comparison.measure(found, self.folds)
        return found

    @cached_property
    def _components(self) -> dict[tuple[int, str], Tensor]:
        """Principal directions (d x k) of each fold, in scaled units for each metric."""
        found = {}
        for at, fold in enumerate(self.folds):
            for metric in self.metrics:
                spread, count = self._spread(fold, metric), len(self.panels[at])
                found[at, metric] = leading_eigenvectors(
                    fold.train, count, scale=spread, device=self.device
                )
        return found

    def _maps(self, at: int) -> Iterator[tuple[str, str | None, "_LinearMap"]]:
        """Role, metric (None for all) and map of each rival in a fold."""
        fold = self.folds[at]
        scale = torch.from_numpy(fold.scale)
        lines = [(one.strategy, one.panels[at], one.ridge) for one in (self._greedy, *self._random)]
        if self.final is not None:
            lines.append(("final", self.final, self.ridge))
        for role, columns, ridge in lines:
            weight = fold.decoder(columns, ridge) * scale / scale[columns][:, None]
            yield role, None, _LinearMap(torch.from_numpy(columns), None, weight)
        for metric in self.metrics:
            axes = self._components[at, metric]
            unit = scale / self._spread(fold, metric)  # of what the axes are directions
            yield "pca", metric, _LinearMap(None, axes / unit[:, None], axes.T * unit)

    # -- judging -----------------------------------------------------------------------------

    def _lines(
        self, at: int, fold: ScaledFold, metric: str, sizes: NDArray[np.int64]
    ) -> Iterator[tuple[str, Vector]]:
        spread = self._spread(fold, metric)
        weight = spread.square()
        # the variance of held-out rows is about their own mean, as in R squared
        gap = self._sums[at].gap / torch.from_numpy(fold.scale)
        trace = float(weight @ fold.held.diagonal())
        whole = trace - float(weight @ gap.square())
        if whole <= ROUNDING * trace:
            return
        orders = {
            "panel": (nested(fold.train, self.panels[at], self.ridge)[0], self.ridge),
            "greedy": (nested(fold.train, self._greedy.panels[at])[0], self._greedy.ridge),
        }
        for role, (order, ridge) in orders.items():
            errors = [float(weight @ _residuals(fold, order[:size], ridge)) for size in sizes]
            yield role, 1 - np.array(errors) / whole
        axes = spread[:, None] * self._components[at, metric]
        explained = torch.cumsum((axes * (fold.held @ axes)).sum(0), 0).numpy()
        most = np.minimum(sizes, len(explained)) - 1
        yield "pca", 1 - (trace - explained[most]) / whole

    @cached_property
    def _sums(self) -> list["_Sums"]:
        return [
            _sums(list(self._maps(at)), RowView(self.source, fold.held_index), fold.mean)
            for at, fold in enumerate(self.folds)
        ]

    def _spread(self, fold: ScaledFold, metric: str) -> Tensor:
        """What brings scaled features to the metric."""
        scale = torch.from_numpy(fold.scale)
        return scale if metric == "units" else torch.ones_like(scale)

    def _weight(self, fold: ScaledFold, metric: str) -> Tensor:
        """What squared errors in the units of the data count for."""
        scale = torch.from_numpy(fold.scale)
        return torch.ones_like(scale) if metric == "units" else scale.square().reciprocal()


@dataclass(frozen=True)
class _LinearMap:
    """Reconstruction of centred rows: of some columns, or by way of a few combinations."""

    columns: Tensor | None
    encoder: Tensor | None
    decoder: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        inside = x if self.columns is None else x[:, self.columns]
        return (inside if self.encoder is None else inside @ self.encoder) @ self.decoder


@dataclass(frozen=True)
class _Sums:
    """Over the observed entries of held-out rows, for each feature."""

    errors: list[tuple[str, str | None, Tensor]]  # role, metric, sum of squared errors
    total: Tensor  # squares about the rows' own mean
    count: Tensor
    gap: Tensor  # the rows' own mean less the training mean


def _sums(
    maps: Sequence[tuple[str, str | None, _LinearMap]], source: Source, mean: Tensor
) -> _Sums:
    d = source.shape[1]
    count, first, second = (torch.zeros(d, dtype=torch.float64) for _ in range(3))
    errors = [torch.zeros(d, dtype=torch.float64) for _ in maps]
    for _, rows in read_blocks(source):
        seen = ~torch.isnan(rows)
        x = (rows - mean).nan_to_num_(nan=0.0)  # what is missing takes the training mean
        count += seen.sum(0)
        first += x.sum(0)
        second += x.square().sum(0)
        for wrong, (*_, one) in zip(errors, maps, strict=True):
            wrong.add_(torch.where(seen, one(x) - x, 0.0).square().sum(0))
    count.clamp_min_(1)
    total = second - first.square() / count
    total = torch.where(total > ROUNDING * second, total, 0.0)  # a constant has no variance
    named = [(role, only, wrong) for (role, only, _), wrong in zip(maps, errors, strict=True)]
    return _Sums(named, total, count, first / count)


def _residuals(fold: ScaledFold, columns: Columns, ridge: float) -> Tensor:
    """Mean squared residual of each feature on the held-out rows, in scaled units."""
    B = fold.decoder(columns, ridge)
    rows = fold.held[columns]
    return fold.held.diagonal() - 2 * (B * rows).sum(0) + (B * (rows[:, columns] @ B)).sum(0)
