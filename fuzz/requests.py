"""Malformed bodies of requests to the service: damaged JSON, and JSON of the wrong kind."""

import json
import random
from typing import Any

from fuzz.mutate import mutated

ODD: list[Any] = [
    None,
    True,
    "",
    "NaN",
    "../../etc/passwd",
    -1,
    0,
    1e308,
    -1e-320,
    10**19,
    [],
    {},
    [[]],
    [None],
    {"rows": []},
    "\u202e\x00",
    "x" * 5000,
    [0] * 500,
]


def malformed(good: dict[str, Any], rng: random.Random) -> bytes:
    """A request that is damaged, or whose parts have been exchanged for others."""
    if rng.random() < 0.4:
        return mutated(json.dumps(good).encode(), rng, [b'{"rows": [[1]]}'])[:100_000]
    found = json.loads(json.dumps(good))
    for _ in range(rng.randint(1, 3)):
        found = _changed(found, rng)
    return json.dumps(found).encode("utf-8", "replace")


def _changed(value: Any, rng: random.Random) -> Any:
    """The value with one part of it exchanged, removed or repeated."""
    if rng.random() < 0.2 or not value or not isinstance(value, (dict, list)):
        return rng.choice(ODD)
    if isinstance(value, list):
        at = rng.randrange(len(value))
        rest = [value[at]] * rng.choice((0, 1, 2, 60))
        return [*value[:at], *(rest or [_changed(value[at], rng)]), *value[at + 1 :]]
    key = rng.choice(list(value))
    if rng.random() < 0.2:
        return {name: part for name, part in value.items() if name != key}
    if rng.random() < 0.2:
        return value | {str(rng.choice(ODD)): value[key]}
    return value | {key: _changed(value[key], rng)}
