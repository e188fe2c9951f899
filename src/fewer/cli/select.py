"""``fewer select``: choose features, learn to reconstruct the rest, save the panel."""

import json
import os
import shlex
import shutil
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fewer.cli import _options as opt
from fewer.cli._config import use_config
from fewer.cli._output import Output, percent, print_table

if TYPE_CHECKING:
    from rich.console import Console

    from fewer.panel import Panel

choice = partial(typer.Option, rich_help_panel="Target and constraints")
search = partial(typer.Option, rich_help_panel="Search and validation")
parallel = partial(typer.Option, rich_help_panel="Parallel runs and resuming")
MAX_SHOWN = 100  # features printed; the panel has them all
ERROR_FILE = "TORCHELASTIC_ERROR_FILE"  # where torchrun looks for the reason of a failure
WORKER = "FEWER_WORKER"
# options that do not affect the resulting panel
ONLY_THIS_RUN = ("json", "quiet", "debug", "force", "resume", "checkpoint", "report", "out")


@dataclass(frozen=True)
class Processes:
    """Options of parallel runs."""

    devices: Annotated[
        int,
        parallel(
            help="Number of processes on this machine: one per GPU, or any number of CPU "
            "processes, each with its own share of the rows.",
            min=1,
        ),
    ] = 1
    nodes: Annotated[
        int,
        parallel(
            help="Number of machines; run the same command on each, with MASTER_ADDR set to the "
            "host name of one of them.",
            min=1,
        ),
    ] = 1
    checkpoint: Annotated[
        Path | None,
        parallel(
            help="Folder for unfinished work; by default the name of the panel folder with "
            ".unfinished appended. Deleted when the panel has been written.",
            show_default=False,
        ),
    ] = None
    resume: Annotated[bool, parallel("--resume", help="Continue from unfinished work, if any.")] = (
        False
    )

    @property
    def starts(self) -> bool:
        """Whether this process launches the others instead of being one of them."""
        return self.devices * self.nodes > 1 and WORKER not in os.environ

    def checkpoint_folder(self, out: Path) -> Path:
        """Folder of unfinished work, which must not be overwritten accidentally."""
        folder = self.checkpoint or out.absolute().with_name(f"{out.name}.unfinished")
        fresh = WORKER not in os.environ and not self.resume
        if fresh and (folder / "fit.json").is_file():
            from fewer.errors import InputError

            raise InputError(
                f"{folder} contains unfinished work; add --resume to continue, or delete the "
                "folder to start over"
            )
        return folder

    @contextmanager
    def unfinished(self, folder: Path) -> Iterator[None]:
        """Keep the folder if the work was interrupted, but not if the input was invalid."""
        existed = folder.exists()
        try:
            yield
        except Exception:
            if not existed and self.devices * self.nodes == 1:
                shutil.rmtree(folder, ignore_errors=True)
            raise

    def start(self, line: str) -> None:
        """Run a command in the requested number of processes, and wait for them."""
        from fewer.distributed import spawn

        os.environ[WORKER] = "1"
        try:
            spawn(
                ["-c", "from fewer.cli import main; main()", *shlex.split(line)[1:]],
                devices=self.devices,
                nodes=self.nodes,
                hint="Rerun the command with --resume to continue from the last checkpoint",
            )
        finally:
            del os.environ[WORKER]

    @contextmanager
    def worker(self) -> Iterator[None]:
        """Pass an error in a worker to the launching process, which prints it once."""
        if WORKER not in os.environ:
            yield
            return
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


