"""Appendix F: 20 pixels of MNIST chosen with labels, and without."""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any

import numpy as np
from sklearn.linear_model import LinearRegression
from sklearn.neural_network import MLPClassifier

from fewer import ConcreteClassifier
from fewer.errors import FewerWarning
from paper.case import Case, accuracies, linear_error
from paper.experiment import Context, Outcome
from paper.figures import markdown, reconstructions, spread
from paper.methods import METHODS, choose

__all__ = ["run"]

K = 20
WITHOUT = ("random", "greedy", "cae-gradient", "cae", "select")
HIDDEN = 100
ABOUT = """# Choosing with labels

{k} of {d} features of {data}. "with labels": `ConcreteClassifier`, a concrete selector with a
classifier of one hidden layer of {hidden} as decoder and cross-entropy as loss. The others saw no
label. *Own*: accuracy of the classifier trained together with the selector and refitted;
*network*: the same network trained from scratch on each choice; *trees*: 50 extremely randomised
trees; *error*: linear reconstruction of all features. As in the paper, choosing for the label costs
reconstruction."""


def run(context: Context) -> Outcome:
    """Choose with and without labels; compare accuracy and reconstruction."""
    data = context.only("mnist", "fashion", "digits", "isolet", "har")
    found: dict[str, list[dict[str, Any]]] = {}
    for seed in context.seed_range(full=3, quick=1):
        case = context.case(data, seed)
        for name in ("with labels", *WITHOUT):
            cell = context.cache.get(
                ("supervised", data, f"seed {seed}", name),
                {"k": K, "data": case.data.digest, "protocol": context.protocol},
                partial(_score, case, name, seed),
            )
            found.setdefault(name, []).append(cell)
    rows = []
    for name, cells in found.items():
        label = "CAE, with labels" if name == "with labels" else METHODS[name].label
        own = [cell["own"] for cell in cells if "own" in cell]
        parts = [spread([cell[key] for cell in cells], 3) for key in ("network", "trees")]
        error = spread([cell["error"] for cell in cells], 5)
        rows.append([label, spread(own, 3) if own else "–", *parts, error])
    case = context.case(data, 0)
    page = ABOUT.format(k=K, d=case.d, data=data, hidden=HIDDEN)
    head = ["features chosen by", "own", "network", "trees", "error"]
    figures = {}
    if case.data.image_shape is not None:
        columns = np.array(found["with labels"][0]["columns"])
        linear = LinearRegression().fit(case.fit[:, columns], case.fit)
        reconstructed = linear.predict(case.test[:, columns])
        figures["supervised"] = reconstructions(case, columns, reconstructed)
    return Outcome({"methods": found}, f"{page}\n\n{markdown(head, rows)}", figures)


def _score(case: Case, name: str, seed: int) -> dict[str, Any]:
    cell: dict[str, Any] = {}
    if name == "with labels":
        model = ConcreteClassifier(K, decoder=(HIDDEN,), random_state=seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FewerWarning)
            model.fit(case.fit, case.labels)
        columns = model.columns_
        cell["own"] = float(model.score(case.test, case.test_labels))
    else:
        columns = choose(METHODS[name], case, K, seed).columns
    fit, test = case.fit[:, columns], case.test[:, columns]
    network = MLPClassifier((HIDDEN,), early_stopping=True, max_iter=300, random_state=seed)
    network.fit((fit - fit.mean(axis=0)) / (fit.std(axis=0) + 1e-9), case.labels)
    scaled = (test - fit.mean(axis=0)) / (fit.std(axis=0) + 1e-9)
    return cell | {
        "columns": columns.tolist(),
        "network": float(network.score(scaled, case.test_labels)),
        "error": linear_error(case, columns),
        **accuracies(case, fit, test, seed),
    }
