"""``fewer predict``: the target of a panel from the measured features."""

from pathlib import Path
from typing import Annotated, Any

import typer

from fewer.cli import _options as opt
from fewer.cli._output import Output


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
        columns = {title: part for title, part in opt.text_columns(source).items() if title != name}
        outputs = [name] if values.ndim == 1 else [f"{name} {at}" for at in range(values.shape[1])]
        columns |= dict(zip(outputs, values.reshape(len(values), -1).T.tolist(), strict=True))
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
