"""Several processes that run the same program (SPMD): the same script, started by ``torchrun``.

Every rank makes the same calls in the same order. Sums over rows meet by `all_reduce`; what only
one rank should do, such as a search, is done `on_rank0` and broadcast. All functions work on the
current process group, which `joined` enters; outside of it, and for one process, they do nothing
beyond calling the work and returning the value.
"""

import atexit
import logging
import os
import signal
import sys
import tempfile
import threading
import warnings
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import timedelta
from functools import wraps
from typing import Any, ParamSpec, Protocol, TypeVar

import torch
from sklearn.utils import check_random_state
from torch import Tensor

import fewer.errors
from fewer.errors import (
    FewerError,
    FewerWarning,
    InputError,
    ProcessError,
    translate_sklearn_errors,
)

__all__ = [
    "all_or_raise",
    "all_reduce",
    "broadcast",
    "broadcast_tensors",
    "check_equal",
    "collective",
    "gather",
    "is_rank0",
    "joined",
    "on_rank0",
    "open_together",
    "rank",
    "shard_bounds",
    "shared_seed",
    "single_process",
    "spawn",
    "world_size",
]

TIMEOUT_VARIABLE = "FEWER_TIMEOUT"  # seconds, in the environment
TIMEOUT = 24 * 3600.0  # ranks wait this long while rank 0 searches; a dead rank is noticed at once
ELASTIC = "torch.distributed.elastic"
LOST = "lost the others"

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class _Rows(Protocol):
    @property
    def shape(self) -> tuple[int, ...]: ...


S = TypeVar("S", bound=_Rows)


@dataclass(frozen=True)
class _Group:
    rank: int = 0
    world_size: int = 1
    cpu: Any = field(default=None, compare=False)  # a gloo group; GPUs use torch's default group


_SINGLE = _Group()
_CURRENT: ContextVar[_Group | None] = ContextVar("fewer_process_group", default=None)
_JOB: dict[int, _Group] = {}  # by process id, since a fork has no part in its parent's connections


# -- who am I ------------------------------------------------------------------------------


def rank() -> int:
    """Return the number of this process in the current group, from 0.

    Examples
    --------
    >>> from fewer.distributed import rank
    >>> rank()
    0
    """
    return _group().rank


def world_size() -> int:
    """Return the number of processes in the current group.

    Examples
    --------
    >>> from fewer.distributed import world_size
    >>> world_size()
    1
    """
    return _group().world_size


def is_rank0() -> bool:
    """Whether this process writes files and prints: rank 0, or a process on its own.

    Unlike the other functions it knows the rank outside of `joined` too, so that a script that
    saves its result in every process writes it once.

    Examples
    --------
    >>> from fewer.distributed import is_rank0
    >>> is_rank0()
    True
    """
    group = _CURRENT.get()
    return (_JOB.get(os.getpid(), _SINGLE) if group is None else group).rank == 0


def shard_bounds(n: int, rank: int | None = None, world_size: int | None = None) -> tuple[int, int]:
    """Return where this rank's share of n things starts and stops; shares differ by one at most.

    Parameters
    ----------
    n : int
        How many there are.
    rank, world_size : int, default=None
        Of the current group. Threads have to be told, since they are in no group.

    Examples
    --------
    >>> from fewer.distributed import shard_bounds
    >>> [shard_bounds(7, rank, 3) for rank in range(3)]
    [(0, 3), (3, 5), (5, 7)]
    """
    at = _group().rank if rank is None else rank
    size, longer = divmod(n, _group().world_size if world_size is None else world_size)
    start = at * size + min(at, longer)
    return start, start + size + (at < longer)


def _group() -> _Group:
    return _CURRENT.get() or _SINGLE


# -- exchange ------------------------------------------------------------------------------


def all_reduce(*tensors: Tensor, op: str = "sum") -> None:
    """Replace each tensor, in place, by its sum, minimum or maximum over all ranks.

    Parameters
    ----------
    *tensors : Tensor
        Of the same shapes on every rank.
    op : {"sum", "min", "max"}, default="sum"
        How to combine them.

    Examples
    --------
    >>> from fewer.distributed import all_reduce
    >>> total = torch.tensor([2.0])
    >>> all_reduce(total)  # one process: the sum is its own
    >>> total
    tensor([2.])
    """
    group = _group()
    if group.world_size > 1:
        how = getattr(torch.distributed.ReduceOp, op.upper())
        for tensor in tensors:
            with _connected(group):
                torch.distributed.all_reduce(tensor, how, group=_group_of(tensor, group))


