"""Kinds of target: what a predictor minimises, how it is scored, and what a search sees of it.

A kind works on the values of a target and on the outputs of its predictor, in the units of the
target: probabilities of classes, numbers, rates of counts, or log hazards.

========  ====================================  =========  ===================================
kind      loss                                  output     score
========  ====================================  =========  ===================================
class     cross-entropy                         softmax    accuracy
number    squared error                         as it is   R²
count     Poisson deviance                      exp        D², of the deviance
ordinal   adjacent-category logits; networks:   softmax    D², of the absolute error in ranks
          cross-entropy and ranked probability
          score
survival  Cox's partial likelihood, Efron ties  as it is   concordance (Harrell's C)
several   the weighted mean of their losses,    each       the weighted mean of their scores
          relative to constant predictions
========  ====================================  =========  ===================================
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate, pairwise
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import one_hot

from fewer.errors import InputError
from fewer.nn import Loss, make_loss
from fewer.nn.losses import cox_loss, ordinal_entries
from fewer.train.training_data import weighted_mean

__all__ = [
    "KINDS",
    "Classes",
    "Counts",
    "Kind",
    "Numbers",
    "Ordinal",
    "Part",
    "Several",
    "Survival",
    "concordance",
    "make_kind",
    "survival_by_risk",
]

TINY = 1e-30
LEAST = 1e-9  # probability, and rate, of which the logarithm is taken
CURVE = 100  # points of a survival curve
PAIRS = 2**24  # rows times rows that are compared at once


@dataclass(frozen=True, eq=False)
class Kind:
    """What all kinds have; ``classes`` are the labels of classes and ordered classes."""

    outputs: int
    classes: NDArray | None = None

    name: ClassVar[str] = ""
    loss_name: ClassVar[str] = ""  # in words
    metric: ClassVar[str] = ""  # of its score
    metric_note: ClassVar[str] = ""
    link: ClassVar[str | None] = None

    @property
    def width(self) -> int:
        """Columns of its values, where they lie beside those of others."""
        return 1

    def loss(self, smoothing: float = 0.0) -> Loss:
        """What a predictor minimises."""
        raise NotImplementedError

    def response(self, values: Tensor, weights: Tensor | None) -> Tensor:
        """Centred numbers (n x m) that a least-squares search predicts instead.

        The weights of the rows, if any, add up to 1.
        """
        raise NotImplementedError

    def error(
        self, output: Tensor, values: Tensor, weights: Tensor | None, unit: Tensor | None = None
    ) -> float:
        """Loss of outputs, for comparisons; several numbers in units of their variance."""
        raise NotImplementedError

    def score(self, output: Tensor, values: Tensor, weights: Tensor | None) -> float:
        """How good outputs are, at most 1; see the table above."""
        raise NotImplementedError

    def constant(self, values: Tensor, weights: Tensor | None) -> Tensor:
        """The best output (1 x outputs) that is the same for all rows."""
        raise NotImplementedError

    def misses(self, output: Tensor, values: Tensor) -> Tensor | None:
        """How far outputs are from the truth, for conformal prediction; None if it is not known."""
        raise NotImplementedError

    def predict(self, output: NDArray) -> NDArray:
        """The prediction for each row: a class, or numbers (n x m)."""
        return output

    def bounds(self, output: NDArray, margin: NDArray) -> tuple[NDArray, NDArray]:
        """Lower and upper bounds of numbers, from what `misses` allows."""
        remedy = "leave it out" if self.classes is None else "predict_set gives sets of classes"
        raise InputError(
            f"interval is for numbers and counts, and this target is of kind {self.name!r}; "
            + remedy
        )

    def numbers(self, values: Tensor) -> Tensor | None:
        """The values as they were given (n x m), where they are numbers."""
        return values

    def null(self, values: Tensor, weights: Tensor | None) -> float:
        """Error of a constant prediction, as a unit."""
        fixed = self.constant(values, weights).expand(len(values), -1)
        return self.error(fixed, values, weights) or 1.0

    def of_part(self, values: Tensor) -> Tensor:
        """The values (n x width) as this kind has them by itself."""
        return values

    def for_training(self, values: Tensor) -> Tensor:
        """The values in a form that float32 holds."""
        return values

    def check_part(self, values: Tensor, training: bool) -> str | None:
        """Why some rows, in the place of {}, cannot be used, if so."""
        rows = values.reshape(len(values), -1)
        same = not (rows.amax(0) > rows.amin(0)).all()
        return "the labels {} are all the same" if training and same else None


class Classes(Kind):
    """Unordered classes, as numbers of their labels."""

    name, metric, link = "class", "accuracy", "softmax"
    loss_name = "cross-entropy"

    def loss(self, smoothing: float = 0.0) -> Loss:
        """Cross-entropy."""
        return make_loss("cross_entropy", smoothing=smoothing)

    def response(self, values: Tensor, weights: Tensor | None) -> Tensor:
        """Indicators, scaled so that rare classes count too."""
        part = one_hot(values.long(), self.outputs).double()
        share = weighted_mean(part, weights)
        part = part / share.clamp_min(1 / len(part)).sqrt()
        return part - weighted_mean(part, weights)

    def error(
        self, output: Tensor, values: Tensor, weights: Tensor | None, unit: Tensor | None = None
    ) -> float:
        """Cross-entropy."""
        likelihood = output.gather(1, values.long()[:, None]).clamp_min(LEAST)
        return float(-weighted_mean(likelihood.log(), weights))

    def score(self, output: Tensor, values: Tensor, weights: Tensor | None) -> float:
        """Accuracy."""
        right = (output.argmax(1) == values).double()[:, None]
        return float(weighted_mean(right, weights))

    def constant(self, values: Tensor, weights: Tensor | None) -> Tensor:
        """Shares of the classes."""
        return weighted_mean(one_hot(values.long(), self.outputs).double(), weights)[None]

    def misses(self, output: Tensor, values: Tensor) -> Tensor:
        """1 less the probability of the true class."""
        return 1 - output.gather(1, values.long()[:, None])

    def predict(self, output: NDArray) -> NDArray:
        """The most likely class."""
        assert self.classes is not None
        return self.classes[self.ranks(output)]

    def ranks(self, output: NDArray) -> NDArray[np.int64]:
        """Numbers of the predicted classes."""
        return output.argmax(axis=1)

    def of_part(self, values: Tensor) -> Tensor:
        """A vector of numbers of classes."""
        return values[:, 0].long()

    def numbers(self, values: Tensor) -> Tensor | None:
        """The labels, where they are numbers."""
        assert self.classes is not None
        if self.classes.dtype.kind not in "fiub":
            return None
        return torch.from_numpy(self.classes.astype(np.float64))[values.long()][:, None]


class Ordinal(Classes):
    """Ordered classes."""

    name, metric, metric_note = "ordinal", "D²", "of the absolute error in ranks"

    def loss(self, smoothing: float = 0.0) -> Loss:
        """Cross-entropy and ranked probability score."""
        entries = partial(ordinal_entries, smoothing=smoothing)
        return Loss("ordinal", entries, link="softmax", smoothing=smoothing)

    def response(self, values: Tensor, weights: Tensor | None) -> Tensor:
        """Mid-ranks."""
        share = weighted_mean(one_hot(values.long(), self.outputs).double(), weights)
        ranks = share.cumsum(0) - share / 2
        return standardised(ranks[values.long()][:, None], weights)

    def error(
        self, output: Tensor, values: Tensor, weights: Tensor | None, unit: Tensor | None = None
    ) -> float:
        """The loss, of probabilities."""
        each = ordinal_entries(output.clamp_min(LEAST).log(), values.long())[:, None]
        return float(weighted_mean(each, weights))

    def score(self, output: Tensor, values: Tensor, weights: Tensor | None) -> float:
        """1 less the mean absolute error in ranks, relative to that of the best constant."""
        found = torch.from_numpy(self.ranks(output.numpy()))
        levels = torch.arange(self.outputs)
        gaps = (
            torch.cat([levels.expand(len(values), -1), found[:, None]], 1) - values[:, None]
        ).abs()
        *fixed, own = weighted_mean(gaps.double(), weights).tolist()
        return 1.0 - own / min(fixed) if min(fixed) > 0 else float(own == 0)

    def ranks(self, output: NDArray) -> NDArray[np.int64]:
        """The median, which has the lowest absolute error to expect."""
        return np.minimum((output.cumsum(axis=1) < 0.5).sum(axis=1), self.outputs - 1)


class Numbers(Kind):
    """One number, or several of the same kind."""

    name, metric, loss_name = "number", "R²", "mean squared error"

    @property
    def width(self) -> int:
        """Columns of its values."""
        return self.outputs

    def loss(self, smoothing: float = 0.0) -> Loss:
        """Squared error."""
        return make_loss("mse")

    def response(self, values: Tensor, weights: Tensor | None) -> Tensor:
        """The numbers themselves."""
        return standardised(values, weights)

    def error(
        self, output: Tensor, values: Tensor, weights: Tensor | None, unit: Tensor | None = None
    ) -> float:
        """Mean squared error."""
        squares = (output - values).square()
        squares = squares if unit is None else squares / unit
        return float(weighted_mean(squares, weights).mean())

    def score(self, output: Tensor, values: Tensor, weights: Tensor | None) -> float:
        """R², the mean over several numbers."""
        middle = weighted_mean(values, weights)
        spread = weighted_mean((values - middle).square(), weights).clamp_min(1e-300)
        return 1.0 - float((weighted_mean((output - values).square(), weights) / spread).mean())

    def constant(self, values: Tensor, weights: Tensor | None) -> Tensor:
        """Means."""
        return weighted_mean(values.double(), weights)[None]

    def misses(self, output: Tensor, values: Tensor) -> Tensor:
        """Absolute errors."""
        return (output - values).abs()

    def bounds(self, output: NDArray, margin: NDArray) -> tuple[NDArray, NDArray]:
        """The same distance for all rows."""
        return output - margin, output + margin


class Counts(Numbers):
    """Whole numbers of at least 0."""

    name, metric, metric_note, link = "count", "D²", "of the Poisson deviance", "exp"
    loss_name = "negative log-likelihood (Poisson)"

    def loss(self, smoothing: float = 0.0) -> Loss:
        """Negative log likelihood of Poisson, up to a constant."""
        return make_loss("poisson")

    def response(self, values: Tensor, weights: Tensor | None) -> Tensor:
        """Logarithms of the counts plus 1."""
        return standardised(values.log1p(), weights)

    def error(
        self, output: Tensor, values: Tensor, weights: Tensor | None, unit: Tensor | None = None
    ) -> float:
        """Half the Poisson deviance."""
        return float(self._deviance(output, values, weights).mean()) / 2

    def score(self, output: Tensor, values: Tensor, weights: Tensor | None) -> float:
        """1 less the deviance relative to that of the mean."""
        own = self._deviance(output, values, weights)
        fixed = self._deviance(self.constant(values, weights), values, weights)
        return 1.0 - float((own / fixed.clamp_min(1e-300)).mean())

    def _deviance(self, output: Tensor, values: Tensor, weights: Tensor | None) -> Tensor:
        rate = output.clamp_min(LEAST)
        each = 2 * (torch.xlogy(values, values / rate) - values + rate)
        return weighted_mean(each, weights)

    def misses(self, output: Tensor, values: Tensor) -> Tensor:
        """Absolute errors relative to the root of the rate."""
        return (output - values).abs() / output.clamp_min(LEAST).sqrt()

    def bounds(self, output: NDArray, margin: NDArray) -> tuple[NDArray, NDArray]:
        """Wider for higher rates."""
        wide = margin * np.sqrt(np.maximum(output, LEAST))
        return np.maximum(output - wide, 0.0), output + wide


class Survival(Kind):
    """Times until an event, or until a row was censored: (time, event) per row."""

    name, metric, metric_note = "survival", "concordance", "Harrell's C"
    loss_name = "negative log partial likelihood (Cox)"

    @property
    def width(self) -> int:
        """Time and event."""
        return 2

    def loss(self, smoothing: float = 0.0) -> Loss:
        """Cox's partial likelihood."""
        return Loss("cox", _no_entries, whole=cox_loss)

    def response(self, values: Tensor, weights: Tensor | None) -> Tensor:
        """Martingale residuals of the model without features: events less those to expect."""
        time, event = values.T.double()
        weight = torch.full_like(time, 1 / len(time)) if weights is None else weights
        times, at = torch.unique(time, return_inverse=True)
        zeros = torch.zeros_like(times)
        events = zeros.index_add(0, at, weight * event)
        at_risk = zeros.index_add(0, at, weight).flip(0).cumsum(0).flip(0)
        hazard = (events / at_risk.clamp_min(TINY)).cumsum(0)
        return standardised((event - hazard[at])[:, None], weights)

    def error(
        self, output: Tensor, values: Tensor, weights: Tensor | None, unit: Tensor | None = None
    ) -> float:
        """Negative log partial likelihood per event."""
        return float(cox_loss(output.double(), values.double(), weights))

    def score(self, output: Tensor, values: Tensor, weights: Tensor | None) -> float:
        """Share of pairs of rows whose events come in the order of their hazards."""
        return concordance(values, output[:, 0], weights)

    def constant(self, values: Tensor, weights: Tensor | None) -> Tensor:
        """No row has a higher hazard than any other."""
        return torch.zeros(1, 1, dtype=torch.float64)

    def misses(self, output: Tensor, values: Tensor) -> None:
        """Hazards are not observed."""

    def numbers(self, values: Tensor) -> Tensor | None:
        """The times."""
        return values[:, :1]

    def for_training(self, values: Tensor) -> Tensor:
        """Ranks instead of times: only their order counts."""
        ranks = torch.unique(values[:, 0], return_inverse=True)[1]
        return torch.stack([ranks.to(values), values[:, 1]], dim=1)

    def null(self, values: Tensor, weights: Tensor | None) -> float:
        """One unit of log likelihood per event: what can be explained is not known."""
        return 1.0

    def check_part(self, values: Tensor, training: bool) -> str | None:
        """Events are needed to learn from, and to compare with."""
        return None if values[:, 1].any() else "no event was observed {}"


