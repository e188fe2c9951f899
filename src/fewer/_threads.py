"""How many threads the libraries get: torch and MKL, the BLAS of NumPy and SciPy, and Arrow.

Their defaults suit one library alone on an idle machine. Together, their pools wait actively for
each other; and a short operation that is divided waits for the slower half, which on a busy machine
may not run for milliseconds. So every call of fewer has one number of threads (`owned`), short
operations get one (`for_operations`), and independent pieces of work share the cores (`mapped`).

OpenMP, and with it torch, counts threads for each Python thread separately; new Python threads
start with what torch was told last. OpenBLAS and Arrow have one number for the whole process: while
several Python threads are inside of fewer, the smallest that any of them asks for.
"""

import contextvars
import math
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import lru_cache, partial, wraps
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple, ParamSpec, TypeVar

import torch
from threadpoolctl import ThreadpoolController  # type: ignore[import-untyped]

__all__ = [
    "cores",
    "cpu_quota",
    "entry_point",
    "for_matrix",
    "for_operations",
    "mapped",
    "memory_quota",
    "own_cores",
    "owned",
    "reapply",
]

SMALL_MATRIX = 2000  # columns, up to which a factorisation runs in one thread
LONG_OPERATION = 2**20  # values that an operation touches, from which several threads pay
LONG_PASS = 2**24  # the same where independent pieces of work can have a thread each

P = ParamSpec("P")
Item = TypeVar("Item")
Result = TypeVar("Result")

_LOCK = threading.RLock()
_ASKED: "dict[int, list[_Share]]" = {}  # per Python thread, innermost block last
_BEFORE: dict[str, int] = {}  # numbers of threads of process-wide pools before the first block


# -- cores -------------------------------------------------------------------------------------


def cores() -> int:
    """Number of cores that this process may use: its affinity, and the quota of its container."""
    if hasattr(os, "process_cpu_count"):  # Python 3.13
        usable = os.process_cpu_count()
    elif hasattr(os, "sched_getaffinity"):
        usable = len(os.sched_getaffinity(0))
    else:
        usable = os.cpu_count()
    return max(1, math.ceil(min(usable or 1, cpu_quota())))


def cpu_quota(
    groups: Path = Path("/proc/self/cgroup"), root: Path = Path("/sys/fs/cgroup")
) -> float:
    """CPU seconds per second that control groups (v1 or v2) allow; infinity without a limit."""
    return min(map(_quota_of, _groups("cpu", groups, root)), default=math.inf)


def memory_quota(
    groups: Path = Path("/proc/self/cgroup"), root: Path = Path("/sys/fs/cgroup")
) -> float:
    """Bytes of memory that control groups (v1 or v2) allow; infinity without a limit."""
    return min(map(_memory_of, _groups("memory", groups, root)), default=math.inf)


def _groups(controller: str, groups: Path, root: Path) -> Iterator[Path]:
    """Folders of the control groups of this process.

    A limit of any group around this one holds as well. In a container the path may be that of the
    host, while the files of the container's own group are at the root.
    """
    try:
        lines = groups.read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        inside = PurePosixPath(path.lstrip("/"))
        for mount in (controllers, controller) if controllers else ("", "unified"):
            for group in (inside, *inside.parents):
                yield root / mount / group


def _memory_of(group: Path) -> float:
    """The limit of one control group."""
    for name in ("memory.max", "memory.limit_in_bytes"):
        try:
            return float((group / name).read_text(encoding="ascii"))
        except (OSError, ValueError):  # "max" in v2; v1 has a number beyond any memory
            continue
    return math.inf


def _quota_of(group: Path) -> float:
    """The limit of one control group."""
    try:
        if (group / "cpu.max").is_file():
            quota, period = (group / "cpu.max").read_text(encoding="ascii").split()
        else:
            names = "cpu.cfs_quota_us", "cpu.cfs_period_us"
            quota, period = ((group / name).read_text(encoding="ascii") for name in names)
        found = float(quota) / float(period)  # "max" in v2, -1 in v1: no limit
    except (OSError, ValueError, ZeroDivisionError):
        return math.inf
    return found if found > 0 else math.inf


def _allowed() -> int:
    """Threads of an outermost call: the cores, and no more than the user's own settings."""
    first = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    asked = int(first) if first.isdigit() and int(first) else sys.maxsize
    return min(cores(), torch.get_num_threads(), asked)


# -- numbers of threads ------------------------------------------------------------------------


class _Share(NamedTuple):
    """What a Python thread asks for: cores that are its own, threads of BLAS and of Arrow."""

    cores: int
    blas: int
    arrow: int


@contextmanager
def owned() -> Iterator[None]:
    """Decide the number of threads inside the block: every call of a user enters one.

    Torch and Arrow get all allowed cores; NumPy and SciPy get one thread, since they do little, and
    `for_matrix` gives more to what is large.
    """
    if threading.get_ident() in _ASKED:  # inside of another call
        yield
        return
    threads = _allowed()
    with _with_threads(threads, _Share(threads, 1, threads)):
        yield


