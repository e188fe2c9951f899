"""Files of cells on the command line: counts become logarithms, and what obs says stays."""

import warnings

import numpy as np
import pandas as pd
import pytest
from scipy import sparse

import fewer
from fewer.anndata import open_cells, select_genes

anndata = pytest.importorskip("anndata", reason="anndata is not installed")

QUICK = ["--strategies", "search", "--device", "cpu"]

pytestmark = [
    # what anndata does inside is not ours to fix
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:The 'mode.chained_assignment' option"),
]


@pytest.fixture
def cells(tmp_path, monkeypatch):
    """Counts in train.h5ad, and cells.h5ad of other cells."""
    monkeypatch.chdir(tmp_path)
    shape = np.random.default_rng(7).gamma(0.5, size=(3, 20)) + 0.05
    with warnings.catch_warnings(action="ignore"):
        kept = pd.get_option("future.infer_string")  # the pinned anndata cannot write pandas 3's
        pd.set_option("future.infer_string", False)
    made = []
    for seed, name in enumerate(("train.h5ad", "cells.h5ad")):
        rng = np.random.default_rng(seed)
        kind = rng.integers(0, 3, 200)
        X = rng.poisson(30 * shape[kind]).astype(np.float32) + np.eye(1, 20, dtype=np.float32)
        found = anndata.AnnData(X=sparse.csr_matrix(X))
        found.obs_names = pd.Index([f"{name[0]}{i}" for i in range(200)], dtype=object)
        found.var_names = pd.Index([f"gene{j}" for j in range(20)], dtype=object)
        found.obs["kind"] = np.array(["B", "NK", "T"], dtype=object)[kind]
        found.write_h5ad(name)
        made.append(found)
    yield made
    with warnings.catch_warnings(action="ignore"):
        pd.set_option("future.infer_string", kept)


def test_counts_are_normalised_on_the_way_in_and_out(cells, asked):
    _, new = cells
    done = asked("select", "train.h5ad", "-k", "2", "--out", "panel", *QUICK)
    assert done["settings"]["cells"]["units"] == "log(1 + counts per 10,000)"
    panel = fewer.Panel.load("panel")
    truth = open_cells(new, like=panel)
    assert asked("score", "panel", "cells.h5ad")["explained_variance"] == pytest.approx(
        panel.score(truth)
    )
    asked("impute", "panel", "cells.h5ad", "--out", "all.h5ad", "--replace-measured")
    found = anndata.read_h5ad("all.h5ad")
    np.testing.assert_allclose(found.X, panel.reconstruct(truth), rtol=1e-6, atol=1e-9)
    assert found.obs_names.tolist() == new.obs_names.tolist()
    assert found.obs["kind"].tolist() == new.obs["kind"].tolist()
    assert found.var_names.tolist() == panel.names


def test_no_gene_is_explained_by_more_than_all(cells, asked):
    train, new = cells
    options = {"strategies": ["search"], "random_state": 0, "inplace": False}
    select_genes(train, 2, **options).save("panel")
    new.X *= 0.3  # less deep, so that the noise is more
    new.X.data = np.ceil(new.X.data)
    new.write_h5ad("cells.h5ad")
    done = asked("score", "panel", "cells.h5ad")
    assert done["explained_variance"] == fewer.Panel.load("panel").score("cells.h5ad")
    assert all(row["r2"] is None or row["r2"] <= 1 for row in done["by_feature"])


def test_values_can_be_taken_as_they_are(cells, asked):
    train, new = cells
    done = asked("select", "train.h5ad", "-k", "2", "--out", "panel", "--counts", "none", *QUICK)
    assert done["settings"]["cells"]["counts"] == "none"
    plain = fewer.select(train, 2, strategies=["search"], random_state=0, device="cpu")
    assert done["features"] == plain.features
    score = asked("score", "panel", "cells.h5ad", "--counts", "none")["explained_variance"]
    assert score == pytest.approx(plain.score(new), rel=1e-6)


def test_errors_are_one_line(cells, asked, refused):
    asked("select", "train.h5ad", "-k", "2", "--out", "panel", "--counts", "none", *QUICK)
    assert "these values are counts, but the panel was made from" in refused(
        "score", "panel", "cells.h5ad"
    )
    assert "--counts 'raw' is not valid" in refused(
        "select", "train.h5ad", "-k", "2", "--out", "other", "--counts", "raw"
    )
