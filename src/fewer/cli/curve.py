"""``fewer curve``: how much comes back from how many features."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fewer.cli.judging import (
    DeviceOption,
    ForceOption,
    RowGroupsOption,
    ScaleOption,
    SeedOption,
)
from fewer.cli.paths import check_free, shown
from fewer.cli.reading import DataArgument, Reading, column_beside
from fewer.cli.talk import Output, share, table

if TYPE_CHECKING:
    from rich.console import Console

    from fewer.assess import Curve

__all__ = ["run"]


def run(
    talk: Output,
    reading: Reading,
    data: DataArgument,
    k: Annotated[
        str, typer.Option("-k", "--k", help="Sizes: 10:90:10 (from, to, step), 1:20, or 5,10,20.")
    ] = "",
    out: Annotated[
        Path | None, typer.Option(help="Also write it: .png, .svg, .pdf, .csv or .json.")
    ] = None,
    exact: Annotated[
        bool,
        typer.Option("--exact", help="Search each size by itself: slower, a little better."),
    ] = False,
    scale: ScaleOption = "standard",
    row_groups: RowGroupsOption = None,
    seed: SeedOption = 0,
    device: DeviceOption = "auto",
    force: ForceOption = False,
) -> None:
    """Show how much of held-out rows k features reconstruct, for several k.

    One nested path of features is chosen from training rows; each size gets a linear decoder.

    Example: [bold]fewer curve data.csv --k 10:90:10 --out curve.png[/]
    """
    from fewer.assess import curve
    from fewer.cli.lists import read_ks
    from fewer.errors import InputError

    sizes = read_ks(k) if k else []
    if out is not None:
        check_free(out, force)
        if out.suffix.lower() not in (".csv", ".json"):
            from fewer.report.images import check_target

            check_target(out)
    with talk.progress("reading") as tell:
        tell("reading", 0.0)
        source = reading.open_features(data, beside=(row_groups,))
        d = source.shape[1]
        if sizes and sizes[0] > d:
            raise InputError(f"--k {k}: there are only {d} features; ask for fewer")
        sizes = [size for size in sizes if size <= d] or _some_sizes(d)
        found = curve(
            source,
            sizes,
            scale=scale,
            exact=exact,
            row_groups=column_beside(source, row_groups),
            random_state=seed,
            device=device,
            progress=tell,
        )
        if out is not None:
            found.write(out)
    talk.result({"out": out, **found.describe()}, lambda screen: _show(found, out, screen))
    size = next((found.reaches(level) for level in (0.9, 0.8) if found.reaches(level)), None)
    talk.next(f"fewer select {shown(data)} -k {size or found.k[-1]} --out panel/")


def _some_sizes(d: int) -> list[int]:
    """Ten sizes up to half of the features, 100 at most, where nobody says which."""
    most = max(1, min(100, d // 2))
    return sorted({max(1, round(most * step / 10)) for step in range(1, 11)})


def _show(found: "Curve", out: Path | None, screen: "Console") -> None:
    rows = table("k", "features", "", "components, a bound", right=(0, 1, 3))
    for k, at, bound in zip(found.k, found.share, found.pca, strict=True):
        bar = "█" * round(30 * max(0.0, at)) + "░" * (30 - round(30 * max(0.0, at)))
        rows.add_row(str(k), share(at), f"[cyan]{bar}[/]", share(bound))
    screen.print(rows)
    equal = "every feature counting the same" if found.scale == "standard" else "in units of data"
    times = f"mean of {found.splits} folds" if found.splits > 1 else "one split"
    screen.print(f"[dim]share of the variance of held-out rows, {equal}, {times}[/]")
    for level in (0.8, 0.9, 0.95):
        size = found.reaches(level)
        if size is None:
            screen.print(f"{level:.0%}: more than {found.k[-1]} features")
            break
        screen.print(f"{level:.0%}: [bold]{size}[/] features")
    if out is not None:
        screen.print(f"written to [bold]{out}[/]", soft_wrap=True)
