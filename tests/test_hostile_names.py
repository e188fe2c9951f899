"""Names of features that are also code: for a browser, a terminal, a spreadsheet, a file system."""

import hashlib
import json
import re
import shutil
from base64 import b64encode

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import fewer
from fewer.cli._app import app

NAMES = [
    "<script>alert(1)</script>",
    "</script><img src=x onerror=alert(2)>",
    "=cmd|' /C calc'!A0",
    "\x1b[31mred\x1b]0;title\x07",
    "a\u202eb",
    "../../x",
    "{{7*7}}%s",
    "quo\"te'",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(60, 4)) @ rng.normal(size=(4, 8)), columns=NAMES)
    path = tmp_path_factory.mktemp("hostile")
    frame.to_csv(path / "x.csv", index=False)
    options = {"strategies": ["search"], "validation": 0.2, "random_state": 0}
    panel = fewer.select(frame, 7, **options)
    panel.save(path / "panel")
    panel.report(path / "panel.html")
    panel.reconstruct(path / "x.csv", out=path / "all.csv")
    return path


def test_names_survive_files(folder):
    assert fewer.data.open(folder / "x.csv").names == NAMES
    assert fewer.data.open(folder / "all.csv").names == NAMES
    assert fewer.Panel.load(folder / "panel").names == NAMES
    held = sorted(path.name for path in folder.iterdir())
    assert held == ["all.csv", "panel", "panel.html", "x.csv"]


def test_the_report_runs_its_own_script_only(folder):
    page = (folder / "panel.html").read_text(encoding="utf-8")
    assert not re.search(r"<script>alert|<img src=x", page)
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)[1]
    assert "unsafe" not in policy
    assert " style=" not in re.sub(r"<script.*?</script>|<style.*?</style>", "", page, flags=re.S)
    style = re.search(r"<style>(.*?)</style>", page, re.S)[1]
    digest = b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert f"style-src 'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none'")
    data = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)[1]
    assert NAMES[1] in json.dumps(json.loads(data), ensure_ascii=False)
    assert page.count("<script") == 2


def test_a_terminal_is_not_written_to_by_names(folder):
    data, out = str(folder / "x.csv"), str(folder / "other")
    options = ["--seed", "0", "--validation", "0.2", "--strategies", "search", "--quiet"]
    shown = [
        CliRunner().invoke(app, ["score", str(folder / "panel"), data]),
        CliRunner().invoke(app, ["select", data, "-k", "6", "--out", out, *options]),
        CliRunner().invoke(app, ["select", data, "-k", "6", "--include", "\x1b[31m", *options]),
    ]
    shutil.rmtree(out)
    assert [one.exit_code for one in shown] == [0, 0, 1]
    for one in shown:
        assert not re.search("[\x00-\x08\x0b-\x1f\u202e]", one.output)
    assert r"\x1b[31m" in shown[1].output + shown[2].output


def test_onnx_and_json_keep_names_as_data(folder, tmp_path):
    onnx = pytest.importorskip("onnx")
    panel = fewer.Panel.load(folder / "panel")
    fewer.export.export_onnx(panel, tmp_path / "panel.onnx")
    onnx.checker.check_model(onnx.load(tmp_path / "panel.onnx"))
    stored = json.loads(json.dumps(fewer.export.describe(panel), allow_nan=False))
    assert set(NAMES) >= {str(one) for one in panel.features}
    assert "../../x" in json.dumps(stored)
