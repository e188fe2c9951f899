"""The predictor of a panel's target."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fewer import storage
from fewer._checks import check_number, join_names
from fewer._stored import require_array
from fewer.data.tables import column_names_of
from fewer.errors import InputError, warn
from fewer.kinds import (
    KINDS,
    Classes,
    Counts,
    Kind,
    Numbers,
    Ordinal,
    Part,
    Several,
    Survival,
    make_kind,
)
from fewer.labels import (
    check_counts,
    objects_with_gaps,
    read_survival,
    with_gaps,
)
from fewer.nn import MeasuredDecoder, build_decoder
from fewer.nn.decoder import LINKS, links_of
from fewer.reconstructor import run_decoder

__all__ = ["Target"]

_LABELS: dict[Any, Any] = {"classes": (list, None), "dtype": (str, None)}
#: The JSON of a saved target; see `fewer._stored.misfit`.
STORED: dict[Any, Any] = {
    "name": (str, None),
    **_LABELS,
    "held_out": float,
    "standard_error?": (float, None),
    "single_output": bool,
    "outputs": int,
    "link": (str, None),
    "columns?": [str],
    "kind?": frozenset({*KINDS, Several.name}),
    "parts?": [
        {
            "name": str,
            "kind": frozenset(KINDS),
            **_LABELS,
            "outputs": int,
            "weight": float,
            "held_out": (float, None),
        }
    ],
}


@dataclass(frozen=True, eq=False)
class Target:
    """A predictor of the target from the k measured values.

    Attributes
    ----------
    decoder : fewer.nn.MeasuredDecoder
        Probabilities of classes, numbers, means of counts, or log hazards.
    kind : fewer.kinds.Kind
        What is predicted; ``kind.name`` is "class", "number", "count", "ordinal", "survival", or
        "several", which has ``parts``. ``kind.metric`` is the name of the score.
    held_out : float
        Score on held-out rows (accuracy, R², D² or concordance; of several targets, their weighted
        mean), corrected for having chosen the winner.
    name : str or None
        Name of the target column.
    single_output : bool
        Whether the target is a single number per row.
    misses : array (m, outputs) or None
        How far held-out predictions missed, ascending, for conformal prediction: absolute errors
        of numbers, of counts relative to the root of their mean or, of classes, 1 less the
        probability of the true one. None for survival, and for a panel saved by a version that did
        not store it.
    columns : tuple of str
        Columns that the target was read from; those of survival are time and event.
    standard_error : float or None
        Of ``held_out``, over rows or groups of rows, and at least what the choice of the winner
        has lowered it by; None for panels of earlier versions.

    Examples
    --------
    >>> import fewer
    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> panel = fewer.select(X, 2, target=y, strategies=["search"], validation=0.2, random_state=0)
    >>> panel.target.classes, panel.target.held_out > 0.8
    (array([0, 1, 2]), True)
    >>> panel.predict(X[:3, panel.indices])
    array([0, 0, 0])
    """

    decoder: MeasuredDecoder
    kind: Kind
    held_out: float
    name: str | None = None
    single_output: bool = True
    misses: NDArray[np.float64] | None = None
    columns: tuple[str, ...] = ()
    standard_error: float | None = None

    @property
    def classes(self) -> NDArray | None:
        """The labels of classes; None for other kinds."""
        return self.kind.classes

    @property
    def parts(self) -> tuple[Part, ...]:
        """Several targets, each with name, kind, weight and score on held-out rows; else none."""
        return self.kind.parts if isinstance(self.kind, Several) else ()

    @property
    def outputs(self) -> int:
        """Number of decoder outputs per row."""
        return int(self.decoder(self.decoder.fill[None]).shape[1])

    def predict(self, measured: NDArray) -> Any:
        """Most likely class, the number, ...: see `Panel.predict`."""
        return self._predicted(run_decoder(self.decoder, measured))

    def _predicted(self, output: NDArray) -> Any:
        found = self.kind.predict(output)
        if isinstance(found, dict):
            return {name: _flat(part) for name, part in found.items()}
        return found[:, 0] if found.ndim == 2 and self.single_output else found

    def bounds(self, measured: NDArray, coverage: float) -> tuple[Any, Any, Any]:
        """Predictions with lower and upper bounds that contain this share of new rows."""
        output = run_decoder(self.decoder, measured)
        found = self._predicted(output)
        if not isinstance(self.kind, Several):
            if not isinstance(self.kind, Numbers):
                self.kind.bounds(output, output)  # refuses
            both = self.kind.bounds(output, self.margin(coverage))
            return found, *(part[:, 0] if self.single_output else part for part in both)
        lower, upper, margins = {}, {}, self._margins(coverage)
        for part, own in self.kind.outputs_of_parts(output):
            if isinstance(part.kind, Numbers):
                low, high = part.kind.bounds(own, margins[part.name])
                lower[part.name], upper[part.name] = _flat(low), _flat(high)
        return found, lower, upper

    def sets(self, measured: NDArray, coverage: float) -> Any:
        """Classes that may be true, in sets that contain the true one in this share of rows."""
        chances = self.probabilities(measured)
        if isinstance(chances, dict):
            margins = self._margins(coverage, "coverage")
            return {name: _likely(part, margins[name]) for name, part in chances.items()}
        return _likely(chances, self.margin(coverage, "coverage"))

    def probabilities(self, measured: NDArray) -> Any:
        """Probability of each class."""
        output = run_decoder(self.decoder, measured)
        if isinstance(self.kind, Several):
            pairs = self.kind.outputs_of_parts(output)
            found = {part.name: own for part, own in pairs if part.kind.classes is not None}
            if found:
                return found
        if self.classes is None:
            raise InputError(
                f"the target of this panel is of kind {self.kind.name!r}, not of classes; use "
                "predict"
            )
        return output

    def score(self, measured: NDArray, truth: Any) -> Any:
        """Score of predictions; of several targets, a dictionary."""
        output = torch.from_numpy(run_decoder(self.decoder, measured))
        if not isinstance(self.kind, Several):
            return _score(self.kind, output, truth, "the truth")
        columns = column_names_of(truth)
        if columns:
            truth = {str(column): truth[column] for column in columns}
        if not isinstance(truth, Mapping):
            raise InputError("the panel predicts several targets; give the truth of all by name")
        pairs = self.kind.outputs_of_parts(output)
        lacking = [part.name for part, _ in pairs if part.name not in truth]
        if lacking:
            raise InputError(f"the truth of {lacking[0]!r} is missing; give all targets by name")
        return {
            part.name: _score(part.kind, own, truth[part.name], f"the truth of {part.name!r}")
            for part, own in pairs
        }

    def margin(self, coverage: float, option: str = "interval") -> NDArray[np.float64]:
        """What held-out predictions missed by at most, in this share of new rows, per output."""
        check_number(option, coverage, above=0, below=1)
        if self.misses is None:
            raise InputError("this panel has no held-out predictions to compute an interval from")
        n = len(self.misses)
        at = math.ceil((n + 1) * coverage - 1e-9)
        if at > n:
            raise InputError(
                f"{option}={coverage:g} needs more than the {n} held-out predictions of this "
                f"panel; use {n / (n + 1):.3g} or less"
            )
        return self.misses[at - 1]

    def _margins(self, coverage: float, option: str = "interval") -> dict[str, NDArray[np.float64]]:
        """Margins of several targets."""
        found, margin, at = {}, self.margin(coverage, option), 0
        for part in self.parts:
            width = _missed_columns(part.kind)
            found[part.name] = margin[at : at + width]
            at += width
        return found

    def _describe(self) -> dict[str, Any]:
        return {
            "name": self.name,
            **_describe_labels(self.classes),
            "held_out": self.held_out,
            "standard_error": self.standard_error,
            "single_output": self.single_output,
            "outputs": self.outputs,
            "link": self.decoder.link,
            "kind": self.kind.name,
            "columns": list(self.columns),
            "parts": [
                {
                    "name": part.name,
                    "kind": part.kind.name,
                    **_describe_labels(part.kind.classes),
                    "outputs": part.kind.outputs,
                    "weight": part.weight,
                    "held_out": part.held_out,
                }
                for part in self.parts
            ],
        }

    @classmethod
    def _restore(cls, meta: dict[str, Any], spec: Any, k: int, tensors: storage.Tensors) -> Any:
        kind, out = _restore_kind(meta), meta["outputs"]
        storage.require_weights(spec, k, out, tensors, "target")
        net = build_decoder(spec, k, out)
        decoder = storage.restore_decoder(net, "target", tensors, meta["link"])
        misses = tensors["misses"].numpy() if "misses" in tensors else None
        if misses is not None:
            require_array("misses", misses, (None, _missed_columns(kind)), "f")
        columns = meta.get("columns", [] if meta["name"] is None else [meta["name"]])
        rest = meta["held_out"], meta["name"], meta["single_output"], misses, tuple(columns)
        return cls(decoder, kind, *rest, meta.get("standard_error"))


def _restore_kind(meta: dict[str, Any]) -> Kind:
    out = meta["outputs"]
    if not meta.get("parts"):
        name = meta.get("kind", Numbers.name if meta["classes"] is None else Classes.name)
        kind = _one_kind(name, meta)
        if meta["link"] not in (None, *LINKS):
            raise ValueError(f"the link {str(meta['link'])[:40]!r} is unknown")
        return kind
    parts = [
        Part(one["name"], _one_kind(one["kind"], one), one["weight"], one["held_out"])
        for one in meta["parts"]
    ]
    if not all(part.weight > 0 for part in parts) or len({p.name for p in parts}) < len(parts):
        raise ValueError("the targets have weights of 0, or names that are repeated")
    several = Several.of(parts)
    if meta["link"] is None or several.outputs != out:
        raise ValueError(f"{len(parts)} targets do not have {out} outputs")
    if [size for _, size in links_of(meta["link"])] != [part.kind.outputs for part in parts]:
        raise ValueError("the links of the targets do not fit their outputs")
    return several


def _one_kind(name: str, meta: dict[str, Any]) -> Kind:
    classes, out = None, meta["outputs"]
    if meta["classes"] is not None:
        classes = storage.restore_labels(meta["classes"], meta["dtype"])
    if classes is not None and len(classes) != out:
        raise ValueError(f"{len(classes)} classes for {out} outputs of the predictor")
    if (classes is not None) != issubclass(KINDS[name], Classes):
        raise ValueError(f"a target of kind {name!r} with classes {classes!r}")
    if out < 1 or (name == Survival.name and out != 1):
        raise ValueError(f"{out} outputs of kind {name!r}")
    return make_kind(name, out, classes)


def _describe_labels(classes: NDArray | None) -> dict[str, Any]:
    labels = (None, None) if classes is None else storage.describe_labels(classes)
    return dict(zip(("classes", "dtype"), labels, strict=True))


def _missed_columns(kind: Kind) -> int:
    """Columns of what `Kind.misses` gives."""
    if isinstance(kind, Several):
        return sum(_missed_columns(part.kind) for part in kind.parts)
    if isinstance(kind, Survival):
        return 0
    return 1 if kind.classes is not None else kind.outputs


def _flat(values: NDArray) -> NDArray:
    return values[:, 0] if values.ndim == 2 and values.shape[1] == 1 else values


def _likely(chances: NDArray, margin: NDArray) -> NDArray[np.bool_]:
    found: NDArray[np.bool_] = chances >= 1 - margin[0]
    found[np.arange(len(found)), chances.argmax(axis=1)] = True
    return found


def _score(kind: Kind, output: torch.Tensor, truth: Any, name: str) -> float:
    """The score of outputs, given the truth as a selection takes its target."""
    if isinstance(kind, Survival):
        values, given = read_survival(truth, name)
    elif kind.classes is not None:
        values, given = _codes(kind, truth, name)
    else:
        values, given = _numbers(kind, truth, name)
    if len(values) != len(output):
        raise InputError(f"{name} has {len(values)} values for {len(output)} rows")
    if given is not None:
        values, output = values[given], output[torch.from_numpy(given)]
    return _score_values(kind, output, torch.from_numpy(values), name)


def _codes(kind: Kind, truth: Any, name: str) -> tuple[NDArray, NDArray[np.bool_] | None]:
    """Numbers of classes, -1 for those that the panel has never seen."""
    assert kind.classes is not None
    labels, given = objects_with_gaps(truth, name)
    if labels.size != len(labels):
        raise InputError(f"{name} has {labels.shape[1]} columns; give one class per row")
    number = {label: at for at, label in enumerate(kind.classes.tolist())}
    codes = np.full(len(labels), -1)
    rows = np.arange(len(labels)) if given is None else np.flatnonzero(given)
    new: dict[str, int] = {}
    for row, label in zip(rows, labels.ravel()[rows].tolist(), strict=True):
        try:
            codes[row] = number.get(label, -1)
        except TypeError as error:  # a list, say
            raise InputError(f"{name} of row {row} is {label!r}; give one class per row") from error
        if codes[row] < 0:
            new[str(label)] = new.get(str(label), 0) + 1
    if new:
        wrong = "they count as wrong"
        if isinstance(kind, Ordinal):
            wrong = "they count with the largest possible error"
        warn(
            f"{sum(new.values())} of {len(rows)} rows have classes that the panel has never seen "
            f"({join_names(sorted(new))}; it knows {join_names(list(number))}); {wrong}"
        )
    return codes, given


def _numbers(kind: Kind, truth: Any, name: str) -> tuple[NDArray, NDArray[np.bool_] | None]:
    """Numbers (n x outputs)."""
    values, given = with_gaps(truth, name)
    if values.dtype.kind not in "fiub":
        raise InputError(f"{name} is of text, but the panel predicts a {kind.name}; give numbers")
    truth_shape = values.shape
    values = values.reshape(len(values), -1).astype(np.float64)
    if values.shape[1] != kind.outputs:
        raise InputError(
            f"{name} is of shape {truth_shape}, but the panel predicts {kind.outputs} per row; "
            "give as many"
        )
    if isinstance(kind, Counts):
        check_counts(values, given, name)
    return values, given


def _score_values(kind: Kind, output: torch.Tensor, values: torch.Tensor, name: str) -> float:
    """The score of outputs; NaN if it compares with a constant, and the truth is one."""
    if kind.classes is None or not (values < 0).any():
        known, seen = values, output
    else:
        known, seen = values[values >= 0], output[values >= 0]
    if kind.metric in (Numbers.metric, Ordinal.metric):
        rows = known.reshape(len(known), -1)
        if not len(rows) or not (rows.amax(0) > rows.amin(0)).all():
            warn(f"{kind.metric} needs at least two different values in {name}; it is NaN here")
            return math.nan
    own = kind.score(seen, known, None) if len(known) else 0.0
    share = len(known) / len(values)
    if share == 1 or not isinstance(kind, Ordinal):
        return own * share
    levels = torch.arange(kind.outputs)
    constant = (levels[:, None] - known).abs().double().mean(1).min().item()
    return own - (1 - share) * ((kind.outputs - 1) / constant - (1 - own))
