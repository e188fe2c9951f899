"""`fewer.select`, the estimators and `fewer.assess` give the results they gave when recorded."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.characterisation.cases import CASES, differences, run

HERE = Path(__file__).parent
EXPECTED = json.loads((HERE / "expected.json").read_text(encoding="utf-8"))
# one split, folds and the last held-out swaps, missing values, sparse rows, a target, an estimator
ON_TWO_RANKS = [
    "linear_automatic_split",
    "strategy_gradient",
    "linear_few_rows_per_feature",
    "missing_values",
    "sparse_rows",
    "target_numbers",
    "column_subset",
    "autoencoder_swaps",
]


def test_every_case_is_recorded():
    assert list(EXPECTED) == list(CASES)


@pytest.mark.parametrize("name", CASES)
def test_results_are_those_recorded(name):
    assert not differences(json.loads(json.dumps(run(name))), EXPECTED[name])


def test_a_difference_is_noticed():
    expected = {"indices": [1, 2], "error": 0.25, "rows": [[1.0, 1e-3], [2.0, 0.0]]}
    assert not differences(expected, expected)
    assert not differences(expected | {"error": 0.25 * (1 + 1e-9)}, expected)
    assert differences(expected | {"error": 0.25 * (1 + 1e-7)}, expected)
    assert differences(expected | {"error": float("nan")}, expected)
    assert differences(expected | {"indices": [2, 1]}, expected)
    assert differences(expected | {"indices": [1]}, expected)
    assert differences(expected | {"rows": [[1.0, 1e-3], [2.0, 1e-9]]}, expected)
    assert differences(expected | {"rows": [[1.0, 1e-3]]}, expected)
    assert differences({"indices": [1, 2]}, expected)


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory):
    """What each of two processes finds, started by torchrun."""
    folder = tmp_path_factory.mktemp("ranks")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    script = ["--nproc_per_node", "2", "--module", "tests.characterisation.ranks"]
    done = subprocess.run(
        [*torchrun, *script, str(folder), *ON_TWO_RANKS],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        cwd=HERE.parents[1],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    files = [folder / f"rank-{rank}.json" for rank in range(2)]
    return [json.loads(file.read_text(encoding="utf-8")) for file in files]


@pytest.mark.parametrize("name", ON_TWO_RANKS)
def test_two_ranks_find_what_one_process_finds(two_ranks, name):
    for found in two_ranks:
        assert not differences(found[name], EXPECTED[name])