def broadcast(value: T) -> T:
    """Return rank 0's value on every rank: anything that can be pickled.

    Tensors in lists, tuples and dicts arrive on the CPU; rank 0 gets its own value back.

    Examples
    --------
    >>> from fewer.distributed import broadcast
    >>> broadcast({"columns": [1, 4]})
    {'columns': [1, 4]}
    """
    group = _group()
    if group.world_size == 1:
        return value
    sent: list[Any] = [_on_cpu(value) if group.rank == 0 else None]
    with _connected(group):
        torch.distributed.broadcast_object_list(sent, src=0, group=group.cpu)
    return value if group.rank == 0 else sent[0]


def broadcast_tensors(*tensors: Tensor) -> None:
    """Replace each tensor, in place, by that of rank 0.

    Examples
    --------
    >>> from fewer.distributed import broadcast_tensors
    >>> layer = torch.nn.Linear(2, 1)
    >>> broadcast_tensors(*layer.state_dict().values())
    """
    group = _group()
    if group.world_size > 1:
        for tensor in tensors:
            whole = tensor.contiguous()
            with _connected(group):
                torch.distributed.broadcast(whole, src=0, group=_group_of(tensor, group))
            if whole is not tensor:
                tensor.copy_(whole)


def gather(value: T) -> list[T]:
    """Return the values of all ranks, by rank, on every rank: anything that can be pickled.

    Examples
    --------
    >>> from fewer.distributed import gather
    >>> gather("only me")
    ['only me']
    """
    group = _group()
    if group.world_size == 1:
        return [value]
    found: list[Any] = [None] * group.world_size
    with _connected(group):
        torch.distributed.all_gather_object(found, _on_cpu(value), group=group.cpu)
    return found


def _group_of(tensor: Tensor, group: _Group) -> Any:
    return group.cpu if tensor.device.type == "cpu" else None


def _on_cpu(value: Any) -> Any:
    """Move tensors to the CPU: unpickled, a GPU tensor would land on the sender's device."""
    if isinstance(value, Tensor):
        return value.detach().cpu()
    if type(value) in (list, tuple):
        return type(value)(_on_cpu(item) for item in value)
    if type(value) is dict:
        return {name: _on_cpu(item) for name, item in value.items()}
    return value


@contextmanager
def _connected(group: _Group) -> Iterator[None]:
    """Say what happened when a connection breaks or times out."""
    try:
        yield
    except RuntimeError as error:  # what torch raises for connections and timeouts
        first = str(error).strip().splitlines()[0] if str(error).strip() else repr(error)
        raise ProcessError(
            f"process {group.rank} of {group.world_size} {LOST} ({first[:200]}): one of them "
            f"ended, or did not answer for {_timeout().total_seconds():g} s "
            f"({TIMEOUT_VARIABLE}). Look for its own message; with checkpoint= the same call "
            "goes on from the last checkpoint"
        ) from error


# -- work ----------------------------------------------------------------------------------


def on_rank0(work: Callable[[], T]) -> T:
    """Do some work on rank 0, as if it were the only process; return its result on every rank.

    The others wait. What the work raises is raised on every rank.

    Parameters
    ----------
    work : callable
        Takes no arguments; its result is `broadcast`.

    Examples
    --------
    >>> from fewer.distributed import on_rank0
    >>> on_rank0(lambda: 6)
    6
    """
    group = _group()
    if group.world_size == 1:
        return work()
    value: Any = None
    failed: Exception | None = None
    if group.rank == 0:
        try:
            with single_process():
                value = work()
        except Exception as error:
            failed = error
    told, found = broadcast((None if failed is None else _described(failed), value))
    if failed is not None:
        raise failed
    if told is not None:
        raise _restored(told)
    return found


