"""Chosen columns and their decoder: read measured values, complete them, reconstruct the rest."""

import os
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import narwhals as nw
import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse

from fewer._checks import find_names, join_names
from fewer._threads import entry_point
from fewer.data import ColumnView, Source, moments, read_all, read_blocks
from fewer.data import open as open_any
from fewer.data.columns import check_array, check_values, match_columns
from fewer.data.open import FINDS_COLUMNS, as_source, column_names, is_source_like
from fewer.data.source import array_source, blocks, read_metadata
from fewer.data.tables import as_array, is_table
from fewer.data.write import check_out, whole_suffix, write_rows
from fewer.errors import InputError, warn
from fewer.estimate import Score, sums_over_rows, without_noise
from fewer.joint import JointCovariance, TrainingStatistics, distances_of
from fewer.nn import MeasuredDecoder
from fewer.nn.completion import gap_patterns
from fewer.validation import LEAST_SIGNAL

__all__ = [
    "QUANTILE_LEVELS",
    "Filling",
    "Imputed",
    "Reconstructor",
    "bound_paths",
    "impute",
    "run_decoder",
    "sample_size",
]

Values = NDArray[np.float64]

LITTLE_SIGNAL = 0.01  # of the variance: the score of less is chance
BLOCK_WIDTH = 1024  # rows of fewer values are decoded in blocks as for so many
CHECKED_ROWS = 20_000  # of a file: more say nothing new about its features
# of held-out residuals, for prediction intervals
QUANTILE_LEVELS = (0.005, 0.025, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.975, 0.995)


