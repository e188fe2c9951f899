"""One process, many, many machines: the same script, started once or by ``torchrun``.

`joined` is what estimators and `fewer.select` work in: it finds out whether this process is one of
many and puts them into a team. `spawn` starts workers on this machine, as ``torchrun`` would.
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
from datetime import timedelta
from functools import wraps
from typing import Any, ParamSpec, Protocol, TypeVar

import torch
from sklearn.utils import check_random_state

from fewer._optional import import_optional
from fewer.data.processes import ALONE, Team, chosen_team, current_team, working_with
from fewer.errors import FewerWarning, InputError, ProcessError, translate_sklearn_errors
from fewer.train.checkpoint import stored_seed

__all__ = ["agreed_seed", "joined", "leads", "opened_together", "shared", "spawn"]

SILENCE = timedelta(seconds=60)  # of a process that says every few seconds that it is alive
ELASTIC = "torch.distributed.elastic"
PATIENCE = 1800  # seconds that processes wait for the slowest reader among them

P = ParamSpec("P")
R = TypeVar("R")


class _Rows(Protocol):
    """Anything with rows and features."""

    @property
    def shape(self) -> tuple[int, ...]: ...


S = TypeVar("S", bound=_Rows)

_TEAMS: dict[int, Team] = {}  # by process number, since a fork has no part in its parent's team


@contextmanager
def joined(device: str | torch.device = "auto") -> Iterator[Team]:
    """Work together with the other processes of this job inside the block, if there are any.

    There are if ``torchrun`` started this process, or if `torch.distributed` is set up already.
    All processes must then come here; in `fewer.data.processes.alone` one works by itself. Warnings
    are given by the first process alone.

    Parameters
    ----------
    device : str or torch.device, default="auto"
        Each process takes one GPU of its machine, unless this is "cpu".

    Examples
    --------
    >>> with joined("cpu") as team:
    ...     team.many
    False
    """
    within = chosen_team()
    if within is not None or _is_alone():  # in a team already, or alone on purpose
        yield within or ALONE
        return
    team = _team(device)
    with working_with(team), warnings.catch_warnings():
        if not team.leads:
            warnings.simplefilter("ignore", FewerWarning)
        yield team


def shared(method: Callable[P, R]) -> Callable[P, R]:
    """Let all processes of a job run a method of an estimator with an option ``device`` together.

    Examples
    --------
    >>> class Sum:
    ...     device = "cpu"
    ...
    ...     @shared
    ...     def fit(self, X):
    ...         return sum(X)
    >>> Sum().fit([1, 2])
    3
    """

    @wraps(method)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        with joined(getattr(args[0], "device", "auto")):
            return method(*args, **kwargs)

    return run


def opened_together(work: Callable[[], S], names: Callable[[], Any] | None = None) -> S:
    """Open rows in every process, in one of each machine first, and compare what all see.

    The first makes what the others then find: the binary copy of a text file. ``names`` says what
    the features are called, once they are open, where the rows themselves do not.
    """
    team = current_team()
    if not team.many:
        return work()
    first = int(os.environ.get("LOCAL_RANK", team.rank)) == 0
    begun = team.together(lambda: work() if first else None)
    found = team.together(lambda: work() if begun is None else begun)
    called = getattr(found, "names", None) if names is None else names()
    called = None if called is None else [str(name) for name in called]
    team.agree(
        {
            "the number of rows": found.shape[0],
            "the number of features": found.shape[1],
            "the name of the first feature": called and called[0],
            "the list of names": called and zlib.crc32("\n".join(called).encode()),
        }
    )
    return found


def agreed_seed(random_state: Any, checkpoint: Any = None) -> int:
    """A seed from a ``random_state``, the same in all processes.

    Without one, an unfinished fit in ``checkpoint`` goes on with its own.

    Examples
    --------
    >>> agreed_seed(0)
    209652396
    """

    def drawn() -> int:
        found = stored_seed(checkpoint) if random_state is None else None
        with translate_sklearn_errors():
            given = check_random_state(random_state)
        return int(given.randint(2**31 - 1)) if found is None else found

    return current_team().lead(drawn)


def leads() -> bool:
    """Whether this process may write and print: it is alone, or the first of many.

    Examples
    --------
    >>> leads()
    True
    """
    team = chosen_team()
    return (_TEAMS.get(os.getpid(), ALONE) if team is None else team).leads


def _is_alone() -> bool:
    if int(os.environ.get("WORLD_SIZE", "1")) > 1 and "RANK" in os.environ:
        return False
    parallel = torch.distributed
    return not (
        parallel.is_available() and parallel.is_initialized() and parallel.get_world_size() > 1
    )


def _team(device: str | torch.device) -> Team:
    if os.getpid() not in _TEAMS:
        if not torch.distributed.is_available():
            raise InputError("this PyTorch cannot speak between processes; start one process only")
        if not torch.distributed.is_initialized():
            _connect(device)
        rank, world = torch.distributed.get_rank(), torch.distributed.get_world_size()
        wait = timedelta(seconds=float(os.environ.get("FEWER_PATIENCE", PATIENCE)))
        calls = torch.distributed.new_group(backend="gloo", timeout=wait)
        waits = torch.distributed.new_group(backend="gloo", timeout=SILENCE)
        _TEAMS[os.getpid()] = Team(rank, world, calls, waits)
    return _TEAMS[os.getpid()]


def _connect(device: str | torch.device) -> None:
    """Meet the other processes that ``torchrun`` started; each takes a GPU where there are some."""
    fabric_module = import_optional("lightning_fabric")
    ddp = import_optional("lightning_fabric.strategies.ddp")
    torchrun = import_optional("lightning_fabric.plugins.environments.torchelastic")
    here = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    world = int(os.environ["WORLD_SIZE"])
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    there = gpus > 0 and torch.device("cpu") != _named(device)
    if there and here > gpus:
        raise InputError(
            f"{here} processes on this machine, which has {gpus} GPUs: start one process for each "
            "GPU, or use device='cpu'"
        )
    wait = timedelta(seconds=float(os.environ.get("FEWER_PATIENCE", PATIENCE)))
    fabric = fabric_module.Fabric(
        accelerator="cuda" if there else "cpu",
        devices=here,
        num_nodes=max(1, world // here),
        strategy=ddp.DDPStrategy(
            process_group_backend="cpu:gloo,cuda:nccl" if there else "gloo", timeout=wait
        ),
        plugins=[torchrun.TorchElasticEnvironment()],
    )
    try:
        with _quiet("lightning.fabric"), _quiet("lightning_fabric"):
            fabric.launch()
    except (RuntimeError, ValueError) as error:
        raise ProcessError(
            f"process {os.environ.get('RANK')} of {world} cannot reach the others at "
            f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')} ({error})"
        ) from error
    atexit.register(_disconnect)
    if there:
        torch.cuda.set_device(fabric.device)


def _disconnect() -> None:
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


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


def _named(device: str | torch.device) -> torch.device | None:
    return None if device == "auto" else torch.device(device)


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
        return ended, "lost the others" in failed.message, failed.timestamp

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
