"""The time limit of a call."""

import time

from fewer.distributed import broadcast

__all__ = ["Clock"]

LEAST = 0.05  # seconds: what began too late still gets this much


class Clock:
    """Counts the seconds of a call against its limit.

    With a limit, rank 0's clock decides for all ranks, so that all take the same way.

    Attributes
    ----------
    reserve : float
        Seconds before the limit that are kept for what has to follow.

    Examples
    --------
    >>> clock = Clock(limit=None)
    >>> clock.late, clock.left()
    (False, None)
    >>> clock = Clock(limit=100.0)
    >>> clock.reserve = 20.0
    >>> clock.turn(parts=4)
    >>> round(clock.left())
    20
    """

    def __init__(self, limit: float | None) -> None:
        self.limit = limit
        self.reserve = 0.0
        self.began = time.perf_counter()
        self._end = 0.0 if limit is None else limit  # of the turn
        self._training: float | None = None

    @property
    def seconds(self) -> float:
        """Seconds since the call began."""
        return time.perf_counter() - self.began

    @property
    def late(self) -> bool:
        """Whether the time for anything new is over."""
        return self.limit is not None and broadcast(self.seconds > self.limit - self.reserve)

    def turn(self, parts: int) -> None:
        """Give whoever works next one of so many equal parts of the time that is left."""
        if self.limit is not None:
            self._end = self.seconds + max(0.0, self.limit - self.reserve - self.seconds) / parts

    @property
    def over(self) -> bool:
        """Whether the turn is over."""
        return self.limit is not None and broadcast(self.seconds > self._end)

    def left(self) -> float | None:
        """Seconds that the turn has left, never quite none; None without a limit."""
        return None if self.limit is None else broadcast(max(LEAST, self._end - self.seconds))

    def training(self, trainings: int) -> float | None:
        """Seconds that one of so many trainings may take, the same for all that follow.

        Were it less for those that come later, the first would win.
        """
        if self._training is None and self.limit is not None:
            self._training = max(LEAST, (self.limit - self.seconds) / trainings)
        return self._training
