"""`load`: a data set by its name, from a file, from OpenML, or generated."""

import inspect
from collections.abc import Callable
from difflib import get_close_matches
from typing import Any
from urllib.error import URLError

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from sklearn.datasets import fetch_openml, load_digits

from fewer._files import write_whole
from fewer.data.on_disk import cache_folder
from fewer.datasets.catalogue import (
    CATALOGUE,
    NAMES,
    Arrays,
    data_folders,
    details,
    digest,
    find_file,
    read_npz,
)
from fewer.datasets.dataset import Dataset
from fewer.datasets.geo import read_geo, synthetic_geo
from fewer.datasets.synthetic import (
    diffusion_mri,
    gas_sensors,
    planted_manifold,
    planted_products,
    pulses,
)
from fewer.errors import FileFormatError, InputError

ORIGIN = "origin"  # array of a file that we made of what OpenML sent
SHAPES = {"mnist": (28, 28), "fashion": (28, 28), "coil20": (20, 20)}
GROUPS = {"isolet": ("group", "speaker group"), "har": ("subject", "subject")}
GROUPS |= {"mice": ("mouse_id", "mouse"), "tcga": ("sample_barcode", "patient")}
GROUPS |= {"luad": ("sample_barcode", "patient")}
SPEAKERS = (1560, 1560, 1560, 1558, 1559)  # rows of ISOLET's five groups of speakers
GENERATORS: dict[str, Callable[..., Dataset]] = {
    "geo-synthetic": synthetic_geo,
    "planted-products": planted_products,
    "planted-manifold": planted_manifold,
    "diffusion-mri": diffusion_mri,
    "pulses": pulses,
    "gas-sensors": gas_sensors,
}
HAR = ("WALKING", "WALKING_UPSTAIRS", "WALKING_DOWNSTAIRS", "SITTING", "STANDING", "LAYING")


def load(name: str, *, download: bool = False, verify: bool = True, **options: Any) -> Dataset:
    """Load one of the benchmark data sets, or generate one with known answers.

    Files are looked for in the folder that the environment variable FEWER_DATA names, then in
    the user's cache. Nothing is fetched from the network unless ``download=True``.

    Parameters
    ----------
    name : str
        "mnist", "fashion", "isolet", "coil20", "mice", "har" (the sets of the paper, with HAR in
        the place of its sibling "Activity"), "tcga" and "luad" (gene expression), "digits" (comes
        with scikit-learn), "geo" (where you have D-GEX's files); or one that is generated:
        "geo-synthetic", "planted-products", "planted-manifold", "diffusion-mri", "pulses",
        "gas-sensors".
    download : bool, default=False
        Fetch a set that is not there from OpenML, check it, and keep it in the cache: "mnist",
        "fashion", "isolet", "mice", "har".
    verify : bool, default=True
        Refuse a file whose values, groups of rows, test part, names or marks are not the
        published ones.
    **options
        Of sets that are generated, each with ``seed=0``:

        - "geo-synthetic", rows of the size of the paper's gene expression: ``n``, ``d``.
        - "planted-products", independent factors among columns that are products and other
          functions of them: ``rows=10_000``, ``features=100``, ``factors=8``, ``noise=0.1``.
        - "planted-manifold", columns on a smooth manifold and columns of noise: ``rows=10_000``,
          ``features=100``, ``noise_features`` (40% of them), ``dimensions=4``, ``noise=0.1``.
        - "diffusion-mri", voxels of brain tissue in many acquisitions of a magnetic resonance
          scanner: ``rows=10_000``, ``features=400`` acquisitions, ``compartments=2`` or 3,
          ``snr=50`` (signal-to-noise ratio).
        - "pulses", time series of pulses at jittered times: ``rows=10_000``, ``features=200``
          samples, ``count=3`` pulses, ``noise=0.02``.
        - "gas-sensors", responses of gas sensors in their own units, whose variances span ten
          orders of magnitude, with heavy tails: ``rows=5_358``, ``sensors=16`` (8 columns each),
          ``noise=0.002``.

    Returns
    -------
    Dataset

    Examples
    --------
    >>> from fewer.datasets import load
    >>> load("digits").X.shape
    (1797, 64)
    >>> data = load("planted-products", rows=500, features=20, factors=3)
    >>> sorted(data.names[data.planted].tolist())  # these determine the other 17
    ['x0', 'x1', 'x2']
    >>> load("diffusion-mri", rows=100).acquisition["echo_time"][:3]
    array([105., 130.,  80.])
    >>> load("mnsit")
    Traceback (most recent call last):
    fewer.errors.InputError: there is no data set 'mnsit'; did you mean 'mnist'? ...
    """
    if name not in NAMES:
        close = get_close_matches(str(name), NAMES, n=1)
        hint = f"did you mean {close[0]!r}? " if close else ""
        raise InputError(f"there is no data set {name!r}; {hint}available: {', '.join(NAMES)}")
    if name in GENERATORS:
        return _generated(name, options)
    if options:
        raise InputError(f"{name} has no options; got {', '.join(map(repr, options))}")
    if name == "digits":
        return read_digits()
    if name == "geo":
        return read_geo()
    entry = CATALOGUE[name]
    path = find_file(entry.file)
    if path is not None:
        return _verified(name, read_npz(path), str(path), verify)
    if not download or entry.openml is None:
        looked = ", ".join(str(folder) for folder in data_folders())
        way = f"it cannot be fetched automatically: {entry.where}"
        if entry.openml is not None:
            way = f"load({name!r}, download=True) fetches it from OpenML (set {entry.openml})"
        raise InputError(
            f"{name}: {entry.file} is not in {looked}. Set FEWER_DATA to the folder that holds "
            f"it; {way}"
        )
    stored = fetch(name) | {ORIGIN: np.array("OpenML")}
    data = _verified(name, stored, "what OpenML sent", verify)
    write_whole(
        cache_folder() / entry.file,
        lambda draft: np.savez_compressed(draft, allow_pickle=False, **stored),
    )
    return data


