"""The panel that a command works with."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fewer.cli.paths import complete_panel

if TYPE_CHECKING:
    from fewer.panel import Panel

__all__ = ["PanelArgument", "load_panel"]

PanelArgument = Annotated[
    Path,
    typer.Argument(
        help="A folder that fewer select wrote.", autocompletion=complete_panel, show_default=False
    ),
]


def load_panel(path: Path) -> "Panel":
    """The panel in a folder, or one line that says what is wrong with it."""
    from fewer.errors import InputError
    from fewer.panel import Panel

    if not path.exists():
        raise InputError(f"there is no panel {path}; make one with fewer select DATA --out {path}")
    return Panel.load(path)
