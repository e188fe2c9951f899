"""Is this panel good enough: against random panels, the best found, bounds, and another panel."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fewer._checks import check_whole
from fewer._tables import Table, percent_text
from fewer._threads import entry_point
from fewer.assess.scoring import Columns, Rows
from fewer.constraints import Constraints, resolve
from fewer.data.source import read_blocks
from fewer.errors import InputError
from fewer.panel import Panel
from fewer.search import search
from fewer.search.substitutes import substitutes
from fewer.selection.evidence.significance import (
    DENSE,
    PanelScores,
    contribution_p_values,
    p_value_of,
    random_panels,
)
from fewer.selection.size import few_groups
from fewer.train.device import float64_device
from fewer.validation import FOLDS, paired_interval

__all__ = ["Scorecard", "score"]

EXCHANGES = 3
INTERVAL = 0.95

Vector = NDArray[np.float64]


@dataclass(frozen=True)
class Scorecard:
    """How a list of features stands; prints as a short summary.

    Scores are explained variance of held-out rows, over folds, with linear decoders; with a target,
    its explained variance by a linear map (of classes, that of their indicators).

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
    pca : float or None
        Of as many principal components, which k features hardly ever beat; None with a target.
    all_features : float or None
        Of a linear map from all features to the target; None without a target, and where features
        are more than 2,048.
    random : list of float
        Of random panels of the same size, within the constraints.
    percentile : float
        Fraction of the random panels that do worse.
    p_value : float
        Of the test that the features are no better than random ones.
    exchanges : list of dict
        The swaps that help most: ``out``, ``into``, and the explained variance gained on
        held-out rows with its standard error over the folds; the features were chosen with all
        rows in view.
    contributions : list of dict
        For each feature the explained variance that is ``lost`` without it on held-out rows, and
        the ``p_value`` of a permutation test: whether it explains the features that are not on the
        panel (the target, if there is one) better than the same column with its rows permuted does.
        A group of features is taken out, and permuted, as a whole. None without permutations, and
        where rows are of too few groups, of which one row each is permuted.
    against : dict or None
        The difference to another panel, "difference", with a 95% interval, "low" to "high", and
        "how" it was found: "refitted" in folds, or "as they are", with their own decoders; of
        "what": explained variance or, of predictions as they are, accuracy or R².
    folds, scale
        Number of folds, and whether features were standardised.
    protocol : str
        How rows were held out.
    made_here : bool
        Whether the features are a panel that was made from these rows.
    target : str or None
        Name of the target.

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
    pca: float | None
    random: list[float]
    percentile: float
    p_value: float
    exchanges: list[dict[str, Any]]
    contributions: list[dict[str, Any]]
    against: dict[str, Any] | None
    folds: int
    scale: str
    protocol: str
    made_here: bool = False
    target: str | None = None
    all_features: float | None = None

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
            ("all features", self.all_features, None),
        ]
        cells = [
            (name, f"{value:.1%}", "" if error is None else f"{error:.1%}")
            for name, value, error in rows
            if value is not None
        ]
        what = "explained variance" + ("" if self.target is None else f" of {self.target}")
        return Table(("", what, "±"), cells, (1, 2))

    def sentence(self) -> str:
        """What the numbers say, in words."""
        draws, of = len(self.random), "" if self.target is None else f" of {self.target}"
        text = (
            f"{percent_text(self.explained_variance, self.standard_error)} explained variance{of}, "
            f"better than {self.percentile:.0%} of {draws} random panels (p = {self.p_value:.3g}); "
            f"the best panel found reaches {percent_text(self.best, self.best_standard_error)}."
        )
        if self.against is not None:
            low, high = self.against["low"], self.against["high"]
            gap = self.against["difference"]
            verdict = "better" if low > 0 else "worse" if high < 0 else "not clearly different"
            what = self.against["what"] if self.against["how"] == "as they are" else ""
            name = (
                f"the other panel, with {what} of both as they are:" if what else "the other panel"
            )
            text += f" Against {name} {gap:+.1%} ({low:+.1%} to {high:+.1%}): {verdict}."
        return text

    def __str__(self) -> str:
        lines = [self.sentence()]
        for row in self.exchanges:
            lines.append(f"swap {row['out']} for {row['into']}: {row['gain']:+.1%}")
        return "\n".join(lines)


