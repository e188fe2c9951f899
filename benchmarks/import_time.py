"""What importing fewer costs over importing torch and scikit-learn, and how fast help answers.

python benchmarks/import_time.py [--rounds 7]
"""

import argparse
import statistics
import subprocess
import sys
import time

from rich.console import Console
from rich.table import Table

CASES = {
    "torch and scikit-learn": "import torch, sklearn.base, sklearn.feature_selection",
    "the same, then all public names of fewer": (
        "import torch, sklearn.base, sklearn.feature_selection\n"
        "import fewer\n"
        "for name in fewer.__all__: getattr(fewer, name)"
    ),
    "import fewer (names load when used)": "import fewer",
    "fewer --help": (
        "import sys; sys.argv = ['fewer', '--help']\nfrom fewer.cli import main; main()"
    ),
}


def seconds(code: str) -> float:
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    rounds = parser.parse_args().rounds
    times: dict[str, list[float]] = {name: [] for name in CASES}
    for _ in range(rounds + 1):
        for name, code in CASES.items():
            times[name].append(seconds(code))
    table = Table(
        "process", "s (median)", title=f"Whole processes, {rounds} rounds after a warm-up"
    )
    for name, found in times.items():
        table.add_row(name, f"{statistics.median(found[1:]):.2f}")
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
