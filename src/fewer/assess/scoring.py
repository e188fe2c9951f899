"""The rows of an assessment and their folds; the score of a list of features."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fewer._checks import check_observed, check_random_state, check_whole
from fewer._threads import entry_point
from fewer.constraints import find_column, resolve
from fewer.data import RowView, Source, moments
from fewer.data.columns import without_empty
from fewer.data.factored import Matrix
from fewer.data.open import as_source
from fewer.data.source import AppendedColumns
from fewer.errors import InputError
from fewer.estimate import (
    Estimate,
    describe_protocol,
    estimate_over_rows,
    fold_ridges,
    linear_map,
    panel_sums,
    ratio_of_sums,
    scaled_estimate,
    shared_rows,
)
from fewer.panel import Panel
from fewer.selection.evidence.significance import PanelScores
from fewer.selection.size import emphasised
from fewer.selection.target import read_target
from fewer.train.device import pick_device
from fewer.validation import (
    FOLDS,
    Fold,
    FoldCovariances,
    Scaling,
    Validation,
    check_row_groups,
    choose_validation,
    fold_covariances,
    split_rows,
)

Columns = NDArray[np.int64]
SAME = 1e-9  # relative difference of means and spreads that rounding explains


class Rows:
    """The data of an assessment, opened and checked, and their folds: those of `fewer.select`.

    With a ``target``, rows that have one; ``numbers`` are its centred values, one or more per row.
    """

    def __init__(
        self,
        data: Any,
        scale: str,
        row_groups: Any,
        random_state: Any,
        device: str,
        folds: int = FOLDS,
        target: Any = None,
        validation: Any = "auto",
        target_kind: Any = "auto",
    ) -> None:
        check_whole("folds", folds, 2)
        wanted, data = (None, data) if target is None else read_target(target, data, target_kind)
        source = as_source(data, least_rows=4)
        row_groups = check_row_groups(row_groups, source.shape[0])
        self.target, self.numbers, self.wanted = None, None, wanted
        if wanted is not None:
            n = source.shape[0]
            if len(wanted.values) != n:
                raise InputError(f"target has {len(wanted.values)} values for {n} rows")
            self.labelled = kept = wanted.rows(np.arange(n))
            self.target, self.numbers = wanted.name or "the target", wanted.centred(kept)
            source = source if len(kept) == n else RowView(source, kept)
            row_groups = None if row_groups is None else row_groups[kept]
            if np.ndim(validation):
                validation = np.asarray(choose_validation(validation, n, 1, linear=True))[kept]
        self.source, self.stats = without_empty(source, moments(source))
        names = self.source.names
        check_observed(self.stats.observed, None if names is None else np.array(names))
        self.scaling = Scaling(scale)
        self.random_state = random_state
        self.seed = int(check_random_state(random_state).randint(2**31 - 1))
        self.home = pick_device(device)
        self.n, self.d = self.source.shape
        self.groups = row_groups
        self.validation: Validation = min(folds, self.n)
        if not (isinstance(validation, str) and validation == "auto"):
            count = None if row_groups is None else len(np.unique(row_groups))
            self.validation = choose_validation(validation, self.n, 1, linear=True, groups=count)

    @cached_property
    def covariances(self) -> FoldCovariances:
        """Of all folds."""
        splits, source = split_rows(self.n, self.validation, self.seed, self.groups), self.source
        if self.numbers is not None:
            source = AppendedColumns(source, self.numbers.numpy())
        return fold_covariances(source, splits, self.scaling, self.home)

    @property
    def protocol(self) -> str:
        """How rows are held out and features scaled, in words."""
        splits, seed = self.covariances.splits, self.random_state
        return describe_protocol(splits, self.validation, seed, self.scaling.how, self.groups)

    @property
    def options(self) -> dict[str, Any]:
        """Options of `fewer.select` for the same rows, folds and scaling."""
        return {
            "scale": self.scaling.how,
            "validation": self.validation,
            "row_groups": self.groups,
            "random_state": self.random_state,
            "device": str(self.home),
        }

    @property
    def metric(self) -> str:
        """The key of `Panel.estimates` for this scaling."""
        return "units" if self.scaling.how == "none" else "equal"

    @property
    def one_part(self) -> bool:
        """Whether a single part of the rows is held out."""
        return isinstance(self.validation, (float, np.ndarray))

    @property
    def more(self) -> int:
        """Columns of the target, which follow those of the features."""
        return 0 if self.numbers is None else self.numbers.shape[1]

    def objective(self, fold: Fold) -> Matrix:
        """The covariance of a fold that a search looks at: of features and target, if any."""
        C = fold.matrix()
        return emphasised(C, self.d) if self.more else C

    def ridges(self, panels: Sequence[Columns]) -> list[float]:
        """For each fold, the penalty of its panel's decoder that does best on the other folds."""
        if self.more:
            return PanelScores(self.covariances, self.more).of_folds(panels)[1]
        return fold_ridges(self.covariances.folds, panels, self.n)

    def estimate(self, panels: Sequence[Columns]) -> Estimate:
        """Explained variance of held-out rows from a panel per fold, features scaled."""
        folds = self.covariances.folds
        if self.more:
            table = PanelScores(self.covariances, self.more)
            return table.explained(table.of_folds(panels)[0])
        ridges = self.ridges(panels)
        found = scaled_estimate(folds, panel_sums(self.covariances, panels, ridges))
        return self.with_error(found, panels[:1])

    def with_error(
        self, score: Estimate, panels: Sequence[Columns] = (), axes: Tensor | None = None
    ) -> Estimate:
        """The same score; of one part, with its standard error over rows, or groups of rows.

        It is the mean of these panels, or that of principal ``axes``.
        """
        if not self.one_part:
            return score
        fold = self.covariances.folds[0]
        maps: list[Callable[[Tensor], Tensor]] = [
            partial(linear_map, panel, fold.decoder(panel)) for panel in panels
        ]
        if axes is not None:
            maps.append(lambda x: x @ axes @ axes.T)
        labels = None if self.groups is None else self.groups[fold.held_rows]
        return estimate_over_rows(fold, maps, labels)._replace(value=score.value)

    def judged(self, features: Sequence[Any] | Panel) -> tuple[Columns, Estimate]:
        """Columns of a list or panel, and their score.

        A panel that was made from these rows has the score that it was made with, since its
        features were chosen with all of them in view; not with a target, whose scores are others.
        """
        if isinstance(features, Panel) and self.made(features) and not self.more:
            return features.indices, features.estimates[self.metric]
        named = features.features if isinstance(features, Panel) else features
        columns = self.columns(named, "the panel" if isinstance(features, Panel) else "the list")
        return columns, self.estimate([columns] * len(self.covariances.folds))

    def made(self, panel: Panel) -> bool:
        """Whether a panel was made from these rows."""
        known = panel.reconstructor.statistics
        if known is None or known.rows != self.n or panel.d != self.d:
            return False
        if self.metric not in panel.estimates:
            return False
        mean, spread = self.stats.mean[panel.indices], self.stats.variance[panel.indices] ** 0.5
        close = np.abs(known.mean - mean) <= SAME * (np.abs(mean) + spread)
        return bool((close & (np.abs(known.spread - spread) <= SAME * spread)).all())

    def train(self, fold: Fold) -> Source:
        """The training rows of a fold, in the units of the data."""
        return RowView(self.source, fold.train_rows)

    def columns(self, features: Any, role: str = "the list") -> Columns:
        """Column numbers of features, which may be names or numbers; ``role`` is for errors."""
        features = list(features)
        if not features:
            raise InputError("the list of features is empty; give at least one")
        check_without_target(features, () if self.wanted is None else self.wanted.columns, role)
        for one in features:
            find_column(self.source.names, self.d, one, role)
        found = resolve(self.source.names, self.d, self.d, include=features)
        return found.include.copy()  # writable, as torch expects

    def named(self, columns: Columns) -> list[Any]:
        """Names of columns, or their numbers."""
        names = self.source.names
        return [int(j) if names is None else names[j] for j in columns]


