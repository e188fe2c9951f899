"""Who still gets a turn when the time is over. No test looks at a real clock."""

import warnings

import numpy as np
import pytest
from sklearn.datasets import load_iris

import fewer
from fewer.candidates.clock import LEAST, Clock
from fewer.candidates.lines import LinearComparison
from fewer.candidates.networks import NetworkComparison
from fewer.candidates.prediction import TargetStrategies
from fewer.candidates.strategies import Strategies
from fewer.candidates.training import trained_decoder
from fewer.errors import FewerWarning


class Hands:
    """A clock that stands still until it is set."""

    now = 0.0


@pytest.fixture
def hands(monkeypatch):
    hands = Hands()
    monkeypatch.setattr(Clock, "seconds", property(lambda clock: hands.now))
    return hands


def then_late(monkeypatch, hands, owner, name, calls=1):
    """Let the clock jump past any limit at the end of that call of a method."""
    plain, seen = getattr(owner, name), []

    def late(*arguments, **options):
        found = plain(*arguments, **options)
        seen.append(arguments)
        if len(seen) == calls:
            hands.now = 1e6
        return found

    monkeypatch.setattr(owner, name, late)
    return seen


def strategies(panel):
    return [row["strategy"] for row in panel.leaderboard]


def test_a_turn_is_a_part_of_what_is_left(hands):
    clock = Clock(100.0)
    clock.reserve = 20.0
    hands.now = 20.0
    clock.turn(3)
    assert (clock.left(), clock.over, clock.late) == (20.0, False, False)
    hands.now = 41.0
    assert (clock.left(), clock.over, clock.late) == (LEAST, True, False)
    hands.now = 81.0
    assert clock.late
    assert Clock(None).left() is None


def test_all_trainings_get_the_same(hands):
    clock = Clock(100.0)
    assert clock.training(4) == 25.0
    hands.now = 90.0
    assert clock.training(4) == 25.0
    assert Clock(None).training(4) is None


def test_nothing_starts_after_the_limit_but_the_first_candidate(digits, hands, monkeypatch):
    then_late(monkeypatch, hands, LinearComparison, "measure")
    panel = fewer.select(digits[0][:300], 5, time_limit=1, random_state=0)
    assert strategies(panel) == ["greedy"]
    assert panel.k == 5
    assert panel.settings["seconds"] == 1e6


def test_without_a_limit_all_are_compared(digits, hands, monkeypatch):
    then_late(monkeypatch, hands, LinearComparison, "measure")
    panel = fewer.select(digits[0][:300], 5, random_state=0)
    assert {"greedy", "search", "closed form, swaps"} <= {*strategies(panel)}


def test_a_candidate_that_cannot_finish_its_folds_is_left_out(digits, hands, monkeypatch):
    seen = then_late(monkeypatch, hands, Strategies, "search", calls=2)
    panel = fewer.select(digits[0][:300], 5, validation=4, time_limit=1, random_state=0)
    assert strategies(panel) == ["greedy"]
    assert len(seen) == 2


def test_trainings_of_selectors_end_with_their_turn(digits, hands, monkeypatch):
    histories = []
    plain = Strategies.closed_form

    def watched(self, fold, seed):
        hands.now = 1e6
        found = plain(self, fold, seed)
        histories.append(self.history["closed form"])
        hands.now = 0.0
        return found

    monkeypatch.setattr(Strategies, "closed_form", watched)
    fewer.select(digits[0], 5, strategies=["closed_form"], time_limit=1, random_state=0)
    assert {len(history) for history in histories} == {1}
    histories.clear()
    fewer.select(digits[0], 5, strategies=["closed_form"], random_state=0)
    assert len(histories[0]) > 10


def test_networks_are_not_trained_again_when_it_is_late(digits, hands, monkeypatch):
    trained = []

    def counted(*arguments, **options):
        trained.append(options["seconds"])
        return trained_decoder(*arguments, **options)

    monkeypatch.setattr("fewer.candidates.networks.trained_decoder", counted)
    then_late(monkeypatch, hands, NetworkComparison, "measure")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FewerWarning)
        panel = fewer.select(
            digits[0][:200], 3, decoder=(4,), validation=2, time_limit=0.3, random_state=0
        )
    assert strategies(panel) == ["search"]
    assert np.allclose(trained, 0.1)
    assert len(trained) == 3  # one a fold, one for the panel; none again for the held-out score


def test_a_target_knows_the_limit_too(hands, monkeypatch):
    X, y = load_iris(return_X_y=True)
    then_late(monkeypatch, hands, TargetStrategies, "search")
    panel = fewer.select(X, 2, target=y, validation=0.2, time_limit=1, random_state=0)
    assert strategies(panel) == ["search, without target"]
