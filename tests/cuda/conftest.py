"""A time limit for each test: a wait for a GPU that never ends cannot be interrupted otherwise."""

import faulthandler
import os

import pytest

LIMIT = 180  # seconds; the slowest test takes 13 on an H200


@pytest.fixture(autouse=True)
def _time_limit(pytestconfig):
    """Print where each thread is, and end the process."""
    capture = pytestconfig.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():
        terminal = os.dup(2)
    faulthandler.dump_traceback_later(LIMIT, exit=True, file=terminal)
    yield
    faulthandler.cancel_dump_traceback_later()
    os.close(terminal)