def check_without_target(features: Sequence[Any], target: Sequence[str], role: str) -> None:
    """Refuse features among which is what they are to explain."""
    for one in features:
        if isinstance(one, str) and one in target:
            raise InputError(
                f"the target {one} is one of the features of {role}; score features without it, or "
                "another target"
            )


@dataclass(frozen=True, eq=False)
class FeatureScore:
    """How well a list of features reconstructs held-out rows.

    Attributes
    ----------
    explained_variance, explained_variance_standardized : float
        In the units of the data, as `Panel.score`, and with standardised features.
    standard_error, standard_error_standardized : float or None
        Of these, over the folds.
    errors, variances : ndarrays
        Mean squared error and variance per feature on the held-out rows.
    features, names : lists
        The features in column order, and the names of all of them if known.
    protocol : str
        How rows were held out.

    Examples
    --------
    >>> from sklearn.datasets import load_wine
    >>> found = score_features(load_wine(as_frame=True).data, ["alcohol", "hue"], random_state=0)
    >>> found.features, 0 < found.explained_variance_standardized < 1
    (['alcohol', 'hue'], True)
    """

    explained_variance: float
    explained_variance_standardized: float
    standard_error: float | None
    standard_error_standardized: float | None
    errors: NDArray[np.float64]
    variances: NDArray[np.float64]
    features: list[Any]
    names: list[str] | None
    protocol: str


@entry_point
def score_features(
    data: Any,
    features: Sequence[Any],
    *,
    folds: int = FOLDS,
    row_groups: Any = None,
    random_state: Any = None,
    device: str = "auto",
) -> FeatureScore:
    """Score linear decoders from a list of features on rows that they were not fitted on.

    Parameters
    ----------
    features : sequence of names or column numbers
        The features to reconstruct from.
    folds : int, default=5
        Number of folds of the cross-validation, at least 2.
    data, row_groups, random_state, device
        As in `fewer.select`.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> found = score_features(load_iris().data, [0, 2], random_state=0)
    >>> round(found.explained_variance, 2), found.errors.shape
    (0.97, (4,))
    """
    rows = Rows(data, "standard", row_groups, random_state, device, folds)
    columns, parts = rows.columns(features), rows.covariances
    panels = [columns] * len(parts.folds)
    sums = panel_sums(parts, panels, fold_ridges(parts.folds, panels, rows.n))
    wrong, squares = np.stack([one.wrong[0] for one in sums]), np.stack([s.squares for s in sums])
    count = np.sum([one.counts for one in sums], axis=0)
    own = ratio_of_sums(wrong.sum(axis=1), squares.sum(axis=1), shared_rows(parts.folds))
    standardized = scaled_estimate(parts.folds, sums)
    return FeatureScore(
        explained_variance=own.value,
        explained_variance_standardized=standardized.value,
        standard_error=own.standard_error,
        standard_error_standardized=standardized.standard_error,
        errors=wrong.sum(axis=0) / count,
        variances=squares.sum(axis=0) / count,
        features=rows.named(columns),
        names=rows.source.names,
        protocol=rows.protocol,
    )
