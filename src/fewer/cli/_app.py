"""The ``fewer`` command: how a command runs, and which commands there are.

Everything heavy is imported inside the commands, so that ``fewer --help`` answers at once.
"""

import ast
import csv
import dataclasses
import io
import os
import re
import shlex
import sys
import warnings
from collections.abc import Callable
from inspect import Parameter, Signature, signature
from typing import Annotated, Any

import typer

from fewer import __version__
from fewer.cli._config import drop_replaced
from fewer.cli._options import CommandLine
from fewer.cli._output import visible
from fewer.cli.assess import compare, curve, inspect, stability
from fewer.cli.demo import demo
from fewer.cli.panels import check, export, impute, predict, report, substitutes
from fewer.cli.score import score
from fewer.cli.select import select
from fewer.cli.serve import serve

__all__ = ["app", "main"]

INPUT_ERROR, INTERNAL_ERROR, INTERRUPTED = 1, 3, 130  # 2, a wrong command line, is typer's own
EXIT_CODES = (
    "Exit codes: 0 success; 1 invalid file or value; 2 invalid command line; 3 internal "
    "error; 130 interrupted. Errors are a single line on stderr; [bold]--debug[/] shows the "
    "traceback. Results go to stdout, progress to stderr. OMP_NUM_THREADS limits the number of "
    "threads."
)
# idle threads sleep instead of spinning: GNU's OpenMP, and Intel's or LLVM's
IDLE_THREADS = {"OMP_WAIT_POLICY": "PASSIVE", "KMP_BLOCKTIME": "0"}
INTERRUPT_HINTS = {
    "select": "no panel was written; rerun the same command with --resume to continue, or with "
    "--time-limit 60 to stop early with the best panel found so far"
}
OPTIONS = (  # parameters of the library that have a command-line option of the same name
    "ignore|time_limit|row_groups|cost_weight|memory_limit|costs|budget|include|exclude|strategies|"
    "decoder|interval|target|dataset|layer|delimiter|device|scale|test_size|repeats|methods|counts|"
    "missing|robust_to|expect_missing|loss|validation|sample_weight|class_weight|reconstruct|reach|"
    "subsamples|threshold|query|host|port|sets|at_least|at_most"
)
WORD = r"""(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")"""  # text as Python writes it

app = typer.Typer(
    name="fewer",
    help="Measure fewer features, reconstruct the rest.",
    epilog=EXIT_CODES,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def main() -> None:
    """Run the ``fewer`` command."""
    for name, value in IDLE_THREADS.items():  # torch reads them when it is imported
        os.environ.setdefault(name, value)
    app()


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"fewer {__version__}")
        raise typer.Exit


@app.callback()
def _global_options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version."),
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    pass


def _as_command(function: Callable[..., None]) -> Callable[..., None]:
    """Wrap a function for typer, expanding its dataclass parameters into options.

    A parameter of type `CommandLine` receives the command itself.
    """
    parameters = [Parameter("ctx", Parameter.KEYWORD_ONLY, annotation=typer.Context)]
    groups: dict[str, Any] = {}
    lines = []
    for name, part in signature(function).parameters.items():
        inner = [part]
        if part.annotation is CommandLine:
            lines.append(name)
            inner = []
        elif dataclasses.is_dataclass(part.annotation):
            groups[name] = part.annotation
            inner = [*signature(groups[name]).parameters.values()]
        parameters += [one.replace(kind=Parameter.KEYWORD_ONLY) for one in inner]

    def command(ctx: typer.Context, **given: Any) -> None:
        given |= dict.fromkeys(drop_replaced(ctx))
        for name, kind in groups.items():
            given[name] = kind(**{one: given.pop(one) for one in signature(kind).parameters})
        given |= dict.fromkeys(lines, _command_line(ctx))
        debug = given["output"].debug or bool(ctx.find_root().params.get("debug"))
        _run_guarded(lambda: function(**given), debug, function.__name__)

    command.__name__, command.__doc__ = function.__name__, function.__doc__
    command.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {part.name: part.annotation for part in parameters}
    return command


