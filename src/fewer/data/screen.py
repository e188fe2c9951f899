"""Reads a file in a process of its own first, so that one made to break a library breaks only that.

HDF5 and Arrow are libraries in C and C++ that can crash, hang, or take memory by a length that a
file merely claims. `screen` therefore lets a helper process open such a file first: it looks at all
of its structure, and reads all of the data of a file of up to 16 MB, with limited memory and time.
The helper is started once, is reused, and ends with the process that started it; where it can, it
reads each file in a fork, so that a crash does not cost it the libraries that it has loaded. Errors
that Arrow raises are left to whoever reads the file next, since they may be about a part that
nobody wants. The helper runs this file as a program, which is why nothing of fewer is imported at
the top.
"""

import atexit
import json
import os
import select
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

__all__ = ["most_bytes", "screen"]

WHOLE_FILE = 16 * 2**20  # bytes: files up to this size are read to their end
LEAST = 64 * 2**20
RATIO = 1000  # deflate compresses a constant to a thousandth
MEMORY = 4 * 2**30
PIECE = 2**22
SECONDS = 20.0
SPARE_SECONDS = 5.0  # for a helper to end its own fork
START_SECONDS = 120.0
MOST_OBJECTS = 10**6
CRASHED = "it makes the library that reads it crash"
PROGRAM = __file__  # that the helper runs


def most_bytes(size: int) -> int:
    """Bytes that a file of a size may hold when it is unpacked: 64 MB, and 1,000 times its size."""
    return LEAST + RATIO * size


def _too_slow(seconds: float) -> str:
    return f"reading it takes more than {seconds:.0f} seconds"


# -- in the process that wants to read ---------------------------------------------------------


