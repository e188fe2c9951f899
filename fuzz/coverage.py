"""The process that atheris drives: ``python -m fuzz.coverage TARGET SCRATCH CORPUS [options]``."""

import os
import random
import sys
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["fewer"]):
    import fewer  # noqa: F401
    from fuzz.targets import TARGETS, prepare

prepare()
TARGET = TARGETS[sys.argv[1]]
SCRATCH = Path(sys.argv[2])
os.environ["FEWER_CACHE"] = str(SCRATCH / "cache")


def one_input(data: bytes) -> None:
    """One run; what it raises is the finding."""
    TARGET.run(data, SCRATCH)


def mutate(data: bytes, max_size: int, seed: int) -> bytes:
    """Half of the time damage that knows the format, else libFuzzer's own."""
    rng = random.Random(seed)
    if rng.random() < 0.5:
        return TARGET.mutate(data, rng, TARGET.seeds())[:max_size]
    return atheris.Mutate(data, max_size)


atheris.Setup([sys.argv[0], *sys.argv[3:]], one_input, custom_mutator=mutate)
atheris.Fuzz()
