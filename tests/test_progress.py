"""What is said about the remaining time, with a clock that tests move."""

import io
import re
import subprocess
import sys
import threading

import numpy as np
import pytest
from rich.console import Console
from sklearn.datasets import load_digits

import fewer
from fewer._progress import Lines, TimeLeft, shown
from fewer.selection.context import WorkPlan

COMMAND = [sys.executable, "-c", "from fewer.cli import main; main()"]


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


# -- time left -------------------------------------------------------------------------------


def test_time_left_follows_the_fraction_and_is_counted_down(clock):
    left = TimeLeft(clock)
    left.update(0.0)
    assert str(left) == ""
    clock.now += 20
    left.update(0.25)
    assert str(left) == "about 60 s left"
    clock.now += 30
    assert str(left) == "about 30 s left"
    left.update(0.5)  # slower than expected
    assert str(left) == "about 50 s left"


@pytest.mark.parametrize(
    ("seconds", "text"), [(89, "89 s"), (90, "2 min"), (5399, "90 min"), (7200, "2.0 h")]
)
def test_long_times_are_rounded(clock, seconds, text):
    left = TimeLeft(clock)
    clock.now += seconds
    left.update(0.5)
    assert str(left) == f"about {text} left"


def test_never_about_0_seconds(clock):
    left = TimeLeft(clock)
    clock.now += 10
    left.update(0.5)
    for _ in range(42):
        assert ("about" in str(left)) == (clock.now < 120.5)  # half a second of grace
        assert "about 0 s" not in str(left)
        clock.now += 0.25
    assert str(left) == "longer than estimated"
    left.update(0.95)
    assert str(left) == "about 1 s left"
    clock.now += 5
    assert str(left) == "finishing"


def test_nothing_is_said_before_anything_is_known(clock):
    left = TimeLeft(clock)
    clock.now += 0.5
    left.update(0.5)
    assert str(left) == ""  # too soon
    clock.now += 10
    left.update(None)
    assert str(left) == ""
    left.update(0.02)
    assert str(left) == ""  # too little


def test_preparation_does_not_count(clock):
    left = TimeLeft(clock)
    clock.now += 60  # reading
    left.update(0.0)
    clock.now += 10
    left.update(0.5)
    assert str(left) == "about 10 s left"


# -- plans -----------------------------------------------------------------------------------


def run(plan, clock, costs, weights=None, folds=5):
    """Folds of steps with these costs; fraction and true fraction at the beginning of each."""
    for kind in costs:
        plan.expect(kind, folds, (weights or {}).get(kind, 1.0))
    total, spent, found = folds * sum(costs.values()), 0.0, []
    for fold in range(folds):
        for kind, cost in costs.items():
            plan.begin(kind, f"{kind}, fold {fold}")
            found.append((plan.fraction(), spent / total))
            clock.now += cost
            spent += cost
    return found


def test_the_first_fold_tells_what_the_others_take(clock):
    costs = {"greedy": 0.1, "search": 2.0, "closed form": 30.0, "training": 8.0}
    found = run(WorkPlan(clock=clock), clock, costs)
    assert [reached for reached, _ in found] == sorted(reached for reached, _ in found)
    for reached, true in found[4:]:  # steps of each kind are known
        assert reached == pytest.approx(true, abs=0.02)


def test_weights_stand_in_for_what_has_not_been_measured(clock):
    costs = {"search": 1.0, "training": 4.0, "gradient": 8.0}
    found = run(WorkPlan(clock=clock), clock, costs, costs, folds=1)
    for reached, true in found[1:]:
        assert reached == pytest.approx(true)


def test_time_left_is_right_within_a_factor_of_two_in_the_second_half(clock):
    costs = {"a": 9.0, "b": 1.0, "c": 5.0}
    plan, left, total = WorkPlan(clock=clock), TimeLeft(clock), 3 * 15.0
    plan.expect("a", 3), plan.expect("b", 3), plan.expect("c", 3)
    spent = 0.0
    for _ in range(3):
        for kind, cost in costs.items():
            plan.begin(kind)
            left.update(plan.fraction())
            if total / 2 < spent < total - 5:
                said = float(re.findall(r"about (\d+) s", str(left))[0])
                assert 0.5 < said / (total - spent) < 2
            clock.now += cost
            spent += cost


def test_a_step_that_takes_longer_than_those_before_raises_the_estimate(clock):
    plan = WorkPlan(clock=clock)
    plan.expect("fold", 4)
    plan.begin("fold")
    clock.now += 1
    plan.begin("fold")
    assert plan.fraction() == pytest.approx(0.25)
    clock.now += 9  # where 1 was expected: the two others are then expected to take 9 as well
    assert plan.fraction() == pytest.approx(10 / 28)
    plan.begin("fold")
    plan.begin("fold")
    clock.now += 1e6
    assert plan.fraction() == 0.99  # not done before the call returns


