"""``fewer curve``: explained variance against the number of features."""

from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

from fewer.cli import _options as opt
from fewer.cli._output import Output, percent, print_splits, print_table

if TYPE_CHECKING:
    from rich.console import Console

    from fewer.assess import Curve


def run(
    output: Output,
    reading: opt.Reading,
    data: opt.DataArgument,
    k: Annotated[
        str,
        typer.Option(
            "-k", "--k", help="Numbers of features: 10:90:10 (from, to, step), 1:20, or 5,10,20."
        ),
    ] = "",
    out: Annotated[
        Path | None,
        typer.Option(help="Also write the curve to a .png, .svg, .pdf, .csv or .json file."),
    ] = None,
    exact: Annotated[
        bool,
        typer.Option("--exact", help="Search each k separately: slower, slightly better."),
    ] = False,
    scale: opt.ScaleOption = "standard",
    row_groups: opt.RowGroupsOption = None,
    seed: opt.SeedOption = 0,
    device: opt.DeviceOption = "auto",
    force: opt.ForceOption = False,
) -> None:
    """Show the explained variance of held-out rows for several k.

    Features are chosen as one nested path on the training rows; each k gets a linear decoder.

    Example: [bold]fewer curve data.csv --k 10:90:10 --out curve.png[/]
    """
    from fewer.assess import curve
    from fewer.cli import _parsing as parse
    from fewer.errors import InputError

    sizes = parse.sizes(k) if k else []
    if out is not None:
        opt.check_unused(out, force)
        if out.suffix.lower() not in (".csv", ".json"):
            from fewer.report.figures import check_target

            check_target(out)
    with output.progress("reading") as update:
        update("reading", 0.0)
        source = reading.open_features(data, metadata=(row_groups,))
        d = source.shape[1]
        if sizes and sizes[0] > d:
            raise InputError(f"--k {k}: there are only {d} features; use smaller numbers")
        found = curve(
            source,
            [size for size in sizes if size <= d] or _default_sizes(d),
            scale=scale,
            exact=exact,
            row_groups=opt.read_column(source, row_groups),
            random_state=seed,
            device=device,
            progress=update,
        )
        if out is not None:
            found.write(out)
    output.result({"out": out, **found.describe()}, lambda screen: _show(found, out, screen))
    size = found.smallest_k(0.9) or found.smallest_k(0.8) or found.k[-1]
    output.suggest(f"fewer select {quote(data)} -k {size} --out panel/")


def _default_sizes(d: int) -> list[int]:
    """Ten sizes up to half of the features, at most 100."""
    most = max(1, min(100, d // 2))
    return sorted({max(1, round(most * step / 10)) for step in range(1, 11)})


def _show(found: "Curve", out: Path | None, screen: "Console") -> None:
    rows = []
    for k, ours, pca in zip(found.k, found.explained_variance, found.pca, strict=True):
        filled = round(30 * max(0.0, ours))
        bar = f"[cyan]{'█' * filled}{'░' * (30 - filled)}[/]"
        rows.append((str(k), percent(ours), bar, percent(pca)))
    print_table(screen, ("k", "explained variance", "", "PCA (reference)"), rows, (0, 1, 3))
    print_splits(screen, found, "folds", out)
    for level in (0.8, 0.9, 0.95):
        size = found.smallest_k(level)
        if size is None:
            screen.print(f"{level:.0%}: more than {found.k[-1]} features")
            break
        screen.print(f"{level:.0%}: [bold]{size}[/] features")
