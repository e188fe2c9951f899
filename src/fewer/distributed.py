"""Several processes that run the same program (SPMD), started by ``torchrun``.

Every rank makes the same calls in the same order. Sums over rows are combined by `all_reduce`; what
only one rank should do, such as a search, is done `on_rank0` and broadcast. All functions use the
current process group, which `joined` enters; without one they act as in a single process.
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
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from datetime import timedelta
from functools import wraps
from typing import Any, NamedTuple, ParamSpec, TypeVar

import torch
from torch import Tensor

import fewer.errors
from fewer._checks import check_random_state, check_whole
from fewer._threads import cores, owned
from fewer.errors import (
    FewerError,
    FewerWarning,
    InputError,
    ProcessError,
)

__all__ = [
    "all_reduce",
    "broadcast",
    "gather",
    "is_rank0",
    "joined",
    "on_rank0",
    "rank",
    "single_process",
    "spawn",
    "world_size",
]

TIMEOUT_VARIABLE = "FEWER_TIMEOUT"  # seconds, in the environment
TIMEOUT = 24 * 3600.0  # ranks wait this long while rank 0 searches; a dead rank is noticed at once
LOST = "lost the others"

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class _Group(NamedTuple):
    rank: int = 0
    world_size: int = 1
    cpu: Any = None  # a gloo group; GPUs use torch's default group


_SINGLE = _Group()
_CURRENT: ContextVar[_Group | None] = ContextVar("fewer_process_group", default=None)
_JOB: dict[int, _Group] = {}  # by process id, since a fork has no part in its parent's connections


def _group() -> _Group:
    return _CURRENT.get() or _SINGLE


def rank() -> int:
    """Return the number of this process in the current group, from 0.

    Examples
    --------
    >>> rank()
    0
    """
    return _group().rank


def world_size() -> int:
    """Return the number of processes in the current group.

    Examples
    --------
    >>> world_size()
    1
    """
    return _group().world_size


def is_rank0() -> bool:
    """Whether this process writes files and prints: rank 0, or a process on its own.

    Unlike the other functions it also knows the rank outside of `joined`.

    Examples
    --------
    >>> is_rank0()
    True
    """
    return (_CURRENT.get() or _JOB.get(os.getpid(), _SINGLE)).rank == 0


def shard_bounds(n: int, rank: int | None = None, world_size: int | None = None) -> tuple[int, int]:
    """Start and stop of this rank's part of n items; threads, which are in no group, pass both."""
    at = _group().rank if rank is None else rank
    size, longer = divmod(n, _group().world_size if world_size is None else world_size)
    start = at * size + min(at, longer)
    return start, start + size + (at < longer)


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
    >>> total = torch.tensor([2.0])
    >>> all_reduce(total)  # one process: the sum is its own
    >>> total
    tensor([2.])
    """
    if world_size() > 1:
        how = getattr(torch.distributed.ReduceOp, op.upper())
        for tensor in tensors:
            with _connected(tensor) as group:
                torch.distributed.all_reduce(tensor, how, group=group)


def broadcast(value: T) -> T:
    """Return rank 0's value on every rank: anything that can be pickled.

    Tensors in lists, tuples and dicts arrive on the CPU; rank 0 gets its own value back.

    Examples
    --------
    >>> broadcast({"columns": [1, 4]})
    {'columns': [1, 4]}
    """
    if world_size() == 1:
        return value
    sent: list[Any] = [None if rank() else _on_cpu(value)]
    with _connected() as group:
        torch.distributed.broadcast_object_list(sent, src=0, group=group)
    return sent[0] if rank() else value


def broadcast_tensors(*tensors: Tensor) -> None:
    """Replace each tensor, in place, by that of rank 0."""
    for tensor in tensors if world_size() > 1 else ():
        whole = tensor.contiguous()
        with _connected(tensor) as group:
            torch.distributed.broadcast(whole, src=0, group=group)
        if whole is not tensor:
            tensor.copy_(whole)


def gather(value: T) -> list[T]:
    """Return the values of all ranks, by rank, on every rank: anything that can be pickled.

    Examples
    --------
    >>> gather("only me")
    ['only me']
    """
    if world_size() == 1:
        return [value]
    found: list[Any] = [None] * world_size()
    with _connected() as group:
        torch.distributed.all_gather_object(found, _on_cpu(value), group=group)
    return found


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
def _connected(tensor: Tensor | None = None) -> Iterator[Any]:
    """The group to send a tensor or an object through; explains errors of the connection."""
    group = _group()
    try:
        yield group.cpu if tensor is None or tensor.device.type == "cpu" else None
    except RuntimeError as error:  # what torch raises for connections and timeouts
        first = (str(error).strip() or repr(error)).splitlines()[0]
        raise ProcessError(
            f"process {group.rank} of {group.world_size} {LOST} ({first[:200]}): one of them "
            f"ended, or did not answer for {_timeout().total_seconds():g} s "
            f"({TIMEOUT_VARIABLE}). Look for its own message; with checkpoint= the same call "
            "resumes from the last checkpoint"
        ) from error


# -- work ----------------------------------------------------------------------------------


def on_rank0(work: Callable[[], T]) -> T:
    """Run ``work`` on rank 0 while the others wait; return its result, or raise, on every rank.

    Examples
    --------
    >>> on_rank0(lambda: 6)
    6
    """
    if world_size() == 1:
        return work()
    value, failed = (None, None) if rank() else _attempt(work)
    reported, found = broadcast((_described(failed), value))
    _raise(failed, reported)
    return found  # type: ignore[return-value]


def all_or_raise(work: Callable[[], T]) -> T:
    """Run ``work``, which must not communicate, on every rank; an error on one is raised on all."""
    if world_size() == 1:
        return work()
    value, failed = _attempt(work)
    for number, reported in enumerate(gather(_described(failed))):
        _raise(failed, reported, f"process {number} of {world_size()}: ")
    return value  # type: ignore[return-value]


def check_equal(facts: Mapping[str, Any]) -> None:
    """Raise `InputError` on every rank where one of the named values differs between ranks."""
    reported = gather(dict(facts))
    for name in facts:
        seen = [other.get(name) for other in reported]
        if any(value != seen[0] for value in seen):
            shown = ", ".join(f"process {at}: {value}" for at, value in enumerate(seen[:8]))
            raise InputError(
                f"the processes see different data: {name} differs ({shown}). Give every "
                "process the same file or the whole array: each reads its own part of it"
            )


def open_together(work: Callable[[], T], names: Callable[[], Any] | None = None) -> T:
    """Open rows on every rank and check that all see the same.

    One rank per machine is first: it creates the binary copy of a text file that the others read.
    ``names`` returns the names of the features where the opened rows have none.
    """
    if world_size() == 1:
        return work()
    first = int(os.environ.get("LOCAL_RANK", rank())) == 0
    begun = all_or_raise(lambda: work() if first else None)
    found: Any = all_or_raise(lambda: work() if begun is None else begun)
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
    """A seed that is the same on every rank; that of an unfinished fit, if ``stored`` has one."""

    def drawn() -> int:
        found = stored() if random_state is None and stored is not None else None
        given = check_random_state(random_state)
        return int(given.randint(2**31 - 1)) if found is None else found

    return on_rank0(drawn)


def _attempt(work: Callable[[], T]) -> tuple[T | None, Exception | None]:
    try:
        with single_process():
            return work(), None
    except Exception as error:
        return None, error


def _described(error: Exception | None) -> tuple[str, str] | None:
    # as text: not every exception can be pickled
    return None if error is None else (type(error).__name__, str(error))


def _raise(own: Exception | None, reported: tuple[str, str] | None, where: str = "") -> None:
    """Raise this rank's own error, or that of another rank; errors of fewer keep their class."""
    if own is not None:
        raise own
    if reported is not None:
        name, text = reported
        kind = getattr(fewer.errors, name, None)
        if isinstance(kind, type) and issubclass(kind, FewerError):
            raise kind(where + text)
        raise ProcessError(f"{where}{name}: {text}")


