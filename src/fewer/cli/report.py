"""``fewer report``: a panel as one HTML page."""

from pathlib import Path
from typing import Annotated, Any

import typer

from fewer.cli._options import (
    ForceOption,
    PanelArgument,
    Reading,
    check_unused,
    complete_data,
    load_panel,
    quoted,
)
from fewer.cli._output import Output

__all__ = ["run"]


def run(
    output: Output,
    reading: Reading,
    panel: PanelArgument,
    out: Annotated[
        Path | None,
        typer.Option(help="The HTML file; PANEL.html by default.", show_default=False),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            help="Additional rows to evaluate, such as a test set.", autocompletion=complete_data
        ),
    ] = None,
    title: Annotated[str | None, typer.Option(help="Title of the page.")] = None,
    image_shape: Annotated[
        str, typer.Option(help="If features are pixels: height x width, such as 28x28.")
    ] = "",
    force: ForceOption = False,
) -> None:
    """Write a report on a panel: a single, self-contained HTML file.

    Example: [bold]fewer report panel/ --data test.csv[/]
    """
    from fewer.report import write

    loaded = load_panel(panel)
    path = Path(f"{panel.name or panel.resolve().name}.html") if out is None else out
    check_unused(path, force)
    options: dict[str, Any] = {"image_shape": _parse_shape(image_shape)} if image_shape else {}
    with output.progress("writing") as update:
        update("reading", 0.1)
        rows = None if data is None else reading.open_for(loaded, data)
        update("writing", 0.5)
        write(loaded, path, data=rows, title=title, **options)
    output.result(
        {"out": path, "bytes": path.stat().st_size},
        lambda screen: screen.print(f"report written to [bold]{path}[/]", soft_wrap=True),
    )
    output.suggest(f"open {quoted(path)} in a browser; fewer impute {quoted(panel)} measured.csv")


def _parse_shape(text: str) -> tuple[int, int]:
    from fewer.errors import InputError

    parts = text.lower().replace("×", "x").split("x")
    if len(parts) != 2 or not all(part.strip().isdecimal() for part in parts):
        raise InputError(f"--image-shape {text}: use height x width, such as 28x28")
    return int(parts[0]), int(parts[1])
