"""``fewer impute``: a table of measured features in, a table of all features out."""

from pathlib import Path
from typing import Annotated

import typer

from fewer.cli import _options as opt
from fewer.cli._output import Output


def run(
    output: Output,
    reading: opt.Reading,
    panel: opt.PanelArgument,
    measured: opt.DataArgument,
    out: Annotated[
        Path | None,
        typer.Option(
            help="The output file (.csv, .tsv, .parquet, .feather, .npy, .h5, .h5ad); by default "
            "beside the input, in the same format.",
            show_default=False,
        ),
    ] = None,
    interval: Annotated[
        float | None,
        typer.Option(
            help="Also write prediction intervals with this coverage, such as 0.9: lower and "
            "upper bounds in two more files beside --out."
        ),
    ] = None,
    force: opt.ForceOption = False,
) -> None:
    """Reconstruct all features from a table of the measured ones.

    Rows, their order and identifiers are kept, measured values are unchanged, missing ones are
    filled in. Rows are processed in blocks, so neither table needs to fit into memory.

    Example: [bold]fewer impute panel/ measured.csv --out all.parquet --interval 0.9[/]
    """
    from fewer.reconstructor import bound_paths, impute

    loaded = opt.load_panel(panel)
    path = _default_out(Path(measured)) if out is None else out
    paths = [path] if interval is None else [path, *bound_paths(path)]
    for one in paths:
        opt.check_unused(one, force)
    with output.progress("imputing") as update:
        rows = impute(
            loaded.reconstructor,
            reading.open_for(loaded, measured) if opt.holds_cells(measured) else measured,
            path,
            interval=interval,
            options=reading.options(),
            progress=lambda fraction: update("imputing", fraction),
        )
    sizes = {"rows": rows, "features": loaded.d, "measured": loaded.k}
    output.result(
        {"out": path, "bounds": paths[1:], **sizes},
        f"{rows:,} rows, {loaded.d} features from {loaded.k} measured, written to "
        + " and ".join(f"[bold]{one}[/]" for one in paths),
    )


def _default_out(measured: Path) -> Path:
    """measured.csv becomes measured.complete.csv."""
    from fewer.errors import InputError

    kinds = "".join(
        measured.suffixes[-2:] if measured.suffix in (".gz", ".zst") else measured.suffix
    )
    if measured.is_dir() or not kinds or "*" in str(measured):
        raise InputError(f"name the output file for {measured} with --out")
    return measured.with_name(measured.name.removesuffix(kinds) + ".complete" + kinds)
