"""Rows of a data set, split and scaled as a protocol has it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fewer.datasets import Dataset, Split

__all__ = ["LEFT_OUT", "Case", "make_case"]

Values = NDArray[np.float64]

# What the authors' code does and the protocol "paper" does not; printed under its tables.
LEFT_OUT = (
    "Mice: the missing-value code -100000 averaged into the imputed values, and means by class; "
    "gaps take the column mean.",
    "AEFS: features picked twice, and a sweep over a parameter that has no effect.",
    "UDFS and AEFS: hyper-parameters chosen on rows that are in the fit; validation rows are used.",
    "MNIST and Fashion: 4000 of the 6000 rows used to fit; all 6000 are.",
    "Activity (5744 x 561): not at hand; HAR, with the same features, stands in its place.",
)


@dataclass(frozen=True, eq=False)
class Case:
    """Rows in the units that methods see; the scaling never saw the test rows if clean.

    Attributes
    ----------
    train, validation : arrays
        To compare hyper-parameters: fit on `train`, score on `validation`.
    fit : array
        Both together: what the final choice of each method rests on.
    test : array
        To report.
    labels, test_labels : arrays or None
        Classes of the rows of `fit` and `test`.
    groups : array or None
        Mouse, patient, subject or speaker group of the rows of `fit`, if the split keeps them
        together.
    """

    data: Dataset
    split: Split
    protocol: str
    seed: int
    train: Values
    validation: Values
    fit: Values
    test: Values
    labels: NDArray[np.int64] | None
    test_labels: NDArray[np.int64] | None
    groups: NDArray[np.generic] | None

    @property
    def d(self) -> int:
        """How many features there are."""
        return self.fit.shape[1]


def make_case(
    data: Dataset,
    protocol: str = "clean",
    seed: int = 0,
    *,
    scaling: str = "range",
    label: int | None = None,
) -> Case:
    """Split, fill gaps and scale.

    Parameters
    ----------
    data : Dataset
        Of `fewer.datasets.load`.
    protocol : {"clean", "paper"}
        "clean" takes column means and scales from the rows to fit alone; "paper" from all rows.
    seed : int
        Of the split.
    scaling : {"range", "standard"}
        Features to [0, 1] (by the largest possible value where there is one), or to mean 0 and
        variance 1.
    label : int, optional
        Only rows of this class.

    Examples
    --------
    >>> from fewer.datasets import load
    >>> case = make_case(load("digits"), seed=1)
    >>> case.fit.shape, case.test.shape, float(case.fit.max())
    ((1437, 64), (360, 64), 1.0)
    """
    split = data.split(protocol, seed)
    if label is not None and data.y is not None:
        split = _of_class(split, np.asarray(data.y == label))
    known = np.unique(np.concatenate([split.fit, split.test])) if protocol == "paper" else split.fit
    seen = data.X[known].astype(np.float64)
    low, width = _scale(data, seen, scaling)
    filler = np.nanmean((seen - low) / width, axis=0)

    def rows(index: NDArray[np.int64]) -> Values:
        values = (data.X[index].astype(np.float64) - low) / width
        return np.where(np.isnan(values), filler, values)

    together = data.groups is not None and "by " in split.constraints
    return Case(
        data=data,
        split=split,
        protocol=protocol,
        seed=seed,
        train=rows(split.train),
        validation=rows(split.validation),
        fit=rows(split.fit),
        test=rows(split.test),
        labels=None if data.y is None else data.y[split.fit],
        test_labels=None if data.y is None else data.y[split.test],
        groups=data.groups[split.fit] if together and data.groups is not None else None,
    )


def _scale(data: Dataset, seen: Values, scaling: str) -> tuple[Values, Values]:
    """What to subtract from each feature and what to divide it by."""
    if scaling == "standard":
        low, width = np.nanmean(seen, axis=0), np.nanstd(seen, axis=0)
    elif data.largest is not None:
        low, width = np.zeros(seen.shape[1]), np.full(seen.shape[1], data.largest)
    else:
        low = np.nanmin(seen, axis=0)
        width = np.nanmax(seen, axis=0) - low
    return low, np.where(width > 0, width, 1.0)


def _of_class(split: Split, wanted: NDArray[np.bool_]) -> Split:
    return Split(
        split.train[wanted[split.train]],
        split.validation[wanted[split.validation]],
        split.test[wanted[split.test]],
        split.fit[wanted[split.fit]],
        f"{split.constraints}; one class",
    )
