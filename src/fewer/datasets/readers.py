"""From the arrays of a file to a `Dataset`."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits

from fewer.datasets.catalogue import CATALOGUE
from fewer.datasets.dataset import Dataset
from fewer.datasets.files import Arrays, digest

__all__ = ["from_arrays", "read_digits"]

SHAPES = {"mnist": (28, 28), "fashion": (28, 28), "coil20": (20, 20)}
GROUPS = {"isolet": ("group", "speaker group"), "har": ("subject", "subject")}
GROUPS |= {"mice": ("mouse_id", "mouse"), "tcga": ("sample_barcode", "patient")}
GROUPS |= {"luad": ("sample_barcode", "patient")}


def from_arrays(name: str, stored: Arrays, checked: str = "") -> Dataset:
    """Make a data set of the arrays of its file; ``checked`` is their digest if known."""
    entry = CATALOGUE[name]
    options: dict[str, Any] = {}
    key, options["unit"] = GROUPS.get(name, ("", "row"))
    if key in stored:
        options["groups"] = _patients(stored[key]) if "barcode" in key else stored[key]
    if name in SHAPES:
        options |= {"image_shape": SHAPES[name], "largest": 255.0}
    X, y = stored["X"], stored["y"].astype(np.int64)
    return Dataset(
        name=name,
        X=X,
        y=y,
        names=_names(name, stored, X.shape[1]),
        target_names=stored["target_names"],
        official=stored.get("is_test"),
        landmarks=stored.get("is_l1000_landmark"),
        description=entry.title,
        source=entry.source,
        licence=entry.licence,
        digest=checked or digest(X, y),
        **options,
    )


def read_digits() -> Dataset:
    """The 8 x 8 digits that come with scikit-learn."""
    bunch = load_digits()
    return Dataset(
        name="digits",
        X=bunch.data,
        y=bunch.target.astype(np.int64),
        names=np.array(bunch.feature_names),
        target_names=bunch.target_names.astype(str),
        image_shape=(8, 8),
        largest=16.0,
        description="Handwritten digits, 8 x 8 grey levels from 0 to 16",
        source="E. Alpaydin, C. Kaynak, UCI Machine Learning Repository; bundled in scikit-learn",
        licence="CC BY 4.0",
        digest=digest(bunch.data, bunch.target.astype(np.int64)),
    )


def _names(name: str, stored: Arrays, d: int) -> NDArray[np.str_]:
    if "feature_names" in stored:
        return stored["feature_names"].astype(str)
    if name in SHAPES:
        height, width = SHAPES[name]
        return np.array([f"pixel_{i}_{j}" for i in range(height) for j in range(width)])
    return np.array([f"{name}_{j}" for j in range(d)])


def _patients(barcodes: NDArray[np.generic]) -> NDArray[np.str_]:
    return np.array(["-".join(code.split("-")[:3]) for code in barcodes.astype(str)])
