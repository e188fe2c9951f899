"""The target of a selection, given as an array or by name, prepared for training."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fewer._checks import check_number, join_names
from fewer.data import Source
from fewer.data.columns import LARGEST, SMALLEST
from fewer.data.open import is_source_like, open_with_metadata
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
    check_aligned,
    check_counts,
    holds_whole_numbers,
    is_structured,
    named_columns,
    read_survival,
    with_gaps,
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
        check_aligned(target, data)
    if names:
        kinds = kind if isinstance(kind, Mapping) else dict.fromkeys(names, kind)
        numbers = [name for name in names if kinds.get(name, "auto") not in ("auto", Classes.name)]
        found, data = named_columns(names, data, "target", numbers)
        target = found if len(found) > 1 else found[names[0]]
        name = names[0] if len(found) == 1 or kind == Survival.name else None
    columns = tuple(names)
    if kind == Survival.name or is_structured(target):
        return replace(_survival(target), name=name, columns=columns), data
    if (parts := _as_parts(target, kind, weight)) is not None:
        return replace(_several(parts, kind, weight), columns=columns), data
    if weight is not None:
        raise InputError("target_weight is for several targets; give them as a mapping or a table")
    return replace(_single(target, kind), name=name, columns=columns), data


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
    labels = column_names_of(target)
    columns = [str(label) for label in labels]
    if len(columns) < 2:
        return None
    if len(set(columns)) < len(columns):
        raise InputError(f"target has columns of the same name: {join_names(columns)}")
    parts = dict(zip(columns, (target[label] for label in labels), strict=True))
    same = isinstance(kind, str) and weight is None
    plain = same and kind in (Numbers.name, Counts.name)
    floats = (
        np.asarray(part).dtype.kind == "f" and not holds_whole_numbers(part)
        for part in parts.values()
    )
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
    y, labelled = with_gaps(target)
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
        check_counts(values.numpy(), labelled, "target")
    largest = float(seen.abs().max())
    if largest > LARGEST:
        raise InputError(
            f"target has values up to {largest:.1e}, too large to be squared; divide it by a "
            f"constant such as {10.0 ** np.floor(np.log10(largest)):.0e}"
        )
    if not (seen.amax(0) > seen.amin(0)).all():
        first = y.flat[0] if labelled is None else y[labelled].flat[0]
        raise InputError(f"target has one value only, {first.item()!r}; it needs at least 2")
    if not (seen.amax(0) - seen.amin(0) > SMALLEST).all():
        raise InputError(
            f"the values of target differ by less than {SMALLEST:.0e}, whose squares are rounded "
            f"to 0; multiply them by a constant such as {1 / SMALLEST:.0e}"
        )
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


def _survival(target: Any) -> TargetData:
    """Times and events."""
    values, labelled = read_survival(target)
    if not values[slice(None) if labelled is None else labelled, 1].any():
        raise InputError("no event was observed (all rows are censored); nothing can be learned")
    kind = make_kind(Survival.name, 1)
    return TargetData(torch.from_numpy(values), kind, None, True, labelled)


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
        found, data = named_columns([column], data, name, named.values())
        values[name] = found[column]
        if isinstance(values[name], np.ma.MaskedArray):  # of empty cells, which are refused later
            gaps = np.ma.getmaskarray(values[name])
            values[name] = np.where(gaps, None, values[name].data.astype(object))
    return options | values, data
