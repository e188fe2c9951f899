"""Run experiments, in parallel if asked, and write what they found."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module
from multiprocessing import get_context, parent_process
from pathlib import Path
from threading import Thread
from typing import Any

import torch
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from fewer.datasets import NAMES, Dataset
from fewer.errors import InputError
from paper.experiment import UNKNOWN, Context, Outcome, ResultCache, provenance, write_text
from paper.figures import save_both, style

__all__ = ["EXPERIMENTS", "Finished", "compute_in_parallel", "reproduce"]

# in this order: results that others share come first
EXPERIMENTS = {
    "table1": "reconstruction error of all methods on six data sets",
    "table2": "classification accuracy of the same choices",
    "landmarks": "our genes against the L1000 landmark genes",
    "isolet": "error and accuracy against k with a hidden layer (Fig. 2)",
    "annealing": "four temperature schedules",
    "mnist": "20 pixels of MNIST, and digits reconstructed from them (Fig. 1)",
    "groups": "groups of related pixels",
    "digits": "10 pixels for single digits (App. A)",
    "supervised": "20 pixels of MNIST chosen with labels (App. F)",
    "ip-cae": "the protocol of indirectly parameterised concrete autoencoders",
    "diffusion": "acquisitions of diffusion MRI (simulated), and tissue estimated from them",
}
BEYOND = ("ip-cae", "diffusion")  # not of the paper, and hours without a GPU: not part of "all"
# the longest first, and seed by seed, so that no core is idle at the end
LONGEST_FIRST = ("isolet", "table1", "landmarks", "digits")
BY_SEED = ("isolet", "landmarks", "ip-cae")
BY_PART = ("diffusion",)  # whose own `parts` are smaller than a seed
SHARED = {"table2": "table1"}  # made from the other's results


@dataclass(frozen=True)
class Finished:
    """An experiment that has run: its name, how long it took, and what it wrote."""

    name: str
    seconds: float
    files: list[Path]
    result: dict[str, Any]


def reproduce(
    name: str,
    *,
    quick: bool = False,
    protocol: str = "clean",
    out: str | Path = "results",
    seeds: int | None = None,
    data: Sequence[str] = (),
    download: bool = False,
    jobs: int = 1,
    say: Callable[[str], None] = lambda text: None,
) -> list[Finished]:
    """Run one experiment, or all of the paper.

    Results of an earlier run are not computed again, so an interrupted run resumes where it
    stopped. Quick runs and runs with the paper's protocol have folders of their own inside
    ``out``.

    Parameters
    ----------
    name : str
        One of `EXPERIMENTS`, or "all": those of the paper.
    quick : bool, default=False
        Smaller versions: minutes for all of them together.
    protocol : {"clean", "paper"}, default="clean"
        "clean": whole mice, subjects, speakers and patients are held out and nothing is learned
        from test rows. "paper": the paper's splits and scaling.
    out : path, default="results"
        Where tables (Markdown), figures (PNG, SVG) and results (JSON) go.
    seeds : int, default=None
        Number of splits and random starts; each experiment's own default if None.
    data : sequence of str, default=()
        Data sets to use instead of the experiment's own; file names then end in theirs.
    download : bool, default=False
        Fetch missing data sets from OpenML (see `fewer.datasets.load`).
    jobs : int, default=1
        Processes that work in parallel, each with its share of the cores: on experiments, and on
        parts of the longest ones.
    say : callable, default=nothing
        Called with each line of progress.

    Returns
    -------
    list of Finished
    """
    names = _checked(name, protocol, seeds, data)
    if jobs < 1:
        raise InputError(f"jobs={jobs} must be at least 1")
    folder = Path(out)
    if protocol == "paper":
        folder /= "paper-protocol"
    if quick:
        folder /= "quick"
    cache = ResultCache(folder / "cells", say)
    context = Context(protocol, quick, cache, seeds, tuple(data), download)
    took: dict[str, float] = {}
    if jobs > 1:
        took = compute_in_parallel(names, context, jobs)  # the loop below finds all of it cached
    command = _command(name, quick, protocol, seeds, data)
    finished = []
    for one in names:
        say(f"{one}: {EXPERIMENTS[one]}")
        began = time.perf_counter()
        context.used = set()
        cache.start()
        with style():
            outcome = _module(one).run(context)
            seconds = max(time.perf_counter() - began, took.get(one, 0.0))
            files = _write(one, outcome, folder, context, command, seconds)
        say(f"{one}: {seconds:.1f} s -> {files[0]}")
        finished.append(Finished(one, seconds, files, outcome.result))
    return finished


def compute_in_parallel(names: Sequence[str], context: Context, jobs: int) -> dict[str, float]:
    """Fill the result cache of experiments in several processes; the seconds of work in each."""
    options = {
        name: getattr(context, name)
        for name in ("protocol", "quick", "seeds", "wanted", "download")
    }
    parts = _parts(names, context)
    threads = max(1, (os.cpu_count() or 1) // jobs)
    took = {name: 0.0 for name, _ in parts}
    fresh = get_context("spawn")  # torch's threads do not survive a fork
    messages = fresh.SimpleQueue()
    listener = Thread(target=_listen, args=(messages, context.cache.say), daemon=True)
    listener.start()
    with ProcessPoolExecutor(jobs, fresh, _begin, (messages, threads)) as pool:
        waiting = {
            pool.submit(_compute, name, context.cache.folder, options | {"part": part}): name
            for name, part in parts
        }
        try:
            for done in as_completed(waiting):
                took[waiting[done]] += done.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    messages.put(None)
    listener.join()
    return took


def _parts(names: Sequence[str], context: Context) -> list[tuple[str, int | None]]:
    """What each worker is given, in this order: an experiment, or a part of a long one."""
    alone = [name for name in names if SHARED.get(name) not in names]
    alone.sort(key=lambda name: (*LONGEST_FIRST, name).index(name))
    return [
        (name, part)
        for name in alone
        for part in (range(_count(name, context)) if name in (*BY_SEED, *BY_PART) else (None,))
    ]


def _count(name: str, context: Context) -> int:
    return len(context.seed_range() if name in BY_SEED else _module(name).parts(context))


def _listen(messages: Any, say: Callable[[str], None]) -> None:
    while (text := messages.get()) is not None:
        say(text)


_messages: list[Any] = []  # of a worker: the queue to the process that prints
_loaded: dict[str, Dataset] = {}  # of a worker: data sets that it has read


def _begin(messages: Any, threads: int) -> None:
    _messages.append(messages)
    Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(threads)
    threadpool_limits(threads)


def _end_with_parent() -> None:
    """Nobody waits for the result of a worker whose parent was killed."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _module(name: str) -> Any:
    return import_module(f"paper.{name.replace('-', '_')}")


