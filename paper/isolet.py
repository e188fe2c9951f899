"""Figure 2: error and accuracy on ISOLET against the number of features, one hidden layer."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from fewer.baselines import AutoencoderBound
from paper.case import Case, accuracies, mean_square
from paper.experiment import Context, Outcome
from paper.figures import curve, log_axis, markdown, new_figure, spread
from paper.methods import METHODS, choose_for_network
from paper.network import Recipe, train_network

__all__ = ["run", "widths"]

SIZES = (10, 25, 45, 65, 85)
QUICK_SIZES = (10, 40)
COMPARED = ("laplacian", "aefs", "udfs", "mcfs", "pfa", "greedy", "cae-gradient", "select")
QUICK = ("laplacian", "pfa", "greedy", "cae-gradient", "select")
ABOUT = """# Features of ISOLET against their number, one hidden layer

Each method chooses k features; a network with one hidden layer is trained from scratch on them for
{epochs} epochs (Adam, 0.001) to reconstruct all {d} features, with {widths} as width;
the width with the lowest error on validation rows is reported on test rows. `CAE, gradient` and
`fewer.select` choose for a hidden layer of 3k/2. *Accuracy*: 50 extremely randomised trees.
{splits}: {rule}."""


def widths(k: int, quick: bool = False) -> tuple[int, ...]:
    """Hidden widths that the paper tries: 4k/9, 2k/3, k, 3k/2."""
    if quick:
        return (3 * k // 2,)
    return tuple(max(1, round(share * k)) for share in (4 / 9, 2 / 3, 1, 3 / 2))


def run(context: Context) -> Outcome:
    """Error and accuracy of each method at each k."""
    data = context.only("isolet", "digits", "mice", "har", "coil20")
    sizes = QUICK_SIZES if context.quick else SIZES
    names = QUICK if context.quick else COMPARED
    epochs = 40 if context.quick else 200
    found: dict[str, dict[int, list[dict[str, Any]]]] = {}
    seeds = context.seed_range(full=3, quick=1)
    for seed in seeds:
        case = cache(partial(context.case, data, seed))  # made only if a result is missing
        for k in sizes:
            for name in (*names, "autoencoder"):
                cell = context.cache.get(
                    ("isolet", data, f"seed {seed}", f"k {k}", name),
                    {
                        "epochs": epochs,
                        "widths": widths(k, context.quick),
                        "version": 2,  # select chooses for the network
                        "data": context.dataset(data).digest,
                        "protocol": context.protocol,
                    },
                    partial(_score, case, name, k, epochs, widths(k, context.quick)),
                )
                found.setdefault(name, {}).setdefault(k, []).append(cell)
    tables = []
    for key, digits, title in (("error", 5, "Test error"), ("trees", 3, "Accuracy")):
        lines = []
        for name, cells in found.items():
            values = [[cell[key] for cell in cells[k] if key in cell] for k in sizes]
            if any(values):
                shown = [spread(v, digits) if v else "–" for v in values]
                lines.append([METHODS[name].label, *shown])
        head = [title, *(f"k = {k}" for k in sizes)]
        tables.append(markdown(head, lines))
    d = context.dataset(data).X.shape[1]
    hidden = "3k/2" if context.quick else "4k/9, 2k/3, k and 3k/2"
    splits = "One split" if len(seeds) == 1 else f"{len(seeds)} splits"
    rules = dict.fromkeys(
        context.dataset(data).split(context.protocol, seed).description for seed in seeds
    )
    about = ABOUT.format(epochs=epochs, d=d, widths=hidden, splits=splits, rule="; ".join(rules))
    result = {
        "methods": {name: {str(k): c for k, c in cells.items()} for name, cells in found.items()}
    }
    return Outcome(result, "\n\n".join([about, *tables]), {"isolet": _draw(found)})


def _score(
    rows: Callable[[], Case], name: str, k: int, epochs: int, hidden: tuple[int, ...]
) -> dict[str, Any]:
    case = rows()
    seed = case.seed
    tried = []
    if name == "autoencoder":
        for width in hidden:
            bound = AutoencoderBound(k, hidden=(width,), random_state=seed).fit(case.train)
            held = mean_square(bound.reconstruct(case.validation), case.validation)
            tried.append((held, width, mean_square(bound.reconstruct(case.test), case.test)))
        held, width, error = min(tried)
        return {"width": width, "validation": held, "error": error}
    columns = choose_for_network(name, case, k, (3 * k // 2,), seed).columns
    for width in hidden:
        recipe = Recipe(epochs=epochs)
        net = train_network(case.train[:, columns], case.train, (width,), recipe, seed)
        held = mean_square(net(case.validation[:, columns]), case.validation)
        tried.append((held, width, mean_square(net(case.test[:, columns]), case.test)))
    held, width, error = min(tried)
    cell = {"columns": columns.tolist(), "width": width, "validation": held, "error": error}
    return cell | accuracies(case, case.fit[:, columns], case.test[:, columns], seed)


def _draw(found: dict[str, dict[int, list[dict[str, Any]]]]) -> Figure:
    figure = new_figure(6.8, 2.9)
    left, right = figure.subplots(1, 2)
    for name, cells in found.items():
        for axis, key in ((left, "error"), (right, "trees")):
            points = [(k, np.mean([c[key] for c in v])) for k, v in cells.items() if key in v[0]]
            if points:
                curve(axis, name, *zip(*points, strict=True))
    left.set_ylabel("test error, one hidden layer")
    right.set_ylabel("accuracy, 50 trees")
    log_axis(left, "y", (1, 1.5, 2, 3, 5, 7))
    for axis in (left, right):
        axis.set_xlabel("number of features k")
    figure.legend(*left.get_legend_handles_labels(), loc="outside right center")
    return figure
