"""Many fits in one process, and many rows: memory and open files must not grow.

    python -m benchmarks.soak [--fits 1000]
    python -m benchmarks.soak --rows 1000000

Prints one line of JSON. Fits: resident memory after a tenth of the fits and at the end, the growth
per fit between them, and the numbers of open files and threads at both points. Rows: a file of so
many rows is completed into another; the sizes of both, and by how much memory grew at most.
"""

import argparse
import json
import os
import re
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


def impute(rows: int) -> dict[str, Any]:
    """Reconstruct 50 features from 10 for many rows, from one file into another."""
    rng = np.random.default_rng(0)
    mix = rng.normal(size=(8, 50))
    sample = rng.normal(size=(400, 8)) @ mix + 0.1 * rng.normal(size=(400, 50))
    panel = fewer.select(
        sample, 10, strategies=["search"], validation=0.2, device="cpu", random_state=0
    )
    with tempfile.TemporaryDirectory() as folder:
        measured = np.lib.format.open_memmap(
            f"{folder}/x.npy", mode="w+", dtype=np.float32, shape=(rows, 10)
        )
        for start in range(0, rows, 10_000):
            measured[start : start + 10_000] = sample[rng.integers(0, 400, 10_000)][
                : rows - start, panel.indices
            ]
        measured.flush()
        del measured
        panel.reconstruct(sample[:, panel.indices], out=f"{folder}/y.npy")  # imports
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # forget earlier peaks
        before = now()["rss_kb"]
        source = fewer.data.open(f"{folder}/x.npy", memory_limit="8MB")
        panel.reconstruct(source, out=f"{folder}/y.npy")
        status = Path("/proc/self/status").read_text(encoding="utf-8")
        grown = int(re.findall(r"VmHWM:\s+(\d+)", status)[0]) - before
        sizes = [round(os.path.getsize(f"{folder}/{name}.npy") / 1e6) for name in "xy"]
    return {"rows": rows, "in_mb": sizes[0], "out_mb": sizes[1], "grown_mb": round(grown / 1024, 1)}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--fits", type=int, default=1000)
    parser.add_argument("--rows", type=int, help="complete a file of so many rows instead")
    given = parser.parse_args()
    print(json.dumps(impute(given.rows) if given.rows else soak(given.fits)))
