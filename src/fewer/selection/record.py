"""What a panel records of how it was made: data, options, settings."""

import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fewer.constraints import Constraints
from fewer.data.fetch import without_secrets
from fewer.data.moments import Moments
from fewer.data.source import Source
from fewer.errors import InputError
from fewer.selection.compare import Candidate
from fewer.selection.context import SelectionContext
from fewer.selection.predictor import is_auto
from fewer.selection.size import Reach
from fewer.storage import describe_parameters
from fewer.train.ensemble import Ensemble

# options with a value for each row
PER_ROW = ("target", "row_groups", "sample_weight", "validation")
GIVEN_ROWS = "given rows"  # in the settings, in place of a mask
MOST_NAMES = 20  # a longer list of text holds labels of rows, not names of columns
LONG = 1000  # values: of longer options only the length is recorded


def not_default(options: dict[str, Any], defaults: dict[str, Any]) -> dict[str, Any]:
    """Options that differ from the defaults, as JSON; with a target, the decoder in any case.

    Without it, a panel was saved by a build whose default was another (see `fewer.reproduce`).
    """
    always = () if options["target"] is None else ("decoder",)
    asked = {
        name: value
        for name, value in options.items()
        if name not in ("progress", "checkpoint")
        and (name in always or not _same(value, defaults[name]))
    }
    return describe_options(asked)


def _same(value: Any, default: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return not value and default == ()
    return value is default or (isinstance(value, (str, int, float)) and value == default)


def describe_settings(
    context: SelectionContext,
    winner: Candidate,
    columns: NDArray[np.int64],
    options: dict[str, Any],
    ensemble: Ensemble | None = None,
) -> dict[str, Any]:
    """How a panel was chosen, as JSON; ``ensemble`` is the predictor of its target, if it is one.

    An ensemble is stored as the one network that it is.
    """
    names = ("scale", "strategies", "validation", "time_limit")
    settings = {"decoder": context.config.decoder, **{name: options[name] for name in names}}
    if isinstance(context.validation, np.ndarray):
        settings["validation"] = GIVEN_ROWS
    elif is_auto(options["decoder"]) and context.target is not None:
        settings["validation"] = context.validation  # as it was before the predictor was chosen
    if context.target is not None:
        own = context.config.decoder if ensemble is None else ensemble.widths
        settings |= {"decoder": "linear", "predictor": own}
        if context.reconstruct:
            settings["reconstruct"] = context.reconstruct
    return describe_parameters(settings) | {
        "k": context.constraints.k,
        "k_rule": None if context.size is None else context.size["rule"],
        "rows": context.source.shape[0],
        "seed": context.seed,
        "protocol": context.protocol,
        **describe_spending(context.constraints, columns),
        **({"robust_to": context.robust_to} if context.robust_to else {}),
        **({"networks": ensemble.members} if ensemble is not None else {}),
        **({"loss": context.loss} if context.loss != "mse" else {}),
        "winner": winner.strategy.name,
        "ridge": winner.ridge,
        "seconds": context.budget.seconds,
    }


def describe_spending(constraints: Constraints, columns: NDArray[np.int64]) -> dict[str, Any]:
    """What the panel costs and which groups it is of, in the order of its columns."""
    found: dict[str, Any] = {}
    if constraints.costs is not None:
        found["costs"] = constraints.costs[columns].tolist()
        found |= {"cost": constraints.cost(columns), "budget": constraints.budget}
    if constraints.group_names is not None:
        found["groups"] = [constraints.group_names[j] for j in columns]
    if constraints.limits:
        found["limits"] = [
            {
                "name": limit.name,
                "least": limit.least,
                "most": None if limit.most == np.inf else limit.most,
                "sum": float(total),
                "cost": limit.cost,
            }
            for limit, total in zip(constraints.limits, constraints.sums(columns), strict=True)
        ]
    return found


def describe_data(given: Any, source: Source, stats: Moments) -> dict[str, Any]:
    """Kind, origin and size of the data."""
    n, d = source.shape
    path = None
    if isinstance(given, (str, os.PathLike)):
        path = without_secrets(os.fspath(given))
        kind = f"{Path(path).suffix or 'unknown'} file"
    elif isinstance(given, (list, tuple)) and given and isinstance(given[0], (str, os.PathLike)):
        path, kind = ", ".join(os.fspath(part) for part in given), f"{len(given)} files"
    else:
        name = f"{type(given).__module__.split('.')[0]}.{type(given).__name__}"
        kind = getattr(source, "description", None) or name
    return {
        "kind": kind,
        "path": path,
        "rows": n,
        "columns": d,
        "missing": 1.0 - float(stats.observed.sum()) / (n * d),
        "metadata_columns": list(source.metadata_columns),
    }


def describe_options(options: dict[str, Any]) -> dict[str, Any]:
    """Options as JSON; long values, values per row and objects are only described."""
    found: dict[str, Any] = {}
    for name, value in options.items():
        if isinstance(value, Reach):
            found[name] = {"reach": value.level}
            continue
        if isinstance(value, np.ndarray) and value.size > LONG:  # describing it takes time
            found[name] = {"object": f"{value.size} values"}
            continue
        try:
            written = describe_parameters({name: value})[name]
        except InputError:
            written = {"object": type(value).__name__}
        size = _length(written)
        per_row = name in PER_ROW and not isinstance(written, (int, float))
        per_row = per_row and not _are_names(written)
        found[name] = {"object": f"{size} values"} if size > LONG or per_row else written
    return found


def _are_names(value: Any) -> bool:
    """Whether these are names of columns, rather than a value for each row."""
    few = isinstance(value, list) and len(value) <= MOST_NAMES
    return isinstance(value, str) or (few and all(isinstance(item, str) for item in value))


def _length(value: Any) -> int:
    if isinstance(value, dict):
        return sum(_length(item) for item in value.values())
    return sum(_length(item) for item in value) if isinstance(value, list) else 1
