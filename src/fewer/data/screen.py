"""Reads a file in a process of its own first, so that one made to break a library breaks only that.

HDF5 and Arrow are libraries in C and C++ that can crash, hang, or take memory by a length that a
file merely claims. `screen` therefore lets a helper process open such a file first: it looks at all
of its structure, and reads all of the data of a file of up to 16 MB, with limited memory and time.
The helper is started once, is reused, and ends with the process that started it. Errors that a
library raises are left to whoever reads the file next, since they may be about a part that nobody
wants. The helper runs this file as a program, which is why nothing of fewer is imported at the top.
"""

import atexit
import json
import os
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
START_SECONDS = 120.0
MOST_OBJECTS = 10**6


def most_bytes(size: int) -> int:
    """Bytes that a file of a size may hold when it is unpacked: 64 MB, and 1,000 times its size."""
    return LEAST + RATIO * size


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
                answer, late = _answer(process, SECONDS)
            except OSError:
                answer, late = "", False
            if answer:
                return str(json.loads(answer)["refused"])
            self.stop()
            if late:
                return f"reading it takes more than {SECONDS:.0f} seconds"
            return "it makes the library that reads it crash"

    def _started(self) -> "subprocess.Popen[str] | None":
        if self.owner != os.getpid():  # also after a fork: the pipes are those of the parent
            self.process, self.owner = None, os.getpid()
        if self.process is None or self.process.poll() is not None:
            self.stop()
            try:
                self.process = subprocess.Popen(
                    [sys.executable, "-P", __file__],
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
    refused = _helper.ask({"kind": kind, "path": str(path.absolute()), "size": size})
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
                    total = _count(total, int(item.dtype.itemsize) * _product(item.shape), most)
                    if whole:
                        _read_dataset(item)


def _read_h5ad(path: str, whole: bool, most: int) -> None:
    _read_hdf5(path, whole, most, foreign=False)


def _read_attributes(item: Any) -> None:
    for name in item.attrs:
        item.attrs[name]


def _product(sizes: Any) -> int:
    found = 1
    for size in sizes or ():
        found *= int(size)
    return found


def _read_dataset(item: Any) -> None:
    if not item.shape:
        item[()]
        return
    row = max(1, item.dtype.itemsize * _product(item.shape[1:]))
    step = max(1, PIECE // row)
    for start in range(0, item.shape[0], step):
        try:
            item[start : start + step]
        except MemoryError:
            raise
        except Exception:  # a filter that is not there, or a damaged chunk
            return


def _read_duckdb(path: str, whole: bool, most: int) -> None:
    import duckdb  # noqa: PLC0415

    options: Any = {"enable_external_access": "false", "autoload_known_extensions": "false"}
    database = duckdb.connect(path, read_only=True, config=options)
    names = database.execute(
        "SELECT table_schema, table_name FROM information_schema.tables "
        "WHERE table_type = 'BASE TABLE'"
    ).fetchall()
    total = 0
    for place in names if whole else ():
        quoted = ".".join('"' + part.replace('"', '""') + '"' for part in place)
        for batch in database.sql(f"SELECT * FROM {quoted}").to_arrow_reader(2**13):
            total = _count(total, max(batch.nbytes, batch.num_rows), most)
    database.close()


READERS = {
    "duckdb": _read_duckdb,
    "arrow": _read_arrow,
    "parquet": _read_parquet,
    "hdf5": _read_hdf5,
    "h5ad": _read_h5ad,
}


def _limit_memory(allowed: int | None) -> None:
    """Let this process take so much more memory than it has now; None for any."""
    try:
        import resource  # noqa: PLC0415 (not on every system)

        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
        most = resource.getrlimit(resource.RLIMIT_AS)[1]
        own = pages * resource.getpagesize() + (allowed or 0)
        if allowed is None or (most not in (-1, resource.RLIM_INFINITY) and own > most):
            own = most
        resource.setrlimit(resource.RLIMIT_AS, (own, most))
    except (ImportError, OSError, ValueError):
        pass


def _main() -> None:
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    for line in sys.stdin:
        request = json.loads(line)
        kind, size = request["kind"], request["size"]
        whole, most = size <= WHOLE_FILE, most_bytes(size)
        refused = ""
        try:
            _warm_up(kind)
        except ImportError:  # the caller says which library is missing
            kind = ""
        print("ready", flush=True)
        _limit_memory(min(2 * most, MEMORY) if whole else None)
        try:
            if kind:
                READERS[kind](request["path"], whole, most)
        except _Refused as error:
            refused = str(error)
        except MemoryError:
            refused = "it takes more memory than a file of its size should"
        except Exception:  # the caller meets it again, if it reads that part
            refused = ""
        _limit_memory(None)
        print(json.dumps({"refused": refused[:500]}), flush=True)


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