def _compute(name: str, folder: Path, options: dict[str, Any]) -> float:
    began = time.perf_counter()
    cache = ResultCache(folder, _messages[0].put)
    context = Context(cache=cache, loaded=_loaded, **options)
    with style():
        _module(name).run(context)
    return time.perf_counter() - began


def _write(
    name: str, outcome: Outcome, folder: Path, context: Context, command: str, seconds: float
) -> list[Path]:
    origin = provenance(command, {key: context.loaded[key] for key in sorted(context.used)})
    cells = sorted(context.cache.origins)
    origin["cells"] = [{"commit": at, "machine": by} for at, by in cells]
    result = {
        "experiment": name,
        "protocol": context.protocol,
        "quick": context.quick,
        "seconds": round(max(seconds, context.cache.seconds), 1),
        "provenance": origin,
        **outcome.result,
    }
    # a run with other data sets leaves the experiment's own pages alone
    chosen = "".join(f"-{one}" for one in context.wanted)
    figures = {stem + chosen: figure for stem, figure in outcome.figures.items()}
    pictures = [path for stem in figures for path in save_both(figures[stem], folder, stem)]
    shown = "".join(f"\n\n![{stem}]({stem}.png)" for stem in figures)
    machine = origin["machine"]
    footer = (
        f"\n\n`{origin['command']}`, commit {origin['commit']}, {origin['date']}, "
        f"{machine['processor']}, {machine['threads']} of {machine['cores']} cores, "
        f"torch {origin['versions']['torch']}; {result['seconds']:.0f} s.\n"
    )
    if cells and cells != [(origin["commit"] or UNKNOWN, machine["processor"])]:
        parts = "; ".join(f"commit {at}, machine {by}" for at, by in cells)
        footer += f"\nComputed in parts: {parts}.\n"
    page, numbers = folder / f"{name}{chosen}.md", folder / f"{name}{chosen}.json"
    write_text(page, outcome.page + shown + footer)
    write_text(numbers, json.dumps(result, indent=1) + "\n")
    return [page, numbers, *pictures]


def _checked(name: str, protocol: str, seeds: int | None, data: Sequence[str]) -> list[str]:
    if name != "all" and name not in EXPERIMENTS:
        close = get_close_matches(name, EXPERIMENTS, n=1)
        hint = f"did you mean {close[0]!r}? " if close else ""
        raise InputError(
            f"there is no experiment {name!r}; {hint}Known: all, {', '.join(EXPERIMENTS)}"
        )
    if protocol not in ("clean", "paper"):
        raise InputError(f"protocol={protocol!r} is not valid; use 'clean' or 'paper'")
    if seeds is not None and seeds < 1:
        raise InputError(f"seeds={seeds} must be at least 1")
    for one in data:
        if one not in NAMES:
            raise InputError(f"there is no data set {one!r}; known: {', '.join(NAMES)}")
    if name == "all" and data:
        raise InputError("--data goes with one experiment; with 'all' each uses its own")
    return [one for one in EXPERIMENTS if one not in BEYOND] if name == "all" else [name]


def _command(name: str, quick: bool, protocol: str, seeds: int | None, data: Sequence[str]) -> str:
    parts = ["python -m paper", name]
    parts += ["--quick"] if quick else []
    parts += [f"--protocol {protocol}"] if protocol != "clean" else []
    parts += [f"--seeds {seeds}"] if seeds else []
    parts += [f"--data {','.join(data)}"] if data else []
    return " ".join(parts)
