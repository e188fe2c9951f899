"""Commands that use a saved panel: impute, check, predict, substitutes, report and export."""

from enum import StrEnum
from itertools import compress
from pathlib import Path
from shlex import quote
from typing import Annotated, Any

import typer

from fewer.cli import _options as opt
from fewer.cli._output import Output, percent, print_table

SURVIVAL = "survival"  # a kind of target
Format = StrEnum("Format", ["onnx", "list", "json", "config", "command", "python"])


def impute(
    output: Output,
    reading: opt.Reading,
    panel: opt.PanelArgument,
    measured: opt.DataArgument,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Output file (.csv, .tsv, .parquet, .feather, .npy, .h5, .h5ad); by default next "
            "to the input, in the same format.",
            show_default=False,
        ),
    ] = None,
    interval: Annotated[
        float | None,
        typer.Option(
            help="Also write prediction intervals with this coverage, such as 0.9: lower and "
            "upper bounds in two more files next to --out."
        ),
    ] = None,
    use_all: Annotated[
        bool,
        typer.Option(
            "--use-all", help="Predict from every measured feature, not only those of the panel."
        ),
    ] = False,
    replace_measured: Annotated[
        bool,
        typer.Option(
            "--replace-measured",
            help="Replace measured values of features outside the panel by their reconstruction.",
        ),
    ] = False,
    allow_absent: Annotated[
        bool,
        typer.Option(
            "--allow-absent",
            help="Predict panel features for which the file has no column.",
        ),
    ] = False,
    strict: Annotated[
        bool,
        typer.Option("--strict", help="Reject rows in which fewer check finds a problem."),
    ] = False,
    predict: Annotated[
        bool,
        typer.Option(
            "--predict",
            help="Also predict the target of the panel, in a .csv file next to --out; with "
            "--interval, including bounds or sets of classes.",
        ),
    ] = False,
    force: opt.ForceOption = False,
) -> None:
    """Reconstruct all features from a table of the measured ones.

    Row order, identifiers and measured values are preserved. Missing values are predicted from
    those present. Rows are processed in chunks, so neither table needs to fit into memory.

    Example: [bold]fewer impute panel/ measured.csv --out all.parquet --interval 0.9[/]
    """
    from rich.markup import escape

    from fewer._checks import join_and
    from fewer.checks import check_rows
    from fewer.errors import InputError, warn
    from fewer.reconstructor import bound_paths
    from fewer.reconstructor import impute as write_reconstruction

    loaded = opt.load_panel(panel)

    def look(values: Any) -> None:
        found = check_rows(loaded.reconstructor, values)
        if not found.ok and strict:
            raise InputError(f"{found.summary()}; fix the rows, or omit --strict")
        if not found.ok:
            warn(f"{found.summary()}; fewer check shows details, --strict rejects such rows")

    path = _default_out(measured) if out is None else out
    bounds = [] if interval is None else [*bound_paths(path)]
    paths = [path, *bounds]
    beside = _predictions_path(path) if predict else None
    for one in [*paths, beside]:
        opt.check_unused(one, force)
    predicted = None
    if predict:  # first, so that a panel without a target fails before anything is written
        source = reading.open_for(loaded, measured, measured=True)
        predicted = source, _predictions(loaded, source, interval=interval)
    with output.progress("imputing") as update:
        done = write_reconstruction(
            loaded.reconstructor,
            reading.open_for(loaded, measured) if opt.holds_cells(measured) else measured,
            path,
            loaded._filling(interval, use_all, replace_measured, allow_absent),
            options=reading.options(measured, loaded),
            progress=lambda fraction: update("imputing", fraction),
            check=look if strict or loaded.reconstructor.statistics is not None else None,
        )
    more = {}
    if predicted is not None and beside is not None:
        _write_predictions(loaded, *predicted, beside)
        paths.append(beside)
        more["predictions"] = beside
    lines = [
        f"{done.rows:,} rows, {loaded.d} features from {loaded.k} measured, written to "
        + join_and([f"[bold]{one}[/]" for one in paths])
    ]
    if done.missing:
        lines.append(escape(done.describe(loaded.k)))
    if done.kept and not replace_measured:
        used = "used and kept" if use_all else "kept unchanged"
        lines.append(f"{done.kept:,} measured values of other features were {used}")
    if predicted is not None:
        lines += _hazards(loaded)
    output.result(
        {
            "out": path,
            "bounds": bounds,
            **more,
            "rows": done.rows,
            "features": loaded.d,
            "measured": loaded.k,
            "missing": done.missing,
            "incomplete_rows": done.incomplete_rows,
            "absent": done.absent,
            "predicted": done.predicted,
            "kept": 0 if replace_measured else done.kept,
        },
        "\n".join(lines),
    )


