"""Run experiments and write what they found."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import Any

from fewer._files import write_text
from fewer.datasets import NAMES
from fewer.errors import InputError
from fewer.paper.cells import UNKNOWN, ResultCache
from fewer.paper.context import Context, Outcome
from fewer.paper.jobs import compute_together
from fewer.paper.provenance import provenance
from fewer.paper.style import save_both, style

__all__ = ["EXPERIMENTS", "Finished", "reproduce"]

# in this order: what others share comes first
EXPERIMENTS = {
    "table1": "reconstruction error of all methods on six data sets",
    "table2": "classification accuracy of the same choices",
    "landmarks": "our genes against the L1000 landmark genes",
    "isolet": "error and accuracy against k with a hidden layer (Fig. 2)",
    "annealing": "four temperature schedules",
    "mnist": "20 pixels of MNIST, and digits rebuilt from them (Fig. 1)",
    "groups": "groups of related pixels",
    "digits": "10 pixels for single digits (App. A)",
    "supervised": "20 pixels of MNIST chosen with labels (App. F)",
}


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
    """Run one experiment of the paper, or all.

    Results known from an earlier run are not computed again, so a run that was interrupted goes
    on where it stopped. Quick runs and runs with the paper's protocol have folders of their own
    inside ``out``.

    Parameters
    ----------
    name : str
        One of `EXPERIMENTS`, or "all".
    quick : bool, default=False
        Smaller versions, minutes for all of them together.
    protocol : {"clean", "paper"}, default="clean"
        "clean": whole mice, subjects, speakers and patients are held out and nothing is learned
        from test rows. "paper": the paper's splits and scaling.
    out : path, default="results"
        Where tables (Markdown), figures (PNG, SVG) and results (JSON) go.
    seeds : int, default=None
        Splits and starts; what each experiment finds right if None.
    data : sequence of str, default=()
        Data sets to use instead of the experiment's own; file names then end in theirs.
    download : bool, default=False
        Fetch data sets that are not there from OpenML (see `fewer.datasets.load`).
    jobs : int, default=1
        Processes that work at the same time, each with its share of the cores: on experiments, and
        on the splits of the two longest ones.
    say : callable, default=nothing
        Told what goes on, a line at a time.

    Returns
    -------
    list of Finished

    Examples
    --------
    >>> import tempfile
    >>> from fewer.paper import reproduce
    >>> reproduce("tabel1", out=tempfile.mkdtemp())
    Traceback (most recent call last):
    fewer.errors.InputError: there is no experiment 'tabel1'; did you mean 'table1'? ...
    """
    names = _checked(name, protocol, seeds, data)
    if jobs < 1:
        raise InputError(f"jobs={jobs} must be at least 1")
    folder = Path(out)
    if protocol == "paper":
        folder /= "paper-protocol"
    if quick:
        folder /= "quick"
    context = Context(
        protocol, quick, ResultCache(folder / "cells", say), seeds, tuple(data), download
    )
    took: dict[str, float] = {}
    if jobs > 1:
        took = compute_together(names, context, jobs)  # what follows finds all cells there
    command = _command(name, quick, protocol, seeds, data)
    finished = []
    for one in names:
        say(f"{one}: {EXPERIMENTS[one]}")
        began = time.perf_counter()
        context.used = set()
        context.cells.start()
        with style():
            outcome = import_module(f"fewer.paper.{one}").run(context)
            seconds = max(time.perf_counter() - began, took.get(one, 0.0))
            files = _write(one, outcome, folder, context, command, seconds)
        say(f"{one}: {seconds:.1f} s -> {files[0]}")
        finished.append(Finished(one, seconds, files, outcome.result))
    return finished


def _write(
    name: str, outcome: Outcome, folder: Path, context: Context, command: str, seconds: float
) -> list[Path]:
    origin = provenance(command, [context.loaded[one] for one in sorted(context.used)])
    cells = sorted(context.cells.origins)
    origin["cells"] = [{"commit": at, "machine": by} for at, by in cells]
    result = {
        "experiment": name,
        "protocol": context.protocol,
        "quick": context.quick,
        "seconds": round(max(seconds, context.cells.seconds), 1),
        "provenance": origin,
        **outcome.result,
    }
    # with other data sets than its own, an experiment leaves the pages of its own alone
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
        raise InputError(f"protocol={protocol!r} is not known; use 'clean' or 'paper'")
    if seeds is not None and seeds < 1:
        raise InputError(f"seeds={seeds} must be at least 1")
    for one in data:
        if one not in NAMES:
            raise InputError(f"there is no data set {one!r}; known: {', '.join(NAMES)}")
    if name == "all" and data:
        raise InputError("--data goes with one experiment; with 'all' each uses its own")
    return list(EXPERIMENTS) if name == "all" else [name]


def _command(name: str, quick: bool, protocol: str, seeds: int | None, data: Sequence[str]) -> str:
    parts = ["fewer reproduce", name]
    parts += ["--quick"] if quick else []
    parts += [f"--protocol {protocol}"] if protocol != "clean" else []
    parts += [f"--seeds {seeds}"] if seeds else []
    parts += [f"--data {','.join(data)}"] if data else []
    return " ".join(parts)
