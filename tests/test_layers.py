"""The map in DESIGN: each folder imports only from those above it."""

import ast
import re
from pathlib import Path

import fewer

ROOT = Path(fewer.__file__).parent
LAYERS = [
    "errors",
    "_checks",
    "_files",
    "_stored",
    "_tables",
    "_progress",
    "_threads",
    "_optional",
    "_display",
    "constraints",
    "distributed",
    "data",
    "nn",
    "cuda",
    "search",
    "validation",
    "estimate",
    "train",
    "kinds",
    "labels",
    "storage",
    "joint",
    "reconstructor",
    "rows",
    "target",
    "checks",
    "cells",
    "estimators",
    "callbacks",
    "baselines",
    "evidence",
    "reproduce",
    "report",
    "panel",
    "selection",
    "anndata",
    "pl",
    "assess",
    "export",
    "service",
    "datasets",
    "cli",
    "__main__",
]


def imported_layers(path):
    """Layers that a file imports, wherever in the file it does so."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            if node.module == "fewer":
                yield from (alias.name for alias in node.names if alias.name != "__version__")
            names = [node.module]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        yield from (name.split(".")[1] for name in names if name.startswith("fewer."))


def test_each_layer_imports_only_from_above():
    files = [path for path in ROOT.rglob("*.py") if path != ROOT / "__init__.py"]
    assert len(files) > 20
    for path in files:
        layer = path.relative_to(ROOT).parts[0].removesuffix(".py")
        assert layer in LAYERS, f"{path}: say in LAYERS where {layer!r} belongs"
        for other in imported_layers(path):
            assert LAYERS.index(other) <= LAYERS.index(layer), f"{path} imports fewer.{other}"


def test_the_checker_sees_an_import_from_below(tmp_path):
    bad = tmp_path / "bad.py"
    bad.write_text("def f():\n    from fewer.cli import main\n    import fewer.train.network\n")
    assert list(imported_layers(bad)) == ["cli", "train"]


def test_contributing_names_every_layer_in_this_order():
    text = (ROOT.parents[1] / "CONTRIBUTING.md").read_text(encoding="utf-8")
    table = text.partition("## Code map")[2].partition("Outside the package")[0]
    named = re.findall(r"`(\w+)(?:/|\.py)`", "".join(re.findall(r"^\|([^|]*)\|", table, re.M)))
    layers = [name for name in LAYERS if name != "__main__"]
    assert set(layers) <= set(named)
    public = [name for name in layers if not name.startswith("_")]
    assert [name for name in named if name in public] == public


def test_files_that_contributing_answers_with_exist():
    text = (ROOT.parents[1] / "CONTRIBUTING.md").read_text(encoding="utf-8")
    answers = re.findall(r"^\| [^|`]*\? \| `([^`]+)` \|$", text, re.M)
    assert len(answers) == 5
    for answer in answers:
        assert (ROOT / answer).is_file(), answer
