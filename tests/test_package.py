"""The package as a whole: what it exports, and what importing it costs."""

import importlib
import json
import re
import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path

import numpy as np
import pytest
from packaging.specifiers import SpecifierSet

import fewer
from tools import supply

ROOT = Path(__file__).parents[1]


FRESH = """
import json, os, sys

def modules():
    return sorted(sys.modules)

environment = dict(os.environ)
import fewer
found = {"imported": modules()}
import scipy.sparse
before = set(modules())  # early versions of it load scipy.linalg
fewer.select(sys.argv[1], 2, validation=3, random_state=0)
found["selected"] = sorted(set(modules()) - before)

class Absent:
    names = {"pandas", "polars", "pyarrow", "matplotlib", "typer", "rich"}

    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in self.names:
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Absent())
import numpy as np
X = np.random.default_rng(0).normal(size=(50, 5))
model = fewer.ConcreteAutoencoder(k=2, stop_probability=0.1, random_state=0).fit(X)
found["shape"] = model.transform(X).shape
sys.meta_path.pop(0)

for name in fewer.__all__:
    getattr(fewer, name)
names = "OMP_WAIT_POLICY", "KMP_BLOCKTIME"
found["environment"] = [os.environ.get(name) == environment.get(name) for name in names]
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def fresh(tmp_path_factory):
    """What a process found that imported fewer first; warnings are errors, printing is one too."""
    path = tmp_path_factory.mktemp("fresh") / "rows.npy"
    np.save(path, np.random.default_rng(0).normal(size=(60, 300)))
    call = [sys.executable, "-W", "error", "-c", FRESH, path]
    done = subprocess.run(call, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


def test_exports_exist_and_are_listed():
    for name in fewer.__all__:
        assert getattr(fewer, name) is not None
    assert set(fewer.__all__) <= set(dir(fewer))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        fewer.nothing  # noqa: B018


@pytest.mark.parametrize(
    "module", ["baselines", "data", "datasets", "errors", "estimators", "nn", "search", "train"]
)
def test_submodules_say_what_is_public(module):
    found = importlib.import_module(f"fewer.{module}")
    for name in found.__all__:
        assert hasattr(found, name), f"fewer.{module}.{name}"


def test_importing_fewer_is_silent_and_loads_nothing_heavy(fresh):
    assert not {"torch", "sklearn", "numpy", "rich"} & set(fresh["imported"])


def test_a_linear_panel_of_a_file_loads_no_more_than_torch_needs(fresh):
    # scikit-learn, with pandas and pyarrow if they are installed, takes 130 MB; the others 28 MB
    heavy = {"sklearn", "pandas", "pyarrow", "rich", "scipy.optimize", "scipy.linalg"}
    assert not heavy & set(fresh["selected"])


def test_the_estimators_need_no_optional_package(fresh):
    assert fresh["shape"] == [50, 2]


def test_the_library_changes_no_environment(fresh):
    assert fresh["environment"] == [True, True]


def test_every_pin_installs_on_the_oldest_python_that_we_promise():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    oldest = project["requires-python"].removeprefix(">=") + ".0"
    pins = re.findall(r"^([\w.-]+)==(.+)$", (ROOT / "constraints.txt").read_text(), re.M)
    assert len(pins) > 50
    for name, version in pins:
        try:
            about = metadata(name)
        except PackageNotFoundError:  # of an extra that is not installed here
            continue
        if about["Version"] == version and about.get("Requires-Python"):
            assert oldest in SpecifierSet(about["Requires-Python"]), name


def requirements(file):
    """Versions in a file of requirements/, all of which have hashes."""
    text = (ROOT / "requirements" / f"{file}.txt").read_text(encoding="utf-8")
    hashed = r"(\S+)==(\S+)(?: +--hash=sha256:\w{64})+"
    entries = text.replace("\\\n", "").splitlines()[1:]
    found = [re.fullmatch(hashed, entry).groups() for entry in entries]
    assert len(dict(found)) == len(found)
    return dict(found)


def test_requirements_are_the_pins_with_hashes():
    pinned, dev, docs = supply.pins(), requirements("dev"), requirements("docs")
    assert not dev.keys() & docs.keys()
    pinned.pop(supply.UNHASHED)
    assert dev | docs == pinned
    build = requirements("build")
    assert build.keys() >= {"build", "hatchling", "tomlkit"}
    assert build.items() <= (pinned | supply.WHEEL).items()


def test_the_bill_of_materials_names_every_dependency_once():
    bill = supply.sbom()
    names = [part["name"] for part in bill["components"]]
    assert len(set(names)) == len(names)
    own = {re.split(r"[<>=\[]", one)[0] for one in supply.project()["dependencies"]}
    assert own <= set(names)
    known = {part["bom-ref"] for part in bill["components"]}
    assert all(set(edge["dependsOn"]) <= known for edge in bill["dependencies"])
    without = {part["name"] for part in bill["components"] if not part.get("licenses")}
    assert without <= {"torch", "cuda-toolkit"}  # which do not say theirs


def test_every_dependency_has_a_lowest_version():
    versions = dict(line.split("==") for line in supply.lowest())
    assert versions["numpy"] == "2.0"
    assert {"dask", "pyarrow", "zarr"} <= set(versions)
    assert versions["torch"] == supply.pins()["torch"]