class _Helper:
    """The process that reads first, and the lock for its pipes."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.process: subprocess.Popen[str] | None = None
        self.owner = 0

    def ask(self, request: dict[str, Any]) -> str:
        """Why a file is refused; "" if it is not, or if no helper can be started."""
        with self.lock:
            process = self._started()
            if process is None or process.stdin is None or process.stdout is None:
                return ""
            try:
                process.stdin.write(json.dumps(request) + "\n")
                process.stdin.flush()
                # importing a library may take long where disks are slow
                if not _answer(process, START_SECONDS)[0]:
                    self.stop()
                    return ""
                answer, late = _answer(process, SECONDS + SPARE_SECONDS)
            except OSError:
                answer, late = "", False
            if answer:
                return str(json.loads(answer)["refused"])
            self.stop()
            return _too_slow(SECONDS) if late else CRASHED

    def _started(self) -> "subprocess.Popen[str] | None":
        if self.owner != os.getpid():  # also after a fork: the pipes are those of the parent
            self.process, self.owner = None, os.getpid()
        if self.process is None or self.process.poll() is not None:
            self.stop()
            try:
                self.process = subprocess.Popen(
                    [sys.executable, "-P", PROGRAM],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    text=True,
                    encoding="utf-8",
                    env=os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
                )
            except OSError:  # no room for another process
                self.process = None
        return self.process

    def stop(self) -> None:
        """End the helper, if it is one of this process."""
        process, self.process = self.process, None
        if process is None or self.owner != os.getpid():
            return
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with suppress(OSError):  # what was not written yet cannot be
                    pipe.close()


def _answer(process: "subprocess.Popen[str]", seconds: float) -> tuple[str, bool]:
    """The next line of a process, and whether it was killed because there was none in time.

    The line is "" if the process has died.
    """
    assert process.stdout is not None
    late = threading.Event()

    def end() -> None:
        late.set()
        process.kill()  # a library that is reading may never let a milder signal through

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    try:
        answer = process.stdout.readline()
    finally:
        timer.cancel()
    if not answer:
        process.wait()
    return answer, late.is_set()


_helper = _Helper()
atexit.register(_helper.stop)


def screen(path: Path, kind: str) -> None:
    """Refuse a file that a helper process cannot read; kinds are those of `READERS`."""
    from fewer.errors import FileFormatError  # noqa: PLC0415

    size = path.stat().st_size
    request = {"kind": kind, "path": str(path.absolute()), "size": size, "seconds": SECONDS}
    refused = _helper.ask(request)
    if refused:
        raise FileFormatError(f"{path} is damaged or truncated ({refused}); write or copy it again")


# -- in the helper -----------------------------------------------------------------------------


class _Refused(Exception):
    """What a file is refused for."""


def _count(total: int, more: int, most: int) -> int:
    if total + more > most:
        raise _Refused(
            f"it claims more than {most:,} bytes, 64 MB and {RATIO} times its size; if it is "
            "whole, write it without compression"
        )
    return total + more


def _read_arrow(path: str, whole: bool, most: int) -> None:
    import pyarrow as pa  # noqa: PLC0415

    file = pa.ipc.open_file(pa.OSFile(path))
    total = 0
    for at in range(file.num_record_batches if whole else 0):
        batch = file.get_batch(at)
        batch.validate(full=True)
        total = _count(total, max(batch.nbytes, batch.num_rows), most)


def _read_parquet(path: str, whole: bool, most: int) -> None:
    import pyarrow.parquet as pq  # noqa: PLC0415

    file = pq.ParquetFile(path, buffer_size=2**16)
    _count(0, file.metadata.num_rows, most)
    total = 0
    for batch in file.iter_batches(2**14) if whole else ():
        batch.validate(full=True)
        total = _count(total, max(batch.nbytes, batch.num_rows), most)


def _read_hdf5(path: str, whole: bool, most: int, *, foreign: bool = True) -> None:
    """Visit everything in an HDF5 file; values in other files are not read, or refused."""
    import h5py  # noqa: PLC0415

    total, seen = 0, 0
    with h5py.File(path, "r") as file:
        groups = [file]
        addresses = {h5py.h5o.get_info(file.id).addr}
        while groups:
            group = groups.pop()
            _read_attributes(group)
            for name in group:
                seen += 1
                if seen > MOST_OBJECTS:
                    raise _Refused(f"it holds more than {MOST_OBJECTS:,} objects")
                link = group.get(name, getlink=True)
                if isinstance(link, h5py.ExternalLink) and not foreign:
                    raise _Refused(f"{name!r} is a link to another file, {link.filename!r}")
                if not isinstance(link, h5py.HardLink):
                    continue  # what a soft link leads to is visited by its own name
                item = group[name]
                address = h5py.h5o.get_info(item.id).addr
                if address in addresses:
                    continue
                addresses.add(address)
                if isinstance(item, h5py.Group):
                    groups.append(item)
                elif isinstance(item, h5py.Dataset):
                    _read_attributes(item)
                    if item.is_virtual or item.external:
                        if not foreign:
                            raise _Refused(f"the values of {name!r} are in other files")
                        continue
                    with suppress(TypeError):  # a type that NumPy does not have
                        _count(0, item.dtype.itemsize * _product(item.chunks), most)
                        size = item.dtype.itemsize * _product(item.shape)
                        total = _count(total, size, most)
                        if whole and _has_filters(item):
                            _read_dataset(item, name)


def _read_h5ad(path: str, whole: bool, most: int) -> None:
    _read_hdf5(path, whole, most, foreign=False)


def _read_attributes(item: Any) -> None:
    for name in item.attrs:
        with suppress(TypeError):  # a type that NumPy does not have
            item.attrs[name]


def _has_filters(item: Any) -> bool:
    """Whether all filters are there that unpack a dataset."""
    import h5py  # noqa: PLC0415

    made = item.id.get_create_plist()
    kinds = [made.get_filter(at)[0] for at in range(made.get_nfilters())]
    return all(h5py.h5z.filter_avail(kind) for kind in kinds)


def _product(sizes: Any) -> int:
    found = 1
    for size in sizes or ():
        found *= int(size)
    return found


def _read_dataset(item: Any, name: str) -> None:
    if not item.shape:
        item[()]
        return
    row = max(1, item.dtype.itemsize * _product(item.shape[1:]))
    step = max(1, PIECE // row)
    for start in range(0, item.shape[0], step):
        try:
            item[start : start + step]
        except OSError as error:
            raise _Refused(f"{name}: {error}") from error


def _read_duckdb(path: str, whole: bool, most: int) -> None:
    import duckdb  # noqa: PLC0415

    options: Any = {"enable_external_access": "false", "autoload_known_extensions": "false"}
    options["threads"] = "1"  # the limit of memory may leave no room for the stacks of others
    database = duckdb.connect(path, read_only=True, config=options)
    _read_tables(database, whole, most)
    database.close()


def _read_tables(database: Any, whole: bool, most: int) -> None:
    names = database.execute(
        "SELECT table_schema, table_name FROM information_schema.tables "
        "WHERE table_type = 'BASE TABLE' AND table_catalog = current_database()"
    ).fetchall()
    total = 0
    for place in names if whole else ():
        quoted = ".".join('"' + part.replace('"', '""') + '"' for part in place)
        for batch in database.sql(f"SELECT * FROM {quoted}").to_arrow_reader(2**13):
            total = _count(total, max(batch.nbytes, batch.num_rows), most)


READERS = {
    "duckdb": _read_duckdb,
    "arrow": _read_arrow,
    "parquet": _read_parquet,
    "hdf5": _read_hdf5,
    "h5ad": _read_h5ad,
}


def _limit_memory(allowed: int) -> None:
    """Let this process take so much more memory than it has now."""
    try:
        import resource  # noqa: PLC0415 (not on every system)

        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
        most = resource.getrlimit(resource.RLIMIT_AS)[1]
        own = pages * resource.getpagesize() + allowed
        if most in (-1, resource.RLIM_INFINITY) or own <= most:
            resource.setrlimit(resource.RLIMIT_AS, (own, most))
    except (ImportError, OSError, ValueError):
        pass


def _read(request: dict[str, Any]) -> str:
    """Read a file; why it is refused, or ""."""
    size = request["size"]
    whole, most = size <= WHOLE_FILE, most_bytes(size)
    if whole:
        _limit_memory(min(2 * most, MEMORY))
    try:
        READERS[request["kind"]](request["path"], whole, most)
    except _Refused as error:
        return str(error)[:500]
    except MemoryError:
        return "it takes more memory than a file of its size should"
    except Exception as error:
        # what is left unread after an error of HDF5 may take any amount of memory; others say by
        # a MemoryError that it was too much, and the caller meets the rest where it reads that part
        return str(error)[:500] if request["kind"] in ("hdf5", "h5ad") else ""
    return ""


def _read_in_fork(request: dict[str, Any]) -> str:
    """`_read` in a process of its own, which may crash or be ended."""
    out, into = os.pipe()
    child = os.fork()
    if not child:
        try:
            signal.alarm(int(request["seconds"] + SPARE_SECONDS))  # should the helper be killed
            for pipe in (0, 1):  # whoever waits for the helper learns when it has died
                os.close(pipe)
            os.write(into, b"=" + _read(request).encode("utf-8", "replace"))
        finally:
            os._exit(0)
    os.close(into)
    try:
        if not select.select([out], [], [], request["seconds"])[0]:
            return _too_slow(request["seconds"])
        answer = os.read(out, 4096)
        return answer[1:].decode("utf-8") if answer else CRASHED
    finally:
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(out)


def _main() -> None:
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    for line in sys.stdin:
        request = json.loads(line)
        try:
            _warm_up(request["kind"])
        except ImportError:  # the caller says which library is missing
            print("ready", json.dumps({"refused": ""}), sep="\n", flush=True)
            continue
        print("ready", flush=True)
        refused = _read_in_fork(request) if hasattr(os, "fork") else _read(request)
        print(json.dumps({"refused": refused}), flush=True)
        if not hasattr(os, "fork"):  # its memory is limited now
            return


def _warm_up(kind: str) -> None:
    """Import what a reader needs before memory is limited."""
    if kind in ("hdf5", "h5ad"):
        import h5py  # noqa: F401, PLC0415
    elif kind == "duckdb":
        import duckdb  # noqa: F401, PLC0415
        import pyarrow  # noqa: PLC0415
    else:
        import pyarrow.parquet  # noqa: F401, PLC0415


if __name__ == "__main__":
    _main()
