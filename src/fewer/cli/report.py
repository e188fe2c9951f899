"""``fewer report``: a panel as one HTML page."""

from pathlib import Path
from shlex import quote
from typing import Annotated, Any

import typer

from fewer.cli import _options as opt
from fewer.cli._output import Output


def run(
    output: Output,
    reading: opt.Reading,
    panel: opt.PanelArgument,
    out: Annotated[
        Path | None,
        typer.Option(help="The HTML file; PANEL.html by default.", show_default=False),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            help="Additional rows to evaluate, such as a test set.",
            autocompletion=opt.complete_data,
        ),
    ] = None,
    title: Annotated[str | None, typer.Option(help="Title of the page.")] = None,
    image_shape: Annotated[
        str, typer.Option(help="If features are pixels: height x width, such as 28x28.")
    ] = "",
    force: opt.ForceOption = False,
) -> None:
    """Write a report on a panel: a single, self-contained HTML file.

    Example: [bold]fewer report panel/ --data test.csv[/]
    """
    from fewer.report import write

    loaded = opt.load_panel(panel)
    path = Path(f"{panel.absolute().name}.html") if out is None else out
    opt.check_unused(path, force)
    options: dict[str, Any] = {"image_shape": _parse_shape(image_shape)} if image_shape else {}
    with output.progress("writing") as update:
        update("reading", 0.1)
        rows = None if data is None else reading.open_for(loaded, data)
        update("writing", 0.5)
        write(loaded, path, data=rows, title=title, **options)
    written = {"out": path, "bytes": path.stat().st_size}
    output.result(written, f"report written to [bold]{path}[/]")
    paths = quote(str(path)), quote(str(panel))
    output.suggest("open {} in a browser; fewer impute {} measured.csv".format(*paths))


def _parse_shape(text: str) -> tuple[int, int]:
    from fewer.errors import InputError

    parts = text.lower().replace("×", "x").split("x")
    if len(parts) != 2 or not all(part.strip().isdecimal() for part in parts):
        raise InputError(f"--image-shape {text}: use height x width, such as 28x28")
    return int(parts[0]), int(parts[1])
