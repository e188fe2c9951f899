"""Which candidates are compared."""

from collections.abc import Sequence
from typing import Any

from fewer.candidates.comparison import Candidate
from fewer.candidates.prediction import TargetStrategies
from fewer.candidates.strategies import Choose, Strategies
from fewer.candidates.wanted import Wanted

__all__ = ["STRATEGIES", "shortlist"]

STRATEGIES = ("search", "closed_form", "gradient")
FEWEST_FOR_FEATURES = 50  # rows: with fewer, half a batch determines nothing
RIDGES = (1e-3, 1e-2, 1e-1)  # shares of the mean variance
SMALL = 2000  # folds times features: beyond, a second opinion for every fold takes too long


def shortlist(
    known: Strategies, wanted: Any, *, rows: int, folds: int, target: Wanted | None
) -> list[Candidate]:
    """What is to be compared, those that build on others last.

    Parameters
    ----------
    known : Strategies
        How each chooses.
    wanted : "auto" or list of str
        Strategies that a user asked for.
    rows, folds : int
        Rows of the data, and how often they are split.
    target : Wanted or None
        What panels are to predict, if not the other features.
    """
    constraints, linear = known.constraints, known.settings.linear
    if len(constraints.units) == constraints.k or len(constraints.included_units) == constraints.k:
        return [Candidate("only choice", known.greedy)]
    if target is not None:
        return _for_target(TargetStrategies(known, target), wanted)
    if wanted == "auto":
        few = 2 if folds * constraints.d <= SMALL else 1
        wanted = STRATEGIES[:few] if linear else STRATEGIES
    choose: dict[str, Choose] = {"greedy": known.greedy} if linear else {}
    if "search" in wanted:
        choose["search"] = known.search
        if linear and folds > 1:
            choose |= {f"search, ridge {ridge:g}": known.penalised(ridge) for ridge in RIDGES}
    choose.setdefault("greedy", known.greedy)  # for a network after the search, which comes first
    if "closed_form" in wanted:
        choose["closed form, swaps"] = known.closed_form
        if not linear and rows >= FEWEST_FOR_FEATURES:
            choose["random features"] = known.random_features
    if "gradient" in wanted:
        choose["gradient"] = known.gradient
    found = [Candidate(name, known.once(name, how)) for name, how in choose.items()]
    if "search" in wanted and not linear:
        found.append(Candidate("search, network swaps", known.for_the_network))
    return found


def _for_target(known: TargetStrategies, wanted: str | Sequence[str]) -> list[Candidate]:
    found = []
    if wanted == "auto" or "search" in wanted:
        found.append(Candidate("search, without target", known.search))
        found.append(Candidate("search", known.for_the_target))
    if wanted == "auto" or "gradient" in wanted:
        found.append(Candidate("gradient", known.gradient))
    return found