def test_fractions_inside_a_step(clock):
    told = []
    plan = WorkPlan(lambda message, fraction: told.append((message, fraction)), clock)
    plan.expect("training", 2)
    plan.begin("training", "training 1")
    clock.now += 10
    plan.inside(0.5)
    plan.inside(0.5)  # at most once per second
    assert told == [("training 1", 0.0), ("training 1", 0.25)]


def test_steps_that_are_dropped_no_longer_count(clock):
    plan = WorkPlan(clock=clock)
    plan.expect("fold", 10)
    plan.begin("fold")
    clock.now += 10
    plan.begin("fold")
    assert plan.fraction() == pytest.approx(0.1)
    plan.expect("fold", 1)
    assert plan.fraction() == pytest.approx(10 / 30)


def test_a_clock_that_stands_still(clock):
    plan = WorkPlan(clock=clock)
    plan.expect("fold", 3)
    for _ in range(3):
        plan.begin("fold")
        assert plan.fraction() == 0


@pytest.mark.filterwarnings("ignore::fewer.errors.FewerWarning")
@pytest.mark.parametrize("options", [{"validation": 3}, {"validation": 0.2}, {"time_limit": 50}])
def test_fractions_of_select_never_fall(options):
    told = []
    X = load_digits().data[:300, 20:40]
    fewer.select(X, 3, random_state=0, progress=lambda *row: told.append(row), **options)
    fractions = [fraction for _, fraction in told]
    assert fractions == sorted(fractions)
    assert fractions[0] == 0
    assert 0.5 < fractions[-1] < 1
    assert told[-1][0] == "fitting on all rows ..."


# -- lines -----------------------------------------------------------------------------------


def test_a_line_every_ten_seconds_and_none_for_short_work(clock):
    lines = []
    shown_lines = Lines(lines.append, clock=clock)
    shown_lines.update("reading", 0.0)
    for second in range(1, 36):
        clock.now += 1
        if second == 18:
            shown_lines.update("search", 0.5)
        shown_lines.tick()
        if second < 10:
            assert lines == []
    assert lines == [
        "[  10.0 s] reading",
        "[  20.0 s] search, 50% done, about 16 s left",
        "[  30.0 s] search, 50% done, about 6 s left",
    ]


def test_messages_are_written_when_they_come(clock):
    lines = []
    told = Lines(lines.append, messages=True, clock=clock)
    told.update("greedy", 0.0)
    clock.now += 5
    told.update("search", 0.5)
    told.update("search", 0.6)  # not a new message
    assert lines == ["[   0.0 s] greedy", "[   5.0 s] search, 50% done, about 5 s left"]


def test_a_thread_writes_the_lines_until_the_end(clock):
    written = threading.Event()
    with Lines(lambda line: written.set(), clock=clock) as lines:
        lines.update("search", 0.1)
        clock.now += 11
        assert written.wait(30)
    assert lines._done.is_set()


def test_the_last_line_of_a_dense_display_stays():
    text = io.StringIO()
    with shown("try 1", Console(file=text), dense=True) as update:
        update("try 1 [loss 0.5]", 1.0)
    assert re.fullmatch(r"\[ +0\.0 s\] try 1 \[loss 0\.5\], 100% done\n", text.getvalue())
    text = io.StringIO()
    with shown("reading", Console(file=text)):
        pass
    assert text.getvalue() == ""


# -- the real program ------------------------------------------------------------------------


@pytest.fixture
def digits_file(tmp_path):
    np.savetxt(tmp_path / "digits.csv", load_digits().data[:300, 20:40], delimiter=",", fmt="%d")
    words = ["select", "digits.csv", "-k", "3", "--device", "cpu", "--strategies", "search"]
    return tmp_path, [*COMMAND, *words]


def test_a_pipe_shows_lines_without_control_characters(digits_file):
    folder, command = digits_file
    # every line at once instead of every ten seconds
    command[2] = "import fewer._progress as p; p.EVERY = p.TICK = 0.01; " + command[2]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=folder)
    lines = [line for line in done.stderr.splitlines() if not line.startswith("warning")]
    assert lines
    for line in lines:
        assert re.match(r"\[ *\d+\.\d s\] \w", line)
    assert "\x1b" not in done.stderr
    assert "[" not in done.stdout.split("next:")[0]
