"""Swaps for decoders that are not linear: panels compared through a surrogate of the network.

Training a network for every exchange of two features would take hours. Ridge regression on random
features ranks panels nearly as the network does, and is solved exactly in milliseconds:
Phi = [relu(Z_S R_S / sqrt(k) + c), Z_S, 1], with one fixed row of R for each column of the data,
so that panels which share features share their random features too and differences between them
are not drowned in noise. Fitted on one part of the rows, compared on the others.
"""

import time
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fewer.constraints import Constraints
from fewer.data import Covariance, Source
from fewer.search.eigen import leading_eigenvectors
from fewer.search.exchange import swap_losses

__all__ = ["RandomFeatureSurrogate", "network_swaps"]

FIT_SHARE = 0.7
COMPONENTS = 128
RIDGE = 1e-2  # on random features of about unit variance; the linear part pays a hundredth
SUBSTITUTES = 3  # for each chosen unit, tried directly
POOL = 128  # units that are tried as additions, half of them at random
VERIFIED = (24, 48, 96)  # swaps that the finer surrogate checks: more after a round in vain
TOGETHER = 4  # most swaps made in a round
TOGETHER_ON_GPU = 16  # panels that are solved at the same time
COARSE, FINE = (256, 2500), (512, 6000)  # random features and rows of the two surrogates
WORTH = 1e-4  # least relative progress

Columns = NDArray[np.int64]
Judge = Callable[[Sequence[Sequence[int]]], NDArray[np.float64]]  # errors of panels of units


class RandomFeatureSurrogate:
    """Held-out error of panels under ridge regression on random features.

    ``k``, the size of a usual panel, sets the scale of the random layer; ``seed`` fixes that layer,
    the rows used (at most ``rows``) and their split, where rows with the same label stay together.
    Missing values take their mean.
    """

    def __init__(
        self,
        source: Source,
        summary: Covariance,
        *,
        k: int,
        width: int = 512,
        rows: int = 6000,
        seed: int = 0,
        device: torch.device | str = "cpu",
        labels: NDArray | None = None,
    ) -> None:
        n, d = source.shape
        index = np.random.default_rng(seed).permutation(n)[: min(n, rows)]
        if labels is not None:  # whole groups, one after the other, so that one cut parts them
            index = index[np.argsort(_shuffled(labels, seed)[index], kind="stable")]
        order = np.argsort(index)  # sources read ascending rows fastest
        x = source.rows(index[order], torch.float64)[torch.from_numpy(np.argsort(order))]
        x = torch.nan_to_num(x - summary.mean, nan=0.0)
        spread = summary.matrix.diagonal().sqrt()
        axes = leading_eigenvectors(summary.matrix, COMPONENTS)
        self.targets = (x @ axes / spread.square().mean().sqrt()).float().to(device)
        z = x / torch.where(spread > 0, spread, 1.0)
        # a column of zeros stands for "no feature", so that panels of different sizes batch
        self.inputs = torch.cat([z, torch.zeros(len(z), 1)], dim=1).float().to(device)
        generator = torch.Generator().manual_seed(seed)
        self.mix = torch.randn(d + 1, width, generator=generator).to(device) / k**0.5
        self.shift = torch.randn(width, generator=generator).to(device)
        self.cut = round(FIT_SHARE * len(z))
        if labels is not None:
            edges = np.flatnonzero(np.diff(_shuffled(labels, seed)[index])) + 1
            self.cut = int(edges[np.abs(edges - self.cut).argmin()]) if len(edges) else self.cut
        self.variance = float(spread.square().mean()) or 1.0
        self.alone = torch.device(device).type == "cpu"  # panels are solved one by one
        penalty = [torch.full((width,), RIDGE), torch.full((d + 1,), RIDGE / 100)]
        self.penalty = torch.cat(penalty).to(device)
        self.room = torch.zeros(0)  # for the random features of one panel
        self.known: dict[bytes, float] = {}  # rounds in vain return to the same panels

    def errors(self, panels: Sequence[Columns]) -> NDArray[np.float64]:
        """Mean squared error of each panel on the held-out rows, in units of the mean variance."""
        new = {panel.tobytes(): panel for panel in panels}
        new = {key: panel for key, panel in new.items() if key not in self.known}
        self.known |= zip(new, self._computed(list(new.values())), strict=True)
        return np.array([self.known[panel.tobytes()] for panel in panels])

    def _computed(self, panels: list[Columns]) -> list[float]:
        if not panels or self.alone:
            return [self._error(torch.from_numpy(panel)) for panel in panels]
        table = np.full((len(panels), max(map(len, panels))), self.inputs.shape[1] - 1)
        for row, panel in zip(table, panels, strict=True):
            row[: len(panel)] = panel
        parts = torch.from_numpy(table).to(self.inputs.device).split(TOGETHER_ON_GPU)
        return torch.cat([self._errors(part) for part in parts]).double().cpu().tolist()

    def _errors(self, panels: Tensor) -> Tensor:
        z = self.inputs[:, panels].transpose(0, 1)  # panels x rows x k
        random = torch.relu(z @ self.mix[panels] + self.shift)
        phi = torch.cat([random, z, torch.ones_like(z[..., :1])], dim=-1)
        fit, held = phi[:, : self.cut], phi[:, self.cut :]
        weights = self._solved(fit.mT @ fit, fit.mT @ self.targets[: self.cut])
        gap = held @ weights - self.targets[self.cut :]
        return gap.square().sum(dim=2).mean(dim=1) / (self.inputs.shape[1] - 1)

    def _error(self, panel: Tensor) -> float:
        """The same for one panel, in reused memory: fresh pages cost as much as the sums."""
        rows, width = len(self.inputs), len(self.shift)
        if self.room.shape[1:] != (width + len(panel) + 1,):
            self.room = torch.ones(rows, width + len(panel) + 1)
        phi = self.room
        z = self.inputs[:, panel]
        torch.addmm(self.shift, z, self.mix[panel], out=phi[:, :width]).relu_()
        phi[:, width:-1] = z
        fit, held = phi[: self.cut], phi[self.cut :]
        weights = self._solved(fit.T @ fit, fit.T @ self.targets[: self.cut])
        gap = torch.addmm(self.targets[self.cut :], held, weights, beta=-1)
        return float(gap.square_().sum(dim=1).mean()) / (self.inputs.shape[1] - 1)

    def _solved(self, gram: Tensor, right: Tensor) -> Tensor:
        """Weights of ridge regression, from sums over the rows."""
        gram = gram / self.cut
        gram.diagonal(dim1=-2, dim2=-1).add_(self.penalty[: gram.shape[-1]])
        return torch.cholesky_solve(right / self.cut, torch.linalg.cholesky(gram))


