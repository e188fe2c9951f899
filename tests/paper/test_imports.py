"""The paper is a client of fewer: it imports only what users may import."""

import ast
import importlib
from pathlib import Path

import pytest

import fewer
import paper

FILES = sorted(Path(paper.__file__).parent.glob("*.py"))


def imports(path):
    """Modules of fewer that a file imports, each with a name imported from it or None."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module.split(".")[0] == "fewer":
            yield from ((node.module, alias.name) for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (
                (alias.name, None) for alias in node.names if alias.name.split(".")[0] == "fewer"
            )


def is_public(module, name):
    parts = module.split(".")[1:]
    if any(part.startswith("_") for part in parts) or len(parts) > 1:
        return False
    # a subpackage counts as public where its names are in the reference
    page = Path(__file__).parents[2] / "docs" / "api" / f"{parts[0] if parts else 'fewer'}.rst"
    return page.is_file() and (name is None or name in importlib.import_module(module).__all__)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_only_public_names_are_imported(path):
    private = [one for one in imports(path) if not is_public(*one)]
    assert not private, "close the gap in the API of fewer, or write it in paper/"


def test_the_checker_sees_private_names(tmp_path):
    bad = tmp_path / "bad.py"
    bad.write_text(
        "import fewer._files\nfrom fewer.train.device import seeded\n"
        "from fewer.search import _swap\nfrom fewer.data import open\nimport fewer\n"
    )
    assert [is_public(*one) for one in imports(bad)] == [False, False, False, True, True]


def test_the_wheel_has_no_paper():
    assert not (Path(fewer.__file__).parent / "paper").exists()
