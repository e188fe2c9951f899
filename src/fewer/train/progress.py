"""A progress bar for training, shown only when asked for."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

__all__ = ["EpochBar", "epoch_bar"]


class EpochBar(Protocol):
    """Takes a row of history after each epoch."""

    def __call__(self, row: dict[str, Any]) -> None:
        """Show one more epoch."""
        ...


@contextmanager
def epoch_bar(title: str, epochs: int, shown: bool) -> Iterator[EpochBar]:
    """Show epochs, temperature, loss, mean max probability, distinct features and time left.

    Examples
    --------
    >>> with epoch_bar("training", epochs=1, shown=False) as bar:
    ...     bar({"epoch": 1, "loss": 0.5})
    """
    if not shown:
        yield lambda row: None
        return
    # rich takes a while to import and most fits show nothing
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn  # noqa: PLC0415

    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=6),  # all of it fits into 80 columns
        TextColumn("{task.fields[state]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns) as progress:
        task = progress.add_task(title, total=epochs, state="")

        def show(row: dict[str, Any]) -> None:
            progress.update(task, completed=row["epoch"], state=_describe(row))

        yield show


def _describe(row: dict[str, Any]) -> str:
    parts = [f"loss {row['loss']:.3g}"]
    if row.get("val_loss") is not None:
        parts.append(f"held out {row['val_loss']:.3g}")
    if "temperature" in row:
        parts.insert(0, f"T {row['temperature']:.2g}")
        parts.append(f"max p {row['mean_max_probability']:.3f}")
        parts.append(f"{row['distinct']} distinct")
    return " ".join(parts)