def _shuffled(labels: NDArray, seed: int) -> NDArray[np.int64]:
    """Labels as numbers in random order."""
    number = np.unique(labels, return_inverse=True)[1]
    return np.random.default_rng(seed).permutation(number.max() + 1)[number]


def network_swaps(
    source: Source,
    summary: Covariance,
    starts: Sequence[Columns],
    constraints: Constraints,
    *,
    rounds: int = 40,
    time_limit: float | None = None,
    seed: int = 0,
    device: torch.device | str = "cpu",
    labels: NDArray | None = None,
) -> Columns:
    """Swap features while that lowers the error of a surrogate of a network.

    Each round scores leaving out every unit, adding each of a pool, and swapping every unit for
    its best linear substitutes, on a coarse surrogate; the most promising swaps are scored again
    on a finer one, and the best that hold up are made.

    Parameters
    ----------
    source : Source
        Rows, in the units that errors count in.
    summary : Covariance
        Of the same rows.
    starts : list of arrays of int
        Panels to start from, which must obey the constraints; the best of them is improved.
    constraints : Constraints
        What every panel must obey.
    rounds : int, default=40
        Maximum number of rounds.
    time_limit : float, default=None
        Seconds after which no further round begins.
    seed : int, default=0
        Fixes the result, unless time runs out.
    device : torch.device, default="cpu"
        Where to compute.
    labels : array of length n, default=None
        Rows with the same label are fitted on or held out together.

    Returns
    -------
    array of int
        Columns, ascending.

    Examples
    --------
    A feature and its square: linearly they have nothing in common.

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
    began = time.perf_counter()
    k = len(starts[0])

    def judge(width: int, rows: int) -> Judge:
        return partial(
            _judged,
            RandomFeatureSurrogate(
                source,
                summary,
                k=k,
                width=width,
                rows=rows,
                seed=seed,
                device=device,
                labels=labels,
            ),
            constraints,
        )

    coarse, fine = judge(*COARSE), judge(*FINE)
    random = np.random.default_rng(seed)
    panels = [list(np.unique(constraints.unit_of[start])) for start in starts]
    errors = fine(panels)
    units, now = panels[int(errors.argmin())], float(errors.min())
    vain = 0
    for _ in range(rounds):
        tried = _promising(coarse, summary.matrix, constraints, units, random)[: VERIFIED[vain]]
        errors = fine([_after(units, *swap) for swap in tried])
        before = now
        for out, into in [tried[at] for at in np.argsort(errors)[:TOGETHER]]:
            if out in units and into not in units and _affordable(constraints, units, out, into):
                after = _after(units, out, into)
                error = float(fine([after])[0])
                if error < now * (1 - WORTH):
                    units, now = after, error
        vain = vain + 1 if now == before else 0
        late = time_limit is not None and time.perf_counter() - began > time_limit
        if vain == len(VERIFIED) or late:
            break
    return _columns(constraints, units)


def _promising(
    judge: Judge,
    C: Tensor,
    constraints: Constraints,
    units: list[int],
    random: np.random.Generator,
) -> list[tuple[int, int]]:
    """Swaps (out, into), those that a coarse look finds best first."""
    included = set(constraints.included_units.tolist())
    free = [unit for unit in units if unit not in included]
    others = np.setdiff1d(np.arange(len(constraints.units)), units)
    if not free or not len(others):
        return []
    losses = _unit_losses(C, constraints, units, free, others)
    near = others[np.argsort(losses.min(axis=0))[: POOL // 2]]
    rest = np.setdiff1d(others, near)
    pool = np.concatenate([near, random.permutation(rest)[: POOL - len(near)]]).tolist()
    base, *drops = judge([units, *([u for u in units if u != out] for out in free)])
    adds = judge([[*units, unit] for unit in pool])
    guess = {
        (out, into): drop + add - base
        for out, drop in zip(free, drops, strict=True)
        for into, add in zip(pool, adds, strict=True)
        if _affordable(constraints, units, out, into)
    }
    direct = [
        (out, into)
        for out, row in zip(free, losses, strict=True)
        for into in others[np.argsort(row)[:SUBSTITUTES]].tolist()
        if _affordable(constraints, units, out, into)
    ]
    scores = judge([_after(units, *swap) for swap in direct])
    guess |= dict(zip(direct, scores, strict=True))
    return sorted(guess, key=guess.__getitem__)


def _judged(
    surrogate: RandomFeatureSurrogate, constraints: Constraints, panels: Sequence[Sequence[int]]
) -> NDArray[np.float64]:
    """Errors of panels of units, and their prices if costs have weight."""
    columns = [_columns(constraints, units) for units in panels]
    prices = np.array([constraints.price(panel) for panel in columns])
    return surrogate.errors(columns) + prices / (constraints.d * surrogate.variance)


def _unit_losses(
    C: Tensor, constraints: Constraints, units: list[int], free: list[int], others: Columns
) -> NDArray[np.float32]:
    """Linear loss of swapping each free unit for each other unit, by their best features."""
    columns = _columns(constraints, units)
    losses = swap_losses(C, columns)
    table = np.empty((len(free), len(others)), dtype=np.float32)
    for row, unit in zip(table, free, strict=True):
        own = losses[np.isin(columns, constraints.units[unit])].min(axis=0)
        row[:] = [own[constraints.units[other]].min() for other in others]
    return table


def _columns(constraints: Constraints, units: Sequence[int]) -> Columns:
    none = np.zeros(0, dtype=np.int64)
    return np.sort(np.concatenate([none, *(constraints.units[unit] for unit in units)]))


def _after(units: list[int], out: int, into: int) -> list[int]:
    return [into if unit == out else unit for unit in units]


def _affordable(constraints: Constraints, units: list[int], out: int, into: int) -> bool:
    if constraints.budget is None:
        return True
    return bool(constraints.unit_costs[_after(units, out, into)].sum() <= constraints.ceiling)
