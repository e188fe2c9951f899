"""Is this panel good enough: against random panels, the best found, bounds, and another panel."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fewer._checks import check_whole
from fewer._tables import Table
from fewer._threads import entry_point
from fewer.assess.scoring import Columns, Rows
from fewer.constraints import resolve
from fewer.data.source import read_blocks
from fewer.errors import InputError
from fewer.panel import Panel
from fewer.search import search
from fewer.search.eigen import leading_eigenvectors
from fewer.search.exchange import Places, whole_exchange
from fewer.search.objective import DEPENDENT, regular_inverse
from fewer.selection.size import ridge_of_others, some_rows
from fewer.train.device import float64_device
from fewer.validation import (
    FOLDS,
    RIDGES,
    Fold,
    FoldCovariances,
    fold_covariances,
    paired_interval,
    split_rows,
)

__all__ = ["Scorecard", "score"]

EXCHANGES = 3
DENSE = 2048  # features up to which the square of the covariance is formed, to score many panels
BATCH = 2**24  # numbers in a batch of panels
INTERVAL = 0.95

Vector = NDArray[np.float64]


@dataclass(frozen=True)
class Scorecard:
    """How a list of features stands; prints as a short summary.

    Scores are explained variance of held-out rows, over folds, with linear decoders.

    Attributes
    ----------
    features : list
        The features, in column order.
    explained_variance, standard_error : float
        Of the features, and its standard error over the folds.
    best : float
        Of the best panel of the same size that a search finds, on the training rows of each fold.
    pca : float
        Of as many principal components, which k features hardly ever beat.
    random : list of float
        Of random panels of the same size.
    percentile : float
        Fraction of the random panels that do worse.
    p_value : float
        Of the test that the features are no better than random ones.
    exchanges : list of dict
        The exchanges that help most: ``out``, ``into``, and the explained variance gained on
        held-out rows with its standard error over the folds; the features were chosen with all
        rows in view.
    contributions : list of dict
        For each feature the explained variance that is ``lost`` without it on held-out rows, and
        the ``p_value`` of a permutation test: whether it explains the features that are not on the
        panel better than the same column with its rows permuted does.
    against : dict or None
        The difference to another panel, "difference", with a 95% interval, "low" to "high".
    folds, scale
        Number of folds, and whether features were standardised.

    Examples
    --------
    >>> from sklearn.datasets import load_wine
    >>> found = score(["alcohol", "hue"], load_wine(as_frame=True).data, random_state=0)
    >>> found.features, found.best > found.explained_variance
    (['alcohol', 'hue'], True)
    >>> found.exchanges[0]["out"], found.exchanges[0]["into"]
    ('hue', 'flavanoids')
    """

    features: list[Any]
    explained_variance: float
    standard_error: float
    best: float
    pca: float
    random: list[float]
    percentile: float
    p_value: float
    exchanges: list[dict[str, Any]]
    contributions: list[dict[str, Any]]
    against: dict[str, float] | None
    folds: int
    scale: str

    def describe(self) -> dict[str, Any]:
        """Everything as a dictionary that can be written as JSON."""
        return asdict(self)

    def table(self) -> Table:
        """The score beside its references."""
        rows = [
            ("these features", f"{self.explained_variance:.1%}"),
            ("best panel found", f"{self.best:.1%}"),
            ("random panels, median", f"{np.median(self.random):.1%}"),
            ("PCA (reference)", f"{self.pca:.1%}"),
        ]
        return Table(("", "explained variance"), rows, (1,))

    def sentence(self) -> str:
        """What the numbers say, in words."""
        draws = len(self.random)
        text = (
            f"{self.explained_variance:.1%} ± {self.standard_error:.1%} explained variance, better "
            f"than {self.percentile:.0%} of {draws} random panels (p = {self.p_value:.3g}); the "
            f"best panel found reaches {self.best:.1%}."
        )
        if self.against is not None:
            low, high = self.against["low"], self.against["high"]
            gap = self.against["difference"]
            verdict = "better" if low > 0 else "worse" if high < 0 else "not clearly different"
            text += f" Against the other panel {gap:+.1%} ({low:+.1%} to {high:+.1%}): {verdict}."
        return text

    def __str__(self) -> str:
        lines = [self.sentence()]
        for row in self.exchanges:
            lines.append(f"exchange {row['out']} for {row['into']}: {row['gain']:+.1%}")
        return "\n".join(lines)


@entry_point
def score(
    features: Sequence[Any] | Panel,
    data: Any,
    *,
    against: Sequence[Any] | Panel | None = None,
    draws: int = 199,
    permutations: int = 99,
    scale: str = "standard",
    folds: int = FOLDS,
    row_groups: Any = None,
    random_state: Any = None,
    device: str = "auto",
) -> Scorecard:
    """Judge a list of features: against random panels, the best found, bounds, another panel.

    Everything is cross-validated with linear decoders, each with the ridge penalty that does best
    on the other folds.

    Parameters
    ----------
    features : sequence of names or column numbers, or Panel
        The features to judge.
    data : array, sparse matrix, table, path or source of shape (n, d)
        Rows with all features.
    against : sequence of features or Panel, default=None
        Another panel, of any size, to compare with.
    draws : int, default=199
        Number of random panels.
    permutations : int, default=99
        Number of permutations per feature; 0 leaves the tests of contributions out.
    folds : int, default=5
        Number of folds, at least 2.
    scale, row_groups, random_state, device
        As in `fewer.select`.

    Notes
    -----
    The p-value of the panel is the fraction of random panels, and itself, that do as well. Tests of
    contributions assume that rows are exchangeable; of ``row_groups`` one row per group is used,
    and no more than 5,000 rows. The interval of a difference is the wider of two: over rows (or
    groups of rows), and over folds with the correction of Nadeau and Bengio (2003) for training
    rows that folds share.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> found = score([0, 2], load_iris().data, against=[0, 1], random_state=0)
    >>> print(found.sentence())
    84.1% ± 1.5% explained variance, better than 32% of 199 random panels (p = 0.68); the best \
