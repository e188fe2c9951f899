"""``fewer export``: a panel for other programs."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from fewer.cli.panels import PanelArgument, load_panel
from fewer.cli.paths import check_free
from fewer.cli.talk import Output

__all__ = ["Form", "run"]


class Form(StrEnum):
    """What a panel can be written as."""

    onnx = "onnx"
    list = "list"
    json = "json"


def run(
    talk: Output,
    panel: PanelArgument,
    to: Annotated[
        Form,
        typer.Option(
            "--to",
            help="onnx: the decoder as a graph. list: one chosen feature a line. json: a "
            "description.",
        ),
    ] = Form.list,
    out: Annotated[
        Path | None,
        typer.Option(
            help="The file; list and json go to stdout, onnx to PANEL.onnx if not given.",
            show_default=False,
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the file.")] = False,
) -> None:
    """Write a panel as ONNX, as a plain list of features, or as JSON.

    Examples: [bold]fewer export panel/ --to list > genes.txt[/];
    [bold]fewer export panel/ --to onnx --out panel.onnx[/]
    """
    import json

    from fewer.export import describe, export_onnx

    loaded = load_panel(panel)
    if to is Form.onnx:
        path = Path(f"{panel.name or panel.resolve().name}.onnx") if out is None else out
        check_free(path, force)
        gap = export_onnx(loaded, path)
        checked = f"gives the same as the panel, to {gap:.1e} of a standard deviation"
        talk.result(
            {"out": path, "largest_difference": gap},
            lambda screen: screen.print(f"[bold]{path}[/] {checked}", soft_wrap=True),
        )
        return
    if to is Form.list:
        text = "".join(f"{name}\n" for name in loaded.features)
    else:
        text = json.dumps(describe(loaded), indent=1, ensure_ascii=False) + "\n"
    if out is None:
        if talk.json:
            talk.result(describe(loaded), lambda screen: None)
        else:
            typer.echo(text, nl=False)
        return
    check_free(out, force)
    from fewer._files import write_text

    write_text(out, text)
    talk.result({"out": out}, lambda screen: screen.print(f"[bold]{out}[/]", soft_wrap=True))
