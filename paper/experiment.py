"""What an experiment is given, what it returns, and the cache that its results go through."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

import torch
from matplotlib.figure import Figure

import fewer
from fewer.datasets import Dataset, load
from fewer.errors import FileFormatError, InputError
from paper.case import Case, make_case

__all__ = [
    "UNKNOWN",
    "Context",
    "Outcome",
    "ResultCache",
    "commit",
    "processor",
    "provenance",
    "write_text",
]

Result = dict[str, Any]
Part = TypeVar("Part")
UNKNOWN = "not recorded"
PACKAGES = ("numpy", "scipy", "scikit-learn", "torch")
SOURCES = (Path(__file__).parent, Path(fewer.__file__).parent)  # the code that makes results


@dataclass(frozen=True, eq=False)
class Outcome:
    """What an experiment found: numbers, a page of Markdown, figures by name."""

    result: dict[str, Any]
    page: str
    figures: dict[str, Figure] = field(default_factory=dict)


@dataclass(eq=False)
class Context:
    """The options of a run, its data, and its results so far.

    Attributes
    ----------
    protocol : {"clean", "paper"}
        How rows are split and scaled.
    quick : bool
        Less of everything: minutes for all experiments together.
    cache : ResultCache
        Results so far.
    seeds : int or None
        Number of splits and random starts; the experiment's own default if None.
    wanted : tuple of str
        Data sets to use instead of the experiment's own.
    download : bool
        Fetch missing data sets, where that is possible.
    part : int or None
        Run this part of the work only, such as one seed: for results that are computed in parallel.
    loaded : dict
        Data sets read so far.
    """

    protocol: str
    quick: bool
    cache: ResultCache
    seeds: int | None = None
    wanted: tuple[str, ...] = ()
    download: bool = False
    part: int | None = None
    loaded: dict[str, Dataset] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)

    def dataset(self, name: str, **options: Any) -> Dataset:
        """A data set, read once; options are those of `fewer.datasets.load`."""
        key = " ".join([name, *(f"{option}={value}" for option, value in options.items())])
        if key not in self.loaded:
            self.loaded[key] = load(name, download=self.download, **options)
        self.used.add(key)
        return self.loaded[key]

    def case(self, name: str, seed: int, **options: Any) -> Case:
        """Rows of a data set under the protocol of the run."""
        return make_case(self.dataset(name), self.protocol, seed, **options)

    def all_seeds(self, full: int = 3, quick: int = 1) -> range:
        """As many seeds as requested, or as many as the experiment wants."""
        return range(self.seeds or (quick if self.quick else full))

    def seed_range(self, full: int = 3, quick: int = 1) -> Sequence[int]:
        """The seeds to run."""
        return self.mine(self.all_seeds(full, quick))

    def mine(self, parts: Sequence[Part]) -> Sequence[Part]:
        """Those of all parts of the work that this run has to do."""
        return parts if self.part is None else parts[self.part : self.part + 1]

    def names(self, full: tuple[str, ...], quick: tuple[str, ...]) -> tuple[str, ...]:
        """Data sets: those requested, or those that the experiment wants."""
        return self.wanted or (quick if self.quick else full)

    def only(self, *known: str) -> str:
        """The data set of an experiment that works on one: the first, unless requested."""
        if not self.wanted:
            return known[0]
        if len(self.wanted) > 1 or self.wanted[0] not in known:
            raise InputError(
                f"--data {','.join(self.wanted)}: this experiment takes one of {', '.join(known)}"
            )
        return self.wanted[0]


class ResultCache:
    """A folder of small results, each under a key such as ``("table", "mice", "seed 0", "PFA")``.

    Each is on disk as soon as it is known, so that an interrupted run loses at most one.

    Parameters
    ----------
    folder : Path
        Where they are kept.
    say : callable
        Called with a line of text for each new result.
    """

    def __init__(self, folder: Path, say: Callable[[str], None] = lambda text: None) -> None:
        self.folder = folder
        self.say = say
        self.computed = 0
        self.start()

    def start(self) -> None:
        """Begin an experiment: reset what was counted for the one before."""
        self.seconds = 0.0  # that the requested results took, in this run or an earlier one
        self.origins: set[tuple[str, str]] = set()  # commits and machines that they come from

    def get(self, key: tuple[str, ...], settings: Result, compute: Callable[[], Result]) -> Result:
        """Read a result, or compute and store it; one made with other settings is recomputed."""
        path = self.folder.joinpath(*(part.replace("/", "-").replace(" ", "-") for part in key))
        path = path.with_name(path.name + ".json")
        settings = json.loads(json.dumps(settings))
        known = _read(path)
        if known is not None and known.get("settings") == settings:
            self._count(known)
            return known
        began, worked = time.perf_counter(), time.process_time()
        found = {"key": list(key), "settings": settings, **compute()}
        # the results of one table may come from several versions and machines
        found |= {"commit": commit(), "machine": processor()}
        found["seconds_in_all"] = round(time.perf_counter() - began, 3)
        found["cpu_seconds"] = round(time.process_time() - worked, 3)
        write_text(path, json.dumps(found, indent=1))
        self.computed += 1
        self._count(found)
        self.say(f"{' · '.join(key)} ({found['seconds_in_all']:.1f} s)")
        return found

    def _count(self, result: Result) -> None:
        self.seconds += result["seconds_in_all"]
        self.origins.add((result.get("commit") or UNKNOWN, result.get("machine") or UNKNOWN))


def write_text(path: Path, text: str) -> None:
    """Write under a temporary name, then rename: a file is there as a whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        draft.write_text(text, encoding="utf-8")
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)


def _read(path: Path) -> Result | None:
    if not path.is_file():
        return None
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise FileFormatError(f"{path} is damaged ({error}); delete it and run again") from error


def provenance(command: str, data: Mapping[str, Dataset]) -> dict[str, Any]:
    """Command, code, data, machine, versions, date: what it takes to get the same numbers."""
    return {
        "command": command,
        "commit": commit(),
        "data": {
            key: {"rows": one.X.shape[0], "features": one.X.shape[1], "sha256": one.digest}
            for key, one in data.items()
        },
        "machine": {
            "processor": processor(),
            "cores": os.cpu_count(),
            "threads": torch.get_num_threads(),
            "system": platform.system(),
        },
        "versions": {"fewer": fewer.__version__, "python": platform.python_version()}
        | {name: version(name) for name in PACKAGES},
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
    }


@cache  # the code that runs is the code that was loaded
def commit(*folders: Path) -> str | None:
    """The commit of the source tree that this code lies in, if it lies in one.

    It ends in "-dirty" where files of these folders differ from what was committed.
    """
    folders = folders or SOURCES
    found = _git(folders[0], "rev-parse", "--short=12", "HEAD")
    if found is None:
        return None
    changed = any(_git(folder, "status", "--porcelain", "--", ".") for folder in folders)
    return f"{found}-dirty" if changed else found


def _git(folder: Path, *what: str) -> str | None:
    call = ["git", "-C", str(folder), *what]
    try:
        done = subprocess.run(call, capture_output=True, text=True, check=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


@cache
def processor() -> str:
    """What computes: the CPU, and the GPU where there is one."""
    gpu = f", {torch.cuda.get_device_name()}" if torch.cuda.is_available() else ""
    return _cpu() + gpu


def _cpu() -> str:
    if sys.platform.startswith("linux"):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
