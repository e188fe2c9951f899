"""Four temperature schedules on MNIST, epoch by epoch."""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from fewer import ConcreteAutoencoder
from fewer.errors import NotConvergedWarning
from paper.case import Case, linear_error
from paper.experiment import Context, Outcome
from paper.figures import COLUMN, PALETTE, log_axis, markdown, new_figure, spread

__all__ = ["SCHEDULES", "run"]

HIGH, LOW = 10.0, 0.01
SCHEDULES = {
    "high": ("constant", HIGH, HIGH),
    "low": ("constant", LOW, LOW),
    "exponential": ("exponential", HIGH, LOW),
    "abrupt": ("abrupt", HIGH, LOW),
}
LABELS = {
    "high": "high: 10",
    "low": "low: 0.01",
    "exponential": "exponential: 10 to 0.01",
    "abrupt": "abrupt: 10, then 0.01",
}
COLOURS = dict(zip(SCHEDULES, (PALETTE[4], PALETTE[2], PALETTE[0], PALETTE[3]), strict=True))
LINES = dict(zip(SCHEDULES, (":", "--", "-", "-."), strict=True))
ABOUT = """# Four temperature schedules

A concrete autoencoder with a linear decoder, trained by gradient on {data}, k = {k}, for {epochs}
epochs, one try. *Test error* is that of a linear regression from the features with the largest
alpha at the end; *distinct* counts how many different features the nodes favour before conflicts
are resolved. As in the paper, a high temperature never converges, a low one converges early on a
worse choice, a sudden drop lies between, and the exponential schedule ends lowest."""


def run(context: Context) -> Outcome:
    """Train under each schedule and draw temperature, mean max probability and error."""
    data = context.only("mnist", "fashion", "digits", "mice", "coil20", "isolet")
    k, epochs = (20 if data != "mice" else 10), (40 if context.quick else 100)
    found: dict[str, list[dict[str, Any]]] = {}
    for seed in context.seed_range(full=3, quick=1):
        case = context.case(data, seed)
        for name in SCHEDULES:
            cell = context.cache.get(
                ("annealing", data, f"seed {seed}", name),
                {"k": k, "epochs": epochs, "data": case.data.digest, "protocol": context.protocol},
                partial(_train, case, name, k, epochs, seed),
            )
            found.setdefault(name, []).append(cell)
    rows = [
        [
            LABELS[name],
            spread([cell["error"] for cell in cells], 5),
            spread([cell["probability"][-1] for cell in cells], 3),
            spread([cell["distinct"][-1] for cell in cells], 1),
        ]
        for name, cells in found.items()
    ]
    head = ["schedule", "test error", "mean max probability", "distinct"]
    page = ABOUT.format(data=data, k=k, epochs=epochs) + "\n\n" + markdown(head, rows)
    return Outcome({"schedules": found}, page, {"annealing": _draw(found)})


def _train(case: Case, name: str, k: int, epochs: int, seed: int) -> dict[str, Any]:
    schedule, start, end = SCHEDULES[name]
    model = ConcreteAutoencoder(
        k,
        solver="gradient",
        schedule=schedule,
        start_temperature=start,
        end_temperature=end,
        epochs=epochs,
        tries=1,
        stop_probability=1.0,
        refine=None,
        random_state=seed,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotConvergedWarning)
        model.fit(case.fit)

    def column(key: str) -> list[float]:
        return [round(float(row[key]), 6) for row in model.history_]

    return {
        "error": linear_error(case, model.columns_),
        "temperature": column("temperature"),
        "probability": column("mean_max_probability"),
        "loss": column("val_loss"),
        "distinct": column("distinct"),
    }


def _draw(found: dict[str, list[dict[str, Any]]]) -> Figure:
    """Three rows: temperature, mean max probability, validation error; one line per schedule."""
    figure = new_figure(COLUMN, 4.6)
    axes = figure.subplots(3, 1, sharex=True)
    labels = {
        "temperature": "temperature",
        "probability": "mean max\nprobability",
        "loss": "validation loss",
    }
    for axis, (key, label) in zip(axes, labels.items(), strict=True):
        for name, cells in found.items():
            lines = np.array([cell[key] for cell in cells])
            epochs = np.arange(1, lines.shape[1] + 1)
            middle = lines.mean(axis=0)
            axis.plot(epochs, middle, color=COLOURS[name], ls=LINES[name], label=LABELS[name])
            if len(lines) > 1 and key != "temperature":
                low, high = lines.min(axis=0), lines.max(axis=0)
                axis.fill_between(epochs, low, high, color=COLOURS[name], alpha=0.2, lw=0)
        axis.set_ylabel(label)
    log_axis(axes[0], "y", (1,))
    log_axis(axes[2], "y")
    axes[2].set_xlabel("epoch")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=2)
    return figure
