"""Choose columns with one method, in a process of its own: the worker of peers.py.

    python benchmarks/peer_methods.py FOLDER METHOD K SEED

FOLDER has the centred rows in rows.npy and, where there are any, labels.npy and groups.npy. The
last line that is printed is JSON: the columns, seconds, and the version of the package. Only NumPy
and the package of the method are imported, so that a peer whose requirements contradict ours can
run with another interpreter. Options are those of each package's own documentation; the comments
say where.
"""

import collections
import importlib.metadata
import json
import resource
import sys
import time
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

REPEATS, QUICK = 3, 1.0  # a choice within so many seconds is repeated; the fastest counts
NETWORK = (67,)  # hidden layers of the predictors of labels
COPY = 1 - 1e-6  # correlation of a column with one that it repeats
BEAMS = 10
MOST = 2000
STG_EPOCHS, STG_FITS, STG_PENALTIES = 3000, 6, (0.01, 100.0)


@dataclass(frozen=True, eq=False)
class Rows:
    """What a method sees."""

    X: np.ndarray  # n x d, centred
    labels: np.ndarray | None
    groups: np.ndarray | None
    k: int
    seed: int

    @property
    def d(self) -> int:
        return self.X.shape[1]

    @property
    def standardised(self) -> np.ndarray:
        scale = self.X.std(axis=0)
        return (self.X / np.where(scale > 0, scale, 1.0)).astype(np.float32)

    @property
    def one_hot(self) -> np.ndarray:
        assert self.labels is not None
        return np.eye(int(self.labels.max()) + 1)[self.labels]


# What is imported is not timed; what is returned is called, and timed.
Choose = Callable[[], Iterable[int]]


# -- ours ---------------------------------------------------------------------------------------


def greedy(rows: Rows) -> Choose:
    from fewer.search import greedy as search

    return lambda: search(rows.X.T @ rows.X / len(rows.X), rows.k).panel()


def estimator(name: str, **options: Any) -> Callable[[Rows], Choose]:
    def choose(rows: Rows) -> Choose:
        import fewer

        model = getattr(fewer, name)(rows.k, random_state=rows.seed, device="cpu", **options)
        return lambda: model.fit(rows.X, rows.labels).columns_

    return choose


def unlabelled(choose: Callable[[Rows], Choose]) -> Callable[[Rows], Choose]:
    """The same method, which is not shown the labels."""
    return lambda rows: choose(Rows(rows.X, None, rows.groups, rows.k, rows.seed))


def select(rows: Rows) -> Choose:
    from fewer import select

    options: dict[str, Any] = {"scale": "none", "random_state": rows.seed, "device": "cpu"}
    if rows.labels is not None:
        options |= {"target": rows.labels, "decoder": NETWORK}
    return lambda: select(rows.X, rows.k, row_groups=rows.groups, **options).indices


# -- others -------------------------------------------------------------------------------------


def pysensors(basis: str, optimizer: str) -> Callable[[Rows], Choose]:
    """Bases and optimisers of `SSPOR`; as many modes as sensors, as in its examples."""

    def choose(rows: Rows) -> Choose:
        from pysensors.basis import SVD, Identity
        from pysensors.optimizers import QR, TPGR
        from pysensors.reconstruction import SSPOR

        def run() -> np.ndarray:
            model = SSPOR(
                Identity() if basis == "identity" else SVD(rows.k, random_state=rows.seed),
                QR() if optimizer == "qr" else TPGR(rows.k),
                n_sensors=rows.k,
            )
            # without the n x n matrix Q, which nobody reads
            options = {"mode": "economic"} if optimizer == "qr" else {}
            return model.fit(rows.X, quiet=True, seed=rows.seed, **options).get_selected_sensors()

        return run

    return choose


def fastcan(
    beams: int = 1, refined: bool = False, labels: bool = False
) -> Callable[[Rows], Choose]:
    """Its user guide, unsupervised: the targets are as many principal components as features.

    With labels they are one-hot codes ("multioutput feature selection").
    """

    def choose(rows: Rows) -> Choose:
        from fastcan import FastCan, refine
        from sklearn.decomposition import PCA

        def run() -> np.ndarray:
            pca = PCA(rows.k, random_state=rows.seed)
            wanted = rows.one_hot if labels else pca.fit_transform(rows.X)
            selector = FastCan(rows.k, beam_width=beams, verbose=0).fit(rows.X, wanted)
            return refine(selector, drop=1, verbose=0)[0] if refined else selector.indices_

        return run

    return choose


