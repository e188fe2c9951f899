"""A data set in memory: values, labels, names, groups, and how it is split."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.model_selection import GroupShuffleSplit

from fewer._checks import check_choice, check_whole
from fewer.errors import InputError

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
        `train` and `validation` together, for the final fit.
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


@dataclass(frozen=True, eq=False)
class Dataset:
    """Rows as they were published, unscaled, with everything that an honest test needs.

    Attributes
    ----------
    name : str
        What `fewer.datasets.load` calls it.
    X : array (n, d)
        Values in their own units; NaN where missing.
    y : array (n,) or None
        Class of each row; ``target_names[y]`` is its name.
    names, target_names : arrays of str
        Of the features and of the classes.
    groups : array (n,) or None
        Rows with the same label come from one ``unit``: mouse, patient, subject, speaker group.
    image_shape : (int, int) or None
        Where the features are pixels.
    official : array of bool (n,) or None
        Rows of the published test part.
    landmarks : array of bool (d,) or None
        Features that are L1000 landmark genes.
    largest : float or None
        The largest possible value where values start at 0, such as 255 for pixels.
    synthetic : bool
        Generated, not measured.
    planted : array of bool (d,) or None
        Features with planted structure: of "planted-products" the factors, which determine all
        others; of "planted-manifold" those on the manifold.
    parameters : dict of arrays
        What each row was generated from, n values or vectors by name: factors, tissue parameters.
    acquisition : dict of arrays
        How each feature is measured, d values or vectors by name: b-values, echo times.
    description, source, licence : str
        Where the data come from.
    digest : str
        SHA-256 of the values and labels, whatever the order of the rows.
    parts : Split or None
        The published split, where the data come with one.

    Examples
    --------
    >>> from fewer.datasets import load
    >>> digits = load("digits")
    >>> digits.X.shape, digits.image_shape
    ((1797, 64), (8, 8))
    >>> split = digits.split(seed=0)
    >>> len(split.train), len(split.validation), len(split.test)
    (1293, 144, 360)
    """

    name: str
    X: NDArray[Any]
    y: NDArray[np.int64] | None
    names: NDArray[np.str_]
    target_names: NDArray[np.str_] = field(default_factory=lambda: np.array([], dtype=str))
    groups: NDArray[Any] | None = None
    unit: str = "row"
    image_shape: tuple[int, int] | None = None
    official: NDArray[np.bool_] | None = None
    landmarks: NDArray[np.bool_] | None = None
    largest: float | None = None
    synthetic: bool = False
    planted: NDArray[np.bool_] | None = None
    parameters: dict[str, NDArray[Any]] = field(default_factory=dict)
    acquisition: dict[str, NDArray[Any]] = field(default_factory=dict)
    description: str = ""
    source: str = ""
    licence: str = ""
    digest: str = ""
    parts: Split | None = None

    def split(self, protocol: str = "clean", seed: int = 0) -> Split:
        """Split the rows as a protocol has it.

        Parameters
        ----------
        protocol : {"clean", "paper"}, default="clean"
            "clean": whole mice, patients, subjects or speaker groups are held out, the
            official test part where seed is 0. "paper": 72% of the rows to train, 8% to
            validate and 20% to test, at random. Both take the 10,000 official test images of
            MNIST and Fashion-MNIST alone, 6000 to fit and 4000 to test, as the paper does.
        seed : int, default=0
            Of the split. For ISOLET, 0 tests on the fifth and official speaker group, 1 on the
            fourth, and so on.
        """
        check_choice("protocol", protocol, ("clean", "paper"))
        check_whole("seed", seed, 0)
        n = len(self.X)
        if self.parts is not None:
            return self.parts
        if self.name in ("mnist", "fashion") and self.official is not None:
            return _random_rows(np.flatnonzero(self.official), 6000, seed)
        if self.name == "digits":
            return _random_rows(np.arange(n), 1437, seed)
        grouped = self.name in ("isolet", "har", "mice", "tcga", "luad")
        if not grouped or (protocol == "paper" and self.name not in ("tcga", "luad")):
            return _random_rows(np.arange(n), round(0.8 * n), seed)
        return self._grouped(seed)

    def _grouped(self, seed: int) -> Split:
        if self.groups is None:
            raise InputError(
                f"this copy of {self.name} does not say which rows belong to one {self.unit}, so "
                f"it cannot be split without leakage: put {self.name}.npz into the folder "
                "FEWER_DATA (see help(fewer.datasets.load)), or use protocol='paper'"
            )
        if self.name == "isolet":
            return _by_fold(self.groups, seed, self.unit)
        if self.name == "har":
            if seed == 0 and self.official is not None:
                official = "by subject, the official 9 of 30 to test"
                fit, test = np.flatnonzero(~self.official), np.flatnonzero(self.official)
                return _with_validation(fit, test, self.groups, seed, official)
            return _by_group(self.groups, 0.3, seed, self.unit)
        return _by_group(self.groups, 0.2, seed, self.unit)


def _random_rows(rows: Rows, fit: int, seed: int) -> Split:
    """Split rows at random: the first ``fit`` of a permutation to fit, the others to test."""
    order = rows[np.random.default_rng(seed).permutation(len(rows))]
    cut = fit - round(VALIDATION * fit)
    description = f"random rows, {fit} to fit, {len(rows) - fit} to test"
    return Split(order[:cut], order[cut:fit], order[fit:], order[:fit], description)


def _by_group(groups: NDArray[np.generic], share: float, seed: int, unit: str) -> Split:
    """Hold out whole groups, such as all rows of one animal."""
    maker = GroupShuffleSplit(1, test_size=share, random_state=seed)
    fit, test = next(maker.split(groups, groups=groups))
    description = f"by {unit}, {1 - share:.0%} to fit, {share:.0%} to test"
    return _with_validation(fit, test, groups, seed, description)


def _by_fold(groups: NDArray[np.generic], fold: int, unit: str) -> Split:
    """Test on one of a few groups and validate on another; fold 0 tests on the last."""
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
