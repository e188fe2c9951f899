"""Results one by one: each is on disk as soon as it is known, so a run can be interrupted."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fewer._files import write_text
from fewer.errors import FileFormatError
from fewer.paper.provenance import commit, processor

__all__ = ["UNKNOWN", "ResultCache"]

Cell = dict[str, Any]
UNKNOWN = "not recorded"


class ResultCache:
    """A folder of small results, each under a key such as ``("table", "mice", "seed 0", "PFA")``.

    Parameters
    ----------
    folder : Path
        Where they are kept.
    say : callable
        Told about each new one.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> cells = ResultCache(Path(tempfile.mkdtemp()))
    >>> cells.get(("a", "b"), {"k": 2}, lambda: {"error": 0.5})["error"]
    0.5
    >>> cells.get(("a", "b"), {"k": 2}, lambda: 1 / 0)["error"]  # known by now
    0.5
    """

    def __init__(self, folder: Path, say: Callable[[str], None] = lambda text: None) -> None:
        self.folder = folder
        self.say = say
        self.computed = 0
        self.start()

    def start(self) -> None:
        """Begin with an experiment: forget what was counted for the one before."""
        self.seconds = 0.0  # that the results asked for took, in this run or an earlier one
        self.origins: set[tuple[str, str]] = set()  # commits and machines that they come from

    def get(self, key: tuple[str, ...], settings: Cell, compute: Callable[[], Cell]) -> Cell:
        """Read a result, or compute and keep it.

        A result that was made with other settings is made again.
        """
        path = self.folder.joinpath(*(part.replace("/", "-").replace(" ", "-") for part in key))
        path = path.with_name(path.name + ".json")
        settings = json.loads(json.dumps(settings))
        known = _read(path)
        if known is not None and known.get("settings") == settings:
            self._count(known)
            return known
        began, worked = time.perf_counter(), time.process_time()
        found = {"key": list(key), "settings": settings, **compute()}
        # cells of one table may come from several versions and machines
        found |= {"commit": commit(), "machine": processor()}
        found["seconds_in_all"] = round(time.perf_counter() - began, 3)
        found["cpu_seconds"] = round(time.process_time() - worked, 3)
        write_text(path, json.dumps(found, indent=1))
        self.computed += 1
        self._count(found)
        self.say(f"{' · '.join(key)} ({found['seconds_in_all']:.1f} s)")
        return found

    def _count(self, cell: Cell) -> None:
        self.seconds += cell["seconds_in_all"]
        self.origins.add((cell.get("commit") or UNKNOWN, cell.get("machine") or UNKNOWN))


def _read(path: Path) -> Cell | None:
    if not path.is_file():
        return None
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise FileFormatError(f"{path} is damaged ({error}); delete it and run again") from error