def check(
    output: Output,
    reading: opt.Reading,
    panel: opt.PanelArgument,
    measured: opt.DataArgument,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Also write a .csv or .json file with the distance of every row from the training "
            "rows, its p-value, and the expected error.",
            show_default=False,
        ),
    ] = None,
    batches: Annotated[
        int, typer.Option(help="Number of consecutive batches of rows in which drift is measured.")
    ] = 10,
    batch_column: Annotated[
        str | None,
        typer.Option(help="Column with the batch of each row, such as the day."),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(help="Also plot the drift to a .png, .svg or .pdf file."),
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit with code 1 if anything is found.")
    ] = False,
    force: opt.ForceOption = False,
) -> None:
    """Check whether new rows look like the training rows of a panel.

    Detects missing values, values out of range, shifted or rescaled features (such as changed
    units), stuck sensors, codes for missing values, swapped columns, and unusual combinations of
    values.

    Example: [bold]fewer check panel/ new.csv --out rows.csv[/]
    """
    from rich.markup import escape

    from fewer._tables import write_table
    from fewer.errors import InputError

    opt.check_unused(out, force, opt.TABLE_OUTPUT)
    opt.check_unused(plot, force)
    loaded = opt.load_panel(panel)
    with output.progress("checking"):
        source = reading.open_for(loaded, measured, metadata=(batch_column,), measured=True)
        given = opt.read_column(source, batch_column)
        found = loaded.check(source, batches=batches if given is None else given)
        if plot is not None:
            _draw_drift(found, plot)
        if out is not None:
            columns = opt.text_columns(source, loaded.names or ()) | {
                "distance": found.distance.tolist(),
                "p": found.p.tolist(),
                "expected_error": found.expected_error.tolist(),
            }
            rows = [
                dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)
            ]
            write_table(out, columns, rows, source.dialect)
    if strict and not found.ok:
        raise InputError(f"{found.summary()} (--strict)")
    lines = [escape(str(found.table())), ""]
    lines += [f"[bold yellow]{escape(str(one))}[/]" for one in found.findings]
    if found.ok:
        lines.append(f"[bold green]{found.summary()}[/]")
    unusual = int((found.p < 0.01).sum())
    lines.append(f"{unusual:,} of {found.rows:,} rows are unusual (p < 0.01)")
    if found.drift is not None:
        first = found.drift.movers[0]
        moved = found.drift.shift[:, first]
        lines.append(
            f"over {len(moved)} batches, {escape(str(found.drift.features[first]))} moves most: "
            f"{moved.min():+.2f} to {moved.max():+.2f} standard deviations"
        )
    output.result(found.describe() | {"out": out}, "\n".join(lines))


def _draw_drift(found: Any, path: Path) -> None:
    from matplotlib.figure import Figure

    from fewer.report.figures import save_figure

    figure = Figure(figsize=(7.2, 4.2), layout="constrained")
    found.plot(figure.subplots())
    save_figure(figure, path)


def _predictions_path(out: Path) -> Path:
    """all.parquet becomes all.predictions.csv."""
    from fewer.data.write import whole_suffix

    return out.with_name(out.name.removesuffix(whole_suffix(out)) + ".predictions.csv")


