"""``fewer demo``: choose 10 of 64 pixels and reconstruct whole digits from them."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fewer.cli._output import Output, console, print_table

if TYPE_CHECKING:
    from rich.console import Console

K, TRAIN_ROWS, RANDOM_DRAWS = 10, 1437, 20


def demo(
    output: Output,
    out: Annotated[Path, typer.Option(help="The image to write.")] = Path("demo/digits.png"),
    seed: Annotated[int, typer.Option(help="Random seed of the split and of the method.")] = 0,
) -> None:
    """Choose 10 of 64 pixels of handwritten digits and reconstruct whole digits from them."""
    progress = not output.quiet and not output.json and console(err=True).is_terminal
    found = choose_pixels(out, seed=seed, progress=progress)
    output.result(found, lambda screen: _show(found, screen))
    output.suggest("fewer inspect data.csv   (with your own file)")


def choose_pixels(out: str | Path, *, seed: int = 0, progress: bool = False) -> dict[str, Any]:
    """Choose pixels of scikit-learn's digits and plot their reconstruction by a linear decoder.

    The ``errors`` are mean squared errors on held-out rows, with pixels in [0, 1].
    """
    from fewer._checks import check_whole
    from fewer.report.figures import check_target, draw_reconstructions, save_figure

    check_whole("seed", seed, 0, 2**32 - 1)
    check_target(out)
    import numpy as np
    from sklearn.datasets import load_digits
    from sklearn.decomposition import PCA
    from sklearn.linear_model import LinearRegression

    from fewer.data import covariance
    from fewer.data.source import array_source
    from fewer.estimators import ConcreteAutoencoder
    from fewer.search import greedy

    X = load_digits().data / 16.0
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(X))
    train, test = X[order[:TRAIN_ROWS]], X[order[TRAIN_ROWS:]]

    def linear_error(chosen: Any) -> float:
        decoder = LinearRegression().fit(train[:, chosen], train)
        return float(np.mean((decoder.predict(test[:, chosen]) - test) ** 2))

    model = ConcreteAutoencoder(k=K, random_state=seed, progress=progress).fit(train)
    rebuilt = model.reconstruct(test)
    pca = PCA(K).fit(train)
    by_pca = pca.inverse_transform(pca.transform(test))
    chosen = greedy(covariance(array_source(train)).matrix, K).panel()
    draws = [rng.choice(X.shape[1], K, replace=False) for _ in range(RANDOM_DRAWS)]
    errors = {
        f"PCA, {K} components of all 64 (reference)": float(np.mean((by_pca - test) ** 2)),
        "concrete autoencoder": float(np.mean((rebuilt - test) ** 2)),
        "greedy search": linear_error(chosen),
        f"random pixels (mean of {RANDOM_DRAWS})": float(np.mean([*map(linear_error, draws)])),
    }
    figure = draw_reconstructions(
        test[:40].reshape(-1, 8, 8),
        rebuilt[:40].reshape(-1, 8, 8).clip(0, 1),
        model.get_support().reshape(8, 8),
        title=f"Handwritten digits: {K} pixels measured, 64 reconstructed",
    )
    chosen = model.get_support(indices=True).tolist()
    return {"chosen": chosen, "errors": errors, "picture": save_figure(figure, out)}


def _show(found: dict[str, Any], screen: "Console") -> None:
    pixels = ", ".join(f"({j // 8}, {j % 8})" for j in found["chosen"])
    screen.print(f"{K} of 64 pixels chosen, as (row, column):\n{pixels}")
    rows = [(method, f"{error:.4f}") for method, error in found["errors"].items()]
    print_table(screen, (f"from {K} values to all 64", "held-out error"), rows, (1,))
    screen.print(
        "Error: mean squared error over all pixels of 360 held-out digits;\n"
        "pixels range from 0 to 1, and all decoders are linear.\n"
    )
    screen.print("Picture: ", end="")
    screen.print(str(found["picture"]), style="bold", soft_wrap=True)
