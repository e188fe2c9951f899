"""Data sets from OpenML, when the user asks for it."""

from __future__ import annotations

from urllib.error import URLError

import numpy as np
from numpy.typing import NDArray
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from sklearn.datasets import fetch_openml

from fewer.data.cache import cache_folder
from fewer.datasets.catalogue import CATALOGUE
from fewer.datasets.files import Arrays
from fewer.errors import FileFormatError

__all__ = ["canonical", "fetch"]

SPEAKERS = (1560, 1560, 1560, 1558, 1559)  # rows of ISOLET's five groups of speakers
HAR = ("WALKING", "WALKING_UPSTAIRS", "WALKING_DOWNSTAIRS", "SITTING", "STANDING", "LAYING")


def fetch(name: str) -> Arrays:
    """Download a set from OpenML, which checks its own checksum, in the form of our files."""
    entry = CATALOGUE[name]
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, transient=True) as progress:
        progress.add_task(f"Fetching {name} from OpenML, set {entry.openml}", total=None)
        try:
            bunch = fetch_openml(
                data_id=entry.openml,
                as_frame=False,
                parser="liac-arff",
                data_home=str(cache_folder() / "openml"),
            )
        except (URLError, OSError, ValueError) as error:
            raise FileFormatError(
                f"{name} could not be fetched from OpenML, set {entry.openml} ({error}); try "
                f"again later, or put {entry.file} into the folder FEWER_DATA"
            ) from error
    return canonical(name, bunch.data, bunch.target, np.array(bunch.feature_names))


def canonical(
    name: str, X: NDArray[np.generic], y: NDArray[np.generic], columns: NDArray[np.str_]
) -> Arrays:
    """Arrays of OpenML in the form of our files: types, labels from 0, groups of rows."""
    labels, codes = np.unique(y.astype(str), return_inverse=True)
    n = len(X)
    if name in ("mnist", "fashion"):
        return {
            "X": X.astype(np.uint8),
            "y": y.astype(int).astype(np.uint8),
            "target_names": np.arange(10).astype(str),
            "is_test": np.arange(n) >= 60000,
        }
    if name == "isolet":
        return {
            "X": X.astype(np.float32),
            "y": (y.astype(float).astype(int) - 1).astype(np.uint8),
            "target_names": np.array(list("ABCDEFGHIJKLMNOPQRSTUVWXYZ")),
            "group": np.repeat(np.arange(1, 6), SPEAKERS).astype(np.uint8),
            "is_test": np.arange(n) >= n - SPEAKERS[-1],
        }
    if name == "mice":
        return {
            "X": X.astype(np.float32),
            "y": codes.astype(np.uint8),
            "target_names": labels,
            "feature_names": columns,
            "mouse_id": (np.arange(n) // 15).astype(str),  # 15 rows of each, one after another
        }
    return {  # har: OpenML does not say who the subjects are
        "X": X.astype(np.float32),
        "y": (y.astype(int) - 1).astype(np.uint8),
        "target_names": np.array(HAR),
        "feature_names": columns,
    }
