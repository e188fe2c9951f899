"""How well the surrogate of a network ranks panels: Kendall's tau to trained networks.

    FEWER_DATA=... python benchmarks/surrogate.py [--cases digits,mice] [--panels 100] \
        [--seeds 2] [--device cpu] [--threads 2]

Panels are the best ones of the linear search with one to three features exchanged, half of them for
close linear substitutes and half at random. The truth is the held-out error of networks that are
trained on each panel, the mean over seeds; tau between two halves of the seeds is what even a
perfect surrogate could hardly exceed. Beside tau: the true error of the panel that a surrogate
ranks first, relative to that of the linear search's panel (lower is better).
"""

import argparse
import time
import warnings

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from scipy.stats import kendalltau

from cases import load_case
from fewer.data import covariance, moments
from fewer.data.source import array_source
from fewer.datasets import load
from fewer.nn import make_loss
from fewer.search import residual, search
from fewer.search.exchange import swap_losses
from fewer.train import TrainingConfig, train_decoders
from fewer.train.surrogate import QUICK, RandomFeatureSurrogate
from fewer.train.training_data import prepare

# data, k, hidden widths
CASES: dict[str, tuple[str, int, tuple[int, ...]]] = {
    "digits": ("digits", 10, (64,)),
    "mice": ("mice", 10, (64,)),
    "isolet": ("isolet", 20, (75,)),
    "coil20": ("coil20", 20, (75,)),
    "mnist": ("mnist", 20, (75,)),
    "products": ("planted-products", 8, (128,)),
    "pulses": ("pulses", 12, (64,)),
}


def near_panels(C: torch.Tensor, k: int, count: int, seed: int) -> list[np.ndarray]:
    """Good panels of the linear search, and others close to them."""
    random = np.random.default_rng(seed)
    elite = [panel for _, panel in search(C, k, seed=seed).elite]
    found = {panel.tobytes(): panel for panel in elite[:1]}
    while len(found) < count:
        panel = elite[random.integers(len(elite))].copy()
        losses = swap_losses(C, panel)
        for place in random.choice(k, random.integers(1, 4), replace=False):
            others = np.setdiff1d(np.arange(len(C)), panel)
            near = others[np.argsort(losses[place, others])[:10]]
            panel[place] = random.choice(near if random.random() < 0.5 else others)
        panel = np.sort(panel)
        found[panel.tobytes()] = panel
    return list(found.values())


def split(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Rows to train on, and rows on which networks are judged."""
    if name in ("planted-products", "pulses"):
        X = load(name, rows=4000).X
        X = (X - X.mean(0)) / X.std(0)
        return X[:3000], X[3000:]
    case = load_case(name)
    X, groups = np.asarray(case.train, dtype=np.float64), case.groups
    groups = np.arange(len(X)) if groups is None else np.unique(groups, return_inverse=True)[1]
    held = np.random.default_rng(0).random(groups.max() + 1) < 0.25
    return X[~held[groups]], X[held[groups]]


def true_errors(
    train: np.ndarray,
    held: np.ndarray,
    panels: list[np.ndarray],
    widths: tuple[int, ...],
    seed: int,
    device: str,
) -> np.ndarray:
    """Held-out error of a trained network for each panel."""
    source = array_source(train)
    config = TrainingConfig(k=len(panels[0]), decoder=widths, device=device)
    data = prepare(source, moments(source), config, make_loss("mse"), seed)
    decoders = []
    for at in range(0, len(panels), 20):
        decoders += train_decoders(data, panels[at : at + 20], seed)
    X = torch.from_numpy(held)
    with torch.no_grad():
        return np.array(
            [
                float((one(X[:, panel]) - X).square().mean())
                for one, panel in zip(decoders, panels, strict=True)
            ]
        )


def measure(table: Table, name: str, options: argparse.Namespace) -> None:
    """Add a row for each way to rank the panels of a case."""
    data, k, widths = CASES[name]
    train, held = split(data)
    train, held = train[: options.rows], held[: options.rows]
    source = array_source(train)
    summary = covariance(source)
    panels = near_panels(summary.matrix, k, options.panels, seed=0)
    trained = np.stack(
        [
            true_errors(train, held, panels, widths, seed, options.device)
            for seed in range(2 * options.seeds)
        ]
    )
    truth = trained.mean(0)

    def add(label: str, errors: np.ndarray, reference: np.ndarray, seconds: float) -> None:
        tau = kendalltau(errors, reference).statistic
        best = truth[errors.argmin()] / truth[0]
        cells = [f"{tau:.3f}", f"{best:.4f}", f"{1000 * seconds / len(panels):.1f}"]
        table.add_row(name, label, *cells)

    halves = trained[::2].mean(0), trained[1::2].mean(0)
    add("networks, other seeds", *halves, float("nan"))
    began = time.process_time()
    linear = np.array([residual(summary.matrix, panel) for panel in panels])
    add("linear residual", linear, truth, time.process_time() - began)
    sizes = {"coarse": QUICK.proposes, "fine": QUICK.ranks, "referee": QUICK.confirms}
    for label, (width, rows, folds) in sizes.items():
        size = {"width": width, "rows": rows, "folds": folds}
        judge = RandomFeatureSurrogate(source, summary, k=k, device=options.device, **size)
        began = time.process_time()
        errors = judge.errors(panels)
        add(f"{label} surrogate", errors, truth, time.process_time() - began)
    table.add_section()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--panels", type=int, default=100)
    parser.add_argument("--seeds", type=int, default=1, help="in each half")
    parser.add_argument("--rows", type=int, default=6000, help="at most")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    warnings.simplefilter("ignore")
    columns = ["case", "ranked by", "Kendall's tau", "its first / search's", "CPU ms a panel"]
    table = Table(*columns, title=f"{options.panels} panels, {options.device}")
    for name in options.cases.split(","):
        measure(table, name, options)
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
