"""Reads files first while fuzzing: `fewer.data.screen`'s helper, faster.

It reads file after file itself, without a fork for each, and attaches DuckDB files to one running
database instead of starting one for each. A file that makes it crash ends it, and is refused; the
next one starts another helper.
"""

import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any


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
    path = Path(__file__).parents[1] / "src" / "fewer" / "data" / "screen.py"
    spec = importlib.util.spec_from_file_location("screen", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main() -> None:
    """Answer requests until there are no more."""
    import resource

    screen, attached = _load_screen(), Attached()
    most = resource.getrlimit(resource.RLIMIT_AS)[1]

    def read_duckdb(path: str, whole: bool, most: int) -> None:
        with attached(path) as database:
            screen._read_tables(database, whole, most)

    def read(request: dict[str, Any]) -> str:
        try:
            return str(screen._read(request))
        finally:
            with suppress(ValueError, OSError):
                resource.setrlimit(resource.RLIMIT_AS, (most, most))

    screen.READERS["duckdb"] = read_duckdb
    screen._read_in_fork = read
    screen._main()


if __name__ == "__main__":
    sys.exit(main())
