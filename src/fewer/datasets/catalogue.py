"""The data sets that can be loaded: public origins, licences, files, checksums."""

import hashlib
import json
import os
import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fewer.data.on_disk import cache_folder
from fewer.datasets.dataset import Dataset
from fewer.errors import FileFormatError

Arrays = dict[str, NDArray[Any]]
LENGTH = 16  # hexadecimal digits: enough against mistakes


@dataclass(frozen=True)
class Entry:
    """One data set: where it may be, and how to know that it is the right one."""

    file: str
    digest: str
    title: str
    source: str
    licence: str
    openml: int | None = None  # its number there
    openml_digest: bool = True  # False for har: our copy was recomputed from the signals
    where: str = ""
    details: dict[str, str] = field(default_factory=dict)  # as `details` computes them


FILE = Path(__file__).with_suffix(".json")
CATALOGUE = {name: Entry(**about) for name, about in json.loads(FILE.read_bytes()).items()}
GENERATED = (
    "geo-synthetic",
    "planted-products",
    "planted-manifold",
    "diffusion-mri",
    "pulses",
    "gas-sensors",
)
NAMES = (*CATALOGUE, "digits", "geo", *GENERATED)


# -- files and their checksums ------------------------------------------------------------------


def data_folders() -> list[Path]:
    """Folders to look into, in this order: FEWER_DATA where it is set, then the cache."""
    own = os.environ.get("FEWER_DATA")
    return [Path(own).expanduser(), cache_folder()] if own else [cache_folder()]


def find_file(name: str) -> Path | None:
    """The first file of that name in the folders."""
    return next((path for folder in data_folders() if (path := folder / name).is_file()), None)


def read_npz(path: Path) -> Arrays:
    """Read arrays, never objects: a file that holds pickled ones is refused."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
            return dict(stored)
    except (ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
        raise FileFormatError(
            f"{path} cannot be read ({error}); delete it and download it again"
        ) from error


def digest(*columns: NDArray[Any]) -> str:
    """SHA-256 of rows, whatever their order: each row's bytes side by side, sorted."""
    rows = np.concatenate([_row_bytes(part) for part in columns], axis=1)
    whole = np.ascontiguousarray(rows).view(f"V{rows.shape[1]}").ravel()
    return hashlib.sha256(np.sort(whole).tobytes()).hexdigest()


def _row_bytes(part: NDArray[Any]) -> NDArray[np.uint8]:
    if part.dtype.kind == "f":  # one kind of zero and one kind of NaN
        part = np.where(np.isnan(part), np.nan, part + 0).astype(part.dtype)
    block = np.ascontiguousarray(part.reshape(len(part), -1))
    return block.view(np.uint8).reshape(len(block), -1)


def details(data: Dataset) -> dict[str, str]:
    """Checksums of names, groups and parts, whatever the order of rows and the labels of groups."""
    found = {"names": _text(data.names), "target_names": _text(data.target_names)}
    y = np.zeros(len(data.X)) if data.y is None else data.y
    if data.groups is not None:
        own = (data.groups == label for label in np.unique(data.groups))
        found["groups"] = _text(np.sort([digest(data.X[rows], y[rows]) for rows in own]))
    if data.official is not None:
        found["official"] = digest(data.X[data.official], y[data.official])[:LENGTH]
    if data.landmarks is not None:
        found["landmarks"] = _text(data.names[data.landmarks])
    return found


def _text(words: np.ndarray) -> str:
    joined = "\n".join(str(word) for word in words)
    return hashlib.sha256(joined.encode()).hexdigest()[:LENGTH]
