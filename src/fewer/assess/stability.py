"""How sure a choice is: which features are chosen again from other rows."""

import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fewer._checks import check_number, check_whole, join_names
from fewer._tables import Table, write_table
from fewer._threads import entry_point
from fewer.assess.scoring import Columns, Rows
from fewer.data.moments import is_wide
from fewer.errors import InputError
from fewer.search import search
from fewer.selection.context import WorkPlan
from fewer.train.device import float64_device
from fewer.validation import Fold, Splits, fold_covariances, split_rows

__all__ = ["Stability", "nogueira", "stability"]

PARTS, FEWEST_PARTS = 20, 8  # of the rows; a subsample is half of them
PART_BYTES = 2**30  # of the covariances of all parts
RARE = 0.05  # features that are chosen less often are in no cluster
ALIKE = 0.7  # correlation from which two features may be interchangeable
TOGETHER = 0.1  # fraction of subsamples that may choose two features of a cluster
SHOWN = 20  # features in the printed table

Chosen = NDArray[np.bool_]


@dataclass(frozen=True)
class Stability:
    """How often each feature is chosen from half of the rows; prints as a table.

    Attributes
    ----------
    features, frequency : lists
        All features that were chosen at least once, and the fraction of subsamples that chose
        them, highest first.
    index, interval : float, (float, float)
        Stability of the whole choice, from 0 (as random choices agree) to 1 (always the same), by
        Nogueira, Sechidis and Brown (2018), and its 95% interval.
    clusters : list of dict
        Features that are correlated and hardly ever chosen together: "features", and the
        "frequency" of subsamples that chose one of them. They share their votes.
    cluster_index, cluster_interval : float, (float, float)
        As ``index``, where a cluster counts as one feature.
    stable : list
        Features chosen in at least ``threshold`` of the subsamples.
    false_bound : float
        The expected number of ``stable`` features that one half of the rows would choose no more
        often than a random choice does is at most this (Shah and Samworth, 2013).
    k, subsamples, threshold, scale
        As given.

    Examples
    --------
    >>> from sklearn.datasets import load_wine
    >>> found = stability(load_wine(as_frame=True).data, 3, subsamples=20, random_state=0)
    >>> found.features[0], found.frequency[0] > 0.5
    ('flavanoids', True)
    """

    features: list[Any]
    frequency: list[float]
    index: float
    interval: tuple[float, float]
    clusters: list[dict[str, Any]]
    cluster_index: float
    cluster_interval: tuple[float, float]
    stable: list[Any]
    false_bound: float
    k: int
    subsamples: int
    threshold: float
    scale: str

    def describe(self) -> dict[str, Any]:
        """Everything as a dictionary that can be written as JSON."""
        return asdict(self)

    def write(self, path: str | os.PathLike[str]) -> Path:
        """Write the frequencies (.csv) or everything (.json)."""
        columns = {"feature": self.features, "frequency": self.frequency}
        return write_table(Path(path), columns, self.describe())

    def sentence(self) -> str:
        """What the numbers say, in words."""
        low, high = self.cluster_interval
        text = (
            f"Stability {self.index:.2f} ({self.interval[0]:.2f} to {self.interval[1]:.2f}); with "
            f"interchangeable features counted as one {self.cluster_index:.2f} ({low:.2f} to "
            f"{high:.2f}). {len(self.stable)} of {self.k} features are chosen in at least "
            f"{self.threshold:.0%} of {self.subsamples} subsamples"
        )
        return text + f"; at most {self.false_bound:.2g} of them are expected to be chance."

    def table(self) -> Table:
        """The features that are chosen most often, and the clusters that share votes."""
        own = {name: cluster for cluster in self.clusters for name in cluster["features"]}
        rows = []
        for name, share in list(zip(self.features, self.frequency, strict=True))[:SHOWN]:
            cluster = own.get(name)
            others = [] if cluster is None else [o for o in cluster["features"] if o != name]
            whole = "" if cluster is None else f"{cluster['frequency']:.0%}"
            rows.append((str(name), f"{share:.0%}", whole, join_names(others, 3, quoted=False)))
        header = ("feature", "frequency", "of its cluster", "interchangeable with")
        return Table(header, rows, (1, 2))

    def __str__(self) -> str:
        return f"{self.table()}\n{self.sentence()}"


