"""Rows ready for training: gaps filled, centred, scaled, on the device, a batch at a time."""

import copy
from collections.abc import Iterator
from operator import attrgetter
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fewer.data.moments import exact_dtype
from fewer.data.source import Source, ahead, block_bytes, starts_among
from fewer.distributed import all_or_raise, gather, rank, shard_bounds, world_size

RESIDENT_BYTES = 2 * 2**30
BLOCKS_PER_WINDOW = 16
WINDOW_SHARE = 5  # of the memory limit: one window is in use while another is read


class Batch(NamedTuple):
    """Inputs, what to predict, and which of that was observed, or its weights (None: all of it)."""

    x: Tensor
    target: Tensor
    observed: Tensor | None


class Batches:
    """Some rows of a source, prepared for a network: (x - center) / scale, gaps at the mean.

    Rows stay on the device between epochs when they fit; rows on disk that do not are shuffled in
    windows, the next of which is read meanwhile. ``targets`` default to the inputs, in their own
    units with ``raw_targets``; their rows may have ``weights``. Each of several ranks has only the
    rows of a batch that it has read.
    """

    def __init__(
        self,
        source: Source,
        index: np.ndarray,
        *,
        mean: Tensor,
        center: Tensor | None = None,
        scale: float = 1.0,
        targets: Tensor | None = None,
        weights: Tensor | None = None,
        log_inputs: bool = False,
        raw_targets: bool = False,
        has_missing: bool = True,
        device: torch.device | str = "cpu",
    ) -> None:
        # stored, since windows are read in another thread, which is in no group
        self._rank, self._world = rank(), world_size()
        self.source, self.index, self.device = source, np.asarray(index), torch.device(device)
        # float64 work is the GPU's where there is one: rows cross over as they are stored
        there = self.device.type == "cuda"
        self._home = self.device if there else torch.device("cpu")
        self._stored = exact_dtype(source) if there else torch.float64
        self.mean = mean.double().to(self._home)
        center = torch.zeros_like(mean) if center is None else center
        self.center = center.double().to(self._home)
        self.scale = scale
        self.targets = None if targets is None else targets.to(self.device)
        self.weights = None
        if targets is not None and weights is not None:  # a weight for each entry
            every = weights if targets.ndim == 1 else weights[:, None].expand(targets.shape)
            self.weights = every.float().to(self.device)
        self.log_inputs = log_inputs
        self.raw_targets = raw_targets
        self.has_missing = has_missing
        self.columns: Tensor | None = None
        self.factor: Tensor | None = None
        self._start, self._stop = shard_bounds(len(self.index), self._rank, self._world)
        fits = all(gather(self._fits()))
        own = np.arange(self._start, self._stop)
        in_order = torch.arange(len(own))
        self._resident = all_or_raise(lambda: self._collect(own, in_order)) if fits else None

    def __len__(self) -> int:
        return len(self.index)

    def with_inputs(self, columns: np.ndarray, factor: Tensor | None = None) -> "Batches":
        """The same rows and targets, with only these columns as inputs, each times its factor.

        With m x k columns, inputs are n x m x k: those of m networks.
        """
        other = copy.copy(self)
        other.columns = torch.as_tensor(columns, device=self.device)
        other.factor = None if factor is None else factor.to(self.device)
        if self._resident is not None:
            other._resident = self._resident._replace(x=other._inputs(self._resident.x))
        return other

    def with_targets(self, targets: Tensor) -> "Batches":
        """The same rows with other targets, in the order of ``index``."""
        other = copy.copy(self)
        other.targets = targets.to(self.device)
        if self._resident is not None:
            own = other.targets[self._start : self._stop]
            other._resident = self._resident._replace(target=own)
        return other

    def shuffled(self, size: int, generator: torch.Generator) -> Iterator[Batch]:
        """All rows in a fresh random order, ``size`` at a time."""
        if self._streams:
            yield from self._streamed(size, generator)
            return
        yield from map(self.take, self.shuffled_positions(size, generator))

    def shuffled_positions(self, size: int, generator: torch.Generator) -> Iterator[Tensor]:
        """What `take` is given for an epoch: all positions in a fresh random order."""
        order = torch.randperm(len(self), generator=generator)
        last = self.steps(size) - 1
        for step in range(last + 1):
            end = len(self) if step == last else (step + 1) * size
            yield order[step * size : end]

    @property
    def several(self) -> bool:
        """Whether other ranks have the other rows of each batch."""
        return self._world > 1

    @property
    def complete(self) -> bool:
        """Whether no value is missing."""
        return not self.has_missing or self.targets is not None

    @property
    def resident(self) -> Tensor | None:
        """All rows, where they are in memory, complete, and their own targets; else None."""
        found = self.tensors
        return None if found is None or found[0] is not found[1] else found[0]

    @property
    def tensors(self) -> tuple[Tensor, Tensor] | None:
        """Inputs and targets of all rows, where they are in memory and complete; else None."""
        if self._resident is None or self.several or self._resident.observed is not None:
            return None
        return self._resident.x, self._resident.target

    def steps(self, size: int) -> int:
        """Number of batches in an epoch: a single row left over joins the batch before it."""
        whole, left = divmod(len(self), size)
        return max(1, whole + (left > 1 or (left == 1 and size == 1)))

    def in_order(self, size: int = 4096) -> Iterator[Batch]:
        """All rows of this rank as they come, ``size`` at a time or as many as memory allows."""
        if self._resident is None:
            size = min(size, self._block_rows)
        starts = range(self._start, self._stop, size)
        found = (self._rows_at(torch.arange(at, min(at + size, self._stop))) for at in starts)
        return ahead(found) if self._streams else found

    def draws(self, size: int, generator: torch.Generator) -> Iterator[Batch]:
        """Random rows without end: drawn with replacement, but from disk in shuffled epochs."""
        while not self._streams:
            yield self.take(torch.randint(len(self), (size,), generator=generator))
        while True:
            for batch in self.shuffled(size, generator):
                if len(batch.x) == size:
                    yield batch

    def take(self, at: Tensor) -> Batch:
        """The rows at these positions of ``index``; of several ranks, those of this one."""
        if self.several and self._resident is not None:
            at = at[(at >= self._start) & (at < self._stop)]
        elif self.several:  # all can read all of them, so each takes as many
            at = at[slice(*shard_bounds(len(at), self._rank, self._world))]
        return self._rows_at(at)

    def _rows_at(self, at: Tensor) -> Batch:
        if self._resident is None:
            return self._prepare(at.numpy())
        return _rows_of(self._resident, at.to(self.device) - self._start)

    def _streamed(self, size: int, generator: torch.Generator) -> Iterator[Batch]:
        """An epoch over rows on disk: windows are read ahead, shuffled, and cut into batches."""
        # a generator of its own: windows are drawn in another thread
        seed = int(torch.randint(2**62, (), generator=generator))
        generator = torch.Generator().manual_seed(seed)
        last = self.steps(size) - 1
        step = held = 0
        parts: list[Batch] = []  # rows left over from windows before this one
        for pool in ahead(self._pools(generator)):
            start = 0
            while step < last and held + pool.length - start >= size:
                end = start + size - held
                yield _joined([*parts, pool.cut(start, end)])
                parts, held, start, step = [], 0, end, step + 1
            # copied, so that the window it lies in can go
            parts.append(pool.cut(start, pool.length, copy=True))
            held += pool.length - start
            del pool
        yield _joined(parts)

    def _pools(self, generator: torch.Generator) -> Iterator["_Pool"]:
        """Windows of prepared rows, shuffled."""
        limit = self.source.memory_limit or 2 * RESIDENT_BYTES
        width = self.source.shape[1] * (8 if self.raw_targets else 4)
        rows = max(1, limit // WINDOW_SHARE // width)
        starts = starts_among(self.source, self.index)
        for parts, order in windows(len(self), rows, generator, starts):
            at = np.concatenate([np.arange(part.start, part.stop) for part in parts])
            yield self._pool(at, order)

    def _pool(self, at: np.ndarray, order: Tensor) -> "_Pool":
        """The rows at these ascending positions, shuffled; each rank reads its share of them."""
        place = torch.empty_like(order)
        place[order] = torch.arange(len(order))
        length = len(at)
        mine = slice(*shard_bounds(length, self._rank, self._world))
        at, place = at[mine], place[mine]
        places = None
        if self.several:  # places among this rank's own rows
            places, own = place.sort()
            place = torch.empty_like(own)
            place[own] = torch.arange(len(own))
        return _Pool(self._collect(at, place), length, places)

    def _collect(self, at: np.ndarray, place: Tensor) -> Batch:
        """The rows at these positions of ``index``, read block by block, each put in its place."""
        size = self._block_rows
        whole: list[Tensor | None] = []
        for start in range(0, max(len(at), 1), size):
            part = slice(start, min(start + size, len(at)))
            batch = self._prepare(at[part])
            if not whole:
                whole = [None if p is None else p.new_empty((len(at), *p.shape[1:])) for p in batch]
                if batch.target is batch.x:
                    whole[1] = whole[0]
            for out, values in zip(whole, batch, strict=True):
                if out is not None and values is not None:
                    out.index_copy_(0, place[part].to(self.device), values)
        x, target, observed = whole
        assert x is not None
        assert target is not None
        return Batch(x, target, observed)

    def _prepare(self, at: np.ndarray) -> Batch:
        index = self.index[at]
        if len(index):
            raw = self.source.rows(index, self._stored).to(self._home, torch.float64)
        else:
            raw = torch.zeros(0, self.source.shape[1], dtype=torch.float64, device=self._home)
        observed = None
        if self.has_missing:
            gaps = torch.isnan(raw)
            raw = torch.where(gaps, self.mean, raw)
            observed = (~gaps).to(self.device)
        # centred in float64: a large offset must not eat the digits that float32 has
        base = torch.log1p(raw) if self.log_inputs else raw
        x = ((base - self.center) / self.scale).float().to(self.device, non_blocking=True)
        inputs = self._inputs(x)
        if self.targets is not None:
            rows = torch.from_numpy(at).to(self.device)
            weights = None if self.weights is None else self.weights[rows]
            return Batch(inputs, self.targets[rows], weights)
        return Batch(inputs, raw.float().to(self.device) if self.raw_targets else x, observed)

    def _inputs(self, x: Tensor) -> Tensor:
        inputs = x if self.columns is None else x[:, self.columns]
        return inputs if self.factor is None else inputs * self.factor

    @property
    def _streams(self) -> bool:
        """Whether rows are read from disk at every epoch."""
        return self._resident is None and self.source.on_disk

    @property
    def _block_rows(self) -> int:
        # half a block: windows are in memory beside it, and preparing rows takes copies
        size = max(1, block_bytes(self.source) // (16 * self.source.shape[1]))
        return size - size % self.source.chunk_rows or size  # whole chunks, where one fits

    def _fits(self) -> bool:
        # a sparse source would grow: its rows become dense only a batch at a time
        if self.source.is_sparse:
            return False
        size = (self._stop - self._start) * self.source.shape[1] * 4
        if self.device.type == "cuda":
            return size < torch.cuda.mem_get_info(self.device)[0] // 3
        limit = self.source.memory_limit
        return size <= (RESIDENT_BYTES if limit is None else limit // 2)


class _Pool(NamedTuple):
    """A window of shuffled rows, or this rank's share of one."""

    rows: Batch
    length: int  # of the whole window
    places: Tensor | None  # of these rows in it, ascending; None: all rows are here

    def cut(self, start: int, end: int, copy: bool = False) -> Batch:
        """The rows at these places of the window, as far as they are here."""
        if self.places is not None:
            start, end = torch.searchsorted(self.places, torch.tensor([start, end])).tolist()
        return _rows_of(self.rows, slice(start, end), copy)


def _rows_of(batch: Batch, at: slice | Tensor, copy: bool = False) -> Batch:
    x, target, observed = batch

    def part(values: Tensor) -> Tensor:
        found = values[at] if isinstance(at, slice) else values.index_select(0, at)
        return found.clone() if copy else found

    rows = part(x)
    return Batch(
        rows, rows if target is x else part(target), None if observed is None else part(observed)
    )


def _joined(parts: list[Batch]) -> Batch:
    if len(parts) == 1:
        return parts[0]
    x = torch.cat([part.x for part in parts])
    same = parts[0].target is parts[0].x
    masks = [part.observed for part in parts if part.observed is not None]
    return Batch(
        x,
        x if same else torch.cat([part.target for part in parts]),
        torch.cat(masks) if masks else None,
    )


# -- in which order rows are read ------------------------------------------------------------
#
# Rows on disk are quick to read where they lie together. So an epoch takes blocks of neighbouring
# rows in random order, a window of several blocks at a time, and shuffles each window in memory:
# every row comes once, and the larger the window the better the mix.


def windows(
    n: int, size: int, generator: torch.Generator, chunk_starts: NDArray[np.int64] | None = None
) -> Iterator[tuple[list[slice], Tensor]]:
    """An epoch over n rows: ascending blocks of at most ``size`` rows, and how to shuffle them."""
    if size >= n:
        yield [slice(0, n)], torch.randperm(n, generator=generator)
        return
    edges = [*_block_starts(n, size, chunk_starts), n]
    chosen: list[slice] = []
    held = 0
    for at in torch.randperm(len(edges) - 1, generator=generator).tolist():
        block = slice(edges[at], edges[at + 1])
        length = block.stop - block.start
        if held + length > size:
            yield sorted(chosen, key=attrgetter("start")), torch.randperm(held, generator=generator)
            chosen, held = [], 0
        chosen.append(block)
        held += length
    yield sorted(chosen, key=attrgetter("start")), torch.randperm(held, generator=generator)


def _block_starts(n: int, size: int, chunk_starts: NDArray[np.int64] | None) -> list[int]:
    step = max(1, size // BLOCKS_PER_WINDOW)
    if chunk_starts is None:
        return list(range(0, n, step))
    starts = [0]
    for edge in [*chunk_starts.tolist(), n]:
        if edge - starts[-1] > size:  # a chunk that fits no window is taken in parts
            starts += range(starts[-1] + step, edge, step)
        if edge - starts[-1] >= step and edge < n:
            starts.append(edge)
    return starts
