"""Several experiments at the same time, each in a process of its own."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from importlib import import_module
from multiprocessing import get_context, parent_process
from pathlib import Path
from threading import Thread
from typing import Any

import torch
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from fewer.paper.cells import ResultCache
from fewer.paper.context import Context
from fewer.paper.style import style

__all__ = ["compute_together"]

# the longest first, and seed by seed, so that no core is without work at the end
LONGEST_FIRST = ("isolet", "table1", "landmarks", "digits")
BY_SEED = ("isolet", "landmarks")
SHARED = {"table2": "table1"}  # made from the other's cells


def compute_together(names: Sequence[str], context: Context, jobs: int) -> dict[str, float]:
    """Compute the cells of experiments, so many at a time; the seconds of work in each."""
    alone = [name for name in names if SHARED.get(name) not in names]
    alone.sort(key=lambda name: (*LONGEST_FIRST, name).index(name))
    options = {
        name: getattr(context, name)
        for name in ("protocol", "quick", "seeds", "wanted", "download")
    }
    parts = [
        (name, part)
        for name in alone
        for part in (context.seed_range() if name in BY_SEED else (None,))
    ]
    threads = max(1, (os.cpu_count() or 1) // jobs)
    took = dict.fromkeys(alone, 0.0)
    fresh = get_context("spawn")  # torch's threads do not survive a fork
    heard = fresh.SimpleQueue()
    listener = Thread(target=_listen, args=(heard, context.cells.say), daemon=True)
    listener.start()
    with ProcessPoolExecutor(jobs, fresh, initializer=_begin, initargs=(heard, threads)) as pool:
        waiting = {
            pool.submit(_compute, name, context.cells.folder, options | {"part": part}): name
            for name, part in parts
        }
        try:
            for done in as_completed(waiting):
                took[waiting[done]] += done.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    heard.put(None)
    listener.join()
    return took


def _listen(heard: Any, say: Callable[[str], None]) -> None:
    while (text := heard.get()) is not None:
        say(text)


_heard: list[Any] = []  # of a process: what it says goes to the one that prints


def _begin(heard: Any, threads: int) -> None:
    _heard.append(heard)
    Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(threads)
    threadpool_limits(threads)


def _end_with_parent() -> None:
    """Nobody waits for the result of a process whose parent was killed."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _compute(name: str, folder: Path, options: dict[str, Any]) -> float:
    began = time.perf_counter()
    context = Context(cells=ResultCache(folder, _heard[0].put), **options)
    with style():
        import_module(f"fewer.paper.{name}").run(context)
    return time.perf_counter() - began
