"""Is this panel good enough: against random panels, the best found, bounds, and another panel."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fewer._checks import check_whole
from fewer._tables import Table, percent_text
from fewer._threads import entry_point
from fewer.assess.scoring import Columns, Rows
from fewer.constraints import resolve
from fewer.data.source import read_blocks
from fewer.errors import InputError
from fewer.estimate import (
    fold_ridges,
)
from fewer.panel import Panel
from fewer.search import search
from fewer.search.exchange import Places, whole_exchange
from fewer.selection.significance import PanelScores, contribution_p_values, p_value_of
from fewer.train.device import float64_device
from fewer.validation import (
    FOLDS,
    Fold,
    FoldCovariances,
    paired_interval,
)

__all__ = ["Scorecard", "score"]

EXCHANGES = 3
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
        Of the features, and its standard error over the folds. The features are the same on all
        folds, unless they are a panel that `fewer.select` made from these rows: then it is the
        score of that panel, whose features were chosen again on each fold.
    best, best_standard_error : float
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
    protocol : str
        How rows were held out.
    made_here : bool
        Whether the features are a panel that was made from these rows.

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
    standard_error: float | None
    best: float
    best_standard_error: float | None
    pca: float
    random: list[float]
    percentile: float
    p_value: float
    exchanges: list[dict[str, Any]]
    contributions: list[dict[str, Any]]
    against: dict[str, float] | None
    folds: int
    scale: str
    protocol: str
    made_here: bool = False

    def describe(self) -> dict[str, Any]:
        """Everything as a dictionary that can be written as JSON."""
        return asdict(self)

    def table(self) -> Table:
        """The score beside its references."""
        rows = [
            ("these features", self.explained_variance, self.standard_error),
            ("best panel found", self.best, self.best_standard_error),
            ("random panels, median", float(np.median(self.random)), None),
            ("PCA (reference)", self.pca, None),
        ]
        cells = [
            (name, f"{value:.1%}", "" if error is None else f"{error:.1%}")
            for name, value, error in rows
        ]
        return Table(("", "explained variance", "±"), cells, (1, 2))

    def sentence(self) -> str:
        """What the numbers say, in words."""
        draws = len(self.random)
        text = (
            f"{percent_text(self.explained_variance, self.standard_error)} explained variance, "
            f"better than {self.percentile:.0%} of {draws} random panels (p = {self.p_value:.3g}); "
            f"the best panel found reaches {percent_text(self.best, self.best_standard_error)}."
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

    Everything is cross-validated with linear decoders; where rows are few, each with the ridge
    penalty that does best on the other folds.

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
        Number of folds of the cross-validation, at least 2.
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
    84.0% ± 2.0% explained variance, better than 32% of 199 random panels (p = 0.68); the best \
panel found reaches 94.0% ± 0.9%. Against the other panel -5.8% (-9.0% to -2.6%): worse.
    """
    check_whole("draws", draws)
    check_whole("permutations", permutations, 0)
    rows = Rows(data, scale, row_groups, random_state, device, folds)
    (columns, value), covariances = rows.judged(features), rows.covariances
    made = features if isinstance(features, Panel) and rows.made(features) else None
    random = np.random.default_rng(rows.seed)
    k, d = len(columns), rows.d
    drawn = np.array([np.sort(random.choice(d, k, replace=False)) for _ in range(draws)])
    table = PanelScores(covariances)
    place = float64_device(rows.home)
    best = rows.estimate([search(fold.matrix().to(place), k, seed=rows.seed, stall=0).indices
                          for fold in covariances.folds])  # fmt: skip
    swaps = _exchanges(covariances.everything, columns)
    panels = [columns, *(_exchanged(columns, *pair) for pair in swaps), *drawn]
    own, *others = table.of(panels).T  # left unexplained: folds, for each panel
    chance = np.array([table.explained(one).value for one in others[len(swaps) :]])
    here = table.explained(own).value
    tests: list[Any] = [None] * k
    if permutations and k < d:
        tests = contribution_p_values(covariances, columns, permutations, random, rows.groups)
    other = None
    if against is not None:
        named = against.features if isinstance(against, Panel) else against
        other = _difference(covariances, columns, rows.columns(named), rows.groups)
    gains = [table.gain(own, with_swap) for with_swap in others[: len(swaps)]]
    return Scorecard(
        features=rows.named(columns),
        explained_variance=value.value,
        standard_error=value.standard_error,
        best=best.value,
        best_standard_error=best.standard_error,
        pca=table.pca(k, place).value,
        random=chance.tolist(),
        percentile=float((chance < here).mean()),
        p_value=p_value_of(here, chance),
        exchanges=[
            {
                "out": rows.named(np.array([out]))[0],
                "into": rows.named(np.array([into]))[0],
                "gain": gain.value,
                "standard_error": gain.standard_error,
            }
            for (out, into), gain in zip(swaps, gains, strict=True)
        ],
        contributions=[
            {"feature": name, "lost": loss, "p_value": p}
            for name, loss, p in zip(
                rows.named(columns), _lost(table, columns, here), tests, strict=True
            )
        ],
        against=other,
        folds=len(covariances.folds),
        scale=scale,
        protocol=rows.protocol if made is None else made.settings["protocol"],
        made_here=made is not None,
    )


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


def _lost(table: PanelScores, columns: Columns, here: float) -> list[float]:
    """Explained variance of held-out rows that is lost without each feature."""
    if len(columns) == 1:
        return [here]
    rest = [columns[columns != j] for j in columns]
    return [here - table.explained(left).value for left in table.of(rest).T]


# -- one panel against another -----------------------------------------------------------------


def _difference(
    covariances: FoldCovariances, columns: Columns, other: Columns, groups: Any
) -> dict[str, float]:
    """Explained variance of one panel less that of another, with a paired interval."""
    pair = [columns, other]
    folds, n = covariances.folds, covariances.splits.n
    ridges = [fold_ridges(folds, [panel] * len(folds), n) for panel in pair]
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
