"""Several studies as one: cells below each other, genes matched by name."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from torch import Tensor

from fewer._checks import check_choice, check_number, join_names
from fewer._optional import import_optional
from fewer.cells import as_annotated, describe_units, obs_column, open_cells
from fewer.data import Source
from fewer.errors import InputError

__all__ = ["Studies"]

STUDY = "study"  # the column of obs that names the study of each cell


class StackedCells(Source):
    """Rows of several sources in order, columns by name; NaN where a source lacks a column."""

    dtype = np.dtype(np.float64)

    def __init__(self, sources: Sequence[Source], names: list[str]) -> None:
        self.sources, self.names = sources, names
        self.ends = np.cumsum([source.shape[0] for source in sources])
        self.shape = int(self.ends[-1]), len(names)
        self.columns = []
        for source in sources:
            at = {str(name): j for j, name in enumerate(source.names or ())}
            self.columns.append(np.array([at.get(name, -1) for name in names]))
        whole = all((columns >= 0).all() for columns in self.columns)
        self.is_sparse = whole and all(source.is_sparse for source in sources)
        self.on_disk = any(source.on_disk for source in sources)
        limits = [source.memory_limit for source in sources if source.memory_limit is not None]
        self.memory_limit = min(limits) if limits else None
        self.row_width = max(len(names), *(source.shape[1] for source in sources))

    def rows(self, index: np.ndarray | slice, dtype: torch.dtype = torch.float32) -> Tensor:
        parts, order = [], []
        for number, at, own in self._split(index):
            columns = torch.from_numpy(self.columns[number])
            x = self.sources[number].rows(own, dtype)[:, columns.clamp_min(0)]
            parts.append(x.masked_fill_(columns < 0, torch.nan))
            order.append(at)
        if not parts:
            return torch.empty(0, self.shape[1], dtype=dtype)
        return torch.cat(parts)[torch.from_numpy(np.argsort(np.concatenate(order)))]

    def sparse_rows(self, index: np.ndarray | slice) -> sparse.csr_array | None:
        if not self.is_sparse:
            return None
        parts, order = [], []
        for number, at, own in self._split(index):
            part = self.sources[number].sparse_rows(own)
            if part is None:
                return None
            parts.append(part[:, self.columns[number]])
            order.append(at)
        whole = sparse.vstack(parts, format="csr")
        return sparse.csr_array(whole[np.argsort(np.concatenate(order))])

    def _split(
        self, index: np.ndarray | slice
    ) -> Iterable[tuple[int, NDArray[np.int64], NDArray[np.int64] | slice]]:
        """The studies that have some of these rows, the places of those, and their own rows."""
        rows = np.arange(self.shape[0])[index]
        of = np.searchsorted(self.ends, rows, side="right")
        for number in np.unique(of).tolist():
            at = np.flatnonzero(of == number)
            own = rows[at] - (self.ends[number - 1] if number else 0)
            together = len(own) == own[-1] - own[0] + 1 and bool((np.diff(own) == 1).all())
            yield number, at, slice(int(own[0]), int(own[-1]) + 1) if together else own


class Studies:
    """Cells of several studies, with the members of an AnnData that choosing genes needs."""

    def __init__(self, data: Mapping[str, Any] | Sequence[Any], genes: str = "shared") -> None:
        check_choice("genes", genes, ("shared", "all"))
        if not isinstance(data, Mapping):
            data = {f"study {number}": part for number, part in enumerate(data, 1)}
        self.parts = {str(name): as_annotated(part) for name, part in data.items()}
        self.genes = genes
        if len(self.parts) < 2:
            raise InputError("give at least two studies; a single one is given without a list")
        self.sizes = [part.shape[0] for part in self.parts.values()]

    @property
    def shape(self) -> tuple[int]:
        """The number of cells."""
        return (sum(self.sizes),)

    @property
    def described(self) -> dict[str, int]:
        """How many cells each study has."""
        return dict(zip(self.parts, self.sizes, strict=True))

    def labels(self, batch_key: str | None) -> NDArray:
        """The study of each cell or, with a column of obs, study and batch."""
        study = np.repeat(list(self.parts), self.sizes)
        if batch_key is None or batch_key == STUDY:
            return study
        own = self.column(batch_key, "batch_key")
        return np.array([f"{one}: {batch}" for one, batch in zip(study, own, strict=True)])

    def column(self, name: str, what: str) -> NDArray:
        """A column of obs of all studies, one below the other."""
        found = [obs_column(part, name, what) for part in self.parts.values()]
        if any(part.dtype.kind == "O" for part in found):
            found = [part.astype(object) for part in found]
        return np.concatenate(found)

    @property
    def obs(self) -> Any:
        """The columns of obs that all studies have."""
        pandas = import_optional("pandas")
        columns = [list(part.obs) for part in self.parts.values()]
        shared = [name for name in columns[0] if all(name in other for other in columns[1:])]
        return pandas.DataFrame({name: self.column(name, "obs") for name in shared})

    def open(self, **options: Any) -> StackedCells:
        """All cells, each study in its own totals; see `open_cells`."""
        sources = [open_cells(part, **options) for part in self.parts.values()]
        units = [describe_units(source)["units"] for source in sources]
        if len(set(units)) > 1:
            said = [f"{name}: {unit}" for name, unit in zip(self.parts, units, strict=True)]
            raise InputError(
                f"the studies have different units ({join_names(said, 12)}); give raw counts of "
                "all, for instance by layer="
            )
        self.sources = sources
        return StackedCells(sources, self._names())

    def _names(self) -> list[str]:
        """The genes of all studies, or of any, in the order of the first that has them."""
        lists = [[str(name) for name in source.names or ()] for source in self.sources]
        every = dict.fromkeys(name for names in lists for name in names)
        if self.genes == "all":
            return list(every)
        shared = set(lists[0]).intersection(*lists[1:])
        if not shared:
            raise InputError(
                "no gene is in all studies; are their genes named by ids in some and by symbols "
                "in others (gene_symbols=)? Or say genes='all'"
            )
        return [name for name in every if name in shared]

    def weights(self, weights: Any) -> NDArray[np.float64]:
        """The weight of each cell, as that of its study."""
        if isinstance(weights, str):
            check_choice("study_weights", weights, ("equal",))
            each = {name: 1 / n for name, n in zip(self.parts, self.sizes, strict=True)}
        else:
            if not isinstance(weights, Mapping) or {*map(str, weights)} != {*self.parts}:
                raise InputError(
                    f"study_weights={weights!r}: give 'equal', or a weight for each of "
                    f"{join_names(list(self.parts), 12)}"
                )
            each = {str(name): float(weight) for name, weight in weights.items()}
            for name, weight in each.items():
                check_number(f"study_weights[{name!r}]", weight, above=0)
        return np.repeat([each[name] for name in self.parts], self.sizes)
