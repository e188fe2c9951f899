"""Mutation testing: change the code in one place, and see whether a test notices.

    python -m benchmarks.mutants [MODULE ...] [--count N] [--seed S]     # make mutants

Of each module N places are drawn: comparisons, arithmetic, constants, conditions and return values.
The tests of the module then run in a forked process with one change, up to the first failure; a
mutant that no test notices survives, and is listed. `--hand` runs the hand-made mutants of `HAND`,
which once survived. Processes that tests start run the unchanged code.
"""

import argparse
import ast
import copy
import datetime
import importlib.abc
import importlib.machinery
import importlib.util
import io
import json
import os
import random
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "results" / "mutants.json"
# rewriting of assertions would load a module that is named on the command line, unchanged
OPTIONS = ["-x", "-q", "-p", "no:cacheprovider", "--assert=plain"]
# modules, and the tests that should notice when they are wrong, besides their docstrings
TESTS = {
    "constraints.py": ["tests/test_constraints.py", "tests/search/test_prices.py"],
    "search/dependence.py": ["tests/search/test_substitutes.py", "tests/selection/test_edit.py"],
    "search/eigen.py": ["tests/search/test_eigen.py", "tests/baselines/test_bounds.py"],
    "search/exchange.py": [
        "tests/search/test_exchange.py",
        "tests/search/test_prices.py",
        "tests/search/test_factored.py",
        "tests/search/test_rules.py",
    ],
    "search/greedy.py": [
        "tests/search/test_greedy.py",
        "tests/search/test_nested.py",
        "tests/search/test_factored.py",
        "tests/search/test_rules.py",
    ],
    "search/objective.py": [
        "tests/search/test_objective.py",
        "tests/search/test_objective_memory.py",
        "tests/search/test_swap.py",
        "tests/search/test_greedy.py",
    ],
    "search/robust.py": ["tests/search/test_robust.py"],
    "search/subset.py": ["tests/search/test_subset.py", "tests/search/test_rules.py"],
    "search/substitutes.py": ["tests/search/test_substitutes.py"],
    "search/swap.py": [
        "tests/search/test_swap.py",
        "tests/search/test_factored.py",
        "tests/search/test_rules.py",
        "tests/search/test_subset.py",
    ],
    "validation.py": ["tests/test_validation.py", "tests/test_estimate.py"],
    "reconstructor.py": ["tests/test_reconstructor.py", "tests/test_panel_files.py"],
    "nn/concrete.py": ["tests/nn/test_concrete.py", "tests/nn/test_autoencoder.py"],
    "panel.py": ["tests/test_panel.py", "tests/test_strangers.py", "tests/test_panel_files.py"],
    "data/csv.py": ["tests/data/test_csv.py", "tests/data/test_bad_files.py"],
}
SWAPPED: dict[type, type] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}
# mutants that survived the tests of the first version: module, text, replacement
HAND = [
    ("data/csv.py", 'max(",;\\t", key=', 'max(";,\\t", key='),
    ("data/csv.py", 'max(",;\\t", key=', 'max("\\t,;", key='),
    ("data/csv.py", 'decimal = ","', 'decimal = "."'),
    ("data/csv.py", 'if delimiter == ";" and any(', 'if delimiter == ";" and all('),
    ("data/csv.py", 'names = ["", *names]', "names = names"),
    ("data/csv.py", "        names[0] = LABEL\n", "        pass\n"),
    ("data/csv.py", "row = -int(layout.header)", "row = 0"),
    (
        "data/csv.py",
        "if row >= 0 and len(cells) != expected",
        "if row > 0 and len(cells) != expected",
    ),
    (
        "data/csv.py",
        "at, name in wanted if row >= 0 else ()",
        "at, name in wanted if row > 0 else ()",
    ),
    ("data/csv.py", '"\\t" if file_form(path) == ".tsv" else None', "None"),
    ("search/exchange.py", " + self.prices[: self.c]", ""),
    ("search/exchange.py", " - self.prices[self.S][..., None]", ""),
    (
        "search/exchange.py",
        "            self.objective = self.objective + self.prices[self.S].sum(1)\n",
        "            pass\n",
    ),
    ("constraints.py", "(self.cost_weight * self.d)", "self.cost_weight"),
    ("constraints.py", "* self.cost_weight * self.d if", "* self.cost_weight if"),
]


class _Mutation(ast.NodeTransformer):
    """Counts the places that can be changed, and changes one of them."""

    def __init__(self, at: int = -1) -> None:
        self.at, self.seen, self.what = at, 0, ""

    def _here(self) -> bool:
        self.seen += 1
        return self.seen - 1 == self.at

    def _note(self, node: Any, what: str) -> None:
        self.what = f"line {node.lineno}: {what}"

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        if isinstance(node.value, ast.Constant):
            return node  # a docstring
        return self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        if any(isinstance(one, ast.Name) and one.id == "__all__" for one in node.targets):
            return node
        return self.generic_visit(node)

    def visit_Raise(self, node: ast.Raise) -> ast.AST:
        return node  # texts of errors

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        if type(node.ops[0]) in SWAPPED and self._here():
            new = SWAPPED[type(node.ops[0])]
            self._note(node, f"{type(node.ops[0]).__name__} to {new.__name__}")
            node.ops[0] = new()
        return self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        text = isinstance(node.left, (ast.Constant, ast.JoinedStr)) and not isinstance(
            getattr(node.left, "value", ""), (int, float)
        )
        if type(node.op) in SWAPPED and not text and self._here():
            new = SWAPPED[type(node.op)]
            self._note(node, f"{type(node.op).__name__} to {new.__name__}")
            node.op = new()
        return self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.AST:
        if self._here():
            new = SWAPPED[type(node.op)]
            self._note(node, f"{type(node.op).__name__} to {new.__name__}")
            node.op = new()
        return self.generic_visit(node)

    def visit_If(self, node: ast.If) -> ast.AST:
        if self._here():
            self._note(node, "condition negated")
            node.test = ast.copy_location(ast.UnaryOp(ast.Not(), node.test), node.test)
        return self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        if isinstance(node.value, (int, float)) and self._here():
            new: Any = not node.value if isinstance(node.value, bool) else node.value + 1
            self._note(node, f"{node.value!r} to {new!r}")
            return ast.copy_location(ast.Constant(new), node)
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        if node.value is not None:
            node.value = self.visit(node.value)
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.body = [self.visit(part) for part in node.body]  # neither annotations nor decorators
        return node

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        node.body = [self.visit(part) for part in node.body]
        return node


