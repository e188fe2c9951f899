"""
From an .h5ad file to an ordered gene panel
===========================================

A lab has single-cell data of its tissue and wants to order 40 probes for a spatial instrument.
This tutorial goes all the way: what can be probed, which genes, how good they are, the list to
order, and what to do with the spatial counts afterwards.

The cells are 700 of the 68,000 blood cells of Zheng et al. (2017), data of 10x Genomics under
CC BY 4.0, as they come with `scanpy <https://scanpy.readthedocs.io>`__. You need
``pip install 'fewer[anndata]' scanpy``.
"""

import tempfile
import textwrap
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from scipy import sparse

import fewer
from fewer.anndata import (
    Platform,
    impute,
    open_cells,
    probe_limits,
    select_genes,
    write_gene_list,
)
from fewer.data import read_all

try:
    import scanpy as sc
except ImportError:
    raise SystemExit("this example needs scanpy, and its data: pip install scanpy") from None

# %%
# The cells
# ---------
# Your own file would be read with ``anndata.read_h5ad("cells.h5ad")``, or given to the functions
# below as a path. It should hold raw counts, in X or in a layer. This one holds logarithms of
# counts per 10,000; as it also has the total of each cell, the counts can be recovered.

logarithms = sc.datasets.pbmc68k_reduced()
cells = logarithms.raw.to_adata()
totals = logarithms.obs["n_counts"].to_numpy()[:, None]
cells.X = sparse.csr_matrix(np.rint(np.expm1(cells.X.toarray()) * totals / 1e4), dtype=np.float32)
cells.obs["type"] = cells.obs["bulk_labels"].astype(str).astype("category")
cells

# %%
# Some cells are set aside, to see at the end how the panel does on cells that it has never seen.

aside = np.random.default_rng(0).random(cells.n_obs) < 0.25
train, test = cells[~aside].copy(), cells[aside].copy()
print(train.n_obs, "cells to choose from,", test.n_obs, "to test with")

# %%
# What can be probed
# ------------------
# Genes that hardly any cell expresses give too few spots; genes with hundreds of copies crowd the
# image. Probes for close relatives would bind each other's transcripts, so at most one of them is
# chosen. And you may want certain markers, whatever else is chosen.

limits = probe_limits(
    train,
    exclude=[gene for gene in train.var_names if gene.startswith(("MT-", "RPS", "RPL"))],
    detection=0.02,
    most_mean=20,
    crowding=100,
    groupby="type",
    similar=[
        ["S100A8", "S100A9", "S100A12"],
        ["HLA-DRA", "HLA-DRB1", "HLA-DRB5"],
        ["HLA-DPA1", "HLA-DPB1"],
        ["HLA-DQA1", "HLA-DQB1"],
        ["GZMA", "GZMB", "GZMH", "GZMK"],
    ],
    markers={"B": ["CD79A", "CD79B", "MS4A1"], "NK": ["GNLY", "NKG7", "FGFBP2"]},
    at_least={"B": 1, "NK": 1},
)
print(len(limits["exclude"]), "of", train.n_vars, "genes cannot be probed")

# %%
# If limits contradict each other, `select_genes` says which ones instead of breaking one silently.
#
# Choose
# ------
# The instrument detects about a third of the counts that sequencing did, and up to three probes may
# fail. The panel is chosen, and its decoder fitted, for that.

panel = select_genes(
    train,
    40,
    platform=Platform(efficiency=0.3, lost=3),
    strategies=["search"],
    random_state=0,
    **limits,
)
print(textwrap.fill(", ".join(panel.features), 72))

# %%
# How good is it?
# ---------------
# ``curve`` shows how much each further gene adds. If it is flat at the end, a smaller panel would
# do.

fewer.pl.curve(train)

# %%
# Which types do the genes distinguish? The most useful genes come first; colours are mean counts,
# relative to the type with most, and sizes the fraction of cells with any.

fewer.pl.dotplot(train, "type")

# %%
# The same cells, arranged by all genes and by the panel alone. The groups that you care about
# should still be apart on the right.

shown = train.copy()
sc.pp.normalize_total(shown, target_sum=1e4)
sc.pp.log1p(shown)
axes = fewer.pl.panel_umap(shown, "type")

# %%
# Now the test. The cells that were set aside are measured as the instrument would: only the panel,
# a third of the counts, two probes lost. All genes are reconstructed and compared with what was
# sequenced.

draw = np.random.default_rng(1)
spots = test[:, panel.features].copy()
counts = spots.X.toarray().astype(int)
spots.X = draw.binomial(counts, 0.3).astype(np.float32)
spots.X[:, [5, 20]] = np.nan
whole = impute(spots, panel)

truth = read_all(open_cells(test))
wrong = ((whole.X - truth) ** 2).sum() / ((truth - truth.mean(axis=0)) ** 2).sum()
print(f"explained variance of all genes: {1 - wrong:.3f}")
print(f"expected from held-out training cells: {panel.held_out:.3f}")

# %%
# Single cells are noisy, so most of the variance of their counts cannot be explained by any panel.
# Means over cells of a type are another matter:

types = test.obs["type"]
common = types.value_counts().index[:4]
figure, axes = plt.subplots(1, len(common), figsize=(9, 2.8), sharey=True)
for axis, kind in zip(axes, common, strict=True):
    own = (types == kind).to_numpy()
    x, y = truth[own].mean(axis=0), whole.X[own].mean(axis=0)
    axis.scatter(x, y, s=4, alpha=0.5)
    axis.plot([0, x.max()], [0, x.max()], color="0.6", lw=1)
    r = np.corrcoef(x, y)[0, 1]
    axis.set(title=f"{kind}\nr = {r:.2f}", xlabel="sequenced")
axes[0].set_ylabel("reconstructed")
plt.show()

# %%
# Order
# -----
# The list has the genes in order of usefulness. The design portals of the vendors start from gene
# symbols or Ensembl ids (``ids="gene_ids"``, where var has them).

with tempfile.TemporaryDirectory() as folder:
    path = write_gene_list(panel, Path(folder, "order.csv"), data=train)
    print(*path.read_text().splitlines()[:5], sep="\n")

# %%
# Keep the panel itself: ``panel.save("panel/")``. When the spatial data arrive,
#
# .. code-block:: python
#
#     panel = fewer.Panel.load("panel/")
#     spatial = anndata.read_h5ad("spatial.h5ad")
#     whole = impute(spatial, panel)
#
# gives an AnnData with all genes, from raw counts of those on the panel; a SpatialData with one
# table will do as well. Probes that failed have to be NaN, not 0. More on each step:
# :doc:`/how-to/anndata`.
