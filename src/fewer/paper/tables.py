"""Markdown tables, written so that a person can read them as text too."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

__all__ = ["markdown", "spread"]


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Lay rows out as a Markdown table.

    Examples
    --------
    >>> print(markdown(["method", "error"], [["greedy", ".018"]]))
    | method | error |
    | ------ | ----: |
    | greedy |  .018 |
    """
    widths = [max(3, *(len(line[at]) for line in [head, *rows])) for at in range(len(head))]
    lines = [_line([text.ljust(w) for text, w in zip(head, widths, strict=True)])]
    lines.append(_line(["-" * widths[0], *("-" * (w - 1) + ":" for w in widths[1:])]))
    for row in rows:
        cells = [row[0].ljust(widths[0])]
        cells += [text.rjust(w) for text, w in zip(row[1:], widths[1:], strict=True)]
        lines.append(_line(cells))
    return "\n".join(lines)


def spread(values: Sequence[float], digits: int) -> str:
    """Mean and standard deviation over seeds.

    Examples
    --------
    >>> spread([0.02, 0.03], 3), spread([0.02], 3)
    ('0.025 ± 0.007', '0.020')
    """
    mean = f"{np.mean(values):.{digits}f}"
    if len(values) < 2:
        return mean
    return f"{mean} ± {np.std(values, ddof=1):.{digits}f}"


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"
