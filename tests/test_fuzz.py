"""A short, repeatable run of the fuzzing that `make fuzz` does at length."""

import pytest

from fewer.data import screen
from fuzz.__main__ import damaged
from fuzz.targets import TARGETS

# checkpoints resume a training, which takes a while
NEEDS = {"zarr": "zarr", "h5ad": "anndata", "duckdb": "duckdb", "h5": "h5py", "xlsx": "openpyxl"}
RUNS = {"checkpoint": 4, "h5ad": 4, "panel": 10, "estimator": 10}


@pytest.mark.parametrize("name", TARGETS)
def test_damaged_files_raise_errors_of_fewer_only(name, tmp_path, monkeypatch):
    monkeypatch.setenv("FEWER_CACHE", str(tmp_path / "cache"))
    pytest.importorskip(NEEDS.get(name, "pyarrow"))
    target = TARGETS[name]
    whole = [target.run(data, tmp_path) for data in target.seeds()]
    assert whole == ["InputError" if name == "lists" else "read"] * len(whole)
    monkeypatch.setattr(screen, "SECONDS", 0.25)  # some damaged files are never read to their end
    found = {target.run(damaged(name, at, seed=1), tmp_path) for at in range(RUNS.get(name, 16))}
    assert found <= {"read", "InputError", "FileFormatError", "TypeInputError"}
    assert found != {"read"}
