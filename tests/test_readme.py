"""The README's example runs and prints what the README shows; its tables match the results."""

import contextlib
import io
import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch

README = Path(__file__).parents[1] / "README.md"


def test_the_example_prints_what_is_shown(tmp_path, monkeypatch):
    text = README.read_text(encoding="utf-8")
    code, shown = re.search(r"```python\n(.*?)```\s+```text\n(.*?)```", text, re.S).groups()
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(7)  # the outcome must not depend on the caller's random state
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, "README.md", "exec"), {})
    assert printed.getvalue() == shown


def test_links_lead_somewhere():
    text = README.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#]+)\)", text):
        assert target.startswith("http") or (README.parent / target).exists(), target


def test_no_figure_was_left_out():
    text = README.read_text(encoding="utf-8")
    assert not re.findall(r"\b[A-Z]+_(?:ERROR|SECONDS)\b|\bOUTPUT\b", text)


ROWS = {
    "Laplacian score": "laplacian",
    "MCFS": "mcfs",
    "UDFS": "udfs",
    "AEFS": "aefs",
    "PFA": "pfa",
    "largest variance": "variance",
    "random features": "random",
    "pivoted QR": "qr",
    "greedy search": "greedy",
    "concrete selector alone, joint training": "cae-gradient",
    "concrete selector alone, closed form": "cae",
    "`ConcreteAutoencoder(k)`": "autoencoder-swaps",
    "`ColumnSubset(k)`": "column-subset",
    "`fewer.select(X, k)`": "select",
    "`fewer.select`": "select",
    "PCA (reference)": "pca",
}


@pytest.mark.parametrize(("page", "rows"), [("README.md", 7), ("docs/comparison.md", 15)])
def test_the_comparison_shows_what_the_full_run_found(page, rows):
    scores = json.loads((README.parent / "results" / "table1.json").read_text())["scores"]
    text = (README.parent / page).read_text(encoding="utf-8")
    lines = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("|")]
    shown = {cells[0].strip(): cells[1:] for cells in lines if cells[0].strip() in ROWS}
    assert len(shown) == rows
    for label, cells in shown.items():
        for data, cell in zip(scores, cells, strict=True):
            errors = [one["error"] for one in scores[data][ROWS[label]]]
            assert cell.strip(" *") == f"{1000 * np.mean(errors):.2f}", (label, data)


def test_swaps_make_the_autoencoder_as_good_as_the_search():
    scores = json.loads((README.parent / "results" / "table1.json").read_text())["scores"]
    for data, cells in scores.items():
        ours, search = (
            np.mean([one["error"] for one in cells[name]])
            for name in ("autoencoder-swaps", "column-subset")
        )
        assert ours <= search * (1 + 1e-9), data
