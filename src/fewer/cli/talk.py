"""How a command talks: results on stdout for people or machines, everything else on stderr."""

import json as json_format
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

__all__ = ["Output", "plain", "share", "table"]

Tell = Callable[[str, float], None]
PIPED = 100  # columns where nobody says how many there are


@dataclass(frozen=True)
class Output:
    """Options that every command has, and the two consoles."""

    json: Annotated[
        bool, typer.Option("--json", help="Print one JSON document on stdout, nothing else.")
    ] = False
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Only results, warnings and errors.")
    ] = False
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False

    def result(self, document: dict[str, Any], show: Callable[["Console"], None]) -> None:
        """Print what was found: the document, or what ``show`` makes of it for a person."""
        if self.json:
            typer.echo(json_format.dumps(plain(document), indent=1, ensure_ascii=False))
        else:
            show(console())

    def next(self, text: str) -> None:
        """Say which command would come next."""
        if not self.json and not self.quiet:
            console().print(f"[dim]next:[/] [bold]{_escaped(text)}[/]", soft_wrap=True)

    def note(self, text: str) -> None:
        """Say something by the way, on stderr."""
        if not self.json and not self.quiet:
            typer.echo(text, err=True)

    @contextmanager
    def progress(self, title: str) -> Iterator[Tell]:
        """A bar with the time left on stderr; call what it gives with a text and a share done."""
        screen = console(err=True)
        if self.json or self.quiet or not screen.is_terminal:
            yield lambda text, share: None
            return
        from fewer.cli.bar import progress_bar

        with progress_bar(title, screen) as tell:
            yield tell


def console(*, err: bool = False) -> "Console":
    """A console that does not break lines at 80 where the output is no terminal."""
    from rich.console import Console

    found = Console(stderr=err, highlight=False)
    if not found.is_terminal and not found.record:
        found = Console(stderr=err, highlight=False, width=PIPED)
    return found


def table(*columns: str, title: str | None = None, right: tuple[int, ...] = ()) -> "Table":
    """A plain table; the columns in ``right`` hold numbers."""
    from rich import box
    from rich.table import Table

    made = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for at, name in enumerate(columns):
        made.add_column(
            name, justify="right" if at in right else "left", overflow="fold", no_wrap=at in right
        )
    return made


def share(value: float | None) -> str:
    """A share of the variance for people.

    Examples
    --------
    >>> share(0.8312), share(None)
    ('83.1%', '')
    """
    return "" if value is None or math.isnan(value) else f"{value:.1%}"


def plain(value: Any) -> Any:
    """The same as JSON can hold it: NumPy's numbers as Python's, NaN and infinity as null.

    Examples
    --------
    >>> plain({"a": (1, float("nan"))})
    {'a': [1, None]}
    """
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set)):
        return [plain(item) for item in value]
    if hasattr(value, "tolist"):  # arrays and numbers of NumPy
        return plain(value.tolist())
    if isinstance(value, float):  # also Score, which is a float with more to it
        return float(value) if math.isfinite(value) else None
    return value if value is None or isinstance(value, (bool, int, str)) else str(value)


def _escaped(text: str) -> str:
    from rich.markup import escape

    return escape(text)
