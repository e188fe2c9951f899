"""A short run of the mutation testing that `make mutants` does at length."""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROGRAM = """
import ast, json, sys
from benchmarks.mutants import Mutant, Slots, mutants, survivors
module = "search/dependence.py"
tree = ast.parse(open("src/fewer/" + module).read())
function = next(node for node in tree.body if isinstance(node, ast.FunctionDef))
function.body[0] = ast.Expr(ast.Constant("Other words."))
harmless = Mutant(ast.fix_missing_locations(tree), "other words", on_import=False)
survived, failing = survivors(module, [*mutants(module, 2, 3), harmless], Slots(1))
open(sys.argv[1], "w").write(json.dumps([[one.what for one in survived], failing]))
"""


def test_changes_of_results_are_noticed_and_others_are_not(tmp_path):
    ours = ("PYTEST_", "COVERAGE_")  # what tells a process that these tests are measured
    env = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "found.json")]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    survived, failing = json.loads((tmp_path / "found.json").read_text(encoding="utf-8"))
    assert survived == ["other words"]
    assert failing == []
