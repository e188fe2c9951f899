"""How a result came about: command, code, data, machine, versions, date."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from fewer import __version__
from fewer.datasets import Dataset

__all__ = ["provenance"]

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
        "commit": _commit(),
        "data": {
            one.name: {"rows": one.X.shape[0], "features": one.X.shape[1], "sha256": one.digest}
            for one in data
        },
        "machine": {
            "processor": _processor(),
            "cores": os.cpu_count(),
            "threads": torch.get_num_threads(),
            "system": platform.system(),
        },
        "versions": {"fewer": __version__, "python": platform.python_version()}
        | {name: version(name) for name in PACKAGES},
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
    }


def _commit() -> str | None:
    """The commit of the source tree that this package lies in, if it lies in one."""
    here = Path(__file__).parent
    call = ["git", "-C", str(here), "rev-parse", "--short=12", "HEAD"]
    try:
        done = subprocess.run(call, capture_output=True, text=True, check=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def _processor() -> str:
    if sys.platform.startswith("linux"):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
