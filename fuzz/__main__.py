"""Fuzz readers and loaders: ``python -m fuzz plain|atheris|seeds TARGET ... [--runs N]``.

plain     damage whole files at random, in a process that is started again when it dies
atheris   coverage-guided, with the same damage as one of its mutations (pip install atheris)
seeds     write the whole files into fuzz/corpus/TARGET

With ``--record``, runs of atheris are added to results/fuzz.json, and a target whose executions
there have reached ``--runs`` is left out: a long run may be stopped and continued.
"""

import argparse
import datetime
import fcntl
import hashlib
import json
import os
import random
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
FINDINGS = FOLDER / "findings"
RECORD = FOLDER.parent / "results" / "fuzz.json"
RUNS_PER_PROCESS = 50_000  # of atheris
HANG = 90.0  # seconds without progress
INTERRUPTED = 72  # libFuzzer's exit code after a signal that asks it to end: not a finding
SCRATCH = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # files in memory, on Linux


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__)
    parser.add_argument("engine", choices=["plain", "atheris", "seeds", "worker"])
    parser.add_argument("targets", nargs="*", help="kinds of files; all of them if none is named")
    parser.add_argument("--runs", type=int, default=2000, help="executions per target")
    parser.add_argument(
        "--seconds", type=float, default=float("inf"), help="CPU seconds per target"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--record", action="store_true", help="atheris: continue results/fuzz.json up to --runs"
    )
    parser.add_argument("--first", type=int, default=0, help=argparse.SUPPRESS)
    given = parser.parse_args()
    from fuzz.targets import TARGETS

    targets = given.targets or list(TARGETS)
    if given.engine == "worker":
        work(targets[0], given.first, given.runs, given.seed, given.seconds)
        return 0
    if given.engine == "seeds":
        for name in targets:
            write_seeds(name)
        return 0
    failed = 0
    for name in targets:
        if given.engine == "atheris":
            failed += fuzz_with_atheris(name, given.runs, given.seed, given.record)
        else:
            found = supervise(name, given.runs, given.seed, given.seconds)
            print(json.dumps(found), flush=True)
            failed += found["findings"]
    return int(failed > 0)


def write_seeds(name: str) -> Path:
    """Whole files of a target, for an engine that starts from a folder."""
    from fuzz.targets import TARGETS

    folder = FOLDER / "corpus" / name
    folder.mkdir(parents=True, exist_ok=True)
    for at, data in enumerate(TARGETS[name].seeds()):
        (folder / f"seed-{at}").write_bytes(data)
    return folder


# -- plain ---------------------------------------------------------------------------------------


def supervise(name: str, runs: int, seed: int, seconds: float) -> dict[str, Any]:
    """Let a worker do the runs; one that dies or hangs has found something, and is replaced."""
    results: Counter[str] = Counter()
    findings, done, spent, peak = 0, 0, 0.0, 0
    while done < runs and spent < seconds:
        command = [sys.executable, "-m", "fuzz", "worker", name, "--first", str(done)]
        command += ["--runs", str(runs), "--seed", str(seed), "--seconds", str(seconds - spent)]
        worker = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        watch = _Watchdog(worker)
        at, over = done, False
        for line in worker.stdout or ():
            watch.seen = time.monotonic()
            event = json.loads(line)
            at, peak = event["at"], max(peak, event.get("peak", 0))
            results.update(event.get("results", {}))
            findings += event.get("finding", 0)
            spent, over = event.get("seconds", spent), event.get("over", False)
        code = worker.wait()
        done = at + 1
        if over:
            break
        findings += 1
        results["hang" if watch.late else f"died ({code})"] += 1
        keep(name, damaged(name, at, seed), f"worker ended with {code} in run {at}")
    return {
        "target": name,
        "engine": "plain",
        "runs": sum(results.values()),
        "results": dict(sorted(results.items())),
        "findings": findings,
        "peak_mb": peak,
    }


