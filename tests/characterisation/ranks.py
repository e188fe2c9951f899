"""Run some cases in every process of a ``torchrun`` job; each writes what it found."""

import json
import os
import sys
from pathlib import Path

import torch

from tests.characterisation.cases import run


def main(folder: Path, names: list[str]) -> None:
    torch.set_num_threads(1)
    found = {name: run(name) for name in names}
    (folder / f"rank-{os.environ['RANK']}.json").write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
