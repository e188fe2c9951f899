"""Methods side by side: each chooses from training rows, all are judged on the same other rows."""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from scipy.linalg.lapack import dpstrf
from sklearn.utils import check_random_state

from fewer.assess.held_out import Columns, Rows, Split
from fewer.assess.writing import write_table
from fewer.data import ScaledSource
from fewer.errors import InputError
from fewer.estimators import ConcreteAutoencoder
from fewer.search import greedy, search
from fewer.selection import select

__all__ = ["METHODS", "Comparison", "compare"]

DRAWS = 10
BOUND = "PCA, a bound"


@dataclass(frozen=True)
class Comparison:
    """What each method reached, best first; prints as a table.

    Attributes
    ----------
    rows : list of dict
        For each method: method, k, share (of the variance of held-out rows), std (over splits),
        overlap (share of features that two splits have in common, None for one split), seconds,
        features (of the first split).
    splits : int
        How many times rows were held out.
    scale : str
        "standard" where every feature counts the same, "none" where by its own variance.

    Examples
    --------
    >>> from fewer.assess import compare
    >>> from sklearn.datasets import load_wine
    >>> found = compare(load_wine().data, 3, methods=["greedy", "random"])
    >>> [row["method"] for row in found.rows if row["method"] != "random"][-1]
    'greedy'
    """

    rows: list[dict[str, Any]]
    splits: int
    scale: str

    def describe(self) -> dict[str, Any]:
        """All of it as JSON can hold it."""
        return {"rows": self.rows, "splits": self.splits, "scale": self.scale}

    def write(self, path: str | os.PathLike[str]) -> Path:
        """Write the table (.csv) or all of it (.json)."""
        names = ("method", "k", "share", "std", "overlap", "seconds")
        columns = {name: [row[name] for row in self.rows] for name in names}
        return write_table(Path(path), columns, self.describe())

    def __str__(self) -> str:
        lines = [f"{'method':<24}{'k':>5}{'share':>9}{'seconds':>9}"]
        for row in self.rows:
            took = "" if row["seconds"] is None else f"{row['seconds']:.2f}"
            lines.append(f"{row['method']:<24}{row['k']:>5}{row['share']:>9.1%}{took:>9}")
        return "\n".join(lines)


def compare(
    data: Any,
    k: int,
    *,
    methods: Sequence[str] | None = None,
    panels: Mapping[str, Sequence[Any]] | None = None,
    scale: str = "standard",
    held: float = 0.25,
    repeats: int = 1,
    row_groups: Any = None,
    random_state: Any = None,
    device: str = "auto",
    progress: Callable[[str, float], None] | None = None,
) -> Comparison:
    """Choose k features by several methods and judge them on held-out rows.

    Every method sees the training rows alone; the decoder of all is the same linear one, fitted
    on the training rows, with a penalty chosen inside them where rows are few.

    Parameters
    ----------
    data : array, sparse matrix, table, path or source of shape (n, d)
        Whatever `fewer.select` takes.
    k : int
        How many features.
    methods : sequence of str, default=None
        Some of `METHODS`; all if None.
    panels : mapping from name to list of features, default=None
        Lists of your own to compare; they need not have k features.
    scale : {"standard", "none"}, default="standard"
        "standard": every feature counts the same. "none": by its own variance.
    held : float, default=0.25
        Share of rows held out.
    repeats : int, default=1
        How many times, with other rows held out; tells how stable each choice is.
    row_groups : array of length n, default=None
        Rows with the same label are held out together.
    random_state : int, RandomState or None, default=None
        Fixes the result.
    device : str, default="auto"
        "auto" (CUDA, MPS or CPU), or any torch device.
    progress : callable, default=None
        Called as ``progress(what, share)`` while it works.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> found = compare(load_digits().data, 10, methods=["search", "random"], scale="none",
    ...                 random_state=0)
    >>> [row["method"] for row in found.rows]
    ['PCA, a bound', 'search', 'random']
    """
    wanted = list(METHODS) if methods is None else list(methods)
    unknown = [name for name in wanted if name not in METHODS]
    if unknown:
        raise InputError(f"methods={unknown!r} are not known; use some of {', '.join(METHODS)}")
    if repeats < 1:
        raise InputError(f"repeats={repeats!r} must be at least 1")
    tell = progress or (lambda what, share: None)
    seed = int(check_random_state(random_state).randint(2**31 - 1))
    tell("reading", 0.0)
    rows = Rows(data, scale, row_groups, seed, device)
    given = {name: rows.columns(features) for name, features in (panels or {}).items()}
    splits = rows.splits(k, held, repeats)
    found = [_row(rows, name, [columns] * repeats, splits, None) for name, columns in given.items()]
    for at, name in enumerate(wanted):
        chosen, began = [], time.perf_counter()
        for part, split in enumerate(splits):
            tell(name, (at + part / repeats) / len(wanted))
            chosen.append(METHODS[name](rows, split, k, seed + part))
        took = (time.perf_counter() - began) / repeats
        found.append(_row(rows, name, chosen, splits, took))
    found.append(_bound(splits, k))
    found.sort(key=lambda row: -row["share"])
    return Comparison(found, repeats, scale)


