"""The gene expression set of the paper where the user has it, and synthetic rows like it."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fewer._checks import check_whole
from fewer.datasets.catalogue import find_file
from fewer.datasets.dataset import Dataset, Split
from fewer.errors import FileFormatError, InputError

LANDMARKS, TARGETS = 943, 9520
TRAIN, VALIDATION, TEST = 88_807, 11_101, 12_263
PARTS = ("tr", "va", "te")
HOW = (
    "The paper's set is not public in one piece: get bgedv2_QNORM.gctx from the authors of D-GEX "
    "(github.com/uci-cbcl/D-GEX), run their preprocess.sh, and put its six files "
    "bgedv2_X_tr_float64.npy ... bgedv2_Y_te_float64.npy (and bgedv2_GTEx_1000G_lm.txt, "
    "bgedv2_GTEx_1000G_tg.txt for gene names) into the folder FEWER_DATA. "
    "load('geo-synthetic') generates synthetic rows of the same size"
)
RANK, DECAY, SQUASH, NOISE = 600, 0.6, 0.15, 0.25
CHUNK = 8192


def read_geo() -> Dataset:
    """GEO as D-GEX prepares it: 943 landmark genes, then 9520 targets, standardised."""
    first = find_file("bgedv2_X_tr_float64.npy")
    if first is None:
        raise InputError(f"geo was not found. {HOW}")
    folder = first.parent
    blocks = [[_load(folder, f"bgedv2_{kind}_{part}") for kind in "XY"] for part in PARTS]
    sizes = [len(x) for x, _ in blocks]
    d = blocks[0][0].shape[1] + blocks[0][1].shape[1]
    X = np.empty((sum(sizes), d), dtype=np.float32)
    row = 0
    for x, targets in blocks:
        if len(x) != len(targets) or x.shape[1] + targets.shape[1] != d:
            raise FileFormatError(
                f"the bgedv2 files in {folder} do not match: {x.shape} landmark and "
                f"{targets.shape} target values; run D-GEX's preprocessing again"
            )
        X[row : row + len(x), : x.shape[1]] = x
        X[row : row + len(x), x.shape[1] :] = targets
        row += len(x)
    landmarks = np.arange(d) < blocks[0][0].shape[1]
    return Dataset(
        name="geo",
        X=X,
        y=None,
        names=_gene_names(folder, landmarks),
        landmarks=landmarks,
        description="Gene expression from GEO as prepared by D-GEX, standardised by gene",
        source="Y. Chen, Y. Li, R. Narayan, A. Subramanian, X. Xie, Bioinformatics 2016",
        licence="as agreed with its providers",
        parts=_parts(sizes, "D-GEX's own split"),
    )


def synthetic_geo(
    n: int = TRAIN + VALIDATION + TEST, d: int = LANDMARKS + TARGETS, seed: int = 0
) -> Dataset:
    """Synthetic rows of the size of GEO: none of them was ever measured.

    600 normal factors, the i-th with weight i^-0.6, times normal loadings give z; a gene is
    tanh(0.15 z) plus normal noise whose standard deviation, 0.25 U(0, 1), is drawn once per gene;
    then every gene is standardised. The spectrum decays like that of real expression data.
    The rows are split as D-GEX splits its own, 79% to train, 10% to validate, 11% to test.
    """
    check_whole("n", n, 20)
    check_whole("d", d, 2)
    rng = np.random.default_rng(seed)
    weights = np.arange(1, RANK + 1, dtype=np.float32) ** -DECAY
    loadings = rng.standard_normal((RANK, d), dtype=np.float32) * weights[:, None]
    spread = (NOISE * rng.random(d)).astype(np.float32)
    X = np.empty((n, d), dtype=np.float32)
    for start in range(0, n, CHUNK):  # bounded memory
        rows = slice(start, min(start + CHUNK, n))
        z = rng.standard_normal((rows.stop - start, RANK), dtype=np.float32) @ loadings
        X[rows] = np.tanh(np.float32(SQUASH) * z)
        X[rows] += spread * rng.standard_normal(X[rows].shape, dtype=np.float32)
    _standardise(X)
    train, test = round(n * 0.7917), round(n * 0.1093)
    return Dataset(
        name="geo-synthetic",
        X=X,
        y=None,
        names=np.array([f"synthetic_gene_{j}" for j in range(d)]),
        synthetic=True,
        description=f"SYNTHETIC rows of the size of GEO, {n} x {d}, seed {seed}: not measured data",
        source="fewer.datasets.geo.synthetic_geo",
        licence="MIT",
        parts=_parts([train, n - train - test, test], "the shares of D-GEX's split"),
    )


def _standardise(X: NDArray[np.float32]) -> None:
    """Centre and scale in place, a block at a time: a copy in float64 would be twice as large."""
    blocks = [slice(start, start + CHUNK) for start in range(0, len(X), CHUNK)]
    mean = sum(X[rows].sum(axis=0, dtype=np.float64) for rows in blocks) / len(X)
    X -= mean.astype(np.float32)
    squares = sum(np.square(X[rows], dtype=np.float64).sum(axis=0) for rows in blocks)
    X /= np.sqrt(squares / len(X)).astype(np.float32)


def _parts(sizes: list[int], description: str) -> Split:
    train, validation, test = np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:2])
    return Split(train, validation, test, np.arange(sum(sizes[:2])), description)


def _load(folder: Path, stem: str) -> NDArray[np.float64]:
    path = folder / f"{stem}_float64.npy"
    try:
        return np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError) as error:
        raise FileFormatError(f"{path} cannot be read ({error}). {HOW}") from error


def _gene_names(folder: Path, landmarks: NDArray[np.bool_]) -> NDArray[np.str_]:
    found: list[str] = []
    for kind, count in (("lm", int(landmarks.sum())), ("tg", int((~landmarks).sum()))):
        path = folder / f"bgedv2_GTEx_1000G_{kind}.txt"
        lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
        own = [line.split("\t")[0] for line in lines]
        found += own if len(own) == count else [f"{kind}_{j}" for j in range(count)]
    return np.array(found)
