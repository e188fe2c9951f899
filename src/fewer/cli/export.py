"""``fewer export``: a panel for other programs."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from fewer.cli import _options as opt
from fewer.cli._output import Output

Format = StrEnum("Format", ["onnx", "list", "json"])


def run(
    output: Output,
    panel: opt.PanelArgument,
    to: Annotated[
        Format,
        typer.Option(
            "--to",
            help="onnx: the decoder as an ONNX graph. list: the chosen features, one per line. "
            "json: a description of the panel.",
        ),
    ] = Format.list,
    out: Annotated[
        Path | None,
        typer.Option(
            help="The output file; by default list and json go to stdout, onnx to PANEL.onnx.",
            show_default=False,
        ),
    ] = None,
    force: opt.ForceOption = False,
) -> None:
    """Export a panel as ONNX, as a plain list of features, or as JSON.

    Examples: [bold]fewer export panel/ --to list > genes.txt[/];
    [bold]fewer export panel/ --to onnx --out panel.onnx[/]
    """
    import json

    from fewer._files import write_text
    from fewer.export import describe, export_onnx

    loaded = opt.load_panel(panel)
    if to is Format.onnx:
        path = Path(f"{panel.absolute().name}.onnx") if out is None else out
        opt.check_unused(path, force)
        difference = export_onnx(loaded, path)
        output.result(
            {"out": path, "largest_difference": difference},
            f"written to [bold]{path}[/]; outputs agree with the panel to within "
            f"{difference:.1e} standard deviations",
        )
        return
    if to is Format.list:
        text = "".join(f"{name}\n" for name in loaded.features)
    else:
        text = json.dumps(describe(loaded), indent=1, ensure_ascii=False) + "\n"
    if out is not None:
        opt.check_unused(out, force)
        write_text(out, text)
        output.result({"out": out}, f"written to [bold]{out}[/]")
    elif output.json:
        output.result(describe(loaded), "")
    else:
        typer.echo(text, nl=False)
