"""Small tables into files: CSV for people with spreadsheets, JSON for programs."""

import csv
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fewer._files import write_text
from fewer.errors import InputError

__all__ = ["write_table"]


def write_table(path: Path, columns: Mapping[str, Sequence[Any]], document: Any) -> Path:
    """Write columns into a .csv file, or the document into a .json file.

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "t.csv"
    >>> write_table(path, {"k": [1, 2], "share": [0.5, 0.75]}, {}).read_text()
    'k,share\\n1,0.5\\n2,0.75\\n'
    """
    if path.suffix.lower() == ".json":
        return write_text(path, json.dumps(document, indent=1, ensure_ascii=False) + "\n")
    if path.suffix.lower() != ".csv":
        raise InputError(f"{path} ends in {path.suffix!r}; use .csv or .json")
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*columns.values(), strict=True))
    return write_text(path, text.getvalue())
