"""From the summary of a panel to one self-contained HTML file."""

import hashlib
import json
import math
import os
from base64 import b64encode
from functools import cache
from pathlib import Path
from typing import Any

from fewer._files import check_path, write_text
from fewer._tables import percent_text
from fewer.report.summarise import METRICS, Reported, summarise

SHOWN = 12  # features that a notebook shows
FIRST = 100  # rows that the table of features starts with
SHADES = 20  # of the cells of a confusion matrix

# light and dark, of Okabe and Ito, which colour-blind readers can tell apart; text, muted and
# accent are read on page and raised, the rest are shapes
COLOURS = {
    "page": ("#ffffff", "#14171b"),
    "raised": ("#f5f6f8", "#1e2228"),
    "text": ("#1a1d21", "#e9ebee"),
    "muted": ("#565e68", "#a9b1bb"),
    "accent": ("#0069a6", "#79c7f5"),
    "rule": ("#d5d9df", "#383e47"),
    "edge": ("#7b838d", "#7d8690"),
    "panel": ("#0072b2", "#56b4e9"),
    "greedy": ("#d55e00", "#f0883e"),
    "random": ("#767d87", "#949ca6"),
    "pca": ("#00805d", "#2fc495"),
    "chosen": ("#d55e00", "#f0883e"),
}


def write(
    panel: Reported,
    path: str | os.PathLike[str],
    data: Any = None,
    title: str | None = None,
    *,
    image_shape: tuple[int, int] | str | None = "auto",
    rows: bool = True,
    truth: Any = None,
) -> Path:
    """Write the report on a panel as one HTML page that works offline.

    Parameters
    ----------
    panel : Panel
        From `fewer.select` or `Panel.load`.
    path : path
        The file to write; it appears only when it is complete.
    data : array, table, path or source of whole rows, default=None
        Additional rows to evaluate the panel on, besides those that `select` held out.
    title : str, default=None
        Title of the page.
    image_shape : (int, int), "auto" or None, default="auto"
        Height and width if rows are images; "auto" infers it from names such as pixel_3_14.
    rows : bool, default=True
        Whether the page may contain rows of the data, which plots of single features and images
        are drawn from. Without them it has statistics only.
    truth : array or table, default=None
        True values of the target in the additional rows, as for `Panel.score_target`; by default,
        the columns of a table that it was read from.

    Examples
    --------
    >>> import tempfile
    >>> import fewer
    >>> from fewer.report import write
    >>> from sklearn.datasets import load_iris
    >>> panel = fewer.select(load_iris(as_frame=True).data, 2, strategies=["search"])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write(panel, folder + "/iris.html", title="Iris").read_text()[:15]
    '<!doctype html>'
    """
    check_path(path)
    about = summarise(panel, data, title=title, image_shape=image_shape, rows=rows, truth=truth)
    return write_text(path, page(about))


def page(about: dict[str, Any]) -> str:
    """The page that shows what `summarise` collected."""
    # Matplotlib and Jinja take a while to import, and most work with panels needs neither
    from fewer.report.figures import embedded, figures  # noqa: PLC0415

    r2 = about["features"]["r2"]
    return (
        _environment()
        .get_template("report.html.j2")
        .render(
            about=about,
            figures=figures(about),
            data=_as_json(embedded(about)),
            # the table starts with the features that are reconstructed worst
            first=[j for j in r2.argsort(kind="stable")[:FIRST].tolist() if not math.isnan(r2[j])],
        )
    )


def brief(panel: Reported) -> str:
    """What a notebook shows of a panel.

    Examples
    --------
    >>> import fewer
    >>> from sklearn.datasets import load_iris
    >>> panel = fewer.select(load_iris(as_frame=True).data, 2, strategies=["search"])
    >>> "petal length" in brief(panel)
    True
    """
    known = {} if panel.evidence is None else panel.evidence.explained
    units = known.get("units", {}) | {"panel": float(panel.held_out)}
    errors = {name: one[1] for name, one in panel.estimates.items()}
    # a panel chosen with standardised features must not be judged in units alone
    metrics = [known["equal"], units] if known.get("equal") else [units]
    labels = {"panel": "Explained variance, held-out rows", "pca": "PCA (reference)"}
    labels |= {"greedy": "Greedy selection", "random": "Random selection"}
    names = ("equal", "units") if len(metrics) > 1 else ("units",)
    facts = [
        (
            label,
            *(
                percent_text(shares[role], errors.get(name) if role == "panel" else None)
                if role in shares
                else ""
                for name, shares in zip(names, metrics, strict=True)
            ),
        )
        for role, label in labels.items()
        if any(role in shares for shares in metrics)
    ]
    if panel.target is not None:
        kind = panel.target.kind.metric.capitalize()
        facts.append(
            (f"{kind} of {panel.target.name or 'the target'}", f"{panel.target.held_out:.3g}")
        )
    if panel.leaderboard:
        facts.append(("Strategy", panel.leaderboard[0]["strategy"]))
    heads = [METRICS[name] for name in names] if len(metrics) > 1 else []
    template = _environment().get_template("brief.html.j2")
    return template.render(panel=panel, facts=facts, heads=heads, width=len(metrics), shown=SHOWN)


def _as_json(value: Any) -> str:
    """JSON that cannot close the script element around it."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"), ensure_ascii=False)
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


@cache
def _environment() -> Any:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined  # noqa: PLC0415

    folder = Path(__file__).parent / "page"
    environment = Environment(
        loader=FileSystemLoader(folder),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    light, dark = (";".join(f"--{key}:{COLOURS[key][at]}" for key in COLOURS) for at in (0, 1))
    style = f":root {{{light}}}\n"
    style += f"@media screen and (prefers-color-scheme: dark) {{ :root {{{dark}}} }}\n"
    for shade in range(SHADES + 1):  # of confusion matrices
        style += f".shade-{shade} {{ background: rgb(0 114 178 / {0.55 * shade / SHADES:.4f}); }}\n"
    style += (folder / "report.css").read_text(encoding="utf-8")
    script = (folder / "report.js").read_text(encoding="utf-8")
    # only this script runs and only this style applies, whatever names of features the page holds
    for name, text in (("style", style), ("script", script)):
        digest = hashlib.sha256(text.encode()).digest()
        environment.globals |= {name: text, f"{name}_hash": b64encode(digest).decode()}
    environment.globals["shades"] = SHADES
    environment.filters |= {
        "percent": lambda part: f"{100 * part:.1f}\u00a0%",
        "error": lambda part: "" if part is None else f" ± {100 * part:.1f}\u00a0%",
        "number": _number,
        "signed": lambda value: f"{value:+.2f}".replace("-", "−"),
        "r2": lambda x: "below −10" if x < -10 else f"{x:.3f}".replace("-", "−"),
        "minus": lambda text: text.replace("-", "−"),
    }
    return environment


def _number(value: float | None) -> str:
    """Three significant digits."""
    if value is None or math.isnan(value):
        return "–"
    if value == 0:
        return "0"
    if not 1e-4 <= abs(value) < 1e6:
        return f"{value:.2e}".replace("-", "−")
    digits = 2 - math.floor(math.log10(abs(value)))
    return f"{round(value, digits):,.{max(digits, 0)}f}".replace("-", "−")
