"""`load`: a data set by its name."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Any

import numpy as np

from fewer.data.cache import cache_folder
from fewer.datasets.catalogue import CATALOGUE, NAMES, Entry
from fewer.datasets.dataset import Dataset
from fewer.datasets.details import details
from fewer.datasets.fetch import fetch
from fewer.datasets.files import (
    Arrays,
    data_folders,
    digest,
    find_file,
    read_npz,
    write_npz,
)
from fewer.datasets.geo import read_geo, synthetic_geo
from fewer.datasets.readers import from_arrays, read_digits
from fewer.errors import FileFormatError, InputError

__all__ = ["load"]

ORIGIN = "origin"  # array of a file that we made of what OpenML sent


def load(name: str, *, download: bool = False, verify: bool = True, **options: Any) -> Dataset:
    """Load one of the benchmark data sets.

    Files are looked for in the folder that the environment variable FEWER_DATA names, then in
    the user's cache. Nothing is fetched from the network unless ``download=True``.

    Parameters
    ----------
    name : str
        "mnist", "fashion", "isolet", "coil20", "mice", "har" (the sets of the paper, with HAR in
        the place of its sibling "Activity"), "tcga" and "luad" (gene expression), "digits" (comes
        with scikit-learn), "geo" (where you have D-GEX's files) or "geo-synthetic".
    download : bool, default=False
        Fetch a set that is not there from OpenML, check it, and keep it in the cache: "mnist",
        "fashion", "isolet", "mice", "har".
    verify : bool, default=True
        Refuse a file whose values, groups of rows, test part, names or marks are not the
        published ones.
    **options
        For "geo-synthetic": n, d and seed.

    Returns
    -------
    Dataset

    Examples
    --------
    >>> from fewer.datasets import load
    >>> load("digits").X.shape
    (1797, 64)
    >>> load("mnsit")
    Traceback (most recent call last):
    fewer.errors.InputError: there is no data set 'mnsit'; did you mean 'mnist'? ...
    """
    if name not in NAMES:
        close = get_close_matches(str(name), NAMES, n=1)
        hint = f"did you mean {close[0]!r}? " if close else ""
        raise InputError(f"there is no data set {name!r}; {hint}Known: {', '.join(NAMES)}")
    if name == "geo-synthetic":
        return synthetic_geo(**options)
    if options:
        raise InputError(f"{name} has no options; got {', '.join(map(repr, options))}")
    if name == "digits":
        return read_digits()
    if name == "geo":
        return read_geo()
    entry = CATALOGUE[name]
    path = find_file(entry.file)
    if path is not None:
        stored = read_npz(path)
        data = from_arrays(name, stored, _checked(name, entry, stored, str(path), verify))
        if verify:
            _check_details(data, entry, str(path), renamed=ORIGIN in stored)
        return data
    if not download or entry.openml is None:
        raise InputError(_missing(name, entry))
    stored = fetch(name)
    found = _checked(name, entry, stored, "what OpenML sent", verify and entry.openml_digest)
    write_npz(cache_folder() / entry.file, stored | {ORIGIN: np.array("OpenML")})
    return from_arrays(name, stored, found)


def _checked(name: str, entry: Entry, stored: Arrays, where: str, verify: bool) -> str:
    """The digest of what was read; refuse other values than those published."""
    lacking = [key for key in ("X", "y", "target_names") if key not in stored]
    if lacking:
        raise FileFormatError(
            f"{where} lacks {', '.join(lacking)}, so it is not the file of {name}; get it again"
        )
    found = digest(stored["X"], stored["y"])
    if verify and found != entry.digest:
        raise FileFormatError(
            f"{where} does not hold the published values of {name}: checksum {found[:12]}..., "
            f"expected {entry.digest[:12]}...; get it again, or pass verify=False to use it anyway"
        )
    return found


def _check_details(data: Dataset, entry: Entry, where: str, renamed: bool) -> None:
    """Refuse other groups of rows, test parts, names or marks than those published."""
    for what, found in details(data).items():
        if renamed and what in ("names", "target_names"):
            continue
        if what in entry.details and found != entry.details[what]:
            raise FileFormatError(
                f"{where} does not hold the published {what} of {data.name}: checksum {found}, "
                f"expected {entry.details[what]}; get it again, or pass verify=False to use it "
                "anyway"
            )


def _missing(name: str, entry: Entry) -> str:
    looked = ", ".join(str(folder) for folder in data_folders())
    if entry.openml is not None:
        way = f"load({name!r}, download=True) fetches it from OpenML (set {entry.openml})"
    else:
        way = f"it cannot be fetched automatically: {entry.where}"
    return (
        f"{name}: {entry.file} is not in {looked}. Set FEWER_DATA to the folder that holds it; "
        f"{way}"
    )
