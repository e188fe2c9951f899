"""What is in a data file: kinds of columns, missing and suspicious values, which k to try."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fewer._checks import join_names
from fewer._threads import entry_point
from fewer.assess.curve import LEVELS
from fewer.assess.quality import find_suspicious
from fewer.assess.scoring import Rows
from fewer.checks import Finding
from fewer.constraints import resolve
from fewer.data import ColumnView, Moments, RowView, Source, moments, read_blocks
from fewer.data import open as open_any
from fewer.data.moments import is_wide
from fewer.data.on_disk import readable_size
from fewer.data.open import counts_rows
from fewer.data.source import MissingNumbers, read_metadata
from fewer.estimate import Estimate
from fewer.selection import select
from fewer.selection.size import SizePath, size_path
from fewer.train.device import float64_device

MAX_ROWS, MAX_FEATURES = 20_000, 4096  # to suggest k; more rows change little, more are slow
WIDE_ROWS = 1000  # rows that are looked at in wider data
LEAST_ROWS = 5  # one for each fold
FIRST_SIZES, MAX_SIZE = 64, 256  # sizes that are tried first, and at most
# chosen features times all, and values: up to here, k is tried as `select` would
SMALL_CHOICE, SMALL_DATA = 2**11, 2**21
MAX_SHOWN = 10  # columns that are named
SHOWN_FINDINGS = 5  # of each kind
KINDS = {
    "sentinel": "values that may stand for missing ones",
    "clipped": "ranges that may be clipped",
    "outliers": "outliers",
    "copy": "copies of other columns",
}
MAX_DISTINCT = 1000  # distinct values of a text column that are counted

Progress = Callable[[str, float], None]
Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Inspection:
    """What is in the rows of some data; prints as a short report.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> found = inspect(load_digits().data[:, 16:40])  # three rows of pixels
    >>> found.features, found.constant, found.scale, found.suggested_k
    (24, [16, 23], 'none', 12)
    """

    rows: int
    features: int  # without ignored columns
    dtype: str  # of the stored values
    kinds: dict[str, int]  # how many features are continuous, integer, binary, constant
    ignored: dict[str, str]  # columns that are not features, and why
    missing: dict[Any, float]  # fraction per feature with missing values, worst first
    missing_fraction: float  # of all values
    constant: list[Any]
    duplicates: list[tuple[Any, Any]]  # features with the values of an earlier one, and that one
    values: tuple[float, float] | None  # smallest and largest
    memory: int  # bytes of all rows as float32
    covariance_memory: int  # bytes; of wide data, of the rows that stand for it
    streamed: bool  # rows stay on disk
    sparse: bool
    scale: str  # suggested: "none" where all features seem to share a unit, such as pixels
    # features ("features") and components ("pca") that explain a fraction of the variance of
    # held-out rows under that scaling, without `sentinels`; None where more are needed than were
    # tried. If there are outliers, also the features without these ("without_outliers")
    sizes: dict[float, dict[str, int | None]]
    sampled_rows: int  # that sizes are computed from
    # the first to explain 90% of the variance, or 80% if that is unknown, without outliers
    suggested_k: int | None
    # of held-out rows, from that many features, and its standard error
    explained_variance: float | None
    standard_error: float | None
    exact: bool  # whether that is the score of the panel that `fewer.select` would choose
    protocol: str | None  # how rows were held out
    findings: list[Finding] = field(default_factory=list)  # suspicious columns

    def __str__(self) -> str:
        where = "read in blocks" if self.streamed else "in memory"
        lines = [
            f"{self.rows:,} {'row' if self.rows == 1 else 'rows'}, {self.features:,} features "
            f"({self.dtype}{', sparse' if self.sparse else ''}), {where}",
            "features: " + ", ".join(f"{count:,} {kind}" for kind, count in self.kinds.items()),
        ]
        if self.values is not None:
            low, high = self.values
            lines.append(f"values: {low:g} to {high:g}, {self.missing_fraction:.1%} missing")
        lines.append(
            f"memory: {readable_size(self.memory)} for the rows, "
            f"{readable_size(self.covariance_memory)} for the covariance"
        )
        for what, found in (
            ("ignored", list(self.ignored)),
            ("constant (never chosen)", self.constant),
            (
                "duplicate" if len(self.duplicates) == 1 else "duplicates",
                [f"{a} = {b}" for a, b in self.duplicates],
            ),
        ):
            if found:
                lines.append(f"{len(found)} {what}: {join_names(found, MAX_SHOWN, quoted=False)}")
        for kind, title in KINDS.items():
            which = [f"  {one}" for one in self.findings if one.kind == kind]
            more = len(which) - SHOWN_FINDINGS
            if more > 1:
                which[SHOWN_FINDINGS:] = [f"  and {more} more"]
            lines += [f"{title}:", *which] if which else []
        return "\n".join(lines)

    @property
    def sentinels(self) -> list[float]:
        """Numbers that may stand for missing values: candidates for ``missing=``.

        That applies to all columns, so numbers that may be valid in others are not among them.

        Examples
        --------
        >>> import numpy as np
        >>> X = np.random.default_rng(0).normal(size=(200, 3))
        >>> X[:5, 1] = 9999
        >>> inspect(X).sentinels
        [9999.0]
        """
        return _sentinels(self.findings)

    def describe(self) -> dict[str, Any]:
        """The findings as a dictionary that can be written as JSON."""
        found = asdict(self)
        found["sizes"] = {f"{level:g}": size for level, size in self.sizes.items()}
        return found


@entry_point
def inspect(
    data: Any,
    progress: Progress | None = None,
    *,
    scale: str | None = None,
    row_groups: Any = None,
    random_state: Any = 0,
    device: str = "auto",
    **options: Any,
) -> Inspection:
    """Describe data before anything is chosen: columns, missing values, duplicates, a k to try.

    Parameters
    ----------
    data : path, source, or anything else that `fewer.data.open` takes
        The rows.
    progress : callable, default=None
        Called as ``progress(step, fraction_done)``.
    scale, row_groups, random_state, device
        As in `fewer.select`, for the k to try; without ``scale``, "none" where all features seem
        to share a unit.
    **options
        As for `fewer.data.open`.

    Examples
    --------
    >>> import numpy as np
    >>> print(inspect(np.array([[0.5, 1.0], [2.5, 1.0], [4.5, 1.0]])))
    3 rows, 2 features (float64), in memory
    features: 1 continuous, 1 constant
    values: 0.5 to 4.5, 0.0% missing
    memory: 24 B for the rows, 32 B for the covariance
    1 constant (never chosen): 1
    """
    update = progress or (lambda step, fraction: None)
    update("scanning columns", 0.1)
    source = open_any(data, **options)
    stats = moments(source)
    ignored, part = _metadata_columns(source), source
    useless = _useless(source, stats)
    if useless:
        kept = np.array([j for j in range(source.shape[1]) if j not in useless], dtype=np.int64)
        part, stats = ColumnView(source, kept), stats.of(kept)
        ignored |= {(source.names or [])[j]: why for j, why in useless.items()}
    labels: Any = part.names or range(part.shape[1])
    update("finding duplicates", 0.3)
    whole, same = _find_duplicates(part)
    update("looking for suspicious values", 0.4)
    copies = [a for a, _ in same]
    findings, usual = find_suspicious(
        part, labels, stats.constant | np.isin(np.arange(len(labels)), copies)
    )
    update("suggesting k", 0.6)
    codes = _sentinels(findings)
    if part.is_sparse:
        codes = [code for code in codes if code]
    coded = MissingNumbers(part, codes) if codes else part
    clean = moments(coded) if codes else stats
    scale = scale or ("none" if _same_units(clean) else "standard")
    usual = coded if usual is part else usual
    sizes = _sizes(coded, usual, clean, scale, row_groups, random_state, device)
    n, d = part.shape
    seen = stats.observed > 0
    gaps = (n - stats.observed) / max(n, 1)
    worst = [int(j) for j in np.argsort(-gaps, kind="stable") if gaps[j] > 0]
    return Inspection(
        rows=n,
        features=d,
        dtype=str(source.dtype),
        kinds=_kinds(stats, whole),
        ignored=ignored,
        missing={labels[j]: float(gaps[j]) for j in worst},
        missing_fraction=float(gaps.mean()) if d else 0.0,
        constant=[labels[j] for j in np.flatnonzero(stats.constant)],
        duplicates=[(labels[a], labels[b]) for a, b in same if not stats.constant[a]],
        values=(float(stats.minimum.min()), float(stats.maximum.max())) if seen.any() else None,
        memory=n * d * 4,
        covariance_memory=(n if is_wide(part) else d) * d * 8,
        streamed=source.on_disk,
        sparse=source.is_sparse,
        scale=scale,
        findings=findings,
        **sizes,
    )


def _sentinels(findings: list[Finding]) -> list[float]:
    spikes = [one.value for one in findings if one.kind == "sentinel" and not one.elsewhere]
    return sorted({value for value in spikes if value is not None})


def _useless(source: Source, stats: Moments) -> dict[int, str]:
    """Features that will be ignored, with the reason; none where columns have no names."""
    if source.names is None:
        return {}
    counting = counts_rows(source, stats.minimum, stats.maximum)
    found = {int(j): "row number" for j in np.flatnonzero(counting)}
    found |= {int(j): "no values" for j in np.flatnonzero(stats.observed == 0)}
    return found if len(found) < source.shape[1] else {}


def _metadata_columns(source: Source) -> dict[str, str]:
    """Columns that are not numbers, and what they seem to be."""
    n = source.shape[0]
    values: dict[str, set[Any]] = {name: set() for name in source.metadata_columns}
    for part in read_metadata(source):
        for name in part.column_names if part is not None else ():
            held = values.setdefault(name, set())
            if len(held) <= MAX_DISTINCT:
                held.update(part.column(name).to_pylist())
    found = {}
    for name, held in values.items():
        what, each = ("numbers", "number") if _are_numbers(held) else ("text", "text")
        possible = ": a possible --target" if 1 < len(held) <= max(20, n // 10) else ""
        ending = "" if len(held) == 1 else "s"
        found[name] = f"{what} with {len(held)} distinct value{ending}{possible}"
        if len(held) >= min(n, MAX_DISTINCT):
            found[name] = f"identifier: a different {each} in each row"
    return found


def _kinds(stats: Moments, whole: Mask) -> dict[str, int]:
    constant = stats.constant
    two = whole & ~constant & (stats.maximum - stats.minimum == 1)
    found = {
        "continuous": int((~whole & ~constant).sum()),
        "integer": int((whole & ~two & ~constant).sum()),
        "binary": int(two.sum()),
        "constant": int(constant.sum()),
    }
    return {kind: count for kind, count in found.items() if count}


def _are_numbers(held: set[Any]) -> bool:
    """Whether a column that was ignored by name has numbers only; they are read as text."""
    known = held - {None, ""}
    try:
        return bool(np.array(list(known), dtype=object).astype(float).size)
    except (TypeError, ValueError):
        return False


def _find_duplicates(source: Source) -> tuple[Mask, list[tuple[int, int]]]:
    """Which features hold only whole numbers, and which duplicate an earlier one."""
    d = source.shape[1]
    whole = torch.ones(d, dtype=torch.bool)
    fingerprint = torch.zeros(d, dtype=torch.float64)
    random = torch.Generator().manual_seed(0)
    for _, x in read_blocks(source):
        known = torch.nan_to_num(x, nan=0.5 * torch.pi)
        whole &= (torch.isnan(x) | (x == x.round())).all(0)
        weights = torch.rand(len(x), dtype=torch.float64, generator=random)
        fingerprint += weights @ known
    # equal weighted sums almost surely mean equal columns; a second pass makes sure
    size = float(fingerprint.abs().max()) if d else 0.0
    rounded = np.round(fingerprint.numpy() / max(size, 1e-300), 12)
    first: dict[float, int] = {}
    pairs = []
    for j, key in enumerate(rounded.tolist()):
        if first.setdefault(key, j) != j:
            pairs.append((j, first[key]))
    if not pairs:
        return whole.numpy(), []
    a, b = (torch.tensor(side) for side in zip(*pairs, strict=True))
    same = torch.ones(len(pairs), dtype=torch.bool)
    for _, x in read_blocks(source):
        left, right = x[:, a], x[:, b]
        same &= ((left == right) | (torch.isnan(left) & torch.isnan(right))).all(0)
    return whole.numpy(), [pair for pair, fine in zip(pairs, same, strict=True) if fine]


def _same_units(stats: Moments) -> bool:
    """Whether all varying features start at one value and have similar ranges, as pixels do."""
    varying = ~stats.constant
    if varying.sum() < 2:
        return False
    low, high = stats.minimum[varying], stats.maximum[varying]
    reach = high - low
    return bool((low == low[0]).all() and 2 * np.median(reach) >= reach.max())


def _sizes(
    source: Source,
    usual: Source,
    stats: Moments,
    scale: str,
    row_groups: Any,
    random_state: Any,
    device: str,
) -> dict[str, Any]:
    """How many features explain which fraction of the variance of held-out rows.

    From a sample of the rows where they are many. Small data are then given to `select`, for the
    score of the very panel that it would choose. A single wrong value can decide how much is
    explained, so k is suggested for the usual rows, without outliers.
    """
    n, varying = source.shape[0], np.flatnonzero(~stats.constant)
    found: dict[str, Any] = {
        "sizes": {}, "sampled_rows": 0, "suggested_k": None, "explained_variance": None,
        "standard_error": None, "exact": False, "protocol": None,
    }  # fmt: skip
    if len(varying) < 2 or n < LEAST_ROWS:
        return found
    most = min(n, WIDE_ROWS if len(varying) > MAX_FEATURES else MAX_ROWS)
    part, outliers = source, usual is not source
    if most < n:
        some = np.unique(np.linspace(0, n - 1, most).astype(np.int64))
        row_groups = None if row_groups is None else np.asarray(row_groups)[some]
        part, usual = RowView(source, some), RowView(usual, some)
    rows = Rows(part, scale, row_groups, random_state, device)
    path = _path(rows, len(varying))
    found["sizes"] = {
        level: {
            "features": _first(path.sizes, path.mean, level),
            "pca": _first(path.sizes, path.pca, level),
        }
        for level in LEVELS
    }
    if outliers:
        without = _path(Rows(usual, scale, row_groups, random_state, device), len(varying))
        for level, size in found["sizes"].items():
            size["without_outliers"] = _first(without.sizes, without.mean, level)
    kind = "without_outliers" if outliers else "features"
    sizes = (found["sizes"][level][kind] for level in (0.9, 0.8))
    k = next((size for size in sizes if size is not None), None)
    found |= {"sampled_rows": most, "suggested_k": k, "protocol": rows.protocol}
    if k is not None:
        at = path.sizes.index(k)
        score = Estimate(float(path.mean[at]), float(path.standard_error[at]))
        found["exact"] = most == n and k * rows.d <= SMALL_CHOICE and n * rows.d <= SMALL_DATA
        if found["exact"]:
            score = select(rows.source, k, **rows.options).estimates[rows.metric]
        found |= {"explained_variance": score.value, "standard_error": score.standard_error}
    return found


def _path(rows: Rows, varying: int) -> SizePath:
    """Scores of 1, 2, ... features, as many as explain what is suggested, if enough rows do."""
    trained = min(len(fold.train_rows) for fold in rows.covariances.folds)
    limit = min(varying, max(1, trained - 1), MAX_SIZE)
    most, place = min(FIRST_SIZES, limit), float64_device(rows.home)
    while True:
        constraints = resolve(None, rows.d, most)
        path = size_path(rows.covariances, constraints, range(1, most + 1), place)
        if most == limit or path.mean.max() >= LEVELS[1]:
            return path
        most = min(2 * most, limit)


def _first(sizes: list[int], explained: NDArray[np.float64], level: float) -> int | None:
    """The first size at which a level is reached."""
    enough = np.flatnonzero(explained >= level)
    return sizes[int(enough[0])] if len(enough) else None
