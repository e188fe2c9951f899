"""Checks of new rows: are they like those that a panel was made from?

Every test has its share of a file-wide level (ALPHA), so that clean rows are rarely suspected. The
reference of each test is a table of quantiles that the panel keeps, of held-out rows where the
test needs the covariance.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fewer._checks import check_whole
from fewer._display import Tabular, draw_bars, draw_lines
from fewer._tables import Table
from fewer.errors import InputError
from fewer.joint import TrainingStatistics, distances_of
from fewer.nn.completion import complete, gap_patterns
from fewer.reconstructor import Reconstructor

__all__ = ["Check", "Drift", "Finding", "check_rows"]

Values = NDArray[np.float64]

ALPHA = 0.01  # of one false finding or more, in a file of clean rows
TESTS = 5  # per feature
EXPLAINS = 1e-3  # p-value above which a change of units explains a shift
POWERS = [*range(-6, 0), *range(1, 7)]  # of ten
LEAST_SHIFT = 0.1  # standard deviations: less is no fault, however significant
SAME_SCALE = 0.2  # change of the spread that is not worth a word
QUARTILES = (0.25, 0.5, 0.75)
FEW_REPEATS = 3
SENTINELS = (-1, 0, 99, 999, 9999, 99999, -9, -99, -999, -9999, -99999, 32767, -32768, 65535)
SWAP_ROWS = 2000
SWAP_DEVIATIONS = 4.5  # by which more than half of the rows must be closer after an exchange
MANY_FEATURES = 100  # chosen: of more, swapped columns are looked for among suspects only
LEAST_ROWS = 8  # for tests of distributions
BATCHES, BATCH_ROWS = 10, 20  # of rows in order: how many, and how large at least
DRAWN, SEVERAL = 6, 5  # features whose drift is drawn, and batches whose labels need room


@dataclass(frozen=True)
class Finding:
    """Something that is off: which feature, what kind, and what it looks like.

    Kinds of a check are "missing", "range", "stuck", "sentinel", "unit", "offset", "scale",
    "shift", "swapped" and "rows", each with a p-value; those of `fewer.assess.inspect` are
    "sentinel", "clipped", "outliers" and "copy", without one.

    Examples
    --------
    >>> print(Finding("temperature", "unit", "values look multiplied by 10", 1e-9))
    temperature: values look multiplied by 10
    """

    feature: Any
    kind: str
    message: str
    p: float = math.nan
    value: float | None = None  # that is suspected, of a sentinel
    elsewhere: int = 0  # other features of the data that hold this value without suspicion

    def __str__(self) -> str:
        return self.message if self.feature is None else f"{self.feature}: {self.message}"


@dataclass(frozen=True, eq=False)
class Drift:
    """How the features of a panel move from batch to batch of new rows.

    Attributes
    ----------
    labels : list of str
        Names of the batches: numbers of their first rows, or labels that were given.
    rows : list of int
        Number of rows of each.
    shift : array (batches, k)
        Mean of each feature less that of the training rows, in training standard deviations; NaN
        where a batch has no value.
    unusual : array (batches)
        Fraction of rows with a p-value below 0.01.
    features : list
        The features of the panel.

    Examples
    --------
    >>> import fewer
    >>> from sklearn.datasets import load_breast_cancer
    >>> X = load_breast_cancer(as_frame=True).data
    >>> panel = fewer.select(X[::2], 4, strategies=["search"], validation=0.2, random_state=0)
    >>> drift = panel.check(X[1::2], batches=4).drift
    >>> drift.labels, drift.shift.shape
    (['0', '71', '142', '213'], (4, 4))
    """

    labels: list[str]
    rows: list[int]
    shift: Values
    unusual: Values
    features: list[Any]

    @property
    def movers(self) -> list[int]:
        """Positions of the features that move most, first."""
        spread = np.nan_to_num(np.nanmax(self.shift, axis=0) - np.nanmin(self.shift, axis=0))
        return np.argsort(-spread, kind="stable")[:DRAWN].tolist()

    def describe(self) -> dict[str, Any]:
        """The drift as a dictionary that can be written as JSON."""
        return {
            "batches": self.labels,
            "rows": self.rows,
            "unusual": self.unusual.tolist(),
            "shift": {str(name): self.shift[:, j].tolist() for j, name in enumerate(self.features)},
        }


@dataclass(frozen=True, eq=False)
class Check(Tabular):
    """What `Panel.check` found; prints as a short report.

    Attributes
    ----------
    findings : list of Finding
        What is off, if anything.
    features : list of dict
        Per feature of the panel: missing rate, fraction out of range, shift of the mean and ratio
        of the spread (in training standard deviations), Kolmogorov-Smirnov statistic.
    distance, p, expected_error : arrays (n)
        Per row: distance from the training rows (squared Mahalanobis distance per measured value),
        its p-value (calibrated on held-out rows), and the mean squared error per standardised
        feature to expect from its reconstruction.
    rows : int
        Number of rows.
    drift : Drift or None
        The shift of each feature from batch to batch; None for less than two batches of 20 rows.

    Examples
    --------
    >>> import fewer
    >>> from sklearn.datasets import load_wine
    >>> X = load_wine(as_frame=True).data
    >>> panel = fewer.select(X[::2], 4, strategies=["search"], random_state=0)
    >>> new = X[1::2].copy()
    >>> panel.check(new).ok
    True
    >>> new[panel.features[0]] *= 1000
    >>> panel.check(new).findings[0].kind
    'unit'
    """

    findings: list[Finding]
    features: list[dict[str, Any]]
    distance: Values
    p: Values
    expected_error: Values
    rows: int = field(default=0)
    drift: Drift | None = None

    @property
    def ok(self) -> bool:
        """Whether nothing is off."""
        return not self.findings

    def table(self) -> Table:
        """The statistics of every feature as text."""
        titles = ("feature", "missing", "out of range", "shift", "spread", "KS")
        rows = [
            (
                str(one["feature"]),
                f"{one['missing']:.1%}",
                f"{one['out_of_range']:.1%}",
                f"{one['shift']:+.2f}",
                f"{one['spread']:.2f}",
                f"{one['ks']:.2f}",
            )
            for one in self.features
        ]
        return Table(titles, rows, (1, 2, 3, 4, 5))

    def describe(self) -> dict[str, Any]:
        """The result as a dictionary that can be written as JSON; rows are summarised."""
        return {
            "ok": self.ok,
            "rows": self.rows,
            "findings": [vars(one) for one in self.findings],
            "features": self.features,
            "unusual_rows": int((self.p < 0.01).sum()),
            "expected_error": float(self.expected_error.mean()) if self.rows else None,
            "drift": None if self.drift is None else self.drift.describe(),
        }

    def columns(self) -> dict[str, list[Any]]:
        """The statistics of every feature as columns of values; see also `to_frame`."""
        names = ("feature", "missing", "out_of_range", "shift", "spread", "ks")
        return {name: [one[name] for one in self.features] for name in names}

    def plot(self, axes: Any = None) -> Any:
        """Draw how the features that move most shift from batch to batch.

        Without batches, the shift of every feature is drawn as a bar.

        Parameters
        ----------
        axes : matplotlib Axes, default=None
            Where to draw; None makes a new figure.

        Returns
        -------
        matplotlib Axes
        """
        found = self.columns()
        what = "shift of the mean, training standard deviations"
        if self.drift is None:
            labels = [str(name) for name in found["feature"]]
            return draw_bars(axes, labels, found["shift"], what)
        drift = self.drift
        lines = {str(drift.features[j]): drift.shift[:, j].tolist() for j in drift.movers}
        places = list(range(len(drift.labels)))
        axes = draw_lines(axes, places, lines, "batch of rows", what)
        axes.set_xticks(places, drift.labels, rotation=45 if len(places) > SEVERAL else 0)
        return axes

    def summary(self) -> str:
        """One line."""
        if self.ok:
            look = "row looks" if self.rows == 1 else "rows look"
            return f"{self.rows:,} {look} like those that the panel was made from"
        shown = "; ".join(str(one) for one in self.findings[:3])
        more = f"; and {len(self.findings) - 3} more" if len(self.findings) > 3 else ""
        count = f"{len(self.findings)} finding" + ("s" if len(self.findings) > 1 else "")
        return f"{count} in {self.rows:,} rows: {shown}{more}"

    def __str__(self) -> str:
        lines = [str(self.table()), ""]
        lines += [str(one) for one in self.findings] or [self.summary()]
        return "\n".join(lines)


def _at_least(count: Any, n: int, share: float) -> Any:
    """Probability of so many or more among n, each with this probability."""
    from scipy.special import bdtrc  # noqa: PLC0415 (most panels are made without it)

    counts = np.asarray(count, dtype=np.float64)
    return np.where(counts > 0, bdtrc(np.maximum(counts, 1) - 1, n, share), 1.0)


def _beyond_all(count: int, n: int, before: int) -> float:
    """Probability that the ``count`` largest of n new and of earlier values are all new."""
    logs = [math.lgamma(m + 1) for m in (n, n - count, n + before - count, n + before)]
    return math.exp(logs[0] - logs[1] + logs[2] - logs[3])


def check_rows(reconstructor: Reconstructor, values: NDArray, batches: Any = BATCHES) -> Check:
    """Compare n x k measured values with the training rows of a panel; see `Panel.check`."""
    stats, joint = reconstructor.statistics, reconstructor.joint
    if stats is None or joint is None:
        raise InputError(
            "this panel was saved by an earlier build without statistics of its training "
            "rows; recreate it with fewer.select to check new rows"
        )
    values = np.asarray(values, dtype=np.float64)
    n, k = values.shape
    names = reconstructor.features
    level = ALPHA / (TESTS * k + 1)
    columns = [_Column(stats, j, values[:, j], names[j]) for j in range(k)]
    mean = torch.from_numpy(joint.mean[joint.columns])
    distance = distances_of(values, mean, joint.precision)
    p = stats.p_values(distance.normal)
    swapped = _swapped(columns, values, mean, joint.precision)
    findings = []
    if swapped is not None:
        a, b, chance = swapped
        message = f"the values of {names[a]} and {names[b]} look swapped"
        findings.append(Finding(None, "swapped", message, chance))
    own = [one for j, one in enumerate(columns) if swapped is None or j not in swapped[:2]]
    findings += [found for one in own for found in one.findings(level)]
    chance = _ks(stats.distance, stats.sampled, distance.normal, upper=True)[1]
    if n >= LEAST_ROWS and chance < level and not findings:
        far = float((p < 0.01).mean())
        message = (
            f"{far:.1%} of the rows are farther from the training rows than 99% of those: their "
            "features do not go together as they did"
        )
        findings.append(Finding(None, "rows", message, chance))
    expected = stats.expected_error(distance.normal) * _wider(reconstructor, values)
    per_value = distance.squared / np.maximum(distance.present, 1)
    described = [one.describe() for one in columns]
    drift = _drift(stats, values, p, names, batches)
    return Check(findings, described, per_value, p, expected, n, drift)


def _drift(
    stats: TrainingStatistics, values: Values, p: Values, names: list[Any], batches: Any
) -> Drift | None:
    """The shift of every feature in each batch: so many of neighbouring rows, or given labels."""
    n = len(values)
    if isinstance(batches, (int, np.integer)) and not isinstance(batches, bool):
        count = min(check_whole("batches", batches, 1), n // BATCH_ROWS)
        parts = np.array_split(np.arange(n), max(count, 1))
        labels = [str(part[0]) for part in parts if len(part)]
    else:
        given = np.asarray(batches)
        if given.shape != (n,):
            raise InputError(
                f"batches has the shape {given.shape}; give a number of batches, or {n} labels"
            )
        text = given.astype(str)
        labels = list(dict.fromkeys(text.tolist()))
        parts = [np.flatnonzero(text == label) for label in labels]
    if len(labels) < 2:
        return None
    spread = np.where(stats.spread > 0, stats.spread, 1.0)
    seen = ~np.isnan(values)
    sums = [np.where(seen[part], values[part], 0.0).sum(axis=0) for part in parts]
    counts = np.array([seen[part].sum(axis=0) for part in parts])
    means = np.where(counts > 0, np.array(sums) / np.maximum(counts, 1), np.nan)
    unusual = np.array([(p[part] < 0.01).mean() for part in parts])
    rows = [len(part) for part in parts]
    return Drift(labels, rows, (means - stats.mean) / spread, unusual, names)


class _Column:
    """New values of one feature beside those of the training rows."""

    def __init__(self, stats: TrainingStatistics, j: int, values: Values, name: Any) -> None:
        self.stats, self.j, self.name, self.n = stats, j, name, len(values)
        self.x = values[~np.isnan(values)]
        self.reference = stats.quantiles[:, j]
        self.mean, self.spread = float(stats.mean[j]), float(stats.spread[j])
        self.ks, self.ks_p = _ks(self.reference, stats.sampled, self.x)
        unit, x = self.spread or 1.0, self.x
        if len(x) == 1:  # as below, but quicker
            value = float(x[0])
            middle, spread = value, 0.0
            self.sides = int(value < stats.minimum[j]), int(value > stats.maximum[j])
        else:
            middle, spread = (float(x.mean()), float(x.std())) if len(x) else (self.mean, unit)
            self.sides = int((x < stats.minimum[j]).sum()), int((x > stats.maximum[j]).sum())
        self.shift, self.ratio = (middle - self.mean) / unit, spread / unit
        self.outside = sum(self.sides)
        # how often the most frequent value is to be expected; if none repeats, hardly ever
        common = float(stats.common[j])
        self.common = common if common * stats.sampled > 1.5 else 1 / stats.rows

    def describe(self) -> dict[str, Any]:
        return {
            "feature": self.name,
            "missing": 1 - len(self.x) / max(self.n, 1),
            "out_of_range": self.outside / max(len(self.x), 1),
            "shift": self.shift,
            "spread": self.ratio,
            "ks": self.ks,
        }

    def findings(self, level: float) -> list[Finding]:
        """What is off with this feature; a repeated value is not reported as a shift too.

        Where other units or an offset explain all of a shift, repeated values have moved with the
        others, and are no codes.
        """
        found = self._missing(level)
        if not len(self.x):
            return found
        moved = self._shifted(level) if self.ks_p < level and self._all_moved() else []
        if moved and moved[0].kind in ("unit", "offset"):
            return found + moved
        spike = self._stuck(level) or self._sentinel(level)
        if spike is not None:
            return [*found, spike]
        return found + self._shifted(level)

    def _all_moved(self) -> bool:
        """Whether all three quartiles have moved, as they have not with codes in a few rows."""
        steps = np.abs(self._quartiles() - self._known_quartiles())
        return bool((steps > LEAST_SHIFT * self.spread).all())

    def _quartiles(self) -> Values:
        return np.quantile(self.x, QUARTILES)

    def _known_quartiles(self) -> Values:
        levels = np.linspace(0, 1, len(self.reference))
        return np.interp(QUARTILES, levels, self.reference)

    def _missing(self, level: float) -> list[Finding]:
        gone, before = self.n - len(self.x), float(self.stats.missing[self.j])
        if not gone or gone / self.n < before + 0.01:
            return []
        p = float(_at_least(gone, self.n, max(before, 1 / self.stats.rows)))
        if p >= level:
            return []
        message = (
            f"{gone / self.n:.1%} of the values are missing ({before:.1%} of the training rows)"
        )
        return [Finding(self.name, "missing", message, p)]

    def _stuck(self, level: float) -> Finding | None:
        """A run of one value that is too long for how often values repeat."""
        if len(self.x) < FEW_REPEATS:
            return None
        common = self.common
        change = np.flatnonzero(np.diff(self.x) != 0)
        ends = np.concatenate([[-1], change, [len(self.x) - 1]])
        lengths = np.diff(ends)
        longest = int(lengths.max())
        if longest < max(5, FEW_REPEATS) or common >= 1:
            return None
        p = min(1.0, len(self.x) * math.exp((longest - 1) * math.log(common)))
        if p >= level:
            return None
        value = self.x[ends[int(lengths.argmax()) + 1]]
        message = f"stuck at {value:g} for {longest:,} rows"
        return Finding(self.name, "stuck", message, p)

    def _sentinel(self, level: float) -> Finding | None:
        """A value that repeats, and did not, or that is outside of all that was seen."""
        if len(self.x) < 2:
            return None
        values, counts = np.unique(self.x, return_counts=True)
        low, high = self.stats.minimum[self.j], self.stats.maximum[self.j]
        beyond = (values < low) | (values > high)
        away = (values < low - self.spread) | (values > high + self.spread)
        suspect = np.isin(values, SENTINELS) & away
        common = self.common
        # a feature of few distinct values repeats them; then only values out of range count
        repeats = counts >= FEW_REPEATS
        unusual = _at_least(counts, len(self.x), common) < level / max(len(values), 1)
        for place in np.flatnonzero(beyond & repeats).tolist():  # however often others repeat
            unusual[place] = _beyond_all(int(counts[place]), len(self.x), self.stats.rows) < level
        if common > 0.02:
            # unless the most frequent value itself has moved
            unusual &= beyond & (counts < common * len(self.x) / 2)
        # values out of range must be mainly this one, or all of them have moved
        unusual &= ~beyond | (counts >= self.outside / 2)
        # whatever most values are cannot be a code for missing ones
        spikes = (suspect | (repeats & unusual)) & (counts < len(self.x) / 2)
        if not spikes.any() or len(values) < 2:
            return None
        at = int(np.argmax(np.where(spikes, counts, 0)))
        chance = float(_at_least(counts[at], len(self.x), common))
        message = (
            f"{values[at]:g} occurs {counts[at]:,} times: it may stand for a missing value "
            f"(the training range is {low:g} to {high:g})"
        )
        return Finding(self.name, "sentinel", message, chance)

    def _shifted(self, level: float) -> list[Finding]:
        n = len(self.x)
        if n < LEAST_ROWS or not self.spread:
            return []
        error = math.sqrt(self.x.var() / n + self.spread**2 / self.stats.rows) or 1e-300
        mean_p = math.erfc(abs(self.shift * self.spread) / error / math.sqrt(2))
        p = min(self.ks_p, mean_p)
        outside_p = 2 * min(_beyond_all(count, n, self.stats.rows) for count in self.sides)
        large = abs(self.shift) > LEAST_SHIFT or self.ks_p < level
        if p < level and large:
            kind, message = self._explanation()
            return [Finding(self.name, kind, message, p)]
        if outside_p < level:
            low, high = self.stats.minimum[self.j], self.stats.maximum[self.j]
            where = f"outside of the training range {low:g} to {high:g}"
            message = f"{self.outside:,} values are {where}"
            return [Finding(self.name, "range", message, outside_p)]
        return []

    def _explanation(self) -> tuple[str, str]:
        """The simplest map of units that explains the shift."""
        sampled = self.stats.sampled
        for power in POWERS:
            if _ks(self.reference, sampled, self.x / 10.0**power)[1] > EXPLAINS:
                how = f"multiplied by {10**power}" if power > 0 else f"divided by {10**-power}"
                return "unit", f"values look {how}"
        by = f"the mean is shifted by {self.shift:+.2g} standard deviations"
        known, quartiles = self._known_quartiles(), self._quartiles()
        starts = [self.shift * self.spread, *(quartiles - known)]
        if any(_ks(self.reference, sampled, self.x - start)[1] > EXPLAINS for start in starts):
            return "offset", f"{by}, as by an offset of {starts[0]:+.3g}"
        slopes = [self.ratio]
        if known[2] > known[0]:
            slopes.append((quartiles[2] - quartiles[0]) / (known[2] - known[0]))
        for slope in slopes:
            for start in (self.x.mean() - slope * self.mean, quartiles[1] - slope * known[1]):
                former = (self.x - start) / slope if slope > 0 else self.x
                if _ks(self.reference, sampled, former)[1] > EXPLAINS:
                    return "scale", f"values look like {slope:.3g} times the former {start:+.3g}"
        if abs(self.ratio - 1) < SAME_SCALE:
            return "shift", by
        return "shift", f"{by}, and the spread is {self.ratio:.2g} times as large"


def _ks(reference: Values, sampled: int, x: Values, *, upper: bool = False) -> tuple[float, float]:
    """Kolmogorov-Smirnov statistic of values against a table of quantiles, and its p-value.

    Between two quantiles the reference is unknown, and agrees with anything: the test is
    conservative, also with ties. ``upper`` looks for larger values only.
    """
    from scipy.special import kolmogorov  # noqa: PLC0415

    if not len(x):
        return 0.0, 1.0
    last = len(reference) - 1
    if len(x) == 1:  # the same as below, for services that check a row at a time
        low = max(int(reference.searchsorted(x[0], "left")) - 1, 0) / last
        high = min(int(reference.searchsorted(x[0], "right")), last) / last
        statistic = low if upper else max(low, 1 - high)
        return statistic, float(kolmogorov(math.sqrt(sampled / (1 + sampled)) * statistic))
    ordered = np.sort(x)
    points = np.unique(ordered)
    before = np.searchsorted(ordered, points, "left") / len(x)  # just below each point
    known = np.maximum(np.searchsorted(reference, points, "left") - 1, 0) / last
    statistic = float(np.maximum(known - before, 0).max())
    if not upper:
        at = np.searchsorted(ordered, points, "right") / len(x)
        most = np.minimum(np.searchsorted(reference, points, "right"), last) / last
        statistic = max(statistic, float(np.maximum(at - most, 0).max()))
    count = len(x) * sampled / (len(x) + sampled)
    return statistic, min(1.0, float(kolmogorov(math.sqrt(count) * statistic)))


def _swapped(
    columns: Sequence[_Column], values: Values, mean: torch.Tensor, precision: torch.Tensor
) -> tuple[int, int, float] | None:
    """Two columns whose exchange brings most rows closer to the training rows.

    Exchanging a and b adds e = x_b - x_a to one and takes it from the other, which changes the
    squared distance z'Pz by 2 e (g_a - g_b) + e^2 (P_aa + P_bb - 2 P_ab), with g = Pz. Both columns
    must then look as they did.
    """
    n, k = values.shape
    if n < LEAST_ROWS:
        return None
    some = values[:: max(1, n // SWAP_ROWS)]
    centred = complete(torch.from_numpy(some), mean, precision) - mean
    P, g = precision.numpy(), (centred @ precision).numpy()
    suspects: Sequence[int] = range(k)
    if k > MANY_FEATURES:
        suspects = [j for j in range(k) if columns[j].ks_p < EXPLAINS]
    found: list[tuple[float, int, int]] = []
    for a, b in combinations(suspects, 2):
        e = some[:, b] - some[:, a]
        change = 2 * e * (g[:, a] - g[:, b]) + e**2 * (P[a, a] + P[b, b] - 2 * P[a, b])
        change = change[~np.isnan(change)]
        closer = (change < 0).mean() if len(change) else 0.0
        if (2 * closer - 1) * math.sqrt(len(change)) > SWAP_DEVIATIONS:
            found.append((float(np.median(change)), a, b))
    for _, a, b in sorted(found):
        one, other = columns[a], columns[b]
        sampled = one.stats.sampled
        both = _ks(one.reference, sampled, other.x)[1], _ks(other.reference, sampled, one.x)[1]
        if min(both) > EXPLAINS:
            return a, b, math.erfc(SWAP_DEVIATIONS / math.sqrt(2))
    return None


def _wider(reconstructor: Reconstructor, values: Values) -> Values:
    """By which factor the expected error grows where chosen features are missing."""
    joint, found, gaps = reconstructor.joint, np.ones(len(values)), np.isnan(values)
    assert joint is not None
    if not gaps.any():
        return found
    use = joint.variance > 0
    unit = np.where(use, joint.variance * joint.scale**2, 1.0)
    whole = float((joint.residual_variance / unit)[use].sum())
    patterns, which = gap_patterns(gaps)
    for number, pattern in enumerate(patterns):
        gone = np.flatnonzero(pattern)
        if len(gone) and whole > 0:
            B = joint.weights[gone]
            more = np.einsum("md,md->d", B, joint.errors_of_missing(gone) @ B) / unit
            found[which == number] = 1 + float(more[use].sum()) / whole
    return found
