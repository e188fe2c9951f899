"""Help, completion and exit codes, as a shell meets them."""

import contextlib
import json
import os
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from fewer.cli import app

COMMANDS = (
    "demo", "inspect", "select", "impute", "check", "predict", "score", "curve", "compare",
    "report", "export", "serve",
)  # fmt: skip
CODE = "import sys; sys.argv[0] = 'fewer'; from fewer.cli import main; main()"


def shell(*words, **environment):
    return subprocess.run(
        [sys.executable, "-c", CODE, *map(str, words)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "COLUMNS": "200", **environment},
    )


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_every_option_explained(command):
    done = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "200"})
    assert done.exit_code == 0
    assert "--json" in done.output
    options = [part for part in app.registered_commands if part.name == command]
    assert len(options) == 1
    # a line with an option says something about it after its type
    lines = [line for line in done.output.splitlines() if line.startswith("│ ") and "--" in line]
    assert lines
    for line in lines:
        assert len(line.strip("│ ").split()) > 2, line


def test_help_of_all_commands_needs_nothing_heavy():
    code = (
        "import sys\n"
        "for name in ('torch', 'sklearn', 'numpy', 'pyarrow', 'matplotlib'):\n"
        "    sys.modules[name] = None\n"
        "from typer.testing import CliRunner\n"
        "from fewer.cli import app\n"
        f"for name in {COMMANDS}:\n"
        "    done = CliRunner().invoke(app, [name, '--help'])\n"
        "    assert done.exit_code == 0, done.output\n"
        "print(CliRunner().invoke(app, ['--help']).output)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Exit codes: 0 success; 1" in done.stdout
    for name in COMMANDS:
        assert name in done.stdout


def test_exit_codes_of_the_real_program(folder):
    assert shell("--version").returncode == 0
    assert shell("inspect").returncode == 2
    assert shell("nothing").returncode == 2
    assert shell("inspect", "train.csv", "--speed", "9").returncode == 2
    # 1 of an error and 3 of a defect: tests/cli/test_app.py


def test_json_is_one_document_and_nothing_else(folder):
    done = CliRunner().invoke(app, ["inspect", "few.csv", "--json"])
    assert json.loads(done.stdout)["rows"] == 4
    assert done.stderr == ""  # no progress either: this is no terminal


def test_a_closed_pipe_is_not_an_error(folder):
    code = f'{sys.executable} -c "{CODE}" inspect few.csv --quiet | true'
    done = subprocess.run(code, shell=True, capture_output=True, text=True, check=False)
    assert done.stderr == ""


def complete(words):
    line = " ".join(words)
    done = shell(_FEWER_COMPLETE="complete_bash", COMP_WORDS=line, COMP_CWORD=str(len(words) - 1))
    return done.stdout.split()


def test_the_shell_completes_commands_panels_and_files(folder, made_panel):
    found = {"select", "score", "serve", "stability", "substitutes"}
    assert set(complete(["fewer", "s"])) == found
    (folder / "notes.docx").write_text("x")
    assert set(complete(["fewer", "inspect", "t"])) == {
        "train.csv", "train.parquet", "test.csv", "test.parquet",
    }  # fmt: skip
    (folder / "plain").mkdir()
    (folder / "panel").symlink_to(made_panel)
    assert complete(["fewer", "report", "p"]) == ["panel/", "plain/"]
    found = complete(["fewer", "impute", f"{made_panel.parent}/pa"])
    assert found == [f"{made_panel}/"]
    assert "--interval" in complete(["fewer", "impute", "--i"])


def test_progress_is_on_stderr_and_only_on_a_terminal(folder):
    pty = pytest.importorskip("pty")
    ours, theirs = pty.openpty()
    words = ["select", "train.csv", "-k", "3", "--strategies", "search", "--device", "cpu"]
    done = subprocess.Popen(
        [sys.executable, "-c", CODE, *words],
        stdout=subprocess.PIPE,
        stderr=theirs,
        env={**os.environ, "TERM": "xterm"},
    )
    os.close(theirs)
    seen = b""
    with contextlib.suppress(OSError):  # what is read from a terminal that is gone
        while part := os.read(ours, 4096):
            seen += part
    out = done.communicate()[0].decode()
    os.close(ours)
    assert done.returncode == 0
    assert "\x1b" not in out
    assert "━━━" not in out
    assert "━━━" in seen.decode()
    assert "reading" in seen.decode()
    assert "writing" in seen.decode()  # the first and the last are drawn however short the work
    assert "about 0 s" not in seen.decode()
    assert "warning: " in seen.decode()
