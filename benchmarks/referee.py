"""What trained networks gain as the judges of swaps, beyond the surrogate of networks.

    FEWER_DATA=... python benchmarks/referee.py [--cases mri,manifold,mnist] [--seeds 2] \
        [--variants 4x96,8x64] [--device auto]

From the linear search's panel, `network_swaps` swaps features by a surrogate; from there,
`trained_swaps` lets trained networks judge. A variant is the number of rounds and of networks in
each; with an "r" behind, as in 4x96r, the swaps that are tried are random, not chosen by a
surrogate. All see the training rows alone; then the same network is trained on each panel, three
times, and scored on the test rows. Columns: test error as a ratio to that of the linear search's
panel, with the standard deviation over the trainings; features exchanged since the surrogate's
swaps; seconds on top of those. Planted cases need no files.
"""

import argparse
import time

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

import fewer
from cases import load_case
from fewer.constraints import resolve
from fewer.data import covariance, moments
from fewer.data.source import array_source
from fewer.datasets import load
from fewer.nn import make_loss
from fewer.train import TrainingConfig, network_swaps, train_decoders
from fewer.train.device import pick_device
from fewer.train.referee import Referee, trained_swaps
from fewer.train.surrogate import RandomFeatureSurrogate
from fewer.train.training_data import prepare

# data set, its options (None: a file), k, hidden widths
CASES: dict[str, tuple[str, dict | None, int, tuple[int, ...]]] = {
    "mri": ("diffusion-mri", {"features": 400, "compartments": 2}, 20, (256, 256)),
    "mri-3": ("diffusion-mri", {"features": 400, "compartments": 3}, 20, (256, 256)),
    "manifold": ("planted-manifold", {"features": 100}, 10, (256, 256)),
    "pulses": ("pulses", {"features": 200}, 12, (256, 256)),
    "mnist": ("mnist", None, 20, (320, 320)),
    "fashion": ("fashion", None, 20, (320, 320)),
    "isolet": ("isolet", None, 20, (320, 320)),
    "mnist-50": ("mnist", None, 50, (320, 320)),
    "isolet-50": ("isolet", None, 50, (75,)),
}
PLANTED = ("mri", "mri-3", "manifold", "pulses")
TRAININGS = 3  # of each panel


def test_ratios(
    train: np.ndarray, test: np.ndarray, panels: list[np.ndarray], config: TrainingConfig
) -> np.ndarray:
    """Test errors as ratios to the first panel's: trainings x panels."""
    source, rows = array_source(train), torch.from_numpy(test.astype(np.float64))
    table = []
    for seed in range(100, 100 + TRAININGS):
        data = prepare(source, moments(source), config, make_loss("mse"), seed)
        decoders = train_decoders(data, panels, seed)
        with torch.no_grad():
            pairs = zip(decoders, panels, strict=True)
            table.append([float((d(rows[:, p]) - rows).square().mean()) for d, p in pairs])
    errors = np.array(table)
    return errors / errors[:, :1]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cases", default=",".join(PLANTED))
    parser.add_argument("--variants", default="4x96,4x96r,8x64")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--rows", type=int, default=8000, help="training rows of planted cases")
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()
    device, variants = pick_device(options.device), options.variants.split(",")
    table = Table("case", "k", "seed", "surrogate", *variants, title=f"Test error, {device}")
    for name in options.cases.split(","):
        data_set, about, k, widths = CASES[name]
        for seed in range(options.seeds):
            if about is None:
                case = load_case(data_set)
                train, test, labels = case.train, case.test, case.groups
            else:
                X = load(data_set, rows=options.rows * 5 // 4, seed=seed, **about).X
                train, test, labels = X[: options.rows], X[options.rows :], None
            source, rules = array_source(train), resolve(None, train.shape[1], k)
            known = covariance(source)
            common = {"seed": seed, "device": device, "labels": labels}
            css = np.sort(fewer.ColumnSubset(k, random_state=seed).fit(train).columns_)
            panels = [css, network_swaps(source, known, [css], rules, **common)]
            config = TrainingConfig(k=k, decoder=widths, device=str(device))
            size = {"width": 384, "rows": 4500, "folds": 4}
            surrogate = RandomFeatureSurrogate(source, known, k=k, **size, **common)
            seconds = []
            for variant in variants:
                rounds, count = map(int, variant.rstrip("r").split("x"))
                began = time.perf_counter()
                referee = Referee(source, rules, config, seed, labels)
                rank = None if variant.endswith("r") else surrogate.errors
                panels.append(
                    trained_swaps(referee, panels[1], rank=rank, rounds=rounds, count=count)
                )
                seconds.append(time.perf_counter() - began)
            ratios = test_ratios(train, test, panels, config)
            mean, sd = ratios.mean(0), ratios.std(0, ddof=1)
            cells = [f"{mean[1]:.4f} ({sd[1]:.4f})"]
            for at, took in enumerate(seconds, start=2):
                new = len(np.setdiff1d(panels[at], panels[1]))
                cells.append(f"{mean[at]:.4f} ({sd[at]:.4f}), {new}, {took:.1f} s")
            table.add_row(name, str(k), str(seed), *cells)
            print(name, k, seed, *cells, flush=True)
    Console(width=140).print(table)


if __name__ == "__main__":
    main()
