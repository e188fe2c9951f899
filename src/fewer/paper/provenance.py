"""How a result came about: command, code, data, machine, versions, date."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from fewer import __version__
from fewer.datasets import Dataset

__all__ = ["commit", "processor", "provenance"]

PACKAGES = ("numpy", "scipy", "scikit-learn", "torch")


def provenance(command: str, data: Iterable[Dataset]) -> dict[str, Any]:
    """Everything that somebody needs to get the same figures again.

    Examples
    --------
    >>> from fewer.datasets import load
    >>> sorted(provenance("fewer reproduce digits", [load("digits")]))
    ['command', 'commit', 'data', 'date', 'machine', 'versions']
    """
    return {
        "command": command,
        "commit": commit(),
        "data": {
            one.name: {"rows": one.X.shape[0], "features": one.X.shape[1], "sha256": one.digest}
            for one in data
        },
        "machine": {
            "processor": processor(),
            "cores": os.cpu_count(),
            "threads": torch.get_num_threads(),
            "system": platform.system(),
        },
        "versions": {"fewer": __version__, "python": platform.python_version()}
        | {name: version(name) for name in PACKAGES},
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
    }


@cache  # the code that runs is the code that was loaded
def commit(folder: Path = Path(__file__).parents[1]) -> str | None:
    """The commit of the source tree that this package lies in, if it lies in one.

    It ends in "-dirty" where files of the package differ from what was committed.
    """
    found = _git(folder, "rev-parse", "--short=12", "HEAD")
    if found is None:
        return None
    return f"{found}-dirty" if _git(folder, "status", "--porcelain", "--", ".") else found


def _git(folder: Path, *what: str) -> str | None:
    call = ["git", "-C", str(folder), *what]
    try:
        done = subprocess.run(call, capture_output=True, text=True, check=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


@cache
def processor() -> str:
    """What computes: the CPU, and the GPU that is used where there is one."""
    gpu = f", {torch.cuda.get_device_name()}" if torch.cuda.is_available() else ""
    return _cpu() + gpu


def _cpu() -> str:
    if sys.platform.startswith("linux"):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
