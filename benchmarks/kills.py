"""Kill commands at random moments: what they write is absent, complete or resumable.

    python -m benchmarks.kills [COMMAND ...] [--kills 50]

Every kill is a SIGKILL at a moment drawn from the time that the unbroken command takes: every
second one from the start of the command, the others (with two ranks, which take seconds to start:
all) from the moment at which its unfinished work on disk first changes. Only those that hit a
running command count. The command then runs again, and resumes if there is unfinished work. An
output that is there must be whole, the last run must end with the result of an unbroken one, and
nothing else may be left in the folder.
Prints one line of JSON per command. Processes are forked from one that has imported everything, so
that the moments fall into the work and not into the imports.
"""

import argparse
import json
import math
import multiprocessing
import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil

QUICK = ["--seed", "0", "--device", "cpu", "--quiet"]
SELECT = ["select", "x.csv", "-k", "3", *QUICK]
COMMANDS: dict[str, list[str]] = {
    "linear": [*SELECT, "--out", "out"],
    "network": [*SELECT, "--decoder", "8", "--out", "out"],
    "target": [*SELECT, "--target", "l", "--out", "out"],
    "ranks": [*SELECT, "--decoder", "8", "--devices", "2", "--out", "out"],
    "impute": ["impute", "panel", "x.csv", "--out", "out.parquet", "--force", "--quiet"],
    "report": ["report", "panel", "--out", "out.html", "--force", "--quiet"],
    "export": ["export", "panel", "--to", "onnx", "--out", "out.onnx", "--force", "--quiet"],
    "paper": ["paper", "table1", "--quick", "--data", "digits", "--out", "out", "--quiet"],
}
PRELOAD = ["fewer.cli.select", "fewer.cli.panels", "fewer.selection", "fewer.export", "paper.table"]
PRELOAD += ["sklearn.linear_model", "pyarrow.parquet", "pyarrow.csv", "matplotlib.figure", "onnx"]


def run(folder: Path, arguments: list[str]) -> None:
    """A command, in a process of its own."""
    os.chdir(folder)
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    sys.argv = ["fewer", *arguments]
    if arguments[0] == "paper":
        from paper.__main__ import app  # noqa: PLC0415

        app(arguments[1:])
    else:
        from fewer.cli import main  # noqa: PLC0415

        main()


def kill(process: Any) -> bool:
    """End a process and those that it started; whether it was still running."""
    try:
        family = psutil.Process(process.pid)
        family = [family, *family.children(recursive=True)]
    except psutil.NoSuchProcess:
        family = []
    running = process.is_alive()
    for one in family:
        if one.is_running():
            one.kill()
    process.join()
    psutil.wait_procs(family)
    return running


def content(out: Path) -> Any:
    """What is in an output, without dates and times."""
    import fewer  # noqa: PLC0415

    if out.suffix == ".parquet":
        import pandas as pd  # noqa: PLC0415

        return pd.read_parquet(out).to_numpy().tolist()
    if out.suffix == ".html":
        text = out.read_text(encoding="utf-8")
        return text.count("<"), text.rstrip().endswith("</html>")
    if out.suffix == ".onnx":
        return out.read_bytes()
    if (out / "quick").is_dir():
        table = json.loads((out / "quick" / "table1-digits.json").read_text(encoding="utf-8"))
        cells = [cell for methods in table["scores"].values() for cell in methods.values()]
        return [(one.get("columns"), one["error"]) for cell in cells for one in cell]
    panel = fewer.Panel.load(out)
    return panel.features, panel.reconstruct(np.zeros((1, panel.k))).tolist()


def _files(folder: Path) -> set[tuple[str, int]]:
    """Names and times of the files in a folder, which another process may change meanwhile."""
    found = set()
    for path in folder.rglob("*"):
        with suppress(OSError):
            found.add((path.name, path.stat().st_mtime_ns))
    return found


