"""``fewer reproduce``: the tables and figures of the paper."""

import time
from pathlib import Path
from typing import Annotated

import typer

from fewer.cli._output import Output, console

__all__ = ["run"]


def run(
    output: Output,
    name: Annotated[str, typer.Argument(help="An experiment, or all; --list names them.")] = "",
    quick: Annotated[bool, typer.Option("--quick", help="Smaller versions, in minutes.")] = False,
    protocol: Annotated[
        str, typer.Option(help="clean: nothing learned from test rows. paper: as the paper does.")
    ] = "clean",
    out: Annotated[Path, typer.Option(help="Where tables, figures and results go.")] = Path(
        "results"
    ),
    seeds: Annotated[int | None, typer.Option(help="Splits and starts.", min=1)] = None,
    data: Annotated[
        str, typer.Option(help="Data sets to use, with commas between; names of files end in them.")
    ] = "",
    download: Annotated[
        bool, typer.Option("--download", help="Fetch data sets that are not there from OpenML.")
    ] = False,
    jobs: Annotated[int, typer.Option(help="Processes that share the work.", min=1)] = 1,
    listing: Annotated[bool, typer.Option("--list", help="Name the experiments.")] = False,
) -> None:
    """Run an experiment of the concrete autoencoder paper; a stopped run goes on where it was."""
    from fewer.paper import EXPERIMENTS
    from fewer.paper import reproduce as reproduced

    if listing or not name:
        lines = [f"[bold]{known:<12}[/]{about}" for known, about in EXPERIMENTS.items()]
        output.result({"experiments": EXPERIMENTS}, lambda screen: screen.print("\n".join(lines)))
        return
    sets = tuple(part.strip() for part in data.split(",") if part.strip())
    screen = console(err=output.json)

    def say(text: str) -> None:
        if not output.quiet:
            screen.print(text, highlight=False, markup=False, soft_wrap=True)

    began = time.perf_counter()
    done = reproduced(
        name,
        quick=quick,
        protocol=protocol,
        out=out,
        seeds=seeds,
        data=sets,
        download=download,
        jobs=jobs,
        say=say,
    )
    seconds = {one.name: one.seconds for one in done}
    if output.json:
        output.result({"out": out, "seconds": seconds}, lambda screen: None)
    elif len(done) > 1:
        for one, took in seconds.items():
            say(f"{one:<12}{took:>8.1f} s")
        clock = f", in {time.perf_counter() - began:.1f} s by the clock" if jobs > 1 else ""
        say(f"{'together':<12}{sum(seconds.values()):>8.1f} s{clock}")


AFTER_INTERRUPT = "what was finished is kept: the same command goes on from there"
