"""One cell of tables 1 and 2: a method on a data set, its errors and its accuracies."""

from __future__ import annotations

import time
from functools import cached_property
from typing import Any

from sklearn.decomposition import PCA

from fewer.paper.case import Case
from fewer.paper.context import Context
from fewer.paper.measure import accuracies, linear_error, mean_square
from fewer.paper.methods import METHODS, choose

__all__ = ["score_table"]

FULL = ("mnist", "fashion", "coil20", "mice", "isolet", "har")
QUICK = ("coil20", "mice", "isolet")
SEEDS = {"mice": 10}  # with 72 mice, results depend much on who is held out; 3 otherwise
PRESET = ("mnist", "mice")  # where the paper's settings are tried, once: minutes a fit
Scores = dict[str, dict[str, list[dict[str, Any]]]]


def score_table(context: Context, sizes: dict[str, int]) -> Scores:
    """Scores by data set and method, one for each seed; both tables read the same ones.

    Parameters
    ----------
    context : Context
        Of the run.
    sizes : dict
        How many features to choose from each data set; 10 where it says nothing.
    """
    found: Scores = {}
    for data in context.names(FULL, QUICK):
        for seed in context.seed_range(full=SEEDS.get(data, 3)):
            scores = _Scores(context, data, seed, sizes.get(data, 10))
            for name in METHODS:
                if _wanted(name, data, seed, context.quick):
                    found.setdefault(data, {}).setdefault(name, []).append(scores.get(name))
    return found


class _Scores:
    """The scores on one split; its rows are made only where a cell is missing."""

    def __init__(self, context: Context, data: str, seed: int, k: int) -> None:
        self.context, self.data, self.seed, self.k = context, data, seed, k
        self.digest = context.dataset(data).digest

    @cached_property
    def case(self) -> Case:
        return self.context.case(self.data, self.seed)

    def get(self, name: str) -> dict[str, Any]:
        return self.context.cells.get(
            ("scores", self.data, f"seed {self.seed}", name),
            {"k": self.k, "protocol": self.context.protocol, "data": self.digest},
            lambda: score(name, self.case, self.k, self.seed),
        )


def score(name: str, case: Case, k: int, seed: int) -> dict[str, Any]:
    """Errors and accuracies of one method on the test rows.

    ``error`` is that of least squares without penalty on the chosen columns, the same decoder
    for all; ``own_error`` that of the method's own decoder, where it has one.
    """
    if name == "pca":
        began = time.perf_counter()
        pca = PCA(k, random_state=seed).fit(case.fit)
        seconds = time.perf_counter() - began
        fit, test = pca.transform(case.fit), pca.transform(case.test)
        error = mean_square(pca.inverse_transform(test), case.test)
        return {"error": error, "seconds": seconds, "rule": case.split.constraints} | accuracies(
            case, fit, test, seed
        )
    choice = choose(METHODS[name], case, k, seed)
    fit, test = case.fit[:, choice.columns], case.test[:, choice.columns]
    cell: dict[str, Any] = {
        "columns": choice.columns.tolist(),
        "chosen_settings": choice.settings,
        "seconds": round(choice.seconds, 3),
        "rule": case.split.constraints,
        "error": linear_error(case, choice.columns),
    }
    if choice.reconstruct is not None:
        cell["own_error"] = mean_square(choice.reconstruct(case.test), case.test)
    return cell | accuracies(case, fit, test, seed)


def _wanted(name: str, data: str, seed: int, quick: bool) -> bool:
    if name == "autoencoder":  # bounds non-linear decoders only
        return False
    return name != "cae-paper" or (data in PRESET and seed == 0 and not quick)
