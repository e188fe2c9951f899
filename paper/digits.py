"""Appendix A: 10 pixels for the images of a single digit."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from sklearn.linear_model import LinearRegression

from paper.case import Case, linear_error
from paper.experiment import Context, Outcome
from paper.figures import GREY, PALETTE, bare, markdown, mosaic, new_figure, spread
from paper.methods import METHODS, choose
from paper.table1 import score

__all__ = ["run"]

K = 10
FULL = tuple(range(10))
QUICK = (0, 1)
COMPARED = (
    "laplacian",
    "pfa",
    "random",
    "greedy",
    "cae-gradient",
    "cae",
    "column-subset",
    "select",
)
SHOWN = 8  # test images of each digit
ABOUT = """# Single digits: {k} pixels each

Only images of one digit of {data}, about {n} to fit; {k} pixels chosen by each method, a linear
regression from them to all pixels, mean squared residual on test images; lower is better."""


def run(context: Context) -> Outcome:
    """Choose 10 pixels for each digit by itself."""
    data = context.only("mnist", "digits", "fashion")
    labels = QUICK if context.quick else FULL
    found: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for label in labels:
        for seed in context.seed_range(full=3, quick=1):
            case = context.case(data, seed, label=label)
            for name in ("pca", *COMPARED):
                cell = context.cache.get(
                    ("digits", data, f"digit {label}", f"seed {seed}", name),
                    {"k": K, "data": case.data.digest, "protocol": context.protocol},
                    partial(_score, case, name, seed),
                )
                found.setdefault(str(label), {}).setdefault(name, []).append(cell)
    rows = []
    for name in ("pca", *COMPARED):
        cells = [spread([c["error"] for c in found[str(label)][name]], 4) for label in labels]
        rows.append([METHODS[name].label, *cells])
    head = ["method", *(f"digit {label}" for label in labels)]
    cases = [context.case(data, 0, label=label) for label in labels]
    page = ABOUT.format(k=K, data=data, n=round(np.mean([len(case.fit) for case in cases])))
    chosen = [np.array(found[str(label)]["select"][0]["columns"]) for label in labels]
    figure = _draw(cases, chosen)
    return Outcome({"digits": found}, f"{page}\n\n{markdown(head, rows)}", {"digits": figure})


def _score(case: Case, name: str, seed: int) -> dict[str, Any]:
    if name == "pca":
        return {"error": score("pca", case, K, seed)["error"]}
    choice = choose(METHODS[name], case, K, seed)
    return {
        "columns": choice.columns.tolist(),
        "seconds": choice.seconds,
        "error": linear_error(case, choice.columns),
    }


def _draw(cases: list[Case], chosen: list[np.ndarray]) -> Figure:
    """A line for each digit: chosen pixels on the mean image, test images, reconstructed images."""
    figure = new_figure(6.8, 0.5 + 0.42 * len(cases))
    axes = figure.subplots(len(cases), 3, width_ratios=[1, SHOWN, SHOWN], squeeze=False)
    for line, case, columns in zip(axes, cases, chosen, strict=True):
        shape = case.data.image_shape or (1, case.d)
        decoder = LinearRegression().fit(case.fit[:, columns], case.fit)
        test = case.test[:SHOWN]
        reconstructed = decoder.predict(test[:, columns]).clip(0, 1)
        line[0].imshow(case.fit.mean(axis=0).reshape(shape), **GREY)
        line[0].scatter(columns % shape[1], columns // shape[1], s=1.6, color=PALETTE[1], lw=0)
        line[1].imshow(mosaic(test.reshape(-1, *shape), SHOWN), **GREY)
        line[2].imshow(mosaic(reconstructed.reshape(-1, *shape), SHOWN), **GREY)
        for axis in line:
            bare(axis)
    titles = ("chosen", "test images", f"reconstructed from {K} pixels")
    for axis, title in zip(axes[0], titles, strict=True):
        axis.set_title(title)
    return figure
