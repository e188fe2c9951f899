"""The command line: a thin shell over the library.

Everything heavy is imported inside the commands, so that ``fewer --help`` answers at once.
"""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from fewer import __version__

__all__ = ["app", "main"]


class _Commands(TyperGroup):
    """Our errors as one line and exit code 1; whatever else goes wrong keeps its traceback."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except Exception as error:
            if ctx.params["debug"] or not _is_ours(error):
                raise
            typer.echo("error: " + " ".join(str(error).split()), err=True)
            raise typer.Exit(1) from error


def _is_ours(error: Exception) -> bool:
    errors = sys.modules.get("fewer.errors")  # not imported: then it cannot be ours
    return errors is not None and isinstance(error, errors.FewerError)


app = typer.Typer(
    name="fewer",
    cls=_Commands,
    help="Measure fewer features, reconstruct the rest.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"fewer {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version."),
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    pass


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Where the picture goes.")] = Path("demo/digits.png"),
    seed: Annotated[int, typer.Option(help="Of the split and of the method.")] = 0,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress bar.")] = False,
) -> None:
    """Choose 10 of 64 pixels of handwritten digits and rebuild whole digits from them."""
    from rich.console import Console  # noqa: PLC0415

    from fewer.demo import run_demo, show_demo  # noqa: PLC0415

    console = Console()
    outcome = run_demo(out, seed=seed, progress=not quiet and console.is_terminal)
    show_demo(outcome, console)


def main() -> None:
    """Run the ``fewer`` command."""
    app()
