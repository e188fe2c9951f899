"""The Python that makes a panel again."""

from typing import Any

from fewer.evidence import Evidence

__all__ = ["call"]

LONG = 60  # items: a longer list is only named


def call(known: Evidence) -> str:
    """The call of `fewer.select` with the options that it was given.

    Arrays and functions are named, not spelled out.
    """
    path = known.source.get("path")
    data = repr(path) if path else "data"
    lines = ["import fewer", ""]
    if not path:
        lines[1:1] = ["", f"data = ...  # {known.source['kind']}, {_size(known)}"]
    k = known.options.get("k")
    options = [] if k is None else [f"k={k}"]
    lost = []
    for name, value in known.options.items():
        if name == "k":
            continue
        text = _spelled(value)
        if text is None:
            text = name
            lost.append(name)
        options.append(f"{name}={text}")
    lines[-1:-1] = [f"{name} = ...  # as it was given" for name in lost]
    lines.append(f"panel = fewer.select({', '.join([data, *options])})")
    if known.options.get("random_state") is None:
        lines.append("# no random_state was given: another run may choose slightly differently")
    return "\n".join(lines)


def _size(known: Evidence) -> str:
    return f"{known.source['rows']:,} x {known.source['columns']:,}"


def _spelled(value: Any) -> str | None:
    """Python for a value as `describe_parameters` wrote it; None where that is no short text."""
    if isinstance(value, dict):
        if "mapping" in value and len(value["mapping"]) <= LONG:
            return repr({_hashable(key): item for key, item in value["mapping"]})
        return f"float({value['number']!r})" if "number" in value else None
    if isinstance(value, list):
        return repr(value) if len(value) <= LONG else None
    return repr(value)


def _hashable(key: Any) -> Any:
    return tuple(key) if isinstance(key, list) else key
