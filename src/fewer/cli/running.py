"""How a command runs: its options unpacked, warnings and errors in one line, exit codes."""

import dataclasses
import inspect
import os
import re
import shlex
import sys
import warnings
from collections.abc import Callable
from typing import Any, NewType, get_type_hints

import typer

from fewer.cli.talk import Output

__all__ = ["BROKEN", "EXIT_CODES", "INPUT", "STOPPED", "USAGE", "TypedLine", "as_command"]

TypedLine = NewType("TypedLine", str)  # the command as it can be typed again

INPUT, USAGE, BROKEN, STOPPED = 1, 2, 3, 130
EXIT_CODES = (
    "Exit codes: 0 all went well; 1 a file or value cannot be used; 2 the command line cannot be "
    "understood; 3 a fault of fewer itself; 130 interrupted. Errors are one line on stderr; "
    "[bold]--debug[/] shows where they came from. Results go to stdout, progress to stderr."
)


def as_command(function: Callable[..., None]) -> Callable[..., None]:
    """A function for typer: dataclasses among its parameters become the options that they hold.

    A parameter that is a `TypedLine` gets the command itself. The function may have an attribute
    ``stopped``: what to say after Ctrl-C.
    """
    hints = get_type_hints(function, include_extras=True)
    packs: dict[str, type] = {}
    line: list[str] = []
    parameters = [_parameter("ctx", typer.Context)]
    for name, given in inspect.signature(function).parameters.items():
        kind = hints[name]
        if kind is TypedLine:
            line.append(name)
            continue
        if not dataclasses.is_dataclass(kind):
            parameters.append(_parameter(name, kind, given.default))
            continue
        assert isinstance(kind, type)
        packs[name] = kind
        inner = get_type_hints(kind, include_extras=True)
        for part in dataclasses.fields(kind):
            made = part.default_factory
            default = part.default if made is dataclasses.MISSING else made()
            parameters.append(_parameter(part.name, inner[part.name], default))

    def command(ctx: typer.Context, **given: Any) -> None:
        for name, kind in packs.items():
            held = {part.name: given.pop(part.name) for part in dataclasses.fields(kind)}
            given[name] = kind(**held)
        given |= dict.fromkeys(line, _typed_again(ctx))
        talk = next((value for value in given.values() if isinstance(value, Output)), Output())
        debug = talk.debug or bool(ctx.find_root().params.get("debug"))
        stopped = getattr(function, "stopped", "nothing was written")
        _guarded(lambda: function(**given), debug, stopped)

    command.__name__, command.__doc__ = function.__name__, function.__doc__
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {part.name: part.annotation for part in parameters}
    return command


def _typed_again(ctx: typer.Context) -> str:
    """The command with the options that differ from what they are if not given."""
    words = ["fewer", str(ctx.info_name)]
    told: list[str] = []
    for part in ctx.command.params:
        value = ctx.params.get(str(part.name))
        if part.param_type_name == "argument":
            words.append(str(value))
        elif value not in (None, [], ()) and value != part.default:
            several = value if isinstance(value, (list, tuple)) else [value]
            flag = getattr(part, "is_flag", False)
            names = part.secondary_opts if value is False else part.opts
            for one in several:
                told += [max(names, key=len)] if flag else [max(names, key=len), str(one)]
    return shlex.join([*words, *told])


def _parameter(name: str, kind: Any, default: Any = inspect.Parameter.empty) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=kind, default=default)


def _guarded(run: Callable[[], None], debug: bool, stopped: str) -> None:
    try:
        with warnings.catch_warnings():
            if not debug:
                warnings.simplefilter("always")
                warnings.showwarning = _show_warning
            run()
    except KeyboardInterrupt:
        typer.echo(f"\nstopped; {stopped}", err=True)
        raise typer.Exit(STOPPED) from None
    except BrokenPipeError:  # whoever read our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(0) from None
    except (typer.Exit, typer.Abort, typer.BadParameter):
        raise
    except Exception as error:
        if debug:
            raise
        code, text = _explained(error)
        typer.echo(" ".join(text.split()), err=True)
        raise typer.Exit(code) from error


def _show_warning(message: Any, category: type[Warning], *place: Any, **more: Any) -> None:
    """Ours as one line; what libraries say to programmers is not for users of a command."""
    if any(kind.__name__ == "FewerWarning" for kind in category.__mro__):
        # by this name, which a progress bar takes over so that both can be read
        print("warning: " + _as_options(" ".join(str(message).split())), file=sys.stderr)


def _explained(error: Exception) -> tuple[int, str]:
    known = sys.modules.get("fewer.errors")  # not imported: then it cannot be ours
    if known is not None and isinstance(error, known.FewerError):
        return INPUT, "error: " + _as_options(str(error))
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        return INPUT, f"error: {where}{error.strerror or error}"
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return INPUT, "error: not enough memory; choose among fewer features, or use fewer rows"
    what = f"{type(error).__name__}: {error}"
    return BROKEN, (
        f"error: a fault of fewer itself ({what}); run it again with --debug and report it"
    )


def _as_options(text: str) -> str:
    """What the library says of its arguments, said of the options of the command line.

    Examples
    --------
    >>> _as_options("mend it, or give leave_out=['age']; time_limit=-1 must be above 0")
    'mend it, or give --leave-out age; --time-limit -1 must be above 0'
    """
    text = re.sub(r"\bleave_out=\['([^']*)'\]", r"--leave-out \1", text)
    options = "leave_out|time_limit|row_groups|cost_weight|memory_limit|costs|budget|include"
    options += "|exclude|strategies|decoder|interval|target|dataset|layer|delimiter|device|scale"
    text = re.sub(rf"\b({options})= ?", lambda m: f"--{m[1].replace('_', '-')} ", text)
    return re.sub(r"\bk=(?=\d)", "-k ", text)
