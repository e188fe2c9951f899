"""Error against the number of features, on rows that took no part."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.utils import check_random_state

from fewer.assess.held_out import Columns, Rows, Split
from fewer.assess.writing import write_table
from fewer.errors import InputError
from fewer.search import greedy, search

__all__ = ["Curve", "curve"]

LEVELS = (0.8, 0.9, 0.95)


@dataclass(frozen=True)
class Curve:
    """What each number of features brings back; prints as a table.

    Attributes
    ----------
    k : list of int
        Sizes.
    share : list of float
        Share of the variance of held-out rows that k features reconstruct by a line.
    pca : list of float
        The same for k principal components, which no k features can beat by much.
    order : list
        Features, most useful first, chosen from all rows: the first k are a good panel of k.
    splits : int
        How many times rows were held out.
    scale : str
        "standard" where every feature counts the same, "none" where by its own variance.
    exact : bool
        Whether each size was searched by itself; otherwise larger panels contain smaller ones.

    Examples
    --------
    >>> found = Curve([1, 2, 4], [0.5, 0.8, 0.93], [0.6, 0.9, 0.97], [], 1, "none", False)
    >>> found.reaches(0.8), found.reaches(0.99)
    (2, None)
    """

    k: list[int]
    share: list[float]
    pca: list[float]
    order: list[Any]
    splits: int
    scale: str
    exact: bool

    def reaches(self, level: float) -> int | None:
        """The smallest of the sizes that brings back this share; None where none does.

        Examples
        --------
        >>> Curve([1, 2, 4], [0.5, 0.8, 0.93], [0.6, 0.9, 0.97], [], 1, "none", False).reaches(0.9)
        4
        """
        return next((k for k, at in zip(self.k, self.share, strict=True) if at >= level), None)

    def describe(self) -> dict[str, Any]:
        """All of it as JSON can hold it."""
        return {
            "k": self.k,
            "share": self.share,
            "pca": self.pca,
            "reaches": {f"{level:g}": self.reaches(level) for level in LEVELS},
            "order": self.order,
            "splits": self.splits,
            "scale": self.scale,
            "exact": self.exact,
        }

    def write(self, path: str | os.PathLike[str]) -> Path:
        """Write a picture (.png, .svg, .pdf), a table (.csv) or all of it (.json)."""
        path = Path(path)
        if path.suffix.lower() in (".csv", ".json"):
            columns: dict[str, list[Any]] = {"k": self.k, "share": self.share, "pca": self.pca}
            return write_table(path, columns, self.describe())
        from fewer.assess.drawing import draw_curve  # noqa: PLC0415 matplotlib takes a while

        return draw_curve(self, path)

    def __str__(self) -> str:
        lines = [f"{'k':>6}{'share':>9}{'PCA':>9}"]
        rows = zip(self.k, self.share, self.pca, strict=True)
        return "\n".join([*lines, *(f"{k:>6}{a:>9.1%}{b:>9.1%}" for k, a, b in rows)])


def curve(
    data: Any,
    k: Sequence[int],
    *,
    scale: str = "standard",
    held: float = 0.2,
    row_groups: Any = None,
    exact: bool = False,
    random_state: Any = None,
    device: str = "auto",
    progress: Callable[[str, float], None] | None = None,
) -> Curve:
    """How much of held-out rows comes back from k features, for several k.

    One nested path of features is chosen from training rows by greedy selection; for each size a
    linear decoder is fitted on the same rows and judged on the others.

    Parameters
    ----------
    data : array, sparse matrix, table, path or source of shape (n, d)
        Whatever `fewer.select` takes.
    k : sequence of int
        Sizes.
    scale : {"standard", "none"}, default="standard"
        "standard": every feature counts the same. "none": by its own variance.
    held : float, default=0.2
        Share of rows held out; 5 folds instead where there are fewer than 100 rows for each of
        the most features.
    row_groups : array of length n, default=None
        Rows with the same label are held out together.
    exact : bool, default=False
        Search each size by itself, which takes longer and is a little better.
    random_state : int, RandomState or None, default=None
        Fixes the result.
    device : str, default="auto"
        "auto" (CUDA, MPS or CPU), or any torch device.
    progress : callable, default=None
        Called as ``progress(what, share)`` while it works.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> found = curve(load_digits().data, [5, 10, 20], scale="none", random_state=0)
    >>> print(found)
         k    share      PCA
         5    39.2%    54.1%
        10    60.7%    73.4%
        20    82.3%    88.9%
    >>> found.reaches(0.8)
    20
    """
    sizes = sorted({int(size) for size in k})
    if not sizes or sizes[0] < 1:
        raise InputError(f"k={list(k)!r}: give at least one size, each at least 1")
    tell = progress or (lambda what, share: None)
    seed = int(check_random_state(random_state).randint(2**31 - 1))
    tell("reading", 0.0)
    rows = Rows(data, scale, row_groups, seed, device)
    splits = rows.splits(sizes[-1], held, None)
    shares, pca = [], []
    steps = len(splits) * len(sizes)
    for at, split in enumerate(splits):
        panels = _panels(split, sizes, exact, seed, tell, (at * len(sizes), steps))
        shares.append([split.share(panel) for panel in panels])
        pca.append(split.pca_shares(sizes[-1])[np.array(sizes) - 1])
    return Curve(
        sizes,
        np.mean(shares, axis=0).tolist(),
        np.mean(pca, axis=0).tolist(),
        rows.named(_order(rows, splits, sizes[-1])),
        len(splits),
        scale,
        exact,
    )


def _panels(
    split: Split,
    sizes: list[int],
    exact: bool,
    seed: int,
    tell: Callable[[str, float], None],
    done: tuple[int, int],
) -> list[Columns]:
    if not exact:
        tell("nested path", done[0] / done[1])
        order = greedy(split.train, sizes[-1]).order
        return [np.sort(order[:size]) for size in sizes]
    found: list[Columns] = []
    for at, size in enumerate(sizes):
        tell(f"search for k = {size}", (done[0] + at) / done[1])
        found.append(search(split.train, size, seed=seed).indices)
    return found


def _order(rows: Rows, splits: list[Split], most: int) -> Columns:
    """The path over all rows: their covariance follows from both sides of a parting."""
    fold = splits[0].fold
    share = len(fold.held_index) / rows.n
    about = (1 - share) * fold.train + share * fold.held  # about the training mean: near enough
    return greedy(about.to(splits[0].device), most).order
