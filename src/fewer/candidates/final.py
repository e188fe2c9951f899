"""The panel that a user gets: the winning strategy on all rows."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from fewer.candidates.comparison import Candidate, Rows
from fewer.candidates.networks import NetworkComparison
from fewer.candidates.strategies import Strategies
from fewer.data import moments
from fewer.distributed import on_rank0
from fewer.search import greedy, search
from fewer.search.objective import worth
from fewer.train.folds import ScaledFold
from fewer.train.held_out_swaps import HeldOut, held_out_swaps

__all__ = ["FinalColumns"]

FEWER_ROWS = 10  # a feature: with fewer, the held-out error itself decides the last swaps
WIDEST_POLISH, POLISH_ROUNDS = 8192, 20

Columns = NDArray[np.int64]


@dataclass(frozen=True)
class FinalColumns:
    """Columns of the final panel, from all rows and from what was found before."""

    strategies: Strategies
    everything: ScaledFold  # all rows as training rows, none held out
    rows: Rows
    held: list[Columns]  # held-out rows of each fold
    seed: int
    say: Callable[[str], None]

    def of_line(self, winner: Candidate) -> Columns:
        """The winning strategy on all rows, started from what it found before."""
        constraints = self.strategies.constraints
        C = self.everything.train.to(self.strategies.device)
        self.strategies.clock.turn(2)  # the last swaps have the other half
        if winner.strategy == "search":
            return on_rank0(
                lambda: self._polished(self._searched_from(winner.panels), winner.ridge)
            )
        panel = winner.choose(self.everything, self.seed)

        def checked() -> Columns:
            # penalised or drawn on purpose, yet never worse than greedy on the rows themselves
            base = greedy(C, constraints).panel()
            better = worth(C, panel, constraints, 0.0) <= worth(C, base, constraints, 0.0)
            return self._polished(panel if better else base, winner.ridge)

        return on_rank0(checked)

    def _searched_from(self, panels: Sequence[Columns]) -> Columns:
        known = self.strategies
        return search(
            self.everything.train.to(known.device),
            known.constraints,
            seed=self.seed,
            time_limit=known.clock.left(),
            initial=panels,
        ).indices

    def for_target(self, winner: Candidate) -> Columns:
        """The panel that was compared; chosen anew on all rows where every fold has its own."""
        if len(winner.panels) == 1 or self.strategies.clock.late:
            return winner.panels[0]
        self.strategies.clock.turn(2)
        return winner.choose(self.everything, self.seed)

    def of_networks(
        self,
        candidates: Sequence[Candidate],
        comparison: NetworkComparison,
        folds: Sequence[ScaledFold],
    ) -> tuple[Candidate, Columns]:
        """The winner, and its columns, which the network has looked at.

        With one held-out part, the winner on all rows or as it was compared; with folds, the best
        of what all those choose from all rows that are near the best.
        """
        clock, winner = self.strategies.clock, candidates[0]
        if len(folds) == 1:
            clock.turn(2)
            panels = [self._of_network(winner), winner.panels[0]]
            return winner, panels[comparison.best_of(panels, folds)]
        # those that build on others last, as they were compared
        known = self.strategies.for_the_network
        finalists = sorted(comparison.finalists(candidates), key=lambda c: c.choose == known)
        panels = []
        for at, candidate in enumerate(finalists):
            self.say(f"{candidate.strategy}, all rows ...")
            clock.turn(2 * (len(finalists) - at))
            panels.append(self._of_network(candidate))
        best = comparison.best_of(panels, folds)
        return finalists[best], panels[best]

    def _of_network(self, candidate: Candidate) -> Columns:
        """A strategy on all rows, started from what it found before.

        What leaves much to luck is not drawn anew where one panel was compared: that one is known
        to be good.
        """
        known = self.strategies
        at = id(self.everything)
        if known.clock.late:
            return candidate.panels[0]
        if candidate.strategy == "search":
            panel = on_rank0(lambda: self._searched_from(candidate.panels))
            known.found["search", at, self.seed] = panel
            return panel
        if candidate.choose == known.for_the_network:  # from the search, and from what was compared
            known.once("search", known.search)(self.everything, self.seed)
            for part, panel in enumerate(candidate.panels):
                known.found[f"compared {part}", at, self.seed] = panel
        elif len(candidate.panels) == 1:
            return candidate.panels[0]
        return candidate.choose(self.everything, self.seed)

    def _polished(self, panel: Columns, ridge: float) -> Columns:
        """Where rows are about as few as features: swaps that lower the held-out error itself."""
        constraints, fold = self.strategies.constraints, self.everything
        n, d = len(fold.train_index), len(fold.train)
        plain = (
            constraints.groups is None
            and constraints.budget is None
            and not constraints.cost_weight
        )
        many = n >= FEWER_ROWS * len(panel)
        if many or not plain or d > WIDEST_POLISH or len(self.held) < 2:
            return panel
        self.say("swaps on held-out error ...")
        rows = self.rows(fold, fold.train_index)
        mean = torch.from_numpy(moments(rows).mean)
        values = torch.nan_to_num(rows.rows(slice(0, n), torch.float64) - mean, nan=0.0)
        self.strategies.clock.turn(1)
        left = self.strategies.clock.left()
        least = 1e-6 * float(fold.train.diagonal().mean())  # panels may be dependent
        folds = HeldOut.of(values.numpy(), self.held, max(ridge, least))
        return held_out_swaps(
            folds,
            panel,
            POLISH_ROUNDS,
            keep=constraints.include,
            shut=constraints.exclude,
            deadline=None if left is None else time.monotonic() + left,
        )
