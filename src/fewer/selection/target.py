"""The target of a selection, given as an array or by name, prepared for training."""

import os
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fewer.data import Source
from fewer.data.open import is_source_like, open_with_metadata
from fewer.data.source import read_metadata
from fewer.data.tables import as_array
from fewer.errors import InputError, warn
from fewer.nn import Loss, make_loss
from fewer.train.refine import centred_classes

__all__ = ["TargetData", "read_target"]

MANY_CLASSES = 20


@dataclass(frozen=True, eq=False)
class TargetData:
    """A target prepared for training."""

    values: Tensor  # class numbers (n), or numbers (n x m)
    classes: NDArray | None  # labels of the classes; None for numbers
    name: str | None  # of its column
    one: bool  # whether it was given as a single column

    @property
    def outputs(self) -> int:
        """Number of outputs of a predictor."""
        return self.values.shape[1] if self.classes is None else len(self.classes)

    @property
    def loss(self) -> Loss:
        """What a predictor minimises."""
        return make_loss("mse" if self.classes is None else "cross_entropy")

    def spread(self, index: NDArray[np.int64]) -> Tensor:
        """Scale of the target on some rows, so that several numbers count the same."""
        if self.classes is not None or self.outputs == 1:
            return torch.ones((), dtype=torch.float64)
        spread = self.values[torch.from_numpy(index)].std(0)
        return torch.where(spread > 0, spread, 1.0)

    def in_units_of(self, index: NDArray[np.int64]) -> Tensor:
        """The target of some rows; several numbers are scaled to unit variance."""
        values = self.values[torch.from_numpy(index)]
        return values if self.classes is not None else values / self.spread(index)

    def centred(self, index: NDArray[np.int64]) -> Tensor:
        """The target of some rows as centred numbers of comparable weight."""
        part = self.values[torch.from_numpy(index)]
        if self.classes is not None:
            return centred_classes(part, len(self.classes))
        part = part - part.mean(0)
        return part / part.std(0).clamp_min(1e-300)


def read_target(target: Any, data: Any) -> tuple[TargetData, Any]:
    """The target, and the data without it where it was one of their columns."""
    name = target if isinstance(target, str) else None
    if name is not None:
        target, data = _from_file(name, data) if is_source_like(data) else _from_table(name, data)
    y = _without_gaps(target)
    if (y.dtype.kind in "fiub" and y.ndim == 2 and y.shape[1] > 1) or y.dtype.kind == "f":
        values = torch.from_numpy(np.array(y.reshape(len(y), -1), dtype=np.float64))
        if not (values.amax(0) > values.amin(0)).all():
            raise InputError(f"target has one value only, {y.flat[0]!r}; it needs at least 2")
        return TargetData(values, None, name, y.ndim == 1), data
    if y.ndim == 2 and y.shape[1] > 1:
        raise InputError(f"target has {y.shape[1]} columns that are not numbers; give one of them")
    classes, codes = np.unique(y.ravel(), return_inverse=True)
    if len(classes) < 2:
        raise InputError(f"target has one value only, {classes[0]!r}; it needs at least 2")
    if len(classes) > MANY_CLASSES and 2 * len(classes) > len(y):
        warn(
            f"target has {len(classes)} classes in {len(y)} rows, hardly two rows per class; if it "
            "is a quantity, convert it to floating-point numbers (astype(float))"
        )
    return TargetData(torch.from_numpy(codes.astype(np.int64)), classes, name, True), data


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
    for kind in (np.int64, np.float64):  # in a text file everything is text
        try:
            return y.astype(kind), source
        except (TypeError, ValueError):
            continue
    return y, source


def _without_gaps(target: Any) -> NDArray:
    """The target as an array without gaps."""
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
        gaps |= ~np.isfinite(y)
    elif y.dtype.kind == "O" and lacks is None:
        # NaN alone differs from itself
        gaps |= np.array([value is None for value in y.flat]).reshape(y.shape) | (y != y)  # noqa: PLR0124
    if gaps.any():
        row = int(np.argwhere(gaps)[0][0])
        raise InputError(f"target of row {row} is {y[row]!r}; drop rows without a target")
    if y.dtype.kind != "O":
        return y
    plain = np.array(y.tolist())
    if plain.dtype.kind in "fiub" or all(isinstance(value, str) for value in y.flat):
        return plain
    kinds = sorted({type(value).__name__ for value in y.flat})
    raise InputError(f"target mixes {' and '.join(kinds)}; give one kind of value")
