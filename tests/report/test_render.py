"""One HTML file that needs nothing else."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest
import torch
from sklearn.datasets import load_wine

import fewer
from fewer.errors import InputError
from fewer.evidence import Evidence
from fewer.nn import MeasuredDecoder
from fewer.panel import Leaderboard, Score
from fewer.reconstructor import Reconstructor, sample_size
from fewer.report import brief, write

ODD = [
    "<b>bold</b>",
    "</script><script>document.title='broken'</script>",
    "quote \" and ' &amp;",
    "emoji 🧬",
    "{{ 7 * 7 }}",
    "<!--",
    "line\u2028apart",
    "back\\slash",
    "a" * 150,
    "",
    "عربي",
    "tab\tname",
    "plain",
]


@pytest.fixture(scope="module")
def panel():
    X = load_wine(as_frame=True).data
    X.columns = ODD
    X.iloc[::9, 3] = np.nan
    return fewer.select(X, 4, strategies=["search"], validation=0.3, random_state=0)


class Page(HTMLParser):
    """Elements, their text, and what they refer to."""

    def __init__(self, text):
        super().__init__()
        self.found, self.text, self.links, self.scripts = [], [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.found.append(tag)
        self.links += [value for name, value in attributes if name in ("src", "href")]

    def handle_data(self, data):
        (self.scripts if self.found and self.found[-1] == "script" else self.text).append(data)


@pytest.fixture(scope="module")
def text(panel, tmp_path_factory):
    return write(panel, tmp_path_factory.mktemp("page") / "x.html").read_text(encoding="utf-8")


def test_names_are_text_and_never_markup(text):
    page = Page(text)
    assert page.found.count("script") == 2
    assert "b" not in page.found[: page.found.index("main")]
    shown = "".join(page.text)
    for name in ODD:
        assert name.strip() in shown or name == ""
    assert "(column 9)" in shown
    data = json.loads(page.scripts[0])
    assert data["names"][:9] == ODD[:9]
    assert len(data["r2"]) == len(ODD)


def test_nothing_is_fetched(text):
    page = Page(text)
    assert all(link.startswith(("#", "data:")) for link in page.links)
    assert "default-src 'none'" in text
    assert "@import" not in text
    assert "url(" not in text


def test_structure_is_that_of_a_document(text):
    page = Page(text)
    assert text.startswith('<!doctype html>\n<html lang="en">')
    assert page.found.count("h1") == 1
    assert page.found.count("table") == page.found.count("caption")
    assert text.count("<th ") == text.count(" scope=")  # each heading says of what
    decoration = text.count('<svg class="fill">') + text.count(
        '<svg class="spark" aria-hidden="true">'
    )
    assert text.count("<svg ") == text.count('role="img"') + decoration
    assert "alt=" in text[text.index("<img") :]


def test_the_same_panel_gives_the_same_page(panel, text, tmp_path):
    assert write(panel, tmp_path / "y.html").read_text(encoding="utf-8") == text
    panel.save(tmp_path / "panel")
    loaded = fewer.Panel.load(tmp_path / "panel")
    assert loaded.report(tmp_path / "z.html").read_text(encoding="utf-8") == text


def test_title_and_folders(panel, tmp_path):
    path = write(panel, tmp_path / "new" / "x.html", title="<Wine> & more")
    assert "<title>&lt;Wine&gt; &amp; more</title>" in path.read_text(encoding="utf-8")
    assert os.listdir(path.parent) == ["x.html"]  # nothing temporary is left
    with pytest.raises(InputError, match="is a folder; name a file"):
        write(panel, tmp_path / "new")
    with pytest.raises(InputError, match="is not a folder; choose another path"):
        write(panel, path / "inside.html")


def test_a_panel_without_evidence_has_a_page(panel, tmp_path):
    bare = fewer.Panel(
        replace(panel.reconstructor, names=None),
        held_out=panel.held_out,
        leaderboard=panel.leaderboard,
        settings=panel.settings,
    )
    text = bare.report(tmp_path / "x.html").read_text(encoding="utf-8")
    assert "Chosen features" in text
    assert "Size and overlap" not in text


def test_rich_text_for_notebooks(panel):
    shown = panel._repr_html_()
    assert shown == brief(panel)
    assert "<script>document" not in shown
    assert f"{float(panel.held_out):.1%}" in shown
    assert "Greedy" in shown


def wide_panel(d, k):
    random = np.random.default_rng(0)
    rows = random.normal(size=(sample_size(d), d)).astype(np.float32)
    chosen = np.sort(random.choice(d, k, replace=False))
    near = random.integers(0, d, (k, 5))
    evidence = Evidence(
        created="2026-01-01T00:00:00+00:00",
        version="0",
        source={"kind": "numpy.ndarray", "rows": 100, "columns": d, "missing": 0.0, "held": 10},
        options={"k": k},
        explained={"units": {"panel": 0.5, "pca": 0.6, "greedy": 0.4, "random": 0.1}},
        curve={"k": [1, k], "units": {"panel": [0.1, 0.5]}},
        order=random.permutation(chosen),
        gains=np.sort(random.random(k))[::-1] / k,
        substitutes=near,
        losses=random.random((k, 5)).astype(np.float32),
        related=near,
        related_correlation=random.uniform(-1, 1, (k, 5)).astype(np.float32),
        represents=np.ones(k, dtype=np.int64),
        correlation=np.eye(min(k, 512), dtype=np.float32),
        errors=random.random(d),
        variance=np.ones(d),
        rows=rows,
        reconstructed=rows,
    )
    linear = torch.nn.Linear(k, d).double()
    return fewer.Panel(
        Reconstructor(
            np.asarray(chosen),
            MeasuredDecoder(linear, fill=torch.zeros(k, dtype=torch.float64)),
            d,
            np.array([f"ENSG{j:011d}" for j in range(d)], dtype=object),
        ),
        held_out=Score(0.5, random.random(d)),
        leaderboard=Leaderboard([{"strategy": "search", "error": 1.0, "seconds": 1.0}]),
        settings={"k": k, "decoder": "linear", "scale": "none"},
        evidence=evidence,
    )


@pytest.mark.parametrize("d", [10_000, 30_000])
def test_the_page_of_wide_data_stays_small(d, tmp_path):
    path = wide_panel(d, 200).report(tmp_path / "wide.html")
    assert path.stat().st_size < 5e6
    # the rest is made when it is asked for
    assert path.read_text(encoding="utf-8").count("<tr>") < 1000


def test_reports_need_no_torch():
    code = "import sys; from fewer.report import render, figures; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