def _row(
    rows: Rows, name: str, chosen: list[Any], splits: list[Split], seconds: float | None
) -> dict[str, Any]:
    """A choice may be several panels, such as random draws: then their mean counts."""
    panels = [[panel] if isinstance(panel, np.ndarray) else panel for panel in chosen]
    shares = [
        float(np.mean([split.share(panel) for panel in part]))
        for split, part in zip(splits, panels, strict=True)
    ]
    first = [part[0] for part in panels]
    return {
        "method": name,
        "k": len(first[0]),
        "share": float(np.mean(shares)),
        "std": float(np.std(shares)),
        "overlap": _overlap(first) if seconds is not None else None,
        "seconds": seconds,
        "features": rows.named(first[0]),
    }


def _bound(splits: list[Split], k: int) -> dict[str, Any]:
    shares = [float(split.pca_shares(k)[-1]) for split in splits]
    return {
        "method": BOUND,
        "k": k,
        "share": float(np.mean(shares)),
        "std": float(np.std(shares)),
        "overlap": None,
        "seconds": None,
        "features": None,
    }


def _overlap(panels: list[Columns]) -> float | None:
    """Share of features that two panels have in common, over all pairs of splits."""
    pairs = [len(np.intersect1d(a, b)) / max(len(a), len(b)) for a, b in combinations(panels, 2)]
    return float(np.mean(pairs)) if pairs else None


# -- methods: rows, a split, k and a seed to columns, ascending ------------------------------


def _select(rows: Rows, split: Split, k: int, seed: int) -> Columns:
    part = rows.train(split)
    labels = None if rows.groups is None else rows.groups[split.fold.train_index]
    if labels is not None and len(np.unique(labels)) < 2:
        labels = None
    return select(
        part, k, scale=rows.scaling.how, row_groups=labels, random_state=seed, device=str(rows.home)
    ).indices


def _search(rows: Rows, split: Split, k: int, seed: int) -> Columns:
    return search(split.train, k, seed=seed).indices


def _concrete(rows: Rows, split: Split, k: int, seed: int) -> Columns:
    fold = split.fold
    scaled = ScaledSource(rows.train(split), fold.center, fold.scale)
    return ConcreteAutoencoder(k, random_state=seed, device=str(rows.home)).fit(scaled).columns_


def _greedy(rows: Rows, split: Split, k: int, seed: int) -> Columns:
    return greedy(split.train, k).panel()


def _pivoted_qr(rows: Rows, split: Split, k: int, seed: int) -> Columns:
    # the pivots of QR on centred rows are those of Cholesky on their covariance
    _, pivots, _, _ = dpstrf(split.fold.train.numpy(), tol=0.0)
    return np.sort(pivots[:k].astype(np.int64) - 1)


def _variance(rows: Rows, split: Split, k: int, seed: int) -> Columns:
    # in the units of the data: scaled features all vary the same
    own = split.fold.train.diagonal().numpy() * split.fold.scale**2
    return np.sort(np.argsort(-own, kind="stable")[:k])


def _random(rows: Rows, split: Split, k: int, seed: int) -> list[Columns]:
    random = np.random.default_rng(seed)
    return [np.sort(random.choice(rows.d, k, replace=False)) for _ in range(DRAWS)]


METHODS: dict[str, Callable[[Rows, Split, int, int], Any]] = {
    "select": _select,
    "search": _search,
    "concrete autoencoder": _concrete,
    "greedy": _greedy,
    "pivoted QR": _pivoted_qr,
    "variance": _variance,
    "random": _random,
}
