"""``python -m paper``: reproduce the tables and figures of the concrete autoencoder paper."""

import json
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

__all__ = ["app"]

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
INPUT, STOPPED = 1, 130


@app.command()
def main(
    name: Annotated[str, typer.Argument(help="An experiment, or all; --list names them.")] = "",
    quick: Annotated[
        bool, typer.Option("--quick", help="Smaller versions that take minutes.")
    ] = False,
    protocol: Annotated[
        str, typer.Option(help="clean: nothing learned from test rows. paper: as the paper does.")
    ] = "clean",
    out: Annotated[Path, typer.Option(help="Where tables, figures and results go.")] = Path(
        "results"
    ),
    seeds: Annotated[
        int | None, typer.Option(help="Number of splits and random starts.", min=1)
    ] = None,
    data: Annotated[
        str,
        typer.Option(help="Data sets to use instead, comma-separated; file names end in them."),
    ] = "",
    download: Annotated[
        bool, typer.Option("--download", help="Fetch missing data sets from OpenML.")
    ] = False,
    jobs: Annotated[int, typer.Option(help="Number of parallel processes.", min=1)] = 1,
    listing: Annotated[bool, typer.Option("--list", help="Name the experiments.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON document on stdout, nothing else.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Reproduce an experiment of the paper; an interrupted run resumes where it stopped."""
    # not at the top: --help answers before torch is loaded
    from fewer.errors import FewerError  # noqa: PLC0415
    from paper import reproduce  # noqa: PLC0415

    if listing or not name:
        known = reproduce.EXPERIMENTS
        lines = [f"{one:<12}{about}" for one, about in known.items()]
        typer.echo(json.dumps({"experiments": known}, indent=1) if as_json else "\n".join(lines))
        return

    def say(text: str) -> None:
        if not quiet:
            typer.echo(text, err=as_json)

    began = time.perf_counter()
    try:
        done = reproduce.reproduce(
            name,
            quick=quick,
            protocol=protocol,
            out=out,
            seeds=seeds,
            data=tuple(part.strip() for part in data.split(",") if part.strip()),
            download=download,
            jobs=jobs,
            say=say,
        )
    except KeyboardInterrupt:
        typer.echo("\nstopped; finished results are kept: the same command resumes", err=True)
        raise typer.Exit(STOPPED) from None
    except (FewerError, OSError) as error:
        if debug:
            raise
        typer.echo("error: " + " ".join(str(error).split()), err=True)
        raise typer.Exit(INPUT) from error
    seconds = {one.name: one.seconds for one in done}
    if as_json:
        typer.echo(json.dumps({"out": str(out), "seconds": seconds}, indent=1))
    elif len(done) > 1:
        for one, took in seconds.items():
            say(f"{one:<12}{took:>8.1f} s")
        clock = f" of work in {time.perf_counter() - began:.1f} s" if jobs > 1 else ""
        say(f"{'together':<12}{sum(seconds.values()):>8.1f} s{clock}")


if __name__ == "__main__":
    sys.exit(app(prog_name="python -m paper"))
