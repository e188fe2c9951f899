"""Panels that predict a target: how they are proposed and compared."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fewer.comparison import Candidate, Rows, repeat_close, trained_decoder
from fewer.constraints import Constraints
from fewer.data import Source, as_array, moments, needs_opening, open, read_aside, read_blocks
from fewer.errors import FewerWarning, InputError, warn
from fewer.nn import Loss, MeasuredDecoder, make_loss
from fewer.search import search
from fewer.strategies import Strategies
from fewer.train import GradientSettings, fit_gradient
from fewer.train.folds import ScaledFold

__all__ = ["TargetComparison", "TargetStrategies", "Wanted", "read_target"]

# what the other features together weigh beside the target: they only break ties
ASIDE = 0.01
MANY_CLASSES = 20


@dataclass(frozen=True, eq=False)
class Wanted:
    """A target made ready: class numbers, or n x m values."""

    values: Tensor
    classes: NDArray | None
    name: str | None
    one: bool

    @property
    def out(self) -> int:
        """Outputs of a predictor."""
        return self.values.shape[1] if self.classes is None else len(self.classes)

    @property
    def loss(self) -> Loss:
        """What a predictor minimises."""
        return make_loss("mse" if self.classes is None else "cross_entropy")

    def columns(self, index: NDArray[np.int64]) -> Tensor:
        """The target of some rows as numbers of comparable weight, centred."""
        part = self.values[torch.from_numpy(index)]
        if self.classes is not None:
            part = nn.functional.one_hot(part, len(self.classes)).double()
            part = part / part.mean(0).clamp_min(1 / len(part)).sqrt()  # rare classes count too
        part = part - part.mean(0)
        return part / part.std(0).clamp_min(1e-300) if self.classes is None else part


def read_target(target: Any, data: Any) -> tuple[Wanted, Any]:
    """The target, and the data without it where it was one of their columns."""
    name = target if isinstance(target, str) else None
    if name is not None:
        target, data = _from_file(name, data) if needs_opening(data) else _from_table(name, data)
    y = _known(target)
    if (y.dtype.kind in "fiub" and y.ndim == 2 and y.shape[1] > 1) or y.dtype.kind == "f":
        values = torch.from_numpy(np.array(y.reshape(len(y), -1), dtype=np.float64))
        if not (values.amax(0) > values.amin(0)).all():
            raise InputError(f"target has one value only, {y.flat[0]!r}; it needs at least 2")
        return Wanted(values, None, name, y.ndim == 1), data
    if y.ndim == 2 and y.shape[1] > 1:
        raise InputError(f"target has {y.shape[1]} columns that are not numbers; give one of them")
    classes, codes = np.unique(y.ravel(), return_inverse=True)
    if len(classes) < 2:
        raise InputError(f"target has one value only, {classes[0]!r}; it needs at least 2")
    if len(classes) > MANY_CLASSES and 2 * len(classes) > len(y):
        warn(
            f"target has {len(classes)} classes in {len(y)} rows, hardly two rows for each; if it "
            "is a quantity, give it as fractions (astype(float))"
        )
    return Wanted(torch.from_numpy(codes.astype(np.int64)), classes, name, True), data


def _from_table(name: str, data: Any) -> tuple[Any, Any]:
    columns = [str(column) for column in getattr(data, "columns", ())]
    if not columns:
        raise InputError(
            f"target={name!r} names a column, but the data are no table; "
            "give the target as an array"
        )
    if columns.count(name) != 1:
        times = "not" if name not in columns else f"{columns.count(name)} times"
        raise InputError(f"target={name!r} is {times} among the {len(columns)} columns")
    found = next(column for column in data.columns if str(column) == name)
    polars = type(data).__module__.startswith("polars")
    return data[found], data.drop(found) if polars else data.drop(columns=found)


def _from_file(name: str, data: Any) -> tuple[Any, Source]:
    """A column of a file that is read beside the features; text in it becomes what it says."""
    try:
        source = data if isinstance(data, Source) else open(data, leave_out=[name])
    except InputError as error:
        raise InputError(
            f"target={name!r} cannot be read as a column of {data} ({error}); "
            "give the target as an array"
        ) from error
    parts = [part for part in read_aside(source) if part is not None]
    if not parts or name not in parts[0].column_names:
        raise InputError(
            f"target={name!r} is not a column that can be read beside the features; open the "
            f"file with fewer.data.open(..., leave_out=[{name!r}]), or give the target as an array"
        )
    y = np.concatenate([part.column(name).to_numpy(zero_copy_only=False) for part in parts])
    if y.dtype.kind not in "OU":
        return y, source
    y = np.array([None if text in ("", None) else text for text in y], dtype=object)
    for kind in (np.int64, np.float64):  # a text file says everything as text
        try:
            return y.astype(kind), source
        except (TypeError, ValueError):
            continue
    return y, source


def _known(target: Any) -> NDArray:
    """The target as an array without gaps."""
    lacks = target.isna() if hasattr(target, "isna") else None
    lacks = target.is_null() if hasattr(target, "is_null") else lacks
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


@dataclass(frozen=True)
class TargetStrategies:
    """Proposals for a target, each from a fold of scaled rows and a seed."""

    plain: Strategies
    wanted: Wanted

    def search(self, fold: ScaledFold, seed: int) -> NDArray[np.int64]:
        """The features that reconstruct the others, which know nothing of the target."""
        return self.plain.search(fold, seed)

    def for_the_target(self, fold: ScaledFold, seed: int) -> NDArray[np.int64]:
        """The search for a line from features to the target.

        The target joins the covariance as columns that cannot be chosen. A choice does not depend
        on the scale of what is chosen, so features made small count for little as targets.
        """
        y = self.wanted.columns(fold.train_index)
        n, d = y.shape[0], len(fold.train)
        cross = torch.zeros(d, y.shape[1], dtype=torch.float64)
        mean = torch.from_numpy((fold.mean.numpy() - fold.center) / fold.scale)
        for rows, x in read_blocks(self.plain.rows(fold)):
            cross += torch.nan_to_num(x - mean, nan=0.0).T @ y[rows]
        own = y.T @ y / n
        small = (ASIDE * own.trace() / fold.train.trace().clamp_min(1e-300)).sqrt()
        top = torch.cat([small**2 * fold.train, small * cross / n], dim=1)
        joint = torch.cat([top, torch.cat([small * cross.T / n, own], dim=1)])
        found = search(
            joint.to(self.plain.device),
            _beside(self.plain.rule, y.shape[1]),
            seed=seed,
            time_limit=self.plain.left(),
        )
        return found.indices

    def gradient(self, fold: ScaledFold, seed: int) -> NDArray[np.int64]:
        """The paper's supervised selector, with the decoder that was asked for."""
        part = self.plain.rows(fold)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FewerWarning)
            fit = fit_gradient(
                part,
                moments(part),
                replace(self.plain.settings, refit="none"),
                loss=self.wanted.loss,
                seed=seed,
                targets=self.wanted.values[torch.from_numpy(fold.train_index)],
                out=self.wanted.out,
                rule=self.plain.rule,
            )
        return fit.columns


