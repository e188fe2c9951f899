"""``fewer score``: how well a panel or a list of features reconstructs data."""

import math
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fewer.cli import _options as opt
from fewer.cli._output import Output, print_table, visible

if TYPE_CHECKING:
    from rich.console import Console

    from fewer.assess import Scorecard

# of scores in JSON, by kind of target
KEYS = {"class": "accuracy", "number": "r2", "count": "d2", "ordinal": "d2"}
KEYS |= {"survival": "concordance"}
HARDEST = 10  # features printed
WEAK = 0.05  # p-value above which a contribution may be due to chance


def score(
    output: Output,
    reading: opt.Reading,
    panel: Annotated[
        str,
        typer.Argument(
            help="A panel folder written by fewer select, a file with one feature per line, or "
            "comma-separated features.",
            autocompletion=opt.complete_data,
            show_default=False,
        ),
    ],
    data: opt.DataArgument,
    features_out: Annotated[
        Path | None,
        typer.Option(help="Write the error of every feature to this .csv or .json file."),
    ] = None,
    row_groups: Annotated[
        str | None,
        typer.Option(
            help="For a list: column of group labels; rows of a group are held out together."
        ),
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(
            help="Compare with another panel folder or list of features, with a 95% interval."
        ),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(
            help="Judge how well a linear map from the features explains this column instead. Of a "
            "panel that predicts, its own target is scored without this."
        ),
    ] = None,
    target_kind: opt.TargetKind = "auto",
    seed: Annotated[int, typer.Option(help=f"For a list: {opt.SEED}")] = 0,
    force: opt.ForceOption = False,
    *,
    constraints: opt.Constraints,
) -> None:
    """Score a panel on new rows, or a list of features on any data.

    A panel reconstructs all rows of the data. A list has no decoder, so linear decoders are fitted
    and scored by cross-validation. A list is also compared with random lists of the same size and
    with the best that a search finds, and the most useful swaps are shown. ± is a
    standard error: over rows for a panel, over folds for a list.

    Examples: [bold]fewer score panel/ test.csv[/]; [bold]fewer score genes.txt data.h5ad[/];
    [bold]fewer score mine.txt data.csv --against panel/[/];
    [bold]fewer score mine.txt data.csv --target outcome[/]
    """
    opt.check_unused(features_out, force, opt.TABLE_OUTPUT)
    kind = opt.check_kind(target, target_kind)
    with output.progress("scoring"):
        if opt.is_panel(panel):
            found = _score_panel(Path(panel), data, reading)
        else:
            found = _score_list(panel, data, reading, row_groups, target, seed)
        if against is not None or target is not None or not opt.is_panel(panel):
            found["scorecard"] = _scorecard(
                panel, against, data, reading, row_groups, target, kind, constraints, seed
            )
    rows = found.pop("by_feature")
    others = [row["r2"] for row in rows if row["r2"] is not None and not row["measured"]]
    found["median_r2"] = median(others) if others else None
    if features_out is not None:
        from fewer._tables import write_table

        columns = {name: [row[name] for row in rows] for name in rows[0]}
        write_table(features_out, columns, rows)
        found["features_out"] = features_out
    card = found.pop("scorecard", None)
    described = {} if card is None else {"scorecard": card.describe()}
    output.result(
        {**found, **described, "by_feature": rows}, lambda screen: _show(found, rows, card, screen)
    )


def _score_panel(path: Path, data: str, reading: opt.Reading) -> dict[str, Any]:
    import numpy as np

    from fewer.cells import noise_of
    from fewer.data.columns import match_columns

    loaded = opt.load_panel(path)
    source, with_target = open_with_target(loaded, data, reading)
    part = match_columns(source, loaded.names, loaded.d, "the panel")
    noise = noise_of(loaded, part)
    result = loaded.reconstructor.score(part, noise=noise)
    measured, signal = loaded.reconstructor.variances(part, noise)
    # standardised as measured, like the held-out score, also where the noise is known
    weights = 1 / np.where(measured > 0, measured, np.inf)
    equal = loaded.reconstructor.score(part, weights, noise)
    found: dict[str, Any] = {
        "panel": path,
        "rows": part.shape[0],
        "k": loaded.k,
        "d": loaded.d,
        "explained_variance": float(result),
        "standard_error": result.standard_error,
        "explained_variance_standardized": float(equal) if (measured > 0).any() else math.nan,
        "standard_error_standardized": equal.standard_error,
        "held_out": float(loaded.held_out),
        "estimates": {name: one._asdict() for name, one in loaded.estimates.items()},
        "held_out_protocol": loaded.settings.get("protocol"),
        "own_rows": _own_rows(loaded, part),
        "by_feature": _by_feature(loaded.names, loaded.features, result.errors, signal),
    }
    if loaded.evidence is not None and "equal" in loaded.evidence.explained:
        found["held_out_standardized"] = loaded.evidence.explained["equal"]["panel"]
    if with_target:
        found["target"] = _score_target(loaded, source, part)
    return found


