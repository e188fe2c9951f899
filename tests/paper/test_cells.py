"""Results are kept one by one, and only good ones are taken up again."""

import json

import pytest

from fewer.errors import FileFormatError
from fewer.paper.cells import UNKNOWN, ResultCache
from fewer.paper.provenance import commit, processor


def test_a_known_cell_is_not_computed_again(tmp_path):
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


def test_other_settings_make_it_anew(tmp_path):
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


def test_where_the_cells_of_an_experiment_come_from(tmp_path):
    ResultCache(tmp_path).get(("old",), {}, lambda: {"error": 1})
    stored = json.loads((tmp_path / "old.json").read_text())
    (tmp_path / "old.json").write_text(json.dumps(stored | {"commit": "abc", "machine": "PDP-11"}))
    cells = ResultCache(tmp_path)
    cells.get(("old",), {}, lambda: pytest.fail("again"))
    cells.get(("new",), {}, lambda: {"error": 2})
    assert cells.origins == {("abc", "PDP-11"), (commit() or UNKNOWN, processor())}
    cells.start()
    assert not cells.origins
