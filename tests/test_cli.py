"""The command line as a user types it."""

import subprocess
import sys

import numpy as np
import pytest
from matplotlib.image import imread
from typer.testing import CliRunner

from fewer import __version__
from fewer.cli import app
from fewer.demo import run_demo


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


@pytest.mark.parametrize("seed", [0, 1])
def test_the_demo_ranks_methods_rightly(tmp_path, seed):
    demo = run_demo(tmp_path / "a.png", seed=seed)
    pca, ours, greedy, random = demo.errors.values()
    assert pca < ours < random
    assert pca < greedy < random
    assert ours < 1.02 * greedy
    assert len(np.unique(demo.chosen)) == 10
