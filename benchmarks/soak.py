"""Many fits in one process: memory and open files must not grow.

    python -m benchmarks.soak [--fits 1000]

Prints one line of JSON: resident memory after a tenth of the fits and at the end, the growth per
fit between them, and the numbers of open files and threads at both points.
"""

import argparse
import json
import os
import tempfile
import threading
from pathlib import Path
from typing import Any

import numpy as np

import fewer


def now() -> dict[str, int]:
    """Resident memory in kB, open files and threads of this process."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return {
        "rss_kb": pages * os.sysconf("SC_PAGE_SIZE") // 1024,
        "files": len(os.listdir("/proc/self/fd")),
        "threads": threading.active_count(),
    }


def soak(fits: int) -> dict[str, Any]:
    """Select, save, load, reconstruct and read files again and again."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(120, 4)) @ rng.normal(size=(4, 10)) + 0.1 * rng.normal(size=(120, 10))
    options: dict[str, Any] = {"strategies": ["search"], "validation": 0.2, "device": "cpu"}
    early: dict[str, int] = {}
    with tempfile.TemporaryDirectory() as folder:
        np.save(f"{folder}/x.npy", rows)
        for at in range(fits):
            panel = fewer.select(f"{folder}/x.npy", 3, random_state=at, **options)
            panel.save(f"{folder}/panel")
            again = fewer.Panel.load(f"{folder}/panel")
            again.reconstruct(rows[:, again.indices])
            if at + 1 == max(fits // 10, 1):
                early = now()
    late = now()
    grown = (late["rss_kb"] - early["rss_kb"]) / max(fits - fits // 10, 1)
    return {"fits": fits, "early": early, "late": late, "kb_per_fit": round(grown, 2)}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--fits", type=int, default=1000)
    print(json.dumps(soak(parser.parse_args().fits)))
