"""Reads files first while fuzzing: `fewer.data.screen`'s helper, faster.

One fork reads file after file, instead of one for each, and attaches DuckDB files to one running
database instead of starting one for each. A file that makes it crash is refused, and the next is
read by another fork.
"""

import importlib.util
import json
import os
import resource
import select
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

CPU_SECONDS = 0.1  # instead of 20: some damaged HDF5 files are never read to their end
WALL_SECONDS = 5.0


class Attached:
    """One database in memory, to which files are attached for as long as somebody reads them."""

    def __init__(self) -> None:
        self.engine: Any = None
        self.readers = 0

    @contextmanager
    def __call__(self, path: Any) -> Iterator[Any]:
        import duckdb

        if self.engine is None:
            self.engine, self.readers = duckdb.connect(config={"threads": 1}), 0
        engine = self.engine
        if not self.readers:
            engine.execute(f"ATTACH '{path}' AS file (READ_ONLY)")
        self.readers += 1
        try:
            with engine.cursor() as cursor:
                cursor.execute("USE file")
                yield cursor
        except (duckdb.FatalException, duckdb.InternalException):
            self.engine = None  # it answers nothing any more
            raise
        finally:
            self.readers -= 1
            if not self.readers and self.engine is engine:
                try:
                    engine.execute("DETACH file")
                except duckdb.Error:
                    self.engine = None


def _load_screen() -> Any:
    """The module without its package, which takes seconds to import."""
    package = importlib.util.find_spec("fewer")
    assert package is not None
    assert package.origin is not None
    path = Path(package.origin).parent / "data" / "screen.py"
    spec = importlib.util.spec_from_file_location("screen", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Worker:
    """A fork of this process that reads file after file, until one makes it crash or takes long."""

    def __init__(self, screen: Any) -> None:
        self.screen, self.child = screen, 0
        self.requests = self.answers = -1

    def __call__(self, request: dict[str, Any]) -> str:
        """Why a file is refused, or ""."""
        if not self.child:
            self._fork()
        os.write(self.requests, json.dumps(request).encode() + b"\n")
        if not select.select([self.answers], [], [], WALL_SECONDS)[0]:
            os.kill(self.child, signal.SIGKILL)
        answer = os.read(self.answers, 4096)
        if answer:
            return answer[1:].decode("utf-8")
        _, status = os.waitpid(self.child, 0)
        os.close(self.requests)
        os.close(self.answers)
        self.child = 0
        slow = os.WIFSIGNALED(status) and os.WTERMSIG(status) in (signal.SIGPROF, signal.SIGKILL)
        return str(self.screen._too_slow(CPU_SECONDS) if slow else self.screen.CRASHED)

    def _fork(self) -> None:
        requests, self.requests = os.pipe()
        self.answers, answers = os.pipe()
        self.child = os.fork()
        if self.child:
            os.close(requests)
            os.close(answers)
            return
        try:
            for pipe in (0, 1, self.requests, self.answers):
                os.close(pipe)
            self._serve(os.fdopen(requests), answers)
        finally:
            os._exit(0)

    def _serve(self, requests: Any, answers: int) -> None:
        attached, most = Attached(), resource.getrlimit(resource.RLIMIT_AS)[1]

        def read_duckdb(path: str, whole: bool, most: int) -> None:
            with attached(path) as database:
                self.screen._read_tables(database, whole, most)

        self.screen.READERS["duckdb"] = read_duckdb
        for line in requests:
            signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)  # ends this process
            refused = self.screen._read(json.loads(line))
            signal.setitimer(signal.ITIMER_PROF, 0)
            with suppress(ValueError, OSError):
                resource.setrlimit(resource.RLIMIT_AS, (most, most))
            os.write(answers, b"=" + refused.encode("utf-8", "replace"))


def main() -> None:
    """Answer requests until there are no more."""
    screen = _load_screen()
    screen._read_in_fork = Worker(screen)
    screen._main()


if __name__ == "__main__":
    sys.exit(main())
