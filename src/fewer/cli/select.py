"""``fewer select``: choose features, learn to reconstruct the rest, save the panel."""

import json
import os
import shlex
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fewer.cli._options import (
    CommandLine,
    DataArgument,
    Reading,
    check_parent,
    check_unused,
    is_panel,
    quoted,
    read_column,
)
from fewer.cli._output import Output, percent, print_table

if TYPE_CHECKING:
    from rich.console import Console

    from fewer.panel import Panel

__all__ = ["run"]

CHOICE, COMPARISON, PARALLEL = (
    "Target and constraints",
    "Search and validation",
    "Parallel runs and resuming",
)
MAX_SHOWN = 100  # features that are printed; the panel has them all
AFTER_INTERRUPT = (
    "no panel was written; rerun the same command with --resume to continue, or with "
    "--time-limit 60 to stop in time with the best panel found so far"
)
ERROR_FILE = "TORCHELASTIC_ERROR_FILE"  # where torchrun looks for the reason of a failure
WORKER = "FEWER_WORKER"


@dataclass(frozen=True)
class Processes:
    """Options of parallel runs, and what follows from them."""

    devices: Annotated[
        int,
        typer.Option(
            help="Processes on this machine: one per GPU, or any number of CPU processes, "
            "each with its own part of the rows.",
            min=1,
            rich_help_panel=PARALLEL,
        ),
    ] = 1
    nodes: Annotated[
        int,
        typer.Option(
            help="Number of machines; run the same command on each, with MASTER_ADDR set to the "
            "host name of one of them.",
            min=1,
            rich_help_panel=PARALLEL,
        ),
    ] = 1
    checkpoint: Annotated[
        Path | None,
        typer.Option(
            help="Folder for unfinished work; by default beside the panel, with .unfinished "
            "appended to its name. Deleted when the panel has been written.",
            rich_help_panel=PARALLEL,
            show_default=False,
        ),
    ] = None
    resume: Annotated[
        bool,
        typer.Option(
            "--resume", help="Continue from unfinished work, if any.", rich_help_panel=PARALLEL
        ),
    ] = False

    @property
    def many(self) -> bool:
        """Whether more than one process was asked for."""
        return self.devices * self.nodes > 1

    @property
    def starts(self) -> bool:
        """Whether this process starts the others, rather than being one of them."""
        return self.many and WORKER not in os.environ

    def checkpoint_folder(self, out: Path) -> Path:
        """Folder of unfinished work, which must not be overwritten by mistake."""
        folder = self.checkpoint
        if folder is None:
            folder = out.absolute().with_name(f"{out.name}.unfinished")
        if WORKER in os.environ or self.resume:
            return folder
        if (folder / "fit.json").is_file():
            from fewer.errors import InputError

            raise InputError(
                f"{folder} holds unfinished work: add --resume to continue it, or delete the "
                "folder to start over"
            )
        return folder

    @contextmanager
    def unfinished(self, folder: Path) -> Iterator[None]:
        """Keep the folder of interrupted work, but not that of unusable input."""
        existed = folder.exists()
        try:
            yield
        except Exception:
            if not (existed or self.many):
                shutil.rmtree(folder, ignore_errors=True)
            raise

    def start(self, line: str) -> None:
        """Run a command in as many processes as were asked for, and wait for them."""
        from fewer.distributed import spawn

        os.environ[WORKER] = "1"
        program = "from fewer.cli import main; main()"
        try:
            spawn(
                ["-c", program, *shlex.split(line)[1:]],
                devices=self.devices,
                nodes=self.nodes,
                hint="Rerun the command with --resume to continue from the last checkpoint",
            )
        finally:
            del os.environ[WORKER]

    @contextmanager
    def worker(self) -> Iterator[None]:
        """Hand an error in a worker to the process that started it, which prints it once."""
        if WORKER not in os.environ:
            yield
            return
        import warnings

        from fewer.errors import FewerError, FewerWarning

        if os.environ.get("RANK") != "0":
            warnings.simplefilter("ignore", FewerWarning)  # rank 0 shows them
        try:
            yield
        except (FewerError, OSError) as error:
            text = json.dumps({"message": str(error), "timestamp": int(time.time())})
            if ERROR_FILE in os.environ:
                Path(os.environ[ERROR_FILE]).write_text(text, encoding="utf-8")
            raise typer.Exit(1) from error
        except KeyboardInterrupt:
            raise typer.Exit(130) from None