def skmatter(name: str) -> Callable[[Rows], Choose]:
    def choose(rows: Rows) -> Choose:
        from skmatter import feature_selection

        selector = getattr(feature_selection, name)(n_to_select=rows.k, random_state=rows.seed)
        return lambda: selector.fit(rows.X).selected_idx_

    return choose


def spams(rows: Rows) -> Choose:
    """Simultaneous orthogonal matching pursuit of all columns by columns.

    The columns of the dictionary have unit norm, as the manual demands. It ends early at a column
    that repeats another, so repetitions are left out of the dictionary.
    """
    from spams import somp

    def run() -> np.ndarray:
        norm = np.linalg.norm(rows.X, axis=0)
        varying = np.flatnonzero(norm > 0)
        atoms = rows.X[:, varying] / norm[varying]
        distinct = np.triu(np.abs(atoms.T @ atoms), 1).max(axis=0) < COPY
        together = np.zeros(1, dtype=np.int32)  # one group, which begins at the first signal
        codes = somp(
            np.asfortranarray(rows.X),
            np.asfortranarray(atoms[:, distinct]),
            together,
            L=rows.k,
            eps=0.0,
            numThreads=1,
        )
        return varying[distinct][np.unique(codes.indices)]

    return run


def openmeasure(kind: str) -> Callable[[Rows], Choose]:
    """`SPR` with one quantity and k modes; columns are points that lie on a line."""

    def choose(rows: Rows) -> Choose:
        from openmeasure.sparse_sensing import SPR

        places = np.zeros((rows.d, 3))
        places[:, 0] = np.arange(rows.d)

        def run() -> np.ndarray:
            np.random.seed(rows.seed)  # noqa: NPY002 -- gem draws from it
            model = SPR(np.ascontiguousarray(rows.X.T), 1, places)
            model.fit(scale_type="none", select_modes="number", n_modes=rows.k)
            # a distance below 1 only keeps gem from choosing a point twice
            chosen = model.optimal_placement(calc_type=kind, n_sensors=rows.k, d_min=0.5)
            return chosen.argmax(axis=1)

        return run

    return choose


