"""What a command prints: results on stdout for people or machines, everything else on stderr."""

import json as json_format
import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fewer._progress import shown

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["Output", "console", "percent", "print_table", "visible"]

Progress = Callable[[str, float | None], None]
PIPED_WIDTH = 100  # columns if the output is not a terminal
# control characters except tab and newline, and those that change the text direction
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


@dataclass(frozen=True)
class Output:
    """Options that every command has, and the two consoles."""

    json: Annotated[
        bool, typer.Option("--json", help="Print a single JSON document to stdout.")
    ] = False
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Print only results, warnings and errors.")
    ] = False
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False

    def result(self, document: dict[str, Any], show: Callable[["Console"], None] | str) -> None:
        """Print the document as JSON; for a person, a text or what ``show`` prints."""
        if self.json:
            typer.echo(json_format.dumps(_jsonable(document), indent=1, ensure_ascii=False))
        elif isinstance(show, str):
            console().print(visible(show), soft_wrap=True)
        else:
            show(console())

    def suggest(self, text: str) -> None:
        """Print the command to run next."""
        if not self.json and not self.quiet:
            from rich.markup import escape

            console().print(f"[dim]next:[/] [bold]{escape(text)}[/]", soft_wrap=True)

    @contextmanager
    def progress(self, title: str) -> Iterator[Progress]:
        """Show progress on stderr: a bar, or a line every ten seconds without a terminal.

        Yields a function of a text and the fraction done, which is None if unknown.
        """
        screen = console(err=True)
        if self.json or self.quiet:
            yield lambda text, fraction: None
        else:
            with shown(title, screen) as update:
                yield update


def console(*, err: bool = False) -> "Console":
    """A console that does not wrap lines at 80 columns if the output is not a terminal."""
    from rich.console import Console

    found = Console(stderr=err, highlight=False)
    if not found.is_terminal and not found.record:
        found = Console(stderr=err, highlight=False, width=PIPED_WIDTH)
    return found


def print_table(
    screen: "Console",
    header: Sequence[str],
    rows: Iterable[Sequence[str]],
    numbers: Collection[int] = (),
) -> None:
    """Print a table; columns in ``numbers`` are right-aligned, markup in cells takes effect."""
    from rich import box
    from rich.table import Table

    drawn = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for at, name in enumerate(header):
        right = at in numbers
        drawn.add_column(name, justify="right" if right else "left", overflow="fold", no_wrap=right)
    for row in rows:
        drawn.add_row(*map(visible, row))
    screen.print(drawn)


def visible(text: str) -> str:
    """Text from data with control characters escaped, since they could rewrite the screen."""
    return CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text)


def percent(value: float | None) -> str:
    """A fraction as a percentage; an empty string if unknown."""
    return "" if value is None or math.isnan(value) else f"{value:.1%}"


def _jsonable(value: Any) -> Any:
    """NumPy's numbers as Python's, NaN and infinity as null, anything unknown as text."""
    if isinstance(value, dict):
        return {str(key): _jsonable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set)):
        return [_jsonable(item) for item in value]
    if hasattr(value, "tolist"):  # NumPy arrays and scalars
        return _jsonable(value.tolist())
    if isinstance(value, float):  # also Score, a float that carries more
        return float(value) if math.isfinite(value) else None
    return value if value is None or isinstance(value, (bool, int, str)) else str(value)
