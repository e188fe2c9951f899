"""``fewer compare``: our methods beside others, and beside panels of your own."""

from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fewer.cli import _options as opt
from fewer.cli._output import Output, print_splits, print_table

if TYPE_CHECKING:
    from rich.console import Console

    from fewer.assess import Comparison


def run(
    output: Output,
    reading: opt.Reading,
    data: opt.DataArgument,
    k: Annotated[int, typer.Option("-k", "--k", help="Number of features.", show_default=False)],
    panel: Annotated[
        list[str] | None,
        typer.Option(
            help="Also compare this panel: a panel folder, or a file with one feature per line; "
            "can be repeated."
        ),
    ] = None,
    methods: Annotated[
        str,
        typer.Option(
            help="Comma-separated: select, search, concrete autoencoder, greedy, pivoted QR, "
            "variance, random; all by default."
        ),
    ] = "",
    repeats: Annotated[
        int, typer.Option(help="Number of random splits; several show how stable choices are.")
    ] = 1,
    test_size: Annotated[float, typer.Option(help="Fraction of rows held out.")] = 0.25,
    scale: opt.ScaleOption = "standard",
    row_groups: opt.RowGroupsOption = None,
    seed: opt.SeedOption = 0,
    device: opt.DeviceOption = "auto",
    out: Annotated[
        Path | None, typer.Option(help="Also write the table to a .csv or .json file.")
    ] = None,
    force: opt.ForceOption = False,
) -> None:
    """Choose k features by several methods and score them on the same held-out rows.

    Methods see only the training rows, and all get the same linear decoder. A panel of your own
    looks better than it is if it was chosen with the held-out rows in view.

    Example: [bold]fewer compare data.csv -k 20 --panel mine.txt[/]
    """
    from fewer.assess import compare

    if out is not None:
        opt.check_unused(out, force, table="--out")
    with output.progress("reading") as update:
        update("reading", 0.0)
        source = reading.open_features(data, metadata=(row_groups,))
        found = compare(
            source,
            k,
            methods=[part.strip() for part in methods.split(",") if part.strip()] or None,
            panels={text: _features(text, source.names) for text in panel or ()},
            scale=scale,
            test_size=test_size,
            repeats=repeats,
            row_groups=opt.read_column(source, row_groups),
            random_state=seed,
            device=device,
            progress=update,
        )
        if out is not None:
            found.write(out)
    output.result({"out": out, **found.describe()}, lambda screen: _show(found, out, screen))
    output.suggest(f"fewer select {quote(data)} -k {k} --out panel/")


def _features(text: str, names: list[str] | None) -> list[Any]:
    from fewer.cli import _parsing as parse

    if opt.is_panel(text):
        return opt.load_panel(Path(text)).features
    return parse.features([text], names, "--panel")


def _show(found: "Comparison", out: Path | None, screen: "Console") -> None:
    table = found.table()
    print_table(screen, table.header, table.rows, table.numbers)
    print_splits(screen, found, "splits", out)
