"""The command line as a user types it."""

import os
import subprocess
import sys

import numpy as np
import pytest
from matplotlib.image import imread
from typer.testing import CliRunner

from fewer import ConcreteAutoencoder, __version__
from fewer.cli import app
from fewer.cli.demo import choose_pixels
from fewer.errors import InputError


def test_help_answers_without_torch():
    code = (
        "import sys\n"
        "sys.modules['torch'] = sys.modules['sklearn'] = sys.modules['numpy'] = None\n"
        "sys.argv = ['fewer', '--help']\n"
        "from fewer.cli import main\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "demo" in done.stdout
    assert "Measure fewer features" in done.stdout


def test_version():
    assert CliRunner().invoke(app, ["--version"]).output == f"fewer {__version__}\n"


def test_the_package_runs_as_a_module():
    call = [sys.executable, "-m", "fewer", "--version"]
    done = subprocess.run(call, capture_output=True, text=True, check=True)
    assert done.stdout == f"fewer {__version__}\n"


def test_demo(tmp_path):
    picture = tmp_path / "deep" / "digits.png"
    done = CliRunner().invoke(app, ["demo", "--out", str(picture), "--quiet"])
    assert done.exit_code == 0, done.output
    assert "10 of 64 pixels chosen" in done.output
    for method in ("PCA", "concrete autoencoder", "greedy search", "random pixels"):
        assert method in done.output
    assert "digits.png" in done.output
    pixels = imread(picture)
    assert pixels.shape[1] > 1000
    assert pixels[..., :3].std() > 0.2  # not a blank page
    assert [path.name for path in picture.parent.iterdir()] == ["digits.png"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--out", "."], "is a folder; name a file in it"),
        (["--out", "a.docx"], "a.docx ends in '.docx'; use ."),
        (["--out", "notes.txt/a.png"], "notes.txt is not a folder; choose another"),
        (["--out", "locked/a.png"], "no permission to write to"),
        (["--seed", "-1"], "seed=-1 must be a whole number from 0 to 4294967295"),
        (["--seed", str(2**32)], "seed=4294967296 must be a whole number from 0 to"),
    ],
)
def test_a_bad_option_is_one_line_before_any_work(tmp_path, monkeypatch, options, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes.txt").write_text("text")
    (tmp_path / "locked").mkdir()
    allowed = os.access
    monkeypatch.setattr(  # root may write anywhere
        os, "access", lambda path, mode: "locked" not in str(path) and allowed(path, mode)
    )
    monkeypatch.setattr(ConcreteAutoencoder, "fit", lambda *rows: pytest.fail("it has begun"))
    done = CliRunner().invoke(app, ["demo", *options])
    assert done.exit_code == 1
    assert isinstance(done.exception, SystemExit)
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ")
    assert message in line
    told = CliRunner().invoke(app, ["--debug", "demo", *options])
    assert isinstance(told.exception, InputError)


def test_main_prints_errors_without_a_traceback(tmp_path):
    # both in one process, which takes seconds to import everything
    code = (
        "import sys\n"
        "from fewer.cli import main\n"
        "sys.argv = ['fewer', 'demo', '--out', '.']\n"
        "try:\n"
        "    main()\n"
        "except SystemExit as end:\n"
        "    print(end.code)\n"
        "print('debug', file=sys.stderr)\n"
        "sys.argv.insert(1, '--debug')\n"
        "main()\n"
    )
    call = [sys.executable, "-c", code]
    done = subprocess.run(call, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (1, "1\n")
    first, told = done.stderr.split("debug\n")
    assert first.startswith("error: ")
    assert first.count("\n") == 1
    assert "Traceback" in told


def test_an_internal_error_is_one_line_and_code_3(monkeypatch):
    def broken(*args, **options):
        raise ZeroDivisionError("no rows")

    monkeypatch.setattr("fewer.cli.demo.choose_pixels", broken)
    done = CliRunner().invoke(app, ["demo"])
    assert done.exit_code == 3
    (line,) = done.stderr.splitlines()
    assert "internal error (ZeroDivisionError: no rows); rerun with --debug" in line
    for options in (["--debug", "demo"], ["demo", "--debug"]):
        assert isinstance(CliRunner().invoke(app, options).exception, ZeroDivisionError)


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (OSError(28, "No space left on device", "all.csv"), "all.csv: No space left on device"),
        (MemoryError(), "out of memory; use fewer columns or fewer rows"),
    ],
)
def test_full_disks_and_memory_are_one_line_and_code_1(monkeypatch, error, line):
    def fail(*args, **options):
        raise error

    monkeypatch.setattr("fewer.cli.demo.choose_pixels", fail)
    done = CliRunner().invoke(app, ["demo"])
    assert (done.exit_code, done.stderr) == (1, f"error: {line}\n")


def test_ctrl_c_is_130_and_says_what_was_written(monkeypatch):
    def stopped(*args, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("fewer.cli.demo.choose_pixels", stopped)
    done = CliRunner().invoke(app, ["demo"])
    assert done.exit_code == 130
    assert "interrupted; nothing was written" in done.stderr


@pytest.mark.parametrize("seed", [0, 1])
def test_the_demo_ranks_methods_rightly(tmp_path, seed):
    demo = choose_pixels(tmp_path / "a.png", seed=seed)
    pca, ours, greedy, random = demo["errors"].values()
    assert pca < ours < random
    assert pca < greedy < random
    assert ours < 1.02 * greedy
    assert len(np.unique(demo["chosen"])) == 10
