"""What still runs when the time is over. The clock stands still until a test moves it."""

import time

import pytest
from sklearn.datasets import load_digits, load_iris

import fewer


class Clock:
    """A clock that jumps past any limit when a progress message begins with given words."""

    def __init__(self, words):
        self.words, self.now, self.messages = words, 0.0, []

    def progress(self, message, fraction):
        self.messages.append(message)
        if message.startswith(self.words):
            self.now = 1e6


@pytest.fixture
def select_until(monkeypatch):
    """`fewer.select` with a clock that jumps at a message."""

    def select(words, *data, **options):
        clock = Clock(words)
        monkeypatch.setattr(time, "perf_counter", lambda: clock.now)
        panel = fewer.select(*data, progress=clock.progress, random_state=0, **options)
        return panel, clock.messages

    return select


def strategies(panel):
    return [row["strategy"] for row in panel.leaderboard]


def test_nothing_starts_after_the_limit_but_the_first_candidate(digits, select_until):
    panel, _ = select_until("greedy", digits[0][:300], 5, time_limit=1)
    assert strategies(panel) == ["greedy"]
    assert panel.k == 5
    assert panel.settings["seconds"] == 1e6


def test_without_a_limit_all_are_compared(digits, select_until):
    panel, _ = select_until("greedy: held-out", digits[0][:300, 20:44], 3)
    assert {"greedy", "search", "closed form, swaps"} <= {*strategies(panel)}


def test_a_candidate_that_cannot_finish_its_folds_is_left_out(digits, select_until):
    words = "search, fold 2"
    panel, messages = select_until(words, digits[0][:300], 5, validation=4, time_limit=1)
    assert strategies(panel) == ["greedy"]
    assert not any(message.startswith("search, fold 3") for message in messages)


def test_training_of_a_selector_ends_with_its_slot(digits, select_until):
    options = {"strategies": ["closed_form"], "validation": 0.2}
    X = digits[0][:, 20:44]
    late, _ = select_until("closed form, swaps ...", X, 3, time_limit=1, **options)
    free, _ = select_until("never", X, 3, **options)
    assert len(free.evidence.history["closed form"]) > 10
    assert len(late.evidence.history.get("closed form", [None])) == 1


@pytest.mark.filterwarnings("ignore:the network does not clearly beat")
def test_networks_are_not_compared_after_the_time_limit(digits, select_until):
    X = digits[0][:200, 20:44]
    options = {"decoder": (4,), "validation": 2, "time_limit": 0.3}
    panel, messages = select_until("search, fold 1", X, 3, **options)
    assert strategies(panel) == ["search"]
    assert not any("all rows" in message and "greedy" in message for message in messages)


@pytest.mark.filterwarnings("ignore:the network does not clearly beat")
def test_the_best_on_the_first_fold_may_not_finish_the_others(select_until):
    """Others were pruned because of it, so their errors are not known any more."""
    options = {"decoder": (4,), "scale": "none", "validation": 4, "time_limit": 1}
    words = "search, network swaps, fold 2"
    X = load_digits().data[:60, 26:40] / 16
    panel, messages = select_until(words, X, 3, device="cpu", **options)
    assert any(message.startswith(words) for message in messages)
    assert strategies(panel) == ["search"]
    assert panel.k == 3


def test_a_target_has_the_limit_too(select_until):
    X, y = load_iris(return_X_y=True)
    words = "search, without target ..."
    panel, _ = select_until(words, X, 2, target=y, validation=0.2, time_limit=1)
    assert strategies(panel) == ["search, without target"]