def _default_out(measured: str) -> Path:
    """measured.csv becomes measured.complete.csv; formats that cannot be written become .csv."""
    from fewer.data.csv import file_form
    from fewer.data.fetch import is_elsewhere
    from fewer.data.write import FORMS, whole_suffix
    from fewer.errors import InputError

    path = Path(measured)
    kinds = whole_suffix(path)
    if is_elsewhere(measured) or path.is_dir() or not kinds or "*" in measured:
        raise InputError(f"specify the output file for {measured} with --out")
    kept = kinds if file_form(path) in FORMS else ".csv"
    return path.with_name(path.name.removesuffix(kinds) + ".complete" + kept)


def predict(
    output: Output,
    reading: opt.Reading,
    panel: opt.PanelArgument,
    measured: opt.DataArgument,
    out: Annotated[Path, typer.Option(help="Output file, .csv or .json.")] = Path(
        "predictions.csv"
    ),
    probabilities: Annotated[
        bool, typer.Option("--probabilities", help="Also write the probability of each class.")
    ] = False,
    interval: Annotated[
        float | None,
        typer.Option(
            help="Also write prediction intervals, or sets of classes, with this coverage, such as "
            "0.9."
        ),
    ] = None,
    force: opt.ForceOption = False,
) -> None:
    """Predict the target of a panel from a table of the measured features.

    The panel must have been created with fewer select --target. Predictions of the target y are in
    the column "predicted y", log hazards in "log hazard of y" (higher means earlier). Columns of
    the input that are not features of the panel, such as identifiers, are preserved.

    Example: [bold]fewer predict panel/ measured.csv --out predictions.csv --interval 0.9[/]
    """
    opt.check_unused(out, force, opt.TABLE_OUTPUT)
    loaded = opt.load_panel(panel)
    with output.progress("predicting"):
        source = reading.open_for(loaded, measured, measured=True)
        found = _predictions(loaded, source, probabilities=probabilities, interval=interval)
        name, rows = _write_predictions(loaded, source, found, out)
    said = f"{rows:,} predictions of {name} from {loaded.k} measured features, written to "
    output.result(
        {"out": out, "target": name, "rows": rows},
        "\n".join([f"{said}[bold]{out}[/]", *_hazards(loaded)]),
    )


def _hazards(loaded: Any) -> list[str]:
    """A line that says what log hazards mean, if a panel predicts them."""
    parts = loaded.target.parts or (loaded.target,)
    hazards = any(part.kind.name == SURVIVAL for part in parts)
    return ["a higher log hazard means an earlier event"] if hazards else []


def _predictions(
    loaded: Any, source: Any, *, probabilities: bool = False, interval: float | None = None
) -> dict[str, list[Any]]:
    """Columns of predictions."""
    from fewer.errors import InputError

    target: Any = loaded.target
    bounded = interval is not None and target is not None
    several = target is not None and bool(target.parts)
    numbers = bounded and target.classes is None  # which refuses hazards
    found = loaded.predict(source, interval=interval) if numbers else loaded.predict(source)
    values, *both = found if numbers else (found,)
    name = target.name or "target"
    columns: dict[str, list[Any]] = {}

    def add(title: str, numbers: Any, what: str = "") -> None:
        table = numbers.reshape(len(numbers), -1).T.tolist()
        titles = [title] if numbers.ndim == 1 else [f"{title} {at}" for at in range(len(table))]
        columns.update(zip([one + what for one in titles], table, strict=True))

    def by_name(parts: Any) -> dict[str, Any]:
        return parts if several else {name: parts}

    kinds = {part.name: part.kind for part in target.parts} or {name: target.kind}
    for title, part in by_name(values).items():
        add(_predicted(title, kinds[title]), part)
    for what, bound in zip((" lower", " upper"), both, strict=False):
        for title, part in by_name(bound).items():
            add(title, part, what)
    classes = any(kind.classes is not None for kind in kinds.values())
    if probabilities and not classes:
        raise InputError(
            f"--probabilities is for classes, and {name} is of kind {target.kind.name!r}; leave "
            "it out"
        )
    if interval is not None and classes:
        for title, sets in by_name(loaded.predict_set(source, interval)).items():
            labels = [str(label) for label in kinds[title].classes]
            columns[f"{title} set"] = ["; ".join(compress(labels, row)) for row in sets]
    if probabilities:
        for title, chances in by_name(loaded.predict_proba(source)).items():
            start = f"{title}: probability of" if several else "probability of"
            for label, column in zip(kinds[title].classes, chances.T, strict=True):
                columns[f"{start} {label}"] = column.tolist()
    return columns


