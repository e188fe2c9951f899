"""Acquisitions of diffusion MRI: signals reconstructed, and tissue parameters estimated, from k.

In the spirit of S. B. Blumberg et al., "Experimental Design for Multi-Channel Imaging via
Task-Driven Feature Selection" (ICLR 2024), on voxels that `fewer.datasets` simulates.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure

from paper.case import Case, Columns, Values, make_case, mean_square
from paper.experiment import Context, Outcome
from paper.figures import curve, log_axis, markdown, new_figure, spread
from paper.methods import IP_CAE, METHODS, choose_for_network
from paper.network import train_on_panels

__all__ = ["parts", "run"]

SIZES = (10, 20, 30, 50, 75, 100)
QUICK_SIZES = (10, 20)
ROWS, QUICK_ROWS = 10_000, 1500
# compartments and acquisitions
TISSUES = ((2, 400), (3, 1300))
QUICK_TISSUES = ((2, 200),)
HIDDEN = (256, 256)
QUICK_EPOCHS = 20  # of IP-CAE
COMPARED = (
    "random",
    "evenly-spread",
    "column-subset",
    "cae-gradient",
    "ip-cae",
    "estimator",
    "select",
)
ABOUT = """# Acquisitions of diffusion MRI

A scanner can measure a voxel with hundreds of settings: diffusion weightings, gradient directions,
echo times, inversion times. Which k of them are worth the time? `fewer.datasets` simulates {rows}
voxels with known tissue (signal-to-noise ratio 50): water in fibres and between them (two
compartments), and free water besides (three). Each method chooses k acquisitions; then the same
networks, of hidden layers {hidden}, are trained on the measured signals: one reconstructs all
signals, the other estimates the tissue parameters. {seeds}, 80% of the voxels to fit and 20% to
test.

