"""The README's example runs and prints what the README says it prints."""

import contextlib
import io
import re
from pathlib import Path

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
