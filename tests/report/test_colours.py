"""Everybody can read the page: contrast as the Web Content Accessibility Guidelines ask (AA)."""

import pytest

from fewer.report.colours import DARK, LIGHT, contrast

TEXT = ("text", "muted", "accent")
SHAPES = ("panel", "greedy", "random", "pca", "chosen", "edge")


def test_contrast_is_as_defined():
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)
    assert contrast("#ffffff", "#777777") == contrast("#777777", "#ffffff")


@pytest.mark.parametrize("colours", [LIGHT, DARK], ids=["light", "dark"])
@pytest.mark.parametrize("ground", ["page", "raised"])
def test_text_and_shapes_stand_out(colours, ground):
    for name in TEXT:
        assert contrast(colours[name], colours[ground]) >= 4.5, name
    for name in SHAPES:
        assert contrast(colours[name], colours[ground]) >= 3, name


def test_both_modes_have_all_colours():
    assert set(LIGHT) == set(DARK)