def _predicted(name: str, kind: Any) -> str:
    """Title of a column of predictions, which may lie beside the truth."""
    return f"{'log hazard of' if kind.name == SURVIVAL else 'predicted'} {name}"


def _write_predictions(
    loaded: Any, source: Any, found: dict[str, list[Any]], out: Path
) -> tuple[str, int]:
    """Write predictions next to the metadata columns; return the target's name and the rows."""
    from fewer._tables import write_table

    name = loaded.target.name or "target"
    taken = {*found, *map(str, loaded.names or range(loaded.d))}
    columns = opt.text_columns(source, taken) | found
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    write_table(out, columns, rows, source.dialect)
    return name, len(rows)


def substitutes(
    output: Output,
    panel: opt.PanelArgument,
    out: Annotated[
        Path | None, typer.Option(help="Also write the table to a .csv or .json file.")
    ] = None,
    force: opt.ForceOption = False,
) -> None:
    """Show what is lost without each feature of a panel, and what could replace it.

    Losses are in explained variance, with the linear decoder refitted; if the panel has a target,
    they refer to the target and, if a network predicts it, to a surrogate of the network on
    held-out rows. Substitutes respect the constraints of the panel.
    Dependents are the features that lose most without a feature.

    Example: [bold]fewer substitutes panel/[/]
    """
    from fewer._tables import write_table

    opt.check_unused(out, force, opt.TABLE_OUTPUT)
    rows = opt.load_panel(panel).substitutes()
    if out is not None:
        write_table(out, _columns(rows), rows)
    shown = [
        (
            str(row["feature"]),
            percent(row["lost_without"]),
            ", ".join(other["feature"] for other in row["dependents"]),
            ", ".join(f"{o['feature']} ({100 * o['loss']:.2f}%)" for o in row["substitutes"]),
        )
        for row in rows
    ]
    header = ("feature", "lost without", "dependents", "substitutes (loss)")
    output.result(
        {"panel": panel, "out": out, "features": rows},
        lambda screen: print_table(screen, header, shown, (1,)),
    )


def _columns(rows: list[dict[str, Any]]) -> dict[str, list[Any]]:
    """The rows as table columns: three substitutes, each with its loss."""
    found: dict[str, list[Any]] = {name: [r[name] for r in rows] for name in rows[0]}
    for kind in ("dependents", "substitutes"):
        lists = found.pop(kind)
        for at in range(3):
            for name in lists[0][0] if lists[0] else ("feature",):
                cells = [one[at][name] if at < len(one) else None for one in lists]
                found[f"{kind[:-1]}_{at + 1}" + ("" if name == "feature" else f"_{name}")] = cells
    return found