def all_or_raise(work: Callable[[], T]) -> T:
    """Do some work on every rank, each on its own; if it fails on one rank, it fails on all.

    Parameters
    ----------
    work : callable
        Takes no arguments, and exchanges nothing with other ranks.

    Returns
    -------
    object
        What this rank's own work returned.

    Examples
    --------
    >>> from fewer.distributed import all_or_raise
    >>> all_or_raise(lambda: 7)
    7
    """
    group = _group()
    if group.world_size == 1:
        return work()
    value: Any = None
    failed: Exception | None = None
    try:
        with single_process():
            value = work()
    except Exception as error:
        failed = error
    told = gather(None if failed is None else _described(failed))
    if failed is not None:
        raise failed
    for number, error_there in enumerate(told):
        if error_there is not None:
            raise _restored(error_there, f"process {number} of {group.world_size}: ")
    return value


def check_equal(facts: Mapping[str, Any]) -> None:
    """Raise `InputError` on every rank if a fact, such as the number of rows, differs between them.

    Parameters
    ----------
    facts : mapping from str to values
        What each is called in the message, and what this rank sees.

    Examples
    --------
    >>> from fewer.distributed import check_equal
    >>> check_equal({"the number of rows": 100})
    """
    if world_size() == 1:
        return
    told = gather(dict(facts))
    for name in facts:
        seen = [other.get(name) for other in told]
        if any(value != seen[0] for value in seen):
            shown = ", ".join(f"process {at}: {value}" for at, value in enumerate(seen[:8]))
            raise InputError(
                f"the processes see different data: {name} differs ({shown}). Give every "
                "process the same file or the whole array: each reads its own part of it"
            )


def open_together(work: Callable[[], S], names: Callable[[], Any] | None = None) -> S:
    """Open rows on every rank, on one rank per machine first, and check that all see the same.

    The first one makes what the others then find: the binary copy of a text file.

    Parameters
    ----------
    work : callable
        Opens the rows.
    names : callable, default=None
        Returns the names of the features once they are open, where the rows have none.

    Examples
    --------
    >>> from fewer.distributed import open_together
    >>> open_together(lambda: torch.zeros(5, 2)).shape
    torch.Size([5, 2])
    """
    if world_size() == 1:
        return work()
    first = int(os.environ.get("LOCAL_RANK", rank())) == 0
    begun = all_or_raise(lambda: work() if first else None)
    found = all_or_raise(lambda: work() if begun is None else begun)
    called = getattr(found, "names", None) if names is None else names()
    called = None if called is None else [str(name) for name in called]
    check_equal(
        {
            "the number of rows": found.shape[0],
            "the number of features": found.shape[1],
            "the name of the first feature": called and called[0],
            "the list of names": called and zlib.crc32("\n".join(called).encode()),
        }
    )
    return found


def shared_seed(random_state: Any, stored: Callable[[], int | None] | None = None) -> int:
    """Turn a ``random_state`` into a seed that is the same on every rank.

    Parameters
    ----------
    random_state : int, RandomState or None
        As in scikit-learn.
    stored : callable, default=None
        Asked where ``random_state`` is None: the seed of an unfinished fit, to resume it.

    Examples
    --------
    >>> from fewer.distributed import shared_seed
    >>> shared_seed(0)
    209652396
    """

    def drawn() -> int:
        found = stored() if random_state is None and stored is not None else None
        with translate_sklearn_errors():
            given = check_random_state(random_state)
        return int(given.randint(2**31 - 1)) if found is None else found

    return on_rank0(drawn)


def _described(error: Exception) -> tuple[str, str]:
    # as text: not every exception can be pickled
    return type(error).__name__, str(error)


def _restored(told: tuple[str, str], where: str = "") -> Exception:
    """An error of another rank, of the same class where it is one of ours."""
    name, text = told
    kind = getattr(fewer.errors, name, None)
    if isinstance(kind, type) and issubclass(kind, FewerError):
        return kind(where + text)
    return ProcessError(f"{where}{name}: {text}")


# -- groups --------------------------------------------------------------------------------


