"""What is kept of a selection, so that its panel can be explained later."""

import os
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fewer import __version__
from fewer.candidates.held_rows import HeldScore
from fewer.candidates.rivals import DRAWS, HeldOutRivals
from fewer.data import Moments, Source
from fewer.errors import InputError
from fewer.evidence import Evidence
from fewer.search.nested import nested
from fewer.search.substitutes import swap_losses
from fewer.storage import describe_parameters
from fewer.train.folds import ScaledFold

__all__ = ["describe_data", "describe_options", "gather"]

NEIGHBOURS = 5  # related features and substitutes that are kept for each chosen one
MOST_CORRELATED = 512  # chosen features whose correlations are kept
MOST_EPOCHS = 200  # rows of history that are kept
LONG = 1000  # values: longer options are only counted

Columns = NDArray[np.int64]


def gather(
    rivals: HeldOutRivals,
    held: HeldScore,
    everything: ScaledFold,
    columns: Columns,
    *,
    source: dict[str, Any],
    options: dict[str, Any],
    history: dict[str, list[dict[str, Any]]],
) -> Evidence:
    """Evidence of a panel.

    Parameters
    ----------
    rivals : HeldOutRivals
        Folds, the winner's panels in them, and whom to compare it with.
    held : HeldScore
        How the winner did on held-out rows.
    everything : ScaledFold
        All rows.
    columns : array of int
        The final panel.
    source, options : dict
        What the data were, and what was asked for.
    history : dict of lists
        Training of strategies.
    """
    C = everything.train
    trace = float(C.trace()) or 1.0
    order, gains = nested(C, columns, rivals.ridge)
    shares, variance = rivals.shares(held.fold_errors)
    related, likeness, stands_for, correlation = _correlations(C, order)
    substitutes, losses = _substitutes(C, order, rivals)
    errors, rebuilt = held.score.errors.copy(), held.rebuilt
    if rivals.final is not None:
        errors, rebuilt = rivals.judged(held.rows)
    true, guessed = (_some(parts) for parts in (held.rows, rebuilt))
    # what is measured is known
    errors[columns] = 0.0
    guessed[:, columns] = np.where(np.isnan(true), guessed, true)[:, columns]
    rows = sum(len(fold.held_index) for fold in rivals.folds)
    return Evidence(
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        version=__version__,
        source=source | {"held": rows, "folds": len(rivals.folds), "draws": DRAWS},
        options=options,
        explained=shares,
        curve=rivals.curve(),
        order=order,
        gains=gains / trace,
        substitutes=substitutes,
        losses=(losses / trace).astype(np.float32),
        related=related,
        related_correlation=likeness,
        represents=stands_for,
        correlation=correlation,
        errors=errors,
        variance=variance,
        rows=true,
        reconstructed=guessed,
        history={name: _thinned(rows) for name, rows in history.items()},
    )


def describe_data(given: Any, source: Source, stats: Moments) -> dict[str, Any]:
    """What the data were, in words and numbers."""
    n, d = source.shape
    path = None
    if isinstance(given, (str, os.PathLike)):
        path = os.fspath(given)
        kind = f"{Path(path).suffix or 'unknown'} file"
    elif isinstance(given, (list, tuple)) and given and isinstance(given[0], (str, os.PathLike)):
        path, kind = ", ".join(os.fspath(part) for part in given), f"{len(given)} files"
    else:
        kind = f"{type(given).__module__.split('.')[0]}.{type(given).__name__}"
    return {
        "kind": kind,
        "path": path,
        "rows": n,
        "columns": d,
        "missing": 1.0 - float(stats.observed.sum()) / (n * d),
        "left_out": list(source.left_out),
    }


def describe_options(options: dict[str, Any]) -> dict[str, Any]:
    """Options as JSON; what is long, or cannot be written, or speaks of rows, is only named."""
    found: dict[str, Any] = {}
    for name, value in options.items():
        try:
            written = describe_parameters({name: value})[name]
        except InputError:
            written = {"object": type(value).__name__}
        size = _length(written)
        of_rows = name in ("target", "row_groups") and not isinstance(written, str)
        found[name] = {"object": f"{size} values"} if size > LONG or of_rows else written
    return found


def _some(parts: Sequence[NDArray[np.float64]]) -> NDArray[np.float32]:
    rows = np.concatenate(parts).astype(np.float32)
    return rows[: Evidence.sample_size(rows.shape[1])]


def _length(value: Any) -> int:
    if isinstance(value, dict):
        return sum(_length(item) for item in value.values())
    return sum(_length(item) for item in value) if isinstance(value, list) else 1


def _substitutes(
    C: Tensor, order: Columns, rivals: HeldOutRivals
) -> tuple[Columns, NDArray[np.float64]]:
    """Features that would take a chosen one's place, best first, and what that costs."""
    losses = swap_losses(C, order, rivals.ridge).astype(np.float64)
    losses[np.arange(len(order)), order] = np.inf
    losses[:, rivals.constraints.exclude] = np.inf
    best, cost = _best(-losses)
    return best, np.where(np.isfinite(cost), -cost, np.nan)


def _correlations(
    C: Tensor, order: Columns
) -> tuple[Columns, NDArray[np.float32], Columns, NDArray[np.float32]]:
    """Most correlated features of each chosen one; for how many it stands; among the chosen."""
    spread = C.diagonal().clamp_min(0).sqrt()
    inverse = torch.where(spread > 0, 1 / spread, 0.0)
    R = (C[order] * inverse[order][:, None] * inverse).clamp(-1, 1).numpy()  # k x d
    strength = np.abs(R)
    others = np.setdiff1d(np.arange(R.shape[1]), order)
    known = others[strength[:, others].max(axis=0) > 0] if len(others) else others
    stands_for = np.bincount(strength[:, known].argmax(axis=0), minlength=len(order))
    strength[np.arange(len(order)), order] = -np.inf
    related, strongest = _best(strength)
    signed = np.take_along_axis(R, np.maximum(related, 0), axis=1)
    likeness = np.where(np.isfinite(strongest), signed, np.nan).astype(np.float32)
    among = R[:MOST_CORRELATED, order[:MOST_CORRELATED]].astype(np.float32)
    return related, likeness, stands_for.astype(np.int64), among


def _best(values: NDArray[np.float64]) -> tuple[Columns, NDArray[np.float64]]:
    """Places of the largest values of each row, and these; -1 where no more are finite."""
    count = min(NEIGHBOURS, values.shape[1])
    part = np.argpartition(-values, count - 1, axis=1)[:, :count]
    found = np.take_along_axis(values, part, axis=1)
    order = np.argsort(-found, axis=1, kind="stable")
    found = np.take_along_axis(found, order, axis=1)
    part = np.where(np.isfinite(found), np.take_along_axis(part, order, axis=1), -1)
    return part.astype(np.int64), found


def _thinned(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """At most so many rows, the first and the last among them, with numbers that JSON has."""
    at = np.unique(np.linspace(0, len(rows) - 1, min(len(rows), MOST_EPOCHS)).round().astype(int))
    return [
        {
            name: None if isinstance(value, float) and not np.isfinite(value) else value
            for name, value in rows[i].items()
        }
        for i in at
    ]
