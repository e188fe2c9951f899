"""Which units values are in: counts become logarithms, the same way for a panel and new cells."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from fewer.data import ColumnView, Source, match_columns, moments, read_blocks
from fewer.data.columns import join_names
from fewer.data.counts import NormalizedCounts, looks_like_counts
from fewer.errors import InputError, warn
from fewer.panel import Panel

__all__ = ["SETTINGS", "describe_units", "in_units"]

COUNTS = ("auto", "log1p", "none")
SETTINGS = "cells"  # what a panel's settings say of the values that it was made from


def in_units(
    source: Source,
    *,
    like: Panel | None = None,
    counts: str = "auto",
    target_sum: float = 1e4,
    totals: np.ndarray | None = None,
) -> Source:
    """Rows in the units that a panel is to be made from, or that ``like`` was made from.

    Parameters
    ----------
    source : Source
        Rows as they are stored.
    like, counts, target_sum, totals
        As in `open_cells`.

    Examples
    --------
    >>> import numpy as np
    >>> from fewer.data import DenseSource
    >>> in_units(DenseSource(np.array([[1, 3]])), target_sum=4).rows(slice(1)).expm1()
    tensor([[1., 3.]])
    >>> in_units(DenseSource(np.array([[0.5, 3.0]]))).rows(slice(1))
    tensor([[0.5000, 3.0000]])
    """
    if counts not in COUNTS:
        raise InputError(f"counts={counts!r} is not known; use {', '.join(map(repr, COUNTS))}")
    if not isinstance(target_sum, (int, float)) or not target_sum > 0:
        raise InputError(f"target_sum={target_sum!r} must be a number above 0")
    if like is None:
        if not _are_counts(source, counts, None):
            return source
        return NormalizedCounts(source, target_sum, totals)
    genes = _genes_of(source, like)
    made = like.settings.get(SETTINGS)
    if made is None or not _are_counts(source, counts, made):
        return genes  # a panel of fewer.select takes values as they are
    if totals is None and genes.shape[1] < like.d:
        totals = _estimated(genes, made)
    return NormalizedCounts(genes, made.get("target_sum", target_sum), totals)


def describe_units(source: Source, panel: Panel) -> dict[str, Any]:
    """What the settings of a panel keep of the values that it was made from."""
    while isinstance(source, ColumnView):
        source = source.source
    if not isinstance(source, NormalizedCounts):
        return {"counts": "none", "units": "as in the data"}
    at = {name: j for j, name in enumerate(source.names or ())}
    mean = moments(source.source).mean
    on_panel = [at[str(name)] for name in panel.features]
    return {
        "counts": "log1p",
        "target_sum": source.target_sum,
        "units": f"log(1 + counts per {source.target_sum:,.10g})",
        "panel_share": float(mean[on_panel].sum() / mean.sum()),
    }


def _are_counts(source: Source, counts: str, made: Mapping[str, Any] | None) -> bool:
    if counts != "auto":
        return counts == "log1p"
    found = looks_like_counts(source)
    if found and made is not None and made["counts"] == "none":
        raise InputError(
            "these values are counts, but the panel was made from values that were not; "
            "normalise them as those were, name the layer that is, or say counts='none'"
        )
    return found


def _genes_of(source: Source, panel: Panel) -> Source:
    """The genes that the panel was made from; those on it, where the source has not all."""
    names, have = [str(name) for name in panel.names or ()], {*(source.names or ())}
    if all(name in have for name in names):
        return match_columns(source, names, panel.d, "the panel")
    missing = [name for name in panel.features if name not in have]
    if missing:
        raise InputError(
            f"the data lack {len(missing)} of the {panel.k} genes on the panel: "
            f"{join_names(missing, 8)}; add them, with NaN where they were not measured"
        )
    at = {name: j for j, name in enumerate(source.names or ())}
    return ColumnView(source, np.array([at[name] for name in panel.features]))


def _estimated(genes: Source, made: Mapping[str, Any]) -> np.ndarray:
    """Totals of cells of which only the panel was measured, from its share in the training."""
    share = made.get("panel_share")
    if not share:
        raise InputError("the cells lack genes that the panel was made from; give totals=")
    warn(
        f"only the {genes.shape[1]} genes on the panel are there, so the total of each cell is "
        f"estimated: they had {share:.1%} of all counts in the cells that the panel was made "
        "from. Give totals= where they are known"
    )
    sums = [x.nansum(1).numpy() for _, x in read_blocks(genes)]
    return np.concatenate(sums) / share