@contextmanager
def joined(device: str | torch.device = "auto") -> Iterator[None]:
    """Work together with the other processes of this job inside the block, if there are any.

    There are if ``torchrun`` started this process, or if ``torch.distributed`` is set up already.
    All of them must then enter. Inside, only rank 0 shows the warnings of fewer.

    Parameters
    ----------
    device : str or torch.device, default="auto"
        Each process takes the GPU of its machine that ``LOCAL_RANK`` numbers, unless this is "cpu".

    Examples
    --------
    >>> from fewer.distributed import joined, world_size
    >>> with joined("cpu"):
    ...     world_size()
    1
    """
    if _CURRENT.get() is not None or not _is_job():  # inside a group, or nobody else is there
        yield
        return
    with _working_in(_job(device)), warnings.catch_warnings():
        if rank():
            warnings.simplefilter("ignore", FewerWarning)
        yield


@contextmanager
def single_process() -> Iterator[None]:
    """Let this process work on its own inside the block, even if it is one of many.

    Examples
    --------
    >>> from fewer.distributed import single_process, world_size
    >>> with single_process():
    ...     world_size()
    1
    """
    with _working_in(_SINGLE):
        yield


def collective(method: Callable[P, R]) -> Callable[P, R]:
    """Let all ranks run a method together, on the device that the object's ``device`` names.

    Examples
    --------
    >>> from fewer.distributed import collective, world_size
    >>> class Count:
    ...     device = "cpu"
    ...
    ...     @collective
    ...     def fit(self):
    ...         return world_size()
    >>> Count().fit()
    1
    """

    @wraps(method)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        with joined(getattr(args[0], "device", "auto")):
            return method(*args, **kwargs)

    return run


@contextmanager
def _working_in(group: _Group) -> Iterator[None]:
    before = _CURRENT.set(group)
    try:
        yield
    finally:
        _CURRENT.reset(before)


def _is_job() -> bool:
    if int(os.environ.get("WORLD_SIZE", "1")) > 1 and "RANK" in os.environ:
        return True
    there = torch.distributed
    return there.is_available() and there.is_initialized() and there.get_world_size() > 1


def _job(device: str | torch.device) -> _Group:
    """All processes of the job; connects on first use."""
    if os.getpid() not in _JOB:
        if not torch.distributed.is_available():
            raise InputError("this PyTorch is built without torch.distributed; start one process")
        if not torch.distributed.is_initialized():
            _connect(device)
        # a group of our own: one that the caller set up may have no backend for the CPU
        cpu = torch.distributed.new_group(backend="gloo", timeout=_timeout())
        _JOB[os.getpid()] = _Group(
            torch.distributed.get_rank(), torch.distributed.get_world_size(), cpu
        )
    return _JOB[os.getpid()]


def _connect(device: str | torch.device) -> None:
    """Meet the other processes that ``torchrun`` started; each takes a GPU where there are some."""
    here = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    on_gpus = gpus > 0 and (device == "auto" or torch.device(device).type != "cpu")
    if on_gpus and here > gpus:
        raise InputError(
            f"{here} processes on this machine, which has {gpus} GPUs: start one process per GPU, "
            "or use device='cpu'"
        )
    if on_gpus:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    backend, timeout = "cpu:gloo,cuda:nccl" if on_gpus else "gloo", _timeout()
    try:
        torch.distributed.init_process_group(backend, timeout=timeout)
    except (RuntimeError, ValueError) as error:
        raise ProcessError(
            f"process {os.environ.get('RANK')} of {os.environ.get('WORLD_SIZE')} cannot reach the "
            f"others at {os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')} ({error})"
        ) from error
    atexit.register(_disconnect)


def _disconnect() -> None:
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def _timeout() -> timedelta:
    text = os.environ.get(TIMEOUT_VARIABLE, "")
    try:
        seconds = float(text or TIMEOUT)
        if not 0 < seconds < float("inf"):
            raise ValueError
    except ValueError:
        raise InputError(
            f"{TIMEOUT_VARIABLE}={text!r} must be a number of seconds above 0"
        ) from None
    return timedelta(seconds=seconds)


# -- starting processes ------------------------------------------------------------------------


