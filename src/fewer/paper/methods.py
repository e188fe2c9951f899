"""Every method of the comparisons under one name, with one colour, as rows in -> columns out."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.model_selection import ParameterGrid

from fewer.baselines import (
    AEFS,
    ALPHAS,
    GAMMAS,
    MCFS,
    PFA,
    UDFS,
    Greedy,
    LaplacianScore,
    MaxVariance,
    PivotedQR,
    RandomSubset,
)
from fewer.data import moments, open_source
from fewer.errors import FewerWarning
from fewer.estimators import PAPER, ColumnSubset, ConcreteAutoencoder
from fewer.paper.case import Case, Values
from fewer.paper.measure import mean_square
from fewer.selection import select
from fewer.train import fit_linear

__all__ = ["METHODS", "Choice", "Method", "choose"]

Columns = NDArray[np.int64]
SWEEP_ROWS = 1500  # most training rows in a sweep: hyper-parameters need no more


@dataclass(frozen=True, eq=False)
class Choice:
    """The columns that a method chose, and how.

    ``reconstruct`` is the method's own decoder (whole rows in, whole rows out), where it is
    another than least squares without penalty.
    """

    columns: Columns
    seconds: float = 0.0
    settings: dict[str, Any] = field(default_factory=dict)
    reconstruct: Callable[[Values], Values] | None = None


@dataclass(frozen=True)
class Method:
    """A method: its name in files, its label for people, its family, its colour and marker."""

    name: str
    label: str
    family: str  # "ours", "literature", "simple" or "bound"
    colour: str
    marker: str
    pick: Callable[[Case, int, int], Choice] | None = None


def choose(method: Method, case: Case, k: int, seed: int) -> Choice:
    """Let a method choose k columns from the rows to fit; how long it took is in the choice.

    Examples
    --------
    >>> from fewer.datasets import load
    >>> from fewer.paper.case import make_case
    >>> case = make_case(load("digits"))
    >>> len(choose(METHODS["greedy"], case, 10, seed=0).columns)
    10
    """
    if method.pick is None:
        raise ValueError(f"{method.name} is a bound: it chooses no columns")
    began = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FewerWarning)  # a selector that has not settled is scored
        found = method.pick(case, k, seed)
    return Choice(
        np.sort(found.columns), time.perf_counter() - began, found.settings, found.reconstruct
    )


def _fitted(make: Callable[[int, int], Any]) -> Callable[[Case, int, int], Choice]:
    """A method that is one estimator."""
    return lambda case, k, seed: Choice(make(k, seed).fit(case.fit).columns_)


class _Swept:
    """A ranking whose hyper-parameters are chosen on the validation rows, then made from all.

    A ranking is the same for every k, so that of one case is made once for all of them.
    """

    def __init__(self, make: Callable[[Case, int], Any], grid: Mapping[str, Iterable[Any]]) -> None:
        self.make, self.grid = make, grid
        self.rankings: WeakKeyDictionary[Case, dict[str, Columns]] = WeakKeyDictionary()

    def __call__(self, case: Case, k: int, seed: int) -> Choice:
        order = np.random.default_rng(seed).permutation(len(case.train))
        train = case.train[order[:SWEEP_ROWS]]
        source = open_source(train)
        stats = moments(source)
        errors = []
        for options in ParameterGrid(self.grid):
            columns = np.sort(self._ranking(case, seed, options, train)[:k])
            # as `sweep` has it: pixels that hardly vary in these few rows must do no harm
            decoder = fit_linear(source, columns, stats)
            with torch.no_grad():
                rebuilt = decoder(torch.from_numpy(case.validation[:, columns])).numpy()
            errors.append((mean_square(rebuilt, case.validation), options))
        best = min(errors, key=lambda row: row[0])[1]
        return Choice(self._ranking(case, seed, best, case.fit)[:k], settings=best)

    def _ranking(self, case: Case, seed: int, options: dict[str, Any], rows: Values) -> Columns:
        known = self.rankings.setdefault(case, {})
        key = f"{seed} {options} {len(rows)}"
        if key not in known:
            known[key] = self.make(case, seed).set_params(**options).fit(rows).ranking_
        return known[key]


def _select(case: Case, k: int, seed: int) -> Choice:
    """The data are scaled already; rows of one mouse or patient are held out together."""
    panel = select(case.fit, k, scale="none", row_groups=case.groups, random_state=seed)
    settings = {name: panel.settings[name] for name in ("winner", "ridge")}
    return Choice(
        panel.indices,
        settings=settings,
        reconstruct=lambda rows: panel.reconstruct(rows[:, panel.indices]),
    )


def _classes(case: Case) -> int:
    """UDFS and MCFS want the number of clusters: the paper gives them that of the classes."""
    return max(2, len(case.data.target_names))


_ALL = (
    Method("pca", "PCA (bound)", "bound", "#000000", "_"),
    Method("autoencoder", "autoencoder (bound)", "bound", "#555555", "_"),
    Method(
        "laplacian",
        "Laplacian score",
        "literature",
        "#56b4e9",
        "v",
        _fitted(lambda k, seed: LaplacianScore(k)),
    ),
    Method(
        "aefs",
        "AEFS",
        "literature",
        "#009e73",
        "^",
        _Swept(lambda case, seed: AEFS(random_state=seed), {"alpha": ALPHAS}),
    ),
    Method(
        "udfs",
        "UDFS",
        "literature",
        "#f0e442",
        "D",
        _Swept(lambda case, seed: UDFS(n_clusters=_classes(case)), {"gamma": GAMMAS}),
    ),
    Method(
        "mcfs",
        "MCFS",
        "literature",
        "#e69f00",
        "s",
        lambda case, k, seed: Choice(
            MCFS(k, n_clusters=_classes(case), random_state=seed).fit(case.fit).columns_
        ),
    ),
    Method(
        "pfa",
        "PFA",
        "literature",
        "#cc79a7",
        "P",
        _fitted(lambda k, seed: PFA(k, random_state=seed)),
    ),
    Method(
        "variance",
        "largest variance",
        "simple",
        "#bbbbbb",
        "<",
        _fitted(lambda k, seed: MaxVariance(k)),
    ),
    Method(
        "random",
        "random features",
        "simple",
        "#999999",
        ">",
        _fitted(lambda k, seed: RandomSubset(k, random_state=seed)),
    ),
    Method("qr", "pivoted QR", "simple", "#7f6f5f", "x", _fitted(lambda k, seed: PivotedQR(k))),
    Method("greedy", "greedy", "simple", "#6a51a3", "+", _fitted(lambda k, seed: Greedy(k))),
    Method(
        "cae-paper",
        "CAE, the paper's settings",
        "ours",
        "#a6cee3",
        "h",
        _fitted(lambda k, seed: ConcreteAutoencoder(k, random_state=seed, **PAPER)),
    ),
    Method(
        "cae-gradient",
        "CAE, gradient",
        "ours",
        "#0072b2",
        "o",
        _fitted(lambda k, seed: ConcreteAutoencoder(k, solver="gradient", random_state=seed)),
    ),
    Method(
        "cae",
        "CAE, closed form",
        "ours",
        "#004466",
        "p",
        _fitted(lambda k, seed: ConcreteAutoencoder(k, random_state=seed)),
    ),
    Method(
        "column-subset",
        "ColumnSubset",
        "ours",
        "#8c2d04",
        "X",
        _fitted(lambda k, seed: ColumnSubset(k, random_state=seed)),
    ),
    Method("select", "fewer.select", "ours", "#d55e00", "*", _select),
)

METHODS = {method.name: method for method in _ALL}
