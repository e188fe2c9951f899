"""Mutation testing: change the code in one place, and see whether a test notices.

    python -m benchmarks.mutants [MODULE ...] [--count N] [--seed S] [--processes P]
    python -m benchmarks.mutants --table

Of each module N places are drawn: comparisons, arithmetic, constants and conditions. Its tests run
once under coverage. For each mutant, a forked process then runs the tests that execute the changed
statement, fastest first, until one fails or takes too long; tests that would start after BUDGET
CPU seconds are not run. A mutant that no test notices survives, and is listed. `--hand` runs the
hand-made mutants of `HAND`, which once survived. Processes that tests start run the unchanged code.
Tests that fail without any change are named and left out. The outcome of each module is added to
results/mutants.json, or to another file of results, as soon as it is known.

Never changed, in any module: docstrings, annotations, default arguments, decorators and `__all__`;
texts (f-strings, `raise` statements, calls of `warn`); the values of seeds; `strict` of zip and
`copy` of astype, which change no value; constants of a module (upper case), which are sizes, times
and tolerances that only tune.
"""

import argparse
import ast
import copy
import datetime
import fcntl
import gc
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import random
import select
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import count as numbers
from itertools import zip_longest
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

import coverage
import pytest

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "results" / "mutants.json"
BUDGET = 15.0  # CPU seconds of tests per mutant
PAUSE = 0.02  # seconds between looks at the processes that run
# rewriting of assertions would load a module that is named on the command line, unchanged
OPTIONS = ["-q", "-m", "not slow", "-p", "no:cacheprovider", "--assert=plain"]
# modules, and the tests that should notice when they are wrong, besides their docstrings
TESTS = {
    "constraints.py": [
        "tests/test_constraints.py",
        "tests/search/test_prices.py",
        "tests/search/test_limits.py",
    ],
    "search/dependence.py": ["tests/search/test_substitutes.py", "tests/selection/test_edit.py"],
    "search/eigen.py": [
        "tests/search/test_eigen.py",
        "tests/search/test_eigen_shrinkage.py",
        "tests/baselines/test_bounds.py",
    ],
    "search/exchange.py": [
        "tests/search/test_exchange.py",
        "tests/search/test_prices.py",
        "tests/search/test_factored.py",
        "tests/search/test_rules.py",
        "tests/search/test_limits.py",
    ],
    "search/greedy.py": [
        "tests/search/test_greedy.py",
        "tests/search/test_nested.py",
        "tests/search/test_noise.py",
        "tests/search/test_factored.py",
        "tests/search/test_rules.py",
        "tests/search/test_limits.py",
    ],
    "search/objective.py": [
        "tests/search/test_objective.py",
        "tests/search/test_objective_memory.py",
        "tests/search/test_swap.py",
        "tests/search/test_greedy.py",
        "tests/search/test_noise.py",
        "tests/search/test_prices.py",
        "tests/search/test_factored.py",
        "tests/test_numbers.py",
    ],
    "search/robust.py": ["tests/search/test_robust.py", "tests/selection/test_robust.py"],
    "search/subset.py": [
        "tests/search/test_subset.py",
        "tests/search/test_rules.py",
        "tests/search/test_prices.py",
        "tests/search/test_limits.py",
    ],
    "search/substitutes.py": [
        "tests/search/test_substitutes.py",
        "tests/search/test_limits.py",
        "tests/selection/test_edit.py",
    ],
    "search/swap.py": [
        "tests/search/test_swap.py",
        "tests/search/test_walks.py",
        "tests/search/test_factored.py",
        "tests/search/test_rules.py",
        "tests/search/test_subset.py",
        "tests/search/test_limits.py",
    ],
    "validation.py": [
        "tests/test_validation.py",
        "tests/test_estimate.py",
        "tests/search/test_noise.py",
        "tests/selection/test_noise.py",
        "tests/selection/test_wide.py",
    ],
    "reconstructor.py": [
        "tests/test_reconstructor.py",
        "tests/test_panel_files.py",
        "tests/test_panel.py",
        "tests/test_rows.py",
    ],
    "nn/concrete.py": ["tests/nn/test_concrete.py", "tests/nn/test_autoencoder.py"],
    "panel.py": [
        "tests/test_panel.py",
        "tests/test_strangers.py",
        "tests/test_panel_files.py",
        "tests/test_display.py",
    ],
    "data/csv.py": [
        "tests/data/test_csv.py",
        "tests/data/test_bad_files.py",
        "tests/data/test_open.py",
    ],
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
    ("data/csv.py", "commas > points", "commas < points"),
    ("data/csv.py", 'names = ["", *names]', "names = names"),
    ("data/csv.py", "        names[0] = LABEL\n", "        pass\n"),
    ("data/csv.py", "row = -int(layout.header)", "row = 0"),
    (
        "data/csv.py",
        "if row >= 0 and len(found) != expected",
        "if row > 0 and len(found) != expected",
    ),
    (
        "data/csv.py",
        "at, name in wanted if row >= 0 and",
        "at, name in wanted if row > 0 and",
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


@dataclass
class Mutant:
    """A changed module, what was changed, and the lines of the changed statement."""

    tree: ast.Module
    what: str
    lines: range | None = None  # None: any test may notice
    on_import: bool = True  # whether the change takes effect when the module is imported


class _Mutation(ast.NodeTransformer):
    """Counts the places that can be changed, and changes one of them."""

    def __init__(self, at: int = -1) -> None:
        self.at, self.seen, self.what = at, 0, ""
        self.lines: range | None = None
        self.on_import = True
        self._statement: Any = None
        self._functions: list[ast.FunctionDef] = []

    def _here(self) -> bool:
        self.seen += 1
        return self.seen - 1 == self.at

    def _note(self, node: Any, what: str) -> None:
        self.what = f"line {node.lineno}: {what}"
        self.on_import = not self._functions
        # a function that keeps its results runs in the first test only, but matters in others
        kept = any(_kept(f) for f in self._functions)
        if self._functions and not kept:
            first, last = self._statement.lineno, self._statement.end_lineno
            if body := getattr(self._statement, "body", None):
                last = max(first, body[0].lineno - 1)
            self.lines = range(first, last + 1)

    def visit(self, node: ast.AST) -> Any:
        if not isinstance(node, ast.stmt):
            return super().visit(node)
        outer, self._statement = self._statement, node
        try:
            return super().visit(node)
        finally:
            self._statement = outer

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        if isinstance(node.value, ast.Constant):
            return node  # a docstring
        return self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        names = [one for target in node.targets for one in ast.walk(target)]
        if not self._functions and any(
            isinstance(one, ast.Name) and (one.id == "__all__" or one.id.isupper()) for one in names
        ):
            return node
        return self.generic_visit(node)

    def visit_Raise(self, node: ast.Raise) -> ast.AST:
        return node

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.AST:
        return node

    def visit_keyword(self, node: ast.keyword) -> ast.AST:
        if node.arg in ("seed", "strict", "copy") and isinstance(node.value, ast.Constant):
            return node
        return self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        if name == "warn":
            return node
        if name in ("manual_seed", "default_rng"):
            node.func = self.visit(node.func)
            return node
        return self.generic_visit(node)

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
        new: Any = node.value
        if isinstance(node.value, (int, float)):
            new = not node.value if isinstance(node.value, bool) else node.value + 1
        if new != node.value and self._here():  # 1e300 + 1 is 1e300
            self._note(node, f"{node.value!r} to {new!r}")
            return ast.copy_location(ast.Constant(new), node)
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        if node.value is not None:
            node.value = self.visit(node.value)
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        self._functions.append(node)
        node.body = [self.visit(part) for part in node.body]
        self._functions.pop()
        return node

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        node.body = [self.visit(part) for part in node.body]
        return node


def _kept(function: ast.FunctionDef) -> bool:
    return any(ast.unparse(one).split(".")[-1] == "cache" for one in function.decorator_list)


def mutants(module: str, count: int, seed: int) -> list[Mutant]:
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
        found.append(Mutant(changed, f"{one.what}: {text}", one.lines, one.on_import))
    return found


def hand_made(module: str) -> list[Mutant]:
    """The changes of `HAND` to a module."""
    source = (ROOT / "src/fewer" / module).read_text(encoding="utf-8")
    found = []
    for name, old, new in HAND:
        if name == module:
            if old not in source:
                raise SystemExit(f"{module} has no {old!r} any more; update HAND")
            changed = ast.parse(source.replace(old, new))
            found.append(Mutant(changed, f"by hand: {old.strip()!r} to {new.strip()!r}"))
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


def _code(code: CodeType) -> Iterator[CodeType]:
    """All code objects of a module, outermost first."""
    yield code
    for part in code.co_consts:
        if isinstance(part, CodeType):
            yield from _code(part)


def changes(module: str, tree: ast.Module) -> dict[FunctionType, CodeType]:
    """The new code of functions of a module that has been imported already."""
    path = ROOT / "src/fewer" / module
    before = compile(path.read_text(encoding="utf-8"), path, "exec")
    pairs = zip(_code(before), _code(compile(tree, path, "exec")), strict=True)
    new = {old: changed for old, changed in pairs if old != changed}
    functions = [one for one in gc.get_objects() if type(one) is FunctionType]
    return {one: new[one.__code__] for one in functions if one.__code__ in new}


class Slots:
    """How many processes may run tests at once, shared by the processes of all modules.

    A pipe holds a byte for each process that may still start.
    """

    def __init__(self, processes: int) -> None:
        self.free, self.give = os.pipe()
        os.set_blocking(self.free, False)
        os.write(self.give, bytes(processes))

    @classmethod
    def inherited(cls, ends: Sequence[int]) -> "Slots":
        """Those of the process that started this one."""
        found = cls.__new__(cls)
        found.free, found.give = ends
        return found

    def map(self, works: Sequence[Callable[[], bool]]) -> list[bool]:
        """What each work returns in a forked process without output; True if a signal ends it."""
        outcomes = [False] * len(works)
        waiting, running = list(range(len(works)))[::-1], dict[int, int]()
        try:
            while waiting or running:
                ready = select.select([self.free] * bool(waiting), [], [], PAUSE)[0]
                if ready and _read(self.free):
                    at = waiting.pop()
                    running[_forked(works[at])] = at
                for child in list(running):
                    ended, status = os.waitpid(child, os.WNOHANG)
                    if ended:
                        at = running.pop(child)
                        os.write(self.give, b"0")
                        outcomes[at] = _outcome(status)
        finally:
            for child in running:  # after an error
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
                os.write(self.give, b"0")
        return outcomes


def _read(end: int) -> bool:
    """Whether there was a byte to take; another process may have been faster."""
    try:
        return bool(os.read(end, 1))
    except BlockingIOError:
        return False


def _forked(work: Callable[[], bool]) -> int:
    child = os.fork()
    if child == 0:
        real, nowhere = os.dup(2), os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(nowhere, stream)
        code = 2
        try:
            code = int(work())
        except BaseException:
            os.write(real, traceback.format_exc().encode())
        finally:
            os._exit(code)
    return child


def _outcome(status: int) -> bool:
    if os.WIFEXITED(status) and os.WEXITSTATUS(status) not in (0, 1):
        raise RuntimeError("error while running tests")  # of this program, not of a test
    return status != 0


def _cpu() -> float:
    """CPU seconds of this process and of those that it started and that have ended."""
    return sum(os.times()[:4])


class _Tests:
    """pytest's plugin: times and lines of the tests of a module, and which mutants they notice."""

    def __init__(self, module: str, todo: list[Mutant], folder: Path, slots: Slots) -> None:
        self.module, self.todo, self.folder, self.slots = module, todo, folder, slots
        self.ids: list[str] = []  # of the tests to run for a change that any may notice
        self.left_out: list[int] = []  # tests that fail without any change
        self.failing: list[str] = []  # their names, and files that cannot be imported
        self.done = False
        self.survived: list[Mutant] = []
        self.failed = False
        self.watch: coverage.Coverage | None = None
        self.context = ""  # a test, or a fixture that several share
        self.seconds: dict[str, float] = {}  # that each of these takes
        self.lines: dict[str, set[int]] = {}  # that each of these executes
        self.inner = 0.0  # seconds in fixtures so far

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.failing.append(report.nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.failed |= report.failed

    # -- the first run, unchanged: which lines does every test execute?

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(
        self, fixturedef: Any, request: pytest.FixtureRequest
    ) -> Generator[None, Any, Any]:
        if fixturedef.scope == "function" or self.watch is None:
            return (yield)
        name = f"{fixturedef.baseid}::{fixturedef.argname}"
        outer, self.context = self.context, name
        self.watch.switch_context(name)
        began, inner = _cpu(), self.inner
        try:
            return (yield)
        finally:
            took = _cpu() - began
            self.seconds[name] = self.seconds.get(name, 0.0) + took - (self.inner - inner)
            self.inner = inner + took
            self.context = outer
            self.watch.switch_context(outer)

    def _measure(self, items: list[pytest.Item]) -> bool:
        path = str(ROOT / "src/fewer" / self.module)
        self.watch = coverage.Coverage(data_file=None, config_file=False, include=[path])
        self.watch.start()
        for at, item in enumerate(items):
            self.context = str(at)
            self.watch.switch_context(self.context)
            began, inner, self.failed = _cpu(), self.inner, False
            following = items[at + 1] if at + 1 < len(items) else None
            item.ihook.pytest_runtest_protocol(item=item, nextitem=following)
            self.seconds[str(at)] = _cpu() - began - (self.inner - inner)
            if self.failed:
                self.left_out.append(at)
        self.watch.stop()
        lines: dict[str, list[int]] = {}
        for line, contexts in self.watch.get_data().contexts_by_lineno(path).items():
            for one in contexts:
                lines.setdefault(one, []).append(line)
        found = self.seconds, lines, self.left_out
        (self.folder / "tests.json").write_text(json.dumps(found))
        return False

    # -- the other runs: tests in order, up to the first that fails

    def _order(self, items: list[pytest.Item], lines: range | None) -> list[int]:
        """Tests that execute a line, cheapest first; those that share a slow fixture together."""
        units: dict[str, list[int]] = {}
        fixtures: dict[str, set[str]] = {}
        for at, item in enumerate(items):
            if at in self.left_out:
                continue
            info: Any = getattr(item, "_fixtureinfo", None)
            used = {
                f"{one.baseid}::{one.argname}"
                for several in (info.name2fixturedefs.values() if info else ())
                for one in several
            } & set(self.seconds)
            executed = self.lines.get(str(at), set()).union(
                *(self.lines.get(one, set()) for one in used)
            )
            if lines is None or not executed.isdisjoint(lines):
                slow = any(self.seconds[one] > 0.3 for one in used)
                key = str(item.path) if slow else str(at)
                units.setdefault(key, []).append(at)
                fixtures.setdefault(key, set()).update(used)
        costs = {
            key: sum(self.seconds[one] for one in [*map(str, own), *fixtures[key]])
            for key, own in units.items()
        }
        chosen, spent = [], 0.0
        for key in sorted(units, key=costs.__getitem__):
            spent += sum(self.seconds[one] for one in fixtures[key])
            for at in sorted(units[key], key=lambda at: self.seconds[str(at)]):
                if spent <= BUDGET:
                    chosen.append(at)
                spent += self.seconds[str(at)]
        return chosen

    def _fails(
        self, items: list[pytest.Item], order: list[int], changed: dict[FunctionType, CodeType]
    ) -> bool:
        for function, code in changed.items():
            function.__code__ = code
        config: Any = items[0].config
        # not the folder of other processes, which may run the same tests at the same time
        config._tmp_path_factory._basetemp = Path(tempfile.mkdtemp(dir=self.folder))
        for at, following in zip_longest(order, order[1:]):
            took = self.seconds[str(at)]
            signal.setitimer(signal.ITIMER_VIRTUAL, 10 + 10 * took)  # in CPU time
            signal.setitimer(signal.ITIMER_REAL, 120 + 30 * took)
            item = items[at]
            item.ihook.pytest_runtest_protocol(
                item=item, nextitem=None if following is None else items[following]
            )
            if self.failed:
                return True
        return False

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        items = session.items
        if self.slots.map([lambda: self._measure(items)])[0]:
            pytest.exit("a test ended the process", returncode=1)
        self.seconds, lines, self.left_out = json.loads((self.folder / "tests.json").read_text())
        self.lines = {one: set(found) for one, found in lines.items()}
        self.failing += [items[at].nodeid for at in self.left_out]
        for test in self.failing:
            print(f"{self.module}: fails without any change: {test}", flush=True)
        order = self._order(items, None)
        self.ids = [items[at].nodeid for at in order]
        todo = [mutant for mutant in self.todo if not mutant.on_import]
        works = [partial(self._fails, items, order, {})]
        for mutant in todo:
            changed = changes(self.module, mutant.tree)
            if not changed:
                raise RuntimeError(f"no function was changed: {mutant.what}")
            works.append(partial(self._fails, items, self._order(items, mutant.lines), changed))
        unchanged, *noticed = self.slots.map(works)
        if unchanged:
            pytest.exit("a test fails without any change", returncode=1)
        self.survived = [one for one, seen in zip(todo, noticed, strict=True) if not seen]
        self.done = True
        return True


def _fails_imported(module: str, tree: ast.Module | None, options: list[str]) -> bool:
    """Whether a test fails after the changed module has been imported."""
    if tree is not None:
        sys.meta_path.insert(0, _Finder(module, tree))
    signal.setitimer(signal.ITIMER_VIRTUAL, 10 + 5 * BUDGET)
    signal.setitimer(signal.ITIMER_REAL, 1800)  # other processes may be using the machine
    return pytest.main([*options, "-x"]) != 0


def survivors(module: str, todo: list[Mutant], slots: Slots) -> tuple[list[Mutant], list[str]]:
    """Mutants that no test of a module notices, and the tests that fail without any change."""
    with tempfile.TemporaryDirectory() as name:
        folders = (f"--basetemp={name}/{number}" for number in numbers())
        tests = _Tests(module, todo, Path(name), slots)
        options = [*OPTIONS, next(folders), f"src/fewer/{module}", *TESTS[module]]
        pytest.main(options, plugins=[tests])
        if not tests.done:
            raise SystemExit(f"the tests of {module} fail without any change")
        survived = tests.survived
        if others := [one for one in todo if one.on_import]:
            # forked processes import fewer and its tests again, but not other libraries
            for loaded in list(sys.modules):
                if loaded.split(".")[0] in ("fewer", "tests"):
                    del sys.modules[loaded]
            works = [
                partial(_fails_imported, module, tree, [*OPTIONS, next(folders), *tests.ids])
                for tree in (None, *(one.tree for one in others))
            ]
            unchanged, *noticed = slots.map(works)
            if unchanged:
                raise SystemExit(f"the tests of {module} fail without any change")
            survived += [one for one, seen in zip(others, noticed, strict=True) if not seen]
    return [one for one in todo if one in survived], tests.failing


def _record(results: Path, key: str, outcome: dict[str, Any]) -> None:
    """Add an outcome to the results, which other processes may be writing to as well."""
    with results.open("a+", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        known = json.loads(file.read() or "{}")
        known[key] = outcome
        file.truncate(0)
        file.write(json.dumps(known, indent=1, sort_keys=True) + "\n")


def table(results: Path) -> str:
    """All seeds of each module together, as a table."""
    found: dict[str, list[int]] = {}
    for key, outcome in json.loads(results.read_text(encoding="utf-8")).items():
        module, how = key.split(", ")
        name = f"`{module}`" + (", by hand" if how == "by hand" else "")
        total = found.setdefault(name, [0, 0])
        total[0] += outcome["mutants"]
        total[1] += outcome["killed"]
    drawn = [row for name, row in found.items() if "by hand" not in name]
    found["drawn at random"] = [sum(column) for column in zip(*drawn, strict=True)]
    rows = [
        f"| {name} | {of} | {killed} | {killed / of:.0%} |" for name, (of, killed) in found.items()
    ]
    return "\n".join(["| module | mutants | killed | |", "| --- | ---: | ---: | ---: |", *rows])


def main() -> None:
    """Run the command line, and add the outcome to the results."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("modules", nargs="*", help=f"some of {', '.join(TESTS)}; all if none")
    parser.add_argument("--count", type=int, default=25, help="mutants per module")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--hand", action="store_true", help="run the hand-made mutants instead")
    parser.add_argument("--processes", type=int, default=1, help="that run tests at once")
    parser.add_argument("--results", type=Path, default=RESULTS, help="a JSON file to add to")
    parser.add_argument("--table", action="store_true", help="print the results, and run nothing")
    parser.add_argument("--slots", type=int, nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    results = given.results.absolute()
    if given.table:
        print(table(results))
        return
    os.chdir(ROOT)
    sys.path.insert(0, str(ROOT))
    sys.dont_write_bytecode = True
    modules = given.modules or list(TESTS)
    slots = Slots.inherited(given.slots) if given.slots else Slots(given.processes)
    if len(modules) > 1:  # each in a process of its own
        ends = slots.free, slots.give
        rest = ["--count", str(given.count), "--seed", str(given.seed), *["--hand"] * given.hand]
        rest += ["--results", str(results), "--slots", *map(str, ends)]

        def run(module: str) -> int:
            command = [sys.executable, "-m", "benchmarks.mutants", module, *rest]
            return subprocess.run(command, pass_fds=ends, check=False).returncode

        with ThreadPoolExecutor(given.processes) as pool:
            codes = list(pool.map(run, modules))
        if failed := [one for one, code in zip(modules, codes, strict=True) if code]:
            raise SystemExit(f"no outcome for {', '.join(failed)}")
        return
    for module in modules:
        todo = hand_made(module) if given.hand else mutants(module, given.count, given.seed)
        if not todo:
            continue
        began = _cpu()
        survived, failing = survivors(module, todo, slots)
        for one in survived:
            print(f"{module}: survived: {one.what}", flush=True)
        killed = len(todo) - len(survived)
        seconds = _cpu() - began
        print(f"{module}: {killed} of {len(todo)} killed, {seconds:.0f} CPU seconds", flush=True)
        outcome: dict[str, Any] = {
            "date": datetime.date.today().isoformat(),
            "mutants": len(todo),
            "killed": killed,
            "survived": [one.what for one in survived],
        }
        if failing:
            outcome["fail without any change"] = failing
        key = f"{module}, {'by hand' if given.hand else f'seed {given.seed}'}"
        _record(results, key, outcome)


if __name__ == "__main__":
    main()
