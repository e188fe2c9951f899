"""Every method of the comparisons: its name, its colour, and how it chooses columns.

`choose` is for linear decoders, `choose_for_network` for a decoder with hidden layers.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from sklearn.model_selection import ParameterGrid

from fewer import PAPER, ColumnSubset, ConcreteAutoencoder, select
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
from fewer.data import moments
from fewer.data import open as open_rows
from fewer.errors import FewerWarning
from fewer.nn import make_loss
from fewer.train import TrainingConfig, fit_gradient, fit_linear
from paper.case import Case, Columns, Values, mean_square

__all__ = ["IP_CAE", "METHODS", "Choice", "Method", "choose", "choose_for_network"]

# A. Nilsson et al., "Indirectly Parameterized Concrete Autoencoders", ICML 2024, as their public
# code is configured (github.com/Alfred-N/IP-CAE, configs/*/base.yaml and src/models): an embedding
# as wide as the data, a draw per row, layer norm, the same rate for all, all epochs
IP_CAE: Mapping[str, Any] = MappingProxyType(
    {
        "logits": "indirect",
        "draw": "row",
        "norm": "layer",
        "epochs": 200,
        "batch_size": 128,
        "learning_rate": 1e-3,
        "selector_learning_rate": 1e-3,
        "start_temperature": 10.0,
        "end_temperature": 0.01,
        "stop_probability": 1.0,
        "tries": 1,
        "normalize": False,
        "keep_measured": False,
    }
)
SWEEP_ROWS = 1500  # at most this many training rows in a sweep: hyper-parameters need no more


@dataclass(frozen=True, eq=False)
class Choice:
    """The columns that a method chose, and how.

    ``reconstruct`` is the method's own decoder (whole rows in, whole rows out), where that is
    not least squares without penalty.
    """

    columns: Columns
    seconds: float = 0.0
    settings: dict[str, Any] = field(default_factory=dict)
    reconstruct: Callable[[Values], Values] | None = None


@dataclass(frozen=True)
class Method:
    """A method: its name in files, its label on pages, its family, its colour and marker."""

    name: str
    label: str
    family: str  # "ours", "literature", "simple", "bound", or "network": for networks only
    colour: str
    marker: str
    pick: Callable[[Case, int, int], Choice] | None = None


def choose(method: Method, case: Case, k: int, seed: int) -> Choice:
    """Let a method choose k columns from the rows to fit, and time it."""
    if method.pick is None:
        raise ValueError(f"{method.name} chooses no columns for a linear decoder")
    began = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FewerWarning)  # not converged counts too
        found = method.pick(case, k, seed)
    return Choice(
        np.sort(found.columns), time.perf_counter() - began, found.settings, found.reconstruct
    )


def choose_for_network(
    name: str, case: Case, k: int, hidden: tuple[int, ...], seed: int, **settings: Any
) -> Choice:
    """Let a method choose k columns for a decoder with these hidden layers, and time it.

    Methods that know nothing of networks choose as always. Settings are for the methods that train
    by gradient, which choose by the relaxation alone, without any search after it.
    """
    if name not in ("cae-gradient", "ip-cae", "estimator", "select"):
        return choose(METHODS[name], case, k, seed)
    options: dict[str, Any]
    began = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FewerWarning)
        if name == "estimator":
            columns = (
                ConcreteAutoencoder(k, decoder=hidden, random_state=seed).fit(case.fit).columns_
            )
        elif name == "select":
            options = {"scale": "none", "row_groups": case.groups}
            columns = select(case.fit, k, decoder=hidden, random_state=seed, **options).indices
        else:
            settings = {**(IP_CAE if name == "ip-cae" else {}), **settings}
            source, loss = open_rows(case.fit), make_loss("mse")
            config = TrainingConfig(k=k, decoder=hidden, refit="none", **settings)
            options = {"loss": loss, "seed": seed, "groups": case.groups}
            columns = fit_gradient(source, moments(source), config, **options).columns
    return Choice(np.sort(columns), time.perf_counter() - began)


def _fitted(make: Callable[[int, int], Any]) -> Callable[[Case, int, int], Choice]:
    """A method that is one estimator."""
    return lambda case, k, seed: Choice(make(k, seed).fit(case.fit).columns_)


class _Swept:
    """A ranking whose hyper-parameters are chosen on the validation rows, then refitted.

    A ranking is the same for every k, so it is computed once per case and kept.
    """

    def __init__(self, make: Callable[[Case, int], Any], grid: Mapping[str, Iterable[Any]]) -> None:
        self.make, self.grid = make, grid
        self.rankings: WeakKeyDictionary[Case, dict[str, Columns]] = WeakKeyDictionary()

    def __call__(self, case: Case, k: int, seed: int) -> Choice:
        order = np.random.default_rng(seed).permutation(len(case.train))
        train = case.train[order[:SWEEP_ROWS]]
        source = open_rows(train)
        stats = moments(source)
        errors = []
        for options in ParameterGrid(self.grid):
            columns = np.sort(self._ranking(case, seed, options, train)[:k])
            # as in `sweep`: pixels that hardly vary in these few rows must do no harm
            decoder = fit_linear(source, columns, stats)
            with torch.no_grad():
                reconstructed = decoder(torch.from_numpy(case.validation[:, columns])).numpy()
            errors.append((mean_square(reconstructed, case.validation), options))
        best = min(errors, key=lambda row: row[0])[1]
        return Choice(self._ranking(case, seed, best, case.fit)[:k], settings=best)

    def _ranking(self, case: Case, seed: int, options: dict[str, Any], rows: Values) -> Columns:
        known = self.rankings.setdefault(case, {})
        key = f"{seed} {options} {len(rows)}"
        if key not in known:
            known[key] = self.make(case, seed).set_params(**options).fit(rows).ranking_
        return known[key]


def _select(case: Case, k: int, seed: int) -> Choice:
    """The data are already scaled; rows of one mouse or patient are held out together."""
    panel = select(case.fit, k, scale="none", row_groups=case.groups, random_state=seed)
    settings = {name: panel.settings[name] for name in ("winner", "ridge")}
    return Choice(
        panel.indices,
        settings=settings,
        reconstruct=lambda rows: panel.reconstruct(rows[:, panel.indices]),
    )


def _classes(case: Case) -> int:
    """UDFS and MCFS need a number of clusters: the paper takes the number of classes."""
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
        _fitted(
            lambda k, seed: ConcreteAutoencoder(
                k, solver="gradient", refine=None, random_state=seed
            )
        ),
    ),
    Method(
        "cae",
        "CAE, closed form",
        "ours",
        "#004466",
        "p",
        _fitted(lambda k, seed: ConcreteAutoencoder(k, refine=None, random_state=seed)),
    ),
    Method(
        "autoencoder-swaps",
        "ConcreteAutoencoder",
        "ours",
        "#3690c0",
        "d",
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
    Method("cae-direct", "CAE, IP-CAE's settings", "network", "#a6cee3", "h"),
    Method("ip-cae", "IP-CAE", "network", "#009e73", "^"),
    Method("estimator", "ConcreteAutoencoder", "network", "#004466", "p"),
)

METHODS = {method.name: method for method in _ALL}
