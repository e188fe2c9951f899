"""How a panel can be made again: as Python, and as a configuration of the command line."""

import tomllib
from types import SimpleNamespace

import pytest

import fewer
from fewer.errors import InputError
from fewer.reproduce import config_of, python_of, toml_text

SOURCE = {"path": "rows.csv", "kind": ".csv file", "rows": 9, "columns": 4}


def evidence(source=(), **options):
    return SimpleNamespace(source=SOURCE | dict(source), options=options)


def test_options_are_code_or_named():
    pairs = {"mapping": [["a", 2.0], [["b", 1], 3.0]]}
    text = python_of(evidence(k={"reach": 0.9}, costs=pairs, noise={"mapping": [["a"]]}, tol=1.5))
    assert "fewer.select('rows.csv', k=fewer.Reach(0.9), " in text
    assert "costs={'a': 2.0, ('b', 1): 3.0}" in text
    assert "noise = ...  # as passed originally" in text  # a file that nobody wrote
    assert "tol=1.5" in text
    long = python_of(evidence({"path": None, "kind": "numpy.ndarray"}, weights=[1.0] * 100))
    assert "data = ...  # numpy.ndarray, 9 x 4" in long
    assert "weights=weights" in long
    assert "random_state was not set" in long
    assert python_of(evidence({"config": {}, "path": "cells.h5ad"})) is None


def test_configurations_are_toml():
    known = evidence(k={"reach": 0.9}, random_state=3, include=["a"], costs=[1.0], loss=None)
    config = config_of(known)
    assert config == {"data": "rows.csv", "reach": 0.9, "seed": 3, "include": ["a"], "costs": None}
    values = {"yes": True, "limit": float("inf"), "name": 'a "b" \x7f', "sizes": [1, 2.5]}
    text = toml_text(values | {"costs": None})
    assert tomllib.loads(text) == values
    assert "# costs = ...  (it was an object in Python" in text
    assert config_of(evidence({"config": {"data": "x.csv"}})) == {"data": "x.csv"}
    with pytest.raises(InputError, match="saved without evidence"):
        config_of(None)


def test_the_code_runs():
    X = [[float(i * j % 7), float(i), float(j)] for i in range(9) for j in range(9)]
    panel = fewer.select(X, 2, strategies=["search"], validation=0.2, random_state=0)
    found = {"data": X}
    exec(python_of(panel.evidence).replace("data = ...", "pass"), found)
    assert found["panel"].features == panel.features


def test_the_decoder_of_a_target_is_the_one_that_a_panel_was_made_with():
    """Earlier builds predicted linearly unless told otherwise, and did not record that."""
    target = {"object": "9 values"}
    assert "decoder='linear'" in python_of(evidence(target=target))
    assert config_of(evidence({"config": {"target": "y"}}, target="y"))["decoder"] == "linear"
    assert "decoder" not in python_of(evidence(target=target, decoder="auto"))
    known = evidence({"config": {"target": "y"}}, target="y", decoder="auto")
    assert config_of(known) == {"target": "y"}
    assert "decoder=[8]" in python_of(evidence(target=target, decoder=[8]))
    X = [[float(i * j % 7), float(i), float(j)] for i in range(9) for j in range(9)]
    y = [row[0] > 2 for row in X]
    options = {"strategies": ["search"], "validation": 0.2, "random_state": 0}
    panel = fewer.select(X, 2, target=y, **options)
    assert panel.evidence.options["decoder"] == "auto"
    found = {"data": X, "target": y}
    code = python_of(panel.evidence).replace("data = ...", "pass").replace("target = ...", "pass")
    exec(code, found)
    assert found["panel"].features == panel.features