def sample_size(d: int) -> int:
    """How many example rows of d features are stored: from 200 narrow ones to 20 wide ones."""
    return int(np.clip(400_000 // d, 20, 200))


@dataclass(frozen=True, eq=False)
class Reconstructor:
    """k chosen columns of n_features, and the decoder that predicts from them.

    Attributes
    ----------
    columns : array of int (k)
        Chosen column numbers, ascending.
    decoder : fewer.nn.MeasuredDecoder
        From k measured values, in column order and in the units of the data, to all features.
    n_features : int
        How many features there are.
    names : array of str or None
        Names of all features.
    quantiles : array (len(QUANTILE_LEVELS), n_features) or None
        Of truth minus reconstruction on held-out rows, over the difficulty of the row; None if
        there are no intervals.
    joint : JointCovariance or None
        Covariance of the chosen features with all: missing values are predicted from those
        present; without it, as in panels of earlier versions, they are the training mean.
    statistics : TrainingStatistics or None
        What `Panel.check` compares new rows with.
    difficulty : array (bins, 2) or None
        Distances of rows from the mean, and how large errors are there, relative to all rows;
        None if intervals are as wide for every row.
    noise : array (n_features) or None
        Variance of the measurement error of each feature, in the units of the data. The decoder
        then reconstructs what is behind it, of the chosen features too.
    shares : array (n_features) or None
        Of all counts of a training row, where they were counts; NaN where unknown.
    estimated : bool
        Whether values of the chosen features are themselves estimates, which have intervals.
    """

    columns: NDArray[np.int64]
    decoder: MeasuredDecoder
    n_features: int
    names: NDArray | None = None
    quantiles: Values | None = None
    joint: JointCovariance | None = None
    statistics: TrainingStatistics | None = None
    difficulty: Values | None = None
    noise: Values | None = None
    shares: Values | None = None
    estimated: bool = False

    @property
    def features(self) -> list[Any]:
        """Names of the chosen features in column order, or their numbers."""
        return self.columns.tolist() if self.names is None else self.names[self.columns].tolist()

    # -- measured values -------------------------------------------------------------------

    def read(self, measured: Any) -> NDArray:
        """The k measured values per row, in column order; see `Panel.reconstruct`."""
        if is_source_like(measured):
            return read_all(self.open(measured))
        # only the chosen columns need to be numbers: tables have identifiers too
        if hasattr(measured, "columns"):
            measured = self._from_table(measured)
        values = check_array(
            as_array(measured), accept_sparse="csr", dtype=[np.float64, np.float32]
        )
        if values.shape[1] != len(self.columns):
            raise self.wrong_width(values.shape[1])
        if sparse.issparse(values):
            values = values.toarray()
        check_values(values, None if self.names is None else self.names[self.columns], "measured")
        return values

    def open(self, measured: Any) -> Source:
        """A source of the k chosen features, in column order, from a path, a store or a source."""
        features = [str(name) for name in self.features]
        source = _open_with_metadata(features, measured, {})
        have = source.names
        if have is None or (self.names is None and not set(features) & set(have)):
            if source.shape[1] != len(features):
                raise self.wrong_width(source.shape[1])
            return source
        text = [name for name in features if name in source.metadata_columns]
        if text:
            raise InputError(
                f"measured: the chosen features {join_names(text)} do not hold numbers"
            )
        return ColumnView(source, np.array(self._find(have)))

    def _from_table(self, table: Any) -> Any:
        """The chosen columns of a table."""
        labels = list(table.columns)
        if self.names is not None:
            return table[[labels[j] for j in self._find(labels)]]
        whole = (int, np.integer)
        numbers = [one for one in labels if isinstance(one, whole) and not isinstance(one, bool)]
        chosen = self.columns.tolist()
        if not numbers or labels == list(range(len(chosen))):
            return table  # n x k without labels of its own: in column order, like an array
        missing = [number for number in chosen if number not in numbers]
        if missing:
            raise InputError(
                f"measured has the column labels {join_names(numbers, 8)}, which lack "
                f"{join_names(missing, 8)} of the {len(chosen)} chosen column numbers; label the "
                "columns by their numbers when fitting, or give an array in this order: "
                f"{join_names(chosen, 8)}"
            )
        return table[chosen]

    def _find(self, have: list[Any]) -> list[int]:
        return find_names(
            self.features,
            have,
            "measured lacks {} chosen features",
            "; add these columns, with NaN where they were not measured",
        )

    def wrong_width(self, width: int, what: str = "columns") -> InputError:
        """The error for rows of another number of values."""
        return InputError(
            f"measured has {width} {what}; give the {len(self.columns)} chosen features, in this "
            f"order: {join_names(self.features, 8, quoted=False)}"
        )

    # -- reconstruction --------------------------------------------------------------------

    def decode(self, values: NDArray, *, denoise: bool = True) -> NDArray:
        """All features from measured values as `read` returns them.

        Without ``denoise``, chosen features keep their measured values.
        """
        found = run_decoder(self.decoder, values)
        if self.noise is not None and not denoise:
            own = found[:, self.columns]
            found[:, self.columns] = np.where(np.isnan(values), own, values)
        return found

    def reconstruct(self, measured: Any, interval: float | None = None) -> Any:
        """All features from the k measured ones; with an interval also lower and upper bounds."""
        parts = self.parts(self.read(measured), interval)
        found = [like_table(part, self.names, measured) for part in parts]
        return found[0] if interval is None else tuple(found)

    def parts(
        self, values: NDArray, interval: float | None = None, *, denoise: bool = True
    ) -> list[NDArray]:
        """All features from measured values as `read` returns them, and their bounds, if any."""
        found = self.decode(values, denoise=denoise)
        return [found] if interval is None else [found, *self._bounded(found, values, interval)]

    def _bounds(self, interval: float) -> tuple[Values, Values]:
        """Offsets of the lower and upper bound from a reconstruction."""
        real = isinstance(interval, (int, float, np.integer, np.floating))
        if not real or not 0 < interval <= 0.99:
            raise InputError(f"interval={interval!r} must be above 0 and at most 0.99")
        if self.quantiles is None:
            raise InputError("there are no held-out residuals to compute an interval from")
        bounds = between(self.quantiles, interval)
        for bound in bounds if self.noise is None and not self.estimated else ():
            bound[self.columns] = 0.0  # measured values are known
        return bounds

    def _bounded(self, found: Values, values: NDArray, interval: float) -> tuple[Values, Values]:
        """Lower and upper bounds of rows, wider for difficult rows and missing features.

        Without a joint covariance, bounds of a missing chosen feature are NaN.
        """
        bounds = self._bounds(interval)
        factor = self.difficulty_of(values)[:, None]
        lower, upper = found + bounds[0] * factor, found + bounds[1] * factor
        gaps = np.isnan(values)
        if self.joint is None:
            for bound in (lower, upper):
                bound[:, self.columns] = np.where(gaps, np.nan, bound[:, self.columns])
            return lower, upper
        rows = np.flatnonzero(gaps.any(axis=1))
        if len(rows):
            own = between(self.joint.quantiles, interval)
            patterns, which = gap_patterns(gaps[rows])
            for number, pattern in enumerate(patterns):
                wider = self.joint.widened(pattern, bounds, own)
                at = rows[which == number]
                lower[at], upper[at] = (found[at] + side * factor[at] for side in wider)
        return lower, upper

    def difficulty_of(self, values: NDArray) -> Values:
        """How large the errors of rows are expected to be, relative to those of all rows."""
        if self.difficulty is None or self.joint is None:
            return np.ones(len(values))
        mean = torch.from_numpy(self.joint.mean[self.columns])
        far = distances_of(np.asarray(values, dtype=np.float64), mean, self.joint.precision)
        return interpolated(self.difficulty, far.normal)

    # -- whole rows ------------------------------------------------------------------------

    def match(self, X: Any, what: str = "the panel") -> Any:
        """Check whole rows and put their columns into the order of the training data."""
        if is_source_like(X):
            known = [] if self.names is None else [str(name) for name in self.names]
            source = _open_with_metadata(known, X, {})
            return match_columns(source, self.names, self.n_features, what)
        if hasattr(X, "columns") and self.names is not None:
            labels = list(X.columns)
            found = find_names(self.names, labels, "X lacks {} features")
            X = X[[labels[j] for j in found]]  # other columns may hold anything
        X = check_array(as_array(X), accept_sparse="csr", dtype="numeric")
        if X.shape[1] != self.n_features:
            raise InputError(f"X has {X.shape[1]} columns; {what} was made for {self.n_features}")
        check_values(X, self.names)
        return X

    def take(self, X: Any) -> NDArray:
        """The chosen columns of rows from `match`."""
        if isinstance(X, Source):
            return read_all(X, self.columns)
        part = X[:, self.columns]
        return part.toarray() if sparse.issparse(part) else part

    def score(
        self, X: Any, feature_weights: Values | None = None, noise: Values | None = None
    ) -> Score:
        """Explained variance of rows from `match`, reconstructed from their chosen columns.

        ``noise`` is that of these rows, if it differs from that of the training rows.
        """
        sums = sums_over_rows(
            self.decoder, array_source(X), self.columns, feature_weights=feature_weights
        )
        if self.noise is None:
            return sums.score()
        noise = self.noise if noise is None else noise
        noise = noise if feature_weights is None else noise * feature_weights
        measured = np.maximum(sums.squares, 0.0) / sums.count
        noise = np.minimum(noise, (1 - LEAST_SIGNAL) * measured)
        if noise.sum() > (1 - LITTLE_SIGNAL) * measured.sum() > 0:
            warn(
                f"{noise.sum() / measured.sum():.1%} of the variance of these rows is noise, so a "
                "score of what is behind it says nothing; score rows that were measured better"
            )
        found = without_noise(sums, noise, self.decoder, self.columns).score()
        return found.at_most_all()

    def variances(self, X: Any, noise: Values | None = None) -> tuple[Values, Values]:
        """Of each feature of rows from `match`: as measured, and of what `score` compares with.

        The second lacks the noise where that is known.
        """
        stats = moments(array_source(X))
        measured = np.where(stats.constant, 0.0, stats.variance)
        if self.noise is None:
            return measured, measured
        return measured, np.maximum(measured - (self.noise if noise is None else noise), 0.0)


def interpolated(table: Values, at: Values) -> Values:
    """The second column of a table, interpolated at values of the first."""
    found: Values = np.interp(at, table[:, 0], table[:, 1])
    return found


def between(quantiles: Values, interval: float) -> tuple[Values, Values]:
    """Quantiles that leave the same fraction on both sides of an interval, interpolated."""
    tail, levels, found = (1 - interval) / 2, QUANTILE_LEVELS, []
    for level in (tail, 1 - tail):
        at = 1 + int(np.searchsorted(levels[1:-1], level))
        weight = (level - levels[at - 1]) / (levels[at] - levels[at - 1])
        below, above = quantiles[at - 1], quantiles[at]
        found.append(below + weight * (above - below))
    return found[0], found[1]


@torch.no_grad()
def run_decoder(decoder: MeasuredDecoder, measured: NDArray) -> NDArray:
    """Outputs for n x k measured values, block by block; float32 where those are."""
    if len(measured) == 1 and (row := decoder.decode_row(measured[0])) is not None:
        return row[None]
    dtype = np.float32 if measured.dtype == np.float32 else np.float64
    parts = []
    for rows in blocks(len(measured), max(measured.shape[1], BLOCK_WIDTH)):
        values = torch.from_numpy(np.array(measured[rows], dtype=np.float64))
        try:
            parts.append(decoder(values).numpy().astype(dtype, copy=False))
        except RuntimeError as error:
            if "dtype" in str(error) or "scalar type" in str(error):
                raise InputError(
                    f"the decoder does not work in float64 ({error}); register its tensors as "
                    "buffers (self.register_buffer) and leave the dtype of its input as it is"
                ) from error
            raise
    return np.concatenate(parts)


def like_table(values: NDArray, names: NDArray | None, given: Any) -> Any:
    """Convert values to the kind of table that was given, with its index; or keep the array."""
    if names is None or not is_table(given):
        return values
    frame = nw.from_native(given, eager_only=True)
    labels = [str(name) for name in names]
    table = nw.from_numpy(values, schema=labels, backend=frame.implementation).to_native()
    index = nw.maybe_get_index(frame)
    if index is not None:
        table.index = index
    return table


# -- files -------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Imputed:
    """What `impute` found and did."""

    rows: int
    values: tuple[NDArray, ...]  # reconstruction and bounds, if they were not written to files
    missing: int  # values of the panel's features
    incomplete_rows: int  # with missing values of the panel's features
    empty_rows: int  # without any of the panel's features
    absent: list[Any]  # features of the panel that the data do not have
    kept: int  # measured values of other features
    predicted: bool  # whether missing values were predicted, not set to the training mean

    def describe(self, k: int) -> str:
        """One line for a person; empty if there is nothing to say."""
        if not self.missing:
            return ""
        how = (
            "predicted from the values present"
            if self.predicted
            else "set to the training mean (an older panel: make it again to have them predicted)"
        )
        absent = f"; not in the data: {join_names(self.absent)}" if self.absent else ""
        rows = "1 row has" if self.empty_rows == 1 else f"{self.empty_rows:,} rows have"
        empty = f"; {rows} none" if self.empty_rows else ""
        return (
            f"{self.missing:,} of {self.rows * k:,} values of the panel's features were missing, "
            f"in {self.incomplete_rows:,} row{'s' * (self.incomplete_rows != 1)}, and {how}{absent}"
            f"{empty}"
        )


@dataclass(frozen=True, eq=False)
class Filling:
    """How measured values become whole rows.

    Attributes
    ----------
    interval : float or None
        Coverage of prediction intervals.
    use_all : bool
        Use all measured features, not only the panel's. ``factors`` must then be
        ``panel.evidence.factors``.
    replace_measured : bool
        Replace measured values of other features by their reconstruction, too.
    allow_absent : bool
        Predict features of the panel that the data do not have.
    """

    interval: float | None = None
    use_all: bool = False
    replace_measured: bool = False
    allow_absent: bool = False
    factors: NDArray[np.float32] | None = None

    def check(self, reconstructor: Reconstructor) -> None:
        """Refuse what a panel cannot do, before any work."""
        if self.interval is not None:
            reconstructor._bounds(self.interval)
        if self.use_all and (reconstructor.joint is None or self.factors is None):
            raise InputError(
                "use_all needs the covariances that panels keep since version 0.1.0; make this "
                "panel again with fewer.select"
            )

    def fill(self, reconstructor: Reconstructor, seen: Values) -> list[Values]:
        """Whole rows, and bounds, from n x d measured values with NaN elsewhere."""
        values = seen[:, reconstructor.columns]
        found = reconstructor.decode(values)
        parts = [found]
        if self.interval is not None:
            parts += reconstructor._bounded(found, values, self.interval)
        if self.use_all:
            assert reconstructor.joint is not None
            assert self.factors is not None
            original = found.copy()
            for part in reconstructor.joint.corrected(original, seen, self.factors):
                at = np.ix_(part.rows, part.columns)
                for bound in parts[1:]:
                    bound[at] = part.values + (bound[at] - original[at]) * part.ratio
                found[at] = part.values
        if not self.replace_measured:
            known = ~np.isnan(seen)
            for one in parts:
                one[known] = seen[known]
        return parts


@entry_point
def impute(
    reconstructor: Reconstructor,
    measured: Any,
    out: str | os.PathLike[str] | None,
    filling: Filling | None = None,
    *,
    options: dict[str, Any] | None = None,
    progress: Callable[[float], None] | None = None,
    check: Callable[[Values], None] | None = None,
) -> Imputed:
    """Fill in what was not measured, block by block, into a file or into memory.

    Columns of the input that are not features, such as identifiers, are copied into tables. With
    an interval two more files hold the bounds (`bound_paths`). ``options`` are those of
    `fewer.data.open`; ``progress`` is called with the fraction done, and ``check`` with measured
    values of the panel's features; where that raises, nothing is written.
    """
    filling = filling or Filling()
    filling.check(reconstructor)
    paths: list[Path] = []
    if out is not None:
        path = Path(out)
        paths = [path] if filling.interval is None else [path, *bound_paths(path)]
    for one in paths:
        check_out(one)
    d, chosen = reconstructor.n_features, reconstructor.columns
    names = range(d) if reconstructor.names is None else reconstructor.names
    labels = [str(name) for name in names]
    source = _open_with_metadata(labels, measured, dict(options or {}))
    source, places = _find_features(reconstructor, labels, source, filling)
    source.row_width = max(source.row_width, d)  # blocks are as wide as the output
    n = source.shape[0]
    missing, incomplete, empty, kept = 0, 0, 0, 0
    held: list[list[Values]] = []
    checked: list[Values] = []
    with ExitStack() as stack:
        writers = [stack.enter_context(write_rows(one, n, labels, source.dialect)) for one in paths]
        for (rows, x), metadata in zip(read_blocks(source), read_metadata(source), strict=True):
            seen = np.full((len(x), d), np.nan)
            seen[:, places] = x.numpy()
            gaps = np.isnan(seen[:, chosen])
            missing, incomplete = missing + int(gaps.sum()), incomplete + int(gaps.any(1).sum())
            empty += int(gaps.all(axis=1).sum())
            kept += int((~np.isnan(seen)).sum()) - int((~gaps).sum())
            if check is not None and rows.start < CHECKED_ROWS:
                checked.append(seen[:, chosen])
            parts = filling.fill(reconstructor, seen)
            for write, part in zip(writers, parts, strict=False):
                write(part, metadata)
            if not paths:
                held.append(parts)
            if progress is not None:
                progress(rows.stop / n)
        if check is not None:
            check(np.concatenate(checked))
    values = tuple(np.concatenate(part) for part in zip(*held, strict=True))
    have = set(places.tolist())
    absent = [reconstructor.features[i] for i, j in enumerate(chosen.tolist()) if j not in have]
    predicted = reconstructor.joint is not None
    return Imputed(n, values, missing, incomplete, empty, absent, kept, predicted)


def bound_paths(out: str | os.PathLike[str]) -> tuple[Path, Path]:
    """Paths of the lower and upper bounds: all.lower.csv.gz and all.upper.csv.gz."""
    path = Path(out)
    kind = whole_suffix(path)
    stem = path.name.removesuffix(kind)
    return path.with_name(f"{stem}.lower{kind}"), path.with_name(f"{stem}.upper{kind}")


def _open_with_metadata(known: list[str], measured: Any, options: dict[str, Any]) -> Source:
    """Open rows; columns that are not among the known features are metadata."""
    table = hasattr(measured, "columns")
    if not table and not is_source_like(measured):
        return as_source(measured)
    where = {name: options.get(name) for name in FINDS_COLUMNS}
    have = [str(name) for name in measured.columns] if table else column_names(measured, **where)
    features = set(known)
    others = [name for name in have or () if name not in features]
    ignore = list(dict.fromkeys([*options.pop("ignore", ()), *others]))
    by_name = have is not None and len(others) < len(have)
    if by_name and ignore:
        options["ignore"] = ignore
    with warnings.catch_warnings():
        # other columns may hold anything
        warnings.filterwarnings("ignore", ".*non-numeric columns were ignored")
        return measured if isinstance(measured, Source) else open_any(measured, **options)


def _find_features(
    reconstructor: Reconstructor, known: list[str], source: Source, filling: Filling
) -> tuple[Source, NDArray[np.int64]]:
    """The columns of a source that are features, and the numbers of those features."""
    have, chosen, d = source.names, reconstructor.columns, reconstructor.n_features
    only_chosen = filling.replace_measured and not filling.use_all
    named = have is not None and (reconstructor.names is not None or set(known) & set(have))
    if not named:
        if source.shape[1] == d != len(chosen):
            places = np.arange(d)
            return (ColumnView(source, chosen), chosen) if only_chosen else (source, places)
        return reconstructor.open(source), chosen
    assert have is not None
    number = {name: j for j, name in enumerate(known)}
    present = [j for j, name in enumerate(have) if name in number]
    lacking = [j for j in chosen.tolist() if known[j] not in have]
    text = any(known[j] in source.metadata_columns for j in lacking)
    if text or len(lacking) == len(chosen):
        reconstructor.open(source)  # which refuses
    if lacking and not filling.allow_absent:
        find_names(
            reconstructor.features,
            have,
            "measured lacks {} chosen features",
            "; add these columns, with NaN where they were not measured, or predict them with "
            "allow_absent=True (--allow-absent)",
        )
    if only_chosen:
        wanted = {known[j] for j in chosen.tolist()}
        present = [j for j in present if have[j] in wanted]
    places = np.array([number[have[j]] for j in present], dtype=np.int64)
    return ColumnView(source, np.array(present, dtype=np.int64)), places
