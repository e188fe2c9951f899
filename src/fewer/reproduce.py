"""How a panel can be made again: Python code, and a configuration for ``fewer select --config``."""

import json
import math
from collections.abc import Mapping
from typing import Any

from fewer.errors import InputError
from fewer.evidence import Evidence

__all__ = ["config_of", "python_of", "toml_of", "toml_text"]

LONG = 60  # items: a longer list is named, not spelled out
CELLS = ".h5ad"  # the command normalises counts, which `fewer.select` alone does not
RENAMED = {"random_state": "seed"}  # of options of `fewer.select`, on the command line


def python_of(known: Evidence) -> str | None:
    """The call of `fewer.select` with its options; arrays and functions are only named.

    None for a panel that the command line made from an AnnData file: its counts are normalised
    by the command.
    """
    source, options = known.source, {"k": known.options.get("k")} | _asked(known)
    config = source.get("config")
    if config is not None and str(source.get("path", "")).lower().endswith(CELLS):
        return None
    if options["k"] is None:
        del options["k"]
    platform = options.pop("platform", None)
    code = {name: _spelled(value) for name, value in options.items()}
    edited = source.get("edited")
    if edited is not None:  # nobody passed these, so they are written whatever their number
        code["include"] = repr(edited["features"])
    lines = ["import fewer", ""]
    if platform is not None:
        lines[0] = "from fewer.anndata import Platform, select_genes"
        said = ", ".join(f"{name}={value!r}" for name, value in platform.items())
        code["platform"] = f"Platform({said})"
    if not source.get("path"):
        size = f"{source['rows']:,} x {source['columns']:,}"
        lines[1:1] = ["", f"data = ...  # {source['kind']}, {size}"]
    lines[-1:-1] = [f"{name} = ...  # as passed originally" for name in code if code[name] is None]
    arguments = [f"{name}={text or name}" for name, text in code.items()]
    data = repr(source["path"]) if source.get("path") else "data"
    if config is not None:
        # the command also ignores columns that only number the rows, or are empty
        ignored = source.get("metadata_columns") or []
        reading = source.get("reading", {}) | ({"ignore": ignored} if ignored else {})
        opened = ", ".join([data, *(f"{name}={value!r}" for name, value in reading.items())])
        lines.append(f"data = fewer.data.open({opened})")
        data = "data"
    if edited is not None:
        lines.append(f"# {_edit(edited)}")
    function = "fewer.select" if platform is None else "select_genes"
    lines.append(f"panel = {function}({', '.join([data, *arguments])})")
    if options.get("random_state") is None:
        lines.append("# random_state was not set: another run may choose slightly differently")
    return "\n".join(lines)


def _asked(known: Evidence) -> dict[str, Any]:
    """Options that decide which panel is made; of an edited one, its features are included.

    Earlier builds recorded the checkpoint, too; and with a target the default of the decoder was
    linear, which they did not record.
    """
    found = {name: value for name, value in known.options.items() if name != "checkpoint"}
    if "target" in found:
        found.setdefault("decoder", "linear")
    edited = known.source.get("edited")
    if edited is not None:
        found |= {"k": edited["k"], "include": edited["features"]}
        if edited["linear"] and "target" in found:
            found["decoder"] = "linear"
    if found.get("decoder") == "auto":
        del found["decoder"]
    return found


def _edit(edited: Mapping[str, Any]) -> str:
    """How a panel was edited."""
    return f"the panel was edited with Panel.{edited['how']}: include has all of its features"


def _spelled(value: Any) -> str | None:
    """Python code for a stored option; None where it would be long or cannot be written."""
    if isinstance(value, dict):
        pairs = value.get("mapping")
        if isinstance(pairs, list) and len(pairs) <= LONG:
            try:
                return repr({tuple(k) if isinstance(k, list) else k: item for k, item in pairs})
            except (TypeError, ValueError):  # not what `select` wrote
                return None
        if isinstance(value.get("reach"), float):
            return f"fewer.Reach({value['reach']:g})"
        return f"float({value['number']!r})" if "number" in value else None
    return None if isinstance(value, list) and len(value) > LONG else repr(value)


def config_of(known: Evidence | None) -> dict[str, Any]:
    """Options of ``fewer select`` that make a panel again; those that no file can hold are None."""
    if known is None:
        raise InputError("this panel was saved without evidence of how it was made")
    if "platform" in known.options:
        raise InputError(
            "this panel was made by select_genes(..., platform=...), which no options of the "
            "command line do; the report has the call"
        )
    if known.source.get("config") is not None:
        config = dict(known.source["config"])
        if _asked(known).get("decoder") == "linear":
            config.setdefault("decoder", "linear")
        edited = known.source.get("edited")
        if edited is not None:
            config = {name: part for name, part in config.items() if name != "reach"}
            config |= {"k": edited["k"], "include": edited["features"]}
        return config
    found: dict[str, Any] = {"data": known.source.get("path")}
    for name, value in _asked(known).items():
        if isinstance(value, dict) and "reach" in value:
            found["reach"] = value["reach"]
        elif isinstance(value, dict) or name in ("costs", "groups", "weights", "noise"):
            found[name] = None  # in a file of its own on the command line
        elif value is not None:
            found[RENAMED.get(name, name)] = value
    return found


def toml_of(known: Evidence | None) -> str:
    """`config_of` as TOML; a comment says how a panel was edited, if it was."""
    edited = None if known is None else known.source.get("edited")
    note = "" if edited is None else f"# {_edit(edited)}\n"
    return note + toml_text(config_of(known))


def toml_text(config: Mapping[str, Any]) -> str:
    """A mapping of options as TOML; what has no value there becomes a comment."""
    lines = []
    for name, value in config.items():
        if value is None:
            lines.append(f"# {name} = ...  (it was an object in Python: give a file or a column)")
        else:
            lines.append(f"{name} = {_toml(value)}")
    return "\n".join(lines) + "\n"


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # inf, -inf and nan are TOML
    if isinstance(value, (int, float)):
        return repr(value)
    # strings of JSON are strings of TOML, apart from DEL
    return json.dumps(str(value)).replace("\x7f", "\\u007f")