def _command_line(ctx: typer.Context) -> CommandLine:
    """The command with the options that differ from their defaults."""
    words, options = ["fewer", str(ctx.info_name)], []
    found: dict[str, Any] = {}
    for part in ctx.command.params:
        value = ctx.params.get(str(part.name))
        if part.param_type_name == "argument":
            words.append(str(value))
            found[str(part.name)] = str(value)
        elif value not in (None, [], ()) and value != part.default and part.name != "config":
            values = value if isinstance(value, (list, tuple)) else [value]
            flag = getattr(part, "is_flag", False)
            name = max(part.secondary_opts if value is False else part.opts, key=len)
            for one in values:
                options += [name] if flag else [name, str(one)]
            plain = [one if isinstance(one, (bool, int, float)) else str(one) for one in values]
            found[str(part.name)] = plain if isinstance(value, (list, tuple)) else plain[0]
    return CommandLine(shlex.join([*words, *options]), found)


def _run_guarded(run: Callable[[], None], debug: bool, name: str) -> None:
    try:
        with warnings.catch_warnings():
            if not debug:
                warnings.simplefilter("always")
                warnings.showwarning = _warnings_on_stderr()
            run()
    except KeyboardInterrupt:
        typer.echo(f"\ninterrupted; {INTERRUPT_HINTS.get(name, 'nothing was written')}", err=True)
        raise typer.Exit(INTERRUPTED) from None
    except BrokenPipeError:  # the reader, such as head, has closed our output
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(0) from None
    except (typer.Exit, typer.Abort, typer.BadParameter):
        raise
    except Exception as error:
        if debug:
            raise
        code, text = _describe_error(error)
        typer.echo(visible(" ".join(text.split())), err=True)
        raise typer.Exit(code) from error


def _warnings_on_stderr() -> Callable[..., None]:
    """Print each of fewer's warnings once; hide those of libraries, which address programmers."""
    shown = set()

    def show(message: Any, category: type[Warning], *place: Any, **more: Any) -> None:
        line = "warning: " + visible(_as_options(" ".join(str(message).split())))
        if line not in shown and any(kind.__name__ == "FewerWarning" for kind in category.__mro__):
            shown.add(line)
            # sys.stderr, because a progress bar redirects it to keep both readable
            print(line, file=sys.stderr)

    return show


def _describe_error(error: Exception) -> tuple[int, str]:
    errors = sys.modules.get("fewer.errors")  # if it was not imported, the error is not ours
    if errors is not None and isinstance(error, errors.FewerError):
        return INPUT_ERROR, "error: " + _as_options(str(error))
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        return INPUT_ERROR, f"error: {where}{error.strerror or error}"
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return INPUT_ERROR, "error: out of memory; use fewer columns or fewer rows"
    what = f"{type(error).__name__}: {error}"
    return INTERNAL_ERROR, f"error: internal error ({what}); rerun with --debug and report it"


def _as_options(text: str) -> str:
    """The library's messages name parameters and local copies; name what was typed instead."""
    fetch = sys.modules.get("fewer.data.fetch")
    text = text if fetch is None else fetch.name_originals(text)
    listed = rf"\b(ignore|missing|exclude|include)=(\[{WORD}(?:, {WORD})*\])"
    text = re.sub(listed, _listed_option, text)
    text = re.sub(r"\bcoverage=(?=[-\d])", "--interval ", text)
    text = re.sub(r"\btarget_kind='(\w+)'", r"--target-kind \1", text)
    # but for Python code such as fewer.select(..., target=...)
    text = re.sub(
        rf"(?<!\(\.\.\., )\b({OPTIONS})= ?", lambda m: f"--{m[1].replace('_', '-')} ", text
    )
    return re.sub(r"\bk=(?=\d)", "-k ", text)


def _listed_option(match: re.Match[str]) -> str:
    """ignore=['a', 'b'] as --ignore a,b; what holds a comma is in double quotes."""
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow(ast.literal_eval(match[2]))
    return f"--{match[1]} " + shlex.quote(line.getvalue())


# in the order in which a new user needs them
COMMANDS = (demo, inspect, select, impute, check, predict, score, curve, compare, stability)
for _function in (*COMMANDS, substitutes, report, export, serve):
    app.command(_function.__name__)(_as_command(_function))
