"""Panels edited by hand: features removed, swapped or added."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fewer._checks import check_whole
from fewer._threads import entry_point
from fewer.constraints import Constraints, find_column
from fewer.errors import InputError
from fewer.panel import Panel
from fewer.search import search
from fewer.selection.compare import Candidate
from fewer.selection.context import SelectionContext, TimeBudget, WorkPlan
from fewer.selection.strategies import (
    Strategy,
    network_elimination_panel,
    supervised_search_panel,
)

__all__ = ["Editor"]

Columns = NDArray[np.int64]
Finish = Callable[[SelectionContext, list[Candidate]], Panel]


@dataclass(frozen=True, eq=False)
class Editor:
    """The data behind a panel, on which an edited panel is fitted and scored."""

    context: SelectionContext
    columns: Columns  # of the panel
    finish: Finish  # measures candidates and makes a panel of the first

    @entry_point
    def without(self, features: Sequence[Any]) -> Panel:
        """The panel without some features, each with the group that it is measured with."""
        gone = self._units("without", features)
        if not np.isin(gone, self._own).all():
            names = [f for f in features if self._find("without", f) not in self.columns]
            raise InputError(f"without: {names[0]!r} is not in the panel")
        units = np.setdiff1d(self._own, gone)
        if len(units) == 0:
            raise InputError("without: the panel would be empty; keep at least one feature")
        return self._panel(units, "without")

    @entry_point
    def swap(self, out: Any, into: Any) -> Panel:
        """The panel with another feature (or group) in place of one of its own."""
        gone, new = self._units("swap", [out]), self._units("swap", [into])
        if self._find("swap", out) not in self.columns:
            raise InputError(f"swap: {out!r} is not in the panel")
        if self._find("swap", into) in self.columns:
            raise InputError(f"swap: {into!r} is already in the panel")
        if new[0] < 0:
            raise InputError(f"swap: {into!r} is excluded")
        return self._panel(np.append(np.setdiff1d(self._own, gone), new), "swap")

    @entry_point
    def extend(self, k: int) -> Panel:
        """The panel with the best additional features, k in total."""
        most = len(self.context.constraints.units)
        check_whole("k", k, len(self._own) + 1, most, ", more than the panel has")
        return self._searched(replace(self.context.constraints, k=k, include=self.columns))

    @entry_point
    def shrink(self, k: int) -> Panel:
        """The best k features of the panel."""
        least = max(1, len(self.context.constraints.included_units))
        check_whole("k", k, least, len(self._own) - 1, ", fewer than the panel has")
        others = np.setdiff1d(np.arange(self.context.constraints.d), self.columns)
        asked = replace(self.context.constraints, k=k, exclude=others)
        if not self.context.config.linear:  # it may need what no linear map does
            left = network_elimination_panel(
                replace(self.context, constraints=asked),
                self.context.covariances.everything,
                self.columns,
            )
            if left is not None:
                return self._panel(np.unique(self.context.constraints.unit_of[left]), "shrunk")
        return self._searched(asked)

    @property
    def _own(self) -> Columns:
        return np.unique(self.context.constraints.unit_of[self.columns])

    def _find(self, role: str, feature: Any) -> int:
        return find_column(self.context.source.names, self.context.constraints.d, feature, role)

    def _units(self, role: str, features: Sequence[Any]) -> Columns:
        found = [self._find(role, feature) for feature in features]
        return self.context.constraints.unit_of[np.array(found, dtype=np.int64)]

    def _searched(self, asked: Constraints) -> Panel:
        everything = self.context.covariances.everything
        if self.context.target is not None:
            found = supervised_search_panel(
                replace(self.context, constraints=asked, budget=TimeBudget(None), joint={}),
                everything,
            )
        else:
            C = everything.matrix().to(self.context.search_device)
            options: dict[str, Any] = {"ridge": everything.penalty(0.0), "stall": 0}
            found = search(C, asked, seed=self.context.seed, **options).indices
        units = np.unique(self.context.constraints.unit_of[found])
        return self._panel(units, "extended" if len(found) > len(self.columns) else "shrunk")

    def _panel(self, units: Columns, how: str) -> Panel:
        old = self.context.constraints
        new = replace(old, k=len(units))
        columns = old.features(units)
        new.check(columns)  # what must be included, and the budget
        context = replace(
            self.context,
            constraints=new,
            config=replace(self.context.config, k=len(units)),
            budget=TimeBudget(None),
            plan=WorkPlan(),
            checkpoint=None,
            size=None,
            found={},
            history={},
        )
        folds = len(context.covariances.folds)
        pair = {how: columns, "before": self.columns}
        return self.finish(
            context,
            [
                Candidate(Strategy(name, lambda *_, panel=panel: panel), panels=[panel] * folds)
                for name, panel in pair.items()
            ],
        )
