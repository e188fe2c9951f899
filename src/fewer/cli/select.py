"""``fewer select``: choose features, learn to reconstruct the rest, keep the panel."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fewer.cli.paths import check_free, check_panel_folder, shown
from fewer.cli.processes import Processes
from fewer.cli.reading import DataArgument, Reading, column_beside
from fewer.cli.running import TypedLine
from fewer.cli.talk import Output, share, table

if TYPE_CHECKING:
    from rich.console import Console

    from fewer.panel import Panel

__all__ = ["run"]

CHOICE, COMPARISON = "What may be chosen", "How candidates are found and compared"
MOST = 100  # features that are printed; the panel has them all


def run(
    talk: Output,
    reading: Reading,
    line: TypedLine,
    data: DataArgument,
    k: Annotated[
        int | None,
        typer.Option("-k", "--k", help="How many features to choose.", show_default=False),
    ] = None,
    out: Annotated[Path, typer.Option(help="The folder that the panel is kept in.")] = Path(
        "panel"
    ),
    force: Annotated[bool, typer.Option("--force", help="Replace a panel that is there.")] = False,
    target: Annotated[
        str | None,
        typer.Option(
            help="Choose for predicting this column instead (.h5ad: of obs).",
            rich_help_panel=CHOICE,
        ),
    ] = None,
    include: Annotated[
        list[str] | None,
        typer.Option(
            help="Features to have in any case: names with commas between, a file with one name a "
            "line, or a pattern such as 'IL*'; can be repeated.",
            rich_help_panel=CHOICE,
        ),
    ] = None,
    exclude: Annotated[
        list[str] | None,
        typer.Option(help="Features that must not be chosen, likewise.", rich_help_panel=CHOICE),
    ] = None,
    costs: Annotated[
        Path | None,
        typer.Option(help="A file of two columns: feature, cost.", rich_help_panel=CHOICE),
    ] = None,
    budget: Annotated[
        float | None,
        typer.Option(help="Most that the panel may cost, instead of -k.", rich_help_panel=CHOICE),
    ] = None,
    cost_weight: Annotated[
        float,
        typer.Option(help="Trade-off: error that a unit of cost is worth.", rich_help_panel=CHOICE),
    ] = 0.0,
    groups: Annotated[
        Path | None,
        typer.Option(
            help="A file of two columns: feature, group that is measured together and counts once.",
            rich_help_panel=CHOICE,
        ),
    ] = None,
    decoder: Annotated[
        str,
        typer.Option(
            help="What reconstructs: linear, or widths of hidden layers such as 320,320.",
            rich_help_panel=COMPARISON,
        ),
    ] = "linear",
    scale: Annotated[
        str,
        typer.Option(
            help="standard: every feature counts the same. none: by its own variance.",
            rich_help_panel=COMPARISON,
        ),
    ] = "standard",
    strategies: Annotated[
        str,
        typer.Option(
            help="auto, or some of search, closed_form, gradient with commas between.",
            rich_help_panel=COMPARISON,
        ),
    ] = "auto",
    row_groups: Annotated[
        str | None,
        typer.Option(
            help="A column: rows with the same value (one patient) are held out together.",
            rich_help_panel=COMPARISON,
        ),
    ] = None,
    time_limit: Annotated[
        float | None,
        typer.Option(help="Seconds after which nothing new is tried.", rich_help_panel=COMPARISON),
    ] = None,
    seed: Annotated[
        int, typer.Option(help="The same seed gives the same panel.", rich_help_panel=COMPARISON)
    ] = 0,
    device: Annotated[
        str,
        typer.Option(help="auto, cpu, cuda, cuda:1, mps.", rich_help_panel=COMPARISON),
    ] = "auto",
    report: Annotated[
        Path | None, typer.Option(help="Also write a report into this .html file.")
    ] = None,
    *,
    processes: Processes,
) -> None:
    """Choose k features from which all others can be reconstructed, and keep the panel.

    Examples: [bold]fewer select data.csv -k 50 --out panel/[/];
    [bold]fewer select data.parquet --costs costs.csv --budget 100 --include 'IL*'[/];
    [bold]fewer select cells.h5ad -k 200 --target cell_type[/];
    [bold]fewer select cells.h5ad -k 200 --devices 8 --resume[/]
    """
    if k is None and budget is None:
        raise typer.BadParameter("say how many features: -k 50, or --costs file --budget 100")
    check_panel_folder(out, force)
    if report is not None:
        check_free(report, force)
    kept = processes.kept_in(out)
    if processes.starts:
        processes.start(line)
        return
    from fewer.cli.lists import (
        read_costs,
        read_decoder,
        read_features,
        read_groups,
        read_strategies,
    )
    from fewer.selection import select
    from fewer.train.launch import joined

    options: dict[str, Any] = {
        "decoder": read_decoder(decoder),
        "strategies": read_strategies(strategies),
        "budget": budget,
        "cost_weight": cost_weight,
        "target": target,
        "scale": scale,
        "time_limit": time_limit,
        "random_state": seed,
        "device": device,
        "checkpoint": kept,
    }
    with (
        processes.unfinished(kept),
        processes.worker(),
        joined(device) as team,
        (talk if team.leads else Output(quiet=True)).progress("reading") as tell,
    ):
        tell("reading", 0.0)
        keep = tuple(name for text in include or () for name in text.split(","))
        source = reading.open_features(data, beside=(target, row_groups), keep=keep)
        options |= {
            "include": read_features(include or (), source.names, "--include"),
            "exclude": read_features(exclude or (), source.names, "--exclude"),
            "costs": read_costs(costs, source.names),
            "groups": read_groups(groups, source.names),
            "row_groups": column_beside(source, row_groups),
        }
        panel = select(source, k, progress=tell, **options)
        reading.keep_units(panel, data, source)
        tell("writing", 0.99)
        if panel.evidence is not None:
            panel.evidence.command = line
            panel.evidence.source |= {
                "path": data,
                "kind": f"{Path(data).suffix or 'unknown'} file",
            }
        panel.save(out)
        if report is not None and team.leads:
            from fewer.report import write

            write(panel, report)
    if not team.leads:
        return
    talk.result(
        {"out": out, "report": report, **_document(panel)},
        lambda screen: _show(panel, out, screen),
    )
    talk.next(f"fewer report {shown(out)}" if report is None else f"open {shown(report)}")


run.stopped = (  # type: ignore[attr-defined]
    "no panel was written yet; the same command with --resume goes on from what was found so far, "
    "and --time-limit 60 ends it in time with the best until then"
)


def _document(panel: "Panel") -> dict[str, Any]:
    known = panel.evidence
    found = {
        "k": panel.k,
        "d": panel.d,
        "features": panel.features,
        "held_out": float(panel.held_out),
        "leaderboard": [
            {name: row[name] for name in ("strategy", "error", "seconds")}
            for row in panel.leaderboard
        ],
        "settings": panel.settings,
    }
    if known is not None:
        found["order"] = [panel.names[j] if panel.names else int(j) for j in known.order]
        found |= {"gains": known.gains, "explained": known.explained}
    if panel.target is not None:
        found["target"] = {"name": panel.target.name, "held_out": panel.target.held_out}
    return found


def _show(panel: "Panel", out: Path, screen: "Console") -> None:
    _show_features(panel, screen)
    board = table("strategy", "held-out error", "ratio", "seconds", right=(1, 2, 3))
    best = panel.leaderboard[0]["error"] or 1.0
    for row in panel.leaderboard:
        board.add_row(
            row["strategy"],
            f"{row['error']:.5g}",
            f"{row['error'] / best:.3f}",
            f"{row['seconds']:.1f}",
        )
    screen.print(board)
    _show_shares(panel, screen)
    if panel.target is not None:
        what = "R squared" if panel.target.classes is None else "accuracy"
        screen.print(
            f"[bold]{panel.target.held_out:.3f}[/] {what} of {panel.target.name} on held-out rows"
        )
    screen.print(f"panel of {panel.k} of {panel.d} features kept in [bold]{out}[/]", soft_wrap=True)


def _show_features(panel: "Panel", screen: "Console") -> None:
    known = panel.evidence
    if known is None:
        screen.print(", ".join(str(name) for name in panel.features), soft_wrap=True)
        return
    rows = table("", "feature", "adds", "together", right=(0, 2, 3))
    together = 0.0
    for rank, (column, gain) in enumerate(zip(known.order, known.gains, strict=True), start=1):
        together += float(gain)
        if rank <= MOST:
            name = str(column) if panel.names is None else panel.names[column]
            rows.add_row(str(rank), name, share(float(gain)), share(together))
    screen.print(rows)
    if panel.k > MOST:
        screen.print(f"... and {panel.k - MOST} more: `fewer export {{panel}} --to list`")
    screen.print("[dim]adds: share of the variance of all features, best first, on all rows[/]\n")


def _show_shares(panel: "Panel", screen: "Console") -> None:
    known = panel.evidence
    if known is None or not known.explained:
        screen.print(f"[bold]{share(panel.held_out)}[/] of the variance of held-out rows")
        return
    titles = {"equal": "features equal", "units": "in units of the data"}
    metrics = [metric for metric in titles if metric in known.explained]
    rows = table("held-out rows reconstructed by", *(titles[m] for m in metrics), right=(1, 2))
    names = {
        "panel": f"[bold]this panel of {panel.k}[/]",
        "greedy": "greedy choice",
        "random": "random choice",
        "pca": f"{panel.k} components, a bound",
    }
    for role, name in names.items():
        cells = [known.explained[metric].get(role) for metric in metrics]
        if any(cell is not None for cell in cells):
            rows.add_row(name, *(share(cell) for cell in cells))
    screen.print(rows)
