"""How long a user waits for a panel: this version beside an earlier commit, in one run.

    FEWER_DATA=... python benchmarks/waits.py [--before a164530] [--cases mnist,tcga] [--repeats 3]

Every run is a process of its own that reads the training rows from a .npy file and calls
`fewer.select`; the two versions take turns. Imports are not counted. Per case, the median over the
repeats: seconds, CPU seconds of all threads, peak memory of the process (interpreter and libraries
included), and the mean squared error on test rows of the panel's own reconstruction.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import time
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

import fewer

ROOT = Path(__file__).resolve().parents[1]
SEED = 0


@dataclass(frozen=True)
class Wait:
    """A data set of cases.py and a call of `select`."""

    data: str
    k: int
    options: dict[str, Any] = field(default_factory=dict)


CASES = {
    "digits": Wait("digits", 10),
    "mice": Wait("mice", 20),
    "coil20": Wait("coil20", 20),
    "isolet": Wait("isolet", 50),
    "har": Wait("har", 50),
    "mnist": Wait("mnist", 50),
    "fashion": Wait("fashion", 50),
    "tcga": Wait("tcga", 50),
}


def store_rows(wait: Wait, folder: Path) -> None:
    from cases import load_case  # noqa: PLC0415 -- not in the process of an earlier version

    case = load_case(wait.data)
    np.save(folder / "train.npy", case.train)
    np.save(folder / "test.npy", case.test)
    if case.groups is not None:
        np.save(folder / "groups.npy", np.unique(case.groups, return_inverse=True)[1])


def measure(wait: Wait, folder: Path, threads: int) -> dict[str, Any]:
    """One call of `select` in this process."""
    torch.set_num_threads(threads)
    warnings.simplefilter("ignore")
    options: dict[str, Any] = {"scale": "none", "random_state": SEED, "device": "cpu"}
    if (folder / "groups.npy").exists():
        options["row_groups"] = np.load(folder / "groups.npy")
    fewer.select  # noqa: B018 -- imports what it needs
    began, cpu = time.perf_counter(), time.process_time()
    panel = fewer.select(str(folder / "train.npy"), wait.k, **options | wait.options)
    seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
    status = Path("/proc/self/status").read_text(encoding="ascii")
    peak = int(re.search(r"VmHWM:\s+(\d+)", status)[1]) / 1024  # rusage has the parent's, too
    error = float(panel.score(np.load(folder / "test.npy")).errors.mean())
    return {
        "seconds": seconds,
        "cpu": cpu,
        "peak": peak,
        "error": error,
        "features": panel.indices.tolist(),
    }


def run(name: str, folder: Path, source: Path, threads: int) -> dict[str, Any]:
    """One measurement in a process of its own, with the package of `source`."""
    environment = os.environ | {"PYTHONPATH": str(source), "OMP_NUM_THREADS": str(threads)}
    command = [sys.executable, __file__, "--measure", name, str(folder), "--threads", str(threads)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def package_at(revision: str, folder: Path) -> Path:
    """The package as it was at a commit."""
    archive = folder / "before.tar"
    with archive.open("wb") as file:
        subprocess.run(["git", "archive", revision, "src"], cwd=ROOT, stdout=file, check=True)
    with tarfile.open(archive) as stored:
        stored.extractall(folder, filter="data")
    return folder / "src"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--before", help="an earlier commit to compare with")
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--measure", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        name, place = options.measure
        print(json.dumps(measure(CASES[name], Path(place), options.threads)))
        return

    columns = ["case", "version", "seconds", "CPU s", "peak MB", "test error", "panel"]
    table = Table(*columns, title=f"select, {options.threads} threads, seed {SEED}")
    with tempfile.TemporaryDirectory() as place:
        versions = {"now": ROOT / "src"}
        if options.before:
            versions = {options.before: package_at(options.before, Path(place)), **versions}
        for name in options.cases.split(","):
            folder = Path(place, name)
            folder.mkdir()
            store_rows(CASES[name], folder)
            found: dict[str, list[dict[str, Any]]] = {version: [] for version in versions}
            for _ in range(options.repeats):
                for version, source in versions.items():
                    found[version].append(run(name, folder, source, options.threads))
            first = next(iter(found.values()))
            for version, runs in found.items():
                cells = [
                    f"{median(one[key] for one in runs):{form}}"
                    for key, form in (("seconds", ".2f"), ("cpu", ".2f"), ("peak", ".0f"))
                ]
                same = "same" if runs[0]["features"] == first[0]["features"] else "another"
                table.add_row(name, version, *cells, f"{runs[0]['error']:.6g}", same)
            if len(found) > 1:
                table.add_row(name, "before / now", *ratios(*found.values()), end_section=True)
            print(name, {version: runs[0] for version, runs in found.items()}, file=sys.stderr)
    Console(width=110).print(table)


def ratios(before: list[dict[str, Any]], now: list[dict[str, Any]]) -> list[str]:
    keys = ("seconds", "cpu", "peak", "error")
    parts = [median(one[k] for one in before) / median(one[k] for one in now) for k in keys]
    return [*(f"{part:.2f}" for part in parts[:3]), f"{parts[3]:.4f}", ""]


if __name__ == "__main__":
    main()
