"""The protocol of "Indirectly Parameterized Concrete Autoencoders" (A. Nilsson et al., 2024)."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure

from fewer import ConcreteAutoencoder, select
from fewer.data import moments
from fewer.data import open as open_rows
from fewer.errors import FewerWarning
from fewer.nn import make_loss
from fewer.train import TrainingConfig, fit_gradient
from paper.case import Case, Columns, Values, mean_square
from paper.experiment import Context, Outcome
from paper.figures import markdown, new_figure, spread
from paper.methods import IP_CAE, METHODS, choose_for_network
from paper.network import train_on_panel

__all__ = ["run"]

Reconstruct = Callable[[Values], Values]

FULL = ("mnist", "fashion", "coil20", "mice", "isolet", "har")
QUICK = ("mice",)
SIZES = {"mice": 10, "digits": 10}  # 50 otherwise
BATCHES = {"mice": 16, "coil20": 16}  # IP_CAE's otherwise
HIDDEN = (200,)
DECODERS = {"isolet": ((), (200,), (200, 200))}  # the data set on which depths are compared
QUICK_EPOCHS = 10
COMPARED = ("column-subset", "cae-direct", "ip-cae", "cae-gradient", "estimator", "select")
ABOUT = """# The protocol of indirectly parameterised concrete autoencoders

Nilsson et al. (ICML 2024) learn the selector's logits as a linear map of an embedding
(`logits="indirect"`) and compare with the plain concrete autoencoder: k = 50 (Mice: 10), a decoder
with a hidden layer of 200 and layer norm, {epochs} epochs, batches of 128 (COIL-20 and Mice: 16),
Adam 0.001, temperatures from 10 to 0.01, an own draw for every row. *IP-CAE* and *CAE, IP-CAE's
settings* are trained so, here, by `fewer.train.fit_gradient`; the other methods have their
defaults and choose for the same hidden layers. Mean squared residual on test rows over all
features, features in [0, 1]; lower is better. {splits}, as on the other pages, not those of
Nilsson et al., whose published figures are therefore not repeated."""
SAME = """## The same decoder for all

A network trained from scratch on the features of each method by `fewer.train.train_decoder`."""
OWN = """## Each with its own decoder