def lassonet(rows: Rows) -> Choose:
    """As in its experiments/run.py: d / 3 hidden units, batches of 256.

    Kept are the k features that leave the path last.
    """
    from lassonet import LassoNetClassifier

    def run() -> np.ndarray:
        model = LassoNetClassifier(
            M=10,
            hidden_dims=(rows.d // 3,),
            batch_size=256,
            torch_seed=rows.seed,
            random_state=rows.seed,
            device="cpu",
            verbose=0,
        )
        model.path(rows.standardised, rows.labels)
        return np.argsort(-model.feature_importances_.numpy(), kind="stable")[: rows.k]

    return run


def stg(rows: Rows) -> Choose:
    """As in its classification example, with a penalty that leaves k gates open.

    The penalty is found by bisection; of the model with the fewest open gates, but at least k, the
    k widest are kept. The package calls names that `collections` had until Python 3.9.
    """
    for name in ("Iterable", "Mapping", "Sequence", "Set"):
        setattr(collections, name, getattr(collections.abc, name))
    import torch
    from stg import STG

    X = rows.standardised
    assert rows.labels is not None

    def gates(penalty: float) -> np.ndarray:
        torch.manual_seed(rows.seed)  # the package ignores its own random_state
        model = STG(
            task_type="classification",
            device="cpu",
            input_dim=rows.d,
            output_dim=int(rows.labels.max()) + 1,
            hidden_dims=[60, 20],
            activation="tanh",
            optimizer="SGD",
            learning_rate=0.1,
            batch_size=len(X),
            sigma=0.5,
            lam=penalty,
        )
        model.fit(X, rows.labels, nr_epochs=STG_EPOCHS, verbose=False)
        return model.get_gates("raw")

    def run() -> np.ndarray:
        low, high = np.log(STG_PENALTIES)
        best, fewest = np.zeros(rows.d), rows.d + 1
        for _ in range(STG_FITS):
            middle = (low + high) / 2
            found = gates(float(np.exp(middle)))
            opened = int((found > -0.5).sum())
            if rows.k <= opened < fewest:
                best, fewest = found, opened
            low, high = (middle, high) if opened > rows.k else (low, middle)
        if fewest > rows.d:
            raise RuntimeError(f"no penalty within {STG_PENALTIES} leaves {rows.k} gates open")
        return np.argsort(-best, kind="stable")[: rows.k]

    return run


@dataclass(frozen=True)
class Method:
    """A way to choose columns, and the distribution whose version is recorded."""

    package: str
    choose: Callable[[Rows], Choose]
    most: int | None = None  # rows; more would take hours


METHODS = {
    "greedy search": Method("fewer", greedy),
    "ColumnSubset": Method("fewer", estimator("ColumnSubset")),
    "ConcreteAutoencoder": Method("fewer", estimator("ConcreteAutoencoder")),
    "select": Method("fewer", select),
    "PySensors, QR": Method("python-sensors", pysensors("identity", "qr")),
    "PySensors, SVD and QR": Method("python-sensors", pysensors("svd", "qr")),
    "PySensors, SVD and TPGR": Method("python-sensors", pysensors("svd", "tpgr")),
    "fastcan": Method("fastcan", fastcan()),
    "fastcan, beam": Method("fastcan", fastcan(beams=BEAMS)),
    "fastcan, refine": Method("fastcan", fastcan(refined=True)),
    "scikit-matter, CUR": Method("skmatter", skmatter("CUR")),
    "scikit-matter, FPS": Method("skmatter", skmatter("FPS")),
    "SPAMS, SOMP": Method("spams-bin", spams),
    "OpenMEASURE, QR": Method("openmeasure", openmeasure("qr")),
    "OpenMEASURE, GEM": Method("openmeasure", openmeasure("gem")),
}
LABELLED = {
    "ColumnSubset (no labels)": Method("fewer", unlabelled(estimator("ColumnSubset"))),
    "ConcreteClassifier": Method("fewer", estimator("ConcreteClassifier", decoder=NETWORK)),
    "select(target=...)": Method("fewer", select),
    "fastcan, labels": Method("fastcan", fastcan(labels=True)),
    "LassoNet": Method("lassonet", lassonet, MOST),
    "STG": Method("stg", stg, MOST),
}


def processor_seconds() -> float:
    """CPU seconds of this process, all its threads, and processes that it has waited for."""
    parts = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(part.ru_utime + part.ru_stime for part in parts)


def timed(choose: Choose) -> dict[str, Any]:
    """The columns, and the least seconds of one or several calls."""
    cpu, wall, columns = [], [], []
    while not wall or (len(wall) < REPEATS and wall[-1] < QUICK):
        worked, began = processor_seconds(), time.perf_counter()
        columns = [int(column) for column in choose()]
        wall.append(time.perf_counter() - began)
        cpu.append(processor_seconds() - worked)
    return {"columns": sorted(columns), "cpu": min(cpu), "wall": min(wall)}


def read_rows(folder: Path, k: int, seed: int, most: int | None = None) -> Rows:
    """Rows of the folder, or ``most`` of them drawn at random, centred again."""
    parts = {name: folder / f"{name}.npy" for name in ("rows", "labels", "groups")}
    found = {name: np.load(file) if file.exists() else None for name, file in parts.items()}
    X = found["rows"]
    assert X is not None
    if most is not None and len(X) > most:
        drawn = np.sort(np.random.default_rng(seed).permutation(len(X))[:most])
        found = {name: None if part is None else part[drawn] for name, part in found.items()}
        X = X[drawn] - X[drawn].mean(axis=0)
    return Rows(X, found["labels"], found["groups"], k, seed)


def main() -> None:
    folder, name, k, seed = sys.argv[1:]
    warnings.simplefilter("ignore")
    method = (METHODS | LABELLED)[name]
    found = timed(method.choose(read_rows(Path(folder), int(k), int(seed), method.most)))
    found["version"] = importlib.metadata.version(method.package)
    print("\n" + json.dumps(found))


if __name__ == "__main__":
    main()