def run(
    output: Output,
    reading: Reading,
    line: CommandLine,
    data: DataArgument,
    k: Annotated[
        int | None,
        typer.Option("-k", "--k", help="Number of features to choose.", show_default=False),
    ] = None,
    out: Annotated[Path, typer.Option(help="The folder to save the panel in.")] = Path("panel"),
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing panel.")] = False,
    target: Annotated[
        str | None,
        typer.Option(
            help="Choose features that predict this column instead (.h5ad: a column of obs).",
            rich_help_panel=CHOICE,
        ),
    ] = None,
    include: Annotated[
        list[str] | None,
        typer.Option(
            help="Features that must be included: comma-separated names, a file with one name per "
            "line, or a pattern such as 'IL*'; can be repeated.",
            rich_help_panel=CHOICE,
        ),
    ] = None,
    exclude: Annotated[
        list[str] | None,
        typer.Option(
            help="Features that must not be chosen, in the same form.", rich_help_panel=CHOICE
        ),
    ] = None,
    costs: Annotated[
        Path | None,
        typer.Option(help="A file with two columns: feature and cost.", rich_help_panel=CHOICE),
    ] = None,
    budget: Annotated[
        float | None,
        typer.Option(help="Maximum panel cost, instead of -k.", rich_help_panel=CHOICE),
    ] = None,
    cost_weight: Annotated[
        float,
        typer.Option(
            help="Trade-off instead of a budget: added to the error per unit of cost.",
            rich_help_panel=CHOICE,
        ),
    ] = 0.0,
    groups: Annotated[
        Path | None,
        typer.Option(
            help="A file with two columns: feature and group. Features of a group are measured "
            "together and count once.",
            rich_help_panel=CHOICE,
        ),
    ] = None,
    decoder: Annotated[
        str,
        typer.Option(
            help="The decoder: linear, or widths of hidden layers such as 320,320.",
            rich_help_panel=COMPARISON,
        ),
    ] = "linear",
    scale: Annotated[
        str,
        typer.Option(
            help="standard: standardise features, so that all count equally. none: features count "
            "by their variance.",
            rich_help_panel=COMPARISON,
        ),
    ] = "standard",
    strategies: Annotated[
        str,
        typer.Option(
            help="auto, or a comma-separated subset of search, closed_form, gradient.",
            rich_help_panel=COMPARISON,
        ),
    ] = "auto",
    row_groups: Annotated[
        str | None,
        typer.Option(
            help="A column of group labels, such as patients; rows of one group are held out "
            "together.",
            rich_help_panel=COMPARISON,
        ),
    ] = None,
    validation: Annotated[
        str,
        typer.Option(
            help="Rows to hold out: auto, a fraction such as 0.2, a number of folds such as 5, or "
            "time for rows in time order.",
            rich_help_panel=COMPARISON,
        ),
    ] = "auto",
    time_limit: Annotated[
        float | None,
        typer.Option(
            help="Seconds after which no new strategy is started.", rich_help_panel=COMPARISON
        ),
    ] = None,
    seed: Annotated[
        int,
        typer.Option(
            help="Random seed; the same seed gives the same panel.", rich_help_panel=COMPARISON
        ),
    ] = 0,
    device: Annotated[
        str,
        typer.Option(help="auto, cpu, cuda, cuda:1 or mps.", rich_help_panel=COMPARISON),
    ] = "auto",
    report: Annotated[
        Path | None, typer.Option(help="Also write a report to this .html file.")
    ] = None,
    *,
    processes: Processes,
) -> None:
    """Choose k features from which all others can be reconstructed, and save the panel.

    Examples: [bold]fewer select data.csv -k 50 --out panel/[/];
    [bold]fewer select data.parquet --costs costs.csv --budget 100 --include 'IL*'[/];
    [bold]fewer select cells.h5ad -k 200 --target cell_type[/];
    [bold]fewer select cells.h5ad -k 200 --devices 8 --resume[/]
    """
    if k is None and budget is None:
        raise typer.BadParameter("give a number of features, -k 50, or --costs FILE --budget 100")
    _check_folder(out, force)
    if report is not None:
        check_unused(report, force)
    checkpoint = processes.checkpoint_folder(out)
    if processes.starts:
        processes.start(line)
        return
    from fewer.cli._parsing import (
        parse_costs,
        parse_decoder,
        parse_features,
        parse_groups,
        parse_strategies,
        parse_validation,
    )
    from fewer.distributed import is_rank0, joined
    from fewer.selection import select

    options: dict[str, Any] = {
        "decoder": parse_decoder(decoder),
        "strategies": parse_strategies(strategies),
        "budget": budget,
        "cost_weight": cost_weight,
        "target": target,
        "scale": scale,
        "validation": parse_validation(validation),
        "time_limit": time_limit,
        "random_state": seed,
        "device": device,
        "checkpoint": checkpoint,
    }
    with (
        processes.unfinished(checkpoint),
        processes.worker(),
        joined(device),
        (output if is_rank0() else Output(quiet=True)).progress("reading") as update,
    ):
        update("reading", 0.0)
        keep = tuple(name for text in include or () for name in text.split(","))
        source = reading.open_features(data, metadata=(target, row_groups), keep=keep)
        options |= {
            "include": parse_features(include or (), source.names, "--include"),
            "exclude": parse_features(exclude or (), source.names, "--exclude"),
            "costs": parse_costs(costs, source.names),
            "groups": parse_groups(groups, source.names),
            "row_groups": read_column(source, row_groups),
        }
        panel = select(source, k, progress=update, **options)
        reading.record_units(panel, data, source)
        update("writing", 0.99)
        if panel.evidence is not None:
            panel.evidence.command = line
            panel.evidence.source |= {
                "path": data,
                "kind": f"{Path(data).suffix or 'unknown'} file",
            }
        panel.save(out)
        if report is not None and is_rank0():
            from fewer.report import write

            write(panel, report)
    if not is_rank0():
        return
    output.result(
        {"out": out, "report": report, **_document(panel)},
        lambda screen: _show(panel, out, screen),
    )
    output.suggest(f"fewer report {quoted(out)}" if report is None else f"open {quoted(report)}")