def _generated(name: str, options: dict[str, Any]) -> Dataset:
    known = list(inspect.signature(GENERATORS[name]).parameters)
    unknown = [option for option in options if option not in known]
    if unknown:
        raise InputError(f"{name} has no option {unknown[0]!r}; it has {', '.join(known)}")
    return GENERATORS[name](**options)


def _verified(name: str, stored: Arrays, where: str, verify: bool) -> Dataset:
    """The data set; refuse other values, groups of rows, test parts or names than published."""
    lacking = [key for key in ("X", "y", "target_names") if key not in stored]
    if lacking:
        raise FileFormatError(
            f"{where} lacks {', '.join(lacking)}, so it is not the file of {name}; "
            "download it again"
        )
    entry, data = CATALOGUE[name], from_arrays(name, stored)
    found = {"values": data.digest, **details(data)} if verify else {}
    if ORIGIN in stored:  # OpenML may call columns and classes differently
        found = {what: found[what] for what in found if "names" not in what}
        if not entry.openml_digest:
            found.pop("values", None)
    for what, expected in {"values": entry.digest, **entry.details}.items():
        if what in found and found[what] != expected:
            raise FileFormatError(
                f"{where} does not hold the published {what} of {name}: checksum "
                f"{found[what][:16]}, expected {expected[:16]}; download it again, or pass "
                "verify=False to use it anyway"
            )
    return data


# -- from the arrays of a file to a data set ---------------------------------------------------


def from_arrays(name: str, stored: Arrays) -> Dataset:
    """Make a data set of the arrays of its file."""
    entry = CATALOGUE[name]
    options: dict[str, Any] = {}
    key, options["unit"] = GROUPS.get(name, ("", "row"))
    if key in stored:
        options["groups"] = stored[key]
    if key == "sample_barcode":  # its first three parts are the patient
        options["groups"] = np.array(["-".join(code.split("-")[:3]) for code in stored[key]])
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
        digest=digest(X, stored["y"]),
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


# -- from OpenML -------------------------------------------------------------------------------


def fetch(name: str) -> Arrays:
    """Download a set from OpenML, which checks its own checksum, in the form of our files."""
    entry = CATALOGUE[name]
    with Console(stderr=True).status(f"Fetching {name} from OpenML, set {entry.openml}"):
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
