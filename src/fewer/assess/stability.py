"""How sure a choice is: which features are chosen again from other rows."""

import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fewer._checks import check_number, check_whole, join_names
from fewer._tables import Table, write_table
from fewer._threads import entry_point
from fewer.assess.scoring import Rows
from fewer.constraints import resolve
from fewer.errors import InputError
from fewer.selection.context import WorkPlan
from fewer.selection.evidence.stability import choices_of_halves, describe_choices, nogueira
from fewer.train.device import float64_device

__all__ = ["Stability", "nogueira", "stability"]

SHOWN = 20  # features in the printed table


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
    k, subsamples, threshold, scale, target
        As given; of the target its name.

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
    target: str | None = None

    def describe(self) -> dict[str, Any]:
        """Everything as a dictionary that can be written as JSON."""
        return asdict(self)

    def write(self, path: str | os.PathLike[str]) -> Path:
        """Write the frequencies (.csv) or everything (.json)."""
        columns = {"feature": self.features, "frequency": self.frequency}
        return write_table(Path(path), columns, self.describe())

    def sentence(self) -> str:
        """What the numbers say, in words."""
        what = "" if self.target is None else f" for {self.target}"
        pair = (self.interval, self.cluster_interval)
        one, whole = (f"{low:.2f} to {high:.2f}" for low, high in pair)
        text = (
            f"Stability{what} {self.index:.2f} ({one}); with interchangeable features counted as "
            f"one {self.cluster_index:.2f} ({whole}). {len(self.stable)} of {self.k} features are "
            f"chosen in at least {self.threshold:.0%} of {self.subsamples} subsamples"
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
    scale: str = "standard",
    row_groups: Any = None,
    random_state: Any = None,
    device: str = "auto",
    progress: Callable[[str, float], None] | None = None,
) -> Stability:
    """Choose k features from many halves of the rows, and see which come back.

    The rows are divided at random into parts, whose covariances are computed in one pass; a
    subsample is the sum of half of them, and always comes with its complement. On each, features
    are chosen by greedy selection and swaps for a linear decoder, or a linear map to the target.

    Parameters
    ----------
    k : int
        Number of features.
    subsamples : int, default=100
        Number of subsamples, an even number of at least 4.
    threshold : float, default=0.75
        Fraction of subsamples from which a feature counts as stable, above 0.5.
    target : array of length n or (n, m), or name of a column, default=None
        Choose features for a linear map to this instead, as in `fewer.select`.
    target_kind : "auto" or the name of a kind, default="auto"
        How the target is read, as in `fewer.select`.
    include, exclude, costs, budget, groups, sets, at_least, at_most
        Constraints that every choice obeys, as in `fewer.select`.
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
    rows = Rows(
        data, scale, row_groups, random_state, device, target=target, target_kind=target_kind
    )
    check_whole("k", k, 1, rows.d, ", the number of features")
    plan.expect("subsample", subsamples)
    chosen, everything = choices_of_halves(
        rows.source,
        resolve(
            rows.source.names,
            rows.d,
            k,
            include,
            exclude,
            costs,
            budget,
            groups,
            sets=sets,
            at_least=at_least,
            at_most=at_most,
        ),
        subsamples,
        scaling=rows.scaling,
        seed=rows.seed,
        device=float64_device(rows.home),
        groups=rows.groups,
        target=rows.numbers,
        begin=lambda at: plan.begin("subsample", f"subsample {at + 1} of {subsamples}"),
    )
    found = describe_choices(chosen, everything, threshold)
    return Stability(
        **found
        | {
            "features": rows.named(found["features"]),
            "clusters": [
                part | {"features": rows.named(part["features"])} for part in found["clusters"]
            ],
            "stable": rows.named(found["stable"]),
        },
        k=k,
        scale=scale,
        target=rows.target,
    )
