"""Ten pixels of sixty-four, and whole digits from them: what ``fewer demo`` shows."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA
from sklearn.linear_model import LinearRegression

from fewer.data import covariance, open_source
from fewer.errors import InputError
from fewer.estimators import ConcreteAutoencoder
from fewer.report.images import check_target, draw_reconstructions, save_figure
from fewer.search.greedy import greedy

__all__ = ["Demo", "run_demo", "show_demo"]

K, TRAIN, RANDOM_DRAWS = 10, 1437, 20


@dataclass(frozen=True)
class Demo:
    """Outcome of the demonstration; errors are mean squares on held-out rows, pixels in [0, 1]."""

    chosen: np.ndarray
    errors: dict[str, float]
    picture: Path


def run_demo(out: str | Path, *, seed: int = 0, progress: bool = False) -> Demo:
    """Choose 10 of the 64 pixels of scikit-learn's digits and draw what they give.

    Parameters
    ----------
    out : path
        Where the picture goes.
    seed : int, default=0
        Of the split and of the method.
    progress : bool, default=False
        Show a progress bar.
    """
    if not 0 <= seed < 2**32:
        raise InputError(f"seed={seed} must be from 0 to {2**32 - 1}")
    check_target(out)
    X = load_digits().data / 16.0
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(X))
    train, test = X[order[:TRAIN]], X[order[TRAIN:]]

    model = ConcreteAutoencoder(k=K, random_state=seed, progress=progress).fit(train)
    rebuilt = model.reconstruct(test)
    pca = PCA(K).fit(train)
    matrix = covariance(open_source(train)).matrix
    draws = [rng.choice(X.shape[1], K, replace=False) for _ in range(RANDOM_DRAWS)]
    errors = {
        "PCA, 10 mixtures of all 64 (bound)": _error(
            pca.inverse_transform(pca.transform(test)), test
        ),
        "concrete autoencoder": _error(rebuilt, test),
        "greedy search": _linear_error(train, test, greedy(matrix, K).panel()),
        f"random pixels (mean of {RANDOM_DRAWS})": float(
            np.mean([_linear_error(train, test, draw) for draw in draws])
        ),
    }
    shown = 40
    figure = draw_reconstructions(
        test[:shown].reshape(-1, 8, 8),
        rebuilt[:shown].reshape(-1, 8, 8).clip(0, 1),
        model.get_support().reshape(8, 8),
        title=f"Handwritten digits: {K} pixels measured, 64 reconstructed",
    )
    return Demo(model.get_support(indices=True), errors, save_figure(figure, out))


def show_demo(demo: Demo, console: Console) -> None:
    """Print the outcome for a person."""
    pixels = ", ".join(f"({j // 8}, {j % 8})" for j in demo.chosen)
    console.print(f"{K} of 64 pixels chosen, as (row, column):\n{pixels}\n")
    table = Table("from 10 values to all 64", "held-out error", title="Handwritten digits, 8 x 8")
    table.columns[1].justify = "right"
    for method, error in demo.errors.items():
        table.add_row(method, f"{error:.4f}")
    console.print(table)
    console.print(
        "Error: mean squared difference over all pixels of 360 digits that no\n"
        "method has seen; pixels go from 0 to 1, all decoders are linear.\n"
    )
    console.print("Picture: ", end="")
    console.print(str(demo.picture), style="bold", soft_wrap=True)


def _error(rebuilt: np.ndarray, test: np.ndarray) -> float:
    return float(np.mean((rebuilt - test) ** 2))


def _linear_error(train: np.ndarray, test: np.ndarray, chosen: np.ndarray) -> float:
    decoder = LinearRegression().fit(train[:, chosen], train)
    return _error(decoder.predict(test[:, chosen]), test)
