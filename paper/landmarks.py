"""The L1000 case: chosen genes against the landmark genes that experts chose."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from paper.experiment import Context, Outcome
from paper.figures import markdown, new_figure, spread
from paper.genes import Genes, GeoGenes, TumourGenes
from paper.methods import METHODS

__all__ = ["run"]

Errors = dict[str, dict[str, list[float]]]  # by method and number of genes or of hidden layers
SETS: dict[str, type[TumourGenes] | type[GeoGenes]] = {
    "tcga": TumourGenes,
    "luad": TumourGenes,
    "geo": GeoGenes,
    "geo-synthetic": GeoGenes,
}
LABELS = {
    "landmarks": "landmark genes",
    "random": "random genes",
    "greedy": "greedy",
    "swaps": "search with ridge",
    "held-out": "search on held-out error",
    "cae-gradient": METHODS["cae-gradient"].label,
    "cae": METHODS["cae"].label,
    "search": "greedy, then swaps",
}
COLOURS = {
    "landmarks": "#882255",
    "swaps": METHODS["column-subset"].colour,
    "held-out": METHODS["select"].colour,
    "search": METHODS["column-subset"].colour,
} | {name: METHODS[name].colour for name in ("random", "greedy", "cae-gradient", "cae")}
MARKERS = {"landmarks": "d", "swaps": "X", "held-out": "*", "search": "X"} | {
    name: METHODS[name].marker for name in ("random", "greedy", "cae-gradient", "cae")
}


def run(context: Context) -> Outcome:
    """Errors against the number of genes, and with hidden layers at the landmarks' number."""
    data = context.only(*SETS)
    errors: Errors = {}
    hidden: Errors = {}
    for start in context.seed_range(full=3, quick=1):
        genes = SETS[data](context, data, start)
        for name in genes.methods:
            found = errors.setdefault(name, {})
            for k in genes.sizes[:1] if name == "landmarks" else genes.sizes:
                found.setdefault(str(k), []).append(genes.cell(name, k)["error"])
        for name in genes.deep:
            found = hidden.setdefault(name, {})
            for layers in genes.layers:
                found.setdefault(str(layers), []).append(genes.network(name, layers)["error"])
    base = "landmarks" if "landmarks" in errors else "random"
    target = float(np.mean(errors[base][str(genes.most)]))
    match = {name: _matching(errors[name], target) for name in errors if name != base}
    result = {"errors": errors, "hidden_layers": hidden, "genes_to_match_the_landmarks": match}
    genes = SETS[data](context, data, 0)
    page = _page(genes, base, errors, hidden, match)
    return Outcome(result, page, {"landmarks": _draw(genes, base, errors, hidden)})


def _matching(errors: dict[str, list[float]], target: float) -> float | None:
    """How many genes reach the landmarks' error, by interpolation between the sizes tried."""
    sizes = sorted(map(int, errors))
    means = [float(np.mean(errors[str(k)])) for k in sizes]
    if not means[-1] <= target <= means[0]:
        return None
    return round(float(np.interp(-target, [-mean for mean in means], sizes)), 1)


def _shown(needed: float | None, errors: dict[str, list[float]], target: float) -> str:
    """A number of genes from `_matching`, or on which side of the sizes tried it lies."""
    if needed is not None:
        return f"{needed:.0f}"
    fewest = min(errors, key=int)
    return f"< {fewest}" if np.mean(errors[fewest]) < target else "more"


def _page(
    genes: Genes, base: str, errors: Errors, hidden: Errors, match: dict[str, float | None]
) -> str:
    most = str(genes.most)
    sizes = [str(k) for k in genes.sizes]
    known = np.array(errors[base][most])
    rows = []
    for name, found in errors.items():
        cells = [spread(found[k], 4) if k in found else "–" for k in sizes]
        ratios = np.array(found[most]) / known - 1
        at_most = f"{ratios.mean():+.1%}" + (
            f" ± {ratios.std(ddof=1):.1%}" if len(ratios) > 1 else ""
        )
        needed = "–" if name == base else _shown(match[name], found, float(known.mean()))
        rows.append([LABELS[name], *cells, at_most, needed])
    head = ["genes chosen by", *(f"{k} genes" for k in sizes), f"at {most}", "genes to match"]
    lines = [[LABELS[n], *(spread(found[one], 4) for one in found)] for n, found in hidden.items()]
    table = markdown([f"{most} genes", *(f"{one} hidden layers" for one in genes.layers)], lines)
    note = (
        f"*at {most}*: error against that of the {most} {LABELS[base]}, {genes.again} by "
        f"{genes.again}. *genes to match*: how many reach the error of the {LABELS[base]}, by "
        f"interpolation of the mean over {genes.again}s. Hidden layers: {genes.decoders}, trained "
        "for as many epochs as do best on validation rows."
    )
    if len(genes.layers) > 1 and all(
        deep == found["0"] for found in hidden.values() for deep in found.values()
    ):
        note += " Here that was none at all: the other genes depend on these linearly."
    about = f"# Chosen genes against the landmark genes\n\n{genes.about}"
    return "\n\n".join([about, markdown(head, rows), table, note])


def _draw(genes: Genes, base: str, errors: Errors, hidden: Errors) -> Figure:
    figure = new_figure(6.8, 2.8)
    left, right = figure.subplots(1, 2, width_ratios=[2, 3])
    for name, found in hidden.items():
        layers = [int(one) for one in found]
        means = [np.mean(values) for values in found.values()]
        left.plot(layers, means, marker=MARKERS[name], markersize=6, color=COLOURS[name])
    left.set_xticks(layers)
    left.set_xlim(-0.3, max(layers) + 0.3)
    left.set_xlabel("hidden layers")
    left.set_ylabel("test error")
    most, known = max(errors[base].items(), key=lambda item: int(item[0]))
    label = LABELS[base] if base == "landmarks" else f"{most} {LABELS[base]}"
    right.axhline(float(np.mean(known)), color=COLOURS[base], ls="--", label=label)
    for name, found in errors.items():
        if name == "landmarks":
            continue
        sizes = [int(k) for k in found]
        means = [np.mean(values) for values in found.values()]
        right.plot(sizes, means, marker=MARKERS[name], color=COLOURS[name], label=LABELS[name])
    right.set_xlabel("genes")
    right.set_ylabel(f"test error, {genes.decoder}")
    figure.legend(*right.get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure
