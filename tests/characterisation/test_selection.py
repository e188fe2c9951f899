"""`fewer.select`, the estimators and `fewer.assess` give the results they gave when recorded."""

import json
from pathlib import Path

import pytest

from tests.characterisation.cases import CASES, differences, run

HERE = Path(__file__).parent
EXPECTED = json.loads((HERE / "expected.json").read_text(encoding="utf-8"))


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
