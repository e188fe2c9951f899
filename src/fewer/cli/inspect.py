"""``fewer inspect``: what is in a file, before anything is chosen."""

from typing import TYPE_CHECKING, Any

from fewer.cli.paths import shown
from fewer.cli.reading import DataArgument, Reading
from fewer.cli.talk import Output, share, table

if TYPE_CHECKING:
    from rich.console import Console

    from fewer.assess.inspection import Inspection

__all__ = ["run"]

MOST = 10  # columns that are named


def run(talk: Output, reading: Reading, data: DataArgument) -> None:
    """Say what is in a file: sizes, kinds of columns, what will be ignored, gaps, which k to try.

    Example: [bold]fewer inspect data.csv[/]
    """
    from fewer.assess.inspection import inspect_rows

    with talk.progress("reading") as tell:
        tell("reading", 0.0)
        source = reading.open(data, tell=False)  # what is left out is part of what we say
        found = inspect_rows(source, tell)
    talk.result({"data": data, **found.describe()}, lambda screen: _show(found, data, screen))
    size = found.suggested
    if size is not None:
        scale = " --scale none" if found.scale == "none" else ""
        talk.next(f"fewer select {shown(data)} -k {size}{scale} --out panel/")


def _show(found: "Inspection", data: str, screen: "Console") -> None:
    from fewer.data.memory import readable_size

    where = "read in blocks" if found.streamed else "in memory"
    screen.print(
        f"[bold]{data}[/]: {found.rows:,} rows, {found.features:,} features "
        f"({found.dtype}{', sparse' if found.sparse else ''}), {where}",
        soft_wrap=True,
    )
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in found.kinds.items() if count)
    screen.print(f"features: {kinds}", soft_wrap=True)
    if found.values is not None:
        screen.print(f"values: {found.values[0]:g} to {found.values[1]:g}")
    memory = f"{readable_size(found.memory)} for the rows"
    screen.print(f"memory: {memory}, {readable_size(found.covariance_memory)} for the covariance")
    _show_ignored(found, screen)
    for what, names in (
        ("constant (say nothing, never chosen)", found.constant),
        ("copies of another column", [f"{a} = {b}" for a, b in found.duplicates]),
    ):
        if names:
            screen.print(f"{len(names)} {what}: {_some(names)}", soft_wrap=True)
    _show_missing(found, screen)
    _show_sizes(found, screen)


def _show_ignored(found: "Inspection", screen: "Console") -> None:
    if not found.ignored:
        screen.print("ignored: nothing")
        return
    rows = table("will be ignored", "because", title=None)
    for name, reason in list(found.ignored.items())[:MOST]:
        rows.add_row(name, reason)
    more = len(found.ignored) - MOST
    if more > 0:
        rows.add_row("...", f"and {more} more")
    screen.print(rows)


def _show_missing(found: "Inspection", screen: "Console") -> None:
    if not found.missing:
        screen.print("missing values: none")
        return
    rows = table("missing values", "share of rows", right=(1,))
    for name, part in list(found.missing.items())[:MOST]:
        rows.add_row(str(name), share(part))
    more = len(found.missing) - MOST
    if more > 0:
        rows.add_row(f"... and {more} more columns", "")
    rows.add_row("all values", share(found.missing_share))
    screen.print(rows)


def _show_sizes(found: "Inspection", screen: "Console") -> None:
    if not found.sizes:
        return
    rows = table("variance to keep", "features, k", "(components, a bound)", right=(1, 2))
    for level, size in found.sizes.items():
        least = "more" if size["pca"] is None else f"{size['pca']:,} or more"
        known = least if size["greedy"] is None else f"{size['greedy']:,}"
        rows.add_row(f"{level:.0%}", known, "more" if size["pca"] is None else f"{size['pca']:,}")
    screen.print(rows)
    equal = "every feature counting the same (--scale standard)"
    if found.scale == "none":
        equal = "in one unit, it seems, so by variance (--scale none)"
    screen.print(f"[dim]{equal}, on {found.looked_at:,} rows, none held out[/]")


def _some(names: list[Any]) -> str:
    return ", ".join(str(name) for name in names[:MOST]) + (", ..." if len(names) > MOST else "")
