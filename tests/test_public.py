"""What users may import: said, documented, with an example that runs, and in the reference."""

import importlib
import inspect
import re
from pathlib import Path

import pytest

import fewer

API = Path(__file__).parents[1] / "docs" / "api"
MODULES = [
    "fewer",
    "fewer.anndata",
    "fewer.assess",
    "fewer.baselines",
    "fewer.callbacks",
    "fewer.constraints",
    "fewer.data",
    "fewer.datasets",
    "fewer.distributed",
    "fewer.errors",
    "fewer.estimators",
    "fewer.evidence",
    "fewer.export",
    "fewer.nn",
    "fewer.pl",
    "fewer.nn.schedule",
    "fewer.panel",
    "fewer.report",
    "fewer.search",
    "fewer.target",
    "fewer.train",
]


def public(module):
    """Names and objects of a module's ``__all__``; submodules stand in MODULES themselves."""
    found = importlib.import_module(module)
    for name in found.__all__:
        thing = getattr(found, name)
        if not inspect.ismodule(thing) and not name.startswith("__"):
            yield name, thing


def is_code(thing):
    return inspect.isclass(thing) or inspect.isroutine(thing)


def test_every_public_submodule_is_looked_at():
    for name in fewer.__all__:
        if inspect.ismodule(getattr(fewer, name)):
            assert f"fewer.{name}" in MODULES


@pytest.mark.parametrize("module", MODULES)
def test_every_public_object_has_a_docstring_with_an_example(module):
    lacking = [
        name
        for name, thing in public(module)
        if is_code(thing) and ">>>" not in (thing.__doc__ or "")
    ]
    assert not lacking


@pytest.mark.parametrize("module", MODULES)
def test_every_public_method_has_a_docstring(module):
    for name, thing in public(module):
        if not inspect.isclass(thing):
            continue
        for member, value in vars(thing).items():
            if not member.startswith("_") and (
                inspect.isroutine(value) or isinstance(value, property)
            ):
                assert inspect.getdoc(getattr(thing, member)), f"{module}.{name}.{member}"


@pytest.mark.parametrize("module", MODULES)
def test_every_option_is_documented(module):
    for name, thing in public(module):
        text = thing.__doc__ or ""
        if not is_code(thing) or "Parameters\n" not in text:
            continue
        for option in inspect.signature(thing).parameters:
            said = rf"^ *[\w, *]*\b{option}\b[\w, *]*( :.*)?$"
            assert re.search(said, text, re.M), f"{module}.{name}: what is {option}?"


def test_every_public_object_is_in_the_reference():
    join_names = set()
    for page in API.glob("*.rst"):
        home = "no module"
        for line in page.read_text(encoding="utf-8").splitlines():
            if found := re.match(r"\.\. (?:current)?module:: (\S+)", line):
                home = found[1]
            elif found := re.match(r"   ([\w.]+)$", line):
                join_names.add(f"{home}.{found[1]}")
    shown = set()
    for name in join_names:  # what the reference names must be there
        module, _, last = name.rpartition(".")
        try:
            shown.add(id(getattr(importlib.import_module(module), last)))
        except (ImportError, AttributeError):
            assert page_of(name), f"the reference lists {name}, which does not exist"
    lacking = [
        f"{module}.{name}"
        for module in MODULES
        for name, thing in public(module)
        if is_code(thing) and id(thing) not in shown
    ]
    assert not lacking, "add them to docs/api/*.rst, or take them out of __all__"


def page_of(name):
    """Whether a name is a page of the reference: a toctree looks like a list of objects."""
    return (API / f"{name.rpartition('.')[2]}.rst").exists()
