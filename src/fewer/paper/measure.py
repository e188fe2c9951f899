"""How good a choice of columns is, on rows that took no part in it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from sklearn.ensemble import ExtraTreesClassifier
from sklearn.linear_model import LinearRegression
from sklearn.neighbors import KNeighborsClassifier

from fewer.paper.case import Case, Values

__all__ = ["accuracies", "linear_error", "mean_square"]

TREES = 50


def mean_square(rebuilt: Values, truth: Values) -> float:
    """Mean over all entries of the squared difference."""
    return float(np.mean((rebuilt - truth) ** 2))


def linear_error(case: Case, columns: NDArray[np.int64]) -> float:
    """Test error of a linear regression without penalty from these columns to all.

    Examples
    --------
    >>> from fewer.datasets import load
    >>> from fewer.paper.case import make_case
    >>> case = make_case(load("digits"))
    >>> linear_error(case, np.arange(64)) < 1e-20 < linear_error(case, np.arange(60))
    True
    """
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
