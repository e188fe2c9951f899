"""Swaps judged by trained networks, many at once.

A surrogate ranks panels nearly as networks do, but where its search ends, trained networks often
prefer a neighbour. On a GPU a hundred small networks take about as long to train as one, so the
networks themselves can be asked: each round trains one for each of many panels that differ from the
present one in a single unit; the best of these swaps, alone and together, are judged again, with
other weights and other rows held out, and the best panel of those is taken if it is ahead of the
present one again. A last comparison with new splits decides whether the result is better than where
it started, beyond chance.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import stdtrit

from fewer.constraints import Constraints
from fewer.data import Source, moments
from fewer.data.source import array_source
from fewer.distributed import world_size
from fewer.nn import make_loss
from fewer.train.config import TrainingConfig
from fewer.train.network import held_out_losses
from fewer.train.training_data import TrainingData, prepare
from fewer.validation import ROWS_PER_FEATURE

__all__ = ["Referee", "clearly_best", "trained_swaps"]

HELD = 0.25  # of the rows
SPLITS = 4  # for the rounds, in turn
MOST_ROWS = 12_000
ROUNDS, COUNT = 4, 96  # of networks: each round trains so many
DRAWN = 8  # times as many swaps are drawn; a surrogate, if there is one, takes the best of them
RANDOM = 0.25  # of the networks are for swaps that it did not choose
SHORT, LONGER = 0.2, 0.5  # efforts of a first look and of its confirmation
TOGETHER = (1, 2, 3, 4, 6, 8, 12)  # swaps that are confirmed as one
ALONE = 4  # further ones that are confirmed alone
PROGRESS = 1e-4  # minimum relative improvement
VERDICTS = 4  # new splits, of the last comparison
SURE = 0.95  # level of a one-sided interval
CLEARLY = 1e-3  # relative improvement that counts

Columns = NDArray[np.int64]
Rank = Callable[[Sequence[Columns]], NDArray[np.float64]]  # errors of panels, as a surrogate has it
Units = list[int]


@dataclass(eq=False)
class Referee:
    """Networks trained on three quarters of the rows, judged on the others.

    ``config`` says how they are trained; rows with the same label are held out together.
    """

    source: Source
    constraints: Constraints
    config: TrainingConfig
    seed: int = 0
    labels: NDArray | None = None

    def __post_init__(self) -> None:
        n = self.source.shape[0]
        index = np.sort(np.random.default_rng(self.seed).permutation(n)[:MOST_ROWS])
        self.rows = array_source(self.source.rows(index, torch.float64).numpy())
        self.labels = None if self.labels is None else self.labels[index]
        self.stats = moments(self.rows)
        self.config = replace(
            self.config, validation_fraction=HELD, progress=False, checkpoint=None, on_epoch=None
        )
        self.splits: dict[int, TrainingData] = {}

    @staticmethod
    def judges(config: TrainingConfig, rows: int, device: torch.device) -> bool:
        """Whether many networks can be trained at once in little time, with rows that can tell."""
        plain = not config.linear and not callable(config.decoder) and world_size() == 1
        return plain and device.type == "cuda" and rows >= ROWS_PER_FEATURE * config.k

    def errors(
        self, panels: Sequence[Columns], split: int, seed: int, effort: float
    ) -> NDArray[np.float64]:
        """Error of a network on each panel, with the price of the panel where costs have weight."""
        data = self.splits.get(split)
        if data is None:
            options = self.rows, self.stats, self.config, make_loss("mse"), self.seed + split
            data = prepare(*options, groups=self.labels)
            if split < SPLITS:
                self.splits[split] = data
        prices = np.array([self.constraints.price(panel) for panel in panels])
        return held_out_losses(data, panels, seed, effort=effort) + prices / self.constraints.d


def trained_swaps(
    referee: Referee,
    start: Columns,
    *,
    rank: Rank | None = None,
    rounds: int = ROUNDS,
    count: int = COUNT,
    time_limit: float | None = None,
) -> Columns:
    """Swap units as long as trained networks gain.

    Parameters
    ----------
    referee : Referee
        Who trains and judges.
    start : array of int
        A panel that meets the constraints.
    rank : callable, default=None
        Errors of panels according to a surrogate, which chooses most of the swaps that are tried;
        None tries random ones.
    rounds, count : int, default=4, 96
        Number of rounds, and of networks in each.
    time_limit : float, default=None
        Seconds after which no round starts.

    Returns
    -------
    array of int
        Columns, ascending.

    Examples
    --------
    Of two features, one and its square, the first tells the other.

    >>> from fewer.constraints import resolve
    >>> x = np.random.default_rng(0).normal(size=(400, 1))
    >>> rows = np.hstack([x**2, x, np.abs(x)])
    >>> config = TrainingConfig(k=1, decoder=(8,), device="cpu", refit_epochs=20)
    >>> referee = Referee(array_source(rows), resolve(None, 3, 1), config)
    >>> trained_swaps(referee, np.array([0]), rounds=2)
    array([1])
    """
    constraints, random = referee.constraints, np.random.default_rng(referee.seed)
    ends = None if time_limit is None else time.perf_counter() + time_limit
    units = sorted(set(constraints.unit_of[start].tolist()))
    for at in range(rounds):
        if ends is not None and time.perf_counter() > ends:
            break
        swaps = _drawn(constraints, units, count, random, rank)
        if not swaps:
            break
        panels = [constraints.features(_after(units, [swap])) for swap in swaps]
        panels = [constraints.features(units), *panels]
        now, *errors = referee.errors(panels, 2 * at % SPLITS, 2 * at, SHORT)
        better = [swaps[i] for i in np.argsort(errors) if errors[i] < now]
        tried = _combined(constraints, units, better)
        if not tried:
            continue
        panels = [constraints.features(one) for one in (units, *tried)]
        now, *errors = referee.errors(panels, (2 * at + 1) % SPLITS, 2 * at + 1, LONGER)
        best = int(np.argmin(errors))
        if errors[best] < now * (1 - PROGRESS):
            units = tried[best]
    return constraints.features(units)


def clearly_best(referee: Referee, base: Columns, others: Sequence[Columns]) -> Columns:
    """The best of other panels if it beats this one clearly, by new trainings; else this one.

    The networks of all panels have the same held-out rows, so that their differences count, over
    several splits; since these share rows, the standard error is that of Nadeau and Bengio (2003).
    """
    panels = list({panel.tobytes(): panel for panel in (base, *others)}.values())
    if len(panels) == 1:
        return base
    trials = [SPLITS + at for at in range(VERDICTS)]
    table = np.log([referee.errors(panels, trial, trial, LONGER) for trial in trials])
    gains = table[:, :1] - table[:, 1:]  # trials x others
    means = gains.mean(axis=0)
    best = int(means.argmax())
    share = 1 / VERDICTS + HELD / (1 - HELD)
    least = float(gains[:, best].std(ddof=1)) * share**0.5 * stdtrit(VERDICTS - 1, SURE)
    return panels[1 + best] if means[best] > max(least, CLEARLY) else base


def _drawn(
    constraints: Constraints,
    units: Units,
    count: int,
    random: np.random.Generator,
    rank: Rank | None,
) -> list[tuple[int, int]]:
    """Swaps (out, into) to try: the best of many that are drawn, and some at random."""
    included = set(constraints.included_units.tolist())
    free = np.array([unit for unit in units if unit not in included], dtype=np.int64)
    others = np.setdiff1d(np.arange(len(constraints.units)), units)
    possible = len(free) * len(others)
    wanted = min(possible, count if rank is None else DRAWN * count)
    picked = random.choice(possible, wanted, replace=False) if possible else np.arange(0)
    swaps = [(int(free[at // len(others)]), int(others[at % len(others)])) for at in picked]
    swaps = [swap for swap in swaps if _allowed(constraints, _after(units, [swap]))]
    if rank is None or len(swaps) <= count:
        return swaps[:count]
    kept = round(RANDOM * count)
    rest = swaps[kept:]
    order = np.argsort(rank([constraints.features(_after(units, [swap])) for swap in rest]))
    return swaps[:kept] + [rest[at] for at in order[: count - kept]]


def _combined(
    constraints: Constraints, units: Units, swaps: Sequence[tuple[int, int]]
) -> list[Units]:
    """Panels after the best swaps: each alone, and several that do not exclude each other."""
    chosen: list[tuple[int, int]] = []
    for out, into in swaps:
        free = all(out != a and into != b for a, b in chosen)
        if free and _allowed(constraints, _after(units, [*chosen, (out, into)])):
            chosen.append((out, into))
    found = [_after(units, chosen[:size]) for size in TOGETHER if size <= len(chosen)]
    found += [_after(units, [swap]) for swap in swaps[1 : 1 + ALONE]]
    return list({tuple(one): one for one in found}.values())


def _allowed(constraints: Constraints, units: Units) -> bool:
    return constraints.within(constraints.features(units))


def _after(units: Units, swaps: Sequence[tuple[int, int]]) -> Units:
    entering = dict(swaps)
    return sorted(entering.get(unit, unit) for unit in units)
