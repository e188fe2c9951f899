"""``fewer select --config fewer.toml``: options from a file; the command line takes precedence."""

import difflib
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import typer

MOST_BYTES = 2**20
OWN = ("config", "help")  # options that a file cannot give
EXCLUSIVE = (("k", "reach"), ("query", "dataset"))  # the one that is typed replaces the other


def use_config(ctx: typer.Context, value: Path | None) -> Path | None:
    """Typer callback that takes a command's defaults from a file, before other options are read."""
    if value is None or ctx.resilient_parsing:
        return value
    from fewer.errors import InputError

    try:
        found = read_config(value, {str(part.name): part for part in ctx.command.params})
    except InputError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from error
    ctx.default_map = {**(ctx.default_map or {}), **found}
    return value


def drop_replaced(ctx: typer.Context) -> set[str]:
    """Drop options from the file that conflict with options on the command line; their names."""
    typed = {name for name in ctx.params if _origin(ctx, name) == "COMMANDLINE"}
    dropped = {
        other
        for pair in EXCLUSIVE
        for name, other in (pair, pair[::-1])
        if name in typed and other not in typed and other in ctx.params
    }
    ctx.params |= dict.fromkeys(dropped)
    return dropped


def _origin(ctx: typer.Context, name: str) -> str:
    source = ctx.get_parameter_source(name)
    return "" if source is None else source.name


def read_config(path: Path, parts: Mapping[str, Any]) -> dict[str, Any]:
    """Validated options from a TOML file, by parameter name."""
    from fewer.errors import InputError

    try:
        content = path.expanduser().read_bytes()
    except OSError as error:
        raise InputError(f"--config {path}: {error.strerror or error}") from error
    if len(content) > MOST_BYTES:
        raise InputError(f"--config {path} has more than {MOST_BYTES:,} bytes; pass a TOML file")
    try:
        given = tomllib.loads(content.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise InputError(f"--config {path} is not valid TOML ({error})") from error
    known = [name for name in parts if name not in OWN]
    found = {}
    for key, value in given.items():
        name = key.replace("-", "_")
        if name not in known:
            near = difflib.get_close_matches(name, known, 1, cutoff=0.5)
            hint = f"did you mean {near[0]}?" if near else f"valid options are {', '.join(known)}"
            raise InputError(f"--config {path}: there is no option {key!r}; {hint}")
        found[name] = _converted(f"--config {path}: {key}", value, parts[name])
    return found


def _converted(what: str, value: Any, part: Any) -> Any:
    """A TOML value as it would be typed on the command line."""
    from fewer.errors import InputError

    items = value if isinstance(value, list) else [value]
    for item in items:
        if isinstance(item, bool) != _is_switch(part):
            wanted = "true or false" if _is_switch(part) else "text or a number"
            raise InputError(f"{what} is {item!r}; it must be {wanted}")
        if not isinstance(item, (str, int, float)):
            raise InputError(f"{what} is {item!r}; it must be text, a number, or a list of these")
    if _is_switch(part):
        if isinstance(value, list):
            raise InputError(f"{what} is a list; it must be true or false")
        return value
    typed = [item if isinstance(item, str) else repr(item) for item in items]
    return typed if getattr(part, "multiple", False) else ",".join(typed)


def _is_switch(part: Any) -> bool:
    return bool(getattr(part, "is_flag", False))
