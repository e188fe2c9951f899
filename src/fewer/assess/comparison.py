"""Methods side by side: each chooses on the training rows, all are scored on the same others."""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from scipy.linalg import qr
from scipy.linalg.lapack import dpstrf

from fewer._checks import check_choice, check_whole
from fewer._display import Tabular, draw_bars
from fewer._tables import Table, write_table
from fewer._threads import entry_point
from fewer.assess.scoring import Columns, Rows, Split
from fewer.data import ScaledSource
from fewer.data.factored import FactoredCovariance
from fewer.search import greedy, search
from fewer.selection import select
from fewer.selection.context import WorkPlan

DRAWS = 10
REFERENCE = "PCA (reference)"


@dataclass(frozen=True)
class Comparison(Tabular):
    """Explained variance reached by each method, best first; prints as a table.

    Attributes
    ----------
    rows : list of dict
        For each method: method, k, explained_variance (of held-out rows), std (over splits),
        overlap (fraction of features that two splits have in common, None for one split),
        seconds, features (of the first split).
    splits, scale
        Number of splits, and whether features were standardised.

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
        """The comparison as a dictionary that can be written as JSON."""
        return asdict(self)

    def write(self, path: str | os.PathLike[str]) -> Path:
        """Write the table (.csv) or everything (.json)."""
        return write_table(Path(path), self.columns(), self.describe())

    def columns(self) -> dict[str, list[Any]]:
        """The rows as columns of values; see also `to_frame`."""
        names = ("method", "k", "explained_variance", "std", "overlap", "seconds")
        return {name: [row[name] for row in self.rows] for name in names}

    def plot(self, axes: Any = None) -> Any:
        """Draw the explained variance of each method as a bar, with its spread over splits.

        Parameters
        ----------
        axes : matplotlib Axes, default=None
            Where to draw; None makes a new figure.

        Returns
        -------
        matplotlib Axes
        """
        found = self.columns()
        what = "explained variance of held-out rows"
        errors = found["std"] if self.splits > 1 else None
        return draw_bars(
            axes,
            found["method"],
            found["explained_variance"],
            what,
            errors=errors,
            grey=[REFERENCE],
        )

    def __str__(self) -> str:
        return str(self.table())

    def table(self) -> Table:
        """The rows as text; with several splits also their spread and how far panels agree."""
        several = self.splits > 1
        header = ["method", "k", "explained variance"]
        header += ["±", "overlap", "seconds"] if several else ["seconds"]
        rows = []
        for row in self.rows:
            cells = [row["method"], str(row["k"]), f"{row['explained_variance']:.1%}"]
            if several:
                cells += [f"{row['std']:.1%}", _or_blank(row["overlap"], ".1%")]
            rows.append([*cells, _or_blank(row["seconds"], ".1f")])
        return Table(header, rows, range(1, len(header)))


@entry_point
def compare(
    data: Any,
    k: int,
    *,
    methods: Sequence[str] | None = None,
    panels: Mapping[str, Sequence[Any]] | None = None,
    scale: str = "standard",
    test_size: float = 0.25,
    repeats: int = 1,
    row_groups: Any = None,
    random_state: Any = None,
    device: str = "auto",
    progress: Callable[[str, float], None] | None = None,
) -> Comparison:
    """Choose k features by several methods and score them on held-out rows.

    Methods see only the training rows. All use the same linear decoder, fitted on the training
    rows, with a ridge penalty chosen within them where rows are few.

    Parameters
    ----------
    k : int
        Number of features.
    methods : sequence of str, default=None
        Some of `METHODS`; all if None.
    panels : mapping from name to list of features, default=None
        Panels of your own to compare; they need not have k features.
    test_size : float, default=0.25
        Fraction of rows held out.
    repeats : int, default=1
        Number of random splits; several show how stable each choice is.
    progress : callable, default=None
        Called as ``progress(step, fraction_done)``.
    data, scale, row_groups, random_state, device
        As in `fewer.select`.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> found = compare(load_digits().data, 10, methods=["search", "random"], scale="none",
    ...                 random_state=0)
    >>> [row["method"] for row in found.rows]
    ['PCA (reference)', 'search', 'random']
    """
    names = list(METHODS) if methods is None else list(methods)
    for name in names:
        check_choice("methods", name, list(METHODS))
    check_whole("repeats", repeats)
    plan = WorkPlan(progress)
    plan.begin("reading", "reading")
    for name in names:
        plan.expect(name, repeats)
    rows = Rows(data, scale, row_groups, random_state, device)
    given = {name: rows.columns(features) for name, features in (panels or {}).items()}
    splits = rows.splits(k, test_size, repeats)
    found = []
    for name, columns in given.items():
        scores = [split.explained_variance(columns) for split in splits]
        found.append(_row(name, len(columns), scores, features=rows.named(columns)))
    for name in names:
        chosen, began = [], time.perf_counter()
        for part, split in enumerate(splits):
            plan.begin(name, name)
            chosen.append(METHODS[name](rows, split, k, rows.seed + part))
        seconds = (time.perf_counter() - began) / repeats
        # several panels per split, such as random draws: their mean counts
        scores = [
            float(np.mean([split.explained_variance(panel) for panel in panels]))
            for split, panels in zip(splits, chosen, strict=True)
        ]
        first = [panels[0] for panels in chosen]
        features = rows.named(first[0])
        found.append(_row(name, k, scores, features, seconds, _overlap(first)))
    reference = [float(split.pca_explained_variance(k)[-1]) for split in splits]
    found.append(_row(REFERENCE, k, reference))
    found.sort(key=lambda row: -row["explained_variance"])
    return Comparison(found, repeats, scale)


def _row(
    method: str,
    k: int,
    scores: list[float],
    features: list[Any] | None = None,
    seconds: float | None = None,
    overlap: float | None = None,
) -> dict[str, Any]:
    mean, std = float(np.mean(scores)), float(np.std(scores))
    row = {"method": method, "k": k, "explained_variance": mean, "std": std}
    return row | {"overlap": overlap, "seconds": seconds, "features": features}


def _overlap(panels: list[Columns]) -> float | None:
    """Fraction of features that two panels have in common, averaged over pairs of splits."""
    pairs = [len(np.intersect1d(a, b)) / max(len(a), len(b)) for a, b in combinations(panels, 2)]
    return float(np.mean(pairs)) if pairs else None


def _or_blank(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


# -- methods: from rows, a split, k and a seed to panels of ascending column numbers ----------
# simple ones work on the covariance, which never needs all rows in memory as `fewer.baselines` do


def _select(rows: Rows, split: Split, k: int, seed: int) -> list[Columns]:
    labels = None if rows.groups is None else rows.groups[split.fold.train_rows]
    if labels is not None and len(np.unique(labels)) < 2:
        labels = None
    found = select(
        rows.train(split),
        k,
        scale=rows.scaling.how,
        row_groups=labels,
        random_state=seed,
        device=str(rows.home),
    )
    return [found.indices]


def _concrete(rows: Rows, split: Split, k: int, seed: int) -> list[Columns]:
    from fewer.estimators import ConcreteAutoencoder  # noqa: PLC0415 (loads scikit-learn)

    scaled = ScaledSource(rows.train(split), split.fold.center, split.fold.scale)
    model = ConcreteAutoencoder(k, random_state=seed, device=str(rows.home))
    return [model.fit(scaled).columns_]


def _pivoted_qr(rows: Rows, split: Split, k: int, seed: int) -> list[Columns]:
    C = split.train.cpu()
    if isinstance(C, FactoredCovariance):
        pivots = qr(C.rows.numpy(), mode="r", pivoting=True)[1]
    else:
        # the pivots of QR on centred rows are those of Cholesky on their covariance
        pivots = dpstrf(C.numpy(), tol=0.0)[1] - 1
    return [np.sort(pivots[:k].astype(np.int64))]


def _variance(rows: Rows, split: Split, k: int, seed: int) -> list[Columns]:
    # in the units of the data, since scaled features all have the same variance
    own = split.fold.variance * split.fold.scale**2
    return [np.sort(np.argsort(-own, kind="stable")[:k])]


def _random(rows: Rows, split: Split, k: int, seed: int) -> list[Columns]:
    random = np.random.default_rng(seed)
    return [np.sort(random.choice(rows.d, k, replace=False)) for _ in range(DRAWS)]


METHODS: dict[str, Callable[[Rows, Split, int, int], list[Columns]]] = {
    "select": _select,
    "search": lambda rows, split, k, seed: [search(split.train, k, seed=seed).indices],
    "concrete autoencoder": _concrete,
    "greedy": lambda rows, split, k, seed: [greedy(split.train, k).panel()],
    "pivoted QR": _pivoted_qr,
    "variance": _variance,
    "random": _random,
}
