"""What an experiment is given, and what it gives back."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from matplotlib.figure import Figure

from fewer.datasets import Dataset, load
from fewer.errors import InputError
from fewer.paper.case import Case, make_case
from fewer.paper.cells import ResultCache

__all__ = ["Context", "Outcome"]


@dataclass(frozen=True, eq=False)
class Outcome:
    """What an experiment found: numbers, a page of Markdown, figures by name."""

    result: dict[str, Any]
    page: str
    figures: dict[str, Figure] = field(default_factory=dict)


@dataclass(eq=False)
class Context:
    """The options of a run, its data, and its cells.

    Attributes
    ----------
    protocol : {"clean", "paper"}
        How rows are split and scaled.
    quick : bool
        Less of everything: minutes for all experiments together.
    cells : Cells
        Results so far.
    seeds : int or None
        Splits and starts; what the experiment finds right if None.
    wanted : tuple of str
        Data sets to use instead of the experiment's own.
    download : bool
        Fetch data sets that are not there, where that can be done.
    part : int or None
        Go through this seed only: for cells that are computed side by side.
    """

    protocol: str
    quick: bool
    cells: ResultCache
    seeds: int | None = None
    wanted: tuple[str, ...] = ()
    download: bool = False
    part: int | None = None
    loaded: dict[str, Dataset] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)

    def dataset(self, name: str, **options: Any) -> Dataset:
        """A data set, read once; options are those of `fewer.datasets.load`."""
        if name not in self.loaded:
            self.loaded[name] = load(name, download=self.download, **options)
        self.used.add(name)
        return self.loaded[name]

    def case(self, name: str, seed: int, **options: Any) -> Case:
        """Rows of a data set as the protocol has it."""
        return make_case(self.dataset(name), self.protocol, seed, **options)

    def seed_range(self, full: int = 3, quick: int = 1) -> range:
        """Seeds to go through: as many as asked for, or as many as the experiment wants."""
        seeds = range(self.seeds or (quick if self.quick else full))
        return seeds if self.part is None else seeds[self.part : self.part + 1]

    def names(self, full: tuple[str, ...], quick: tuple[str, ...]) -> tuple[str, ...]:
        """Data sets: those asked for, or those that the experiment wants."""
        return self.wanted or (quick if self.quick else full)

    def only(self, *known: str) -> str:
        """The one data set of an experiment that works on one: the first, unless asked."""
        if not self.wanted:
            return known[0]
        if len(self.wanted) > 1 or self.wanted[0] not in known:
            raise InputError(
                f"--data {','.join(self.wanted)}: this experiment takes one of {', '.join(known)}"
            )
        return self.wanted[0]
