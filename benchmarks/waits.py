"""How long a user waits for a panel: this version beside an earlier commit, in one run.

    FEWER_DATA=... python benchmarks/waits.py [--before 0dee744] [--cases mnist,tcga] [--repeats 3]
    FEWER_DATA=... python benchmarks/waits.py --cases networks,targets --device cuda
    FEWER_DATA=... python benchmarks/waits.py --cases digits-64,tox --load 2

Every run is a process of its own that reads the training rows from a .npy file and calls
`fewer.select`; the two versions take turns, and every repeat has its own seed. Imports are not
counted. Per case, the median over the repeats: seconds, CPU seconds of all threads, and peak memory
of the process (interpreter and libraries included); and the mean of the error on test rows: the
mean squared error of the panel's own reconstruction, or the share of rows whose class it does not
predict. Where all rows are timed (1,797 digits, 576
samples of LUAD), the error is that of a second call with the training rows only.

With ``--load`` each run is repeated beside so many processes that never pause, and the table has
the ratio of the times.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
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
    """Some data and a call of `select`."""

    data: str
    k: int
    decoder: tuple[int, ...] | str = "linear"
    target: bool = False
    all_rows: bool = False  # are timed, not only the training rows


GROUPS = {
    "linear": {
        "digits": Wait("digits", 10),
        "mice": Wait("mice", 20),
        "coil20": Wait("coil20", 20),
        "isolet": Wait("isolet", 50),
        "har": Wait("har", 50),
        "mnist": Wait("mnist", 50),
        "fashion": Wait("fashion", 50),
        "tcga": Wait("tcga", 50),
    },
    "wide": {
        "tox": Wait("tox", 20),
        "luad": Wait("luad", 50, all_rows=True),
    },
    "networks": {
        "digits-64": Wait("digits", 10, (64,), all_rows=True),
        "curves-64": Wait("curves", 20, (64,)),
        "mice-64": Wait("mice", 20, (64,)),
        "isolet-75": Wait("isolet", 50, (75,)),
    },
    "targets": {
        "mice-classes": Wait("mice", 50, (67,), target=True),
        "isolet-classes": Wait("isolet", 50, (67,), target=True),
        "mnist60k-classes": Wait("mnist60k", 50, (67,), target=True),
    },
    "defaults": {  # of the predictor, which is left to held-out rows
        "mice-default": Wait("mice", 50, "auto", target=True),
        "isolet-default": Wait("isolet", 50, "auto", target=True),
        "mnist60k-default": Wait("mnist60k", 50, "auto", target=True),
    },
}
CASES = {name: wait for group in GROUPS.values() for name, wait in group.items()}


def curves(rows: int, d: int) -> np.ndarray:
    """Columns that are smooth functions of 12 hidden values, and noise."""
    random = np.random.default_rng(SEED)
    hidden = random.normal(size=(rows, 12))
    first, second = random.normal(size=(12, d)), random.normal(size=(12, d))
    x = np.tanh(0.5 * hidden @ first) + 0.5 * np.sin(0.5 * hidden @ second)
    return x + 0.1 * random.normal(size=(rows, d))


def expression(rows: int, d: int) -> np.ndarray:
    """Genes in 40 programmes of falling strength, and noise: as wide as tox171."""
    random = np.random.default_rng(SEED)
    strength = 1 / np.sqrt(1 + np.arange(40))
    loadings = random.laplace(size=(40, d)) * strength[:, None]
    return random.normal(size=(rows, 40)) @ loadings + 0.5 * random.normal(size=(rows, d))


def store_rows(wait: Wait, folder: Path) -> None:
    from cases import load, make_case  # noqa: PLC0415 -- not in the process of an earlier version

    parts: dict[str, Any] = {}
    if wait.data in ("curves", "tox"):
        x, cut = (
            (curves(6000, 200), 5000) if wait.data == "curves" else (expression(271, 5748), 171)
        )
        parts |= {"train": x[:cut], "test": x[cut:]}
    elif wait.data == "mnist60k":
        data = load("mnist")
        x, official = data.X.astype(np.float32) / 255, data.official
        parts |= {"train": x[~official], "test": x[official]}
        parts |= {"labels": data.y[~official], "test_labels": data.y[official]}
    else:
        case = make_case(load(wait.data))
        parts |= {"train": case.fit, "test": case.test}
        if wait.target:
            parts |= {"labels": case.labels, "test_labels": case.test_labels}
        if case.groups is not None:
            parts["groups"] = np.unique(case.groups, return_inverse=True)[1]
        if wait.all_rows:
            whole = make_case(load(wait.data), "paper")
            parts["all"] = np.concatenate([whole.fit, whole.test])
    for name, values in parts.items():
        np.save(folder / f"{name}.npy", values)


def measure(wait: Wait, folder: Path, threads: int, device: str, seed: int) -> dict[str, Any]:
    """One call of `select` in this process."""
    torch.set_num_threads(threads)
    warnings.simplefilter("ignore")
    options: dict[str, Any] = {"scale": "none", "random_state": seed, "device": device}
    options["decoder"] = wait.decoder
    given = {"row_groups": "groups", "target": "labels"}
    given = {name: folder / f"{file}.npy" for name, file in given.items()}
    given = {name: np.load(file) for name, file in given.items() if file.exists()}
    fewer.select  # noqa: B018 -- imports what it needs
    if wait.target:
        import sklearn.ensemble  # noqa: PLC0415 -- of the filters
        import sklearn.linear_model  # noqa: PLC0415
        import sklearn.svm  # noqa: F401, PLC0415
    if device == "cuda":
        torch.zeros(1, device=device)  # the start of CUDA is not counted, nor is an import
    train = str(folder / "train.npy")
    began, cpu = time.perf_counter(), time.process_time()
    if wait.all_rows:
        panel = fewer.select(str(folder / "all.npy"), wait.k, **options)
    else:
        panel = fewer.select(train, wait.k, **options, **given)
    seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
    status = Path("/proc/self/status").read_text(encoding="ascii")
    peak = int(re.search(r"VmHWM:\s+(\d+)", status)[1]) / 1024  # rusage has the parent's, too
    if wait.all_rows:
        panel = fewer.select(train, wait.k, **options, **given)
    test = np.load(folder / "test.npy")
    if wait.target:
        error = float(
            (panel.predict(test[:, panel.indices]) != np.load(folder / "test_labels.npy")).mean()
        )
    else:
        error = float(panel.score(test).errors.mean())
    return {
        "seconds": seconds,
        "cpu": cpu,
        "peak": peak,
        "error": error,
        "features": panel.indices.tolist(),
    }


def run(
    name: str, folder: Path, source: Path, options: argparse.Namespace, seed: int
) -> dict[str, Any]:
    """One measurement in a process of its own, with the package of `source`."""
    threads = str(options.threads)
    environment = os.environ | {"PYTHONPATH": str(source), "OMP_NUM_THREADS": threads}
    command = [sys.executable, __file__, "--measure", name, str(folder), "--threads", threads]
    command += ["--device", options.device, "--seed", str(seed)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@contextmanager
def busy(processes: int) -> Iterator[None]:
    """Processes that never pause."""
    command = [sys.executable, "-c", "while True: pass"]
    running = [subprocess.Popen(command) for _ in range(processes)]
    try:
        yield
    finally:
        for one in running:
            one.kill()
            one.wait()


def package_at(revision: str, folder: Path) -> Path:
    """The package as it was at a commit."""
    archive = folder / "before.tar"
    with archive.open("wb") as file:
        subprocess.run(["git", "archive", revision, "src"], cwd=ROOT, stdout=file, check=True)
    with tarfile.open(archive) as stored:
        stored.extractall(folder, filter="data")
    return folder / "src"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--before", help="an earlier commit to compare with")
    parser.add_argument("--cases", default=",".join(GROUPS), help="names, or groups of them")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--load", type=int, default=0, help="busy processes beside it")
    parser.add_argument("--seed", type=int, default=SEED, help="of the first repeat")
    parser.add_argument("--measure", nargs=2, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    options = arguments()
    if options.measure:
        name, place = options.measure
        found = measure(CASES[name], Path(place), options.threads, options.device, options.seed)
        print(json.dumps(found))
        return

    columns = ["case", "version", "seconds", "CPU s", "peak MB", "test error", "panel"]
    seeds = range(options.seed, options.seed + options.repeats)
    title = f"select on {options.device}, {options.threads} threads, seeds {[*seeds]}"
    table = Table(*columns, title=title)
    with tempfile.TemporaryDirectory() as place:
        versions = {"now": (ROOT / "src", 0)}
        if options.before:
            earlier = package_at(options.before, Path(place))
            versions = {options.before: (earlier, 0), **versions}
        if options.load:
            versions[f"beside {options.load} busy"] = (ROOT / "src", options.load)
        asked = [GROUPS.get(name, {name: None}) for name in options.cases.split(",")]
        for name in (name for group in asked for name in group):
            folder = Path(place, name)
            folder.mkdir()
            store_rows(CASES[name], folder)
            found: dict[str, list[dict[str, Any]]] = {version: [] for version in versions}
            for seed in seeds:
                for version, (source, load) in versions.items():
                    with busy(load):
                        found[version].append(run(name, folder, source, options, seed))
            add_rows(table, name, found)
            shutil.rmtree(folder)
    Console(width=110).print(table)


def add_rows(table: Table, name: str, found: dict[str, list[dict[str, Any]]]) -> None:
    """One row for each version, and the ratios of the first to the others."""
    first, *others = found.items()
    for version, runs in found.items():
        cells = [
            f"{median(one[key] for one in runs):{form}}"
            for key, form in (("seconds", ".2f"), ("cpu", ".2f"), ("peak", ".0f"))
        ]
        cells.append(f"{fmean(one['error'] for one in runs):.6g}")
        same = "same" if runs[0]["features"] == first[1][0]["features"] else "another"
        table.add_row(name, version, *cells, same)
        print(name, version, *cells, same, file=sys.stderr, flush=True)
    for version, runs in others:
        table.add_row(name, f"{version} / {first[0]}", *ratios(runs, first[1]))
    table.add_section()


def ratios(above: list[dict[str, Any]], below: list[dict[str, Any]]) -> list[str]:
    keys = {"seconds": median, "cpu": median, "peak": median, "error": fmean}
    parts = [
        of([one[k] for one in above]) / of([one[k] for one in below]) for k, of in keys.items()
    ]
    return [*(f"{part:.2f}" for part in parts[:3]), f"{parts[3]:.4f}", ""]


if __name__ == "__main__":
    main()
