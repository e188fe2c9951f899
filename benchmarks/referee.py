"""How far a search goes in which trained networks themselves are the objective.

    FEWER_DATA=... python benchmarks/referee.py [--data mnist,isolet] [--k 20,50] [--width 75] \
        [--rounds 12] [--count 64] [--device auto] [--seed 0]

`fewer.select` swaps features for a network by a surrogate of it. This benchmark asks what that
leaves: from the linear search's panel on three quarters of the training rows, each round trains a
network (one hidden layer of --width units) on --count panels that differ from the present one in
one feature, half of them its best linear substitutes, half at random. The best of them on the
other quarter are trained once more, from other weights; the first that is ahead both times is
taken. At last the first and the final panel are trained on all training rows, three times.
Columns: swaps made; mean squared error of the final panel as a ratio to the first's, on the quarter
that chose it, and on test rows (with the standard deviation over the three trainings).
"""

import argparse
import time
from dataclasses import dataclass

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from sklearn.model_selection import GroupShuffleSplit, ShuffleSplit

import fewer
from cases import load_case
from fewer.constraints import resolve
from fewer.data import covariance, moments
from fewer.data.source import array_source
from fewer.nn import make_loss
from fewer.search.substitutes import substitutes
from fewer.train import TrainingConfig, train_decoders
from fewer.train.training_data import prepare

CONFIRMED = 8  # panels of each round
TRAININGS = 3  # of the first and the final panel


@dataclass(frozen=True, eq=False)
class Referee:
    """Rows to train on and to judge by."""

    fit: np.ndarray
    judge: np.ndarray
    config: TrainingConfig

    def errors(self, panels: list[np.ndarray], seed: int, effort: float = 0.5) -> np.ndarray:
        """Mean squared error of a network on each panel."""
        source = array_source(self.fit)
        data = prepare(source, moments(source), self.config, make_loss("mse"), seed)
        decoders = train_decoders(data, panels, seed, effort=effort)
        rows = torch.from_numpy(self.judge)
        with torch.no_grad():
            pairs = zip(decoders, panels, strict=True)
            return np.array([float((d(rows[:, p]) - rows).square().mean()) for d, p in pairs])


def neighbours(
    panel: np.ndarray, close: np.ndarray, count: int, d: int, rng: np.random.Generator
) -> list[np.ndarray]:
    """Panels with one feature exchanged: by linear substitutes, and at random."""
    others = np.setdiff1d(np.arange(d), panel)
    found: dict[tuple[int, ...], np.ndarray] = {}
    while len(found) < count:
        at = int(rng.integers(len(panel)))
        near = close[at][close[at] >= 0]
        by_search = len(found) < count // 2 and len(near)
        changed = panel.copy()
        changed[at] = rng.choice(near if by_search else others)
        found[tuple(np.sort(changed))] = np.sort(changed)
    return list(found.values())


def climb(
    referee: Referee, start: np.ndarray, rounds: int, count: int, seed: int
) -> tuple[np.ndarray, int]:
    """Swap as long as trained networks gain; the panel, and the number of swaps."""
    rng = np.random.default_rng(seed)
    source, d = array_source(referee.fit), referee.fit.shape[1]
    C, constraints = covariance(source).matrix, resolve(None, d, len(start))
    panel, swaps = np.sort(start), 0
    for number in range(rounds):
        close = substitutes(C, panel, constraints, count=8)[0]
        panels = [panel, *neighbours(panel, close, count, d, rng)]
        first = referee.errors(panels, seed=1000 + number)
        best = [at for at in np.argsort(first)[:CONFIRMED] if first[at] < first[0]]
        if not best:
            continue
        second = referee.errors([panel, *(panels[at] for at in best)], seed=2000 + number)
        ahead = [at for at, error in zip(best, second[1:], strict=True) if error < second[0]]
        if ahead:
            panel, swaps = panels[ahead[0]], swaps + 1
    return panel, swaps


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", default="mnist,fashion,isolet,coil20,mice")
    parser.add_argument("--k", default="20,50")
    parser.add_argument("--width", type=int, default=75)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--count", type=int, default=64)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    seed = options.seed
    title = f"Trained networks as the objective, {options.rounds} rounds of {options.count} panels"
    columns = ("data", "k", "swaps", "ratio, chosen on", "ratio, test rows", "sd", "seconds")
    table = Table(*columns, title=title)
    for name in options.data.split(","):
        case = load_case(name)
        splitter = ShuffleSplit if case.groups is None else GroupShuffleSplit
        parts = splitter(1, test_size=0.25, random_state=seed)
        fit, held = next(parts.split(case.train, groups=case.groups))
        for k in map(int, options.k.split(",")):
            began = time.perf_counter()
            config = TrainingConfig(k=k, decoder=(options.width,), device=options.device)
            referee = Referee(case.train[fit], case.train[held], config)
            start = fewer.ColumnSubset(k, random_state=seed).fit(case.train[fit]).columns_
            start = np.sort(start)
            panel, swaps = climb(referee, start, options.rounds, options.count, seed)
            judges = {"held": referee, "test": Referee(case.train, case.test, config)}
            ratios = {
                what: [
                    float(np.divide(*judge.errors([panel, start], seed=at, effort=1.0)))
                    for at in range(TRAININGS)
                ]
                for what, judge in judges.items()
            }
            means = [f"{np.mean(ratios[what]):.4f}" for what in ("held", "test")]
            spread = f"{np.std(ratios['test'], ddof=1):.4f}"
            seconds = f"{time.perf_counter() - began:.0f}"
            table.add_row(name, str(k), str(swaps), *means, spread, seconds)
            print(name, k, swaps, *means, spread, seconds, flush=True)
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
