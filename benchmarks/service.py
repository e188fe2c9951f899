"""`fewer serve` under load, and fed with malformed requests; a server on this machine only.

    python -m benchmarks.service [--rounds 30] [--clients 200] [--fuzz 5000] [--seconds 120]

A panel of 11 of 128 features of the synthetic gas sensors of `benchmarks.field`. In every round all
clients ask at once, each for one row with or without missing values and with an interval; answers
must equal, to the last digit, those that the same requests got one after the other. Memory is the
resident size of the server, after a tenth of the rounds and at the end. Malformed bodies (see
`fuzz.requests`) must be answered with 200 or a JSON error below 500.
"""

import argparse
import asyncio
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

import fewer
from benchmarks.field import sensors
from fuzz.requests import malformed


async def ask(port: int, path: str, body: bytes) -> tuple[int, Any]:
    """Status and parsed body of one answer, over a connection of its own."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    writer.write(f"{head}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body)
    await writer.drain()
    answer = await reader.read()
    writer.close()
    first, _, rest = answer.partition(b"\r\n\r\n")
    return int(first.split()[1]), json.loads(rest)


def megabytes(process: int) -> float:
    """Resident memory."""
    pages = int(Path(f"/proc/{process}/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def bodies(panel: fewer.Panel, rows: np.ndarray, count: int) -> list[bytes]:
    """Requests of one row each, every second with missing values."""
    rng = np.random.default_rng(0)
    found = []
    for at in range(count):
        row = rows[at % len(rows), panel.indices].copy()
        if at % 2:
            row[rng.random(panel.k) < 0.3] = np.nan
        values = [None if np.isnan(x) else x for x in row.tolist()]
        found.append(json.dumps({"rows": [values], "interval": 0.9}).encode())
    return found


async def load(port: int, asked: list[bytes], rounds: int, process: int) -> dict[str, Any]:
    """All requests at once, again and again."""
    alone = [await ask(port, "/reconstruct", body) for body in asked]
    statuses: Counter[int] = Counter()
    different, early, began = 0, 0.0, time.perf_counter()
    for number in range(rounds):
        found = await asyncio.gather(*(ask(port, "/reconstruct", body) for body in asked))
        statuses.update(status for status, _ in found)
        different += sum(a != b for a, b in zip(found, alone, strict=True))
        if number + 1 == max(1, rounds // 10):
            early = megabytes(process)
    seconds = time.perf_counter() - began
    return {
        "requests at once": len(asked),
        "requests": sum(statuses.values()),
        "answered with 200": statuses[200],
        "different from one at a time": different,
        "requests per second": round(sum(statuses.values()) / seconds),
        "server memory after a tenth, MB": round(early, 1),
        "server memory at the end, MB": round(megabytes(process), 1),
    }


async def fuzz(port: int, good: dict[str, Any], runs: int, seconds: float) -> Counter[str]:
    """Malformed requests, one after the other; how they were answered."""
    rng, results, end = random.Random(0), Counter(), time.monotonic() + seconds
    for _ in range(runs):
        if time.monotonic() > end:
            break
        path = rng.choice(["/reconstruct", "/check", "/predict"])
        status, found = await asyncio.wait_for(ask(port, path, malformed(good, rng)), 30)
        fine = status == 200 or (status < 500 and list(found) == ["error"])
        results[str(status) if fine else f"{status}: not as it should be"] += 1
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--fuzz", type=int, default=5000, help="malformed requests")
    parser.add_argument("--seconds", type=float, default=120, help="at most, for these")
    given = parser.parse_args()
    rows = sensors()
    panel = fewer.select(rows[:3000], 11, strategies=["search"], validation=0.2, random_state=0)
    with tempfile.TemporaryDirectory() as folder:
        panel.save(f"{folder}/panel")
        command = [sys.executable, "-m", "fewer", "serve", f"{folder}/panel", "--port", "0"]
        server = subprocess.Popen([*command, "--json"], stdout=subprocess.PIPE, text=True)
        assert server.stdout is not None
        text = ""
        while not text.rstrip().endswith("}"):
            text += server.stdout.readline()
        port = int(json.loads(text)["address"].rpartition(":")[2])
        try:
            asked = bodies(panel, rows[3000:], given.clients)
            found = asyncio.run(load(port, asked, given.rounds, server.pid))
            good = {"rows": [dict.fromkeys(map(str, panel.features), 1.0)], "interval": 0.9}
            results = asyncio.run(fuzz(port, good, given.fuzz, given.seconds))
            found["server memory after malformed requests, MB"] = round(megabytes(server.pid), 1)
        finally:
            server.terminate()
            server.wait(10)
    table = Table(title="fewer serve")
    table.add_column("")
    table.add_column("", justify="right")
    for name, value in found.items():
        table.add_row(name, f"{value:,}")
    table.add_section()
    for status, count in sorted(results.items()):
        table.add_row(f"malformed, answered with {status}", f"{count:,}")
    Console().print(table)


if __name__ == "__main__":
    main()
