"""Small tables: printed as text, written as CSV or JSON."""

import csv
import io
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fewer._checks import check_suffix
from fewer._files import write_text

__all__ = ["Table", "write_table"]


@dataclass(frozen=True)
class Table:
    """A header and rows of strings; the columns in ``numbers`` are right-aligned."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    numbers: Collection[int] = ()

    @property
    def right_aligned(self) -> list[bool]:
        """For each column."""
        return [at in self.numbers for at in range(len(self.header))]

    def __str__(self) -> str:
        lines = [self.header, *self.rows]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        return "\n".join(
            "  ".join(
                cell.rjust(width) if right else cell.ljust(width)
                for cell, width, right in zip(line, widths, self.right_aligned, strict=True)
            ).rstrip()
            for line in lines
        )


def write_table(
    path: Path, columns: Mapping[str, Sequence[Any]], document: Any, dialect: Any = None
) -> Path:
    """Write columns into a .csv file, or the document into a .json file.

    ``dialect`` has the delimiter and the decimal mark of a text file, as `fewer.data` found them.
    """
    check_suffix(path, (".csv", ".json"))
    if path.suffix.lower() == ".json":
        return write_text(path, json.dumps(document, indent=1, ensure_ascii=False) + "\n")
    text = io.StringIO()
    delimiter, decimal = (",", ".") if dialect is None else (dialect.delimiter, dialect.decimal)
    cells = list(columns.values())
    if decimal != ".":
        cells = [
            [str(x).replace(".", decimal) if isinstance(x, float) else x for x in column]
            for column in cells
        ]
    writer = csv.writer(text, delimiter=delimiter, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*cells, strict=True))
    return write_text(path, text.getvalue())


def percent_text(value: float, standard_error: float | None) -> str:
    """A share with its standard error, where that is known, such as 86.2% ± 1.1%."""
    return f"{value:.1%}" + ("" if standard_error is None else f" ± {standard_error:.1%}")