@entry_point
def score(
    features: Sequence[Any] | Panel,
    data: Any,
    *,
    against: Sequence[Any] | Panel | None = None,
    target: Any = None,
    target_kind: Any = "auto",
    include: Any = (),
    exclude: Any = (),
    costs: Any = None,
    budget: Any = None,
    groups: Any = None,
    sets: Any = None,
    at_least: Any = None,
    at_most: Any = None,
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
        Another panel, of any size, to compare with. Two panels that were both made from other rows
        are compared as they are, with their own decoders; otherwise decoders are fitted again.
    target : array of length n or (n, m), or name of a column, default=None
        Judge how well a linear map from the features explains this instead.
    target_kind : "auto" or the name of a kind, default="auto"
        How the target is read, as in `fewer.select`.
    include, exclude, costs, budget, groups, sets, at_least, at_most
        Constraints that random panels, the best panel and exchanges obey, as in `fewer.select`.
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
    >>> X, y = load_iris(return_X_y=True)
    >>> found = score([0, 2], X, against=[0, 1], random_state=0)
    >>> print(found.sentence())
    84.0% ± 2.0% explained variance, better than 31% of 199 random panels (p = 0.69); the best \
panel found reaches 94.0% ± 0.9%. Against the other panel -5.8% (-9.0% to -2.6%): worse.
    >>> named = score([0, 3], X, target=y.astype(str), random_state=0)
    >>> [f"{row['feature']}: p = {row['p_value']:g}" for row in named.contributions]
    ['0: p = 0.79', '3: p = 0.01']
    """
    check_whole("draws", draws)
    check_whole("permutations", permutations, 0)
    rows = Rows(
        data, scale, row_groups, random_state, device, folds, target, target_kind=target_kind
    )
    (columns, value), covariances = rows.judged(features), rows.covariances
    made = features if isinstance(features, Panel) and rows.made(features) else None
    asked = {"include": include, "exclude": exclude, "costs": costs, "groups": groups}
    asked |= {"budget": budget, "sets": sets, "at_least": at_least, "at_most": at_most}
    rules = _rules(rows, columns, asked)
    random = np.random.default_rng(rows.seed)
    k, d, more = len(columns), rows.d, rows.more
    drawn = random_panels(rules, draws, random)
    table = PanelScores(covariances, more)
    place = float64_device(rows.home)
    extended = rules.followed_by(more)
    matrices = (rows.objective(fold).to(place) for fold in covariances.folds)
    found = [search(C, extended, seed=rows.seed, stall=0).indices for C in matrices]
    best = rows.estimate(found)
    swaps = _exchanges(rows, columns, rules)
    panels = [columns, *(_exchanged(columns, *pair, rules) for pair in swaps), *drawn]
    own, *others = table.of(panels).T  # left unexplained: folds, for each panel
    chance = np.array([table.explained(one).value for one in others[len(swaps) :]])
    here = table.explained(own).value
    tests: list[Any] = [None] * k
    if permutations and (k < d or more) and few_groups(rows.groups, k) is None:
        tests = contribution_p_values(
            covariances,
            columns,
            permutations,
            random,
            rows.groups,
            constraints=rules,
            targets=more,
        )
    other = None
    if against is not None:
        other = _difference(rows, features, against)
    gains = [table.gain(own, with_swap) for with_swap in others[: len(swaps)]]
    every = None
    if more and d <= DENSE:
        every = rows.estimate([np.arange(d)] * len(covariances.folds)).value
    return Scorecard(
        features=rows.named(columns),
        explained_variance=value.value,
        standard_error=value.standard_error,
        best=best.value,
        best_standard_error=best.standard_error,
        pca=None if more else table.pca(k, place).value,
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
                rows.named(columns), _lost(table, columns, here, rules), tests, strict=True
            )
        ],
        against=other,
        folds=len(covariances.folds),
        scale=scale,
        protocol=rows.protocol if made is None else made.settings["protocol"],
        made_here=made is not None,
        target=rows.target,
        all_features=every,
    )


# -- exchanges and contributions ---------------------------------------------------------------


def _rules(rows: Rows, columns: Columns, asked: Mapping[str, Any]) -> Constraints:
    """The constraints of panels that are compared with the features: of as many units."""
    free = resolve(rows.source.names, rows.d, 1, groups=asked["groups"])
    units = len(np.unique(free.unit_of[columns]))
    found = resolve(rows.source.names, rows.d, units, **asked)
    for name in rows.named(columns[~found.allowed[columns]])[:1]:
        raise InputError(f"{name!r} is on the list and in exclude; take it out of one of the two")
    return found


def _exchanges(rows: Rows, columns: Columns, rules: Constraints) -> list[tuple[int, int]]:
    """The exchanges that lower the residual most, of different features, as the rules allow."""
    C = rows.objective(rows.covariances.everything)
    best, losses = substitutes(C, columns, rules, count=EXCHANGES)
    least = -1e-9 * float(C.trace())
    found: list[tuple[int, int]] = []
    gone: set[int] = set()  # units that are exchanged already
    for at in np.argsort(losses, axis=None, kind="stable").tolist():
        place, number = divmod(at, losses.shape[1])
        if len(found) == EXCHANGES or not losses[place, number] < least:
            break
        out, into = int(columns[place]), int(best[place, number])
        units = {int(rules.unit_of[out]), int(rules.unit_of[into])}
        if not units & gone:
            found.append((out, into))
            gone |= units
    return found


def _exchanged(columns: Columns, out: int, into: int, rules: Constraints) -> Columns:
    """Features after an exchange, of whole groups."""
    rest = columns[rules.unit_of[columns] != rules.unit_of[out]]
    return np.sort(np.concatenate([rest, rules.complete([into])]))


def _lost(table: PanelScores, columns: Columns, here: float, rules: Constraints) -> list[float]:
    """Explained variance of held-out rows that is lost without each feature, or its group."""
    units = rules.unit_of[columns]
    rest = [columns[units != unit] for unit in units]
    if not all(len(part) for part in rest):
        return [here] * len(columns)
    return [here - table.explained(left).value for left in table.of(rest).T]


# -- one panel against another -----------------------------------------------------------------


def _difference(
    rows: Rows, features: Sequence[Any] | Panel, against: Sequence[Any] | Panel
) -> dict[str, Any]:
    """Explained variance of one panel less that of another, with a paired interval."""
    pair = (features, against)
    panels = [one for one in pair if isinstance(one, Panel) and _is_new_to(one, rows)]
    what = "explained variance"
    if len(panels) < 2:
        named = [one.features if isinstance(one, Panel) else one for one in pair]
        columns = [rows.columns(named[0]), rows.columns(named[1], "against")]
        parts, how = _refitted(rows, columns), "refitted"
    elif rows.wanted is None:
        parts, how = _reconstructed(rows, panels), "as they are"
    else:
        parts, how, what = _predicted(rows, panels), "as they are", rows.wanted.kind.metric
    return _interval(rows, *parts) | {"how": how, "what": what}


def _is_new_to(panel: Panel, rows: Rows) -> bool:
    """Whether a panel was made from other rows, and can be judged as it is."""
    if rows.made(panel):
        return False
    if rows.wanted is not None:
        own = None if panel.target is None else panel.target.kind
        if own is None or own.name != rows.wanted.kind.name or own.name not in ("class", "number"):
            return False
    return panel.d == rows.d and list(panel.names or ()) == list(rows.source.names or ())


def _interval(rows: Rows, losses: Vector, folds: Columns, total: float) -> dict[str, Any]:
    """The mean difference of losses (2 x n) per total squares, with its interval."""
    gap, low, high = paired_interval(losses[1] - losses[0], folds, rows.groups, INTERVAL)
    unit = total / rows.n
    if unit <= 0:
        raise InputError("nothing varies in the held-out rows, so that panels cannot be compared")
    return {"difference": gap / unit, "low": low / unit, "high": high / unit}


def _refitted(rows: Rows, pair: list[Columns]) -> tuple[Vector, Columns, float]:
    """Squared errors of held-out rows, the fold of each, and the sum of all squares."""
    parts, n, d = rows.covariances, rows.n, rows.d
    only = slice(d, None) if rows.more else slice(None)
    ridges = [rows.ridges([panel] * len(parts.folds)) for panel in pair]
    losses, numbers, total = np.zeros((2, n)), np.zeros(n, dtype=np.int64), 0.0
    for at, fold in enumerate(parts.folds):
        decoders = [fold.decoder(panel, ridges[p][at]) for p, panel in enumerate(pair)]
        mean, scale = fold.mean, torch.from_numpy(fold.scale)
        numbers[fold.held_rows] = at
        for part, x in read_blocks(fold.rows(fold.held_rows)):
            centred = x - (mean - torch.from_numpy(fold.center)) / scale
            seen = ~torch.isnan(centred)
            centred = centred.nan_to_num_(nan=0.0)
            for own, panel, decoder in zip(losses, pair, decoders, strict=True):
                gap = torch.where(seen, centred - centred[:, panel] @ decoder, 0.0)
                gap[:, panel] = 0.0
                own[fold.held_rows[part]] = gap[:, only].square().sum(1).numpy()
            total += float(centred[:, only].square().sum())
    return losses, numbers, total


def _reconstructed(rows: Rows, panels: list[Panel]) -> tuple[Vector, Columns, float]:
    """The same with the decoders that panels have, all rows being new."""
    losses, total = np.zeros((2, rows.n)), 0.0
    spread = np.sqrt(rows.stats.variance) if rows.scaling.how != "none" else np.ones(rows.d)
    spread = np.where(rows.stats.constant, np.inf, spread)
    for part, block in read_blocks(rows.source):
        x = block.numpy()
        for own, panel in zip(losses, panels, strict=True):
            gap = (panel.reconstruct(x[:, panel.indices]) - x) / spread
            own[part] = np.nansum(gap**2, axis=1)
        total += float(np.nansum(((x - rows.stats.mean) / spread) ** 2))
    return losses, np.zeros(rows.n, dtype=np.int64), total


def _predicted(rows: Rows, panels: list[Panel]) -> tuple[Vector, Columns, float]:
    """Errors of predictions: 1 for a wrong class; of numbers, squared."""
    assert rows.wanted is not None
    truth, losses = rows.wanted.values[rows.labelled].numpy(), np.zeros((2, rows.n))
    classes = rows.wanted.kind.classes
    for own, panel in zip(losses, panels, strict=True):
        guess = np.concatenate(
            [panel.predict(x[:, panel.indices].numpy()) for _, x in read_blocks(rows.source)]
        )
        if classes is not None:
            own[:] = guess.astype(str) != classes[truth].astype(str)
        else:
            own[:] = ((guess.reshape(truth.shape) - truth) ** 2).sum(axis=1)
    total = rows.n if classes is not None else float(((truth - truth.mean(0)) ** 2).sum())
    return losses, np.zeros(rows.n, dtype=np.int64), float(total)
