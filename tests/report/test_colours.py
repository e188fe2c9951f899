"""Everybody can read the page: contrast as the Web Content Accessibility Guidelines ask (AA)."""

import pytest

from fewer.report.render import COLOURS

TEXT = ("text", "muted", "accent")
SHAPES = ("panel", "greedy", "random", "pca", "chosen", "edge")


def luminance(colour):
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one, other):
    """Ratio of luminances, from 1 to 21."""
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("mode", [0, 1], ids=["light", "dark"])
@pytest.mark.parametrize("ground", ["page", "raised"])
def test_text_and_shapes_stand_out(mode, ground):
    colours = {name: pair[mode] for name, pair in COLOURS.items()}
    for name in TEXT:
        assert contrast(colours[name], colours[ground]) >= 4.5, name
    for name in SHAPES:
        assert contrast(colours[name], colours[ground]) >= 3, name