def spawn(
    command: Sequence[str],
    *,
    devices: int = 1,
    nodes: int = 1,
    hint: str = "",
) -> None:
    """Run a Python program in several processes on this machine, and wait for all of them.

    Parameters
    ----------
    command : sequence of str
        What follows ``python``: a script or ``-m module``, and its arguments.
    devices : int, default=1
        Processes on this machine, one for each GPU where there are some.
    nodes : int, default=1
        Machines. With more than one, the same is called on each, and the environment variables
        ``MASTER_ADDR`` and ``MASTER_PORT`` name one of them and a free port there.
    hint : str, default=""
        What to tell a user when a process dies.

    Raises
    ------
    ProcessError
        If a process fails; the others are ended.

    Examples
    --------
    >>> spawn(["-c", "pass"], devices=1)
    """
    for name, value in (("devices", devices), ("nodes", nodes)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise InputError(f"{name}={value!r} must be a whole number of at least 1")
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs  # noqa: PLC0415
    from torch.distributed.elastic.multiprocessing.api import SignalException  # noqa: PLC0415
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError  # noqa: PLC0415
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch  # noqa: PLC0415

    with (
        tempfile.TemporaryDirectory(prefix="fewer-") as logs,
        _threads_for_each(devices),
        _own_handlers(),
    ):
        config = LaunchConfig(
            min_nodes=nodes,
            max_nodes=nodes,
            nproc_per_node=devices,
            run_id=os.environ.get("FEWER_JOB", "fewer") if nodes > 1 else f"fewer-{os.getpid()}",
            rdzv_backend="c10d",
            rdzv_endpoint=_meeting_point(nodes),
            max_restarts=0,
            logs_specs=DefaultLogsSpecs(log_dir=logs),
        )
        try:
            # what they say of a failure is said below, in one line
            with (
                _quiet(f"{ELASTIC}.multiprocessing.api", logging.CRITICAL),
                _quiet(f"{ELASTIC}.agent.server.api", logging.CRITICAL),
            ):
                elastic_launch(config, sys.executable)(*command)
        except ChildFailedError as error:
            raise ProcessError(_reason(error.failures, devices * nodes, hint)) from None
        except SignalException as error:
            if error.sigval == signal.SIGINT:
                raise KeyboardInterrupt from None
            text = f"ended by {signal.Signals(error.sigval).name}, and with it all processes"
            raise ProcessError(f"{text}. {hint}" if hint else text) from None


@contextmanager
def _threads_for_each(devices: int) -> Iterator[None]:
    """Divide the cores among processes that are started here, unless a user has done so."""
    name = "OMP_NUM_THREADS"
    given = os.environ.get(name)
    os.environ.setdefault(name, str(_threads(devices)))
    try:
        yield
    finally:
        if given is None:
            del os.environ[name]


@contextmanager
def _own_handlers() -> Iterator[None]:
    """Put back what this process does on Ctrl-C: torch's launcher leaves its own behind."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {one: signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


def _reason(failures: Mapping[int, Any], processes: int, hint: str) -> str:
    """What ended a job: the first failure that is not that of another process."""

    def late(rank: int) -> tuple[bool, bool, int]:
        failed = failures[rank]
        ended = failed.exitcode == -signal.SIGTERM  # by us, after another had failed
        return ended, LOST in failed.message, failed.timestamp

    rank = min(failures, key=late)
    failed = failures[rank]
    how = f"exit code {failed.exitcode}"
    if failed.exitcode < 0:
        how = f"ended by {signal.Signals(-failed.exitcode).name}"
    elif failed.error_file_data.get("message") == failed.message:  # it has said why
        return failed.message
    text = f"process {rank} of {processes} failed ({how}); the others were ended"
    return f"{text}. {hint}" if hint else text


def _threads(devices: int) -> int:
    """Threads for each process, so that together they take the processors that there are."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max(1, (usable or 1) // devices)


def _meeting_point(nodes: int) -> str:
    if nodes == 1:
        return "localhost:0"  # any free port
    host, port = os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT", "29500")
    if not host:
        raise InputError(
            f"nodes={nodes}: the machines must know where to meet. Set MASTER_ADDR to the name of "
            "one of them (and MASTER_PORT to a free port there, 29500 if unset) on each"
        )
    return f"{host}:{port}"


@contextmanager
def _quiet(name: str, level: int = logging.WARNING) -> Iterator[None]:
    """Leave out what a library has to say below a level."""
    log = logging.getLogger(name)
    before = log.level
    log.setLevel(level)
    try:
        yield
    finally:
        log.setLevel(before)