*evenly spread*: the first k acquisitions of the protocol, which is made so that any number of them
covers all settings evenly. *CAE, gradient* and *IP-CAE* (its authors' settings, {epochs} epochs)
are relaxations alone; these, `ConcreteAutoencoder` and `fewer.select` choose for the network."""


class Part(NamedTuple):
    """All methods on one simulation with one k."""

    compartments: int
    features: int
    seed: int
    k: int

    @property
    def title(self) -> str:
        return f"{self.compartments} compartments, {self.features} acquisitions"


Cells = dict[str, list[dict[str, Any]]]  # by k, one per seed
Scores = dict[str, dict[str, Cells]]  # by tissue and method


def parts(context: Context) -> list[Part]:
    """What can be computed in parallel: seed by seed, and of each the longest first."""
    tissues = QUICK_TISSUES if context.quick else TISSUES
    sizes = QUICK_SIZES if context.quick else SIZES
    return [
        Part(compartments, features, seed, k)
        for seed in context.all_seeds(full=3, quick=1)
        for compartments, features in reversed(tissues)
        for k in reversed(sizes)
    ]


def run(context: Context) -> Outcome:
    """Errors of signals and of tissue parameters, by method and k."""
    rows = QUICK_ROWS if context.quick else ROWS
    found: Scores = {}
    for part in sorted(context.mine(parts(context))):
        for name, cell in _cells(context, part, rows).items():
            cells = found.setdefault(part.title, {}).setdefault(name, {})
            cells.setdefault(str(part.k), []).append(cell)
    if context.part is not None:
        return Outcome({"tissues": found}, "")
    seeds = len(context.all_seeds(full=3, quick=1))
    runs = "One simulation" if seeds == 1 else f"{seeds} simulations"
    epochs = QUICK_EPOCHS if context.quick else IP_CAE["epochs"]
    page = [ABOUT.format(rows=rows, hidden=HIDDEN, seeds=runs, epochs=epochs)]
    for title, methods in found.items():
        first, *_ = methods["random"].values()
        names = ", ".join(first[0]["tissue"]).replace("_", " ")
        page += [f"## {title}", _table(methods, "Test error of the signals x 1000", "error", 1000)]
        about = "Tissue parameters, unexplained variance"
        page += [_table(methods, about, "estimated", 1), f"Mean of {names}."]
    return Outcome({"tissues": found}, "\n\n".join(page), {"diffusion": _draw(found)})


def _table(methods: dict[str, Cells], title: str, key: str, factor: float) -> str:
    sizes, lines = list(methods["random"]), []
    for name, cells in methods.items():
        values = [[factor * cell[key] for cell in cells.get(k, []) if key in cell] for k in sizes]
        if any(values):
            lines.append([_label(name), *(spread(v, 4) if v else "–" for v in values)])
    return markdown([title, *(f"k = {k}" for k in sizes)], lines)


def _cells(context: Context, part: Part, rows: int) -> dict[str, dict[str, Any]]:
    """Columns and errors of each method, and with the largest k those of all acquisitions."""
    options = {"rows": rows, "features": part.features, "compartments": part.compartments}
    data = context.dataset("diffusion-mri", **options, seed=part.seed)
    case = cache(partial(make_case, data, context.protocol, part.seed, scaling="none"))
    # of the values to six digits: a simulation differs in the last bits between processors
    sums = [f"{value:.5e}" for value in (data.X.mean(), data.X.std())]
    known = {"hidden": HIDDEN, "data": sums, "quick": context.quick}
    place = ("diffusion", part.title, f"seed {part.seed}", f"k {part.k}")
    found = {
        name: context.cache.get(
            (*place, name), known, partial(_choose, case, name, part.k, context.quick)
        )
        for name in COMPARED
    }
    panels = {name: cell["columns"] for name, cell in found.items()}
    scores = context.cache.get(
        (*place, "scores"), known | {"panels": panels}, partial(_score, case, panels)
    )
    cells = {name: {"columns": panels[name], **scores[name]} for name in panels}
    for name, cell in found.items():
        cells[name]["seconds"] = cell["seconds"]
    if part.k == (QUICK_SIZES if context.quick else SIZES)[-1]:
        cells["all"] = context.cache.get((*place[:3], "all"), known, partial(_bound, case))
    return cells


def _choose(rows: Callable[[], Case], name: str, k: int, quick: bool) -> dict[str, Any]:
    if name == "evenly-spread":
        return {"columns": list(range(k)), "seconds": 0.0}
    case = rows()
    settings = {"epochs": QUICK_EPOCHS} if quick and name == "ip-cae" else {}
    choice = choose_for_network(name, case, k, HIDDEN, case.seed, **settings)
    return {"columns": choice.columns.tolist(), "seconds": round(choice.seconds, 3)}


def _score(rows: Callable[[], Case], panels: dict[str, list[int]]) -> dict[str, Any]:
    """Test errors of networks on these panels, which are trained as one."""
    case, columns = rows(), [np.array(panel) for panel in panels.values()]
    decoders = train_on_panels(case.fit, columns, HIDDEN, case.seed)
    errors = [mean_square(decode(case.test), case.test) for decode in decoders]
    tissue = _estimated(case, columns)
    return {
        name: {"error": error, **estimated}
        for name, error, estimated in zip(panels, errors, tissue, strict=True)
    }


def _bound(rows: Callable[[], Case]) -> dict[str, Any]:
    case = rows()
    return _estimated(case, [np.arange(case.d)])[0]


def _estimated(case: Case, panels: list[Columns]) -> list[dict[str, Any]]:
    """Unexplained variance of each tissue parameter, and their mean, for each panel."""
    names, fit, test = _tissue(case)
    found = []
    for estimate in train_on_panels(case.fit, panels, HIDDEN, case.seed, fit):
        left = np.square(estimate(case.test) - test).mean(axis=0) / test.var(axis=0)
        tissue = dict(zip(names, left.tolist(), strict=True))
        found.append({"tissue": tissue, "estimated": float(left.mean())})
    return found


def _tissue(case: Case) -> tuple[list[str], Values, Values]:
    """Names of the numbers that describe a voxel, and their values, standardised by the fit.

    The axis of the fibres is left out: its sign has no meaning.
    """
    values = {name: one for name, one in case.data.parameters.items() if one.ndim == 1}
    y = np.stack(list(values.values()), axis=1)
    fit = y[case.split.fit]
    y = (y - fit.mean(axis=0)) / fit.std(axis=0)
    return list(values), y[case.split.fit], y[case.split.test]


def _label(name: str) -> str:
    own = {"evenly-spread": "evenly spread", "all": "all acquisitions (bound)"}
    return own[name] if name in own else METHODS[name].label


def _draw(found: Scores) -> Figure:
    figure = new_figure(6.8, 0.5 + 2.5 * len(found))
    axes = figure.subplots(len(found), 2, squeeze=False)
    for line, (title, methods) in zip(axes, found.items(), strict=True):
        for axis, key in zip(line, ("error", "estimated"), strict=True):
            for name, cells in methods.items():
                known = {int(k): v for k, v in cells.items() if key in v[0]}
                y = [float(np.mean([cell[key] for cell in v])) for v in known.values()]
                if name == "all" and y:
                    axis.axhline(y[0], color="black", linestyle="--", linewidth=0.8)
                elif name == "evenly-spread":
                    style: Any = {"color": "#cc79a7", "marker": "v", "label": _label(name)}
                    axis.plot(list(known), y, linewidth=1.1, **style)
                elif y:
                    curve(axis, name, known, y)
            axis.set_xlabel("number of acquisitions k")
            axis.set_xticks([int(k) for k in methods["random"]])
            log_axis(axis, "y", (1, 1.5, 2, 3, 5, 7))
        line[0].set_ylabel(f"{title.partition(',')[0]}\ntest error of signals")
        line[1].set_ylabel("unexplained variance\nof tissue parameters")
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside right center")
    return figure