def select(
    output: Output,
    reading: opt.Reading,
    line: opt.CommandLine,
    data: opt.DataArgument,
    k: Annotated[
        str | None,
        typer.Option(
            "-k", "--k", help="Number of features to choose, or auto.", show_default=False
        ),
    ] = None,
    reach: Annotated[
        float | None,
        typer.Option(
            help="Instead of -k: choose the smallest number of features that explains this "
            "fraction of the variance on held-out rows, such as 0.9."
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for the panel.")] = Path("panel"),
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing panel.")] = False,
    target: Annotated[
        list[str] | None,
        choice(
            help="Choose features that predict this column instead (.h5ad: a column of obs); can "
            "be repeated to predict several at once."
        ),
    ] = None,
    target_kind: Annotated[
        list[str] | None,
        choice(
            help="Kind of --target: class, number, count, ordinal or survival; with several "
            "targets, NAME=KIND, which can be repeated. By default, text and whole numbers are "
            "classes, and other numbers are numbers.",
            show_default=False,
        ),
    ] = None,
    target_weight: Annotated[
        list[str] | None,
        choice(help="Weight of one of several targets, NAME=2; can be repeated."),
    ] = None,
    event: Annotated[
        str | None,
        choice(
            help="For survival: the column that is 1, true or yes if the event was observed at "
            "time --target, and 0, false or no if the row was censored."
        ),
    ] = None,
    reconstruct: Annotated[
        float,
        choice(
            help="With --target: weight of reconstructing the other features, at least 0 and "
            "below 1."
        ),
    ] = 0.0,
    sample_weight: Annotated[
        str | None,
        choice(help="Column of row weights, for choice, decoder and scores."),
    ] = None,
    class_weight: Annotated[
        str | None,
        choice(help="balanced: give all classes of --target the same weight, however rare."),
    ] = None,
    include: Annotated[
        list[str] | None,
        choice(
            help="Features that must be included: comma-separated names, a file with one name per "
            "line, or a pattern such as 'IL*'; can be repeated."
        ),
    ] = None,
    exclude: Annotated[
        list[str] | None, choice(help="Features that must not be chosen, in the same form.")
    ] = None,
    costs: Annotated[
        Path | None,
        choice(
            help="File with two columns, feature and cost; for several budgets, one titled column "
            "for each."
        ),
    ] = None,
    budget: Annotated[
        list[str] | None,
        choice(
            help="Maximum panel cost, instead of -k or together with it; for several costs, "
            "NAME=100, which can be repeated."
        ),
    ] = None,
    cost_weight: Annotated[
        float, choice(help="Trade-off instead of a budget: added to the error per unit of cost.")
    ] = 0.0,
    groups: Annotated[
        Path | None,
        choice(
            help="File with two columns, feature and group. Features in a group are measured "
            "together and count once."
        ),
    ] = None,
    sets: Annotated[
        Path | None,
        choice(
            help="File with two columns, feature and set, for --at-least and --at-most; a feature "
            "in several sets has several lines."
        ),
    ] = None,
    at_least: Annotated[
        list[str] | None,
        choice(
            help="Minimum number of features from a set: NAME=2, or 2 for every set; can be "
            "repeated."
        ),
    ] = None,
    at_most: Annotated[
        list[str] | None,
        choice(help="Maximum number of features from a set, in the same form."),
    ] = None,
    weights: Annotated[
        Path | None,
        choice(
            help="A file with two columns: feature, or a pattern such as 'RP*', and how much its "
            "error counts; others count 1."
        ),
    ] = None,
    noise: Annotated[
        Path | None,
        choice(
            help="A file with two columns: feature and variance of its measurement error, which "
            "then counts for nothing."
        ),
    ] = None,
    replicates: Annotated[
        str | None,
        choice(
            help="A second measurement of the same rows, to estimate measurement errors from, "
            "instead of --noise.",
            autocompletion=opt.complete_data,
        ),
    ] = None,
    decoder: Annotated[
        str,
        search(
            help="Decoder: linear, or widths of hidden layers such as 320,320. auto is linear; "
            "with a target, linear or several networks, whichever is better on held-out rows."
        ),
    ] = "auto",
    scale: Annotated[str, search(help=opt.SCALE)] = "standard",
    strategies: Annotated[
        str,
        search(help="auto, or a comma-separated subset of search, closed_form, gradient, filters."),
    ] = "auto",
    row_groups: Annotated[
        str | None,
        search(help=opt.ROW_GROUPS),
    ] = None,
    robust_to: Annotated[
        int,
        search(
            help="1 or 2: choose a panel that loses least if its worst 1 or 2 features are missing."
        ),
    ] = 0,
    expect_missing: Annotated[
        float,
        search(
            help="For networks: fraction of measured values that will be missing, such as 0.05; "
            "the network is trained for it if held-out rows prefer that."
        ),
    ] = 0.0,
    loss: Annotated[
        str,
        search(help="Loss: mse, or huber for heavy tails, where a few rows dominate the error."),
    ] = "mse",
    time_limit: Annotated[
        float | None, search(help="Seconds after which no new strategy is started.")
    ] = None,
    seed: Annotated[int, search(help="Random seed; the same seed gives the same panel.")] = 0,
    device: Annotated[str, search(help=opt.DEVICE)] = "auto",
    report: Annotated[
        Path | None, typer.Option(help="Also write a report to this .html file.")
    ] = None,
    rows: Annotated[
        bool,
        typer.Option(
            "--rows/--no-rows",
            help="Whether the panel and the report may contain some held-out rows, for plots.",
        ),
    ] = True,
    config: Annotated[
        Path | None,
        typer.Option(
            help="TOML file of options, such as k = 50; the command line takes precedence. fewer "
            "export PANEL --to config writes one.",
            callback=use_config,
            is_eager=True,
        ),
    ] = None,
    *,
    holding: opt.HeldOut,
    processes: Processes,
) -> None:
    """Choose k features from which all others can be reconstructed, and save the panel.

    Examples: [bold]fewer select data.csv -k 50 --out panel/[/];
    [bold]fewer select data.parquet --costs costs.csv --budget 100 --include 'IL*'[/];
    [bold]fewer select data.csv -k 20 --sets sites.csv --at-most 3 --at-least north=1[/];
    [bold]fewer select cells.h5ad -k 200 --target cell_type[/];
    [bold]fewer select trial.csv -k 10 --target months --event died[/];
    [bold]fewer select cells.h5ad -k 200 --devices 8 --resume[/];
    [bold]fewer select --config fewer.toml[/]
    """
    if k is None and not budget and reach is None:
        raise typer.BadParameter("use -k 50, -k auto, --reach 0.9, or --costs FILE --budget 100")
    if k is not None and reach is not None:
        raise typer.BadParameter("use either -k or --reach")
    if k is not None and k != "auto" and not k.lstrip("-").isdecimal():
        raise typer.BadParameter(f"-k {k}: must be a number of features, or auto")
    holding.check()
    _check_folder(out, force)
    opt.check_unused(report, force)
    checkpoint = processes.checkpoint_folder(out)
    if processes.starts:
        processes.start(line)
        return
    from fewer.cli import _parsing as parse
    from fewer.data.fetch import without_secrets
    from fewer.distributed import is_rank0, joined
    from fewer.export import describe
    from fewer.selection import Reach
    from fewer.selection import select as select_panel

    options: dict[str, Any] = {
        "decoder": parse.decoder(decoder),
        "strategies": parse.strategies(strategies),
        "budget": parse.budget(budget or []),
        "cost_weight": cost_weight,
        **parse.target(target or [], target_kind or [], target_weight or [], event),
        "class_weight": class_weight,
        "reconstruct": reconstruct,
        "scale": scale,
        "robust_to": robust_to,
        "expect_missing": expect_missing,
        "loss": loss,
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
        keep = tuple(name for text in include or () for name in text.split(","))
        source = reading.open_features(
            holding.paths(data),
            metadata=(*(target or ()), event, row_groups, sample_weight, holding.holdout_column),
            keep=keep,
        )
        options["validation"] = holding.rows(source, reading)
        options |= {
            "include": parse.features(include or (), source.names, "--include"),
            "exclude": parse.features(exclude or (), source.names, "--exclude"),
            "costs": parse.costs(costs, source.names, options["budget"]),
            "weights": parse.numbers(weights, source.names, "--weights", "weight"),
            "noise": _noise(source, reading, noise, replicates),
            "groups": parse.groups(groups, source.names),
            **parse.sets(sets, source.names, at_least or [], at_most or []),
            "row_groups": row_groups,
            "sample_weight": sample_weight,
        }
        size = int(k) if k is not None and k != "auto" else k
        asked = size if reach is None else Reach(reach)
        panel = select_panel(source, asked, progress=update, **options)
        reading.record(panel, data, source)
        update("writing", 0.99)
        if panel.evidence is not None:
            where = without_secrets(data)
            panel.evidence.command = line.replace(shlex.quote(data), shlex.quote(where))
            used = {"data": where} | {
                name: int(value) if name == "k" and value.isdecimal() else value
                for name, value in line.options.items()
                if name not in ("data", *ONLY_THIS_RUN)
            }
            kind = f"{Path(where).suffix or 'unknown'} file"
            about = {"path": where, "kind": kind, "config": used, "reading": reading.options(data)}
            panel.evidence.source |= about
            if not rows:
                panel.evidence = panel.evidence.without_rows()
        panel.save(out)
        if report is not None and is_rank0():
            panel.report(report)
    if not is_rank0():
        return
    document = {"out": out, "report": report, **describe(panel)}
    output.result(document, lambda screen: _show(panel, document, screen))
    words = ("fewer", "report", str(out)) if report is None else ("open", str(report))
    output.suggest(shlex.join(words))


def _noise(source: Any, reading: opt.Reading, noise: Path | None, replicates: str | None) -> Any:
    """Variances of measurement errors, or a second measurement of the same features."""
    from fewer.cli import _parsing as parse
    from fewer.data.columns import match_columns
    from fewer.errors import InputError

    if replicates is None:
        return parse.numbers(noise, source.names, "--noise", "variance")
    if noise is not None:
        raise InputError("--noise and --replicates both say how large errors are; give one of them")
    other = reading.open_features(replicates, keep=tuple(source.names or ()))
    return match_columns(other, source.names, source.shape[1], "--replicates")


def _spent_by_feature(panel: "Panel") -> dict[Any, tuple[str, ...]]:
    """Cost and group of each feature, if any."""
    found: dict[Any, tuple[str, ...]] = dict.fromkeys(panel.features, ())
    for title, form in (("costs", "{:g}"), ("groups", "{}")):
        for name, value in zip(panel.features, panel.settings.get(title, ()), strict=False):
            found[name] += (form.format(value),)
    return found


def _check_folder(path: Path, force: bool) -> None:
    """Refuse to overwrite a panel without --force, and anything else always."""
    from fewer._files import check_parent
    from fewer.errors import InputError

    if path.exists() and not path.is_dir():
        raise InputError(f"{path} is a file, but a panel is a folder; choose another name")
    if path.is_dir() and any(path.iterdir()):
        if not opt.is_panel(path):
            raise InputError(f"{path} is not empty and not a panel; choose another folder")
        if not force:
            raise InputError(
                f"{path} contains a panel; choose another folder with --out, or overwrite it with "
                "--force"
            )
    check_parent(path)


def _show(panel: "Panel", about: dict[str, Any], screen: "Console") -> None:
    """Print the features with their gains, the strategies, and the scores on held-out rows."""
    from fewer._tables import percent_text

    columns = about["order"], about["gains"], accumulate(about["gains"])
    paid = _spent_by_feature(panel)
    rows = [
        (str(rank), str(name), percent(gain), percent(cumulative), *paid[name])
        for rank, (name, gain, cumulative) in enumerate(zip(*columns, strict=True), 1)
    ]
    spent = [title for title in ("cost", "group") if f"{title}s" in panel.settings]
    header = ("", "feature", "gain", "cumulative", *spent)
    print_table(screen, header, rows[:MAX_SHOWN], (0, 2, 3, *((4,) if "cost" in spent else ())))
    if panel.k > MAX_SHOWN:
        screen.print(f"... and {panel.k - MAX_SHOWN} more: `fewer export {about['out']} --to list`")
    from fewer.cli._output import visible
    from fewer.report.summarise import (
        error_note,
        gains_by,
        gains_of,
        missing_sentence,
        robust_sentence,
        size_sentence,
        spending_sentence,
        tails_sentence,
    )

    screen.print(
        f"[dim]gain: {visible(gains_of(panel))} added by each feature, {gains_by(panel)}[/]\n"
    )
    size = None if panel.evidence is None else panel.evidence.size
    if size is not None and panel.settings.get("k_rule"):
        name = None if panel.target is None else panel.target.name
        screen.print(size_sentence(size, name) + "\n")
    spending = spending_sentence(panel.settings)
    if spending:
        screen.print(spending + "\n")
    board = panel.leaderboard.table()
    print_table(screen, board.header, board.rows, board.numbers)
    screen.print(
        f"[dim]{visible(error_note(panel.leaderboard, panel.settings, panel.target))}[/]\n"
    )
    tails = tails_sentence(panel.settings)
    if tails:
        screen.print(f"[yellow]{tails}[/]\n")
    robust = robust_sentence(panel.leaderboard, panel.settings.get("robust_to"))
    for sentence in (robust, missing_sentence(panel.settings)):
        if sentence:
            screen.print(sentence + "\n")
    titles = {"equal": "features standardised", "units": "in the units of the data"}
    explained = about["explained_variance"]
    explained = {name: explained[name] for name in titles if name in explained}
    heads = [titles[name] for name in explained]
    labels = {
        "panel": f"[bold]this panel of {panel.k}[/]",
        "greedy": "greedy selection",
        "random": "random selection",
        "pca": f"PCA, {panel.k} components (reference)",
    }
    errors = about.get("standard_errors") or {}
    shown = [(score, errors.get(name, {})) for name, score in explained.items() if name in titles]
    references = [
        (
            label,
            *(
                percent_text(score[role], error.get(role)) if role in score else ""
                for score, error in shown
            ),
        )
        for role, label in labels.items()
        if any(role in score for score, _ in shown)
    ]
    print_table(screen, ("explained variance, held-out rows", *heads), references, (1, 2))
    screen.print(f"[dim]{panel.settings['protocol']}; ± is the standard error[/]")
    if panel.target is not None:
        found: tuple[Any, ...] = (panel.target, *panel.target.parts)
        for one in found:
            error = getattr(one, "standard_error", None)
            more = "" if error is None else f" ± {error:.3f}"
            value = f"[bold]{one.held_out:.3f}{more}[/] {one.kind.metric}"
            screen.print(f"{value} of {one.name} on held-out rows")
    screen.print(
        f"panel of {panel.k} of {panel.d} features saved to [bold]{about['out']}[/]", soft_wrap=True
    )
