"""Whether the statistics that fewer reports can be trusted: simulations with known answers.

    FEWER_DATA=... python benchmarks/trust.py [--only size] [--runs 200]

size    The k of ``fewer.select(X, "auto")`` where k sources are planted: each is measured precisely
        by one feature, and seen through others: near copies (noise 0.05), blocks of five noisy
        features (correlations 0.6 to 0.9), or mixtures of all sources (80% signal); with as many
        columns of pure noise. 3 to 8 sources, 100 to 5,000 rows. Then the CPU seconds of the curve
        for k = 1 to 100 on 10,000 images of MNIST.
"""

import argparse
import time

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from fewer.assess import curve
from fewer.constraints import resolve
from fewer.data.open import as_source
from fewer.datasets import load
from fewer.selection.size import choose_size
from fewer.validation import fold_covariances, split_rows

KINDS = ("copies", "blocks", "mixtures")
ROWS = (100, 300, 1000, 5000)


def planted(kind: str, n: int, k: int, random: np.random.Generator) -> np.ndarray:
    """Rows of k sources and the features that show them; the first k are precise."""
    sources = random.normal(size=(n, k))
    parts = [sources + 0.05 * random.normal(size=(n, k))]
    if kind == "copies":
        parts.append(np.repeat(sources, 3, axis=1) + 0.05 * random.normal(size=(n, 3 * k)))
    elif kind == "blocks":
        loading = random.uniform(0.6, 0.9, size=5 * k)
        noise = np.sqrt(1 - loading**2) * random.normal(size=(n, 5 * k))
        parts.append(loading * np.repeat(sources, 5, axis=1) + noise)
    else:
        mix = random.normal(size=(k, 6 * k))
        mix /= np.linalg.norm(mix, axis=0)
        parts.append(0.8 * sources @ mix + 0.6 * random.normal(size=(n, 6 * k)))
    return np.hstack([*parts, random.normal(size=(n, k))])


def size(runs: int, screen: Console) -> None:
    """How often "auto" finds the planted number, or one beside it."""
    table = Table("planted", "rows", "right", "within one", "too many", title=f"k, {runs} runs")
    each = []
    for kind in KINDS:
        for n in ROWS:
            gaps = []
            for run in range(max(1, runs // len(ROWS))):
                random = np.random.default_rng([run, n])
                k = int(random.integers(3, 9))
                X = planted(kind, n, k, random)
                folds = fold_covariances(as_source(X), split_rows(n, 5, run), "standard")
                any_size = resolve(None, X.shape[1], X.shape[1])
                found = choose_size("auto", folds, any_size, torch.device("cpu"), run)
                gaps.append(found["chosen"] - k)
            each += gaps
            add(table, kind, n, np.array(gaps))
    add(table, "all", "", np.array(each))
    screen.print(table)
    images = load("mnist").X[:10_000]
    start = time.process_time()
    found = curve(images, range(1, 101), scale="none", random_state=0, device="cpu")
    seconds = time.process_time() - start
    screen.print(f"curve for k = 1 to 100, MNIST 10k: {seconds:.1f} CPU seconds, {found.rules()}")


def add(table: Table, kind: str, n: object, gaps: np.ndarray) -> None:
    """A row of the table of sizes."""
    shares = (gaps == 0, np.abs(gaps) <= 1, gaps > 1)
    table.add_row(kind, str(n), *(f"{share.mean():.1%}" for share in shares))


PARTS = {"size": size}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=PARTS)
    parser.add_argument("--runs", type=int, default=200)
    options = parser.parse_args()
    screen = Console(width=110)
    for name in [options.only] if options.only else PARTS:
        PARTS[name](options.runs, screen)


if __name__ == "__main__":
    main()
