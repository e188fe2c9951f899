"""Which rows train, which choose hyper-parameters, which test."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from sklearn.model_selection import GroupShuffleSplit

__all__ = ["Split", "by_fold", "by_group", "by_mark", "random_rows"]

Rows = NDArray[np.int64]
VALIDATION = 0.1  # of the rows that do not test


@dataclass(frozen=True, eq=False)
class Split:
    """Row numbers: `train` to fit, `validation` to choose hyper-parameters, `test` to report.

    Attributes
    ----------
    train, validation, test : ndarrays of int
        No row is in two of them.
    fit : ndarray of int
        `train` and `validation` together: what a method is fitted on once nothing is left to
        choose.
    description : str
        How rows were split, in words.
    grouped : bool
        Whether rows of one mouse, patient, subject or speaker group stay together.

    Examples
    --------
    >>> from fewer.datasets import load
    >>> split = load("digits").split(seed=0)
    >>> len(set(split.fit) & set(split.test))
    0
    """

    train: Rows
    validation: Rows
    test: Rows
    fit: Rows
    description: str
    grouped: bool = False


def random_rows(rows: Rows, fit: int, seed: int) -> Split:
    """Split rows at random: the first ``fit`` of a permutation to fit, the others to test.

    Examples
    --------
    >>> split = random_rows(np.arange(10), fit=8, seed=0)
    >>> len(split.train), len(split.validation), len(split.test)
    (7, 1, 2)
    """
    order = rows[np.random.default_rng(seed).permutation(len(rows))]
    cut = fit - round(VALIDATION * fit)
    description = f"random rows, {fit} to fit, {len(rows) - fit} to test"
    return Split(order[:cut], order[cut:fit], order[fit:], order[:fit], description)


def by_group(groups: NDArray[np.generic], share: float, seed: int, unit: str) -> Split:
    """Hold out whole groups, such as all rows of one animal.

    Examples
    --------
    >>> mouse = np.repeat(np.arange(10), 3)
    >>> split = by_group(mouse, 0.2, seed=0, unit="mouse")
    >>> sorted(set(mouse[split.test]) & set(mouse[split.fit]))
    []
    """
    maker = GroupShuffleSplit(1, test_size=share, random_state=seed)
    fit, test = next(maker.split(groups, groups=groups))
    description = f"by {unit}, {1 - share:.0%} to fit, {share:.0%} to test"
    return _with_validation(fit, test, groups, seed, description)


def by_mark(
    held: NDArray[np.bool_], groups: NDArray[np.generic], seed: int, description: str
) -> Split:
    """Test on marked rows; the validation rows are whole groups of the others."""
    return _with_validation(np.flatnonzero(~held), np.flatnonzero(held), groups, seed, description)


def by_fold(groups: NDArray[np.generic], fold: int, unit: str) -> Split:
    """Test on one of a few groups and validate on another; fold 0 tests on the last.

    Examples
    --------
    >>> split = by_fold(np.array([1, 1, 2, 2, 3, 3]), 0, unit="speaker group")
    >>> split.test, split.validation, split.train
    (array([4, 5]), array([2, 3]), array([0, 1]))
    """
    known = np.unique(groups)
    test, validation = known[-1 - fold % len(known)], known[-1 - (fold + 1) % len(known)]
    held, chosen = groups == test, groups == validation
    return Split(
        np.flatnonzero(~held & ~chosen),
        np.flatnonzero(chosen),
        np.flatnonzero(held),
        np.flatnonzero(~held),
        f"by {unit}, {test} to test",
        grouped=True,
    )


def _with_validation(
    fit: Rows, test: Rows, groups: NDArray[np.generic], seed: int, description: str
) -> Split:
    maker = GroupShuffleSplit(1, test_size=VALIDATION, random_state=seed)
    train, validation = next(maker.split(fit, groups=groups[fit]))
    return Split(fit[train], fit[validation], test, fit, description, grouped=True)
