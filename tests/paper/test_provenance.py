"""Which code made a result."""

import json
import subprocess

import pytest

from fewer.paper.cells import ResultCache
from fewer.paper.provenance import commit


@pytest.fixture
def tree(tmp_path):
    def git(*what):
        me = ["-c", "user.name=me", "-c", "user.email=me@here"]
        subprocess.run(["git", "-C", str(tmp_path), *me, *what], check=True, capture_output=True)

    package = tmp_path / "package"
    package.mkdir()
    (package / "code.py").write_text("1\n")
    git("init")
    git("add", ".")
    git("commit", "-m", "first")
    return package


def test_a_clean_tree_is_named_by_its_commit(tree):
    found = commit(tree)
    assert len(found) == 12
    (tree.parent / "notes.txt").write_text("not code\n")
    commit.cache_clear()
    assert commit(tree) == found


@pytest.mark.parametrize("name", ["code.py", "new.py"])
def test_a_changed_tree_says_so(tree, name):
    (tree / name).write_text("2\n")
    assert commit(tree).endswith("-dirty")


def test_no_tree_no_commit(tmp_path):
    assert commit(tmp_path) is None


def test_a_cell_says_which_code_made_it_and_old_cells_stay(tmp_path):
    cells = ResultCache(tmp_path)
    assert cells.get(("a",), {}, lambda: {"error": 1})["commit"] == commit()
    old = {"key": ["b"], "settings": {}, "error": 2, "seconds_in_all": 1.0}
    (tmp_path / "b.json").write_text(json.dumps(old))
    assert cells.get(("b",), {}, lambda: pytest.fail("again")) == old
