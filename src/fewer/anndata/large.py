"""More genes than a covariance of all of them can hold in memory.

A covariance of 20,000 genes takes 3.2 GB, and several are needed. So genes are chosen among, and
for, those of the largest variance, from all cells; evidence and intervals of all genes come from
some of the cells; the decoder of all genes is fitted on all cells. Measurement noise counts in the
choice; decoder and scores are then of what is measured.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fewer.data import ColumnView, RowView, Source, moments
from fewer.data.factored import WIDE
from fewer.data.moments import is_wide
from fewer.errors import InputError
from fewer.nn import MeasuredDecoder
from fewer.panel import Panel
from fewer.selection import select
from fewer.train.linear import fit_linear

__all__ = ["for_genes", "select_in_stages"]

MOST_GENES = 5000  # of which a covariance is computed; of more genes, that of the next number
VARIABLE_GENES = 5000
EVIDENCE_CELLS = 2000
PER_CELL = ("target", "row_groups")
PER_GENE = ("costs", "weights", "noise")


def select_in_stages(source: Source, k: int | None, **options: Any) -> Panel:
    """`fewer.select`, in two stages where genes are too many for one."""
    n, d = source.shape
    if d <= MOST_GENES or (is_wide(source) and options.get("noise") is None):
        return select(source, k, **options)
    if options.get("groups") is not None:
        raise InputError(
            f"groups need a covariance of all {d:,} genes, more than {MOST_GENES:,}; drop some "
            "genes first, such as those with the smallest variance"
        )
    if options.get("sample_weight") is not None:
        raise InputError(
            f"weights of cells need a covariance of all {d:,} genes, more than {MOST_GENES:,}; "
            "drop some genes first, such as those with the smallest variance"
        )
    names = source.names or [str(j) for j in range(d)]
    stats = moments(source)
    needed = {str(name) for name in options.get("include", ())}
    for own in (options.get("sets") or {}).values():
        needed |= {str(name) for name in own}
    value = stats.variance + np.where([str(name) in needed for name in names], np.inf, 0.0)
    kept = np.sort(np.argsort(-value, kind="stable")[:VARIABLE_GENES])
    first = select(ColumnView(source, kept), k, **for_genes(options, names, kept))
    chosen = kept[first.indices]
    seed = int(first.settings["seed"])
    count = min(EVIDENCE_CELLS, int((d - 1) // WIDE))
    some = np.sort(np.random.default_rng(seed).choice(n, min(n, count), replace=False))
    more: dict[str, Any] = {name: options[name] for name in ("scale", "weights") if name in options}
    for name in PER_CELL:
        if options.get(name) is not None:
            more[name] = [options[name][row] for row in some]
    panel = select(
        RowView(source, some),
        len(chosen),
        include=[names[j] for j in chosen],
        strategies=["search"],
        random_state=seed,
        **more,
    )
    ridge = float(panel.settings["ridge"] or 0.0) * len(some) / n
    net = fit_linear(source, chosen, stats, ridge=ridge)
    decoder = MeasuredDecoder(net, fill=torch.from_numpy(stats.mean[chosen]))
    panel = Panel(
        replace(panel.reconstructor, decoder=decoder),
        held_out=panel.held_out,
        leaderboard=panel.leaderboard,
        settings=panel.settings,
        target=first.target,
        evidence=partial(getattr, panel, "evidence"),
        estimates=panel.estimates,
        fold_panels=panel.fold_panels,
    )
    kept_settings = ("winner", "cost", "costs", "budget", "limits", "robust_to", "seconds")
    panel.settings |= {
        name: first.settings[name] for name in kept_settings if name in first.settings
    }
    panel.settings["stages"] = {
        "genes": len(kept),
        "cells": n,
        "held_out": float(first.held_out),
        "scored_cells": len(some),
    }
    return panel


def for_genes(options: dict[str, Any], names: list[str], kept: NDArray[np.int64]) -> dict[str, Any]:
    """Options for some of the genes only."""
    have, found = {names[j] for j in kept}, dict(options)
    if options.get("exclude") is not None:
        found["exclude"] = [name for name in options["exclude"] if name in have]

    def part(value: Any) -> Any:
        if hasattr(value, "items") and hasattr(value, "index"):
            value = dict(value.items())  # a pandas Series
        if isinstance(value, Mapping):
            nested = all(isinstance(own, (Mapping, np.ndarray, list)) for own in value.values())
            if nested and value:
                return {name: part(own) for name, own in value.items()}
            return {name: own for name, own in value.items() if name in have}
        return np.asarray(value)[kept] if np.ndim(value) == 1 else value

    for name in PER_GENE:
        if options.get(name) is not None:
            found[name] = part(options[name])
    return found