def report(
    output: Output,
    reading: opt.Reading,
    panel: opt.PanelArgument,
    out: Annotated[
        Path | None,
        typer.Option(help="Output file; PANEL.html by default.", show_default=False),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            help="Additional rows to evaluate, such as a test set.",
            autocompletion=opt.complete_data,
        ),
    ] = None,
    title: Annotated[str | None, typer.Option(help="Title of the page.")] = None,
    image_shape: Annotated[
        str, typer.Option(help="If features are pixels: height x width, such as 28x28.")
    ] = "",
    rows: Annotated[
        bool,
        typer.Option(
            "--rows/--no-rows",
            help="Whether the report may contain rows of the data or only statistics.",
        ),
    ] = True,
    force: opt.ForceOption = False,
) -> None:
    """Write a report on a panel: a single, self-contained HTML file.

    Example: [bold]fewer report panel/ --data test.csv[/]
    """
    from fewer.cli.score import open_with_target, truth_of
    from fewer.report import write

    loaded = opt.load_panel(panel)
    path = Path(f"{panel.absolute().name}.html") if out is None else out
    opt.check_unused(path, force)
    options: dict[str, Any] = {"image_shape": _parse_shape(image_shape)} if image_shape else {}
    with output.progress("reading") as update:
        more = None
        if data is not None:
            more, with_target = open_with_target(loaded, data, reading)
            if with_target:
                truth, known = truth_of(loaded.target, more)
                options |= {"truth": truth} if known else {}
        update("writing", None)
        write(loaded, path, data=more, title=title, rows=rows, **options)
    written = {"out": path, "bytes": path.stat().st_size}
    output.result(written, f"report written to [bold]{path}[/]")
    paths = quote(str(path)), quote(str(panel))
    use = "impute" if loaded.target is None else "predict"
    output.suggest("open {0} in a browser; fewer {use} {1} measured.csv".format(*paths, use=use))


def _parse_shape(text: str) -> tuple[int, int]:
    from fewer.errors import InputError

    parts = text.lower().replace("×", "x").split("x")
    if len(parts) != 2 or not all(part.strip().isdecimal() for part in parts):
        raise InputError(f"--image-shape {text}: use height x width, such as 28x28")
    return int(parts[0]), int(parts[1])


def export(
    output: Output,
    panel: opt.PanelArgument,
    to: Annotated[
        Format,
        typer.Option(
            "--to",
            help="onnx: the decoder as an ONNX graph. list: the chosen features, one per line. "
            "json: a description of the panel. config, command, python: how to reproduce it, "
            "as a file for fewer select --config, a command, or Python code.",
        ),
    ] = Format.list,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Output file; by default PANEL.onnx for onnx, stdout for all others.",
            show_default=False,
        ),
    ] = None,
    force: opt.ForceOption = False,
) -> None:
    """Export a panel as ONNX, a list of features, JSON, or what reproduces it.

    Examples: [bold]fewer export panel/ --to list > genes.txt[/];
    [bold]fewer export panel/ --to onnx --out panel.onnx[/];
    [bold]fewer export panel/ --to config --out fewer.toml[/]
    """
    import json

    from fewer._files import write_text
    from fewer.export import describe, export_onnx

    loaded = opt.load_panel(panel)
    if to is Format.onnx:
        path = Path(f"{panel.absolute().name}.onnx") if out is None else out
        opt.check_unused(path, force)
        difference = export_onnx(loaded, path)
        output.result(
            {"out": path, "largest_difference": difference},
            f"written to [bold]{path}[/]; outputs agree with the panel to within "
            f"{difference:.1e} standard deviations",
        )
        return
    if to is Format.list:
        text = "".join(f"{name}\n" for name in loaded.features)
    elif to is Format.json:
        text = json.dumps(describe(loaded), indent=1, ensure_ascii=False) + "\n"
    else:
        text = loaded.to_config() if to is Format.config else _remaking(loaded, to)
    opt.check_unused(out, force)
    if out is not None:
        write_text(out, text)
        output.result({"out": out}, f"written to [bold]{out}[/]")
    elif output.json:
        output.result(describe(loaded), "")
    else:
        typer.echo(text, nl=False)


def _remaking(loaded: Any, to: Format) -> str:
    """The command or the Python code that reproduces a panel."""
    from fewer.errors import InputError
    from fewer.reproduce import python_of

    known = loaded.evidence
    text = None
    if known is not None:
        text = known.command if to is Format.command else python_of(known)
    if text is None:
        other = "python" if to is Format.command else "command"
        raise InputError(f"no {to} to reproduce this panel was recorded; try --to {other}")
    return f"{text}\n"
