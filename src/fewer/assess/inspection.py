"""What a newcomer wants to know of a file: kinds of columns, gaps, copies, which k to try."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fewer.data import (
    ColumnView,
    Moments,
    RowView,
    Source,
    covariance,
    moments,
    read_aside,
    read_blocks,
)
from fewer.data.scanning import counts_rows
from fewer.search import greedy

__all__ = ["Inspection", "inspect_rows"]

LEVELS = (0.8, 0.9, 0.95)
ROWS, WIDEST = 20_000, 4096  # for the sizes: more rows change little, more features take long
SAMPLE = 2000  # rows of wider data
BEYOND = 4  # greedy looks at most at this many times the components that PCA needs
MOST_DISTINCT = 1000  # values of a text column that are told apart

Tell = Callable[[str, float], None]
Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Inspection:
    """What is in the rows of a source.

    Attributes
    ----------
    rows, features : int
        Sizes, without what is ignored.
    dtype : str
        Of the values as they are stored.
    kinds : dict from kind to number of features
        "with fractions", "of whole numbers", "of two values", "constant".
    ignored : dict from column to reason
        Columns that are no features.
    missing : dict from feature to share
        Features with gaps, worst first.
    missing_share : float
        Of all values.
    constant : list
        Features with one value only.
    duplicates : list of pairs
        Features that hold the same values as an earlier one, with that one.
    values : (float, float) or None
        Least and largest.
    memory, covariance_memory : int
        Bytes of all rows as float32, and of the covariance.
    streamed, sparse : bool
        How rows are held.
    scale : {"standard", "none"}
        How to scale: "none" where all features seem to be in the same units, such as pixels.
    sizes : dict from share to {"greedy": k, "pca": k}
        How many features, and principal components, keep this share of the variance, scaled so;
        None where more are needed than were looked at.
    looked_at : int
        Rows that the sizes are about.
    """

    rows: int
    features: int
    dtype: str
    kinds: dict[str, int]
    ignored: dict[str, str]
    missing: dict[Any, float]
    missing_share: float
    constant: list[Any]
    duplicates: list[tuple[Any, Any]]
    values: tuple[float, float] | None
    memory: int
    covariance_memory: int
    streamed: bool
    sparse: bool
    scale: str
    sizes: dict[float, dict[str, int | None]]
    looked_at: int

    @property
    def suggested(self) -> int | None:
        """A size to begin with: what keeps 90 % of the variance, or 80 % where that is unknown."""
        for level in (0.9, 0.8):
            size = self.sizes.get(level, {})
            if size.get("greedy") or size.get("pca"):
                return size.get("greedy") or size.get("pca")
        return None

    def describe(self) -> dict[str, Any]:
        """All of it as JSON can hold it."""
        found = asdict(self)
        found["sizes"] = {f"{level:g}": size for level, size in self.sizes.items()}
        return found | {"suggested_k": self.suggested}


def inspect_rows(source: Source, tell: Tell | None = None) -> Inspection:
    """Look through all rows and say what is there.

    Parameters
    ----------
    source : Source
        From `fewer.data.open`.
    tell : callable, default=None
        Called as ``tell(what, share)`` while it works.

    Examples
    --------
    >>> import fewer, numpy as np
    >>> rows = np.column_stack([np.arange(6), [1, 5, 2, 4, 3, 9], [2, 2, 2, 2, 2, 2.5]])
    >>> found = inspect_rows(fewer.data.open(rows, names=["id", "a", "b"]))
    >>> found.ignored, found.kinds
    ({'id': 'only numbers the rows'}, {'with fractions': 1, 'of whole numbers': 1})
    """
    say = tell or (lambda what, share: None)
    say("looking at each column", 0.1)
    stats = moments(source)
    ignored = _beside(source)
    useless = _useless(source, stats)
    ignored |= {str(_label(source, j)): why for j, why in useless.items()}
    kept = np.array([j for j in range(source.shape[1]) if j not in useless], dtype=np.int64)
    part = ColumnView(source, kept) if useless else source
    stats = _taken(stats, kept)
    say("looking for copies", 0.3)
    whole, same = _look(part)
    say("which k", 0.6)
    scale = "none" if _same_units(stats) else "standard"
    sizes, looked_at = _sizes(part, stats, scale)
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
        missing={_label(part, j): float(gaps[j]) for j in worst},
        missing_share=float(gaps.mean()) if d else 0.0,
        constant=[_label(part, int(j)) for j in np.flatnonzero(stats.constant)],
        duplicates=[(_label(part, a), _label(part, b)) for a, b in same if not stats.constant[a]],
        values=(float(stats.minimum.min()), float(stats.maximum.max())) if seen.any() else None,
        memory=n * d * 4,
        covariance_memory=d * d * 8,
        streamed=source.on_disk,
        sparse=source.is_sparse,
        scale=scale,
        sizes=sizes,
        looked_at=looked_at,
    )


def _label(source: Source, j: int) -> Any:
    return j if source.names is None else source.names[j]


def _taken(stats: Moments, kept: NDArray[np.int64]) -> Moments:
    parts = (stats.observed, stats.mean, stats.variance, stats.minimum, stats.maximum)
    return Moments(stats.n, *(part[kept] for part in parts))


def _useless(source: Source, stats: Moments) -> dict[int, str]:
    """Features that will be left out, with the reason; nothing without names is."""
    if source.names is None:
        return {}
    counting = counts_rows(source, stats.minimum, stats.maximum)
    found = {int(j): "only numbers the rows" for j in np.flatnonzero(counting)}
    found |= {int(j): "holds no value" for j in np.flatnonzero(stats.observed == 0)}
    return found if len(found) < source.shape[1] else {}


def _beside(source: Source) -> dict[str, str]:
    """Columns that are not numbers, and what they seem to be."""
    if not source.left_out:
        return {}
    values: dict[str, set[Any]] = {name: set() for name in source.left_out}
    for part in read_aside(source):
        for name in part.column_names if part is not None else ():
            held = values.setdefault(name, set())
            if len(held) <= MOST_DISTINCT:
                held.update(part.column(name).to_pylist())
    return {name: _reason(held, source.shape[0]) for name, held in values.items()}


def _reason(held: set[Any], n: int) -> str:
    many = min(n, MOST_DISTINCT)
    if len(held) >= many:
        return "a different text in each row: an identifier"
    if 1 < len(held) <= max(20, n // 10):
        return f"{len(held)} different texts: could be a --target"
    return f"text ({len(held)} different)"


def _kinds(stats: Moments, whole: Mask) -> dict[str, int]:
    constant = stats.constant
    two = whole & ~constant & (stats.maximum - stats.minimum == 1)
    found = {
        "with fractions": int((~whole & ~constant).sum()),
        "of whole numbers": int((whole & ~two & ~constant).sum()),
        "of two values": int(two.sum()),
        "constant": int(constant.sum()),
    }
    return {kind: count for kind, count in found.items() if count}


def _look(source: Source) -> tuple[Mask, list[tuple[int, int]]]:
    """Which features hold whole numbers only, and which are copies of an earlier one."""
    d = source.shape[1]
    whole = torch.ones(d, dtype=torch.bool)
    print_of = torch.zeros(d, dtype=torch.float64)
    random = torch.Generator().manual_seed(0)
    for _, x in read_blocks(source):
        known = torch.nan_to_num(x, nan=0.5 * torch.pi)
        whole &= (torch.isnan(x) | (x == x.round())).all(0)
        weights = torch.rand(len(x), dtype=torch.float64, generator=random)
        print_of += weights @ known
    # columns with the same weighted sum are almost surely the same; look again to be sure
    size = float(print_of.abs().max()) if d else 0.0
    rounded = np.round(print_of.numpy() / max(size, 1e-300), 12)
    first: dict[float, int] = {}
    pairs = []
    for j, key in enumerate(rounded.tolist()):
        if key in first:
            pairs.append((j, first[key]))
        else:
            first[key] = j
    return whole.numpy(), _verified(source, pairs)


def _verified(source: Source, pairs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    if not pairs:
        return []
    a, b = (torch.tensor(side) for side in zip(*pairs, strict=True))
    same = torch.ones(len(pairs), dtype=torch.bool)
    for _, x in read_blocks(source):
        left, right = x[:, a], x[:, b]
        same &= ((left == right) | (torch.isnan(left) & torch.isnan(right))).all(0)
    return [pair for pair, fine in zip(pairs, same.tolist(), strict=True) if fine]


def _same_units(stats: Moments) -> bool:
    """Whether all features that vary begin at one value and most reach about as far: pixels do."""
    varying = ~stats.constant
    if varying.sum() < 2:
        return False
    low, high = stats.minimum[varying], stats.maximum[varying]
    reach = high - low
    return bool((low == low[0]).all() and 2 * np.median(reach) >= reach.max())


def _sizes(
    source: Source, stats: Moments, scale: str
) -> tuple[dict[float, dict[str, int | None]], int]:
    """How many features keep which share of the variance, from some of the rows."""
    n = source.shape[0]
    varying = np.flatnonzero(~stats.constant)
    if len(varying) < 2 or n < 3:
        return {}, 0
    wide = len(varying) > WIDEST
    most = min(n, SAMPLE if wide else ROWS)
    rows = source
    if most < n:
        rows = RowView(source, np.unique(np.linspace(0, n - 1, most).astype(np.int64)))
    spread = torch.from_numpy(np.sqrt(stats.variance[varying]).clip(1e-300))
    if scale == "none":
        spread = torch.ones_like(spread)
    if wide:
        # too wide for a covariance: the spectrum of the rows among themselves is the same
        x = rows.rows(slice(0, most), torch.float64)[:, torch.from_numpy(varying)]
        x = torch.nan_to_num((x - torch.from_numpy(stats.mean[varying])) / spread, nan=0.0)
        spectrum = torch.linalg.eigvalsh(x @ x.T / most).flip(0)
        path = None
    else:
        C = covariance(ColumnView(rows, varying)).matrix / (spread[:, None] * spread)
        spectrum = torch.linalg.eigvalsh(C).flip(0)
        components = _first(spectrum.cumsum(0) / spectrum.sum(), LEVELS[-1])
        looked = min(len(varying), n - 1, BEYOND * (components or len(varying)))
        errors = torch.from_numpy(greedy(C, looked).errors)
        path = 1 - errors / C.trace()
    kept = spectrum.clamp_min(0).cumsum(0) / spectrum.clamp_min(0).sum()
    return {
        level: {
            "greedy": None if path is None else _first(path, level),
            "pca": _first(kept, level),
        }
        for level in LEVELS
    }, most


def _first(shares: torch.Tensor, level: float) -> int | None:
    """The first place, counted from 1, at which a share is reached."""
    at = torch.nonzero(shares >= level - 1e-9)
    return int(at[0]) + 1 if len(at) else None
