"""Temperature schedules."""

import pytest

from fewer.errors import InputError
from fewer.nn.schedule import SCHEDULES, make_schedule


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_schedule_never_rises_and_stays_within_its_ends(name):
    temperature = make_schedule(name, 10.0, 0.01, 50)
    values = [temperature(step) for step in range(51)]
    assert values == sorted(values, reverse=True)
    assert values[0] == 10.0
    assert values[-1] == pytest.approx(10.0 if name == "constant" else 0.01)


def test_exponential_is_the_papers_equation():
    temperature = make_schedule("exponential", 10, 0.01, 300)
    assert temperature(100) == pytest.approx(10 * (0.01 / 10) ** (100 / 300))


def test_a_custom_factory_is_used():
    assert make_schedule(lambda start, end, total: lambda step: 7.0, 1, 1, 1)(0) == 7.0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("exponential", 0, 0.01, 9), "start_temperature=0 must be above 0"),
        (("linear", 1, -1, 9), "end_temperature=-1 must be above 0"),
        (("abrupt", 0.1, 1, 9), "would rise from 0.1 to 1"),
        (("constant", 1, 1, 0), "needs at least one"),
        (("cosine", 1, 1, 9), "schedule='cosine' is not valid"),
    ],
)
def test_bad_input_is_named(arguments, message):
    with pytest.raises(InputError, match=message):
        make_schedule(*arguments)
