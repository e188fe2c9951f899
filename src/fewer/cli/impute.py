"""``fewer impute``: a table of measured features in, a table of all features out."""

from pathlib import Path
from typing import Annotated

import typer

from fewer.cli.panels import PanelArgument, load_panel
from fewer.cli.paths import check_free
from fewer.cli.reading import DataArgument, Reading, holds_cells
from fewer.cli.talk import Output

__all__ = ["run"]


def run(
    talk: Output,
    reading: Reading,
    panel: PanelArgument,
    measured: DataArgument,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Where all features go (.csv, .tsv, .parquet, .feather, .npy, .h5, .h5ad); "
            "beside the input in its own format if not given.",
            show_default=False,
        ),
    ] = None,
    interval: Annotated[
        float | None,
        typer.Option(
            help="Also write bounds that hold this share of values, such as 0.9, into two more "
            "files beside --out."
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace files that are there.")] = False,
) -> None:
    """Complete a table of measured features: all features, the same rows, identifiers kept.

    What was measured stays as it is; gaps in it are filled too. Rows are read and written in
    blocks, so neither table needs to fit into memory.

    Example: [bold]fewer impute panel/ measured.csv --out all.parquet --interval 0.9[/]
    """
    from fewer.imputation import bound_paths, impute

    loaded = load_panel(panel)
    path = _beside(Path(measured)) if out is None else out
    paths = [path] if interval is None else [path, *bound_paths(path)]
    for one in paths:
        check_free(one, force)
    with talk.progress("imputing") as tell:
        rows = impute(
            loaded,
            reading.open_for(loaded, measured) if holds_cells(measured) else measured,
            path,
            interval=interval,
            options=reading.options(),
            progress=lambda share: tell("imputing", share),
        )
    talk.result(
        {
            "out": path,
            "bounds": paths[1:],
            "rows": rows,
            "features": loaded.d,
            "measured": loaded.k,
        },
        lambda screen: screen.print(
            f"{rows:,} rows: {loaded.d} features from {loaded.k} measured, in "
            + " and ".join(f"[bold]{one}[/]" for one in paths),
            soft_wrap=True,
        ),
    )


def _beside(measured: Path) -> Path:
    """Where all features go if nobody says: measured.csv becomes measured.complete.csv."""
    from fewer.errors import InputError

    kinds = "".join(
        measured.suffixes[-2:] if measured.suffix in (".gz", ".zst") else measured.suffix
    )
    if measured.is_dir() or not kinds or "*" in str(measured):
        raise InputError(f"say by --out where all features of {measured} go")
    return measured.with_name(measured.name.removesuffix(kinds) + ".complete" + kinds)