# -- groups --------------------------------------------------------------------------------


@contextmanager
def joined(device: str | torch.device = "auto") -> Iterator[None]:
    """Join the process group of this job inside the block, if there is one.

    There is one if ``torchrun`` started this process, or ``torch.distributed`` is initialised. All
    processes must enter. Inside, only rank 0 shows the warnings of fewer. Each process uses the GPU
    with the number ``LOCAL_RANK``, unless ``device`` is "cpu".

    Examples
    --------
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
    """Leave the process group inside the block.

    Examples
    --------
    >>> with single_process():
    ...     world_size()
    1
    """
    with _working_in(_SINGLE):
        yield


def collective(method: Callable[P, R]) -> Callable[P, R]:
    """Run a method inside `joined`, on the device that the object's ``device`` names.

    Like every call of a user, it also decides how many threads the libraries get.
    """

    @wraps(method)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        with owned(), joined(getattr(args[0], "device", "auto")):
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
    """Initialise torch.distributed; each process uses its own GPU where there are any."""
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


def spawn(command: Sequence[str], *, devices: int = 1, nodes: int = 1, hint: str = "") -> None:
    """Run a Python program in several processes on this machine, and wait for all of them.

    If one fails, the others are terminated and `ProcessError` is raised.

    Parameters
    ----------
    command : sequence of str
        What follows ``python``: a script or ``-m module``, and its arguments.
    devices : int, default=1
        Processes on this machine, one per GPU where there are any.
    nodes : int, default=1
        Machines. Call this on each of them, with the environment variables ``MASTER_ADDR`` and
        ``MASTER_PORT`` set to the name of one of them and a free port there.
    hint : str, default=""
        Advice for the message if a process dies.

    Examples
    --------
    >>> spawn(["-c", "pass"], devices=1)
    """
    check_whole("devices", devices)
    check_whole("nodes", nodes)
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs  # noqa: PLC0415
    from torch.distributed.elastic.multiprocessing.api import SignalException  # noqa: PLC0415
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError  # noqa: PLC0415
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch  # noqa: PLC0415

    with tempfile.TemporaryDirectory(prefix="fewer-") as logs, _launching(devices):
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
            elastic_launch(config, sys.executable)(*command)
        except ChildFailedError as error:
            raise ProcessError(_reason(error.failures, devices * nodes, hint)) from None
        except SignalException as error:
            if error.sigval == signal.SIGINT:
                raise KeyboardInterrupt from None
            text = f"ended by {signal.Signals(error.sigval).name}, and with it all processes"
            raise ProcessError(f"{text}. {hint}" if hint else text) from None


@contextmanager
def _launching(devices: int) -> Iterator[None]:
    """Divide the cores among the processes; restore what torch's launcher changes in this one."""
    with ExitStack() as undo:
        if "OMP_NUM_THREADS" not in os.environ:
            os.environ["OMP_NUM_THREADS"] = str(max(1, cores() // devices))
            undo.callback(os.environ.pop, "OMP_NUM_THREADS")
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                undo.callback(signal.signal, number, signal.getsignal(number))
        for name in ("multiprocessing.api", "agent.server.api"):
            # what they report about a failure is in the one line of `_reason`
            log = logging.getLogger(f"torch.distributed.elastic.{name}")
            undo.callback(log.setLevel, log.level)
            log.setLevel(logging.CRITICAL)
        yield


def _reason(failures: Mapping[int, Any], processes: int, hint: str) -> str:
    """The cause of a failed job: the first failure that did not follow from another."""

    def late(rank: int) -> tuple[bool, bool, int]:
        failed = failures[rank]
        ended = failed.exitcode == -signal.SIGTERM  # by us, after another had failed
        return ended, LOST in failed.message, failed.timestamp

    rank = min(failures, key=late)
    failed = failures[rank]
    how = f"exit code {failed.exitcode}"
    if failed.exitcode < 0:
        how = f"ended by {signal.Signals(-failed.exitcode).name}"
    elif failed.error_file_data.get("message") == failed.message:  # it gave the reason
        return failed.message
    text = f"process {rank} of {processes} failed ({how}); the others were ended"
    return f"{text}. {hint}" if hint else text


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