def open_with_target(loaded: Any, data: str, reading: opt.Reading) -> tuple[Any, bool]:
    """Rows for a panel, with the columns of its target as metadata if they have them."""
    from fewer.data import open as open_any

    names = () if loaded.target is None else loaded.target.columns
    cells = opt.holds_cells(data)
    columns = open_any(data).metadata_columns if cells else reading.columns(data) or ()
    with_target = bool(names) and set(names) <= set(columns)
    source = reading.open_for(loaded, data, metadata=names if with_target else ())
    return source, with_target


def _own_rows(loaded: Any, part: Any) -> bool:
    """Whether a panel was fitted on these rows."""
    from fewer.assess.scoring import Rows

    return part.shape[0] >= 4 and Rows(part, "standard", None, 0, "cpu").made(loaded)


def _score_target(loaded: Any, source: Any, part: Any) -> dict[str, Any]:
    from fewer.data import read_all
    from fewer.errors import InputError

    target = loaded.target
    truth, rows = truth_of(target, source)
    if not rows:
        raise InputError(f"{target.name} is missing in every row; score rows that have it")
    found: dict[str, Any] = {"name": target.name, "rows": rows}
    scores = loaded.score_target(read_all(part, loaded.indices), truth)
    if target.parts:
        return found | {
            f"{KEYS[one.kind.name]} of {one.name}": scores[one.name] for one in target.parts
        }
    return found | {KEYS[target.kind.name]: scores}


def truth_of(target: Any, source: Any) -> tuple[Any, int]:
    """The target in the metadata of rows, None where any of it is missing; in how many it is."""
    import numpy as np

    from fewer._checks import truth_of_words
    from fewer.labels import are_codes

    texts = opt.text_columns(source)
    decimal = "." if source.dialect is None else source.dialect.decimal
    columns = {
        name: np.array([str(value) for value in texts[name]], dtype=object)
        for name in target.columns
    }
    codes = (*source.missing, "", "None", "nan", "NaN")
    missing = np.any([are_codes(one, codes) for one in columns.values()], axis=0)

    def whole(known: Any) -> Any:
        found = np.full(len(missing), None, dtype=object)
        found[~missing] = known
        return found

    columns = {name: one[~missing] for name, one in columns.items()}
    truth: Any
    if target.kind.name == "survival":
        time, event = target.columns
        events = truth_of_words(columns[event])
        truth = (
            whole(_numbers(columns[time], time, decimal)),
            whole(_numbers(columns[event], event, decimal) if events is None else events),
        )
    elif target.parts:
        truth = {
            one.name: whole(_truth(one.kind, columns[one.name], one.name, decimal))
            for one in target.parts
        }
    else:
        name = target.columns[0]
        truth = whole(_truth(target.kind, columns[name], name, decimal))
    return truth, int((~missing).sum())


def _truth(kind: Any, texts: Any, name: str, decimal: str) -> Any:
    """The text of a column as labels of classes, or as numbers."""
    import numpy as np

    if kind.classes is None:
        return _numbers(texts, name, decimal)
    known = {str(label): label for label in kind.classes.tolist()}
    return np.array([known.get(text, text) for text in texts], dtype=object)


def _numbers(texts: Any, name: str, decimal: str) -> Any:
    import numpy as np

    from fewer.data.csv import is_number
    from fewer.errors import InputError

    wrong = [text for text in texts if not is_number(text, decimal)]
    if wrong:
        raise InputError(
            f"{name} has values that are not numbers, such as {wrong[0]!r}; correct them, or give "
            "--missing if they stand for missing values"
        )
    return np.array([float(text.replace(decimal, ".")) for text in texts])


def _score_list(
    text: str,
    data: str,
    reading: opt.Reading,
    row_groups: str | None,
    target: str | None,
    seed: int,
) -> dict[str, Any]:
    from fewer.assess import score_features
    from fewer.assess.scoring import check_without_target
    from fewer.cli import _parsing as parse
    from fewer.errors import InputError

    if Path(text).is_dir():
        raise InputError(f"{text} is not a panel folder; use one written by fewer select")
    source = reading.open_features(data, metadata=(row_groups, target))
    features = parse.features([text], source.names, "the list")
    check_without_target(features, () if target is None else (target,), "the list")
    found = score_features(
        source,
        features,
        row_groups=opt.read_column(source, row_groups),
        random_state=seed,
    )
    return {
        "list": text,
        "rows": source.shape[0],
        "k": len(found.features),
        "d": len(found.errors),
        "explained_variance": found.explained_variance,
        "standard_error": found.standard_error,
        "explained_variance_standardized": found.explained_variance_standardized,
        "standard_error_standardized": found.standard_error_standardized,
        "protocol": found.protocol,
        "by_feature": _by_feature(found.names, found.features, found.errors, found.variances),
    }