@dataclass(frozen=True, eq=False)
class Part:
    """One of several targets; its score on held-out rows is known after a selection."""

    name: str
    kind: Kind
    weight: float = 1.0  # those of all parts add up to 1
    held_out: float | None = None


@dataclass(frozen=True, eq=False)
class Several(Kind):
    """Targets of different kinds, whose values and outputs lie side by side."""

    parts: tuple[Part, ...] = ()
    scales: tuple[float, ...] = ()  # loss of constant predictions, by part

    name, metric, metric_note = "several", "mean score", "weighted mean over the targets"
    loss_name = "weighted mean loss"

    @classmethod
    def of(cls, parts: Sequence[Part]) -> "Several":
        """Several targets, with weights that add up to 1."""
        total = sum(part.weight for part in parts)
        own = tuple(replace(part, weight=part.weight / total) for part in parts)
        outputs = sum(part.kind.outputs for part in parts)
        return cls(outputs, parts=own, scales=(1.0,) * len(own))

    @property
    def width(self) -> int:
        """Columns of the values of all parts."""
        return sum(part.kind.width for part in self.parts)

    def outputs_of_parts(self, output: Any) -> list[tuple[Part, Any]]:
        """Each part with its outputs."""
        ends = accumulate((part.kind.outputs for part in self.parts), initial=0)
        pairs = zip(self.parts, pairwise(ends), strict=True)
        return [(part, output[:, a:b]) for part, (a, b) in pairs]

    def split(self, values: Tensor) -> list[Tensor]:
        """The values of each part."""
        found = values.split([part.kind.width for part in self.parts], dim=1)
        return [part.kind.of_part(own) for part, own in zip(self.parts, found, strict=True)]

    def each(self, output: Any, values: Tensor) -> list[tuple[Part, Any, Tensor]]:
        """Each part with its outputs and its values."""
        pairs = zip(self.outputs_of_parts(output), self.split(values), strict=True)
        return [(part, own, truth) for (part, own), truth in pairs]

    def fitted(self, values: Tensor, weights: Tensor | None) -> "Several":
        """With the losses of constant predictions on these rows as units."""
        parts = zip(self.parts, self.split(values), strict=True)
        return replace(self, scales=tuple(part.kind.null(own, weights) for part, own in parts))

    def scored(self, scores: Sequence[float]) -> "Several":
        """With the scores of the parts on held-out rows."""
        pairs = zip(self.parts, scores, strict=True)
        return replace(self, parts=tuple(replace(part, held_out=one) for part, one in pairs))

    def loss(self, smoothing: float = 0.0) -> Loss:
        """The weighted mean of the losses, each relative to that of a constant prediction."""
        losses = [part.kind.loss() for part in self.parts]

        def whole(output: Tensor, target: Tensor, weights: Tensor | None) -> Tensor:
            total = output.new_zeros(())
            for at, (part, own, truth) in enumerate(self.each(output, target)):
                observed = weights
                if weights is not None and truth.ndim == 2 and losses[at].whole is None:
                    observed = weights[:, None].expand_as(truth)
                value = losses[at](own, truth, observed)
                total = total + part.weight / self.scales[at] * value
            return total

        link = ",".join(f"{part.kind.link or 'none'}:{part.kind.outputs}" for part in self.parts)
        sizes = enumerate(zip(self.parts, losses, strict=True))
        parts = tuple(
            (loss, part.kind.outputs, partial(self._values_of, at)) for at, (part, loss) in sizes
        )
        return Loss("several", _no_entries, link=link, whole=whole, parts=parts)

    def _values_of(self, at: int, values: Tensor) -> Tensor:
        return self.split(values)[at]

    def response(self, values: Tensor, weights: Tensor | None) -> Tensor:
        """Those of all parts; the variance of each adds up to its weight."""
        found = []
        for part, own in zip(self.parts, self.split(values), strict=True):
            numbers = part.kind.response(own, weights)
            total = weighted_mean(numbers.square(), weights).sum().clamp_min(TINY)
            found.append(numbers * (part.weight / total).sqrt())
        return torch.cat(found, dim=1)

    def error(
        self, output: Tensor, values: Tensor, weights: Tensor | None, unit: Tensor | None = None
    ) -> float:
        """The weighted mean of errors, each relative to that of a constant prediction."""
        return sum(
            part.weight / scale * part.kind.error(own, truth, weights)
            for (part, own, truth), scale in zip(
                self.each(output, values), self.scales, strict=True
            )
        )

    def score(self, output: Tensor, values: Tensor, weights: Tensor | None) -> float:
        """The weighted mean of scores."""
        return sum(
            p.weight * own
            for p, own in zip(self.parts, self.scores(output, values, weights), strict=True)
        )

    def scores(self, output: Tensor, values: Tensor, weights: Tensor | None) -> list[float]:
        """The score of each part."""
        return [
            part.kind.score(own, truth, weights) for part, own, truth in self.each(output, values)
        ]

    def for_training(self, values: Tensor) -> Tensor:
        """Those of the parts."""
        parts = values.split([part.kind.width for part in self.parts], dim=1)
        return torch.cat(
            [part.kind.for_training(own) for part, own in zip(self.parts, parts, strict=True)],
            dim=1,
        )

    def constant(self, values: Tensor, weights: Tensor | None) -> Tensor:
        """Those of the parts."""
        parts = zip(self.parts, self.split(values), strict=True)
        return torch.cat([part.kind.constant(own, weights) for part, own in parts], dim=1)

    def misses(self, output: Tensor, values: Tensor) -> Tensor | None:
        """Those of the parts, side by side."""
        found = [part.kind.misses(own, truth) for part, own, truth in self.each(output, values)]
        known = [one for one in found if one is not None]
        return torch.cat(known, dim=1) if known else None

    def predict(self, output: NDArray) -> Any:
        """A dictionary from name to predictions."""
        return {part.name: part.kind.predict(own) for part, own in self.outputs_of_parts(output)}

    def numbers(self, values: Tensor) -> Tensor | None:
        """Those of all parts that have some."""
        parts = zip(self.parts, self.split(values), strict=True)
        found = [part.kind.numbers(own) for part, own in parts]
        known = [one for one in found if one is not None]
        return torch.cat(known, dim=1) if known else None

    def check_part(self, values: Tensor, training: bool) -> str | None:
        """The first reason of a part."""
        parts = zip(self.parts, self.split(values), strict=True)
        found = [(part.name, part.kind.check_part(own, training)) for part, own in parts]
        plain = [(name.replace("{", "{{").replace("}", "}}"), reason) for name, reason in found]
        return next((f"{name}: {reason}" for name, reason in plain if reason), None)

    def units(self, values: Tensor, weights: Tensor | None) -> tuple[Tensor, Tensor]:
        """Centre and scale of numbers, 0 and 1 of other values; by column of the values."""
        center, scale = [], []
        for part, own in zip(self.parts, self.split(values), strict=True):
            one = torch.zeros(part.kind.width, dtype=torch.float64), torch.ones(part.kind.width)
            if part.kind.name == Numbers.name:
                middle = weighted_mean(own, weights)
                spread = weighted_mean((own - middle).square(), weights).sqrt()
                one = middle, torch.where(spread > 0, spread, 1.0)
            center.append(one[0])
            scale.append(one[1].double())
        return torch.cat(center), torch.cat(scale)

    def of_outputs(self, by_column: Tensor, other: float) -> Tensor:
        """What `units` gives, by output: those of classes and log hazards are as they are."""
        parts = by_column.split([part.kind.width for part in self.parts])
        return torch.cat(
            [
                own if part.kind.name == Numbers.name else own.new_full((part.kind.outputs,), other)
                for part, own in zip(self.parts, parts, strict=True)
            ]
        )