def mutants(module: str, count: int, seed: int) -> list[tuple[ast.Module, str]]:
    """Changed modules, each with what was changed."""
    source = (ROOT / "src/fewer" / module).read_text(encoding="utf-8")
    tree, lines = ast.parse(source), source.splitlines()
    counter = _Mutation()
    counter.visit(copy.deepcopy(tree))
    places = random.Random(f"{module} {seed}").sample(range(counter.seen), min(count, counter.seen))
    found = []
    for at in sorted(places):
        one = _Mutation(at)
        changed = ast.fix_missing_locations(one.visit(copy.deepcopy(tree)))
        text = lines[int(one.what.split()[1].rstrip(":")) - 1].strip()
        found.append((changed, f"{one.what}: {text}"))
    return found


def hand_made(module: str) -> list[tuple[ast.Module, str]]:
    """The changes of `HAND` to a module."""
    source = (ROOT / "src/fewer" / module).read_text(encoding="utf-8")
    found = []
    for name, old, new in HAND:
        if name == module:
            if old not in source:
                raise SystemExit(f"{module} has no {old!r} any more; update HAND")
            changed = ast.parse(source.replace(old, new))
            found.append((changed, f"by hand: {old.strip()!r} to {new.strip()!r}"))
    return found


# -- running tests ---------------------------------------------------------------------------------


class _Changed(importlib.machinery.SourceFileLoader):
    """Loads a module from a changed syntax tree."""

    tree: ast.Module

    def get_code(self, fullname: str) -> CodeType:
        return compile(self.tree, self.path, "exec")


class _Finder(importlib.abc.MetaPathFinder):
    """Finds one changed module; all others are found as always."""

    def __init__(self, module: str, tree: ast.Module) -> None:
        self.name = "fewer." + module.removesuffix(".py").replace("/", ".")
        self.loader = _Changed(self.name, str(ROOT / "src/fewer" / module))
        self.loader.tree = tree

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self.name:
            return None
        return importlib.util.spec_from_file_location(
            fullname, self.loader.path, loader=self.loader
        )


def load_libraries(tests: list[str]) -> None:
    """Import what the tests need, and forget fewer and the tests: forked processes import them."""
    with redirect_stdout(io.StringIO()):
        pytest.main(["--collect-only", "-q", "-p", "no:cacheprovider", *tests])
    for name in list(sys.modules):
        if name.split(".")[0] in ("fewer", "tests"):
            del sys.modules[name]


def notices(module: str, tree: ast.Module | None, tests: list[str], seconds: float) -> bool:
    """Whether a test fails, or takes too long, where a module is changed."""
    child = os.fork()
    if child == 0:
        nowhere = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(nowhere, stream)
        failed = 1
        try:
            if tree is not None:
                sys.meta_path.insert(0, _Finder(module, tree))
            signal.alarm(int(seconds) + 1)
            failed = int(pytest.main([*OPTIONS, *tests]) != 0)
        finally:
            os._exit(failed)
    return os.waitpid(child, 0)[1] != 0


def main() -> None:
    """Run the command line, and add the outcome to results/mutants.json."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("modules", nargs="*", help=f"some of {', '.join(TESTS)}; all if none")
    parser.add_argument("--count", type=int, default=40, help="mutants per module")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--hand", action="store_true", help="run the hand-made mutants instead")
    given = parser.parse_args()
    os.chdir(ROOT)
    sys.path.insert(0, str(ROOT))
    sys.dont_write_bytecode = True
    results = json.loads(RESULTS.read_text()) if RESULTS.is_file() else {}
    for module in given.modules or TESTS:
        tests = [f"src/fewer/{module}", *TESTS[module]]
        todo = hand_made(module) if given.hand else mutants(module, given.count, given.seed)
        if not todo:
            continue
        load_libraries(tests)
        began = time.monotonic()
        if notices(module, None, tests, 600):
            raise SystemExit(f"the tests of {module} fail without any change")
        seconds = 20 + 5 * (time.monotonic() - began)
        survived = []
        for tree, what in todo:
            if not notices(module, tree, tests, seconds):
                survived.append(what)
                print(f"{module}: survived: {what}", flush=True)
        killed = len(todo) - len(survived)
        print(f"{module}: {killed} of {len(todo)} killed", flush=True)
        key = f"{module}, by hand" if given.hand else module
        results[key] = {
            "date": datetime.date.today().isoformat(),
            "mutants": len(todo),
            "killed": killed,
            "survived": survived,
        }
        RESULTS.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
