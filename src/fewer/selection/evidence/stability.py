"""Stability of the choice over halves of the rows: subsamples, stability index, clusters."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fewer.constraints import Constraints
from fewer.data.moments import is_wide
from fewer.data.source import AppendedColumns, Source
from fewer.errors import InputError
from fewer.search import search
from fewer.selection.size import emphasised
from fewer.validation import Fold, Scaling, Splits, fold_covariances, split_rows

__all__ = ["choices_of_halves", "describe_choices", "nogueira"]

PARTS, FEWEST_PARTS = 20, 8  # of the rows; a subsample is half of them
PART_BYTES = 2**30  # of the covariances of all parts
RARE = 0.05  # features that are chosen less often are in no cluster
ALIKE = 0.7  # correlation from which two features may be interchangeable
TOGETHER = 0.1  # fraction of subsamples that may choose two features of a cluster

Chosen = NDArray[np.bool_]
Columns = NDArray[np.int64]


def choices_of_halves(
    source: Source,
    constraints: Constraints,
    subsamples: int,
    *,
    scaling: Scaling,
    seed: int,
    device: torch.device,
    groups: NDArray | None = None,
    target: Tensor | None = None,
    noise: NDArray[np.float64] | None = None,
    begin: Callable[[int], object] = lambda number: None,
) -> tuple[Chosen, Fold]:
    """Which features are chosen (subsamples x features) from halves of the rows, and all rows.

    By greedy selection and swaps for a linear decoder or, with a ``target`` of centred numbers per
    row, for a linear map to it. ``begin`` is called with the number of each subsample.
    """
    d = source.shape[1]
    splits = _halves(source, groups, subsamples, seed)
    whole = source if target is None else AppendedColumns(source, target.numpy())
    more = 0 if target is None else target.shape[1]
    own = None if noise is None else np.pad(noise, (0, more))
    covariances = fold_covariances(whole, splits, scaling, device, own)
    rules = constraints.followed_by(more)
    chosen = np.zeros((subsamples, d), dtype=bool)
    for number, fold in enumerate(covariances.folds):
        begin(number)
        C = emphasised(fold.matrix(), d) if more else fold.matrix()
        chosen[
            number, search(C.to(device), rules, ridge=fold.penalty(0.0), stall=0, seed=0).indices
        ] = True
    return chosen, covariances.everything


def describe_choices(chosen: Chosen, everything: Fold, threshold: float) -> dict[str, Any]:
    """Stability of choices: the index, clusters of interchangeable features, both with intervals.

    Features are column numbers.
    """
    m, d = chosen.shape
    frequency = chosen.mean(axis=0)
    order = np.argsort(-frequency, kind="stable")[: int((frequency > 0).sum())]
    clusters = _clusters(everything, chosen)
    index, interval = nogueira(chosen)
    cluster_index, cluster_interval = nogueira(_merge(chosen, clusters))
    k = float(chosen.sum(axis=1).mean())
    return {
        "features": order,
        "frequency": frequency[order].tolist(),
        "index": index,
        "interval": interval,
        "clusters": [
            {"features": part, "frequency": float(chosen[:, part].any(axis=1).mean())}
            for part in clusters
        ],
        "cluster_index": cluster_index,
        "cluster_interval": cluster_interval,
        "stable": np.flatnonzero(frequency >= threshold),
        "false_bound": k**2 / ((2 * threshold - 1) * d),
        "subsamples": m,
        "threshold": threshold,
    }


def _halves(source: Source, groups: NDArray | None, subsamples: int, seed: int) -> Splits:
    """Parts of the rows, and folds that train on half of them, each after its complement."""
    n, d = source.shape
    most = n if is_wide(source) else max(FEWEST_PARTS, min(PARTS, PART_BYTES // (8 * d * d)))
    parts = split_rows(n, min(most, n), seed, groups).parts
    count = len(parts)
    if count < 4:
        raise InputError(f"there are {count} groups of rows; subsamples need at least 4")
    random = np.random.default_rng(seed)
    folds = []
    for _ in range(subsamples // 2):
        order = random.permutation(count)
        half, rest = order[: count // 2], order[count // 2 : 2 * (count // 2)]
        for own, other in ((half, rest), (rest, half)):
            folds.append((tuple(int(p) for p in own), int(other[0])))
    return Splits(parts, folds)


def nogueira(chosen: Chosen, z: float = 1.959964) -> tuple[float, tuple[float, float]]:
    """Stability of choices (subsamples x features, boolean), and its 95% interval.

    Nogueira, Sechidis and Brown (2018): one less the mean variance of the choice of a feature over
    that of random choices of the same size.
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
