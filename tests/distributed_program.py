"""What every rank does in tests/test_distributed.py, under torchrun.

Everything is done twice, by all ranks together and by rank 0 on its own, and the outcomes are
written as JSON, one file per rank. The cases of tests/characterisation are done by all together:
what one finds is on record.
"""

import json
import os
import sys
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from scipy import sparse

import fewer
from fewer import distributed
from fewer.data import covariance, moments
from fewer.data.batches import Batches
from fewer.data.source import array_source
from fewer.errors import FewerError
from fewer.train import Checkpoint
from tests.characterisation.cases import ON_TWO_RANKS, run

torch.set_num_threads(1)
warnings.simplefilter("ignore")


def both(work):
    """What all ranks find together, and what one finds on its own."""
    with distributed.joined("cpu"):
        together, alone = work(), None
        if distributed.is_rank0():
            with distributed.single_process():
                alone = work()
        return together, distributed.broadcast(alone)


def sums(X):
    """The largest difference of mean, variance, minimum, counts and covariance."""

    def work():
        source = array_source(X)
        stats, C = moments(source), covariance(source)
        return stats.mean, stats.variance, stats.minimum, stats.observed, C.mean, C.matrix

    pairs = zip(*both(work), strict=True)
    return max(float(np.abs(np.asarray(one) - np.asarray(other)).max()) for one, other in pairs)


def choice(path, memory_limit=None, **options):
    """The features that a concrete autoencoder chooses, and its losses."""

    def work():
        data = fewer.data.open(path, memory_limit=memory_limit)
        model = fewer.ConcreteAutoencoder(k=6, device="cpu", **options).fit(data)
        return model.columns_.tolist(), model.history_[-1]["loss"]

    (found, loss), (expected, reference) = both(work)
    return {"found": found, "expected": expected, "loss": loss, "reference": reference}


def panel(X, k, **options):
    """A panel, its held-out score, its leaderboard and some of its evidence."""

    def work():
        found = fewer.select(X, k, random_state=0, device="cpu", **options)
        board = [[row["strategy"], row["error"]] for row in found.leaderboard]
        made = found.evidence.order.tolist()
        return [found.indices.tolist(), float(found.held_out), board, made, found.settings["rows"]]

    return both(work)


def refusal(work):
    try:
        work()
    except FewerError as error:
        return f"{type(error).__name__}: {error}"
    except ValueError as error:  # of rank 0 itself
        return f"{type(error).__name__}: {error}"
    return "none"


class Damaged(fewer.data.source.DenseSource):
    """Rows of which one cannot be read."""

    def rows(self, index, dtype=torch.float32):
        if isinstance(index, slice) and index.start > 0:
            raise fewer.errors.InputError("row 1500 is damaged")
        return super().rows(index, dtype)


def resumed(folder, path):
    """A training that its callback interrupts on rank 0, then resumes from its checkpoint."""

    def interrupt(row):
        if row["epoch"] == 5:
            raise ValueError("no more today")

    def fit(**more):
        return fewer.ConcreteAutoencoder(
            6, solver="gradient", epochs=9, tries=1, random_state=0, device="cpu", **more
        ).fit(path)

    kept = Checkpoint(folder / "unfinished", every=0)
    said = refusal(lambda: fit(checkpoint=kept, on_epoch=interrupt))
    begun = sorted(path.name for path in kept.folder.iterdir())
    model = fit(checkpoint=kept)
    with distributed.single_process():
        whole = fit()
    return {
        "said": said,
        "begun": begun,
        "found": model.columns_.tolist(),
        "expected": whole.columns_.tolist(),
        "losses": [row["loss"] for row in model.history_],
        "reference": [row["loss"] for row in whole.history_],
    }


def main(folder):
    rank = int(os.environ["RANK"])
    path = folder / "rows.npy"
    X = np.load(path)
    gaps = X.copy()
    gaps[-1, 3] = np.nan  # only in the rows of the last rank
    few, labels = X[:60, 2:10], np.arange(60) % 3
    found = {
        "dense": sums(X),
        "far": sums(X + 1e6) / 1e6,
        "gaps": sums(gaps),
        "sparse": sums(sparse.csr_array(np.where(X > 0.5, X, 0))),
        "one row": sums(X[:1]),
        "linear": choice(
            path, solver="gradient", epochs=6, tries=1, random_state=0, exclude=range(14, 24)
        ),
        "streamed": choice(
            path, solver="gradient", epochs=4, random_state=0, memory_limit=2**16, tries=1
        ),
        "hidden": choice(
            path,
            decoder=(12,),
            epochs=5,
            refit_epochs=4,
            random_state=1,
            tries=1,
            exclude=range(9, 24),
        ),
        "closed": choice(path, solver="closed_form", epochs=100, random_state=0),
        "panel": panel(path, 3, validation=0.2),
        "folds": panel(gaps[-80:, :8], 2, strategies=["search"]),
        "network": panel(few, 2, decoder=(6,), strategies=["search"], validation=0.2),
        "target": panel(few, 2, target=labels + few[:, 3], strategies=["search"], validation=0.2),
        "shapes": refusal(lambda: fewer.ColumnSubset(5, device="cpu").fit(X[: 1700 + rank])),
        "names": refusal(
            lambda: fewer.select(pd.DataFrame(X, columns=[f"{rank}-{j}" for j in range(24)]), 5)
        ),
        "damaged": refusal(lambda: fewer.ColumnSubset(5, device="cpu").fit(Damaged(X))),
        "resumed": resumed(folder, path),
        "cases": {name: run(name) for name in ON_TWO_RANKS},
    }
    with distributed.joined("cpu"):
        rows = Batches(array_source(X), np.arange(9), mean=torch.zeros(24))
        found["shares"] = [len(batch.x) for batch in rows.in_order()]
        found["moved"] = distributed.broadcast({"a": [torch.tensor(rank)], "b": (rank, "x")})["b"]
        found["gathered"] = distributed.gather(rank)
        tensors = [torch.tensor([1.0, rank]), torch.zeros(2, 3).T]
        tensors[1][0, 1] = rank + 1
        distributed.broadcast_tensors(*tensors)
        found["tensors"] = [tensor.tolist() for tensor in tensors]
    timed = fewer.select(
        few, 2, decoder=(6,), strategies=["gradient"], random_state=0, device="cpu", time_limit=0.3
    )
    found["timed"] = [timed.indices.tolist(), timed.score(few)]
    model = fewer.ColumnSubset(5, device="cpu").fit(X)  # no random_state: all must agree
    found["unseeded"] = model.columns_.tolist()
    model.save(folder / "model")
    found["is_rank0"] = distributed.is_rank0()
    (folder / f"found-{rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
