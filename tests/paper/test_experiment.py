"""Results are stored one by one with the code that made them, and reused if they are good."""

import json
import subprocess

import pytest

from fewer.errors import FileFormatError
from paper.experiment import UNKNOWN, ResultCache, commit, processor


def test_a_cached_result_is_not_recomputed(tmp_path):
    said = []
    cells = ResultCache(tmp_path, said.append)
    first = cells.get(("a", "seed 0", "x/y"), {"k": 3}, lambda: {"error": 0.25})
    again = ResultCache(tmp_path).get(
        ("a", "seed 0", "x/y"), {"k": 3}, lambda: pytest.fail("again")
    )
    assert again == first
    assert again["error"] == 0.25
    assert cells.computed == 1
    assert "a · seed 0 · x/y" in said[0]
    assert [path.name for path in tmp_path.rglob("*.json")] == ["x-y.json"]


def test_other_settings_recompute_the_result(tmp_path):
    cells = ResultCache(tmp_path)
    cells.get(("a",), {"k": 3}, lambda: {"error": 1})
    assert cells.get(("a",), {"k": 4}, lambda: {"error": 2})["error"] == 2
    assert cells.get(("a",), {"k": 4}, lambda: {"error": 3})["error"] == 2
    # tuples and lists are the same once written
    cells.get(("b",), {"widths": (1, 2)}, lambda: {"error": 1})
    assert cells.get(("b",), {"widths": [1, 2]}, lambda: pytest.fail("again"))["error"] == 1


def test_an_interrupted_cell_leaves_nothing_behind(tmp_path):
    cells = ResultCache(tmp_path)
    cells.get(("done",), {}, lambda: {"error": 1})

    def interrupted():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cells.get(("half",), {}, interrupted)
    assert [path.name for path in tmp_path.iterdir()] == ["done.json"]


def test_a_damaged_file_is_named(tmp_path):
    (tmp_path / "a.json").write_text('{"err')
    with pytest.raises(FileFormatError, match=r"a.json is damaged .*delete it and run again"):
        ResultCache(tmp_path).get(("a",), {}, lambda: {})


def test_the_source_of_each_result_is_shown(tmp_path):
    ResultCache(tmp_path).get(("old",), {}, lambda: {"error": 1})
    stored = json.loads((tmp_path / "old.json").read_text())
    (tmp_path / "old.json").write_text(json.dumps(stored | {"commit": "abc", "machine": "PDP-11"}))
    cells = ResultCache(tmp_path)
    cells.get(("old",), {}, lambda: pytest.fail("again"))
    cells.get(("new",), {}, lambda: {"error": 2})
    assert cells.origins == {("abc", "PDP-11"), (commit() or UNKNOWN, processor())}
    cells.start()
    assert not cells.origins


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
def test_provenance_records_a_modified_checkout(tree, name):
    (tree / name).write_text("2\n")
    assert commit(tree).endswith("-dirty")


def test_no_commit_outside_a_checkout(tmp_path):
    assert commit(tmp_path) is None


def test_a_result_records_its_code_version_and_old_results_stay(tmp_path):
    cells = ResultCache(tmp_path)
    assert cells.get(("a",), {}, lambda: {"error": 1})["commit"] == commit()
    old = {"key": ["b"], "settings": {}, "error": 2, "seconds_in_all": 1.0}
    (tmp_path / "b.json").write_text(json.dumps(old))
    assert cells.get(("b",), {}, lambda: pytest.fail("again")) == old
