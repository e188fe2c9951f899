"""The map in DESIGN: each folder imports only from those above it."""

import ast
from pathlib import Path

import fewer

ROOT = Path(fewer.__file__).parent
LAYERS = [
    "errors",
    "_checks",
    "_files",
    "_tables",
    "_optional",
    "constraints",
    "distributed",
    "data",
    "nn",
    "cuda",
    "search",
    "validation",
    "train",
    "storage",
    "reconstructor",
    "estimators",
    "callbacks",
    "baselines",
    "evidence",
    "report",
    "panel",
    "selection",
    "anndata",
    "assess",
    "export",
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
