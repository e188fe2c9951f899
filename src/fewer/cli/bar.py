"""A progress bar whose time left follows from the share of work done when it last said so."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeElapsedColumn
from rich.text import Text

__all__ = ["progress_bar", "readable_time"]

ENOUGH = 0.05  # share of the work before a guess is worth anything


@contextmanager
def progress_bar(title: str, screen: Console) -> Iterator[Callable[[str, float], None]]:
    """A bar on a console; call what it gives with a text and the share that is done."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        TimeElapsedColumn(),
        _TimeLeft(),
    )
    with Progress(*columns, console=screen, transient=True) as bar:
        task = bar.add_task(title, total=1.0, whole=None)

        def tell(text: str, share: float) -> None:
            elapsed = bar.tasks[0].elapsed or 0.0
            whole = elapsed / share if share >= ENOUGH else None
            bar.update(task, description=text, completed=share, whole=whole)

        yield tell


class _TimeLeft(ProgressColumn):
    """Work comes in steps of unlike length, so the guess is renewed at each and counted down."""

    def render(self, task: Task) -> Text:
        """Say how long it will take."""
        whole = task.fields.get("whole")
        if whole is None:
            return Text("")
        left = max(0.0, whole - (task.elapsed or 0.0))
        return Text(f"about {readable_time(left)} left", style="progress.remaining")


def readable_time(seconds: float) -> str:
    """Seconds as a person would say them.

    Examples
    --------
    >>> readable_time(7.4), readable_time(200), readable_time(7200)
    ('7 s', '3 min', '2.0 h')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