For the relaxations, the decoder that was trained with the selector, as Nilsson et al. use it; where
nodes chose the same feature, all but one took another, without retraining (*repeated*: such nodes,
mean over splits)."""


def run(context: Context) -> Outcome:
    """Errors of each method with the same decoder, and with its own."""
    seeds = context.seed_range(full=3, quick=1)
    epochs = QUICK_EPOCHS if context.quick else IP_CAE["epochs"]
    found: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for data in context.names(FULL, QUICK):
        k = SIZES.get(data, 50)
        for hidden in DECODERS.get(data, (HIDDEN,)):
            title = _title(data, k, hidden)
            settings = {"epochs": epochs, "batch_size": BATCHES.get(data, IP_CAE["batch_size"])}
            for seed in seeds:
                case = cache(partial(context.case, data, seed))  # made only if a result is missing
                for name in COMPARED:
                    cell = context.cache.get(
                        ("ip-cae", title, f"seed {seed}", name),
                        {
                            "k": k,
                            **settings,
                            "data": context.dataset(data).digest,
                            "protocol": context.protocol,
                        },
                        partial(_score, case, name, k, hidden, settings),
                    )
                    found.setdefault(title, {}).setdefault(name, []).append(cell)
    splits = "One split" if len(seeds) == 1 else f"{len(seeds)} splits"
    about = ABOUT.format(epochs=epochs, splits=splits)
    page = "\n\n".join([about, SAME, _table(found, "error"), OWN, _table(found, "own_error")])
    return Outcome({"scores": found}, page, {"ip-cae": _draw(found)})


def _title(data: str, k: int, hidden: tuple[int, ...]) -> str:
    layers = "" if hidden == HIDDEN else ", linear" if not hidden else f", {len(hidden)} layers"
    return f"{data}, k = {k}{layers}"


def _score(
    rows: Callable[[], Case], name: str, k: int, hidden: tuple[int, ...], settings: dict[str, Any]
) -> dict[str, Any]:
    case = rows()
    began = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FewerWarning)  # not settled counts too
        columns, own, more = _fit(case, name, k, hidden, settings)
    seconds = time.perf_counter() - began
    decode = train_on_panel(case.fit, columns, hidden, case.seed, groups=case.groups)
    cell = {"columns": columns.tolist(), "seconds": round(seconds, 3), **more}
    cell["error"] = mean_square(decode(case.test), case.test)
    if own is not None:
        cell["own_error"] = mean_square(own(case.test), case.test)
    return cell


def _fit(
    case: Case, name: str, k: int, hidden: tuple[int, ...], settings: dict[str, Any]
) -> tuple[Columns, Reconstruct | None, dict[str, Any]]:
    """Columns of a method, its own reconstruction of whole rows, and what else is known."""
    if name in ("cae-direct", "ip-cae"):
        options = {**IP_CAE, **settings, "refit": "none"}
        if name == "cae-direct":
            options["logits"] = "direct"
        source = open_rows(case.fit)
        config = TrainingConfig(k=k, decoder=hidden, **options)
        more: dict[str, Any] = {"seed": case.seed, "groups": case.groups}
        fit = fit_gradient(source, moments(source), config, loss=make_loss("mse"), **more)

        @torch.no_grad()
        def reconstruct(new: Values) -> Values:
            return fit.decoder(torch.from_numpy(new[:, fit.columns])).numpy()

        return fit.columns, reconstruct, {"repeated": fit.conflicts}
    if name == "estimator":
        model = ConcreteAutoencoder(k, decoder=hidden, random_state=case.seed).fit(case.fit)
        return model.columns_, model.reconstruct, {}
    if name == "select":
        scaled: dict[str, Any] = {"scale": "none", "row_groups": case.groups}
        panel = select(case.fit, k, decoder=hidden, random_state=case.seed, **scaled)
        return panel.indices, lambda new: panel.reconstruct(new[:, panel.indices]), {}
    return choose_for_network(name, case, k, hidden, case.seed).columns, None, {}


def _table(found: dict[str, dict[str, list[dict[str, Any]]]], key: str) -> str:
    lines = []
    for name in COMPARED:
        cells = [[cell[key] for cell in one[name] if key in cell] for one in found.values()]
        if any(cells):
            lines.append([METHODS[name].label, *(spread(v, 5) if v else "–" for v in cells)])
    if key == "own_error":
        for name in ("cae-direct", "ip-cae"):
            repeated = [np.mean([cell["repeated"] for cell in one[name]]) for one in found.values()]
            lines.append([f"{METHODS[name].label}: repeated", *(f"{n:.1f}" for n in repeated)])
    return markdown(["", *found], lines)


def _draw(found: dict[str, dict[str, list[dict[str, Any]]]]) -> Figure:
    """Error with the same decoder, relative to the linear search: a dot for each split."""
    figure = new_figure(6.8, 0.9 + 0.32 * len(found))
    axis = figure.subplots()
    for at, methods in enumerate(found.values()):
        bases = [cell["error"] for cell in methods["column-subset"]]
        for name, cells in methods.items():
            ratios = [cell["error"] / base for cell, base in zip(cells, bases, strict=True)]
            label = METHODS[name].label if at == 0 else None
            style: Any = {"color": METHODS[name].colour, "marker": METHODS[name].marker}
            style |= {"linestyle": "none"}
            axis.plot(ratios, [at] * len(ratios), alpha=0.35, markersize=3, **style)
            axis.plot(np.mean(ratios), at, markersize=6, label=label, **style)
    axis.axvline(1, color="#bbbbbb", linewidth=0.6, zorder=0)
    axis.set_yticks(range(len(found)), list(found))
    axis.invert_yaxis()
    axis.set_xlabel("test error, same decoder / linear search")
    figure.legend(loc="outside right center")
    return figure
