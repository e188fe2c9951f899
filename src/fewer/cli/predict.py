"""``fewer predict``: the target of a panel from the measured features."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fewer.cli import _options as opt
from fewer.cli._output import Output

if TYPE_CHECKING:
    from fewer.data import Source


def run(
    output: Output,
    reading: opt.Reading,
    panel: opt.PanelArgument,
    measured: opt.DataArgument,
    out: Annotated[Path, typer.Option(help="The .csv or .json file to write.")] = Path(
        "predictions.csv"
    ),
    probabilities: Annotated[
        bool, typer.Option("--probabilities", help="Also write the probability of each class.")
    ] = False,
    force: opt.ForceOption = False,
) -> None:
    """Predict the target of a panel from a table of the measured features.

    The panel must have been made with fewer select --target. Text columns of the input, such as
    identifiers, are kept.

    Example: [bold]fewer predict panel/ measured.csv --out predictions.csv[/]
    """
    from fewer._tables import write_table

    opt.check_unused(out, force, table="--out")
    loaded = opt.load_panel(panel)
    with output.progress("predicting") as update:
        update("predicting", 0.1)
        source = reading.open_for(loaded, measured)
        values = loaded.predict(source)
        target: Any = loaded.target  # predict has refused panels without one
        name = target.name or "target"
        columns = _text_columns(source)
        columns.pop(name, None)
        columns |= _columns(name, values)
        if probabilities:
            for label, column in zip(target.classes, loaded.predict_proba(source).T, strict=True):
                columns[f"probability of {label}"] = column.tolist()
        rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        write_table(out, columns, rows)
    output.result(
        {"out": out, "target": name, "rows": len(values)},
        f"{len(values):,} predictions of {name} from {loaded.k} measured features, written to "
        f"[bold]{out}[/]",
    )


def _columns(name: str, values: Any) -> dict[str, list[Any]]:
    """One column of predictions, or one per output of a target with several."""
    if values.ndim == 1:
        return {name: values.tolist()}
    return {f"{name} {at}": values[:, at].tolist() for at in range(values.shape[1])}


def _text_columns(source: "Source") -> dict[str, list[Any]]:
    from fewer.data.reading import read_metadata

    found: dict[str, list[Any]] = {}
    for part in read_metadata(source):
        for title in part.column_names if part is not None else ():
            found.setdefault(title, []).extend(part.column(title).to_pylist())
    return found
