"""The command line: a thin shell over the library.

Everything heavy is imported inside the commands, so that ``fewer --help`` answers at once.
"""

from typing import Annotated

import typer

from fewer import __version__
from fewer.cli import (
    compare,
    curve,
    demo,
    export,
    impute,
    inspect,
    report,
    reproduce,
    score,
    select,
)
from fewer.cli.running import EXIT_CODES, as_command

__all__ = ["app", "main"]

app = typer.Typer(
    name="fewer",
    help="Measure fewer features, reconstruct the rest.",
    epilog=EXIT_CODES,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

# in the order in which a newcomer meets them
for _module in (
    demo,
    inspect,
    select,
    impute,
    score,
    curve,
    compare,
    report,
    export,
    reproduce,
):
    app.command(_module.__name__.rpartition(".")[2])(as_command(_module.run))


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


def main() -> None:
    """Run the ``fewer`` command."""
    app()
