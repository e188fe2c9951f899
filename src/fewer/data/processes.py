"""What one process of many knows of the others, and how they speak to each other.

Every process runs the same program on the same source. Where rows are summed up each reads its
own part and the sums meet; where something is decided the first process decides for all. Between
processes go tensors and JSON, never pickles. `fewer.train.launch` makes teams.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor

import fewer.errors
from fewer.data.source import RowRange, Source
from fewer.data.wire import pack, unpack
from fewer.errors import FewerError, InputError, ProcessError

__all__ = [
    "ALONE",
    "Leading",
    "Team",
    "alone",
    "chosen_team",
    "current_team",
    "leading_others",
    "working_with",
]

ALIVE, DONE, ORDER = range(3)  # what the first process says to those that wait for it
BEAT = 10  # seconds between two signs of life of the process that the others wait for

T = TypeVar("T")


@dataclass(frozen=True)
class Team:
    """The processes that fit one model together; all methods but ``part`` are for all at once.

    Parameters
    ----------
    rank, world : int
        Which process this is, of how many.
    calls, waits : process group, default=None
        Of the CPU: one for exchanging values, and one that allows little silence, for waiting
        while the first process works. Tensors on a GPU take torch's default group.

    Examples
    --------
    >>> team = Team()  # one process: nothing is sent anywhere
    >>> team.many, team.leads, team.say(5), team.lead(lambda: 6)
    (False, True, 5, 6)
    """

    rank: int = 0
    world: int = 1
    calls: Any = field(default=None, compare=False)
    waits: Any = field(default=None, compare=False)

    @property
    def many(self) -> bool:
        """Whether there are others."""
        return self.world > 1

    @property
    def leads(self) -> bool:
        """Whether this process decides, prints and writes."""
        return self.rank == 0

    def share_of(self, n: int) -> tuple[int, int]:
        """Where this process's part of n things begins and ends; parts differ by one at most.

        Examples
        --------
        >>> [Team(rank, 3).share_of(7) for rank in range(3)]
        [(0, 3), (3, 5), (5, 7)]
        """
        least, more = divmod(n, self.world)
        start = self.rank * least + min(self.rank, more)
        return start, start + least + (self.rank < more)

    def part(self, source: Source) -> Source:
        """The rows that this process reads, neighbours all."""
        return RowRange(source, *self.share_of(source.shape[0])) if self.many else source

    # -- numbers ---------------------------------------------------------------------------

    def add_up(self, *tensors: Tensor) -> None:
        """Replace each tensor by its sum over the processes."""
        self._reduce(tensors, "SUM")

    def least(self, *tensors: Tensor) -> None:
        """Replace each tensor by its minimum over the processes."""
        self._reduce(tensors, "MIN")

    def most(self, *tensors: Tensor) -> None:
        """Replace each tensor by its maximum over the processes."""
        self._reduce(tensors, "MAX")

    def copy_first(self, *tensors: Tensor) -> None:
        """Replace each tensor by that of the first process."""
        if self.many:
            for tensor in tensors:
                whole = tensor.contiguous()
                self._call(_broadcast, whole, self._group(tensor))
                if whole is not tensor:
                    tensor.copy_(whole)

    def all(self, value: bool) -> bool:
        """Whether it is true of every process."""
        return all(self.gather(bool(value)))

    def _reduce(self, tensors: Sequence[Tensor], how: str) -> None:
        if self.many:
            for tensor in tensors:
                self._call(_all_reduce, tensor, how, self._group(tensor))

    def _group(self, tensor: Tensor) -> Any:
        return self.calls if tensor.device.type == "cpu" else None

    # -- values ----------------------------------------------------------------------------

    def say(self, value: T) -> T:
        """The value of the first process: tensors, arrays and what JSON holds, nested at will."""
        if not self.many:
            return value
        return unpack(self._from_first(pack(value) if self.leads else b""))

    def gather(self, value: Any) -> list[Any]:
        """The values of all processes, by rank."""
        if not self.many:
            return [value]
        mine = _bytes(pack(value))
        sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(self.world)]
        self._call(_all_gather, sizes, torch.tensor([len(mine)]), self.calls)
        longest = max(int(size) for size in sizes)
        parts = [torch.zeros(longest, dtype=torch.uint8) for _ in range(self.world)]
        padded = torch.zeros(longest, dtype=torch.uint8)
        padded[: len(mine)] = mine
        self._call(_all_gather, parts, padded, self.calls)
        return [
            unpack(part[: int(size)].numpy().tobytes())
            for part, size in zip(parts, sizes, strict=True)
        ]

    def _from_first(self, data: bytes) -> bytes:
        size = torch.tensor([len(data)])
        self._call(_broadcast, size, self.calls)
        whole = _bytes(data) if self.leads else torch.zeros(int(size), dtype=torch.uint8)
        self._call(_broadcast, whole, self.calls)
        return whole.numpy().tobytes()

    # -- work ------------------------------------------------------------------------------

    def lead(self, work: Callable[[], T], helps: Callable[[Any], None] | None = None) -> T:
        """Do some work in the first process alone, as if there were no others; its result.

        The others wait as long as it takes and the first is alive. What it raises all raise.

        Parameters
        ----------
        work : callable
            What the first process does.
        helps : callable, default=None
            What the others do with each order that the first gives by `Leading.order`, when both
            work together for a while.
        """
        if not self.many:
            return work()
        self.gather(None)  # all here: from now on no sign of life means trouble
        if not self.leads:
            return self._helped(helps)
        state: dict[str, Any] = {"value": None}
        failed: Exception | None = None
        leading = Leading(self)
        with leading.signs_of_life(), alone():
            within = _LEADING.set(leading)
            try:
                state["value"] = work()
            except Exception as error:
                state, failed = _described(error), error
            finally:
                _LEADING.reset(within)
        self._signal(DONE)
        self._from_first(pack(state))
        if failed is not None:
            raise failed
        return state["value"]

    def _helped(self, helps: Callable[[Any], None] | None) -> Any:
        """Wait for the first process, and help where it asks for help."""
        failed: Exception | None = None
        while True:
            try:
                word = self._signal()
            except ProcessError:
                if failed is not None:  # here and not there: it waits for this process in vain
                    raise failed from None
                raise
            if word == DONE:
                break
            if word == ORDER and helps is not None:
                order = unpack(self._from_first(b""))
                try:
                    with working_with(self):
                        helps(order)
                except ProcessError:
                    raise
                except Exception as error:  # the first has it too, and decides what to do
                    failed = error
        state = unpack(self._from_first(b""))
        if "error" in state:
            raise _restored(state)
        return state["value"]

    def together(self, work: Callable[[], T]) -> T:
        """Do some work in every process by itself; where it fails in one, it fails in all."""
        if not self.many:
            return work()
        failed: Exception | None = None
        value: T
        try:
            with alone():
                value = work()
        except Exception as error:
            failed = error
        told = self.gather(None if failed is None else _described(failed))
        if failed is not None:
            raise failed
        for rank, state in enumerate(told):
            if state is not None:
                raise _restored(state, f"process {rank} of {self.world}: ")
        return value

    def agree(self, facts: dict[str, Any]) -> None:
        """Refuse to go on where processes see different things.

        Parameters
        ----------
        facts : dict from str to what JSON holds
            Such as the number of rows.
        """
        if not self.many:
            return
        told = self.gather(facts)
        for name in facts:
            seen = [other.get(name) for other in told]
            if any(value != seen[0] for value in seen):
                shown = ", ".join(f"process {rank}: {value}" for rank, value in enumerate(seen[:8]))
                raise InputError(
                    f"the processes see different data: {name} differs ({shown}). Give every "
                    "process the same file or the whole array: each reads its own part of it"
                )

    def _signal(self, word: int = ALIVE) -> int:
        """Let the first process say one of three words to all."""
        told = torch.tensor([word])
        self._call(_broadcast, told, self.waits)
        return int(told)

    def _call(self, function: Callable[..., None], *args: Any) -> None:
        try:
            function(*args)
        except RuntimeError as error:  # what torch raises for connections and for time
            first = str(error).strip().splitlines()[0] if str(error).strip() else repr(error)
            raise ProcessError(
                f"process {self.rank} of {self.world} lost the others ({first[:200]}): one of them "
                "ended, or did nothing for too long. Look for its own message; with checkpoint= "
                "the same call goes on from the last checkpoint"
            ) from error


class Leading:
    """The first process at work, while the others wait for its orders."""

    def __init__(self, team: Team) -> None:
        self.team = team
        self._turn = threading.Lock()  # one speaks to the others at a time

    def order(self, order: Any, work: Callable[[], T]) -> T:
        """Send an order, and do here what it makes the others do."""
        with self._turn:
            self.team._signal(ORDER)
            self.team._from_first(pack(order))
            before = _LEADING.set(None)
            try:
                with working_with(self.team):
                    return work()
            finally:
                _LEADING.reset(before)

    @contextmanager
    def signs_of_life(self) -> Iterator[None]:
        """Let the others know, every few seconds, that this process is still at work."""
        done = threading.Event()

        def work() -> None:
            while not done.wait(BEAT):
                with self._turn:
                    if done.is_set():
                        return
                    try:
                        self.team._signal(ALIVE)
                    except FewerError:  # the others are gone, as the next word to them will say
                        return

        beating = threading.Thread(target=work, name="fewer-is-alive", daemon=True)
        beating.start()
        try:
            yield
        finally:
            done.set()
            beating.join()


ALONE = Team()
_LEADING: ContextVar[Leading | None] = ContextVar("fewer_leading", default=None)
_CURRENT: ContextVar[Team | None] = ContextVar("fewer_team", default=None)


def leading_others() -> Leading | None:
    """Whether this process leads others that wait for orders."""
    return _LEADING.get()


def current_team() -> Team:
    """Who works on what is going on here: this process alone, unless it was put into a team."""
    return _CURRENT.get() or ALONE


def chosen_team() -> Team | None:
    """The same; None where nobody has said who works here."""
    return _CURRENT.get()


@contextmanager
def working_with(team: Team) -> Iterator[Team]:
    """Sums inside the block are over the rows of all processes of the team.

    Examples
    --------
    >>> with working_with(ALONE) as team:
    ...     team is current_team()
    True
    """
    before = _CURRENT.set(team)
    try:
        yield team
    finally:
        _CURRENT.reset(before)


@contextmanager
def alone() -> Iterator[None]:
    """Let this process work by itself inside the block, also where it is one of many."""
    with working_with(ALONE):
        yield


def _bytes(data: bytes) -> Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.zeros(0).byte()


def _described(error: Exception) -> dict[str, str]:
    return {"error": type(error).__name__, "text": str(error)}


def _restored(state: dict[str, str], where: str = "") -> Exception:
    """An error of another process, of the same kind where it is one of ours."""
    kind = getattr(fewer.errors, state["error"], None)
    ours = isinstance(kind, type) and issubclass(kind, FewerError)
    text = state["text"] if ours else f"{state['error']}: {state['text']}"
    return (kind if ours and kind is not None else ProcessError)(where + text)


def _all_reduce(tensor: Tensor, how: str, group: Any) -> None:
    torch.distributed.all_reduce(tensor, getattr(torch.distributed.ReduceOp, how), group=group)


def _broadcast(tensor: Tensor, group: Any) -> None:
    torch.distributed.broadcast(tensor, src=0, group=group)


def _all_gather(out: list[Tensor], tensor: Tensor, group: Any) -> None:
    torch.distributed.all_gather(out, tensor, group=group)
