"""Checksums of what comes with the values: groups of rows, the official test part, names, marks."""

from __future__ import annotations

import hashlib

import numpy as np

from fewer.datasets.dataset import Dataset
from fewer.datasets.files import digest

__all__ = ["details"]

LENGTH = 16  # hexadecimal digits: enough against mistakes


def details(data: Dataset) -> dict[str, str]:
    """A checksum of each thing that a data set says about its rows and columns.

    Neither the order of the rows nor what groups are called makes a difference.

    Examples
    --------
    >>> from fewer.datasets import load
    >>> sorted(details(load("digits")))
    ['names', 'target_names']
    """
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
