"""``fewer demo``: ten pixels of sixty-four, and whole digits from them."""

from pathlib import Path
from typing import Annotated

import typer

from fewer.cli.talk import Output, console

__all__ = ["run"]


def run(
    talk: Output,
    out: Annotated[Path, typer.Option(help="Where the picture goes.")] = Path("demo/digits.png"),
    seed: Annotated[int, typer.Option(help="Of the split and of the method.")] = 0,
) -> None:
    """Choose 10 of 64 pixels of handwritten digits and rebuild whole digits from them."""
    from fewer.cli.digits_demo import run_demo, show_demo

    shown = not talk.quiet and not talk.json and console(err=True).is_terminal
    outcome = run_demo(out, seed=seed, progress=shown)
    talk.result(
        {"chosen": outcome.chosen, "errors": outcome.errors, "picture": outcome.picture},
        lambda screen: show_demo(outcome, screen),
    )
    talk.next("fewer inspect data.csv   (a file of your own)")
