"""Colours of the page, by what they mean; Okabe and Ito's, told apart by everybody."""

__all__ = ["DARK", "LIGHT", "contrast", "variables"]

# text, muted and accent are read on page and raised; the rest are shapes
LIGHT = {
    "page": "#ffffff",
    "raised": "#f5f6f8",
    "text": "#1a1d21",
    "muted": "#565e68",
    "accent": "#0069a6",
    "rule": "#d5d9df",
    "edge": "#7b838d",
    "panel": "#0072b2",
    "greedy": "#d55e00",
    "random": "#767d87",
    "pca": "#00805d",
    "chosen": "#d55e00",
}
DARK = {
    "page": "#14171b",
    "raised": "#1e2228",
    "text": "#e9ebee",
    "muted": "#a9b1bb",
    "accent": "#79c7f5",
    "rule": "#383e47",
    "edge": "#7d8690",
    "panel": "#56b4e9",
    "greedy": "#f0883e",
    "random": "#949ca6",
    "pca": "#2fc495",
    "chosen": "#f0883e",
}


def contrast(one: str, other: str) -> float:
    """Ratio of luminances as the Web Content Accessibility Guidelines define it, from 1 to 21.

    Examples
    --------
    >>> contrast("#000000", "#ffffff")
    21.0
    """
    high, low = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def variables(colours: dict[str, str]) -> str:
    """The colours as CSS.

    Examples
    --------
    >>> variables({"page": "#ffffff", "text": "#000000"})
    '--page:#ffffff;--text:#000000'
    """
    return ";".join(f"--{name}:{value}" for name, value in colours.items())


def _luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
