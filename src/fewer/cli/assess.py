"""Commands that look at data and methods: inspect, curve, compare and stability."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fewer.cli import _options as opt
from fewer.cli._output import Output, percent, print_table, visible

if TYPE_CHECKING:
    from rich.console import Console

    from fewer.assess import Comparison, Curve, Inspection, Stability
    from fewer.data import Source

MAX_SHOWN = 10  # columns listed


@dataclass(frozen=True)
class Scoring:
    """Options of commands that score panels on held-out rows."""

    scale: Annotated[str, typer.Option(help=opt.SCALE)] = "standard"
    row_groups: Annotated[str | None, typer.Option(help=opt.ROW_GROUPS)] = None
    seed: Annotated[int, typer.Option(help=opt.SEED)] = 0
    device: Annotated[str, typer.Option(help=opt.DEVICE)] = "auto"

    def arguments(self, source: "Source") -> dict[str, Any]:
        """Keyword arguments for functions of `fewer.assess`."""
        return {
            "scale": self.scale,
            "row_groups": opt.read_column(source, self.row_groups),
            "random_state": self.seed,
            "device": self.device,
        }


def inspect(
    output: Output,
    reading: opt.Reading,
    line: opt.CommandLine,
    data: opt.DataArgument,
    scale: Annotated[
        str | None,
        typer.Option(
            help=f"{opt.SCALE} By default, none if all features seem to share a unit.",
            show_default=False,
        ),
    ] = None,
    row_groups: Annotated[str | None, typer.Option(help=opt.ROW_GROUPS)] = None,
    seed: Annotated[int, typer.Option(help=opt.SEED)] = 0,
) -> None:
    """Describe a file: its size, column types, missing and suspicious values, and a k to try.

    Example: [bold]fewer inspect data.csv[/]
    """
    from fewer.assess import inspect as inspect_rows

    with output.progress("reading") as update:
        # ignored columns are part of the result
        source = reading.open(data, warn_of_text=False, metadata=(row_groups,))
        found = inspect_rows(
            source,
            lambda step, fraction: update(step, None),
            scale=scale,
            row_groups=opt.read_column(source, row_groups),
            random_state=seed,
        )
    output.result(
        {"data": data, **found.describe()}, lambda screen: _show_inspection(found, data, screen)
    )
    if found.suggested_k is not None:
        more: dict[str, Any] = {"scale": "none"} if found.scale == "none" else {}
        if found.sentinels:
            words = [f"{value:g}" for value in found.sentinels]
            more["missing"] = [*line.options.get("missing", ()), ",".join(words)]
        output.suggest(line.selecting(found.suggested_k, **more))


def _show_inspection(found: "Inspection", data: str, screen: "Console") -> None:
    what = "standard input" if data == "-" else data
    screen.print(f"{what}: {found}", soft_wrap=True, markup=False)
    if found.ignored:
        print_table(screen, ("ignored column", "reason"), _first_rows(found.ignored))
    else:
        screen.print("ignored columns: none")
    if found.missing:
        missing = {name: percent(part) for name, part in found.missing.items()}
        rows = [*_first_rows(missing), ("all values", percent(found.missing_fraction))]
        print_table(screen, ("missing values", "missing"), rows, (1,))
    else:
        screen.print("missing values: none")
    if found.sizes:
        _show_sizes(found, screen)


def _first_rows(cells: dict[Any, str]) -> list[tuple[str, str]]:
    rows = [(str(name), text) for name, text in list(cells.items())[:MAX_SHOWN]]
    more = len(cells) - MAX_SHOWN
    return [*rows, (f"... and {more} more", "")] if more > 0 else rows


def _show_sizes(found: "Inspection", screen: "Console") -> None:
    rows = []
    for level, size in found.sizes.items():
        components = "more" if size["pca"] is None else f"{size['pca']:,}"
        unknown = components if size["pca"] is None else f"at least {components}"
        features = unknown if size["features"] is None else f"{size['features']:,}"
        row = [f"{level:.0%}", features, components]
        if "without_outliers" in size:
            k = size["without_outliers"]
            row.insert(2, "more" if k is None else f"{k:,}")
        rows.append(row)
    header = ["explained variance", "features (k)", "PCA components (reference)"]
    outliers = bool(rows) and len(rows[0]) > len(header)
    if outliers:
        header.insert(2, "without outliers")
    print_table(screen, header, rows, (1, 2, 3))
    if found.suggested_k is not None and found.explained_variance is not None:
        from fewer._tables import percent_text

        share = f"explained variance {percent_text(found.explained_variance, found.standard_error)}"
        if not found.exact:
            # not by the explained variance of all rows, which a single wrong value can decide
            usual = "without_outliers" if outliers else "features"
            sizes = [(level, size[usual]) for level, size in found.sizes.items()]
            most = found.suggested_k
            reached = max(level for level, size in sizes if size is not None and size <= most)
            without = " without outliers" if outliers else ""
            share = f"for {reached:.0%} explained variance{without} or slightly more"
            share += ": fewer select will tell"
        screen.print(f"a k to try: [bold]{found.suggested_k}[/], {share}")
    if found.sentinels:
        words = ", ".join(f"{value:g}" for value in found.sentinels)
        screen.print(f"[dim]with {words} read as missing, as in the next command[/]")
    sampled = "" if found.sampled_rows == found.rows else f" on {found.sampled_rows:,} of the rows"
    screen.print(f"[dim]held-out rows: {found.protocol}{sampled}[/]")
    if found.scale == "none":
        screen.print("[dim]features appear to share a unit, so they are not standardised[/]")


def curve(
    output: Output,
    reading: opt.Reading,
    line: opt.CommandLine,
    data: opt.DataArgument,
    k: Annotated[
        str,
        typer.Option("-k", "--k", help="Panel sizes: 10:90:10 (from, to, step), 1:20, or 5,10,20."),
    ] = "",
    out: Annotated[
        Path | None,
        typer.Option(help="Also write the curve to a .png, .svg, .pdf, .csv or .json file."),
    ] = None,
    exact: Annotated[
        bool,
        typer.Option(
            "--exact",
            help="Search separately for each k, as fewer select does: slower, slightly better. "
            "Always used for up to three sizes.",
        ),
    ] = False,
    reach: Annotated[
        float | None,
        typer.Option(
            help="Also print the smallest k that explains this fraction, such as 0.9; without "
            "--k, every size up to 100 is tried."
        ),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(help="Choose features that predict this column, by a linear map, instead."),
    ] = None,
    target_kind: opt.TargetKind = "auto",
    force: opt.ForceOption = False,
    *,
    scoring: Scoring,
    holding: opt.HeldOut,
) -> None:
    """Show the explained variance on held-out rows for several k, and suggest a k by four rules.

    Features are chosen along one nested path on the training rows; each k gets a linear decoder.
    ± is the standard error over folds. With a single set of held-out rows, each k is chosen as
    fewer select does, and ± is over rows.

    Examples: [bold]fewer curve data.csv --k 10:90:10 --out curve.png[/];
    [bold]fewer curve data.csv --k 1:100 --reach 0.9[/]
    """
    from fewer._checks import check_number
    from fewer.assess import curve as compute_curve
    from fewer.cli import _parsing as parse
    from fewer.errors import InputError

    holding.check()
    sizes = parse.sizes(k) if k else []
    if reach is not None:
        check_number("reach", reach, above=0, below=1)
    opt.check_unused(out, force)
    if out is not None and out.suffix.lower() not in opt.TABLE_OUTPUT:
        from fewer.report.figures import check_target

        check_target(out)
    with output.progress("reading") as update:
        columns = (target, scoring.row_groups, holding.holdout_column)
        source = reading.open_features(holding.paths(data), metadata=columns)
        d = source.shape[1]
        if sizes and sizes[0] > d:
            raise InputError(f"--k {k}: there are only {d} features; use smaller sizes")
        held = holding.rows(source, reading)
        if reach is not None and not sizes:
            # one nested path scores every size; a single held-out part has a search for each
            most, nested = min(100, d), isinstance(held, (str, int))
            sizes = [*range(1, most + 1)] if nested else _default_sizes(2 * most)
        found = compute_curve(
            source,
            [size for size in sizes if size <= d] or _default_sizes(d),
            target=target,
            target_kind=opt.check_kind(target, target_kind),
            exact=exact or None,
            validation=held,
            progress=update,
            **scoring.arguments(source),
        )
        if out is not None:
            found.write(out)
    document = {"out": out, **found.describe()}
    size = found.smallest_k(0.9) or found.smallest_k(0.8) or found.k[-1]
    if reach is not None:
        document["reach"] = {"level": reach, "k": found.smallest_k(reach)}
        size = found.smallest_k(reach) or found.k[-1]
    output.result(document, lambda screen: _show_curve(found, out, reach, screen))
    output.suggest(line.selecting(size))


def _default_sizes(d: int) -> list[int]:
    """Ten sizes up to half of the features, at most 100."""
    most = max(1, min(100, d // 2))
    return sorted({max(1, round(most * step / 10)) for step in range(1, 11)})


def _show_curve(found: "Curve", out: Path | None, reach: float | None, screen: "Console") -> None:
    rows: list[list[str]] = []
    for k, ours, error in zip(found.k, found.explained_variance, found.standard_error, strict=True):
        filled = round(30 * max(0.0, ours))
        bar = f"[cyan]{'█' * filled}{'░' * (30 - filled)}[/]"
        rows.append([str(k), percent(ours), percent(error), bar])
    what = "explained variance" if found.target is None else f"of {visible(found.target)}"
    header = ["k", what, "±", ""]
    if found.pca is not None:
        header += ["PCA (reference)", "median R²"]
        more = zip(rows, found.pca, found.r2_quantiles()["0.5"], strict=True)
        rows = [[*row, percent(part), f"{middle:.2f}"] for row, part, middle in more]
    print_table(screen, header, rows, (0, 1, 2, 4, 5))
    _show_protocol(found, out, screen)
    if not found.exact and found.target is None:
        screen.print("[dim]one nested path; --exact chooses each k as fewer select does[/]")
    for level in (0.8, 0.9, 0.95) if reach is None else (reach,):
        size = found.smallest_k(level)
        if size is None:
            screen.print(f"{level:.0%}: more than {found.k[-1]} features")
            break
        screen.print(f"{level:.0%}: [bold]{size}[/] features")
    rules = found.rules()
    screen.print(f"within one standard error of the best: [bold]{rules['one_standard_error']}[/]")
    screen.print(f"elbow: [bold]{rules['elbow']}[/]")
    what = "others" if found.target is None else visible(found.target)
    if found.few_groups is not None:
        few = f"{found.few_groups} groups of rows are too few to test"
        screen.print(f"{few} after how many features none explains {what} better than chance")
        return
    limit = f"more than {found.k[-1]}" if rules["noise"] is None else str(rules["noise"])
    screen.print(f"explain {what} better than permuted columns do: [bold]{limit}[/] features")


def compare(
    output: Output,
    reading: opt.Reading,
    line: opt.CommandLine,
    data: opt.DataArgument,
    k: Annotated[int, typer.Option("-k", "--k", help="Number of features.", show_default=False)],
    panel: Annotated[
        list[str] | None,
        typer.Option(
            help="Also compare this panel: a panel folder, or a file with one feature per line; "
            "can be repeated."
        ),
    ] = None,
    methods: Annotated[
        str,
        typer.Option(
            help="Comma-separated: select, search, concrete autoencoder, greedy, pivoted QR, "
            "variance, random; all by default."
        ),
    ] = "",
    out: Annotated[
        Path | None, typer.Option(help="Also write the table to a .csv or .json file.")
    ] = None,
    force: opt.ForceOption = False,
    *,
    scoring: Scoring,
    holding: opt.HeldOut,
) -> None:
    """Choose k features by several methods and score them on the same held-out rows.

    Methods see only the training rows of each fold, and all get the same linear decoder. ± is the
    standard error over folds; overlap is the fraction of features that two folds have in common.
    The score of your own panel is optimistic if these rows were used to choose it.

    Example: [bold]fewer compare data.csv -k 20 --panel mine.txt[/]
    """
    from fewer.assess import compare as compare_methods

    holding.check()
    opt.check_unused(out, force, opt.TABLE_OUTPUT)
    with output.progress("reading") as update:
        columns = (scoring.row_groups, holding.holdout_column)
        source = reading.open_features(holding.paths(data), metadata=columns)
        found = compare_methods(
            source,
            k,
            methods=[part.strip() for part in methods.split(",") if part.strip()] or None,
            panels={text: _panel(text, source.names) for text in panel or ()},
            validation=holding.rows(source, reading),
            progress=update,
            **scoring.arguments(source),
        )
        if out is not None:
            found.write(out)
    output.result(
        {"out": out, **found.describe()}, lambda screen: _show_comparison(found, out, screen)
    )
    output.suggest(line.selecting(k))


def stability(
    output: Output,
    reading: opt.Reading,
    data: opt.DataArgument,
    k: Annotated[int, typer.Option("-k", "--k", help="Number of features.", show_default=False)],
    subsamples: Annotated[int, typer.Option(help="Number of subsamples; must be even.")] = 100,
    threshold: Annotated[
        float, typer.Option(help="Selection frequency above which a feature is stable.")
    ] = 0.75,
    target: Annotated[
        str | None,
        typer.Option(help="Choose features that predict this column, by a linear map, instead."),
    ] = None,
    target_kind: opt.TargetKind = "auto",
    out: Annotated[
        Path | None, typer.Option(help="Also write the frequencies to a .csv or .json file.")
    ] = None,
    force: opt.ForceOption = False,
    *,
    constraints: opt.Constraints,
    scoring: Scoring,
) -> None:
    """Show how often each feature is chosen from half of the rows.

    Correlated features that are rarely chosen together split their votes: they form a
    cluster, whose frequency is how often any of them is chosen.

    Example: [bold]fewer stability data.csv -k 20[/]
    """
    from fewer.assess import stability as measure

    opt.check_unused(out, force, opt.TABLE_OUTPUT)
    with output.progress("reading") as update:
        source = reading.open_features(data, metadata=(target, scoring.row_groups))
        found = measure(
            source,
            k,
            subsamples=subsamples,
            threshold=threshold,
            target=target,
            target_kind=opt.check_kind(target, target_kind),
            progress=update,
            **constraints.arguments(source.names),
            **scoring.arguments(source),
        )
        if out is not None:
            found.write(out)
    output.result(
        {"out": out, **found.describe()}, lambda screen: _show_stability(found, out, screen)
    )


def _show_stability(found: "Stability", out: Path | None, screen: "Console") -> None:
    table = found.table()
    print_table(screen, table.header, table.rows, table.numbers)
    screen.print(found.sentence())
    if out is not None:
        screen.print(f"written to [bold]{out}[/]", soft_wrap=True)


def _panel(text: str, names: list[str] | None) -> Any:
    from fewer.cli import _parsing as parse

    if opt.is_panel(text):
        return opt.load_panel(Path(text))
    return parse.features([text], names, "--panel")


def _show_comparison(found: "Comparison", out: Path | None, screen: "Console") -> None:
    table = found.table()
    print_table(screen, table.header, table.rows, table.numbers)
    _show_protocol(found, out, screen)


def _show_protocol(found: "Curve | Comparison", out: Path | None, screen: "Console") -> None:
    over = "over folds" if found.folds > 1 else "over rows"
    screen.print(f"[dim]held-out rows: {found.protocol}; ± is the standard error {over}[/]")
    if out is not None:
        screen.print(f"written to [bold]{out}[/]", soft_wrap=True)
