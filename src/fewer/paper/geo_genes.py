"""Panels of genes where rows are many, as in GEO: covariances say it all, and a GPU helps."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fewer.data import covariance, moments, open_source
from fewer.datasets import Dataset
from fewer.errors import FewerWarning
from fewer.estimators import ConcreteAutoencoder
from fewer.paper.context import Context
from fewer.paper.genes import Genes, Panel
from fewer.paper.network import Recipe, best_epochs, train_module
from fewer.search import search
from fewer.train.device import pick_device, products
from fewer.train.least_squares import solve_normal

__all__ = ["GeoGenes"]

SHARE = 943 / 10_463  # of the genes, that are landmarks in GEO
QUICK: dict[str, Any] = {"n": 4000, "d": 800}  # of the stand-in
WIDTH, WIDTH_QUICK = 9000, 300  # of hidden layers; 9000 is D-GEX's
EPOCHS = 100  # of a concrete autoencoder trained by gradient
RECIPE = Recipe(epochs=20, rate=3e-4, decay=0.9, batch=512, dropout=0.1)
BATCHES = 128  # at least so many an epoch, where rows are few
ROWS = 4096  # test rows at once
LARGE = 10**8  # values, beyond which a CPU is slow
NO_GPU = "{data}: without a GPU this will take very long (geo-synthetic has --quick)"
ABOUT = """{title}.
{n} rows to fit, {test} to test ({rule}), each gene
standardised by the rows to fit. {base}
Error: mean squared residual on test rows over all genes, of a linear regression from the
chosen genes. *CAE, gradient*: a concrete autoencoder with a linear decoder, {epochs} epochs;
*CAE, closed form*: the same with the best decoder at every step, on the covariance of the rows to
fit; *greedy, then swaps*: `fewer.search` on that covariance. No test row takes part in a choice of
genes; the split is always the same, and ± is the standard deviation over starts."""
MARKED = "{k} of them are L1000 landmarks."
MADE_UP = """These rows are made up, with a spectrum that falls
like that of GEO, and say nothing about real genes. Nobody chose landmarks among them: {k} random
genes stand in their place (on TCGA these do as well as the landmarks)."""


@dataclass(frozen=True, eq=False)
class _Rows:
    """Standardised rows: those to fit, of which the first ones are to train on, and test rows."""

    fit: NDArray[np.float32]
    train: int
    test: NDArray[np.float32]


class GeoGenes(Genes):
    """Panels of genes of GEO or its stand-in, and their errors.

    Parameters
    ----------
    context : Context
        Of the run.
    data : str
        "geo" or "geo-synthetic".
    start : int
        Seed of everything random; the split is the published one.
    """

    line = "linear"
    again = "start"
    shares = tuple(k / 943 for k in (943, 900, 850, 800, 750, 600, 450))  # to 750 the paper's
    shares_quick = (1, 750 / 943, 450 / 943)

    def __init__(self, context: Context, data: str, start: int) -> None:
        small = context.quick and data == "geo-synthetic"
        stored = context.dataset(data, **(QUICK if small else {}))
        marks, d = stored.landmarks, stored.X.shape[1]
        most = round(SHARE * d) if marks is None else int(marks.sum())
        super().__init__(context, stored, start, most)
        chosen = ("random", "greedy", "cae-gradient", "cae", "search")
        self.methods = chosen if marks is None else ("landmarks", *chosen)
        self.deep = (self.methods[0], "search")
        self.layers = (0, 1) if context.quick else (0, 1, 2)
        self.width = WIDTH_QUICK if context.quick else WIDTH
        self.device = pick_device("auto")
        if self.device.type == "cpu" and stored.X.size > LARGE:
            context.cells.say(NO_GPU.format(data=data))

    @property
    def about(self) -> str:
        """What is compared, and how."""
        base = MADE_UP if self.stored.landmarks is None else MARKED
        split = self.stored.split()
        return ABOUT.format(
            title=self.stored.description,
            n=len(split.fit),
            test=len(split.test),
            constraints=split.constraints,
            base=base.format(k=self.most),
            epochs=EPOCHS,
        )

    @property
    def decoders(self) -> str:
        """What hidden layers are like."""
        return f"{self.width} units, dropout {RECIPE.dropout}, on top of the linear regression"

    @property
    def rows(self) -> _Rows:
        """The rows, which are the same for every start."""
        return _standardised(self.stored)

    @cached_property
    def matrix(self) -> Tensor:
        """Covariance of the rows to fit."""
        return covariance(open_source(self.rows.fit), device=self.device).matrix

    @cached_property
    def _train_matrix(self) -> Tensor:
        """Covariance of the rows to train on, to compare on validation rows."""
        rows = self.rows
        return covariance(open_source(rows.fit[: rows.train]), device=self.device).matrix

    def _settings(self, name: str, k: int) -> dict[str, Any]:
        trained = {"epochs": EPOCHS} if name == "cae-gradient" else {}
        return super()._settings(name, k) | trained

    def _scored(self, panel: Panel) -> dict[str, Any]:
        return {"error": self._error(self._line(self.matrix, panel))}

    def _searched(self, name: str, k: int) -> Panel:
        if name == "search":
            return search(self.matrix, k, stall=0).indices
        cae = ConcreteAutoencoder(k, solver="closed_form", random_state=self.seed)
        if name == "cae-gradient":
            cae.set_params(solver="gradient", epochs=EPOCHS)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FewerWarning)  # a selector that has not settled counts
            return cae.fit(self.rows.fit).columns_

    def _line(self, matrix: Tensor, panel: Panel) -> Callable[[Tensor], Tensor]:
        """Linear regression from a panel to all genes, as a function of whole rows."""
        at = torch.from_numpy(panel).to(matrix.device)
        weights = solve_normal(matrix[at][:, at], matrix[at]).float().to(self.device)
        here = at.to(self.device)
        return lambda rows: rows[:, here] @ weights

    def _error(self, rebuilt: Callable[[Tensor], Tensor]) -> float:
        wrong = 0.0
        with torch.no_grad(), products("float32"):
            for part in torch.from_numpy(self.rows.test).split(ROWS):
                rows = part.to(self.device)
                wrong += float((rebuilt(rows) - rows).square().sum())
        return wrong / self.rows.test.size

    def _network(self, panel: Panel, layers: int) -> dict[str, Any]:
        rows, hidden = self.rows, (self.width,) * layers
        recipe = replace(RECIPE, batch=min(RECIPE.batch, max(32, rows.train // BATCHES)))
        fit = torch.from_numpy(rows.fit).to(self.device)
        train, validation = fit[: rows.train], fit[rows.train :]
        at = torch.from_numpy(panel).to(self.device)

        def left(x: Tensor, line: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
            return x[:, at], line(x).neg_().add_(x)

        with products("tf32"):
            line = self._line(self._train_matrix, panel)
            parts = left(train, line), left(validation, line)
            epochs = best_epochs(*parts, hidden, recipe, self.seed)
            del parts
            line = self._line(self.matrix, panel)
            if not epochs:
                return {"error": self._error(line), "epochs": 0}
            recipe = replace(recipe, epochs=epochs)
            net = train_module(*left(fit, line), hidden, recipe, self.seed)
        return {"error": self._error(lambda x: line(x) + net(x[:, at])), "epochs": epochs}


@lru_cache(maxsize=1)
def _standardised(data: Dataset) -> _Rows:
    split = data.split()
    fit, test = (data.X[part].astype(np.float32, copy=False) for part in (split.fit, split.test))
    stats = moments(open_source(fit))
    mean = stats.mean.astype(np.float32)
    scale = np.sqrt(np.where(stats.constant, 1.0, stats.variance)).astype(np.float32)
    for values in (fit, test):  # in place: these are copies, and large
        np.subtract(values, mean, out=values)
        np.divide(values, scale, out=values)
    return _Rows(fit, len(split.train), test)
