"""
Genes for a single-cell panel
=============================

Spatial single-cell instruments can read a few dozen or a few hundred genes, not all. Which ones? A
common answer is the most variable genes. This example compares them with genes that were chosen to
reconstruct the others, on held-out cells.

The cells are 700 of the 68,000 blood cells of Zheng et al. (2017), data of 10x Genomics under
CC BY 4.0, as they come with `scanpy <https://scanpy.readthedocs.io>`__: 765 genes, normalised
logarithms, and a cell type for each. Those genes were already selected for their variability.
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
# Choose twenty genes. These values are logarithms, so they are used as they are; raw counts would
# be normalised automatically. To save time, only the search strategy runs, with three folds.

panel = select_genes(train, 20, strategies=["search"], validation=3, random_state=0)
chosen = train.var[train.var["fewer_selected"]]
chosen.sort_values("fewer_rank")[["fewer_rank", "fewer_gain"]].head()

# %%
# Compare with as many highly variable genes, by two of scanpy's methods. Every panel gets the same
# ridge regression to reconstruct all genes and the same classifier of cell types, both scored on
# held-out cells.


def variable_genes(k, flavor):
    """The k most variable genes of the training cells."""
    found = sc.pp.highly_variable_genes(train, n_top_genes=k, flavor=flavor, inplace=False)
    return train.var_names[found["highly_variable"].to_numpy()]


def on_new_cells(genes):
    """Explained variance of all genes, and accuracy of cell types, on the test cells."""
    x, x_new = (part[:, genes].X.toarray() for part in (train, test))
    every, every_new = train.X.toarray(), test.X.toarray()
    rebuilt = RidgeCV(alphas=np.logspace(0, 4, 9)).fit(x, every).predict(x_new)
    wrong = ((rebuilt - every_new) ** 2).sum() / ((every_new - every_new.mean(0)) ** 2).sum()
    classifier = make_pipeline(StandardScaler(), LogisticRegression(C=0.1, max_iter=2000))
    return 1 - wrong, classifier.fit(x, train.obs["kind"]).score(x_new, test.obs["kind"])


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
    print(
        f"{name:<24}",
        "  ".join("{:.2f} / {:.2f}".format(*pair) for pair in scores),
    )
    for axis, values in zip(axes, zip(*scores, strict=True), strict=True):
        axis.plot(sizes, values, marker="o", label=name)
for axis, title in zip(axes, ("explained variance", "accuracy of cell types"), strict=True):
    axis.set_title(f"{title}, test cells")
    axis.set_xlabel("genes on the panel")
    axis.set_xticks(sizes)
    axis.set_ylim(bottom=0)
axes[1].legend(loc="lower right")

# %%
# Much of the variance of single cells is noise, which no panel can explain. The fewer genes,
# the more their choice matters; for cell types, forty variable genes are about as good.
# ``benchmarks/single_cell.py`` repeats this with several splits.
#
# ``impute`` adds a layer with all genes, reconstructed from the panel.

impute(test, panel)
print(f"explained variance of all genes: {panel.score(open_cells(test, like=panel)):.3f}")
test

# %%
# The best-reconstructed genes, according to the cells held out during selection; each point is
# a test cell.

variance = train.X.toarray().var(axis=0)
r2 = 1 - panel.held_out.errors / variance
r2[panel.indices] = 0
figure, axes = plt.subplots(1, 3, figsize=(9, 3.2))
for axis, gene in zip(axes, np.argsort(-r2), strict=False):
    axis.scatter(test.X[:, [gene]].toarray(), test.layers["fewer"][:, gene], s=8, alpha=0.5)
    axis.set_title(test.var_names[gene])
    axis.set_xlabel("true value")
axes[0].set_ylabel(f"reconstructed from {panel.k} genes")
