"""``fewer score``: how well a panel, or a bare list of features, reconstructs some data."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fewer.cli.panels import load_panel
from fewer.cli.paths import check_free, complete_data
from fewer.cli.reading import DataArgument, Reading, column_beside
from fewer.cli.talk import Output, share, table

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["run"]

WORST = 10


def run(
    talk: Output,
    reading: Reading,
    panel: Annotated[
        str,
        typer.Argument(
            help="A folder that fewer select wrote, or a file with one feature a line, or features "
            "with commas between.",
            autocompletion=complete_data,
            show_default=False,
        ),
    ],
    data: DataArgument,
    features_out: Annotated[
        Path | None,
        typer.Option(help="Write the error of every feature into this .csv or .json file."),
    ] = None,
    row_groups: Annotated[
        str | None,
        typer.Option(help="A bare list: rows with the same value here are held out together."),
    ] = None,
    held: Annotated[float, typer.Option(help="A bare list: share of rows to judge on.")] = 0.25,
    seed: Annotated[int, typer.Option(help="A bare list: which rows.")] = 0,
    force: Annotated[bool, typer.Option("--force", help="Replace --features-out.")] = False,
) -> None:
    """Score a panel on rows it has not seen, or a bare list of features on any data.

    A panel reconstructs all rows of the data. A bare list has no decoder: a linear one is fitted
    on part of the rows, and the score is about the others.

    Examples: [bold]fewer score panel/ test.csv[/]; [bold]fewer score genes.txt data.h5ad[/]
    """
    if features_out is not None:
        check_free(features_out, force)
        _check_form(features_out)
    with talk.progress("scoring") as tell:
        tell("scoring", 0.1)
        if (Path(panel) / "panel.json").is_file():
            found = _of_panel(Path(panel), data, reading)
        else:
            found = _of_list(panel, data, reading, row_groups, held, seed)
    rows = found.pop("by_feature")
    if features_out is not None:
        from fewer.assess.writing import write_table

        columns = {name: [row[name] for row in rows] for name in rows[0]}
        write_table(features_out, columns, rows)
        found["features_out"] = features_out
    talk.result({**found, "by_feature": rows}, lambda screen: _show(found, rows, screen))
    if "how" in found:
        talk.note(found["how"])


def _of_panel(path: Path, data: str, reading: Reading) -> dict[str, Any]:
    from fewer.data import column_names, match_columns, moments

    loaded = load_panel(path)
    name = None if loaded.target is None else loaded.target.name
    with_target = name is not None and name in (column_names(data) or _obs(data))
    source = reading.open_for(loaded, data, beside=(name,) if with_target else ())
    part = match_columns(source, loaded.names, loaded.d, "the panel")
    score = loaded.score(part)
    found: dict[str, Any] = {
        "panel": path,
        "rows": part.shape[0],
        "k": loaded.k,
        "d": loaded.d,
        "share": float(score),
        "held_out": float(loaded.held_out),
        "by_feature": _rows(
            loaded.names, loaded.indices, score.errors, moments(part).variance, loaded.d
        ),
    }
    if with_target:
        found["target"] = _target(loaded, source, part, str(name))
    return found


def _obs(data: str) -> tuple[str, ...]:
    from fewer.data import open as open_any

    return open_any(data).left_out if data.endswith(".h5ad") else ()


def _target(loaded: Any, source: Any, part: Any, name: str) -> dict[str, Any]:
    import numpy as np

    from fewer.data import read_all

    truth = column_beside(source, name)
    said = loaded.predict(read_all(part, loaded.indices))
    if loaded.target.classes is not None:
        value = float(np.mean(np.array([str(x) for x in said]) == truth))
        return {"name": name, "accuracy": value}
    true = np.asarray(truth, dtype=np.float64)
    return {
        "name": name,
        "r2": 1 - float(((said - true) ** 2).sum() / ((true - true.mean()) ** 2).sum()),
    }


def _of_list(
    text: str, data: str, reading: Reading, row_groups: str | None, held: float, seed: int
) -> dict[str, Any]:
    from fewer.assess import score_features
    from fewer.cli.lists import read_features
    from fewer.errors import InputError

    path = Path(text)
    if path.is_dir():
        raise InputError(f"{text} is a folder without a panel in it; name what fewer select wrote")
    source = reading.open_features(data, beside=(row_groups,))
    features = read_features([text], source.names, "the list")
    found = score_features(
        source,
        features,
        held=held,
        row_groups=column_beside(source, row_groups),
        random_state=seed,
    )
    times = f", {found.splits} times with other rows" if found.splits > 1 else ""
    chosen = set(found.features)
    indices = [j for j, name in enumerate(found.names or range(source.shape[1])) if name in chosen]
    return {
        "list": text,
        "rows": source.shape[0],
        "k": len(found.features),
        "d": len(found.errors),
        "share": found.share,
        "equal": found.equal,
        "rows_fitted": found.rows_fitted,
        "rows_judged": found.rows_judged,
        "splits": found.splits,
        "how": f"a linear decoder was fitted on {found.rows_fitted:,} rows and judged on "
        f"{found.rows_judged:,} others{times}; a list has no decoder of its own",
        "by_feature": _rows(found.names, indices, found.errors, found.variances, len(found.errors)),
    }


def _rows(names: Any, indices: Any, errors: Any, variances: Any, d: int) -> list[dict[str, Any]]:
    chosen = {int(j) for j in indices}
    return [
        {
            "feature": j if names is None else names[j],
            "measured": j in chosen,
            "error": float(errors[j]),
            "variance": float(variances[j]),
            "share": 1 - float(errors[j]) / float(variances[j]) if variances[j] > 0 else None,
        }
        for j in range(d)
    ]


def _show(found: dict[str, Any], rows: list[dict[str, Any]], screen: "Console") -> None:
    about = f"{found['rows']:,} rows, {found['k']} of {found['d']} features"
    screen.print(f"[bold]{share(found['share'])}[/] of the variance reconstructed: {about}")
    if "equal" in found:
        screen.print(f"{share(found['equal'])} with every feature counting the same")
    if "held_out" in found:
        screen.print(f"{share(found['held_out'])} on held-out rows when the panel was made")
    for what, value in found.get("target", {}).items():
        if what != "name":
            screen.print(f"[bold]{value:.3f}[/] {what} of {found['target']['name']}")
    known = [row for row in rows if row["share"] is not None and not row["measured"]]
    worst = table("hardest features", "share", "mean squared error", right=(1, 2))
    for row in sorted(known, key=lambda row: row["share"])[:WORST]:
        worst.add_row(str(row["feature"]), share(row["share"]), f"{row['error']:.4g}")
    if known:
        screen.print(worst)


def _check_form(path: Path) -> None:
    from fewer.errors import InputError

    if path.suffix.lower() not in (".csv", ".json"):
        raise InputError(f"--features-out {path} ends in {path.suffix!r}; use .csv or .json")
