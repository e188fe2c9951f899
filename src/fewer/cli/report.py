"""``fewer report``: a panel as one HTML page."""

from pathlib import Path
from typing import Annotated, Any

import typer

from fewer.cli.panels import PanelArgument, load_panel
from fewer.cli.paths import check_free, complete_data, shown
from fewer.cli.reading import Reading
from fewer.cli.talk import Output

__all__ = ["run"]


def run(
    talk: Output,
    reading: Reading,
    panel: PanelArgument,
    out: Annotated[
        Path | None,
        typer.Option(
            help="The page; PANEL.html beside the panel if not given.", show_default=False
        ),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            help="Rows to look at besides, such as a test set.", autocompletion=complete_data
        ),
    ] = None,
    title: Annotated[str | None, typer.Option(help="Of the page.")] = None,
    image_shape: Annotated[
        str, typer.Option(help="Features are pixels: height x width, such as 28x28.")
    ] = "",
    force: Annotated[bool, typer.Option("--force", help="Replace the page.")] = False,
) -> None:
    """Write a report of a panel: one HTML file that needs nothing else.

    Example: [bold]fewer report panel/ --data test.csv[/]
    """
    from fewer.report import write

    loaded = load_panel(panel)
    path = panel.resolve().with_suffix(".html") if out is None else out
    if out is None:
        path = Path(f"{panel.name or panel.resolve().name}.html")
    check_free(path, force)
    options: dict[str, Any] = {"image_shape": _shape(image_shape)} if image_shape else {}
    with talk.progress("writing") as tell:
        tell("reading", 0.1)
        rows = None if data is None else reading.open_for(loaded, data)
        tell("writing", 0.5)
        write(loaded, path, data=rows, title=title, **options)
    talk.result(
        {"out": path, "bytes": path.stat().st_size},
        lambda screen: screen.print(f"report in [bold]{path}[/]", soft_wrap=True),
    )
    talk.next(f"open {shown(path)} in a browser; fewer impute {shown(panel)} measured.csv")


def _shape(text: str) -> tuple[int, int]:
    from fewer.errors import InputError

    parts = text.lower().replace("×", "x").split("x")
    if len(parts) != 2 or not all(part.strip().isdecimal() for part in parts):
        raise InputError(f"--image-shape {text}: give height x width, such as 28x28")
    return int(parts[0]), int(parts[1])
