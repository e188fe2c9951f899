"""Features for a network, chosen by swaps that are scored with a surrogate model.

Training a network for every swap would take hours; ridge regression on random features ranks panels
nearly as the network does, and is solved exactly in milliseconds:
Phi = [relu(Z_S R_S / sqrt(k) + c), Z_S, 1], with one fixed row of R per column of the data, so that
panels with common features have common random features, which reduces the noise of differences
between them. Every fold of the rows is held out once.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fewer._threads import mapped, own_cores
from fewer.constraints import Constraints
from fewer.data import Source
from fewer.data.factored import Matrix
from fewer.data.moments import Summary
from fewer.search.eigen import leading_eigenvectors
from fewer.search.exchange import Limits, swap_losses
from fewer.search.objective import residual_of

__all__ = ["RandomFeatureSurrogate", "network_elimination", "network_swaps"]

COMPONENTS = 128
# on random features of about unit variance, more where rows are few; a hundredth of it on the
# linear part
RIDGE, MANY_ROWS = 1e-2, 2000
FEWEST, ROWS_PER_FEATURE = 128, 5  # where rows are few, there are fewer random features
VALUES_ON_GPU = 2**26  # of random features of panels that are solved at once
MOST_SWAPS = 4  # in a round
OTHERS, CHANGED = 1, 8  # other starts that are improved; units of which one is changed at random
# interactions: combinations of targets, the fewest rows, and the most multiplications
PROBES, FEWEST_ROWS, MOST_PRODUCTS = 8, 256, 2**34
SHARES = (0.25, 0.5, 1.0)  # of a panel that interacting features replace
PROGRESS = 1e-4  # minimum relative improvement
ONE_BY_ONE = 600  # the square of the units of which several are removed at once, at most a quarter


@dataclass(frozen=True)
class Effort:
    """Sizes of surrogates (random features, rows, folds), and how many swaps they judge."""

    proposes: tuple[int, int, int]
    ranks: tuple[int, int, int]
    confirms: tuple[int, int, int]
    substitutes: int  # per chosen unit, tried directly
    pool: int  # units that are tried as additions, a quarter of them at random
    checked: tuple[int, int, int]  # swaps that the finer surrogate ranks: more after a failed round
    rounds: int
    further: int  # panels that are improved besides the best start


QUICK = Effort((128, 1200, 2), (256, 2000, 4), (384, 4500, 4), 2, 64, (12, 24, 48), 40, 2)
# small panels on a GPU, which judges hundreds of them as fast as one
THOROUGH = Effort((256, 2400, 2), (384, 4500, 4), (512, 6000, 4), 8, 128, (24, 48, 96), 80, 4)
FEW_CHOSEN = 24  # features of a small panel

Columns = NDArray[np.int64]
Judge = Callable[[Sequence[Sequence[int]]], NDArray[np.float64]]  # errors of panels of units


class RandomFeatureSurrogate:
    """Held-out error of panels of about k features, by ridge regression on random features.

    ``seed`` determines the random layer (of ``width`` features, fewer where rows are few), the rows
    used (at most ``rows``) and the ``folds``, each of which is held out once; rows with the same
    label stay together. Missing values are replaced by the mean. What is predicted are the rows
    themselves, by their leading components (``axes``, if known), or ``targets`` (n x m), whose rows
    may have ``weights``.
    """

    def __init__(
        self,
        source: Source,
        summary: Summary,
        *,
        k: int,
        width: int = 512,
        rows: int = 6000,
        folds: int = 4,
        seed: int = 0,
        device: torch.device | str = "cpu",
        labels: NDArray | None = None,
        targets: Tensor | None = None,
        weights: Tensor | None = None,
        axes: Tensor | None = None,
    ) -> None:
        n, d = source.shape
        index = np.random.default_rng(seed).permutation(n)[: min(n, rows)]
        if labels is not None:  # groups one after the other, so that the cut can respect them
            groups = _shuffled(labels, seed)
            index = index[np.argsort(groups[index], kind="stable")]
        order = np.argsort(index)  # sources read ascending rows fastest
        x = source.rows(index[order], torch.float64)[torch.from_numpy(np.argsort(order))]
        x = torch.nan_to_num(x - summary.mean, nan=0.0)
        spread = summary.matrix.diagonal().sqrt()
        if targets is None:
            axes = leading_eigenvectors(summary.matrix, COMPONENTS) if axes is None else axes
            y = x @ axes
            self.targets = (y / spread.square().mean().sqrt()).float().to(device)
        else:
            self.targets = targets[torch.from_numpy(index)].float().to(device)
        self.root: Tensor | None = None  # of the weight of each row
        if weights is not None:
            own = weights[torch.from_numpy(index)]
            self.root = (own / own.mean()).sqrt()[:, None].float().to(device)
            self.targets = self.targets * self.root
        z = x / torch.where(spread > 0, spread, 1.0)
        # a column of zeros is "no feature", so that panels of different sizes can be batched
        self.inputs = torch.cat([z, torch.zeros(len(z), 1)], dim=1).float().to(device)
        width = min(width, max(FEWEST, len(z) // ROWS_PER_FEATURE))
        generator = torch.Generator().manual_seed(seed)
        self.mix = torch.randn(d + 1, width, generator=generator).to(device) / k**0.5
        self.shift = torch.randn(width, generator=generator).to(device)
        edges = np.arange(1, len(z))
        if labels is not None and len(np.unique(groups[index])) > 1:
            edges = np.flatnonzero(np.diff(groups[index])) + 1
        self.folds = _folds(len(z), edges, folds)
        held = torch.tensor([part.stop - part.start for part in self.folds])
        self.others = (len(z) - held)[:, None, None].to(device)  # rows that are not held out
        self.squares = torch.stack([self.targets[rows].square().sum() for rows in self.folds])
        self.variance = float(spread.square().mean()) or 1.0
        self.one_by_one = torch.device(device).type == "cpu"
        ridge = RIDGE * max(1.0, MANY_ROWS / len(z))
        penalty = [torch.full((width,), ridge), torch.full((d + 1,), ridge / 100)]
        self.penalty = torch.cat(penalty).to(device)
        self.known: dict[bytes, float] = {}  # the round after a failed one meets the same panels

    def errors(self, panels: Sequence[Columns]) -> NDArray[np.float64]:
        """Mean squared error of each panel on the held-out rows, in units of the mean variance."""
        new = {panel.tobytes(): panel for panel in panels}
        new = {key: panel for key, panel in new.items() if key not in self.known}
        self.known |= zip(new, self._computed(list(new.values())), strict=True)
        return np.array([self.known[panel.tobytes()] for panel in panels])

    def interactions(self, panel: Columns) -> NDArray[np.float32] | None:
        """How well the product of every two features (d x d) explains what the panel leaves.

        That is, what is left of a few random combinations of the targets by a linear map from the
        panel. A factor of products is unrelated to them, so linear methods do not see it, nor do
        swaps that bring one factor without the other. None where features are too many.
        """
        z, y = self.inputs[:, :-1], self.targets
        rows = min(len(z), MOST_PRODUCTS // (PROBES * z.shape[1] ** 2))
        if rows < min(len(z), FEWEST_ROWS):
            return None
        some = torch.arange(rows, device=z.device) * len(z) // rows
        z, y = z[some], y[some]
        known = torch.cat(
            [z[:, torch.from_numpy(panel).to(z.device)], torch.ones_like(z[:, :1])], 1
        )
        gram = known.T @ known / rows
        gram.diagonal().add_(self.penalty[-1])
        left = y - known @ torch.linalg.solve(gram, known.T @ y / rows)
        if left.shape[1] > PROBES:
            generator = torch.Generator().manual_seed(PROBES)
            left = left @ torch.randn(left.shape[1], PROBES, generator=generator).to(z.device)
        explained = torch.zeros(z.shape[1], z.shape[1], device=z.device)
        for probe in left.T:
            explained += ((z * probe[:, None]).T @ z).square_()
        squares = z.square()
        return explained.div_((squares.T @ squares).clamp_min_(1e-30)).cpu().numpy()

    def _computed(self, panels: list[Columns]) -> list[float]:
        if not panels or self.one_by_one:  # some panels on each core
            parts = [range(at, len(panels), own_cores()) for at in range(own_cores())]
            found = mapped(lambda part: self._one_by_one([panels[at] for at in part]), parts)
            pairs = zip(chain(*parts), chain(*found), strict=True)
            return [error for _, error in sorted(pairs)]
        table = np.full((len(panels), max(map(len, panels))), self.inputs.shape[1] - 1)
        for row, panel in zip(table, panels, strict=True):
            row[: len(panel)] = panel
        most = max(1, VALUES_ON_GPU // (len(self.inputs) * (len(self.shift) + table.shape[1])))
        parts = torch.from_numpy(table).to(self.inputs.device).split(most)
        return torch.cat([self._errors(part) for part in parts]).double().cpu().tolist()

    def _errors(self, panels: Tensor) -> Tensor:
        z = self.inputs[:, panels].transpose(0, 1)  # panels x rows x k
        random = torch.relu(z @ self.mix[panels] + self.shift)
        phi = torch.cat([random, z, torch.ones_like(z[..., :1])], dim=-1)
        if self.root is not None:
            phi = phi * self.root
        parts = [phi[:, rows] for rows in self.folds]
        return self._held_out(
            torch.stack([part.mT @ part for part in parts], dim=1),
            torch.stack(
                [
                    part.mT @ self.targets[rows]
                    for part, rows in zip(parts, self.folds, strict=True)
                ],
                dim=1,
            ),
        )

    def _one_by_one(self, panels: Sequence[Columns]) -> list[float]:
        """The same for each panel in turn, in one buffer: new memory costs as much as the sums."""
        rows, width, found = len(self.inputs), len(self.shift), []
        phi = torch.zeros(0, 0)
        for columns in panels:
            panel = torch.from_numpy(columns)
            if phi.shape[1] != width + len(panel) + 1:
                phi = torch.ones(rows, width + len(panel) + 1, dtype=self.inputs.dtype)
            z = self.inputs[:, panel]
            torch.addmm(self.shift, z, self.mix[panel], out=phi[:, :width]).relu_()
            phi[:, width:-1] = z
            if self.root is not None:
                phi[:, -1] = 1.0
                phi.mul_(self.root)
            size = phi.shape[1]
            grams = torch.empty(len(self.folds), size, size)
            rights = torch.empty(len(self.folds), size, self.targets.shape[1])
            for gram, right, fold in zip(grams, rights, self.folds, strict=True):
                torch.mm(phi[fold].T, phi[fold], out=gram)
                torch.mm(phi[fold].T, self.targets[fold], out=right)
            found.append(float(self._held_out(grams, rights)))
        return found

    def _held_out(self, grams: Tensor, rights: Tensor) -> Tensor:
        """Errors of ridge regressions without each fold on that fold, from sums over its rows."""
        fit = (grams.sum(-3, keepdim=True) - grams).div_(self.others)
        fit.diagonal(dim1=-2, dim2=-1).add_(self.penalty[: fit.shape[-1]])
        right = (rights.sum(-3, keepdim=True) - rights).div_(self.others)
        root = torch.linalg.cholesky(fit)
        if root.is_cuda:  # twice as fast there as cholesky_solve
            half = torch.linalg.solve_triangular(root, right, upper=False)
            weights = torch.linalg.solve_triangular(root.mT, half, upper=True)
        else:
            weights = torch.cholesky_solve(right, root)
        wrong = self.squares + (weights * (grams @ weights - 2 * rights)).sum((-2, -1))
        return wrong.sum(-1) / (len(self.inputs) * (self.inputs.shape[1] - 1))


def _folds(rows: int, edges: NDArray[np.int64], count: int) -> list[slice]:
    """Up to ``count`` parts of about as many rows that begin at ``edges``, at least two of them."""
    wanted = np.arange(1, count) * rows / count
    cuts = np.unique([edges[np.abs(edges - cut).argmin()] for cut in wanted])
    return [slice(int(a), int(b)) for a, b in pairwise([0, *cuts, rows])]


def _shuffled(labels: NDArray, seed: int) -> NDArray[np.int64]:
    """Labels as numbers in random order."""
    number = np.unique(labels, return_inverse=True)[1]
    return np.random.default_rng(seed).permutation(number.max() + 1)[number]


def network_swaps(
    source: Source,
    summary: Summary,
    starts: Sequence[Columns],
    constraints: Constraints,
    *,
    rounds: int | None = None,
    further: int | None = None,
    time_limit: float | None = None,
    seed: int = 0,
    device: torch.device | str = "cpu",
    labels: NDArray | None = None,
    targets: Tensor | None = None,
    linear: Matrix | None = None,
    weights: Tensor | None = None,
    reconstruct: float = 0.0,
) -> Columns:
    """Swap features as long as that lowers the error of a surrogate model.

    Each round uses a coarse surrogate to score removing every unit, adding each of a pool, and
    swapping every unit for its best linear substitutes. A finer one ranks the most promising swaps,
    and those that a third one, with random features and folds of its own, confirms are made: a
    search fits the random numbers of what it searches. Before the first round and after the last,
    units whose products explain most replace a part of the panel, or all of it, if that helps. At
    the end the next best start, and the best panel after some random changes, are improved too.

    Parameters
    ----------
    source, summary : Source, Covariance
        Rows, in the units in which errors are measured, and their covariance.
    starts : list of arrays of int
        Panels that meet the constraints.
    constraints : Constraints
        The constraints of the panel.
    rounds, time_limit : int, float, default=None, None
        Maximum number of rounds (None: 40), and of seconds after which no round starts. For panels
        of up to 24 features on a GPU, None is 80, with larger surrogates that judge more swaps.
    further : int, default=None
        Panels that are improved after the best start: the next best one, then what was found so far
        with some features changed at random. None: 2, or 4 for small panels on a GPU.
    seed : int, default=0
        Makes the result reproducible, unless time runs out.
    device : torch.device, default="cpu"
        Where to compute.
    labels : array of length n, default=None
        Rows with the same label are not split.
    targets, linear : Tensor (n x m), covariance, default=None, None
        Centred numbers to predict instead of the rows, and the covariance of features and targets,
        which suggests swaps.
    weights : Tensor of length n, default=None
        Row weights, if there are targets.
    reconstruct : float, default=0.0
        How much reconstructing the rows by a linear decoder counts beside the targets, below 1;
        both relative to the best of the starts.

    Returns
    -------
    array of int
        Columns, ascending.

    Examples
    --------
    A feature and its square are linearly unrelated.

    >>> import numpy as np
    >>> from fewer.constraints import resolve
    >>> from fewer.data import covariance
    >>> from fewer.data.source import array_source
    >>> x = np.random.default_rng(0).normal(size=(500, 2))
    >>> rows = np.hstack([x, x**2 / 2**0.5 + 0.1 * x])
    >>> source = array_source(rows)
    >>> network_swaps(source, covariance(source), [np.array([2, 3])], resolve(None, 4, 2))
    array([0, 1])
    """
    ends = None if time_limit is None else time.perf_counter() + time_limit
    small = torch.device(device).type == "cuda" and len(starts[0]) <= FEW_CHOSEN
    effort = THOROUGH if small and rounds is None else QUICK
    options: dict[str, Any] = {"k": len(starts[0]), "device": device}
    options |= {"labels": labels, "targets": targets, "weights": weights}
    if targets is None:
        options["axes"] = leading_eigenvectors(summary.matrix, COMPONENTS)

    def surrogate(width: int, rows: int, folds: int, seed: int) -> RandomFeatureSurrogate:
        size: dict[str, Any] = {"width": width, "rows": rows, "folds": folds, "seed": seed}
        return RandomFeatureSurrogate(source, summary, **size, **options)

    search = _Search(
        effort,
        surrogate(*effort.proposes, seed),
        surrogate(*effort.ranks, seed),
        surrogate(*effort.confirms, seed + 1),
        constraints,
        summary.matrix if linear is None else linear,
        np.random.default_rng(seed),
        effort.rounds if rounds is None else rounds,
        ends,
    )
    distinct = {tuple(sorted(set(constraints.unit_of[start].tolist()))): None for start in starts}
    panels = [list(units) for units in distinct]
    if reconstruct:
        search.covariance = summary.matrix
        lowest = float(search.confirm(panels).min())
        search.factor = _features_factor(reconstruct, lowest, summary.matrix, starts)
    errors = search.confirm(panels)
    first, *others = [(panels[at], float(errors[at])) for at in np.argsort(errors)]
    units, error = search.descend(*search.with_interactions(*first))
    while search.goes_on:
        better = search.with_interactions(units, error)
        if better[0] == units:
            break
        units, error = search.descend(*better)
    for at in range(effort.further if further is None else further):
        start = others[at] if at < len(others[:OTHERS]) else search.kicked(units)
        if start is None or not search.goes_on:
            break
        found = search.descend(start[0], start[1], effort.checked[:2])
        units, error = min((units, error), found, key=lambda one: one[1])
    return constraints.features(units)


def network_elimination(
    source: Source,
    summary: Summary,
    panel: Columns,
    constraints: Constraints,
    *,
    seed: int = 0,
    device: torch.device | str = "cpu",
    labels: NDArray | None = None,
    targets: Tensor | None = None,
    weights: Tensor | None = None,
    reconstruct: float = 0.0,
) -> Columns | None:
    """Remove features of a panel, always what a surrogate model misses least, until k are left.

    Of large panels, several units are removed at once. The parameters are those of
    `network_swaps`; ``reconstruct`` is relative to the panel. None if the constraints forbid it.

    Examples
    --------
    Only the first feature determines the target, but it is linearly unrelated to it.

    >>> import numpy as np
    >>> from fewer.constraints import resolve
    >>> from fewer.data import covariance
    >>> from fewer.data.source import array_source
    >>> x, noise = np.random.default_rng(0).normal(size=(2, 500))
    >>> source = array_source(np.stack([x, noise + 0.3 * x**2], axis=1))
    >>> targets = torch.from_numpy(x**2 - 1)[:, None]
    >>> panel, rules = np.array([0, 1]), resolve(None, 2, 1)
    >>> network_elimination(source, covariance(source), panel, rules, targets=targets)
    array([0])
    """
    width, rows, folds = QUICK.ranks
    surrogate = RandomFeatureSurrogate(
        source,
        summary,
        k=len(panel),
        width=width,
        rows=rows,
        folds=folds,
        seed=seed,
        device=device,
        labels=labels,
        targets=targets,
        weights=weights,
    )
    units = np.unique(constraints.unit_of[panel]).tolist()
    k = len(units) if constraints.k is None else constraints.k
    factor = 0.0
    if reconstruct:
        lowest = float(_judged(surrogate, constraints, [units])[0])
        factor = _features_factor(reconstruct, lowest, summary.matrix, [panel])
    included = set(constraints.included_units.tolist())
    while len(units) > k:
        free = [unit for unit in units if unit not in included]
        rests = [[unit for unit in units if unit != out] for out in free]
        errors = _judged(surrogate, constraints, rests, summary.matrix, factor)
        count = max(1, min(len(units) - k, len(free) // 4, len(free) ** 2 // ONE_BY_ONE))
        leaving = 0
        for at in np.argsort(errors, kind="stable"):
            rest = [unit for unit in units if unit != free[at]]
            if leaving < count and constraints.within(constraints.features(rest)):
                units, leaving = rest, leaving + 1
        if not leaving:
            return None
    return constraints.features(units)


@dataclass(eq=False)
class _Search:
    """Three surrogates, what panels obey, and how long to go on."""

    effort: Effort
    proposes: RandomFeatureSurrogate
    ranks: RandomFeatureSurrogate
    confirms: RandomFeatureSurrogate
    constraints: Constraints
    linear: Matrix  # a covariance that suggests substitutes
    random: np.random.Generator
    rounds: int  # that are left
    ends: float | None  # value of time.perf_counter
    interactions: NDArray[np.float32] | None = None  # of every two units
    covariance: Matrix | None = None  # of the rows, where reconstructing them counts as well
    factor: float = 0.0  # of what panels leave of them

    @property
    def goes_on(self) -> bool:
        """Whether another round may start."""
        return self.rounds > 0 and (self.ends is None or time.perf_counter() < self.ends)

    @property
    def propose(self) -> Judge:
        return partial(self.judge, self.proposes)

    @property
    def confirm(self) -> Judge:
        return partial(self.judge, self.confirms)

    def judge(
        self, surrogate: RandomFeatureSurrogate, panels: Sequence[Sequence[int]]
    ) -> NDArray[np.float64]:
        """What a surrogate says of panels of units and, where it counts, what they leave."""
        return _judged(surrogate, self.constraints, panels, self.covariance, self.factor)

    def descend(
        self, units: list[int], error: float, checked: Sequence[int] | None = None
    ) -> tuple[list[int], float]:
        """Make swaps until none of those that are checked helps."""
        checked, failed = checked or self.effort.checked, 0  # failed rounds
        while failed < len(checked) and self.goes_on:
            self.rounds -= 1
            tried = self.promising(units)[: checked[failed]]
            ranked = self.judge(self.ranks, [_after(units, *one) for one in tried])
            before = error
            for out, into in [tried[at] for at in np.argsort(ranked)[:MOST_SWAPS]]:
                if out in units and into not in units and self.affordable(units, out, into):
                    after = _after(units, out, into)
                    found = float(self.confirm([after])[0])
                    if found < error * (1 - PROGRESS):
                        units, error = after, found
            failed = failed + 1 if error == before else 0
        return units, error

    def with_interactions(self, units: list[int], error: float) -> tuple[list[int], float]:
        """The panel, or one in which units that interact most replace the least important."""
        self.interactions = _interactions(self.proposes, self.constraints, units)
        others = self.interacting(units)
        errors = self.confirm(others)
        if not others or errors.min() >= error * (1 - PROGRESS):
            return units, error
        return others[int(errors.argmin())], float(errors.min())

    def interacting(self, units: list[int]) -> list[list[int]]:
        """Panels whose least important units are replaced by those that interact most."""
        constraints, strength = self.constraints, self.interactions
        included = set(constraints.included_units.tolist())
        free = [unit for unit in units if unit not in included]
        if strength is None or len(free) < 2:
            return []
        losses = self.propose([[u for u in units if u != out] for out in free])
        free = [free[at] for at in np.argsort(-losses)]  # the most important first
        pair = np.unravel_index(strength.argmax(), strength.shape)
        members = list(dict.fromkeys(int(at) for at in pair))  # a feature and itself: a square
        while len(members) < min(len(free), len(strength)):
            total = strength[members].sum(axis=0)
            total[members] = -1
            members.append(int(total.argmax()))
        found = []
        for share in SHARES:
            entering = members[: max(2, round(share * len(free)))]
            kept = [unit for unit in units if unit in included or unit in entering]
            new = [unit for unit in entering if unit not in units]
            rest = [unit for unit in free if unit not in kept]
            panel = sorted([*kept, *new, *rest][: len(units)])
            if constraints.within(constraints.features(panel)):
                found.append(panel)
        return found

    def kicked(self, units: list[int]) -> tuple[list[int], float] | None:
        """The panel after some of the more promising swaps, drawn at random, and its error."""
        changed, count = units, max(2, len(units) // CHANGED)
        promising = self.promising(units)
        for at in self.random.permutation(len(promising)):
            out, into = promising[at]
            if out in changed and into not in changed and self.affordable(changed, out, into):
                changed = _after(changed, out, into)
                count -= 1
                if not count:
                    return changed, float(self.confirm([changed])[0])
        return None

    def promising(self, units: list[int]) -> list[tuple[int, int]]:
        """The best swaps (out, into) according to the coarse surrogate, best first."""
        constraints, effort = self.constraints, self.effort
        included = set(constraints.included_units.tolist())
        free = [unit for unit in units if unit not in included]
        others = np.setdiff1d(np.arange(len(constraints.units)), units)
        if not free or not len(others):
            return []
        losses = _unit_losses(self.linear, constraints, units, free, others)
        pool = others[np.argsort(losses.min(axis=0))[: effort.pool // 2]]
        if self.interactions is not None:
            strength = self.interactions[np.ix_(others, np.array(units))].max(axis=1)
            strength = np.maximum(strength, self.interactions[others, others])
            strength[np.isin(others, pool)] = -1
            pool = np.union1d(pool, others[np.argsort(-strength)[: effort.pool // 4]])
        rest = self.random.permutation(np.setdiff1d(others, pool))
        pool = np.concatenate([pool, rest[: max(0, effort.pool - len(pool))]])
        substitutes = others[np.argsort(losses, axis=1)[:, : effort.substitutes]]
        panels = [units]
        panels += [[unit for unit in units if unit != out] for out in free]
        panels += [[*units, unit] for unit in pool]
        panels += [
            _after(units, out, unit)
            for out, row in zip(free, substitutes, strict=True)
            for unit in row
        ]
        cuts = np.cumsum([1, len(free), len(pool)])
        base, drops, adds, direct = np.split(self.propose(panels), cuts)
        guess = np.full((len(free), len(constraints.units)), np.inf)
        guess[:, pool] = drops[:, None] + adds - base
        guess[np.arange(len(free))[:, None], substitutes] = direct.reshape(substitutes.shape)
        if constraints.budget is not None or constraints.limits:
            S = torch.tensor([[*free, *included]])
            fits = Limits(constraints, S.device).exchangeable(S)[0, : len(free)]
            guess[~fits.numpy()] = np.inf
        known = np.flatnonzero(np.isfinite(guess))
        best = known[np.argsort(guess.ravel()[known], kind="stable")][: 2 * effort.checked[-1]]
        rows, entering = np.unravel_index(best, guess.shape)
        return [(free[row], int(unit)) for row, unit in zip(rows, entering, strict=True)]

    def affordable(self, units: list[int], out: int, into: int) -> bool:
        """Whether the panel after a swap is within the budget and the limits."""
        return self.constraints.within(self.constraints.features(_after(units, out, into)))


def _interactions(
    surrogate: RandomFeatureSurrogate, constraints: Constraints, units: list[int]
) -> NDArray[np.float32] | None:
    """`RandomFeatureSurrogate.interactions` of every two units, by their best features."""
    found = surrogate.interactions(constraints.features(units))
    if found is None:
        return None
    order = np.concatenate(constraints.units)
    first = np.cumsum([0, *map(len, constraints.units[:-1])])
    found = np.maximum.reduceat(found[np.ix_(order, order)], first, axis=0)
    return np.asarray(np.maximum.reduceat(found, first, axis=1))


def _judged(
    surrogate: RandomFeatureSurrogate,
    constraints: Constraints,
    panels: Sequence[Sequence[int]],
    covariance: Matrix | None = None,
    factor: float = 0.0,
) -> NDArray[np.float64]:
    """Errors of panels of units, plus their prices if costs have weight.

    With ``factor``, also that times what panels leave of the rows with this covariance.
    """
    columns = [constraints.features(units) for units in panels]
    prices = np.array([constraints.price(panel) for panel in columns])
    found = surrogate.errors(columns) + prices / (constraints.d * surrogate.variance)
    if not factor or covariance is None:
        return found
    return found + factor * np.array([residual_of(covariance, panel, 0.0) for panel in columns])


def _features_factor(
    reconstruct: float, lowest: float, covariance: Matrix, panels: Sequence[Columns]
) -> float:
    """Weight of what panels leave of the rows; both count relative to the lowest of some panels."""
    least = min(residual_of(covariance, panel, 0.0) for panel in panels)
    return reconstruct / (1 - reconstruct) * lowest / (least or 1.0)


def _unit_losses(
    C: Matrix, constraints: Constraints, units: list[int], free: list[int], others: Columns
) -> NDArray[np.float32]:
    """Linear loss of swapping each free unit for each other unit, by their best features."""
    columns = constraints.features(units)
    losses = swap_losses(C, columns)
    if constraints.groups is None:
        rows = np.searchsorted(columns, [constraints.units[unit][0] for unit in free])
        return losses[np.ix_(rows, constraints.features(others))]
    table = np.empty((len(free), len(others)), dtype=np.float32)
    parts = [constraints.units[other] for other in others]
    features = np.concatenate(parts)
    first = np.cumsum([0, *map(len, parts[:-1])])  # of each unit
    for row, unit in zip(table, free, strict=True):
        own = losses[np.isin(columns, constraints.units[unit])].min(axis=0)
        row[:] = np.minimum.reduceat(own[features], first)
    return table


def _after(units: list[int], out: int, into: int) -> list[int]:
    return [into if unit == out else unit for unit in units]
