"""Rows that live in a Dask cluster: sums are taken on the workers, only sums come back."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import narwhals as nw
import numpy as np
import torch
from torch import Tensor

from fewer._optional import import_optional
from fewer.data.columns import check_numbers, check_values, choose_columns
from fewer.data.source import RowView, Source, View, array_source
from fewer.errors import InputError

T = TypeVar("T")

BRANCHES = 8  # results that are added at each node of the tree


class DaskSource(Source):
    """Rows of a Dask array or table, one part per chunk; `reduce_rows` sends work to workers."""

    is_remote = True
    on_disk = True  # neighbouring rows are far quicker to fetch together

    def __init__(
        self,
        parts: Sequence[Any],
        lengths: Sequence[int],
        d: int,
        dtype: np.dtype,
        names: list[str] | None,
        memory_limit: int,
    ) -> None:
        self.parts = [part for part, size in zip(parts, lengths, strict=True) if size]
        self.starts = np.cumsum([0, *filter(None, lengths)])
        self.shape = int(self.starts[-1]), d
        self.dtype, self.names, self.memory_limit = np.dtype(dtype), names, memory_limit
        self.chunk_starts = self.starts[:-1]

    def rows(self, index: np.ndarray | slice, dtype: torch.dtype = torch.float32) -> Tensor:
        dask = import_optional("dask")
        wanted = np.arange(self.shape[0])[index]
        out = torch.empty(len(wanted), self.shape[1], dtype=dtype)
        pieces = list(self.split(wanted))
        take = dask.delayed(_take, pure=True)
        found = dask.compute(
            *(take(self.parts[at], self._described(at), own, dtype) for at, own, _ in pieces)
        )
        for (_, _, places), values in zip(pieces, found, strict=True):
            out[torch.from_numpy(places)] = values
        return out

    def split(self, rows: np.ndarray) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
        """Rows by the part they are in: which part, which rows of it, and where they were given."""
        part = np.searchsorted(self.starts, rows, side="right") - 1
        order = np.argsort(part, kind="stable")
        numbers, first = np.unique(part[order], return_index=True)
        for number, places in zip(numbers.tolist(), np.split(order, first[1:]), strict=True):
            yield number, rows[places] - self.starts[number], places

    def _described(self, at: int) -> tuple[list[str] | None, int]:
        return self.names, int(self.starts[at])


def is_dask(data: Any) -> bool:
    """Whether this is a Dask array or table, or a class of others that is one, such as a view."""
    libraries = {kind.__module__.split(".")[0] for kind in type(data).__mro__}
    return not libraries.isdisjoint(("dask", "dask_expr")) and hasattr(data, "to_delayed")


def open_dask(
    data: Any, names: list[str] | None, ignore: Sequence[str], memory_limit: int
) -> Source:
    """A source of a Dask array or table; the lengths of its parts are computed if not known."""
    if hasattr(data, "columns"):
        return _open_table(data, ignore, memory_limit)
    if data.ndim == 2 and np.isnan(data.shape[0]):
        data = data.compute_chunk_sizes()
    check_numbers("the Dask array", data.shape, data.dtype)
    data = data.rechunk({1: -1})  # all features of a row together
    parts = data.to_delayed().ravel().tolist()
    return DaskSource(parts, data.chunks[0], data.shape[1], data.dtype, names, memory_limit)


def _open_table(table: Any, ignore: Sequence[str], memory_limit: int) -> Source:
    dask = import_optional("dask")
    schema = nw.from_native(table).collect_schema()
    labels = {str(label): label for label in schema}
    text = [
        str(label) for label, kind in schema.items() if not kind.is_numeric() and kind != nw.Boolean
    ]
    features, metadata = choose_columns("the Dask table", list(labels), text, ignore)
    parts = table[[labels[name] for name in features]].to_delayed()
    lengths = dask.compute(*(dask.delayed(len)(part) for part in parts))
    if not sum(lengths):
        raise InputError("the Dask table holds no rows")
    source = DaskSource(parts, lengths, len(features), np.dtype(float), features, memory_limit)
    source.metadata_columns = metadata
    if metadata:
        others = table[[labels[name] for name in metadata]].to_delayed()
        source.metadata = lambda: (_arrow(part.compute()) for part in others)
    return source


def _arrow(table: Any) -> Any:
    found = import_optional("pyarrow").Table.from_pandas(table, preserve_index=False)
    return found.rename_columns([str(name) for name in found.column_names])


# -- sums on the workers ---------------------------------------------------------------------


def reduce_on_workers(
    source: Source, work: Callable[..., T], *aligned: Any, add: Callable[[list[T]], T]
) -> T:
    """`reduce_rows` for views of a `DaskSource`: they are made again on the workers, over parts."""
    views: list[View] = []
    base = source
    while isinstance(base, View):
        views.append(base)
        base = base.source
    assert isinstance(base, DaskSource)
    rows, levels = np.arange(source.shape[0]), []
    for view in views:
        levels.append(rows)
        if isinstance(view, RowView):
            rows = np.asarray(view.locate(rows))
    delayed = import_optional("dask").delayed
    results = []
    for at, own, places in base.split(rows):
        over = [
            view.over(None, level[places])
            for view, level in zip(views, levels, strict=True)
            if not isinstance(view, RowView)
        ]
        values = [each[places] for each in aligned]
        part = base.parts[at], base._described(at), own
        results.append(delayed(_work_on)(*part, over[::-1], work, values))
    while len(results) > 1:
        results = [
            delayed(add)(results[at : at + BRANCHES]) for at in range(0, len(results), BRANCHES)
        ]
    found: T = results[0].compute()
    return found


def _work_on(
    part: Any,
    described: tuple[list[str] | None, int],
    rows: np.ndarray,
    views: list[View],
    work: Callable[..., T],
    aligned: list[Any],
) -> T:
    source = _part_source(part, described, rows)
    for view in views:
        view.source = source
        source = view
    return work(source, *aligned)


def _take(
    part: Any, described: tuple[list[str] | None, int], rows: np.ndarray, dtype: torch.dtype
) -> Tensor:
    return _part_source(part, described, rows).rows(slice(None), dtype)


def _part_source(part: Any, described: tuple[list[str] | None, int], rows: np.ndarray) -> Source:
    names, start = described
    if hasattr(part, "columns"):
        part = part.to_numpy(dtype=np.float64, na_value=np.nan)
    check_values(part, names, "the Dask data", first_row=start)
    source = array_source(part, names)
    whole = len(rows) == source.shape[0] and bool((rows == np.arange(len(rows))).all())
    return source if whole else RowView(source, rows)
