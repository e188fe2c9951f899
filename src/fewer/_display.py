"""How results are shown in Python: as a data frame, in a notebook, and as a plot."""

from collections.abc import Collection, Sequence
from html import escape
from typing import Any

import numpy as np

from fewer._optional import import_optional
from fewer._tables import Table

__all__ = ["Tabular", "draw_bars", "draw_lines", "new_axes"]

# colour-blind safe, of Okabe and Ito; lines beyond these repeat them with dashes
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
OTHERS, GRID = "#999999", "#dddddd"


class Tabular:
    """A result that is a table: `table` for people, `columns` for programs."""

    def table(self) -> Table:
        """The result as text."""
        raise NotImplementedError

    def columns(self) -> dict[str, list[Any]]:
        """The result as columns of values."""
        raise NotImplementedError

    def to_frame(self) -> Any:
        """The result as a pandas DataFrame."""
        return import_optional("pandas").DataFrame(self.columns())

    def _repr_html_(self) -> str:
        return as_html(self.table())


def as_html(table: Table) -> str:
    """A table for a notebook."""
    right = [' style="text-align: right"' if at else "" for at in table.right_aligned]

    def line(cells: Sequence[str], tag: str) -> str:
        pairs = zip(cells, right, strict=True)
        return "".join(f"<{tag}{style}>{escape(cell)}</{tag}>" for cell, style in pairs)

    rows = "".join(f"<tr>{line(row, 'td')}</tr>" for row in table.rows)
    return f"<table><thead><tr>{line(table.header, 'th')}</tr></thead><tbody>{rows}</tbody></table>"


def new_axes(axes: Any = None) -> Any:
    """The given Matplotlib axes, or those of a new figure."""
    if axes is not None:
        return axes
    # Matplotlib takes a while to import, and most work needs no plot
    from matplotlib import pyplot  # noqa: PLC0415

    return pyplot.subplots(figsize=(6.4, 4.0), layout="constrained")[1]


def draw_bars(
    axes: Any,
    labels: Sequence[str],
    values: Sequence[float],
    x_label: str,
    *,
    errors: Sequence[float | None] | None = None,
    grey: Collection[str] = (),
) -> Any:
    """Horizontal bars, the first on top; those with a label in ``grey`` are in the background."""
    axes = new_axes(axes)
    places = np.arange(len(labels))
    colours = [OTHERS if label in grey else COLOURS[0] for label in labels]
    spread = None
    if errors is not None and any(errors):
        spread = [error or 0.0 for error in errors]
    axes.barh(places, values, xerr=spread, color=colours, error_kw={"elinewidth": 1, "capsize": 2})
    axes.set_yticks(places, labels)
    axes.invert_yaxis()
    axes.set_xlabel(x_label)
    _plain(axes, "x")
    return axes


def draw_lines(
    axes: Any, x: Sequence[float], lines: dict[str, Sequence[float]], x_label: str, y_label: str
) -> Any:
    """Lines with a legend."""
    axes = new_axes(axes)
    for number, (label, y) in enumerate(lines.items()):
        turn, at = divmod(number, len(COLOURS))
        style = "-" if turn == 0 else "--"
        axes.plot(x, y, style, marker="o", ms=3, color=COLOURS[at], label=label)
    axes.set(xlabel=x_label, ylabel=y_label)
    _plain(axes, "both")
    axes.legend(frameon=False, fontsize=9)
    return axes


def _plain(axes: Any, grid: str) -> None:
    axes.grid(color=GRID, linewidth=0.6, axis=grid)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
