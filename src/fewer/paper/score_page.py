"""Tables 1 and 2 as pages and figures."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure

from fewer.paper.case import LEFT_OUT
from fewer.paper.context import Context
from fewer.paper.methods import METHODS
from fewer.paper.scores import Scores
from fewer.paper.style import log_axis, new_figure
from fewer.paper.tables import markdown, spread

__all__ = ["figure_of", "page_of"]

OWN = "own_error"


def page_of(
    context: Context,
    scores: Scores,
    about: str,
    measure: str,
    digits: int,
    published: Mapping[str, Mapping[str, float]],
    marks: Mapping[str, str],
    *,
    lowest: bool,
) -> str:
    """A table with a row for each method, the published figures below ours, the best in bold."""
    data = list(scores)
    best = {name: _best(scores[name], measure, digits, lowest) for name in data}
    rows = []
    for name, method in METHODS.items():
        if not any(name in scores[one] for one in data):
            continue
        cells = []
        for one in data:
            values = [cell[measure] for cell in scores[one].get(name, [])]
            text = spread(values, digits) if values else "–"
            cells.append(f"**{text}**" if name in best[one] else text)
        rows.append([method.label, *cells])
        if measure == "error" and name == "select":
            own = [[cell[OWN] for cell in scores[one]["select"]] for one in data]
            rows.append(["fewer.select, own decoder", *(spread(v, digits) for v in own)])
        if any(name in published.get(one, {}) for one in data):
            figures = [
                f"{published[one][name]:.3f}{'' if name == 'pca' else marks.get(one, '')}"
                if one in published
                else "–"
                for one in data
            ]
            rows.append(["· paper", *figures])
    head = ["method", *(_head(one, scores[one]) for one in data)]
    parts = [about, markdown(head, rows), _splits(context, scores)]
    return "\n\n".join(parts)


def figure_of(scores: Scores, measure: str, label: str, *, relative: bool) -> Figure:
    """A panel for each data set, a line for each seed and a dot for their mean."""
    data = list(scores)
    names = [n for n in METHODS if any(n in scores[one] for one in data)]
    names = [n for n in names if not (relative and n == "pca")][::-1]
    columns = min(3, len(data))
    lines = -(-len(data) // columns)
    figure = new_figure(6.8, 0.7 + lines * (0.16 * len(names) + 0.35))
    axes = np.atleast_1d(figure.subplots(lines, columns, sharey=True, squeeze=False)).ravel()
    for axis, one in zip(axes, data, strict=False):
        bases = [cell[measure] if relative else 1.0 for cell in scores[one]["pca"]]
        for at, name in enumerate(names):
            cells = scores[one].get(name, [])
            values = [cell[measure] / base for cell, base in zip(cells, bases, strict=False)]
            if values:
                colour = METHODS[name].colour
                axis.plot(values, [at] * len(values), "|", color=colour, markersize=6)
                axis.plot(np.mean(values), at, "o", color=colour, markersize=4.5)
        axis.set_title(_title(one))
        axis.set_yticks(range(len(names)), [METHODS[name].label for name in names])
        axis.grid(axis="y", linewidth=0.3)
        if relative:
            log_axis(axis, "x", (1, 1.5, 2, 3, 5))
    for axis in axes[len(data) :]:
        axis.set_axis_off()
    figure.supxlabel(label, fontsize=8)
    return figure


def _best(
    methods: Mapping[str, list[dict[str, float]]], measure: str, digits: int, lowest: bool
) -> list[str]:
    """The best choosers of features, as rounded; those that were run once do not compete."""
    seeds = max(len(cells) for cells in methods.values())
    means = {
        name: round(float(np.mean([cell[measure] for cell in cells])), digits)
        for name, cells in methods.items()
        if METHODS[name].family != "bound" and len(cells) == seeds
    }
    best = (min if lowest else max)(means.values())
    return [name for name, value in means.items() if value == best]


def _title(data: str) -> str:
    return {"mnist": "MNIST", "fashion": "Fashion-MNIST", "coil20": "COIL-20", "mice": "Mice"}.get(
        data, data.upper() if data in ("isolet", "har", "tcga") else data
    )


def _head(data: str, methods: Mapping[str, list[dict[str, object]]]) -> str:
    k = len(methods["greedy"][0]["columns"])  # type: ignore[arg-type]
    return f"{_title(data)} ({k})"


def _splits(context: Context, scores: Scores) -> str:
    lines = [f"Protocol: {context.protocol}. Mean ± standard deviation over splits and starts."]
    for data, methods in scores.items():
        rules = "; ".join(dict.fromkeys(str(cell["rule"]) for cell in methods["pca"]))
        lines.append(f"- {_title(data)}: {rules}")
    if context.protocol == "paper":
        lines.append("")
        lines.append("Of the authors' code this leaves out:")
        lines.extend(f"- {text}" for text in LEFT_OUT)
    return "\n".join(lines)
