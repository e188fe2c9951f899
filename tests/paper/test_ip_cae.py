"""The protocol of IP-CAE, in a small form; outcomes are checked."""

import pytest

from paper.ip_cae import COMPARED, _title
from paper.reproduce import EXPERIMENTS, _checked, reproduce


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """With linear decoders: the folder, the scores, and what a second run said."""
    out = tmp_path_factory.mktemp("ip-cae")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("paper.ip_cae.DECODERS", {"digits": ((),)})
        (first,) = reproduce("ip-cae", quick=True, out=out, data=["digits"])
        said = []
        reproduce("ip-cae", quick=True, out=out, data=["digits"], say=said.append)
    return out / "quick", first.result["scores"]["digits, k = 10, linear"], said


def check(scores):
    assert list(scores) == list(COMPARED)
    for name, (cell,) in scores.items():
        assert len(set(cell["columns"])) == 10, name
        assert 0.01 < cell["error"] < 0.075, name  # the variance of the pixels
        with_own = name in ("cae-direct", "ip-cae", "estimator", "select")
        assert ("own_error" in cell) == with_own, name
    assert 0 <= scores["ip-cae"][0]["repeated"] < 10
    assert scores["ip-cae"][0]["columns"] != scores["cae-direct"][0]["columns"]


def test_every_method_is_scored_with_the_same_decoder(done):
    scores = done[1]
    check(scores)
    errors = {name: cell["error"] for name, (cell,) in scores.items()}
    assert errors["column-subset"] < errors["cae-direct"]  # which ten epochs cannot train
    (ours,), (theirs,) = scores["estimator"], scores["cae-direct"]
    assert ours["own_error"] == pytest.approx(ours["error"])  # exact, as the decoder of all
    assert theirs["own_error"] > theirs["error"]  # trained with the selector, far from exact


@pytest.mark.slow
def test_networks(tmp_path, monkeypatch):
    monkeypatch.setattr("paper.ip_cae.HIDDEN", (16,))
    (done,) = reproduce("ip-cae", quick=True, out=tmp_path, data=["digits"])
    check(done.result["scores"]["digits, k = 10"])


def test_the_page(done):
    folder, _, said = done
    page = (folder / "ip-cae-digits.md").read_text()
    assert "| IP-CAE: repeated" in page
    assert "![ip-cae-digits](ip-cae-digits.png)" in page
    assert not any("·" in line for line in said)  # all known by now


def test_titles():
    assert _title("mice", 10, (200,)) == "mice, k = 10"
    assert _title("isolet", 50, (200, 200)) == "isolet, k = 50, 2 layers"


def test_protocols_of_others_are_not_part_of_all():
    assert set(EXPERIMENTS) - set(_checked("all", "clean", None, ())) == {"ip-cae", "diffusion"}
