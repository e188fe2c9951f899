"""A short, repeatable run of the fuzzing that `make fuzz` does at length."""

import pytest

from fuzz.__main__ import damaged
from fuzz.targets import TARGETS

# checkpoints resume a training, which takes a while
RUNS = {"checkpoint": 6, "h5ad": 8, "panel": 25, "estimator": 25}


@pytest.mark.parametrize("name", TARGETS)
def test_damaged_files_raise_errors_of_fewer_only(name, tmp_path, monkeypatch):
    monkeypatch.setenv("FEWER_CACHE", str(tmp_path / "cache"))
    target = TARGETS[name]
    whole = [target.run(data, tmp_path) for data in target.seeds()]
    assert whole == ["InputError" if name == "lists" else "read"] * len(whole)
    found = {target.run(damaged(name, at, seed=1), tmp_path) for at in range(RUNS.get(name, 40))}
    assert found <= {"read", "InputError", "FileFormatError", "TypeInputError"}
    assert found != {"read"}
