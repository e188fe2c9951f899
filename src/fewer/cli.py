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


@app.command()
def reproduce(
    name: Annotated[str, typer.Argument(help="An experiment, or all; --list names them.")] = "",
    quick: Annotated[bool, typer.Option("--quick", help="Smaller versions, in minutes.")] = False,
    protocol: Annotated[
        str, typer.Option(help="clean: nothing learned from test rows. paper: as the paper does.")
    ] = "clean",
    out: Annotated[Path, typer.Option(help="Where tables, figures and results go.")] = Path(
        "results"
    ),
    seeds: Annotated[int | None, typer.Option(help="Splits and starts.", min=1)] = None,
    data: Annotated[str, typer.Option(help="Data sets to use, with commas between.")] = "",
    download: Annotated[
        bool, typer.Option("--download", help="Fetch data sets that are not there from OpenML.")
    ] = False,
    listing: Annotated[bool, typer.Option("--list", help="Name the experiments.")] = False,
) -> None:
    """Run an experiment of the concrete autoencoder paper; a stopped run goes on where it was."""
    from rich.console import Console  # noqa: PLC0415

    from fewer.paper import EXPERIMENTS  # noqa: PLC0415
    from fewer.paper import reproduce as run  # noqa: PLC0415

    console = Console()
    if listing or not name:
        for known, about in EXPERIMENTS.items():
            console.print(f"[bold]{known:<12}[/]{about}")
        return
    sets = tuple(part.strip() for part in data.split(",") if part.strip())

    def say(text: str) -> None:
        console.print(text, highlight=False, markup=False, soft_wrap=True)

    try:
        done = run(
            name,
            quick=quick,
            protocol=protocol,
            out=out,
            seeds=seeds,
            data=sets,
            download=download,
            say=say,
        )
    except KeyboardInterrupt:
        say(f"\nstopped; what was finished is kept in {out}: the same command goes on from there")
        raise typer.Exit(130) from None
    if len(done) > 1:
        for one in done:
            say(f"{one.name:<12}{one.seconds:>8.1f} s")
        say(f"{'together':<12}{sum(one.seconds for one in done):>8.1f} s")


def main() -> None:
    """Run the ``fewer`` command."""
    app()