def finished(command: str, out: Path) -> bool:
    """Whether an output is there; that of the paper is a table beside its cells."""
    return (out / "quick" / "table1-digits.json").exists() if command == "paper" else out.exists()


def kills(command: str, count: int, seed: int = 0, seconds: float = math.inf) -> dict[str, Any]:
    """Kill a command ``count`` times, as far as the time allows; AssertionError if it does harm."""
    until = time.monotonic() + seconds
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOAD)
    arguments = COMMANDS[command]
    results: Counter[str] = Counter()
    rng = random.Random(f"{command} {seed}")
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        out = folder / arguments[arguments.index("--out") + 1]
        unfinished = folder / "out.unfinished"

        def start(*more: str) -> Any:
            process = context.Process(target=run, args=(folder, [*arguments, *more]))
            process.start()
            return process

        def begun(process: Any) -> None:
            """Wait for a change of the unfinished work, or the end of the process."""
            there = _files(unfinished)
            while process.is_alive() and _files(unfinished) <= there:
                time.sleep(0.005)

        def complete(*more: str) -> tuple[float, float]:
            """Seconds that a command takes, and those after its first change on disk."""
            began = time.monotonic()
            process = start(*more)
            begun(process)
            working = time.monotonic()
            process.join()
            assert process.exitcode == 0, f"{command} ended with {process.exitcode}"
            return time.monotonic() - began, time.monotonic() - working

        _write_input(folder, needs_panel="panel" in arguments)
        complete()  # imports of libraries that only some commands use
        before = sorted(path.name for path in folder.iterdir())
        expected = content(out)
        _remove(out)
        whole, work = complete()
        assert content(out) == expected, f"{command} gives another result the second time"
        overwrites = "--force" in arguments
        resumable = "select" in arguments
        if not overwrites:
            _remove(out)
        while results["running"] < count and time.monotonic() < until:
            resumes = unfinished.exists()
            process = start(*(["--resume"] if resumes else []))
            second = (results["running"] + results["had ended"]) % 2 == 1
            if resumable and (second or command == "ranks"):
                begun(process)
                time.sleep(rng.uniform(0, work))
            else:
                time.sleep(rng.uniform(0, whole))
            results["running" if kill(process) else "had ended"] += 1
            results["resumed"] += int(resumes)
            if finished(command, out):
                results["complete"] += 1
                assert content(out) == expected, f"the output of {command} has changed"
                if not overwrites:
                    _remove(out)
            else:
                results["resumable" if unfinished.exists() or out.exists() else "absent"] += 1
        complete(*(["--resume"] if unfinished.exists() else []))
        assert content(out) == expected, f"{command} ended with another result"
        left = sorted(path.name for path in folder.iterdir())
        assert left == before, f"{command} has left {set(left) - set(before)}"
    found = {"command": command, "seed": seed, "kills": results["running"]}
    return found | {"seconds": round(whole, 2)} | dict(results)


def _write_input(folder: Path, needs_panel: bool) -> None:
    rng = np.random.default_rng(3)
    rows = rng.normal(size=(300, 4)) @ rng.normal(size=(4, 12)) + 0.2 * rng.normal(size=(300, 12))
    names = ",".join("abcdefghijkl")
    np.savetxt(folder / "x.csv", rows, delimiter=",", comments="", header=names)
    if needs_panel:
        import fewer  # noqa: PLC0415

        fewer.select(folder / "x.csv", 3, random_state=0, device="cpu").save(folder / "panel")


def _remove(out: Path) -> None:
    if out.is_dir():
        shutil.rmtree(out)
    else:
        out.unlink()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("commands", nargs="*", help=f"some of {', '.join(COMMANDS)}; all if none")
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=math.inf, help="per command, at most")
    given = parser.parse_args()
    for command in given.commands or COMMANDS:
        print(json.dumps(kills(command, given.kills, given.seed, given.seconds)), flush=True)
