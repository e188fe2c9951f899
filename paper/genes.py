"""Panels of genes and their errors, for tumours (few rows) and for GEO (many rows).

`Genes` is what the landmark experiment asks for; `TumourGenes` has fewer rows than genes, so that
every decoder needs a penalty; for `GeoGenes` covariances suffice, and a GPU helps.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.linear_model import Ridge
from torch import Tensor

from fewer import ConcreteAutoencoder
from fewer.data import covariance, moments
from fewer.data import open as open_rows
from fewer.datasets import Dataset
from fewer.errors import FewerWarning, InputError
from fewer.search import greedy, search
from fewer.train import HeldOut, held_out_swaps
from paper.case import Case, Columns, Values, mean_square
from paper.experiment import Context
from paper.network import Recipe, best_epochs, standardised, train_module, train_network

__all__ = ["Genes", "GeoGenes", "TumourGenes"]


class Genes(ABC):
    """Panels of one split or random start, and their errors.

    Parameters
    ----------
    context : Context
        Of the run.
    stored : Dataset
        The data.
    seed : int
        Of the split, or of everything random where the split is fixed.
    most : int
        The number of landmarks.

    Attributes
    ----------
    methods, deep : tuples of str
        Ways to choose genes; those whose genes are given decoders with hidden layers too.
    sizes : list of int
        Numbers of genes, that of the landmarks first.
    layers : tuple of int
        Numbers of hidden layers.
    width : int
        Units of a hidden layer.
    """

    decoder: ClassVar[str]  # what the decoder without hidden layers is called
    again: ClassVar[str]  # what differs from seed to seed
    fractions: ClassVar[tuple[float, ...]]  # numbers of genes, as fractions of the landmarks'
    fractions_quick: ClassVar[tuple[float, ...]]
    methods: tuple[str, ...]
    deep: tuple[str, ...]
    layers: tuple[int, ...]
    width: int

    def __init__(self, context: Context, stored: Dataset, seed: int, most: int) -> None:
        self.context, self.stored, self.seed, self.most = context, stored, seed, most
        fractions = self.fractions_quick if context.quick else self.fractions
        self.sizes = [round(fraction * most) for fraction in fractions]

    @property
    @abstractmethod
    def about(self) -> str:
        """What is compared, and how."""

    @property
    @abstractmethod
    def decoders(self) -> str:
        """What hidden layers are like."""

    @property
    @abstractmethod
    def matrix(self) -> Tensor:
        """Covariance of the rows to fit."""

    @cached_property
    def path(self) -> Columns:
        """Genes in the order in which greedy search takes them."""
        return greedy(self.matrix, self.most).order

    def cell(self, name: str, k: int) -> dict[str, Any]:
        """The panel of k genes and its error."""
        key, settings = self._key(name, f"k {k}"), self._settings(name, k)
        return self.context.cache.get(key, settings, partial(self._score, name, k))

    def network(self, name: str, layers: int) -> dict[str, Any]:
        """The error of as many genes as there are landmarks, with this many hidden layers."""
        cell = self.cell(name, self.most)
        if not layers:
            return cell
        panel = np.array(cell["columns"])
        settings = {
            "data": self._identity,
            "width": self.width,
            "panel": panel.tolist(),
            "epochs": "validation",
        }
        key = self._key(name, f"{layers} hidden")
        return self.context.cache.get(key, settings, partial(self._network, panel, layers))

    def _key(self, name: str, what: str) -> tuple[str, ...]:
        return ("landmarks", self.stored.name, f"seed {self.seed}", name, what)

    def _settings(self, name: str, k: int) -> dict[str, Any]:
        return {"k": k, "data": self._identity}

    @property
    def _identity(self) -> str:
        shape = "{} x {}".format(*self.stored.X.shape)
        return self.stored.digest or f"{self.stored.description}, {shape}"

    def _score(self, name: str, k: int) -> dict[str, Any]:
        panel = np.sort(self._panel(name, k))
        return {"columns": panel.tolist(), **self._scored(panel)}

    def _panel(self, name: str, k: int) -> Columns:
        if name == "landmarks":
            return np.flatnonzero(np.asarray(self.stored.landmarks))
        if name == "random":
            return np.random.default_rng(self.seed).permutation(self.stored.X.shape[1])[:k]
        if name == "greedy":
            return self.path[:k]
        return self._searched(name, k)

    @abstractmethod
    def _searched(self, name: str, k: int) -> Columns:
        """The genes of a method that depends on the kind of data."""

    @abstractmethod
    def _scored(self, panel: Columns) -> dict[str, Any]:
        """The error without hidden layers."""

    @abstractmethod
    def _network(self, panel: Columns, layers: int) -> dict[str, Any]:
        """The error with hidden layers that learn what the linear decoder leaves."""


# -- tumours -----------------------------------------------------------------------------------

PENALTIES = (0.03, 0.1, 0.2, 0.3, 0.5, 1.0)  # of the decoder, in units of variance
SEARCH_PENALTIES = (0.1, 0.3, 1.0, 3.0)
FOLDS = 5
FIRST_SPLIT = 3  # the method was developed with the test errors of the splits before in view
# rounds of swaps on held-out error: for the largest panel, then for each smaller one
ROUNDS, ROUNDS_QUICK = (20, 6), (4, 4)
DROPPED = 5  # members that leave a panel at once on the way to a smaller one
TUMOUR_RECIPE = Recipe(epochs=100, decay=0.95, batch=64, dropout=0.1)
ABOUT_TUMOURS = """{title}.
{n} rows to fit, {test} to test ({rule}), each gene
standardised by the rows to fit. {k} of the genes are L1000 landmarks. Error: mean squared residual
on test rows over all genes, of a ridge regression from the chosen genes, its penalty chosen on
validation rows for every panel alike. *search with ridge*: `fewer.search` (greedy, then swaps) on
the training covariance, with the penalty of {penalties} that does best on validation rows;
*search on held-out error*: the same, then swaps that lower the error on held-out folds of the rows
to fit (by {unit}; `held_out_swaps`). No test row takes part in a choice of genes, and these are
splits that nobody looked at while the method was developed (numbers {first} and up)."""


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

    decoder = "ridge"
    again = "split"
    fractions = (1, 8 / 9, 4 / 5, 34 / 45, 11 / 15, 32 / 45, 2 / 3)  # 450 to 300 on TCGA
    fractions_quick = (1, 34 / 45)
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
        return ABOUT_TUMOURS.format(
            title=self.case.data.description,
            n=len(self.case.fit),
            test=len(self.case.test),
            rule=self.case.split.description,
            k=self.most,
            unit=self.case.data.unit,
            penalties=", ".join(f"{one:g}" for one in SEARCH_PENALTIES),
            first=FIRST_SPLIT,
        )

    @property
    def decoders(self) -> str:
        """What hidden layers are like."""
        dropout = TUMOUR_RECIPE.dropout
        return f"{self.width} units, dropout {dropout}, on top of the ridge regression"

    @cached_property
    def case(self) -> Case:
        """Rows of the split."""
        return self.context.case(self.stored.name, self.seed, scaling="standard")

    @cached_property
    def matrix(self) -> Tensor:
        """Covariance of the rows to fit."""
        return covariance(open_rows(self.case.fit)).matrix

    def _settings(self, name: str, k: int) -> dict[str, Any]:
        settings = super()._settings(name, k) | {"penalties": PENALTIES}
        if name == "held-out":
            settings |= {"rounds": self.rounds, "sizes": self.sizes}
        if name in ("swaps", "held-out"):
            settings["search_penalties"] = SEARCH_PENALTIES
        return settings

    def _scored(self, panel: Columns) -> dict[str, Any]:
        penalty, error = _ridge_error(self.case, panel)
        return {"penalty": penalty, "error": error}

    def _searched(self, name: str, k: int) -> Columns:
        if name == "held-out":
            return self._held_out(k)
        ridge = self._search_penalty()
        return search(self.matrix, k, ridge=ridge, stall=0, seed=self.seed).indices

    def _search_penalty(self) -> float:
        """The penalty whose genes, chosen on training rows, do best on validation rows."""

        def compute() -> dict[str, Any]:
            C = covariance(open_rows(self.case.train)).matrix
            errors = []
            for ridge in SEARCH_PENALTIES:
                panel = search(C, self.most, ridge=ridge, stall=0, seed=self.seed).indices
                errors.append(min(_validation_errors(self.case, panel)))
            return {"errors": errors, "penalty": SEARCH_PENALTIES[int(np.argmin(errors))]}

        key = ("landmarks", self.stored.name, f"seed {self.seed}", "search penalty")
        settings = {"data": self._identity, "tried": SEARCH_PENALTIES, "penalties": PENALTIES}
        return self.context.cache.get(key, settings, compute)["penalty"]

    def _held_out(self, k: int) -> Columns:
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

    def _folds(self, panel: Columns) -> HeldOut:
        """Folds that keep the rows of one patient together, with the penalty that suits a panel."""
        patients = np.unique(np.asarray(self.case.groups), return_inverse=True)[1]
        order = np.random.default_rng(self.seed).permutation(patients.max() + 1)
        held = [np.flatnonzero(np.isin(patients, part)) for part in np.array_split(order, FOLDS)]
        trials = [HeldOut.of(self.case.fit, held, ridge) for ridge in PENALTIES]
        return min(trials, key=lambda trial: trial.error(panel))

    def _network(self, panel: Columns, layers: int) -> dict[str, Any]:
        case = self.case
        penalty, _ = _ridge_error(case, panel)
        hidden = (self.width,) * layers

        def residual(rows: Values, linear: Callable[[Values], Values]) -> tuple[Values, Values]:
            return rows[:, panel], rows - linear(rows)

        linear = _ridge(case.train, panel, penalty)
        parts = residual(case.train, linear), residual(case.validation, linear)
        seen, wanted, _ = standardised(*parts[0])
        train, held = ((seen(x), wanted(t)) for x, t in parts)
        epochs = best_epochs(train, held, hidden, TUMOUR_RECIPE, self.seed)
        linear = _ridge(case.fit, panel, penalty)
        reconstructed = linear(case.test)
        if epochs:
            recipe = replace(TUMOUR_RECIPE, epochs=epochs)
            net = train_network(*residual(case.fit, linear), hidden, recipe, self.seed)
            reconstructed = reconstructed + net(case.test[:, panel])
        return {"error": mean_square(reconstructed, case.test), "epochs": epochs}


def _ridge_error(case: Case, panel: Columns) -> tuple[float, float]:
    """The penalty that does best on validation rows, and the test error with it."""
    best = PENALTIES[int(np.argmin(_validation_errors(case, panel)))]
    return best, mean_square(_ridge(case.fit, panel, best)(case.test), case.test)


def _validation_errors(case: Case, panel: Columns) -> list[float]:
    decoders = [_ridge(case.train, panel, penalty) for penalty in PENALTIES]
    return [mean_square(decoder(case.validation), case.validation) for decoder in decoders]


def _ridge(rows: Values, panel: Columns, penalty: float) -> Callable[[Values], Values]:
    """Ridge regression from a panel to all genes, as a function of whole rows."""
    model = Ridge(penalty * len(rows)).fit(rows[:, panel], rows)
    return lambda new: model.predict(new[:, panel])


# -- GEO ---------------------------------------------------------------------------------------

LANDMARK_FRACTION = 943 / 10_463  # of the genes of GEO
QUICK: dict[str, Any] = {"n": 4000, "d": 800}  # of the synthetic rows
WIDTH, WIDTH_QUICK = 9000, 300  # of hidden layers; 9000 is D-GEX's
EPOCHS = 100  # of a concrete autoencoder trained by gradient
GEO_RECIPE = Recipe(epochs=20, rate=3e-4, decay=0.9, batch=512, dropout=0.1)
BATCHES = 128  # at least this many per epoch, where rows are few
ROWS = 4096  # test rows at once
LARGE = 10**8  # values, beyond which a CPU is slow
NO_GPU = "{data}: without a GPU this will take very long (geo-synthetic has --quick)"
ABOUT_GEO = """{title}.
{n} rows to fit, {test} to test ({rule}), each gene
standardised by the rows to fit. {base}
Error: mean squared residual on test rows over all genes, of a linear regression from the
chosen genes. *CAE, gradient*: a concrete autoencoder with a linear decoder, {epochs} epochs;
*CAE, closed form*: the same with the best decoder at every step, on the covariance of the rows to
fit; *greedy, then swaps*: `fewer.search` on that covariance. No test row takes part in a choice of
genes; the split is always the same, and ± is the standard deviation over starts."""
MARKED = "{k} of them are L1000 landmarks."
SYNTHETIC = """These rows are synthetic, with a spectrum that decays
like that of GEO, and say nothing about real genes. They have no landmarks: {k} random
genes take their place (on TCGA these do as well as the landmarks)."""


@dataclass(frozen=True, eq=False)
class _GeoRows:
    """Standardised rows: those to fit, of which the first are to train on, and test rows."""

    fit: NDArray[np.float32]
    train: int
    test: NDArray[np.float32]


class GeoGenes(Genes):
    """Panels of genes of GEO or of synthetic rows like it, and their errors.

    Parameters
    ----------
    context : Context
        Of the run.
    data : str
        "geo" or "geo-synthetic".
    start : int
        Seed of everything random; the split is the published one.
    """

    decoder = "linear"
    again = "start"
    fractions = tuple(k / 943 for k in (943, 900, 850, 800, 750, 600, 450))  # to 750 the paper's
    fractions_quick = (1, 750 / 943, 450 / 943)

    def __init__(self, context: Context, data: str, start: int) -> None:
        small = context.quick and data == "geo-synthetic"
        stored = context.dataset(data, **(QUICK if small else {}))
        marks, d = stored.landmarks, stored.X.shape[1]
        most = round(LANDMARK_FRACTION * d) if marks is None else int(marks.sum())
        super().__init__(context, stored, start, most)
        chosen = ("random", "greedy", "cae-gradient", "cae", "search")
        self.methods = chosen if marks is None else ("landmarks", *chosen)
        self.deep = (self.methods[0], "search")
        self.layers = (0, 1) if context.quick else (0, 1, 2)
        self.width = WIDTH_QUICK if context.quick else WIDTH
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        if self.device.type == "cpu" and stored.X.size > LARGE:
            context.cache.say(NO_GPU.format(data=data))

    @property
    def about(self) -> str:
        """What is compared, and how."""
        base = SYNTHETIC if self.stored.landmarks is None else MARKED
        split = self.stored.split()
        return ABOUT_GEO.format(
            title=self.stored.description,
            n=len(split.fit),
            test=len(split.test),
            rule=split.description,
            base=base.format(k=self.most),
            epochs=EPOCHS,
        )

    @property
    def decoders(self) -> str:
        """What hidden layers are like."""
        dropout = GEO_RECIPE.dropout
        return f"{self.width} units, dropout {dropout}, on top of the linear regression"

    @property
    def rows(self) -> _GeoRows:
        """The rows, which are the same for every start."""
        return _standardised(self.stored)

    @cached_property
    def matrix(self) -> Tensor:
        """Covariance of the rows to fit."""
        return covariance(open_rows(self.rows.fit), device=self.device).matrix

    @cached_property
    def _train_matrix(self) -> Tensor:
        """Covariance of the rows to train on, to compare on validation rows."""
        rows = self.rows
        return covariance(open_rows(rows.fit[: rows.train]), device=self.device).matrix

    def _settings(self, name: str, k: int) -> dict[str, Any]:
        trained = {"epochs": EPOCHS} if name == "cae-gradient" else {}
        return super()._settings(name, k) | trained

    def _scored(self, panel: Columns) -> dict[str, Any]:
        return {"error": self._error(self._linear(self.matrix, panel))}

    def _searched(self, name: str, k: int) -> Columns:
        if name == "search":
            return search(self.matrix, k, stall=0).indices
        cae = ConcreteAutoencoder(k, solver="closed_form", refine=None, random_state=self.seed)
        if name == "cae-gradient":
            cae.set_params(solver="gradient", epochs=EPOCHS)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FewerWarning)  # not converged counts too
            return cae.fit(self.rows.fit).columns_

    def _linear(self, matrix: Tensor, panel: Columns) -> Callable[[Tensor], Tensor]:
        """Linear regression from a panel to all genes, as a function of whole rows."""
        at = torch.from_numpy(panel).to(matrix.device)
        inverse = torch.linalg.pinv(matrix[at][:, at], hermitian=True)
        weights = (inverse @ matrix[at]).float().to(self.device)
        here = at.to(self.device)
        return lambda rows: rows[:, here] @ weights

    def _error(self, reconstruct: Callable[[Tensor], Tensor]) -> float:
        total = 0.0
        with torch.no_grad(), _tf32(False):
            for part in torch.from_numpy(self.rows.test).split(ROWS):
                rows = part.to(self.device)
                total += float((reconstruct(rows) - rows).square().sum())
        return total / self.rows.test.size

    def _network(self, panel: Columns, layers: int) -> dict[str, Any]:
        rows, hidden = self.rows, (self.width,) * layers
        recipe = replace(GEO_RECIPE, batch=min(GEO_RECIPE.batch, max(32, rows.train // BATCHES)))
        fit = torch.from_numpy(rows.fit).to(self.device)
        train, validation = fit[: rows.train], fit[rows.train :]
        at = torch.from_numpy(panel).to(self.device)

        def residual(x: Tensor, linear: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
            return x[:, at], linear(x).neg_().add_(x)

        with _tf32(True):
            linear = self._linear(self._train_matrix, panel)
            parts = residual(train, linear), residual(validation, linear)
            epochs = best_epochs(*parts, hidden, recipe, self.seed)
            del parts
            linear = self._linear(self.matrix, panel)
            if not epochs:
                return {"error": self._error(linear), "epochs": 0}
            recipe = replace(recipe, epochs=epochs)
            net = train_module(*residual(fit, linear), hidden, recipe, self.seed)
        return {"error": self._error(lambda x: linear(x) + net(x[:, at])), "epochs": epochs}


@contextmanager
def _tf32(allowed: bool) -> Iterator[None]:
    """Whether CUDA may round float32 to TF32 in products, inside the block."""
    matmul = torch.backends.cuda.matmul
    before, matmul.allow_tf32 = matmul.allow_tf32, allowed
    try:
        yield
    finally:
        matmul.allow_tf32 = before


@lru_cache(maxsize=1)
def _standardised(data: Dataset) -> _GeoRows:
    split = data.split()
    fit, test = (data.X[part].astype(np.float32, copy=False) for part in (split.fit, split.test))
    stats = moments(open_rows(fit))
    mean = stats.mean.astype(np.float32)
    scale = np.sqrt(np.where(stats.constant, 1.0, stats.variance)).astype(np.float32)
    for values in (fit, test):  # in place: these are copies, and large
        np.subtract(values, mean, out=values)
        np.divide(values, scale, out=values)
    return _GeoRows(fit, len(split.train), test)
