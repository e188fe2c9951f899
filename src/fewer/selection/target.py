"""The target of a selection, given as an array or by name, prepared for training."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fewer._checks import check_number, join_and, join_names, truth_of_words
from fewer.data import Source
from fewer.data.open import is_source_like, open_with_metadata
from fewer.data.source import read_metadata
from fewer.data.tables import as_array
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
from fewer.nn import Loss, MeasuredDecoder
from fewer.train.training_data import check_weights, class_weights

__all__ = ["TargetData", "read_named_columns", "read_target", "with_weights"]

MANY_CLASSES = 20
FEW_ROWS = 20  # per class
MOST_TARGETS = 100  # columns: a longer list of text are labels

Rows = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class TargetData:
    """A target prepared for training.

    Rows without a label, and rows of weight 0, neither train predictors nor score them; they still
    count in the reconstruction of the features.
    """

    # class numbers (n), or numbers (n x m), as the kind has them; anything without a label
    values: Tensor
    kind: Kind
    name: str | None  # of its column
    one: bool  # whether it was given as a single column
    labelled: NDArray[np.bool_] | None = None  # which rows have a label; None is all
    weights: Tensor | None = None  # of rows in training and comparison
    sample_weight: Tensor | None = None  # of rows in scores: the same, without those of classes
    columns: tuple[str, ...] = ()  # of the data that it was read from

    @property
    def classes(self) -> NDArray | None:
        """Labels of classes, ordered or not; None for other kinds."""
        return self.kind.classes

    @property
    def outputs(self) -> int:
        """Number of outputs of a predictor."""
        return self.kind.outputs

    @cached_property
    def known(self) -> Rows:
        """All rows that have a label."""
        return self.rows(np.arange(len(self.values)))

    @cached_property
    def loss(self) -> Loss:
        """What a predictor minimises."""
        if not isinstance(self.kind, Several):
            return self.kind.loss()
        scaled = self.in_units_of(self.known)
        return self.kind.fitted(scaled, self.weights_of(self.known)).loss()

    @cached_property
    def judge(self) -> Kind:
        """The kind that scores predictors."""
        if not isinstance(self.kind, Several):
            return self.kind
        values = self.values[torch.from_numpy(self.known)]
        return self.kind.fitted(values, self.weights_of(self.known))

    @cached_property
    def unit(self) -> Tensor | None:
        """Variance of each of several numbers, which count the same; None if there is one."""
        if self.kind.name != Numbers.name or self.outputs == 1:
            return None
        return self.values[torch.from_numpy(self.known)].var(0)

    def rows(self, index: Rows) -> Rows:
        """Those of some rows that have a label."""
        return index if self.labelled is None else index[self.labelled[index]]

    def weights_of(self, index: Rows) -> Tensor | None:
        """Weights of some rows in training; None if they are all the same."""
        return None if self.weights is None else self.weights[torch.from_numpy(index)]

    def score_weights(self, index: Rows) -> Tensor | None:
        """Weights of some rows in scores; None if they are all the same."""
        return None if self.sample_weight is None else self.sample_weight[torch.from_numpy(index)]

    def all_weights(self, index: Rows) -> Tensor | None:
        """Weights of some rows, 0 where there is no label; None if they are all the same."""
        if self.labelled is None:
            return self.weights_of(index)
        has = torch.from_numpy(self.labelled[index]).double()
        return has if self.weights is None else has * self.weights[torch.from_numpy(index)]

    def check_folds(self, folds: Sequence[tuple[Rows, Rows]]) -> None:
        """Refuse folds whose training rows or held-out rows have no labels to use."""
        for at, parts in enumerate(folds):
            for part, what in zip(parts, ("training", "held-out"), strict=True):
                rows = self.rows(part)
                which = f"of the {len(part)} {what} rows of fold {at + 1} of {len(folds)}"
                if not len(rows):
                    raise InputError(
                        f"target: none {which} has a label; give more rows a label, or use another "
                        "validation="
                    )
                values = self.values[torch.from_numpy(rows)]
                if reason := self.kind.check_part(values, what == "training"):
                    raise InputError(
                        f"target: {reason.format(which)}; shuffle the rows, or use another "
                        "validation= or fewer folds"
                    )

    def spread(self, index: Rows) -> Tensor:
        """Scale of the target on some rows, so that several numbers count the same."""
        if self.kind.name != Numbers.name or self.outputs == 1:
            return torch.ones((), dtype=torch.float64)
        spread = self.values[torch.from_numpy(self.rows(index))].std(0)
        return torch.where(spread > 0, spread, 1.0)

    def in_units_of(self, index: Rows) -> Tensor:
        """The target of some rows as it is trained on; numbers in units of their spread."""
        values = self.values[torch.from_numpy(index)]
        if self.kind.name == Numbers.name:
            return values / self.spread(index)
        if isinstance(self.kind, Several):
            center, scale = self.kind.units(values, self.weights_of(index))
            values = (values - center) / scale
        return self.kind.for_training(values)

    def centred(self, index: Rows) -> Tensor:
        """The target of some rows as centred numbers of comparable weight; 0 without a label."""
        weights = self.all_weights(index)
        if weights is not None:
            weights = weights / weights.sum()
        part = self.kind.response(self.values[torch.from_numpy(index)], weights)
        return (
            part
            if self.labelled is None
            else part * torch.from_numpy(self.labelled[index])[:, None]
        )

    def restore_units(self, decoder: MeasuredDecoder, index: Rows) -> MeasuredDecoder:
        """The decoder trained on `in_units_of` these rows, in the units of the target."""
        if isinstance(self.kind, Several):
            values = self.values[torch.from_numpy(index)]
            center, scale = self.kind.units(values, self.weights_of(index))
            decoder.out_center = self.kind.of_outputs(center, 0.0)
            decoder.out_scale = self.kind.of_outputs(scale, 1.0)
            return decoder
        spread = self.spread(index)
        decoder.out_center = decoder.out_center * spread
        decoder.out_scale = decoder.out_scale * spread
        return decoder


def read_target(
    target: Any, data: Any, kind: Any = "auto", weight: Any = None
) -> tuple[TargetData, Any]:
    """The target, and the data without it where it was one or several of their columns."""
    name, kind = None, _known_kind(kind)
    names = _column_names(target, data)
    if not names:
        _check_rows(target, data)
    if names:
        found, data = _columns(names, data, "target")
        target = found if len(found) > 1 else found[names[0]]
        name = names[0] if len(found) == 1 or kind == Survival.name else None
    columns = tuple(names)
    if kind == Survival.name or _is_structured(target):
        return replace(_survival(target), name=name, columns=columns), data
    if (parts := _as_parts(target, kind, weight)) is not None:
        return replace(_several(parts, kind, weight), columns=columns), data
    if weight is not None:
        raise InputError("target_weight is for several targets; give them as a mapping or a table")
    return replace(_single(target, kind), name=name, columns=columns), data


def _check_rows(target: Any, data: Any) -> None:
    """Refuse a target of another number of rows than a table or an array, or in another order."""
    listed = isinstance(target, (list, tuple)) and len(target) == 2  # perhaps (time, event)
    parts = target.values() if isinstance(target, Mapping) else target if listed else [target]
    n, own = (one[0] if len(one) in (1, 2) else None for one in map(_shape, (data, target)))
    if isinstance(n, int) and isinstance(own, int) and own != n:
        raise InputError(f"target has {own} values for {n} rows")
    wanted: Any = getattr(data, "index", None)
    for part in parts if hasattr(wanted, "equals") else ():
        labels: Any = getattr(part, "index", None)
        if not hasattr(labels, "equals") or labels.equals(wanted):
            continue
        if labels.is_unique and wanted.is_unique and wanted.isin(labels).all():
            raise InputError(
                "the rows of target have the labels of the rows of the data in another order; use "
                "target.loc[data.index], or target.to_numpy() if the order is right"
            )


def _shape(rows: Any) -> tuple[Any, ...]:
    return getattr(rows, "shape", None) or ()


def _known_kind(kind: Any) -> Any:
    """A kind, or a mapping from the names of several targets to theirs."""
    asked = kind.values() if isinstance(kind, Mapping) else [kind]
    for one in asked:
        if not isinstance(one, str) or one not in ("auto", *KINDS):
            raise InputError(
                f"target_kind={kind!r} is not valid; use auto, {', '.join(KINDS)}, or a mapping "
                "from the names of several targets to these"
            )
    return dict(kind) if isinstance(kind, Mapping) else kind


def _column_names(target: Any, data: Any) -> list[str]:
    """Names of columns of the data that the target is; none if it is given as values."""
    if isinstance(target, str):
        return [target]
    several = isinstance(target, (list, tuple)) and 0 < len(target) <= MOST_TARGETS
    if not several or not all(isinstance(name, str) for name in target):
        return []
    if is_source_like(data):
        return list(target)  # rows of a file are not labelled by a short list
    columns = {str(column) for column in getattr(data, "columns", ())}
    return list(target) if set(target) <= columns else []


def _as_parts(target: Any, kind: Any, weight: Any) -> dict[str, Any] | None:
    """Several targets by name; None if there is one, or several numbers of the same kind."""
    if isinstance(target, Mapping):
        return {str(name): part for name, part in target.items()}
    columns = [str(column) for column in getattr(target, "columns", ())]
    if len(columns) < 2:
        return None
    if len(set(columns)) < len(columns):
        raise InputError(f"target has columns of the same name: {join_names(columns)}")
    parts = dict(zip(columns, (target[column] for column in target.columns), strict=True))
    same = isinstance(kind, str) and weight is None
    plain = same and kind in (Numbers.name, Counts.name)
    floats = (np.asarray(part).dtype.kind == "f" for part in parts.values())
    return None if plain or (same and kind == "auto" and all(floats)) else parts


def _several(parts: Mapping[str, Any], kind: Any, weight: Any) -> TargetData:
    """Targets of different kinds as one; a row needs a label of each."""
    if not parts:
        raise InputError("target is an empty mapping; give at least one target")
    kinds, weights = (
        _by_name(given, parts, what, default)
        for given, what, default in ((kind, "target_kind", "auto"), (weight, "target_weight", 1.0))
    )
    found = {}
    for name, part in parts.items():
        check_number(f"target_weight[{name!r}]", weights[name], above=0)
        read = _survival if kinds[name] == Survival.name else partial(_single, kind=kinds[name])
        try:
            found[name] = read(part)
        except InputError as error:
            raise InputError(f"{name}: {error}") from error
    lengths = {name: len(one.values) for name, one in found.items()}
    if len(set(lengths.values())) > 1:
        raise InputError(f"targets are of different lengths: {lengths}")
    n = next(iter(lengths.values()))
    labelled = np.ones(n, dtype=bool)
    for one in found.values():
        labelled &= True if one.labelled is None else one.labelled
    if not labelled.any():
        raise InputError("no row has a label of every target; give some rows all of them")
    several = Several.of(
        [Part(name, one.kind, float(weights[name])) for name, one in found.items()]
    )
    values = torch.cat([one.values.double().reshape(n, -1) for one in found.values()], dim=1)
    joined = ", ".join(found)
    return TargetData(values, several, joined, False, None if labelled.all() else labelled)


def _by_name(given: Any, parts: Mapping[str, Any], what: str, default: Any) -> dict[str, Any]:
    """An option for each of several targets: the same, a list in their order, or a mapping."""
    if isinstance(given, Mapping):
        if unknown := [name for name in given if name not in parts]:
            raise InputError(
                f"{what} has {unknown[0]!r}, which is not a target; those are "
                f"{join_names(list(parts))}"
            )
        return {name: given.get(name, default) for name in parts}
    if isinstance(given, (list, tuple, np.ndarray)):
        if len(given) != len(parts):
            raise InputError(f"{what} has {len(given)} values for {len(parts)} targets")
        return dict(zip(parts, given, strict=True))
    return dict.fromkeys(parts, default if given is None else given)


def _single(target: Any, kind: str = "auto") -> TargetData:
    """One target: classes, ordered or not, or numbers or counts."""
    order = _categories(target)
    y, labelled = _with_gaps(target)
    if kind == "auto" and order is not None:
        kind = Ordinal.name
    several = y.dtype.kind in "fiub" and y.ndim == 2 and y.shape[1] > 1
    asked = kind != "auto"
    if not asked:
        kind = Numbers.name if several or y.dtype.kind == "f" else Classes.name
    if kind in (Numbers.name, Counts.name):
        return _numbers(y, labelled, kind)
    if y.ndim == 2 and y.shape[1] > 1:
        if several:
            raise InputError(f"target has {y.shape[1]} columns; kind {kind!r} needs a single one")
        raise InputError(f"target has {y.shape[1]} columns that are not numbers; give one of them")
    return _classes(y.ravel(), labelled, kind, order, asked=asked)


def _numbers(y: NDArray, labelled: NDArray[np.bool_] | None, kind: str) -> TargetData:
    if y.dtype.kind not in "fiub":
        raise InputError(f"target is of text, which is no {kind}; leave target_kind out")
    values = torch.from_numpy(np.array(y.reshape(len(y), -1), dtype=np.float64))
    values.nan_to_num_(nan=0.0)
    seen = values if labelled is None else values[torch.from_numpy(labelled)]
    if kind == Counts.name:
        rows = np.arange(len(y)) if labelled is None else np.flatnonzero(labelled)
        bad = torch.nonzero((seen < 0) | (seen != seen.round()))
        if len(bad):
            row, column = bad[0].tolist()
            raise InputError(
                f"target of row {rows[row]} is {float(seen[row, column]):g}; counts are whole "
                "numbers of at least 0: give raw counts, or use target_kind='number'"
            )
    if not (seen.amax(0) > seen.amin(0)).all():
        first = y.flat[0] if labelled is None else y[labelled].flat[0]
        raise InputError(f"target has one value only, {first.item()!r}; it needs at least 2")
    return TargetData(values, make_kind(kind, values.shape[1]), None, y.ndim == 1, labelled)


def _may_be_a_quantity(values: NDArray, rows: int) -> bool:
    """Whether whole numbers, ascending, hardly stand for classes: too many, or with gaps."""
    if values.dtype.kind not in "iu" or len(values) <= MANY_CLASSES:
        return False
    codes = values[0] in (0, 1) and values[-1] - values[0] + 1 == len(values)
    return not codes or FEW_ROWS * len(values) > rows


def _classes(
    y: NDArray,
    labelled: NDArray[np.bool_] | None,
    kind: str,
    order: NDArray | None,
    *,
    asked: bool,
) -> TargetData:
    known = y if labelled is None else y[labelled]
    classes, found = np.unique(known, return_inverse=True)
    if kind == Ordinal.name:
        if order is not None:
            place = {label: at for at, label in enumerate(order.tolist())}
            ranks = np.argsort([place[label] for label in classes.tolist()], kind="stable")
            classes, found = classes[ranks], np.argsort(ranks)[found]
        elif classes.dtype.kind not in "fiub":
            raise InputError(
                "target_kind='ordinal' needs an order, and the target is of text; give numbers "
                "(0, 1, 2, ...), or a pandas Categorical with ordered=True"
            )
    if len(classes) < 2:
        raise InputError(f"target has one value only, {classes.tolist()[0]!r}; it needs at least 2")
    if not asked and _may_be_a_quantity(classes, len(found)):
        warn(
            f"target has {len(classes)} different whole numbers in {len(found)} rows, and each is "
            "taken as a class; if it is a quantity, use target_kind='number' or "
            "target_kind='count'; if not, target_kind='class' silences this warning"
        )
    elif kind == Classes.name and (np.bincount(found) == 1).any():
        rare = classes[np.bincount(found) == 1]
        warn(
            f"classes of target with a single row: {join_names(rare.tolist())}; each is either "
            "learned or tested, never both; drop these rows, or merge the classes with others"
        )
    codes = np.zeros(len(y), dtype=np.int64)
    codes[slice(None) if labelled is None else labelled] = found
    made = make_kind(kind, len(classes), classes)
    return TargetData(torch.from_numpy(codes), made, None, True, labelled)


def _categories(target: Any) -> NDArray | None:
    """The categories of an ordered pandas Categorical, or of a column of them."""
    holder = getattr(target, "cat", target)
    if not getattr(holder, "ordered", False) or not hasattr(holder, "categories"):
        return None
    return np.asarray(holder.categories)


def _is_structured(target: Any) -> bool:
    """Whether the target is an array of (event, time) as scikit-survival has it."""
    names = getattr(getattr(target, "dtype", None), "names", None)
    return names is not None and len(names) == 2


def _survival(target: Any) -> TargetData:
    """Times and events."""
    if _is_structured(target):
        fields = [target[name] for name in target.dtype.names]
        time, event = sorted(fields, key=lambda part: part.dtype.kind == "b")
    elif isinstance(target, Mapping) or len(getattr(target, "columns", ())) == 2:
        columns = list(target) if isinstance(target, Mapping) else list(target.columns)
        if len(columns) != 2:
            raise InputError(f"a survival target has {len(columns)} parts; give (time, event)")
        time, event = (target[column] for column in columns)
    elif isinstance(target, (list, tuple)) and len(target) == 2:
        time, event = target
    else:
        pairs = np.asarray(as_array(target) if isinstance(target, Tensor) else target)
        if pairs.ndim != 2 or pairs.shape[1] != 2:
            raise InputError(
                f"a survival target has shape {pairs.shape}; give the times and the events, as "
                "(time, event) or as two columns; on the command line, --target TIME --event EVENT"
            )
        time, event = pairs.T
    (time, has_time), (event, has_event) = (
        _with_gaps(part, name) for part, name in ((time, "time"), (event, "event"))
    )
    if time.ndim != 1 or time.shape != event.shape:
        raise InputError(
            f"times have shape {time.shape} and events {event.shape}; give a pair each"
        )
    if event.dtype.kind == "U":
        events = truth_of_words(event if has_event is None else event[has_event])
        if events is None:
            raise InputError(
                f"the events of the target hold {join_names(np.unique(event).tolist())}; use 1, "
                "true or yes for an event, and 0, false or no for none"
            )
        event = np.zeros(event.shape)
        event[slice(None) if has_event is None else has_event] = events
    if time.dtype.kind not in "fiub":
        raise InputError("the times of the target are of text; give numbers")
    return _times(time.astype(float), event.astype(float), has_time, has_event)


def _times(
    time: NDArray,
    event: NDArray,
    has_time: NDArray[np.bool_] | None,
    has_event: NDArray[np.bool_] | None,
) -> TargetData:
    every = np.ones(len(time), dtype=bool)
    has_time, has_event = (every if part is None else part for part in (has_time, has_event))
    for row in np.flatnonzero(has_time != has_event)[:1]:
        has, lacks = ("a time", "no event") if has_time[row] else ("an event", "no time")
        raise InputError(
            f"row {row} of the target has {has} but {lacks}; give both, or neither where the row "
            "has no label"
        )
    known = has_time & has_event
    for row in np.flatnonzero(known & (time < 0))[:1]:
        raise InputError(f"the time of row {row} is {time[row]:g}; give times of at least 0")
    for row in np.flatnonzero(known & ~np.isin(event, (0, 1)))[:1]:
        raise InputError(
            f"the event of row {row} is {event[row]:g}; give 1 where the event was observed, and 0 "
            "where the row was censored at its time"
        )
    if not event[known].any():
        raise InputError("no event was observed (all rows are censored); nothing can be learned")
    values = np.nan_to_num(np.stack([time, event], axis=1), nan=0.0)
    return TargetData(
        torch.from_numpy(values),
        make_kind(Survival.name, 1),
        None,
        True,
        None if known.all() else known,
    )


def with_weights(target: TargetData, sample_weight: Any, class_weight: Any) -> TargetData:
    """The target with weights of its rows, those of their classes included."""
    n = len(target.values)
    if sample_weight is not None:
        own = check_weights(sample_weight, n)
        labelled = own > 0 if target.labelled is None else target.labelled & (own > 0)
        if not labelled.any():
            raise InputError(
                "sample_weight is zero for every row with a target; give some a weight"
            )
        weights = torch.from_numpy(own / own[labelled].mean())
        known = None if labelled.all() else labelled
        target = replace(target, labelled=known, weights=weights, sample_weight=weights)
    if class_weight is None:
        return target
    if target.classes is None:
        raise InputError(
            f"class_weight needs a target of classes, and this one is of kind {target.kind.name!r}"
        )
    codes = target.values.numpy()
    has = np.ones(n, dtype=bool) if target.labelled is None else target.labelled
    before = np.ones(n) if target.sample_weight is None else target.sample_weight.numpy()
    factor = class_weights(class_weight, codes[has], target.classes, before[has])
    weights = torch.from_numpy(before * factor[codes])
    return replace(target, weights=weights / weights[torch.from_numpy(has)].mean())


def read_named_columns(options: dict[str, Any], data: Any) -> tuple[dict[str, Any], Any]:
    """Options with the values of columns that ``row_groups`` and ``sample_weight`` name.

    The data come without these columns.
    """
    named = {
        name: options[name]
        for name in ("row_groups", "sample_weight")
        if isinstance(options[name], str)
    }
    if named and is_source_like(data) and not isinstance(data, Source):
        target = options["target"]
        columns = [*named.values(), *([] if target is None else _column_names(target, data))]
        data = open_with_metadata(data, list(dict.fromkeys(columns)))
    values = {}
    for name, column in named.items():
        found, data = _columns([column], data, name)
        values[name] = found[column]
        if isinstance(values[name], np.ma.MaskedArray):  # of empty cells, which are refused later
            gaps = np.ma.getmaskarray(values[name])
            values[name] = np.where(gaps, None, values[name].data.astype(object))
    return options | values, data


def _columns(names: Sequence[str], data: Any, option: str) -> tuple[dict[str, Any], Any]:
    """Columns that an option names, and the data without them."""
    return (_from_file if is_source_like(data) else _from_table)(names, data, option)


def _from_table(names: Sequence[str], data: Any, option: str) -> tuple[dict[str, Any], Any]:
    """Columns of a table, and the table without them."""
    columns = [str(column) for column in getattr(data, "columns", ())]
    if not columns:
        raise InputError(
            f"{option}={names[0]!r} names a column, but the data are not a table; "
            f"give the {option} as an array"
        )
    for name in names:
        if columns.count(name) != 1:
            times = "not" if name not in columns else f"{columns.count(name)} times"
            raise InputError(f"{option}={name!r} is {times} among the {len(columns)} columns")
    found = {name: next(c for c in data.columns if str(c) == name) for name in names}
    polars = type(data).__module__.startswith("polars")
    rest = data.drop(*found.values()) if polars else data.drop(columns=list(found.values()))
    return {name: data[column] for name, column in found.items()}, rest


def _from_file(names: Sequence[str], data: Any, option: str) -> tuple[dict[str, Any], Source]:
    """Metadata columns of a file; text is converted to numbers where possible."""
    try:
        source = open_with_metadata(data, list(names))
    except InputError as error:
        where = data if isinstance(data, (str, os.PathLike)) else "the data"
        hint = "open it with ignore=" if isinstance(data, Source) else "name another"
        raise InputError(
            f"{option}={names[0] if len(names) == 1 else list(names)!r} cannot be read as a column "
            f"of {where} ({error}); {hint}, or give the {option} as an array"
        ) from error
    parts = [part for part in read_metadata(source) if part is not None]
    return {
        name: numbers_where_possible(
            np.concatenate([part.column(name).to_numpy(zero_copy_only=False) for part in parts])
        )
        for name in names
    }, source


def numbers_where_possible(y: NDArray) -> NDArray:
    """Text as whole numbers or numbers, if all of it is; empty cells are masked."""
    if y.dtype.kind not in "OU":
        return y
    y = np.array([None if text in ("", None) else text for text in y], dtype=object)
    known = np.array([value is not None for value in y])
    for kind in (np.int64, np.float64):  # in a text file everything is text
        try:
            found = y[known].astype(kind)
        except (TypeError, ValueError, OverflowError):
            continue
        if known.all():
            return found
        whole = np.zeros(len(y), dtype=kind)
        whole[known] = found
        return np.ma.array(whole, mask=~known)
    return y


def _with_gaps(target: Any, what: str = "target") -> tuple[NDArray, NDArray[np.bool_] | None]:
    """The target as an array, and which rows have a label (None is all).

    A row lacks its label if any of its values is missing.
    """
    lacks = target.isna() if hasattr(target, "isna") else None
    lacks = target.is_null() if hasattr(target, "is_null") else lacks
    if isinstance(target, np.ma.MaskedArray):
        lacks, target = np.ma.getmaskarray(target), target.data
    given = target.to_numpy() if hasattr(target, "to_numpy") else target
    if isinstance(given, (list, tuple)):
        given = np.array(given, dtype=object)  # NumPy would make text of mixed values
    y = np.asarray(as_array(given) if isinstance(given, Tensor) else given)
    if y.ndim not in (1, 2) or len(y) == 0:
        raise InputError(f"{what} has shape {y.shape}; give one value, or one row, for each row")
    if y.dtype.kind in "cmMVS":
        raise InputError(f"{what} is of type {y.dtype}; give numbers, text or booleans")
    gaps = np.zeros(y.shape, dtype=bool)
    if lacks is not None:
        gaps |= np.asarray(lacks, dtype=bool).reshape(y.shape)
    if y.dtype.kind == "f":
        gaps |= np.isnan(y)
    elif y.dtype.kind == "O":
        gaps[~gaps] = [_is_missing(value) for value in y[~gaps].flat]
    labelled: NDArray[np.bool_] | None = None
    if gaps.any():
        labelled = ~np.any(gaps.reshape(len(y), -1), axis=1)
    if labelled is not None and not labelled.any():
        raise InputError(f"{what} is missing in every row; give some rows a label")
    if y.dtype.kind == "O":
        y = _plain(y, labelled)
    if y.dtype.kind == "f" and np.isinf(y).any():
        row = int(np.argwhere(np.isinf(y))[0][0])
        raise InputError(
            f"{what} of row {row} is infinite ({y[row].tolist()!r}); give finite numbers, or NaN "
            "where it is not known"
        )
    return y, labelled


def _is_missing(value: Any) -> bool:
    """Whether an object stands for a label that is not known."""
    try:
        return value is None or bool(value != value)  # noqa: PLR0124 (NaN alone differs from itself)
    except (TypeError, ValueError):  # pandas.NA is neither; of an array, no value is the whole
        return type(value).__name__ == "NAType"


def _plain(y: NDArray, labelled: NDArray[np.bool_] | None) -> NDArray:
    """Objects as an array of numbers or text; 0 or empty where there is no label."""
    known = y if labelled is None else y[labelled]
    try:
        plain = np.array(known.tolist())
    except ValueError as error:
        raise InputError(
            f"target holds rows of different lengths ({error}); give one value, or as many values, "
            "for each row"
        ) from error
    if plain.dtype.kind not in "fiub" and not all(isinstance(value, str) for value in known.flat):
        kinds = sorted({type(value).__name__ for value in known.flat})
        raise InputError(f"target mixes {join_and(kinds)}; give one kind of value")
    if labelled is None:
        return plain
    whole = np.zeros((len(y), *plain.shape[1:]), dtype=plain.dtype)
    whole[labelled] = plain
    return whole
