"""Swaps judged by trained networks, many at once.

A surrogate ranks panels nearly as networks do, but where its search ends, trained networks often
prefer a neighbour. On a GPU a hundred small networks take about as long to train as one, so the
networks themselves can be asked: each round trains one for each of many panels that differ from the
present one in a single unit; the best of these swaps, alone and together, are judged again, with
other weights and other rows held out, and the best panel of those is taken if it is ahead of the
present one again. Rows that had no part in this then decide whether the result is better than where
it started, beyond chance.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from fewer.constraints import Constraints
from fewer.data import RowView, Source, moments, read_blocks
from fewer.data.moments import Summary
from fewer.data.source import array_source
from fewer.distributed import world_size
from fewer.nn import make_loss
from fewer.nn.decoder import hidden_widths
from fewer.train.config import TrainingConfig
from fewer.train.network import held_out_losses, train_decoders
from fewer.train.surrogate import FEW_CHOSEN, RandomFeatureSurrogate
from fewer.train.training_data import TrainingData, prepare
from fewer.validation import ROWS_PER_FEATURE, paired_interval

__all__ = ["Referee", "clearly_best", "trained_swaps"]

HELD = 0.25  # of the rows
SPLITS = 4  # in turn
MOST_ROWS = 12_000
# of networks: each round trains so many; and more rounds where there are more swaps to try
ROUNDS, MORE_ROUNDS, MANY_SWAPS = 4, 8, 4096
COUNT = 64
FAILURES = 2  # rounds without a better panel that end the search
DRAWN = 8  # times as many swaps are drawn; a surrogate, if there is one, takes the best of them
RANDOM = 0.25  # of the networks are for swaps that it did not choose
WIDTH, RANKING_ROWS = 384, 4500  # random features and rows of a surrogate
SHORT, LONGER = 240, 400  # steps of training for a first look, and to confirm it
FEWEST_EPOCHS = 5
WIDEST = 4096  # layers
TOGETHER = (1, 2, 3, 4, 6, 8, 12)  # swaps that are confirmed as one
ALONE = 4  # further ones that are confirmed alone
PROGRESS = 1e-4  # minimum relative improvement
TRAININGS = 3  # of each panel in the last comparison
LIKELY = 0.95  # level of its interval

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

    def ranking(self, summary: Summary) -> Rank:
        """Errors of panels by a surrogate on the same rows, whose covariance is known."""
        surrogate = RandomFeatureSurrogate(
            self.rows,
            summary,
            k=self.config.k,
            seed=self.seed + 2,  # network swaps have used the two before
            device=self.config.device,
            labels=self.labels,
            width=WIDTH,
            rows=RANKING_ROWS,
            folds=SPLITS,
        )
        return surrogate.errors

    @staticmethod
    def judges(config: TrainingConfig, shape: tuple[int, int], device: torch.device) -> bool:
        """Whether many networks can be trained at once in little time, with rows that can tell."""
        decoder = config.decoder
        if config.linear or isinstance(decoder, str) or callable(decoder) or world_size() > 1:
            return False
        small = max(shape[1], *hidden_widths(decoder)) <= WIDEST
        enough = config.k <= FEW_CHOSEN and shape[0] >= ROWS_PER_FEATURE * config.k
        return small and enough and device.type == "cuda"

    def errors(
        self, panels: Sequence[Columns], split: int, seed: int, steps: int
    ) -> NDArray[np.float64]:
        """Error of a network on each panel, with the price of the panel where costs have weight."""
        if split not in self.splits:
            options = self.rows, self.stats, self.config, make_loss("mse"), self.seed + split
            self.splits[split] = prepare(*options, groups=self.labels)
        data = self.splits[split]
        if isinstance(self.config.refit_epochs, str):
            each = -(-len(data.train) // self.config.batch_size)
            epochs = max(FEWEST_EPOCHS, round(steps / each))
            data = replace(data, config=replace(self.config, refit_epochs=epochs))
        prices = np.array([self.constraints.price(panel) for panel in panels])
        return held_out_losses(data, panels, seed) + prices / self.constraints.d


def trained_swaps(
    referee: Referee,
    start: Columns,
    *,
    rank: Rank | None = None,
    rounds: int | None = None,
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
    rounds, count : int, default=None, 64
        Maximum number of rounds, and number of networks in each. None: 4, or 8 where more than
        4,096 swaps are possible.
    time_limit : float, default=None
        Seconds after which no round starts.

    Returns
    -------
    array of int
        Columns, ascending.
    """
    constraints, random = referee.constraints, np.random.default_rng(referee.seed)
    ends = None if time_limit is None else time.perf_counter() + time_limit
    units = sorted(set(constraints.unit_of[start].tolist()))
    if rounds is None:
        swaps = len(units) * (len(constraints.units) - len(units))
        rounds = ROUNDS if swaps < MANY_SWAPS else MORE_ROUNDS
    failed = at = 0
    while at < rounds and failed < FAILURES and (ends is None or time.perf_counter() < ends):
        tries = _drawn(constraints, units, count, random, rank)
        panels = [constraints.features(_after(units, [swap])) for swap in tries]
        panels = [constraints.features(units), *panels]
        now, *errors = referee.errors(panels, 2 * at % SPLITS, 2 * at, SHORT)
        better = [tries[i] for i in np.argsort(errors) if errors[i] < now]
        tried = _combined(constraints, units, better)
        panels = [constraints.features(one) for one in (units, *tried)]
        at, failed = at + 1, failed + 1
        if tried:
            now, *errors = referee.errors(panels, (2 * at - 1) % SPLITS, 2 * at - 1, LONGER)
            best = int(np.argmin(errors))
            if errors[best] < now * (1 - PROGRESS):
                units, failed = tried[best], 0
    return constraints.features(units)


def clearly_best(
    data: TrainingData,
    constraints: Constraints,
    base: Columns,
    others: Sequence[Columns],
    seed: int,
) -> Columns:
    """The best of other panels if it beats this one clearly on held-out rows; else this one.

    Networks on all panels are trained from several weights; their errors on the held-out rows of
    the data, which must not have had a part in the choice of the panels, are compared row by row.
    """
    panels = list({panel.tobytes(): panel for panel in (base, *others)}.values())
    if len(panels) == 1 or data.valid is None:
        return base
    losses = np.zeros((len(panels), len(data.valid.index)))
    for at in range(TRAININGS):
        decoders = train_decoders(data, panels, seed + at, effort=0.5)
        for own, panel, decoder in zip(losses, panels, decoders, strict=True):
            with torch.no_grad():
                for rows, x in read_blocks(RowView(data.source, data.valid.index)):
                    gap = torch.nan_to_num(decoder(x[:, panel]) - x, nan=0.0)
                    own[rows] += gap.square().mean(1).numpy() / TRAININGS
    losses += np.array([[constraints.price(panel)] for panel in panels]) / constraints.d
    best = int(losses.mean(1).argmin())
    gaps = losses[0] - losses[best]
    low = paired_interval(gaps, np.zeros_like(data.valid.index), level=LIKELY)[1]
    return panels[best] if low > 0 else base


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