panel found reaches 94.1%. Against the other panel -5.8% (-9.0% to -2.6%): worse.
    """
    check_whole("draws", draws)
    check_whole("permutations", permutations, 0)
    check_whole("folds", folds, 2)
    rows = Rows(data, scale, row_groups, random_state, device)
    columns = _columns(rows, features)
    splits = split_rows(rows.n, min(folds, rows.n), rows.seed, rows.groups)
    covariances = fold_covariances(rows.source, splits, rows.scaling, rows.home)
    random = np.random.default_rng(rows.seed)
    k, d = len(columns), rows.d
    drawn = np.array([np.sort(random.choice(d, k, replace=False)) for _ in range(draws)])
    table = _Scores(covariances)
    place = float64_device(rows.home)
    best = [search(fold.matrix().to(place), k, seed=rows.seed, stall=0).indices
            for fold in covariances.folds]  # fmt: skip
    swaps = _exchanges(covariances.everything, columns)
    panels = [columns, *(_exchanged(columns, *pair) for pair in swaps), *drawn]
    own, *others = table.of(panels).T  # folds, for each panel
    chance = np.array([one.mean() for one in others[len(swaps) :]])
    spread = len(own) ** 0.5
    lost = _lost(covariances, columns, own)
    tests = [None] * k
    if permutations and k < d:
        tests = _contributions(covariances, columns, permutations, random, rows.groups)
    other = None
    if against is not None:
        other = _difference(covariances, columns, _columns(rows, against), rows.groups)
    return Scorecard(
        features=rows.named(columns),
        explained_variance=float(own.mean()),
        standard_error=float(own.std(ddof=1) / spread),
        best=float(table.of_folds(best).mean()),
        pca=float(np.mean([_pca(fold, k, place) for fold in covariances.folds])),
        random=chance.tolist(),
        percentile=float((chance < own.mean()).mean()),
        p_value=float((1 + (chance >= own.mean()).sum()) / (1 + draws)),
        exchanges=[
            {
                "out": rows.named(np.array([out]))[0],
                "into": rows.named(np.array([into]))[0],
                "gain": float((with_swap - own).mean()),
                "standard_error": float((with_swap - own).std(ddof=1) / spread),
            }
            for (out, into), with_swap in zip(swaps, others[: len(swaps)], strict=True)
        ],
        contributions=[
            {"feature": name, "lost": loss, "p_value": p}
            for name, loss, p in zip(rows.named(columns), lost, tests, strict=True)
        ],
        against=other,
        folds=len(splits),
        scale=scale,
    )


def _columns(rows: Rows, features: Any) -> Columns:
    return rows.columns(features.features if isinstance(features, Panel) else features)


# -- scores of many panels ---------------------------------------------------------------------


class _Scores:
    r"""Explained variance of many panels of one size on the held-out rows of each fold.

    With C and H the second moments of training and held-out rows, A = C_SS + ridge I and P its
    inverse, the residual is tr H - 2 tr(P (CH)_SS) + tr(P H_SS P (CC)_SS): once CC and CH are
    known, a panel takes O(k^3).
    """

    def __init__(self, covariances: FoldCovariances) -> None:
        self.folds = covariances.folds
        d = len(self.folds[0].scale)
        self.dense = not covariances.factored and d <= DENSE

    def of(self, panels: Sequence[Columns]) -> Vector:
        """Explained variance (folds x panels), with the penalty that does best on other folds."""
        return self._chosen([self._errors(fold, panels) for fold in self.folds])

    def of_folds(self, panels: Sequence[Columns]) -> Vector:
        """Explained variance of a panel per fold."""
        pairs = zip(self.folds, panels, strict=True)
        return self._chosen([self._errors(fold, [panel]) for fold, panel in pairs])[:, 0]

    def _chosen(self, errors: list[Vector]) -> Vector:
        table = np.stack(errors)  # folds x ridges x panels
        best = ridge_of_others(table)
        return 1 - np.take_along_axis(table, best[:, None], axis=1)[:, 0]

    def _errors(self, fold: Fold, panels: Sequence[Columns]) -> Vector:
        """Unexplained fraction (ridges x panels)."""
        unit = float(fold.variance.mean())
        ridges = [ridge * unit for ridge in RIDGES]
        total = float(fold.held_diagonal.sum())
        if not self.dense:
            found = [fold.errors(panel, ridges, known=True) for panel in panels]
            return np.array(found).T * len(fold.scale) / max(total, 1e-300)
        C = fold.matrix().cpu()
        assert isinstance(C, Tensor)
        H = fold.held_product(torch.eye(len(C), dtype=torch.float64))
        CC, CH = C @ C, C @ H
        S = torch.from_numpy(np.stack(panels))
        some = max(1, BATCH // S.shape[1] ** 2)
        parts = [_batch_errors(C, H, CC, CH, part, ridges) for part in S.split(some)]
        return torch.cat(parts, 1).numpy() / max(total, 1e-300)


def _batch_errors(
    C: Tensor, H: Tensor, CC: Tensor, CH: Tensor, S: Tensor, ridges: Sequence[float]
) -> Tensor:
    at = S[:, :, None], S[:, None]
    A, held, square, cross = C[at], H[at], CC[at], CH[at]
    full = torch.ones_like(S, dtype=torch.bool)
    found = []
    for ridge in ridges:
        P = regular_inverse(A.clone(), full, ridge)
        left = H.trace() - 2 * (P * cross).sum((1, 2)) + ((held @ P @ square) * P).sum((1, 2))
        B = P @ A  # measured features are known
        own = held - B.mT @ held - held @ B + B.mT @ held @ B
        found.append(left - own.diagonal(dim1=1, dim2=2).sum(1))
    return torch.stack(found).clamp_min(0.0)


def _pca(fold: Fold, k: int, device: torch.device) -> float:
    vectors = leading_eigenvectors(fold.matrix(), k, device=device)
    kept = float((vectors * fold.held_product(vectors)).sum())
    return kept / max(float(fold.held_diagonal.sum()), 1e-300)


# -- exchanges and contributions ---------------------------------------------------------------


def _exchanges(fold: Fold, columns: Columns) -> list[tuple[int, int]]:
    """The exchanges that lower the residual most, of different features."""
    C = fold.matrix()
    places = Places(resolve(None, len(fold.scale), len(columns)), C.device)
    state = whole_exchange(C, 0.0, places.fill([columns]), places.closed)
    gains, chosen = places.gains(state)[0], state.S[0]
    found: list[tuple[int, int]] = []
    while len(found) < min(EXCHANGES, len(columns)):
        best = int(gains.argmax())
        out, into = divmod(best, gains.shape[1])
        if float(gains[out, into]) <= 1e-9 * float(C.trace()):
            break
        found.append((int(chosen[out]), into))
        gains[out] = gains[:, into] = -torch.inf
    return found


def _exchanged(columns: Columns, out: int, into: int) -> Columns:
    return np.sort(np.append(columns[columns != out], into))


def _lost(covariances: FoldCovariances, columns: Columns, own: Vector) -> list[float]:
    """Explained variance of held-out rows that is lost without each feature."""
    if len(columns) == 1:
        return [float(own.mean())]
    rest = [columns[columns != j] for j in columns]
    return (own.mean() - _Scores(covariances).of(rest).mean(axis=0)).tolist()


def _contributions(
    covariances: FoldCovariances,
    columns: Columns,
    permutations: int,
    random: np.random.Generator,
    groups: Any,
) -> list[Any]:
    """p-value of each feature: does it explain the features that are not measured?"""
    rows = some_rows(covariances.splits.n, groups, random)
    x = covariances.everything.rows(rows).rows(slice(0, len(rows)), torch.float64)
    x = (x - x.nanmean(0)).nan_to_num_(nan=0.0)
    others = torch.from_numpy(np.setdiff1d(np.arange(x.shape[1]), columns))
    y = x[:, others]
    tall = len(x) >= len(others)
    gram = None if tall else y @ y.T
    found = []
    for j in columns:
        rest = x[:, torch.from_numpy(columns[columns != j])]
        A = rest.T @ rest
        A.diagonal().mul_(1 + DEPENDENT).add_(1e-300)
        Q = torch.linalg.solve_triangular(torch.linalg.cholesky(A), rest.T, upper=False)
        own = x[:, int(j), None].numpy()
        drawn = random.permuted(np.repeat(own, permutations, axis=1), axis=0)
        p = torch.from_numpy(np.hstack([own, drawn]))
        p = p - Q.T @ (Q @ p)  # what the other features of the panel leave of it
        if gram is None:
            explained = (y.T @ p - (y.T @ Q.T) @ (Q @ p)).square().sum(0)
        else:
            explained = (p * (gram @ p)).sum(0)
        gain = explained / p.square().sum(0).clamp_min(1e-300)
        least = gain[0] * (1 - 1e-9)  # a constant column is as good as its permutations
        found.append((1 + int((gain[1:] >= least).sum())) / (1 + permutations))
    return found


# -- one panel against another -----------------------------------------------------------------


def _difference(
    covariances: FoldCovariances, columns: Columns, other: Columns, groups: Any
) -> dict[str, float]:
    """Explained variance of one panel less that of another, with a paired interval."""
    pair = [columns, other]
    ridges = [_ridges(covariances, panel) for panel in pair]
    gaps, labels, index, total = [], [], [], 0.0
    for at, fold in enumerate(covariances.folds):
        decoders = [fold.decoder(panel, ridges[p][at]) for p, panel in enumerate(pair)]
        mean, scale = fold.mean, torch.from_numpy(fold.scale)
        for part, x in read_blocks(fold.rows(fold.held_rows)):
            centred = x - (mean - torch.from_numpy(fold.center)) / scale
            seen = ~torch.isnan(centred)
            centred = centred.nan_to_num_(nan=0.0)
            losses = []
            for panel, decoder in zip(pair, decoders, strict=True):
                gap = torch.where(seen, centred - centred[:, panel] @ decoder, 0.0)
                gap[:, panel] = 0.0
                losses.append(gap.square().sum(1))
            total += float(centred.square().sum())
            gaps.append((losses[1] - losses[0]).numpy())
            labels.append(np.full(len(x), at))
            index.append(fold.held_rows[part])
    each, rows = np.concatenate(gaps), np.concatenate(index)
    own = None if groups is None else np.asarray(groups)[rows]
    mean_gap, low, high = paired_interval(each, np.concatenate(labels), own, INTERVAL)
    unit = total / len(each)
    if unit <= 0:
        raise InputError("nothing varies in the held-out rows, so that panels cannot be compared")
    return {"difference": mean_gap / unit, "low": low / unit, "high": high / unit}


def _ridges(covariances: FoldCovariances, panel: Columns) -> list[float]:
    """For each fold, the penalty that does best on the other folds."""
    units = [float(fold.variance.mean()) for fold in covariances.folds]
    errors = [
        fold.errors(panel, [ridge * unit for ridge in RIDGES], known=True)
        for fold, unit in zip(covariances.folds, units, strict=True)
    ]
    best = ridge_of_others(np.array(errors)[:, :, None])[:, 0]
    return [RIDGES[at] * unit for at, unit in zip(best, units, strict=True)]