def _check_folder(path: Path, force: bool) -> None:
    """Refuse to overwrite a panel without --force, and anything else always."""
    from fewer.errors import InputError

    if path.exists() and not path.is_dir():
        raise InputError(f"{path} is a file, but a panel is a folder; choose another name")
    if path.is_dir() and any(path.iterdir()):
        if not is_panel(path):
            raise InputError(f"{path} holds something other than a panel; choose another folder")
        if not force:
            raise InputError(
                f"{path} holds a panel; choose another folder with --out, or overwrite it with "
                "--force"
            )
    check_parent(path)


def _document(panel: "Panel") -> dict[str, Any]:
    evidence = panel.evidence
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
    if evidence is not None:
        found["order"] = [panel.names[j] if panel.names else int(j) for j in evidence.order]
        found |= {"gains": evidence.gains, "explained_variance": evidence.explained}
    if panel.target is not None:
        found["target"] = {"name": panel.target.name, "held_out": panel.target.held_out}
    return found


def _show(panel: "Panel", out: Path, screen: "Console") -> None:
    _show_features(panel, screen)
    print_table(panel.leaderboard.table(), screen)
    _show_scores(panel, screen)
    if panel.target is not None:
        metric = "R²" if panel.target.classes is None else "accuracy"
        screen.print(
            f"[bold]{panel.target.held_out:.3f}[/] {metric} of {panel.target.name} on held-out rows"
        )
    screen.print(
        f"panel of {panel.k} of {panel.d} features saved to [bold]{out}[/]", soft_wrap=True
    )


def _show_features(panel: "Panel", screen: "Console") -> None:
    from fewer._tables import Table

    evidence = panel.evidence
    if evidence is None:
        screen.print(", ".join(str(name) for name in panel.features), soft_wrap=True)
        return
    rows, cumulative = [], 0.0
    for rank, (column, gain) in enumerate(zip(evidence.order, evidence.gains, strict=True), 1):
        cumulative += float(gain)
        name = str(column) if panel.names is None else panel.names[column]
        rows.append((str(rank), name, percent(float(gain)), percent(cumulative)))
    header = ("", "feature", "gain", "cumulative")
    print_table(Table(header, rows[:MAX_SHOWN], (0, 2, 3)), screen)
    if panel.k > MAX_SHOWN:
        screen.print(f"... and {panel.k - MAX_SHOWN} more: `fewer export {{panel}} --to list`")
    screen.print("[dim]gain: explained variance added by each feature, on all rows[/]\n")


def _show_scores(panel: "Panel", screen: "Console") -> None:
    from fewer._tables import Table

    scores = {} if panel.evidence is None else panel.evidence.explained
    if not scores:
        screen.print(f"[bold]{percent(panel.held_out)}[/] explained variance on held-out rows")
        return
    titles = {"equal": "features standardised", "units": "in the units of the data"}
    metrics = [metric for metric in titles if metric in scores]
    labels = {
        "panel": f"[bold]this panel of {panel.k}[/]",
        "greedy": "greedy selection",
        "random": "random selection",
        "pca": f"PCA, {panel.k} components (reference)",
    }
    rows = [
        (label, *(percent(scores[metric].get(role)) for metric in metrics))
        for role, label in labels.items()
        if any(scores[metric].get(role) is not None for metric in metrics)
    ]
    header = ("explained variance, held-out rows", *(titles[metric] for metric in metrics))
    print_table(Table(header, rows, (1, 2)), screen)
