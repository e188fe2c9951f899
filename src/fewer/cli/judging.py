"""Options of the commands that judge choices on held-out rows."""

from typing import Annotated

import typer

__all__ = ["DeviceOption", "ForceOption", "RowGroupsOption", "ScaleOption", "SeedOption"]

ScaleOption = Annotated[
    str, typer.Option(help="standard: every feature counts the same. none: by its variance.")
]
RowGroupsOption = Annotated[
    str | None, typer.Option(help="A column: rows with the same value are held out together.")
]
SeedOption = Annotated[int, typer.Option(help="Which rows are held out.")]
DeviceOption = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, mps.")]
ForceOption = Annotated[bool, typer.Option("--force", help="Replace --out.")]
