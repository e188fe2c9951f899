"""The learning rate of a decoder, from first to last epoch."""

import math

__all__ = ["CosineDecay"]


class CosineDecay:
    """Half a cosine from 1 to 0, in all epochs or, from where nothing improves any more, in fewer.

    A loss that stands still at a high rate falls once more when the rate does. So training that
    has stalled is not stopped but brought to its end.

    Parameters
    ----------
    epochs : int
        How many there are.

    Examples
    --------
    >>> cooling = CosineDecay(100)
    >>> round(cooling.share(1), 2), round(cooling.share(51), 2)
    (1.0, 0.5)
    >>> cooling.hurry(51, 10)
    >>> round(cooling.share(52), 2), round(cooling.share(57), 2), cooling.last
    (0.48, 0.24, 61)
    """

    def __init__(self, epochs: int) -> None:
        self.first, self.last = 0, epochs
        self.start = 1.0

    @property
    def hurried(self) -> bool:
        """Whether the end was brought forward."""
        return self.first > 0

    def share(self, epoch: int, spent: float = 0.0) -> float:
        """Share of the first rate in an epoch, after a share of the time has been ``spent``."""
        done = (epoch - 1 - self.first) / max(1, self.last - self.first)
        return min(self.start * _fall(done), _fall(spent))

    def hurry(self, epoch: int, left: int) -> None:
        """After this epoch, end in so many more, or where it would have ended anyway."""
        start = self.share(epoch + 1)
        self.first, self.last, self.start = epoch, min(self.last, epoch + left), start

    def state(self) -> list[float]:
        """What `restore` takes."""
        return [self.first, self.last, self.start]

    def restore(self, state: list[float]) -> None:
        """Go on as from another's `state`."""
        self.first, self.last, self.start = int(state[0]), int(state[1]), state[2]


def _fall(done: float) -> float:
    return (1 + math.cos(math.pi * min(1.0, max(0.0, done)))) / 2
