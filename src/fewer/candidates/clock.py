"""The time limit of a call."""

import time

__all__ = ["Clock"]

LEAST = 0.05  # seconds: what began too late still gets this much


class Clock:
    """Counts the seconds of a call against its limit.

    Examples
    --------
    >>> clock = Clock(limit=None)
    >>> clock.late, clock.left()
    (False, None)
    """

    def __init__(self, limit: float | None) -> None:
        self.limit = limit
        self.began = time.perf_counter()

    @property
    def seconds(self) -> float:
        """Seconds since the call began."""
        return time.perf_counter() - self.began

    @property
    def late(self) -> bool:
        """Whether the limit is past."""
        return self.limit is not None and self.seconds > self.limit

    def left(self) -> float | None:
        """Seconds until the limit, never quite none; None without a limit."""
        return None if self.limit is None else max(LEAST, self.limit - self.seconds)
