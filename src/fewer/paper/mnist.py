"""Figure 1: 20 pixels of MNIST, and whole digits from them."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from sklearn.linear_model import LinearRegression

from fewer.paper.case import Case
from fewer.paper.context import Context, Outcome
from fewer.paper.measure import accuracies, linear_error, mean_square
from fewer.paper.methods import METHODS, choose
from fewer.paper.network import Recipe, train_network
from fewer.paper.pixels import reconstructions
from fewer.paper.tables import markdown, spread

__all__ = ["run"]

K = 20
COMPARED = ("random", "greedy", "cae-gradient", "cae", "column-subset", "select")
HIDDEN = (320, 320)
ABOUT = """# Figure 1: {k} pixels of {data}

{k} of {d} pixels are chosen without labels (in the figure, by `fewer.select`) and test images
rebuilt from these pixels alone, by a network with two hidden layers of {width}. Errors are mean
squares on test rows, pixels in [0, 1]; *linear*: by linear regression; *network*: by that network,
trained anew on each method's pixels; *trees*: accuracy of 50 extremely randomised trees."""


def run(context: Context) -> Outcome:
    """Choose 20 pixels with each method, rebuild digits, draw those of `select`."""
    data = context.only("mnist", "fashion", "digits")
    epochs = 20 if context.quick else 60
    found: dict[str, list[dict[str, Any]]] = {}
    for seed in context.seed_range(full=3, quick=1):
        case = context.case(data, seed)
        for name in COMPARED:
            cell = context.cells.get(
                ("mnist", data, f"seed {seed}", name),
                {"k": K, "epochs": epochs, "data": case.data.digest},
                partial(_score, case, name, epochs, seed),
            )
            found.setdefault(name, []).append(cell)
    rows = [
        [
            METHODS[name].label,
            spread([cell["error"] for cell in cells], 5),
            spread([cell["network"] for cell in cells], 5),
            spread([cell["trees"] for cell in cells], 3),
            f"{np.mean([cell['seconds'] for cell in cells]):.1f}",
        ]
        for name, cells in found.items()
    ]
    case = context.case(data, 0)
    head = ["pixels chosen by", "linear", "network", "trees", "seconds to choose"]
    about = ABOUT.format(k=K, data=data, d=case.d, width=HIDDEN[0])
    columns = np.array(found["select"][0]["columns"])
    rebuilt = _rebuild(case, columns, epochs, 0)
    figure = reconstructions(case, columns, rebuilt)
    return Outcome({"methods": found}, f"{about}\n\n{markdown(head, rows)}", {"mnist": figure})


def _score(case: Case, name: str, epochs: int, seed: int) -> dict[str, Any]:
    choice = choose(METHODS[name], case, K, seed)
    columns = choice.columns
    return {
        "columns": columns.tolist(),
        "seconds": choice.seconds,
        "error": linear_error(case, columns),
        "network": mean_square(_rebuild(case, columns, epochs, seed), case.test),
    } | accuracies(case, case.fit[:, columns], case.test[:, columns], seed)


def _rebuild(case: Case, columns: np.ndarray, epochs: int, seed: int) -> np.ndarray:
    """A network on top of the linear map: it learns what that leaves."""
    line = LinearRegression().fit(case.fit[:, columns], case.fit)
    recipe = Recipe(epochs=epochs, decay=0.95)
    left = case.fit - line.predict(case.fit[:, columns])
    net = train_network(case.fit[:, columns], left, HIDDEN, recipe, seed)
    return line.predict(case.test[:, columns]) + net(case.test[:, columns])
