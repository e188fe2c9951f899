"""``fewer compare``: our methods beside others, and beside lists of your own."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fewer.cli.judging import (
    DeviceOption,
    ForceOption,
    RowGroupsOption,
    ScaleOption,
    SeedOption,
)
from fewer.cli.paths import check_free, shown
from fewer.cli.reading import DataArgument, Reading, column_beside
from fewer.cli.talk import Output, share, table

if TYPE_CHECKING:
    from rich.console import Console

    from fewer.assess import Comparison

__all__ = ["run"]


def run(
    talk: Output,
    reading: Reading,
    data: DataArgument,
    k: Annotated[int, typer.Option("-k", "--k", help="How many features.", show_default=False)],
    panel: Annotated[
        list[str] | None,
        typer.Option(
            help="Also compare this: a panel's folder, or a file with one feature a line; can be "
            "repeated."
        ),
    ] = None,
    methods: Annotated[
        str,
        typer.Option(
            help="Some of select, search, concrete autoencoder, greedy, pivoted QR, variance, "
            "random, with commas between; all if not given."
        ),
    ] = "",
    repeats: Annotated[
        int, typer.Option(help="Times, with other rows held out: shows how stable choices are.")
    ] = 1,
    held: Annotated[float, typer.Option(help="Share of rows to judge on.")] = 0.25,
    scale: ScaleOption = "standard",
    row_groups: RowGroupsOption = None,
    seed: SeedOption = 0,
    device: DeviceOption = "auto",
    out: Annotated[Path | None, typer.Option(help="Also write it: .csv or .json.")] = None,
    force: ForceOption = False,
) -> None:
    """Choose k features by several methods and judge them all on the same held-out rows.

    Every method sees the training rows alone, and every choice gets the same linear decoder. A
    panel or list of yours may have been chosen with the held-out rows in view: then it looks
    better than it is.

    Example: [bold]fewer compare data.csv -k 20 --panel mine.txt[/]
    """
    from fewer.assess import compare
    from fewer.cli.lists import read_features
    from fewer.errors import InputError

    if out is not None:
        check_free(out, force)
        if out.suffix.lower() not in (".csv", ".json"):
            raise InputError(f"--out {out} ends in {out.suffix!r}; use .csv or .json")
    with talk.progress("reading") as tell:
        tell("reading", 0.0)
        source = reading.open_features(data, beside=(row_groups,))
        given = {text: _features(text, source.names, read_features) for text in panel or ()}
        found = compare(
            source,
            k,
            methods=[part.strip() for part in methods.split(",") if part.strip()] or None,
            panels=given,
            scale=scale,
            held=held,
            repeats=repeats,
            row_groups=column_beside(source, row_groups),
            random_state=seed,
            device=device,
            progress=tell,
        )
        if out is not None:
            found.write(out)
    talk.result({"out": out, **found.describe()}, lambda screen: _show(found, out, screen))
    talk.next(f"fewer select {shown(data)} -k {k} --out panel/")


def _features(text: str, names: list[str] | None, read: Any) -> list[Any]:
    if (Path(text) / "panel.json").is_file():
        from fewer.cli.panels import load_panel

        return load_panel(Path(text)).features
    return read([text], names, "--panel")


def _show(found: "Comparison", out: Path | None, screen: "Console") -> None:
    several = found.splits > 1
    more = ("±", "same features") if several else ()
    rows = table("method", "k", "share", *more, "seconds", right=(1, 2, 3, 4, 5))
    for row in found.rows:
        cells = [row["method"], str(row["k"]), share(row["share"])]
        if several:
            cells += [share(row["std"]), share(row["overlap"])]
        cells.append("" if row["seconds"] is None else f"{row['seconds']:.1f}")
        rows.add_row(*cells)
    screen.print(rows)
    equal = "every feature counting the same" if found.scale == "standard" else "in units of data"
    times = f"mean of {found.splits} splits" if several else "one split"
    screen.print(f"[dim]share of the variance of held-out rows, {equal}, {times}[/]")
    if out is not None:
        screen.print(f"written to [bold]{out}[/]", soft_wrap=True)
