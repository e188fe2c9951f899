"""Write the results that the tests compare with: ``python -m tests.characterisation.record``.

Record anew only where a change of results is intended, and say why in the commit. Names of cases
limit the recording to these.
"""

import json
import sys
import time
from pathlib import Path

import torch

from tests.characterisation.cases import CASES, differences, run

EXPECTED = Path(__file__).with_name("expected.json")


def main(names: list[str]) -> None:
    torch.set_num_threads(1)
    before = json.loads(EXPECTED.read_text(encoding="utf-8")) if EXPECTED.exists() else {}
    expected = {name: before[name] for name in CASES if name in before}
    for name in names or CASES:
        began = time.perf_counter()
        expected[name] = json.loads(json.dumps(run(name), allow_nan=False))
        changed = name not in before or differences(expected[name], before[name])
        seconds = time.perf_counter() - began
        print(f"{name:<34}{seconds:>7.2f} s  {'changed' if changed else 'as before'}", flush=True)
    ordered = {name: expected[name] for name in CASES if name in expected}
    lines = [f"{json.dumps(name)}: {json.dumps(result)}" for name, result in ordered.items()]
    EXPECTED.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
