"""Acquisitions of diffusion MRI, in a small form; outcomes are checked."""

import json

import numpy as np
import pytest

from fewer.datasets import load
from paper.case import make_case
from paper.diffusion import COMPARED, _tissue, parts, run
from paper.experiment import Context, ResultCache
from paper.reproduce import _parts, reproduce

SMALL = {"QUICK_ROWS": 500, "QUICK_TISSUES": ((3, 40),), "HIDDEN": (16,), "QUICK_EPOCHS": 3}


FEW = {"COMPARED": ("random", "evenly-spread", "column-subset"), "QUICK_SIZES": (3, 12)}


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """Without the methods that train networks to choose: folder, scores, what a second run said.

    The parts are computed one by one, as by parallel processes.
    """
    out = tmp_path_factory.mktemp("diffusion")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (SMALL | FEW).items():
            patch.setattr(f"paper.diffusion.{name}", value)
        cache, said = ResultCache(out / "quick" / "cells"), []
        for part in _parts(["diffusion"], Context("clean", True, cache))[::-1]:
            run(Context("clean", True, cache, part=part[1]))
        (found,) = reproduce("diffusion", quick=True, out=out, say=said.append)
    return out / "quick", found.result["tissues"]["3 compartments, 40 acquisitions"], said


def test_more_and_better_acquisitions_tell_more(done):
    scores = done[1]
    assert list(scores) == ["random", "evenly-spread", "column-subset", "all"]
    (few,), (many,) = scores["column-subset"].values()
    assert many["error"] < few["error"] < scores["random"]["3"][0]["error"]
    assert many["estimated"] < few["estimated"]
    (bound,) = scores["all"]["12"]
    assert bound["estimated"] < many["estimated"]
    assert "error" not in bound
    assert scores["evenly-spread"]["3"][0]["columns"] == [0, 1, 2]
    assert np.mean(list(few["tissue"].values())) == pytest.approx(few["estimated"])
    assert few["estimated"] < 1


def test_seeds_are_finished_one_by_one_and_long_work_begins_first(tmp_path):
    found = parts(Context("clean", False, ResultCache(tmp_path), seeds=2, part=7))
    assert len(found) == len(set(found)) == 24
    assert [part.seed for part in found] == [0] * 12 + [1] * 12
    assert found[0] == (3, 1300, 0, 100)
    assert found[11] == (2, 400, 0, 10)


def test_the_page_and_its_origin(done):
    folder, _, said = done
    page = (folder / "diffusion.md").read_text()
    assert "## 3 compartments, 40 acquisitions" in page
    assert "| Test error of the signals x 1000 | " in page
    assert "free fraction" in page
    assert "![diffusion](diffusion.png)" in page
    (data,) = json.loads((folder / "diffusion.json").read_text())["provenance"]["data"]
    assert data == "diffusion-mri rows=500 features=40 compartments=3 seed=0"
    assert not any("·" in line for line in said)  # the parts are all there is


@pytest.mark.slow
def test_every_method_chooses_acquisitions(tmp_path, monkeypatch):
    for name, value in (SMALL | {"QUICK_SIZES": (6,)}).items():
        monkeypatch.setattr(f"paper.diffusion.{name}", value)
    (done,) = reproduce("diffusion", quick=True, out=tmp_path)
    (scores,) = done.result["tissues"].values()
    assert list(scores) == [*COMPARED, "all"]
    for name in COMPARED:
        assert len(set(scores[name]["6"][0]["columns"])) == 6, name
    assert scores["select"]["6"][0]["error"] < scores["random"]["6"][0]["error"]


def test_tissue_parameters_are_standardised_and_have_no_axis():
    case = make_case(load("diffusion-mri", rows=300, features=20), scaling="none")
    names, fit, test = _tissue(case)
    assert names == ["intra_fraction", "diffusivity", "t2_intra", "t2_extra", "t1"]
    np.testing.assert_allclose(fit.mean(axis=0), 0, atol=1e-12)
    np.testing.assert_allclose(fit.std(axis=0), 1)
    t1 = case.data.parameters["t1"]
    np.testing.assert_allclose(np.corrcoef(test[:, 4], t1[case.split.test])[0, 1], 1)
    np.testing.assert_array_equal(case.test, case.data.X[case.split.test])  # own units
