"""
Genes for a single-cell panel
=============================

Instruments that see single cells in place can read a few dozen or a few hundred genes, not all.
Which ones? A common answer is the most variable genes. Here is what they lose against genes that
were chosen to reconstruct the others, on cells that took no part in the choice.

The cells are 700 of the 68,000 blood cells of Zheng et al. (2017), data of 10x Genomics under
CC BY 4.0, as they come with `scanpy <https://scanpy.readthedocs.io>`__: 765 genes, normalised
logarithms, and a cell type for each. Those genes are the more variable ones already.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.linear_model import LogisticRegression, RidgeCV
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from fewer.anndata import impute, open_cells, select_genes

try:
    import scanpy as sc
except ImportError:
    raise SystemExit("this example needs scanpy, and its data: pip install scanpy") from None

cells = sc.datasets.pbmc68k_reduced().raw.to_adata()
cells.obs["kind"] = cells.obs["bulk_labels"].astype(str)
parts = train_test_split(
    np.arange(cells.n_obs), test_size=0.3, stratify=cells.obs["kind"], random_state=0
)
train, test = (cells[part].copy() for part in parts)

# %%
# Choose twenty genes. These values are logarithms, so they are taken as they are; raw counts would
# be normalised on the way. To save time only the search makes proposals, and on three folds.

panel = select_genes(train, 20, strategies=["search"], validation=3, random_state=0)
chosen = train.var[train.var["fewer_selected"]]
chosen.sort_values("fewer_rank")[["fewer_rank", "fewer_gain"]].head()

# %%
# Now the rivals: as many highly variable genes, by two of scanpy's recipes. Every panel gets the
# same means of reconstruction, ridge regression, and the same classifier of cell types; what
# counts is the cells not yet seen.


def variable_genes(k, flavor):
    """The k most variable genes of the training cells."""
    found = sc.pp.highly_variable_genes(train, n_top_genes=k, flavor=flavor, inplace=False)
    return train.var_names[found["highly_variable"].to_numpy()]


def on_new_cells(genes):
    """Share of the variance of all genes, and of the cell types, that these genes get right."""
    x, x_new = (part[:, genes].X.toarray() for part in (train, test))
    every, every_new = train.X.toarray(), test.X.toarray()
    rebuilt = RidgeCV(alphas=np.logspace(0, 4, 9)).fit(x, every).predict(x_new)
    wrong = ((rebuilt - every_new) ** 2).sum() / ((every_new - every_new.mean(0)) ** 2).sum()
    teller = make_pipeline(StandardScaler(), LogisticRegression(C=0.1, max_iter=2000))
    return 1 - wrong, teller.fit(x, train.obs["kind"]).score(x_new, test.obs["kind"])


quick = {"strategies": ["search"], "validation": 0.25, "random_state": 0, "inplace": False}
sizes = [10, 20, 40]
results = {"chosen by fewer": [], "variable, seurat": [], "variable, cell_ranger": []}
for k in sizes:
    ours = panel if k == panel.k else select_genes(train, k, **quick)
    results["chosen by fewer"].append(on_new_cells(ours.features))
    for flavor in ("seurat", "cell_ranger"):
        results[f"variable, {flavor}"].append(on_new_cells(variable_genes(k, flavor)))

figure, axes = plt.subplots(1, 2, figsize=(9, 3.6))
for name, scores in results.items():
    print(f"{name:<24}", "  ".join(f"{share:.2f} / {right:.2f}" for share, right in scores))
    for axis, values in zip(axes, zip(*scores, strict=True), strict=True):
        axis.plot(sizes, values, marker="o", label=name)
for axis, title in zip(axes, ("variance of all genes", "cell types told right"), strict=True):
    axis.set_title(f"{title}, new cells")
    axis.set_xlabel("genes on the panel")
    axis.set_xticks(sizes)
    axis.set_ylim(bottom=0)
axes[1].legend(loc="lower right")

# %%
# Much of the variance of single cells is chance, which no panel can bring back. The fewer genes,
# the more their choice matters; for cell types forty variable genes are about as good.
# ``benchmarks/single_cell.py`` repeats this with several splits.
#
# The panel fills in the genes that were not measured: a new layer has all of them, in the units of
# the panel.

impute(test, panel)
print(f"share of the variance of all genes: {panel.score(open_cells(test, like=panel)):.3f}")
test

# %%
# The genes that come back best, according to the cells held out in the choice; each new cell is a
# point.

variance = train.X.toarray().var(axis=0)
share = 1 - panel.held_out.errors / variance
share[panel.indices] = 0
figure, axes = plt.subplots(1, 3, figsize=(9, 3.2))
for axis, gene in zip(axes, np.argsort(-share), strict=False):
    axis.scatter(test.X[:, [gene]].toarray(), test.layers["fewer"][:, gene], s=8, alpha=0.5)
    axis.set_title(test.var_names[gene])
    axis.set_xlabel("truth")
axes[0].set_ylabel(f"from {panel.k} other genes")
