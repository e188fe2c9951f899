"""The target of a selection, given as an array or by name, prepared for training."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fewer._checks import join_names
from fewer.data import Source
from fewer.data.open import is_source_like, open_with_metadata
from fewer.data.source import read_metadata
from fewer.data.tables import as_array
from fewer.errors import InputError, warn
from fewer.nn import Loss, make_loss
from fewer.train.training_data import check_weights, class_weights, weighted_mean

__all__ = ["TargetData", "read_target", "with_weights"]

MANY_CLASSES = 20

Rows = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class TargetData:
    """A target prepared for training.

    Rows without a label, and rows of weight 0, neither train predictors nor score them; they still
    count in the reconstruction of the features.
    """

    values: Tensor  # class numbers (n), or numbers (n x m); any number where there is no label
    classes: NDArray | None  # labels of the classes; None for numbers
    name: str | None  # of its column
    one: bool  # whether it was given as a single column
    labelled: NDArray[np.bool_] | None = None  # which rows have a label; None is all
    weights: Tensor | None = None  # of rows in training and comparison
    sample_weight: Tensor | None = None  # of rows in scores: the same, without those of classes

    @property
    def outputs(self) -> int:
        """Number of outputs of a predictor."""
        return self.values.shape[1] if self.classes is None else len(self.classes)

    @property
    def loss(self) -> Loss:
        """What a predictor minimises."""
        return make_loss("mse" if self.classes is None else "cross_entropy")

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
                values = self.values[torch.from_numpy(rows)].reshape(len(rows), -1)
                if what == "training" and not (values.amax(0) > values.amin(0)).all():
                    raise InputError(
                        f"target: the labels {which} are all the same; shuffle the rows, or use "
                        "another validation= or fewer folds"
                    )

    def spread(self, index: Rows) -> Tensor:
        """Scale of the target on some rows, so that several numbers count the same."""
        if self.classes is not None or self.outputs == 1:
            return torch.ones((), dtype=torch.float64)
        spread = self.values[torch.from_numpy(self.rows(index))].std(0)
        return torch.where(spread > 0, spread, 1.0)

    def in_units_of(self, index: Rows) -> Tensor:
        """The target of some rows; several numbers are scaled to unit variance."""
        values = self.values[torch.from_numpy(index)]
        return values if self.classes is not None else values / self.spread(index)

    def centred(self, index: Rows) -> Tensor:
        """The target of some rows as centred numbers of comparable weight; 0 without a label."""
        part = self.values[torch.from_numpy(index)]
        weights = self.all_weights(index)
        if weights is not None:
            weights = weights / weights.sum()
        if self.classes is not None:
            part = nn.functional.one_hot(part, len(self.classes)).double()
            share = weighted_mean(part, weights)
            part = part / share.clamp_min(1 / len(part)).sqrt()  # rare classes count too
        part = part - weighted_mean(part, weights)
        if self.classes is None and weights is None:
            part = part / part.std(0).clamp_min(1e-300)
        elif self.classes is None:
            part = part / weighted_mean(part.square(), weights).sqrt().clamp_min(1e-300)
        return (
            part
            if self.labelled is None
            else part * torch.from_numpy(self.labelled[index])[:, None]
        )


def read_target(target: Any, data: Any) -> tuple[TargetData, Any]:
    """The target, and the data without it where it was one of their columns."""
    name = target if isinstance(target, str) else None
    if name is not None:
        target, data = _from_file(name, data) if is_source_like(data) else _from_table(name, data)
    y, labelled = _with_gaps(target)
    known = y if labelled is None else y[labelled]
    if (y.dtype.kind in "fiub" and y.ndim == 2 and y.shape[1] > 1) or y.dtype.kind == "f":
        values = torch.from_numpy(np.array(y.reshape(len(y), -1), dtype=np.float64))
        values.nan_to_num_(nan=0.0)
        seen = values if labelled is None else values[torch.from_numpy(labelled)]
        if not (seen.amax(0) > seen.amin(0)).all():
            raise InputError(f"target has one value only, {known.flat[0]!r}; it needs at least 2")
        return TargetData(values, None, name, y.ndim == 1, labelled), data
    if y.ndim == 2 and y.shape[1] > 1:
        raise InputError(f"target has {y.shape[1]} columns that are not numbers; give one of them")
    classes, found = np.unique(known.ravel(), return_inverse=True)
    if len(classes) < 2:
        raise InputError(f"target has one value only, {classes[0]!r}; it needs at least 2")
    if len(classes) > MANY_CLASSES and 2 * len(classes) > len(found):
        warn(
            f"target has {len(classes)} classes in {len(found)} rows, hardly two rows per class; "
            "if it is a quantity, convert it to floating-point numbers (astype(float))"
        )
    elif (np.bincount(found) == 1).any():
        rare = classes[np.bincount(found) == 1]
        warn(
            f"classes of target with a single row: {join_names(rare.tolist())}; each is either "
            "learned or tested, never both; drop these rows, or merge the classes with others"
        )
    codes = np.zeros(len(y), dtype=np.int64)
    codes[slice(None) if labelled is None else labelled] = found
    return TargetData(torch.from_numpy(codes), classes, name, True, labelled), data


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
        raise InputError("class_weight needs a target of classes, and this one is of numbers")
    codes = target.values.numpy()
    has = np.ones(n, dtype=bool) if target.labelled is None else target.labelled
    before = np.ones(n) if target.sample_weight is None else target.sample_weight.numpy()
    factor = class_weights(class_weight, codes[has], target.classes, before[has])
    weights = torch.from_numpy(before * factor[codes])
    return replace(target, weights=weights / weights[torch.from_numpy(has)].mean())


def _from_table(name: str, data: Any) -> tuple[Any, Any]:
    columns = [str(column) for column in getattr(data, "columns", ())]
    if not columns:
        raise InputError(
            f"target={name!r} names a column, but the data are not a table; "
            "give the target as an array"
        )
    if columns.count(name) != 1:
        times = "not" if name not in columns else f"{columns.count(name)} times"
        raise InputError(f"target={name!r} is {times} among the {len(columns)} columns")
    found = next(column for column in data.columns if str(column) == name)
    polars = type(data).__module__.startswith("polars")
    return data[found], data.drop(found) if polars else data.drop(columns=found)


def _from_file(name: str, data: Any) -> tuple[Any, Source]:
    """A metadata column of a file; text is converted to numbers where possible."""
    try:
        source = open_with_metadata(data, [name])
    except InputError as error:
        where = data if isinstance(data, (str, os.PathLike)) else "the data"
        hint = "open it with ignore=" if isinstance(data, Source) else "name another"
        raise InputError(
            f"target={name!r} cannot be read as a column of {where} ({error}); {hint}, or give the "
            "target as an array"
        ) from error
    parts = [part for part in read_metadata(source) if part is not None]
    y = np.concatenate([part.column(name).to_numpy(zero_copy_only=False) for part in parts])
    if y.dtype.kind not in "OU":
        return y, source
    y = np.array([None if text in ("", None) else text for text in y], dtype=object)
    known = np.array([value is not None for value in y])
    for kind in (np.int64, np.float64):  # in a text file everything is text
        try:
            found = y[known].astype(kind)
        except (TypeError, ValueError):
            continue
        if known.all():
            return found, source
        whole = np.zeros(len(y), dtype=kind)
        whole[known] = found
        return np.ma.array(whole, mask=~known), source
    return y, source


def _with_gaps(target: Any) -> tuple[NDArray, NDArray[np.bool_] | None]:
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
        raise InputError(f"target has shape {y.shape}; give one value, or one row, for each row")
    if y.dtype.kind in "cmMVS":
        raise InputError(f"target is of type {y.dtype}; give numbers, text or booleans")
    gaps = np.zeros(y.shape, dtype=bool)
    if lacks is not None:
        gaps |= np.asarray(lacks, dtype=bool).reshape(y.shape)
    if y.dtype.kind == "f":
        gaps |= np.isnan(y)
    elif y.dtype.kind == "O":
        # NaN alone differs from itself
        gaps[~gaps] = [value is None or bool(value != value) for value in y[~gaps].flat]  # noqa: PLR0124
    labelled: NDArray[np.bool_] | None = None
    if gaps.any():
        labelled = ~np.any(gaps.reshape(len(y), -1), axis=1)
    if labelled is not None and not labelled.any():
        raise InputError("target is missing in every row; give some rows a label")
    if y.dtype.kind == "O":
        y = _plain(y, labelled)
    if y.dtype.kind == "f" and np.isinf(y).any():
        row = int(np.argwhere(np.isinf(y))[0][0])
        raise InputError(
            f"target of row {row} is infinite ({y[row]!r}); give finite numbers, or NaN where it "
            "is not known"
        )
    return y, labelled


def _plain(y: NDArray, labelled: NDArray[np.bool_] | None) -> NDArray:
    """Objects as an array of numbers or text; 0 or empty where there is no label."""
    known = y if labelled is None else y[labelled]
    plain = np.array(known.tolist())
    if plain.dtype.kind not in "fiub" and not all(isinstance(value, str) for value in known.flat):
        kinds = sorted({type(value).__name__ for value in known.flat})
        raise InputError(f"target mixes {' and '.join(kinds)}; give one kind of value")
    if labelled is None:
        return plain
    whole = np.zeros((len(y), *plain.shape[1:]), dtype=plain.dtype)
    whole[labelled] = plain
    return whole