def _scorecard(
    panel: str,
    against: str | None,
    data: str,
    reading: opt.Reading,
    row_groups: str | None,
    target: str | None,
    target_kind: str,
    constraints: opt.Constraints,
    seed: int,
) -> "Scorecard":
    from fewer.assess import score as judge

    if target is None and opt.is_panel(panel):
        known = opt.load_panel(Path(panel)).target
        named = () if known is None else known.columns
        if len(named) == 1 and named[0] in (reading.columns(data) or ()):
            target = named[0]
            target_kind = known.kind.name if known is not None else target_kind
    source = reading.open_features(data, metadata=(row_groups, target))
    return judge(
        _judged(panel, source, "the list"),
        source,
        against=None if against is None else _judged(against, source, "--against"),
        target=target,
        target_kind=target_kind,
        **constraints.arguments(source.names),
        row_groups=opt.read_column(source, row_groups),
        random_state=seed,
    )


def _judged(text: str, source: Any, option: str) -> Any:
    from fewer.cli import _parsing as parse
    from fewer.constraints import find_column

    if opt.is_panel(text):
        return opt.load_panel(Path(text))
    features = parse.features([text], source.names, option)
    for one in features:
        find_column(source.names, source.shape[1], one, option)
    return features


def _by_feature(names: Any, chosen: list[Any], errors: Any, variances: Any) -> list[dict[str, Any]]:
    measured = set(chosen)
    columns = (names or range(len(errors)), errors.tolist(), variances.tolist())
    return [
        {
            "feature": name,
            "measured": name in measured,
            "error": error,
            "variance": variance,
            "r2": 1 - error / variance if variance > 0 else None,
        }
        for name, error, variance in zip(*columns, strict=True)
    ]


def _show(
    found: dict[str, Any],
    rows: list[dict[str, Any]],
    card: "Scorecard | None",
    screen: "Console",
) -> None:
    about = f"{found['rows']:,} rows, {found['k']} of {found['d']} features"
    from fewer._tables import percent_text

    shares = [
        percent_text(value, found.get(error)) if (value := found.get(name)) is not None else ""
        for name, error in (
            ("explained_variance_standardized", "standard_error_standardized"),
            ("explained_variance", "standard_error"),
        )
    ]
    cells = [("these rows", *shares)]
    if "estimates" in found:
        known = found["estimates"]
        held = [
            percent_text(known[name]["value"], known[name]["standard_error"])
            if name in known
            else ""
            for name in ("equal", "units")
        ]
        cells.append(("the rows held out by fewer select", *held))
    screen.print(about)
    header = ("explained variance", "features standardised", "in the units of the data")
    print_table(screen, header, cells, (1, 2))
    if "protocol" in found:
        screen.print(f"[dim]held-out rows: {found['protocol']}; linear decoders[/]")
    if found.get("held_out_protocol"):
        screen.print(f"[dim]held out by fewer select: {found['held_out_protocol']}[/]")
    if found.get("own_rows"):
        screen.print(
            "the panel was fitted on these rows, so the first line is optimistic; use the second"
        )
    for metric, value in found.get("target", {}).items():
        if metric not in ("name", "rows"):
            label = metric.replace("r2", "R²").replace("d2", "D²")
            of = "" if " of " in label else f" of {found['target']['name']}"
            if math.isnan(value):
                why = "different values" if "²" in label else "rows, one of them with an event"
                screen.print(f"[bold]no[/] {visible(label + of)}: it needs at least two {why}")
                continue
            screen.print(f"[bold]{value:.3f}[/] {visible(label + of)}")
    if found["median_r2"] is not None:
        screen.print(f"median R² of unmeasured features: {found['median_r2']:.3f}")
    known = [row for row in rows if row["r2"] is not None and not row["measured"]]
    hardest = [
        (str(row["feature"]), f"{row['r2']:.3f}", f"{row['error']:.4g}")
        for row in sorted(known, key=lambda row: row["r2"])[:HARDEST]
    ]
    if hardest:
        header = ("hardest features", "R²", "mean squared error")
        print_table(screen, header, hardest, (1, 2))
    if card is not None:
        _show_card(card, screen)


def _show_card(card: "Scorecard", screen: "Console") -> None:
    table = card.table()
    print_table(screen, table.header, table.rows, table.numbers)
    about = "Features standardised: " if card.target is None else ""
    screen.print(visible(about + card.sentence()))
    swaps = [
        (str(row["out"]), str(row["into"]), f"{row['gain']:+.1%}", f"{row['standard_error']:.1%}")
        for row in card.exchanges
    ]
    if swaps:
        print_table(screen, ("swap", "for", "gain", "±"), swaps, (2, 3))
    weak = [str(row["feature"]) for row in card.contributions if (row["p_value"] or 0) > WEAK]
    if weak:
        from fewer._checks import join_names

        what = "the other features" if card.target is None else visible(card.target)
        rows = ", by one row per group of rows" if "groups of rows" in card.protocol else ""
        screen.print(
            f"explain {what} no better than chance (p > {WEAK}{rows}): {join_names(weak, 8)}"
        )
