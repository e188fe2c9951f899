"""Panels of genes for tumours: fewer rows than genes, so that every decoder needs a penalty."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import torch

from fewer.data import covariance, open_source
from fewer.errors import InputError
from fewer.paper.case import Case, Values
from fewer.paper.context import Context
from fewer.paper.genes import Genes, Panel
from fewer.paper.measure import mean_square
from fewer.paper.network import Recipe, best_epochs, standardised, train_network
from fewer.search import search
from fewer.train.folds import split_rows
from fewer.train.held_out_swaps import HeldOut, held_out_swaps
from fewer.train.least_squares import solve_normal

__all__ = ["TumourGenes"]

PENALTIES = (0.03, 0.1, 0.2, 0.3, 0.5, 1.0)  # of the decoder, in units of variance
SEARCH_PENALTIES = (0.1, 0.3, 1.0, 3.0)
FOLDS = 5
FIRST_SPLIT = 3  # the method was developed with the test errors of the splits before in view
# rounds of swaps on held-out error: for the largest panel, then for each smaller one
ROUNDS, ROUNDS_QUICK = (20, 6), (4, 4)
DROPPED = 5  # members that leave a panel at once on the way to a smaller one
RECIPE = Recipe(epochs=100, decay=0.95, batch=64, dropout=0.1)
ABOUT = """{title}.
{n} rows to fit, {test} to test ({rule}), each gene
standardised by the rows to fit. {k} of the genes are L1000 landmarks. Error: mean squared residual
on test rows over all genes, of a ridge regression from the chosen genes, its penalty chosen on
validation rows for every panel alike. *search with ridge*: `fewer.search` (greedy, then swaps) on
the training covariance, with the penalty of {penalties} that does best on validation rows;
*search on held-out error*: that, then swaps that lower the error on held-out folds of the rows to
fit (by {unit}; see held_out_swaps.py). No test row takes part in a choice of genes, and these are
splits that nobody looked at while the method was made (numbers {first} and up)."""


class TumourGenes(Genes):
    """Panels of one split of the tumours, and their errors.

    Parameters
    ----------
    context : Context
        Of the run.
    data : str
        "tcga" or "luad".
    start : int
        Which split, from 0.
    """

    line = "ridge"
    again = "split"
    shares = (1, 8 / 9, 4 / 5, 34 / 45, 11 / 15, 32 / 45, 2 / 3)  # 450 to 300 on TCGA
    shares_quick = (1, 34 / 45)
    methods = ("landmarks", "random", "greedy", "swaps", "held-out")
    deep = ("landmarks", "held-out")
    width = 1000

    def __init__(self, context: Context, data: str, start: int) -> None:
        stored = context.dataset(data)
        if stored.landmarks is None:
            raise InputError(f"{data} does not say which genes are landmarks")
        super().__init__(context, stored, FIRST_SPLIT + start, int(stored.landmarks.sum()))
        self.rounds = ROUNDS_QUICK if context.quick else ROUNDS
        self.layers = (0,) if context.quick else (0, 1, 2)

    @property
    def about(self) -> str:
        """What is compared, and how."""
        return ABOUT.format(
            title=self.case.data.description,
            n=len(self.case.fit),
            test=len(self.case.test),
            constraints=self.case.split.constraints,
            k=self.most,
            unit=self.case.data.unit,
            penalties=", ".join(f"{one:g}" for one in SEARCH_PENALTIES),
            first=FIRST_SPLIT,
        )

    @property
    def decoders(self) -> str:
        """What hidden layers are like."""
        return f"{self.width} units, dropout {RECIPE.dropout}, on top of the ridge regression"

    @cached_property
    def case(self) -> Case:
        """Rows of the split."""
        return self.context.case(self.stored.name, self.seed, scaling="standard")

    @cached_property
    def matrix(self) -> torch.Tensor:
        """Covariance of the rows to fit."""
        return covariance(open_source(self.case.fit)).matrix

    def _settings(self, name: str, k: int) -> dict[str, Any]:
        settings = super()._settings(name, k) | {"penalties": PENALTIES}
        if name == "held-out":
            settings |= {"rounds": self.rounds, "sizes": self.sizes}
        if name in ("swaps", "held-out"):
            settings["search_penalties"] = SEARCH_PENALTIES
        return settings

    def _scored(self, panel: Panel) -> dict[str, Any]:
        penalty, error = _ridge_error(self.case, panel)
        return {"penalty": penalty, "error": error}

    def _searched(self, name: str, k: int) -> Panel:
        if name == "held-out":
            return self._held_out(k)
        ridge = self._search_penalty()
        return search(self.matrix, k, ridge=ridge, stall=0, seed=self.seed).indices

    def _search_penalty(self) -> float:
        """The penalty whose genes, chosen on training rows, rebuild validation rows best."""

        def compute() -> dict[str, Any]:
            C = covariance(open_source(self.case.train)).matrix
            errors = []
            for ridge in SEARCH_PENALTIES:
                panel = search(C, self.most, ridge=ridge, stall=0, seed=self.seed).indices
                errors.append(min(_validation_errors(self.case, panel)))
            return {"errors": errors, "penalty": SEARCH_PENALTIES[int(np.argmin(errors))]}

        key = ("landmarks", self.stored.name, f"seed {self.seed}", "search penalty")
        settings = {"data": self._identity, "tried": SEARCH_PENALTIES, "penalties": PENALTIES}
        return self.context.cells.get(key, settings, compute)["penalty"]

    def _held_out(self, k: int) -> Panel:
        """Swaps on held-out error; a smaller panel starts from the next larger one."""
        larger = [size for size in self.sizes if size > k]
        if not larger:
            start = np.array(self.cell("swaps", k)["columns"])
            return held_out_swaps(self._folds(start), start, self.rounds[0])
        start = np.array(self.cell("held-out", min(larger))["columns"])
        folds = self._folds(start)
        while len(start) > k:
            leaving = np.argsort(folds.drops(start))[: min(DROPPED, len(start) - k)]
            start = np.delete(start, leaving)
        return held_out_swaps(folds, start, self.rounds[1])

    def _folds(self, panel: Panel) -> HeldOut:
        """Folds that keep the rows of one patient together, with the penalty that suits a panel."""
        held = split_rows(len(self.case.fit), FOLDS, self.seed, self.case.groups)
        trials = [HeldOut.of(self.case.fit, held, ridge) for ridge in PENALTIES]
        return min(trials, key=lambda trial: trial.error(panel))

    def _network(self, panel: Panel, layers: int) -> dict[str, Any]:
        case = self.case
        penalty, _ = _ridge_error(case, panel)
        hidden = (self.width,) * layers

        def left(rows: Values, line: Callable[[Values], Values]) -> tuple[Values, Values]:
            return rows[:, panel], rows - line(rows)

        line = _ridge(case.train, panel, penalty)
        parts = left(case.train, line), left(case.validation, line)
        seen, wanted, _ = standardised(*parts[0])
        train, held = ((seen(x), wanted(t)) for x, t in parts)
        epochs = best_epochs(train, held, hidden, RECIPE, self.seed)
        line = _ridge(case.fit, panel, penalty)
        rebuilt = line(case.test)
        if epochs:
            recipe = replace(RECIPE, epochs=epochs)
            net = train_network(*left(case.fit, line), hidden, recipe, self.seed)
            rebuilt = rebuilt + net(case.test[:, panel])
        return {"error": mean_square(rebuilt, case.test), "epochs": epochs}


def _ridge_error(case: Case, panel: Panel) -> tuple[float, float]:
    """The penalty that does best on validation rows, and the test error with it."""
    best = PENALTIES[int(np.argmin(_validation_errors(case, panel)))]
    return best, mean_square(_ridge(case.fit, panel, best)(case.test), case.test)


def _validation_errors(case: Case, panel: Panel) -> list[float]:
    lines = [_ridge(case.train, panel, penalty) for penalty in PENALTIES]
    return [mean_square(line(case.validation), case.validation) for line in lines]


def _ridge(rows: Values, panel: Panel, penalty: float) -> Callable[[Values], Values]:
    """Ridge regression from a panel to all genes, as a function of whole rows."""
    mean = rows.mean(axis=0)
    x = torch.from_numpy(rows - mean)
    z = x[:, panel]
    weights = solve_normal(z.T @ z / len(x), z.T @ x / len(x), penalty).numpy()
    return lambda new: (new - mean)[:, panel] @ weights + mean
