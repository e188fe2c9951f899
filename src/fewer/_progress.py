"""How the progress of a long call is shown: a bar on a terminal, elsewhere a line now and then."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["Lines", "TimeLeft", "shown"]

Report = Callable[[str, float | None], None]  # what is going on, and the fraction done if known
Clock = Callable[[], float]

EVERY = 10.0  # seconds between lines
TICK = 0.5  # seconds between two looks at the clock
MIN_FRACTION, MIN_SECONDS = 0.03, 1.0  # before which nothing is said about the remaining time
NEARLY_DONE = 0.9


class TimeLeft:
    """The time that remains, from the fractions of the work done so far and when.

    Counted down between updates. When it has run out and the work goes on, that is said.
    """

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self.clock = clock
        self.start = clock()
        self.fraction: float | None = None
        self._origin = self.start, 0.0  # when, and with which fraction, the work began
        self._end: float | None = None

    @property
    def seconds(self) -> float:
        """Seconds since the beginning."""
        return self.clock() - self.start

    def update(self, fraction: float | None) -> None:
        """Take the fraction of the work that is done; None where it is not known."""
        now, self.fraction = self.clock(), fraction
        if fraction is None or fraction <= self._origin[1]:  # only preparation so far
            self._origin, self._end = (now, fraction or 0.0), None
            return
        began, first = self._origin
        if fraction - first >= MIN_FRACTION and now - began >= MIN_SECONDS:
            self._end = now + (now - began) * (1 - fraction) / (fraction - first)

    def __str__(self) -> str:
        if self._end is None:
            return ""
        left = self._end - self.clock()
        if left > -0.5:
            return f"about {_duration(max(left, 1.0))} left"
        return "finishing" if (self.fraction or 0.0) >= NEARLY_DONE else "longer than estimated"


class Lines:
    """Progress as lines of text: every ten seconds, so that short work is silent.

    With ``messages``, also each message when it comes; with ``last``, a line at the end.
    """

    def __init__(
        self,
        write: Callable[[str], object],
        *,
        messages: bool = False,
        last: bool = False,
        clock: Clock = time.monotonic,
    ) -> None:
        self.write, self.messages, self.last = write, messages, last
        self.left = TimeLeft(clock)
        self.text = ""
        self._last = self.left.start
        self._lock = threading.Lock()
        self._done = threading.Event()

    def update(self, text: str, fraction: float | None = None) -> None:
        """Take what is going on, and the fraction of the work that is done."""
        with self._lock:
            new, self.text = text != self.text, text
            self.left.update(fraction)
            if self.messages and new:
                self._write()

    def tick(self) -> None:
        """Write a line if it is time for one."""
        with self._lock:
            if self.left.clock() - self._last >= EVERY:
                self._write()

    def _write(self) -> None:
        self._last = self.left.clock()
        fraction = self.left.fraction
        parts = [self.text, "" if not fraction else f"{fraction:.0%} done", str(self.left)]
        self.write(f"[{self.left.seconds:6.1f} s] {', '.join(part for part in parts if part)}")

    def __enter__(self) -> Self:
        threading.Thread(target=self._tick, name="fewer-progress", daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self._done.set()
        if self.last:
            with self._lock:
                self._write()

    def _tick(self) -> None:
        while not self._done.wait(TICK):
            self.tick()


@contextmanager
def shown(title: str, screen: "Console", *, dense: bool = False) -> Iterator[Report]:
    """A bar, or a line every ten seconds where the console is not a terminal.

    Call what it yields with a text and the fraction done. ``dense`` is for long texts, the last of
    which stays.
    """
    if screen.is_terminal:
        with _bar(title, screen, dense) as update:
            yield update
        return
    write = partial(screen.print, markup=False, soft_wrap=True)
    with Lines(write, last=dense) as lines:
        lines.update(title)
        yield lines.update


@contextmanager
def _bar(title: str, screen: "Console", dense: bool) -> Iterator[Report]:
    # rich is slow to import, and most calls show nothing
    from rich.progress import (  # noqa: PLC0415
        BarColumn,
        Progress,
        ProgressColumn,
        Task,
        TextColumn,
        TimeElapsedColumn,
    )
    from rich.text import Text  # noqa: PLC0415

    left = TimeLeft()

    class Remaining(ProgressColumn):
        def render(self, task: Task) -> Text:
            text = str(left).replace("about ", "~") if dense else str(left)
            return Text(text, style="progress.remaining")

    columns: list[ProgressColumn] = [
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=4 if dense else 20),
    ]
    if not dense:
        columns.append(TimeElapsedColumn())
    with Progress(*columns, Remaining(), console=screen, transient=not dense) as progress:
        task = progress.add_task(title, total=None)

        def update(text: str, fraction: float | None) -> None:
            left.update(fraction)
            total = None if fraction is None else 1.0
            progress.update(task, description=text, completed=fraction or 0.0, total=total)

        yield update


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
