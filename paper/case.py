"""Rows of a data set, split and scaled by a protocol, and how a choice of columns is scored."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from sklearn.ensemble import ExtraTreesClassifier
from sklearn.linear_model import LinearRegression
from sklearn.neighbors import KNeighborsClassifier

from fewer.datasets import Dataset, Split

__all__ = [
    "DEPARTURES",
    "Case",
    "Columns",
    "Values",
    "accuracies",
    "linear_error",
    "make_case",
    "mean_square",
]

Columns = NDArray[np.int64]
Values = NDArray[np.float64]
TREES = 50

# What the authors' code does and the protocol "paper" does not; printed under its tables.
DEPARTURES = (
    "Mice: the missing-value code -100000 averaged into the imputed values, and means by class; "
    "missing values take the column mean.",
    "AEFS: features picked twice, and a sweep over a parameter that has no effect.",
    "UDFS and AEFS: hyper-parameters chosen on rows that are in the fit; validation rows are used.",
    "MNIST and Fashion: 4000 of the 6000 rows used to fit; all 6000 are.",
    "Activity (5744 x 561): not available; HAR, with the same features, takes its place.",
)


@dataclass(frozen=True, eq=False)
class Case:
    """Rows in the units that methods see; under "clean" the scaling never saw the test rows.

    Attributes
    ----------
    train, validation : arrays
        To compare hyper-parameters: fit on `train`, score on `validation`.
    fit : array
        Both together: what the final choice of each method rests on.
    test : array
        Only for the numbers that are reported.
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
        """The number of features."""
        return self.fit.shape[1]


def make_case(
    data: Dataset,
    protocol: str = "clean",
    seed: int = 0,
    *,
    scaling: str = "range",
    label: int | None = None,
) -> Case:
    """Split, fill missing values and scale.

    Parameters
    ----------
    data : Dataset
        From `fewer.datasets.load`.
    protocol : {"clean", "paper"}
        "clean" takes column means and scales from the rows to fit alone; "paper" from all rows.
    seed : int
        Of the split.
    scaling : {"range", "standard", "none"}
        Features to [0, 1] (by the largest possible value where there is one), to mean 0 and
        variance 1, or as they are.
    label : int, optional
        Only rows of this class.
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

    grouped = split.grouped and data.groups is not None
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
        groups=data.groups[split.fit] if grouped and data.groups is not None else None,
    )


def mean_square(reconstructed: Values, truth: Values) -> float:
    """Mean over all entries of the squared difference."""
    return float(np.mean((reconstructed - truth) ** 2))


def linear_error(case: Case, columns: Columns) -> float:
    """Test error of a linear regression without penalty from these columns to all."""
    decoder = LinearRegression().fit(case.fit[:, columns], case.fit)
    return mean_square(decoder.predict(case.test[:, columns]), case.test)


def accuracies(case: Case, fit: Values, test: Values, seed: int) -> dict[str, float]:
    """Test accuracy of 50 extremely randomised trees, and of the nearest neighbour."""
    if case.labels is None:
        return {}
    trees = ExtraTreesClassifier(TREES, random_state=seed).fit(fit, case.labels)
    nearest = KNeighborsClassifier(1).fit(fit, case.labels)
    return {
        "trees": float(trees.score(test, case.test_labels)),
        "nearest": float(nearest.score(test, case.test_labels)),
    }


def _scale(data: Dataset, seen: Values, scaling: str) -> tuple[Values, Values]:
    """What to subtract from each feature and what to divide it by."""
    if scaling == "none":
        low, width = np.zeros(seen.shape[1]), np.ones(seen.shape[1])
    elif scaling == "standard":
        low, width = np.nanmean(seen, axis=0), np.nanstd(seen, axis=0)
    elif data.largest is not None:
        low, width = np.zeros(seen.shape[1]), np.full(seen.shape[1], data.largest)
    else:
        low = np.nanmin(seen, axis=0)
        width = np.nanmax(seen, axis=0) - low
    return low, np.where(width > 0, width, 1.0)


def _of_class(split: Split, wanted: NDArray[np.bool_]) -> Split:
    parts = {
        name: rows[wanted[rows]]
        for name, rows in vars(split).items()
        if name in ("train", "validation", "test", "fit")
    }
    return replace(split, **parts, description=f"{split.description}; one class")
