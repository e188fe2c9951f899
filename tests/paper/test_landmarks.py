"""The landmark experiment where rows are many, in its quick form; outcomes are checked."""

import numpy as np
import pytest

from fewer.datasets import load
from paper.landmarks import _matching, _shown
from paper.reproduce import reproduce


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr("paper.genes.QUICK", {"n": 1600, "d": 240})


@pytest.mark.slow
def test_synthetic_data_are_compared_with_random_genes(small, tmp_path):
    options = {"quick": True, "out": tmp_path, "data": ["geo-synthetic"]}
    (done,) = reproduce("landmarks", **options)
    errors = {name: found["22"][0] for name, found in done.result["errors"].items()}
    assert set(errors) == {"random", "greedy", "cae-gradient", "cae", "search"}
    assert errors["search"] == min(errors.values())
    assert errors["random"] == max(errors.values())
    assert done.result["genes_to_match_the_landmarks"]["search"] < 22
    page = (tmp_path / "quick" / "landmarks-geo-synthetic.md").read_text()
    assert "synthetic" in page
    assert "22 random\ngenes take their place" in page
    said = []
    reproduce("landmarks", **options, say=said.append)
    assert not any("seed" in line for line in said)  # all known by now


@pytest.mark.slow
def test_files_of_d_gex_are_used_where_they_are(tmp_path, monkeypatch):
    """The first 20 genes are the landmarks; the last 40 depend on one of them, but not linearly."""
    made = load("geo-synthetic", n=2000, d=160).X
    X = np.hstack([made, np.repeat(np.square(made[:, :1]), 40, axis=1)])
    monkeypatch.setenv("FEWER_DATA", str(tmp_path))
    for part, rows in (("tr", X[:1600]), ("va", X[1600:1800]), ("te", X[1800:])):
        np.save(tmp_path / f"bgedv2_X_{part}_float64.npy", rows[:, :20].astype(np.float64))
        np.save(tmp_path / f"bgedv2_Y_{part}_float64.npy", rows[:, 20:].astype(np.float64))
    (done,) = reproduce("landmarks", quick=True, out=tmp_path, data=["geo"])
    errors, hidden = done.result["errors"], done.result["hidden_layers"]
    assert list(errors["landmarks"]) == ["20"]
    assert errors["search"]["20"][0] < errors["landmarks"]["20"][0]
    assert hidden["landmarks"]["1"][0] < 0.95 * hidden["landmarks"]["0"][0]
    page = (tmp_path / "quick" / "landmarks-geo.md").read_text()
    assert "20 of them are L1000 landmarks" in page
    assert "synthetic" not in page


def test_how_many_genes_match():
    errors = {"30": [0.1], "20": [0.2], "10": [0.4]}
    assert _matching(errors, 0.3) == 15
    assert _shown(_matching(errors, 0.3), errors, 0.3) == "15"
    assert _shown(_matching(errors, 0.5), errors, 0.5) == "< 10"
    assert _shown(_matching(errors, 0.05), errors, 0.05) == "more"