@entry_point
def stability(
    data: Any,
    k: int,
    *,
    subsamples: int = 100,
    threshold: float = 0.75,
    scale: str = "standard",
    row_groups: Any = None,
    random_state: Any = None,
    device: str = "auto",
    progress: Callable[[str, float], None] | None = None,
) -> Stability:
    """Choose k features from many halves of the rows, and see which come back.

    The rows are divided at random into parts, whose covariances are computed in one pass; a
    subsample is the sum of half of them, and always comes with its complement. On each, features
    are chosen by greedy selection and swaps for a linear decoder.

    Parameters
    ----------
    k : int
        Number of features.
    subsamples : int, default=100
        Number of subsamples, an even number of at least 4.
    threshold : float, default=0.75
        Fraction of subsamples from which a feature counts as stable, above 0.5.
    progress : callable, default=None
        Called as ``progress(step, fraction_done)``.
    data, scale, row_groups, random_state, device
        As in `fewer.select`; rows of one group are drawn together.

    Notes
    -----
    The bound on falsely chosen features assumes nothing but that rows (or groups of rows) are
    independent and drawn alike. "False" means: chosen from half of the rows with a probability of
    at most k / d, that of a random choice. With frequencies :math:`\\tau` over complementary pairs
    the expected number of such features among the stable ones is at most
    :math:`k^2 / ((2 \\tau - 1) d)`.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> found = stability(load_digits().data, 8, subsamples=20, scale="none", random_state=0)
    >>> 0 < found.index < found.cluster_index < 1
    True
    """
    check_whole("subsamples", subsamples, 4)
    if subsamples % 2:
        raise InputError(f"subsamples={subsamples} must be even: each comes with its complement")
    check_number("threshold", threshold, above=0.5, below=1)
    plan = WorkPlan(progress)
    plan.begin("reading", "reading")
    rows = Rows(data, scale, row_groups, random_state, device)
    check_whole("k", k, 1, rows.d, ", the number of features")
    splits = _halves(rows, subsamples)
    covariances = fold_covariances(rows.source, splits, rows.scaling, rows.home)
    plan.expect("subsample", subsamples)
    chosen = np.zeros((subsamples, rows.d), dtype=bool)
    place = float64_device(rows.home)
    for number, fold in enumerate(covariances.folds):
        plan.begin("subsample", f"subsample {number + 1} of {subsamples}")
        chosen[number, _panel(fold, k, place)] = True
    frequency = chosen.mean(axis=0)
    order = np.argsort(-frequency, kind="stable")[: int((frequency > 0).sum())]
    clusters = _clusters(covariances.everything, chosen)
    merged = _merge(chosen, clusters)
    index, interval = nogueira(chosen)
    cluster_index, cluster_interval = nogueira(merged)
    stable = np.flatnonzero(frequency >= threshold)
    return Stability(
        features=rows.named(order),
        frequency=frequency[order].tolist(),
        index=index,
        interval=interval,
        clusters=[
            {"features": rows.named(part), "frequency": float(chosen[:, part].any(axis=1).mean())}
            for part in clusters
        ],
        cluster_index=cluster_index,
        cluster_interval=cluster_interval,
        stable=rows.named(stable),
        false_bound=k**2 / ((2 * threshold - 1) * rows.d),
        k=k,
        subsamples=subsamples,
        threshold=threshold,
        scale=scale,
    )


def _halves(rows: Rows, subsamples: int) -> Splits:
    """Parts of the rows, and folds that train on half of them, each after its complement."""
    n, d = rows.n, rows.d
    most = n if is_wide(rows.source) else max(FEWEST_PARTS, min(PARTS, PART_BYTES // (8 * d * d)))
    parts = split_rows(n, min(most, n), rows.seed, rows.groups).parts
    count = len(parts)
    if count < 4:
        raise InputError(f"there are {count} groups of rows; subsamples need at least 4")
    random = np.random.default_rng(rows.seed)
    folds = []
    for _ in range(subsamples // 2):
        order = random.permutation(count)
        half, rest = order[: count // 2], order[count // 2 : 2 * (count // 2)]
        for own, other in ((half, rest), (rest, half)):
            folds.append((tuple(int(p) for p in own), int(other[0])))
    return Splits(parts, folds)


def _panel(fold: Fold, k: int, device: Any) -> Columns:
    return search(fold.matrix().to(device), k, stall=0, seed=0).indices


def nogueira(chosen: Chosen, z: float = 1.959964) -> tuple[float, tuple[float, float]]:
    """Stability of choices (subsamples x features, boolean), and its 95% interval.

    Nogueira, Sechidis and Brown (2018): one less the mean variance of the choice of a feature over
    that of random choices of the same size.

    Examples
    --------
    >>> always = np.tile([True, True, False, False], (10, 1))
    >>> nogueira(always)
    (1.0, (1.0, 1.0))
    """
    m, d = chosen.shape
    share, size = chosen.mean(axis=0), chosen.sum(axis=1)
    mean = float(size.mean())
    expected = mean / d * (1 - mean / d)
    if expected <= 0:  # all features, or none
        return 1.0, (1.0, 1.0)
    index = 1 - float((m / (m - 1) * share * (1 - share)).mean()) / expected
    each = chosen @ share / d - size * mean / d**2
    each += index / 2 * (2 * mean * size / d**2 - size / d - mean / d + 1)
    each /= expected
    error = 2 / m * float(((each - each.mean()) ** 2).sum()) ** 0.5
    return index, (index - z * error, min(1.0, index + z * error))


def _clusters(fold: Fold, chosen: Chosen) -> list[Columns]:
    """Correlated features that are hardly ever chosen together, most frequent cluster first."""
    often = np.flatnonzero(chosen.mean(axis=0) >= RARE)
    C = fold.matrix().cpu()[often][:, often].numpy()
    spread = np.sqrt(np.maximum(C.diagonal(), 1e-300))
    alike = np.abs(C / spread / spread[:, None])
    one, other = np.triu_indices(len(often), 1)
    pairs = np.flatnonzero(alike[one, other] >= ALIKE)
    members = {at: [at] for at in range(len(often))}
    home = list(range(len(often)))
    for pair in pairs[np.argsort(-alike[one[pairs], other[pairs]], kind="stable")]:
        a, b = home[one[pair]], home[other[pair]]
        if a == b:
            continue
        both = members[a] + members[b]
        if (chosen[:, often[both]].sum(axis=1) > 1).mean() > TOGETHER:
            continue
        members[a] = both
        for at in members.pop(b):
            home[at] = a
    found = [np.sort(often[part]) for part in members.values() if len(part) > 1]
    return sorted(found, key=lambda part: -chosen[:, part].any(axis=1).mean())


def _merge(chosen: Chosen, clusters: list[Columns]) -> Chosen:
    """Choices where each cluster is one feature."""
    inside = np.concatenate([np.arange(0), *clusters]).astype(np.int64)
    rest = np.delete(chosen, inside, axis=1)
    together = [chosen[:, part].any(axis=1, keepdims=True) for part in clusters]
    return np.hstack([rest, *together])
