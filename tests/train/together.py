"""What several processes do in the tests of launching: run by torchrun, told apart by rank.

Everything is done twice, by all processes together and by each alone, and the outcomes written
down as JSON, one file a process.
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
from fewer.data import covariance, moments, open_source
from fewer.data.batches import Batches
from fewer.data.processes import alone
from fewer.errors import FewerError
from fewer.train.launch import joined, leads

torch.set_num_threads(1)
warnings.simplefilter("ignore")


def both(work):
    """What all find together, and what one finds alone."""
    with joined("cpu"):
        together = work()
    with alone():
        return together, work()


def distance(one, other):
    return float(np.abs(np.asarray(one) - np.asarray(other)).max())


def sums(X):
    """Largest differences of mean, variance, least value and covariance."""

    def work():
        source = open_source(X)
        stats = moments(source)
        C = covariance(source)
        return stats.mean, stats.variance, stats.minimum, stats.observed, C.mean, C.matrix

    return max(distance(one, other) for one, other in zip(*both(work), strict=True))


def choice(path, **options):
    """Features that a concrete autoencoder chooses, and its losses."""

    def work():
        data = fewer.data.open(path, memory_limit=options.get("limit"))
        kept = {name: value for name, value in options.items() if name != "limit"}
        model = fewer.ConcreteAutoencoder(k=6, device="cpu", **kept).fit(data)
        return model.columns_.tolist(), model.history_[-1]["loss"], model.random_state

    (found, loss, _), (expected, reference, _) = both(work)
    return {"found": found, "expected": expected, "loss": loss, "reference": reference}


def refusal(work):
    try:
        work()
    except FewerError as error:
        return f"{type(error).__name__}: {error}"
    return "none"


class Breaks(fewer.data.DenseSource):
    """Rows of which one cannot be read."""

    def rows(self, index, dtype=torch.float32):
        if isinstance(index, slice) and index.start > 0:
            raise fewer.errors.InputError("row 1500 is damaged")
        return super().rows(index, dtype)


def longer(path, X):
    """Networks, closed form and whole selections."""
    found = {
        "hidden": choice(path, decoder=(12,), epochs=5, refit_epochs=4, random_state=1, tries=1),
        "closed": choice(path, solver="closed_form", random_state=0),
    }

    def panel():
        return fewer.select(path, 5, random_state=0, validation=0.2, device="cpu")

    one, other = both(panel)
    found["panel"] = [one.indices.tolist(), other.indices.tolist(), one.held_out, other.held_out]
    network = fewer.select(
        path,
        5,
        decoder=(8,),
        strategies=["gradient"],
        validation=0.2,
        random_state=0,
        device="cpu",
        time_limit=8,
    )
    found["network"] = [network.indices.tolist(), network.score(X)]
    return found


def main(folder, part):
    rank = int(os.environ["RANK"])
    path = folder / "rows.npy"
    X = np.load(path)
    gaps = X.copy()
    gaps[-1, 3] = np.nan  # in the rows of the last process alone
    found = {
        "dense": sums(X),
        "far": sums(X + 1e6) / 1e6,
        "gaps": sums(gaps),
        "sparse": sums(sparse.csr_array(np.where(X > 0.5, X, 0))),
        "few": sums(X[:2]),
        "linear": choice(path, solver="gradient", epochs=25, random_state=0),
        "streamed": choice(path, solver="gradient", epochs=6, random_state=0, limit=2**18, tries=1),
        "shapes": refusal(lambda: fewer.ColumnSubset(5, device="cpu").fit(X[: 1700 + rank])),
        "names": refusal(
            lambda: fewer.select(pd.DataFrame(X, columns=[f"{rank}-{j}" for j in range(64)]), 5)
        ),
        "damaged": refusal(lambda: fewer.ColumnSubset(5, device="cpu").fit(Breaks(X))),
    }
    with joined("cpu") as team:
        rows = Batches(open_source(X), np.arange(10), mean=torch.zeros(64), team=team)
        found["parts"] = [len(batch.x) for batch in rows.in_order()]
    model = fewer.ColumnSubset(5, device="cpu").fit(X)  # no seed of its own: all must agree
    found["unseeded"] = model.columns_.tolist()
    model.save(folder / "model")
    found["leads"] = leads()

    if part == "all":
        found |= longer(path, X)
    (folder / f"found-{rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