KINDS: dict[str, type[Kind]] = {
    kind.name: kind for kind in (Classes, Numbers, Counts, Ordinal, Survival)
}


def make_kind(name: str, outputs: int, classes: NDArray | None = None) -> Kind:
    """The kind of this name."""
    return KINDS[name](outputs, classes)


# -- responses and scores -------------------------------------------------------------------------


def standardised(values: Tensor, weights: Tensor | None) -> Tensor:
    """Centred columns of unit variance."""
    part = values - weighted_mean(values, weights)
    if weights is None:
        return part / part.std(0).clamp_min(1e-300)
    return part / weighted_mean(part.square(), weights).sqrt().clamp_min(1e-300)


def _no_entries(output: Tensor, target: Tensor) -> Tensor:
    raise NotImplementedError("a loss of all rows together")


def concordance(values: Tensor, hazard: Tensor, weights: Tensor | None = None) -> float:
    """Harrell's C: of pairs whose order is known, the share that the hazards have in that order.

    The order is known if the earlier time is that of an event; a censored row outlives an event of
    the same time. Equal hazards count half. NaN where no order is known.
    """
    time, event = values.T.double()
    weight = torch.ones_like(time) if weights is None else weights.double()
    right = known = 0.0
    for rows in torch.nonzero(event)[:, 0].split(max(1, PAIRS // len(time))):
        own, risk = time[rows, None], hazard[rows, None]
        pairs = (time > own) | ((time == own) & (event == 0))
        pairs = pairs * weight * weight[rows, None]
        ahead = (risk > hazard).double() + 0.5 * (risk == hazard).double()
        right, known = right + float((pairs * ahead).sum()), known + float(pairs.sum())
    return right / known if known else float("nan")


def survival_by_risk(values: Tensor, hazard: Tensor) -> dict[str, list[list[float]]]:
    """Kaplan and Meier's curves of the thirds of the rows with low, medium and high hazards."""
    curves: dict[str, list[list[float]]] = {}
    parts = torch.argsort(hazard, stable=True).tensor_split(3)
    for name, rows in zip(("low", "medium", "high"), parts, strict=True):
        if not len(rows):
            continue
        times, at = torch.unique(values[rows, 0], return_inverse=True)
        ended = torch.zeros_like(times).index_add(0, at, values[rows, 1])
        left = torch.zeros_like(times).index_add(0, at, torch.ones_like(values[rows, 0]))
        at_risk = left.flip(0).cumsum(0).flip(0)
        alive = (1 - ended / at_risk).cumprod(0)
        some = torch.unique(torch.linspace(0, len(times) - 1, min(len(times), CURVE)).long())
        curves[name] = [[0.0, *times[some].tolist()], [1.0, *alive[some].tolist()]]
    return curves