def entry_point(function: Callable[P, Result]) -> Callable[P, Result]:
    """Run a function inside `owned`."""

    @wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> Result:
        with owned():
            return function(*args, **kwargs)

    return run


@contextmanager
def for_operations(values: int, long: int = LONG_OPERATION) -> Iterator[None]:
    """One thread if operations of the block touch fewer than a million values, else all.

    That is about a millisecond; short operations on several threads wait for each other. Beside
    other work they may wait for the next time slice, some milliseconds: where one thread would not
    leave cores idle, ``long`` is `LONG_PASS`, about ten milliseconds.
    """
    share = _share()
    with _with_threads(share.cores if values >= long else 1, share):
        yield


@contextmanager
def for_matrix(d: int) -> Iterator[None]:
    """All threads for a factorisation of d columns by SciPy, or one if d <= 2000.

    The threads of a factorisation synchronise at every column, which makes small problems a hundred
    times slower on a busy machine; and with one thread, rounding is the same everywhere.
    """
    share = _share()
    threads = share.cores if d > SMALL_MATRIX else 1
    with _with_threads(threads, share._replace(blas=threads)):
        yield


def own_cores() -> int:
    """Number of cores that the calling Python thread may use."""
    return _share().cores


def mapped(
    function: Callable[[Item], Result],
    items: Iterable[Item],
    *,
    most: int | None = None,
    on_error: Callable[[], object] | None = None,
) -> list[Result]:
    """Results of a function for each item, computed by as many Python threads as there are cores.

    Each of them has one library thread, so that nothing waits for anything else; where Python
    itself takes most of the time, ``most`` of them is enough. After an error or Ctrl-C nothing new
    starts; ``on_error`` can tell what is still running to stop.
    """
    todo, share = list(items), _share()
    workers = min(len(todo), share.cores, len(todo) if most is None else most)
    alone = share._replace(cores=1, blas=1)

    def run(item: Item, context: contextvars.Context) -> Result:
        with _with_threads(1, alone):
            return context.run(function, item)

    if workers < 2:
        return [function(item) for item in todo]
    contexts = [contextvars.copy_context() for _ in todo]
    with _with_threads(1, alone), ThreadPoolExecutor(workers, "fewer-side-by-side") as pool:
        try:
            return list(pool.map(run, todo, contexts))
        except BaseException:
            if on_error is not None:
                on_error()
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def reapply() -> None:
    """Limit libraries that were imported inside a block, too."""
    with _LOCK:
        _apply()


def _share() -> _Share:
    """What the calling Python thread has asked for, or may have."""
    inside = _ASKED.get(threading.get_ident())
    if inside:
        return inside[-1]
    threads = _allowed()
    return _Share(threads, 1, threads)


@contextmanager
def _with_threads(threads: int, share: _Share) -> Iterator[None]:
    before, me = torch.get_num_threads(), threading.get_ident()
    others = [(library, library.num_threads) for library in _libraries("openmp")]
    _count_openmp(threads, [(library, threads) for library, _ in others])
    with _LOCK:
        _ASKED.setdefault(me, []).append(share)
        _apply()
    try:
        yield
    finally:
        with _LOCK:
            _ASKED[me].pop()
            if not _ASKED[me]:
                del _ASKED[me]
            _apply()
        _count_openmp(before, others)


def _count_openmp(threads: int, libraries: Iterable[tuple[Any, int]]) -> None:
    torch.set_num_threads(threads)  # also where OpenMP has this number: MKL may have another
    for library, number in libraries:  # scikit-learn has an OpenMP of its own
        if library.num_threads != number:
            library.set_num_threads(number)


def _apply() -> None:
    """Set the pools of the whole process to what is asked for, or back."""
    innermost = [stack[-1] for stack in _ASKED.values()]
    pools: list[tuple[str, Callable[[], int], Callable[[int], object], str]] = [
        (library.filepath, library.get_num_threads, partial(_set_blas, library), "blas")
        for library in _libraries("blas")
    ]
    arrow = sys.modules.get("pyarrow")
    if arrow is not None:
        pools.append(("pyarrow", arrow.cpu_count, arrow.set_cpu_count, "arrow"))
    for name, count, set_count, kind in pools:
        now = count()
        wanted = _BEFORE.setdefault(name, now) if innermost else _BEFORE.get(name, now)
        wanted = min([wanted, *(getattr(share, kind) for share in innermost)])
        if now != wanted:
            set_count(wanted)
    if not innermost:
        _BEFORE.clear()


def _set_blas(library: Any, threads: int) -> None:
    """Set the number from any Python thread: threadpoolctl 3.8 listens to the first one only."""
    release = getattr(library, "clear_controlling_thread", lambda force: None)
    release(force=True)
    library.set_num_threads(threads)
    release(force=True)


def _libraries(kind: str) -> list[Any]:
    return [one for one in _controller(len(sys.modules)).lib_controllers if one.user_api == kind]


@lru_cache(maxsize=1)
def _controller(modules: int) -> ThreadpoolController:
    return ThreadpoolController()  # finding the libraries takes as long as small problems