class TargetComparison:
    """Predictors of the target, trained on each proposal and compared on held-out rows.

    Parameters
    ----------
    rows : callable
        Scaled rows of a fold.
    rule : Constraints
        Of the panels.
    settings : GradientSettings
        Of the predictor and its training.
    seed : int
        Of the first training; later ones count on from it.
    wanted : Wanted
        The target.
    """

    def __init__(
        self, rows: Rows, rule: Constraints, settings: GradientSettings, seed: int, wanted: Wanted
    ) -> None:
        self.rows, self.rule, self.settings = rows, rule, settings
        self.seed, self.wanted = seed, wanted
        # several numbers count the same whatever their units; one stays in its own
        several = wanted.classes is None and wanted.out > 1
        self.unit = wanted.values.var(0) if several else torch.ones(1)

    def measure(self, candidate: Candidate, folds: Sequence[ScaledFold]) -> None:
        """Held-out loss: cross-entropy, or mean squared error."""
        candidate.errors = self._errors(candidate, folds, 0)

    def settle(self, candidates: Sequence[Candidate], folds: Sequence[ScaledFold]) -> None:
        """Train again from other starts where candidates are closer than luck."""
        repeat_close(candidates, lambda c, repeat: self._errors(c, folds, repeat))

    def fitted(
        self, candidate: Candidate, columns: NDArray[np.int64], fold: ScaledFold
    ) -> MeasuredDecoder:
        """The predictor for scaled rows."""
        return self._trained(columns, fold, self.seed)

    def score(self, candidate: Candidate, folds: Sequence[ScaledFold]) -> float:
        """Accuracy, or R squared, on held-out rows."""
        outputs, truths = [], []
        for fold, panel in zip(folds, candidate.panels, strict=True):
            decoder = self._trained(panel, fold, self.seed)
            outputs.append(_outputs(decoder, self.rows(fold, fold.held_index), panel))
            truths.append(self.wanted.values[torch.from_numpy(fold.held_index)])
        output, truth = torch.cat(outputs), torch.cat(truths)
        if self.wanted.classes is not None:
            return float((output.argmax(1) == truth).double().mean())
        spread = (truth - truth.mean(0)).square().sum(0).clamp_min(1e-300)
        return 1.0 - float(((output - truth).square().sum(0) / spread).mean())

    def _errors(self, candidate: Candidate, folds: Sequence[ScaledFold], more: int) -> list[float]:
        found = []
        for fold, panel in zip(folds, candidate.panels, strict=True):
            decoder = self._trained(panel, fold, self.seed + more)
            output = _outputs(decoder, self.rows(fold, fold.held_index), panel)
            truth = self.wanted.values[torch.from_numpy(fold.held_index)]
            if self.wanted.classes is None:
                found.append(float(((output - truth).square() / self.unit).mean()))
            else:
                chance = output.gather(1, truth[:, None]).clamp_min(1e-9)
                found.append(float(-chance.log().mean()))
        return found

    def _trained(self, columns: NDArray[np.int64], fold: ScaledFold, seed: int) -> MeasuredDecoder:
        return trained_decoder(
            self.rows(fold, fold.train_index),
            columns,
            self.settings,
            self.wanted.loss,
            seed,
            self.wanted.values[torch.from_numpy(fold.train_index)],
            self.wanted.out,
        )


@torch.no_grad()
def _outputs(decoder: MeasuredDecoder, source: Source, panel: NDArray[np.int64]) -> Tensor:
    return torch.cat([decoder(x[:, panel]) for _, x in read_blocks(source)])


def _beside(rule: Constraints, more: int) -> Constraints:
    """The same rule where ``more`` columns follow that cannot be chosen."""
    d = rule.d + more
    groups = rule.groups
    if groups is not None:
        groups = np.concatenate([groups, groups.max() + 1 + np.arange(more)])
    costs = rule.costs
    if costs is not None:
        costs = np.concatenate([costs, np.zeros(more)])
    shut = np.concatenate([rule.exclude, np.arange(rule.d, d)])
    return replace(rule, d=d, exclude=shut, costs=costs, groups=groups)