class _Watchdog(threading.Thread):
    """Ends a process that has not reported anything for a while."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        super().__init__(daemon=True)
        self.process, self.seen, self.late = process, time.monotonic(), False
        self.start()

    def run(self) -> None:
        while self.process.poll() is None:
            time.sleep(1)
            if time.monotonic() - self.seen > HANG:
                self.late = True
                self.process.kill()


def damaged(name: str, at: int, seed: int) -> bytes:
    """The input of a run, which depends on its number and the seed only."""
    from fuzz.targets import TARGETS

    target = TARGETS[name]
    rng, seeds = random.Random(f"{name} {seed} {at}"), target.seeds()
    return target.mutate(rng.choice(seeds), rng, seeds)


def work(name: str, first: int, runs: int, seed: int, seconds: float) -> None:
    """Runs in this process, each announced, so that the supervisor knows which one was the last."""
    from fuzz.targets import TARGETS, prepare

    prepare()
    target, results, began = TARGETS[name], Counter(), time.process_time()
    with tempfile.TemporaryDirectory(dir=SCRATCH) as scratch:
        os.environ["FEWER_CACHE"] = f"{scratch}/cache"
        for at in range(first, runs):
            print(json.dumps({"at": at}), flush=True)
            data, finding = damaged(name, at, seed), 0
            try:
                results[target.run(data, Path(scratch))] += 1
            except BaseException as error:
                if isinstance(error, KeyboardInterrupt):
                    raise
                results[type(error).__name__] += 1
                finding = 1
                keep(name, data, traceback.format_exc())
            spent = time.process_time() - began
            over = spent > seconds or at == runs - 1
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
            event = {"at": at, "results": results, "finding": finding, "over": over}
            print(json.dumps(event | {"peak": peak, "seconds": spent}), flush=True)
            results.clear()
            if over:
                return


def keep(name: str, data: bytes, reason: str) -> None:
    """Store an input that found something, and why."""
    FINDINGS.mkdir(exist_ok=True)
    stem = f"{name}-{hashlib.sha256(data).hexdigest()[:12]}"
    (FINDINGS / stem).write_bytes(data)
    (FINDINGS / f"{stem}.txt").write_text(reason, encoding="utf-8")
    print(f"{name}: {reason.strip().splitlines()[-1][:200]} ({FINDINGS / stem})", file=sys.stderr)


# -- atheris -------------------------------------------------------------------------------------


def fuzz_with_atheris(name: str, runs: int, seed: int, record: bool) -> int:
    """Coverage-guided runs, in one process after another; how many of them found something."""
    folder = write_seeds(name)
    FINDINGS.mkdir(exist_ok=True)
    done, findings = 0, 0
    if record:
        done = recorded().get(name, {}).get("executions", 0)
    while done < runs:
        some = min(runs - done, RUNS_PER_PROCESS)
        executed, code = _atheris_process(name, folder, some, seed + done)
        failed = int(code not in (0, INTERRUPTED))
        done, findings = done + executed, findings + failed
        if record and executed:
            add_to_record(name, executed, failed)
        if not executed or code == INTERRUPTED:  # none: it could not even start
            break
    print(json.dumps({"target": name, "engine": "atheris", "runs": done, "findings": findings}))
    return findings


def _atheris_process(name: str, folder: Path, runs: int, seed: int) -> tuple[int, int]:
    """Executions of one process, and its exit code."""
    scratch = tempfile.mkdtemp(dir=SCRATCH)
    command = [sys.executable, "-m", "fuzz.coverage", name, scratch, str(folder), f"-runs={runs}"]
    command += [f"-seed={seed + 1}", "-timeout=300", "-rss_limit_mb=4096", "-max_len=65536"]
    command += [f"-artifact_prefix={FINDINGS}/{name}-", "-print_final_stats=1", "-verbosity=0"]
    try:
        ended = subprocess.run(command, check=False, stderr=subprocess.PIPE, text=True)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    units = re.search(r"number_of_executed_units: (\d+)", ended.stderr)
    if ended.returncode or units is None:
        print(ended.stderr[-4000:], file=sys.stderr, flush=True)
    return int(units[1]) if units else 0, ended.returncode


def recorded() -> dict[str, dict[str, Any]]:
    """Executions of atheris so far, by target."""
    return json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.exists() else {}


def add_to_record(name: str, executed: int, findings: int) -> None:
    """Add runs to results/fuzz.json, where other processes may add those of other targets."""
    with open(FOLDER / "findings" / "lock", "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        found = recorded()
        entry = found.setdefault(name, {"executions": 0, "findings": 0})
        entry["executions"] += executed
        entry["findings"] += findings
        entry["date"] = datetime.datetime.now(datetime.UTC).date().isoformat()
        part = RECORD.with_suffix(".part")
        part.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        part.replace(RECORD)


if __name__ == "__main__":
    sys.exit(main())
