"""Figure 1: 20 pixels of MNIST, and whole digits from them."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from sklearn.linear_model import LinearRegression

from paper.case import Case, accuracies, linear_error, mean_square
from paper.experiment import Context, Outcome
from paper.figures import markdown, reconstructions, spread
from paper.methods import METHODS, choose
from paper.network import Recipe, train_network

__all__ = ["run"]

K = 20
COMPARED = ("random", "greedy", "cae-gradient", "cae", "column-subset", "select")
HIDDEN = (320, 320)
ABOUT = """# Figure 1: {k} pixels of {data}

{k} of {d} pixels are chosen without labels (in the figure, by `fewer.select`) and test images
reconstructed from these pixels alone, by a network with two hidden layers of {width} units. Errors
are mean squares on test rows, pixels in [0, 1]; *linear*: by linear regression; *network*: by that
network, trained from scratch on each method's pixels; *trees*: accuracy of 50 extremely randomised
trees."""


def run(context: Context) -> Outcome:
    """Choose 20 pixels with each method, reconstruct digits, draw those of `select`."""
    data = context.only("mnist", "fashion", "digits")
    epochs = 20 if context.quick else 60
    found: dict[str, list[dict[str, Any]]] = {}
    for seed in context.seed_range(full=3, quick=1):
        case = context.case(data, seed)
        for name in COMPARED:
            cell = context.cache.get(
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
    reconstructed = _reconstruct(case, columns, epochs, 0)
    figure = reconstructions(case, columns, reconstructed)
    return Outcome({"methods": found}, f"{about}\n\n{markdown(head, rows)}", {"mnist": figure})


def _score(case: Case, name: str, epochs: int, seed: int) -> dict[str, Any]:
    choice = choose(METHODS[name], case, K, seed)
    columns = choice.columns
    return {
        "columns": columns.tolist(),
        "seconds": choice.seconds,
        "error": linear_error(case, columns),
        "network": mean_square(_reconstruct(case, columns, epochs, seed), case.test),
    } | accuracies(case, case.fit[:, columns], case.test[:, columns], seed)


def _reconstruct(case: Case, columns: np.ndarray, epochs: int, seed: int) -> np.ndarray:
    """A network on top of a linear decoder learns what that leaves."""
    linear = LinearRegression().fit(case.fit[:, columns], case.fit)
    recipe = Recipe(epochs=epochs, decay=0.95)
    left = case.fit - linear.predict(case.fit[:, columns])
    net = train_network(case.fit[:, columns], left, HIDDEN, recipe, seed)
    return linear.predict(case.test[:, columns]) + net(case.test[:, columns])
