"""Groups of related pixels: the three likeliest of each selector node."""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from fewer import ColumnSubset, ConcreteAutoencoder
from fewer.errors import FewerWarning
from paper.case import Case
from paper.experiment import Context, Outcome
from paper.figures import PIXEL_COLOURS, bare, markdown, new_figure, spread

__all__ = ["run"]

MEMBERS = 3
SINGLE = (0, 1, 2, 7)  # the digits that the paper draws
SIZES = {"all": 20}  # nodes; 10 for single digits
MAKERS = {
    "CAE": lambda k, seed: ConcreteAutoencoder(
        k, solver="gradient", refine=None, random_state=seed
    ),
    "ColumnSubset": lambda k, seed: ColumnSubset(k, random_state=seed),
}
ABOUT = """# Groups of related pixels

The {m} pixels with the largest alpha of each node of a concrete autoencoder (k = 20 on all digits
of {data}, 10 on single ones), and next to it the {m} pixels that can replace each other at the
least loss (`ColumnSubset.feature_groups`). *Distance*: mean distance in pixels between the first
member of a group and the others; *chance*: between random varying pixels; *correlation*: mean
absolute correlation of the others with the first, on test images. Related pixels should be close
and correlated."""


def run(context: Context) -> Outcome:
    """Find groups on all digits and on single ones, and draw them."""
    data = context.only("mnist", "digits", "fashion")
    wanted = ("all", *(() if context.quick else map(str, SINGLE)))
    found: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for which in wanted:
        k = SIZES.get(which, 10)
        for seed in context.seed_range(full=3, quick=1):
            label = None if which == "all" else int(which)
            case = context.case(data, seed, label=label)
            for name in MAKERS:
                cell = context.cache.get(
                    ("groups", data, which, f"seed {seed}", name),
                    {"k": k, "data": case.data.digest, "protocol": context.protocol},
                    partial(_find, case, name, k, seed),
                )
                found.setdefault(which, {}).setdefault(name, []).append(cell)
    rows = []
    for which, methods in found.items():
        for name, cells in methods.items():
            rows.append(
                [
                    f"{'all digits' if which == 'all' else f'digit {which}'}, {name}",
                    spread([cell["distance"] for cell in cells], 2),
                    spread([cell["chance"] for cell in cells], 2),
                    spread([cell["correlation"] for cell in cells], 2),
                ]
            )
    page = ABOUT.format(m=MEMBERS, data=data)
    head = ["groups", "distance", "chance", "correlation"]
    figure = _draw(context.case(data, 0), found)
    return Outcome({"groups": found}, f"{page}\n\n{markdown(head, rows)}", {"groups": figure})


def _find(case: Case, name: str, k: int, seed: int) -> dict[str, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FewerWarning)
        model = MAKERS[name](k, seed).fit(case.fit)
    groups = np.array(model.feature_groups(MEMBERS))
    width = (case.data.image_shape or (1, case.d))[1]
    varying = np.flatnonzero(case.fit.std(axis=0) > 0.02)
    pairs = np.random.default_rng(0).choice(varying, (2000, 2))
    first, others = groups[:, :1].repeat(MEMBERS - 1, axis=1).ravel(), groups[:, 1:].ravel()
    return {
        "groups": groups.tolist(),
        "distance": _distance(first, others, width),
        "chance": _distance(pairs[:, 0], pairs[:, 1], width),
        "correlation": _correlation(case.test, first, others),
    }


def _distance(a: np.ndarray, b: np.ndarray, width: int) -> float:
    return float(np.mean(np.hypot(a // width - b // width, a % width - b % width)))


def _correlation(rows: np.ndarray, a: np.ndarray, b: np.ndarray) -> float:
    centred = rows - rows.mean(axis=0)
    spread = np.maximum(centred.std(axis=0), 1e-9)
    products = (centred[:, a] * centred[:, b]).mean(axis=0) / (spread[a] * spread[b])
    return float(np.mean(np.abs(products)))


def _draw(case: Case, found: dict[str, dict[str, list[dict[str, Any]]]]) -> Figure:
    """A panel for each set of images and method; pixels of a group share a colour."""
    shape = case.data.image_shape or (1, case.d)
    figure = new_figure(1.36 * max(len(found), 2), 2 * 1.55)
    axes = figure.subplots(len(MAKERS), len(found), squeeze=False)
    for column, (which, methods) in enumerate(found.items()):
        for line, (name, cells) in enumerate(methods.items()):
            axis = axes[line, column]
            picture = np.full((*shape, 3), 0.88)
            for at, group in enumerate(cells[0]["groups"]):
                colour = PIXEL_COLOURS[at % len(PIXEL_COLOURS)]
                rgb = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
                for pixel in group:
                    picture[pixel // shape[1], pixel % shape[1]] = rgb
            axis.imshow(picture, interpolation="nearest")
            bare(axis)
            if line == 0:
                axis.set_title("all digits" if which == "all" else f"digit {which}")
            if column == 0:
                axis.set_ylabel(name)
    return figure
