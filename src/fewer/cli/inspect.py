"""``fewer inspect``: what is in a file, before anything is chosen."""

from shlex import quote
from typing import TYPE_CHECKING

from fewer.cli._options import DataArgument, Reading
from fewer.cli._output import Output, percent, print_table

if TYPE_CHECKING:
    from rich.console import Console

    from fewer.assess import Inspection

MAX_SHOWN = 10  # columns that are named


def run(output: Output, reading: Reading, data: DataArgument) -> None:
    """Describe a file: its size, column types, ignored columns, missing values, and a k to try.

    Example: [bold]fewer inspect data.csv[/]
    """
    from fewer.assess import inspect

    with output.progress("reading") as update:
        update("reading", 0.0)
        source = reading.open(data, warn_of_text=False)  # ignored columns are part of the result
        found = inspect(source, update)
    output.result({"data": data, **found.describe()}, lambda screen: _show(found, data, screen))
    if found.suggested_k is not None:
        scale = " --scale none" if found.scale == "none" else ""
        output.suggest(f"fewer select {quote(data)} -k {found.suggested_k}{scale} --out panel/")


def _show(found: "Inspection", data: str, screen: "Console") -> None:
    screen.print(f"{data}: {found}", soft_wrap=True, markup=False)
    _show_ignored(found, screen)
    _show_missing(found, screen)
    _show_sizes(found, screen)


def _show_ignored(found: "Inspection", screen: "Console") -> None:
    if not found.ignored:
        screen.print("ignored columns: none")
        return
    rows = list(found.ignored.items())[:MAX_SHOWN]
    if len(found.ignored) > MAX_SHOWN:
        rows.append(("...", f"and {len(found.ignored) - MAX_SHOWN} more"))
    print_table(screen, ("ignored column", "reason"), rows)


def _show_missing(found: "Inspection", screen: "Console") -> None:
    if not found.missing:
        screen.print("missing values: none")
        return
    rows = [(str(name), percent(part)) for name, part in list(found.missing.items())[:MAX_SHOWN]]
    if len(found.missing) > MAX_SHOWN:
        rows.append((f"... and {len(found.missing) - MAX_SHOWN} more columns", ""))
    rows.append(("all values", percent(found.missing_fraction)))
    print_table(screen, ("missing values", "missing"), rows, (1,))


def _show_sizes(found: "Inspection", screen: "Console") -> None:
    if not found.sizes:
        return
    rows = []
    for level, size in found.sizes.items():
        components = "more" if size["pca"] is None else f"{size['pca']:,}"
        unknown = components if size["pca"] is None else f"at least {components}"
        features = unknown if size["greedy"] is None else f"{size['greedy']:,}"
        rows.append((f"{level:.0%}", features, components))
    header = ("explained variance", "features (k)", "PCA components (reference)")
    print_table(screen, header, rows, (1, 2))
    scaling = "features standardised (--scale standard)"
    if found.scale == "none":
        scaling = "features appear to share a unit, so not standardised (--scale none)"
    screen.print(f"[dim]{scaling}; on {found.sampled_rows:,} rows, none held out[/]")
