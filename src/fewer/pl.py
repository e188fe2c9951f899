"""Plots of a gene panel that was written into an AnnData, in the manner of scanpy.

Each function draws what `fewer.anndata.select_genes` (or `annotate`) left in ``var`` and ``uns``,
and returns Matplotlib axes.
"""

from typing import Any

import numpy as np

from fewer._checks import check_whole
from fewer._display import new_axes
from fewer._optional import import_optional
from fewer.errors import InputError

__all__ = ["curve", "dotplot", "panel_umap"]

EXPLAINED = "explained variance"


def _ranked(adata: Any, key: str) -> Any:
    """The genes of the panel, most useful first, as rows of var."""
    if f"{key}_selected" not in adata.var:
        raise InputError(
            f"there is no panel {key!r} in this AnnData; call select_genes(adata, ...) or "
            "annotate(adata, panel) first"
        )
    chosen = adata.var[adata.var[f"{key}_selected"].to_numpy(dtype=bool)]
    return chosen.sort_values(f"{key}_rank")


def curve(adata: Any, *, key: str = "fewer", ax: Any = None) -> Any:
    """Explained variance against the number of genes, in the order of their rank.

    The axis says what it is the variance of; the dashed line is of all genes.

    Parameters
    ----------
    adata : AnnData
        Annotated by `select_genes`.
    key : str, default="fewer"
        The ``key_added`` of the panel.
    ax : matplotlib.axes.Axes, default=None
        Where to draw.

    Returns
    -------
    matplotlib.axes.Axes

    Examples
    --------
    >>> import anndata, numpy as np
    >>> import fewer
    >>> rows = np.random.default_rng(0).normal(size=(60, 3)) @ np.ones((3, 6))
    >>> cells = anndata.AnnData(X=rows + np.random.default_rng(1).normal(size=(60, 6)))
    >>> _ = fewer.anndata.select_genes(cells, 3, validation=0.2, random_state=0)
    >>> fewer.pl.curve(cells).get_xlabel()
    'genes'
    """
    genes = _ranked(adata, key)
    gains = genes[f"{key}_gain"].to_numpy(dtype=float)
    if not np.isfinite(gains).all():
        raise InputError(f"the panel {key!r} was made without gains; call select_genes again")
    ax = new_axes(ax)
    total = np.cumsum(gains)
    ax.plot(np.arange(1, len(total) + 1), total, marker="o", markersize=3)
    about = adata.uns.get(key, {})
    held, what = about.get("held_out"), str(about.get("gain", EXPLAINED))
    if held is not None:
        label = (
            "held-out cells" if what == EXPLAINED else f"{EXPLAINED} of all genes, held-out cells"
        )
        ax.axhline(float(held), linestyle="--", color="0.5", label=label)
        ax.legend(frameon=False)
    ax.set(xlabel="genes", ylabel=what.replace("all features", "all genes"), ylim=(0, None))
    return ax


def dotplot(
    adata: Any,
    groupby: str,
    *,
    key: str = "fewer",
    n_genes: int = 30,
    layer: str | None = None,
    ax: Any = None,
) -> Any:
    """Chosen genes by group of cells: colour for the mean, size for the fraction that express it.

    Means are relative to the largest mean of each gene.

    Parameters
    ----------
    adata : AnnData
        Annotated by `select_genes`.
    groupby : str
        A column of obs, such as cell types.
    key : str, default="fewer"
        The ``key_added`` of the panel.
    n_genes : int, default=30
        How many genes, the most useful ones.
    layer : str, default=None
        Which layer to draw; X if None.
    ax : matplotlib.axes.Axes, default=None
        Where to draw.

    Returns
    -------
    matplotlib.axes.Axes

    Examples
    --------
    >>> import anndata, numpy as np
    >>> import fewer
    >>> counts = np.random.default_rng(0).poisson(2.0, size=(60, 6)).astype(np.float32)
    >>> cells = anndata.AnnData(X=counts)
    >>> cells.obs["kind"] = ["A", "B"] * 30
    >>> _ = fewer.anndata.select_genes(cells, 3, validation=0.2, random_state=0)
    >>> [text.get_text() for text in fewer.pl.dotplot(cells, "kind").get_yticklabels()]
    ['A', 'B']
    """
    check_whole("n_genes", n_genes, 1)
    if groupby not in adata.obs:
        raise InputError(f"groupby={groupby!r} is not in obs, which has {list(adata.obs)}")
    genes = _ranked(adata, key).index[:n_genes]
    labels = adata.obs[groupby].astype(str).to_numpy()
    kinds = np.unique(labels)
    part = adata[:, genes]
    values = part.X if layer is None else part.layers[layer]
    values = np.asarray(values.toarray() if hasattr(values, "toarray") else values, dtype=float)
    mean = np.stack([values[labels == kind].mean(axis=0) for kind in kinds])
    share = np.stack([(values[labels == kind] > 0).mean(axis=0) for kind in kinds])
    relative = mean / np.maximum(mean.max(axis=0), 1e-300)
    if ax is None:
        ax = new_axes()
        ax.figure.set_size_inches(2.6 + 0.28 * len(genes), 1.4 + 0.28 * len(kinds))
    x, y = np.meshgrid(np.arange(len(genes)), np.arange(len(kinds)))
    dots = ax.scatter(x, y, s=5 + 95 * share, c=relative, cmap="Reds", edgecolors="0.6", lw=0.5)
    ax.set_xticks(np.arange(len(genes)), genes, rotation=90)
    ax.set_yticks(np.arange(len(kinds)), kinds)
    ax.set(xlim=(-0.7, len(genes) - 0.3), ylim=(len(kinds) - 0.3, -0.7))
    ax.figure.colorbar(dots, ax=ax, label="mean, relative", fraction=0.03)
    for part_of in (0.2, 0.6, 1.0):
        ax.scatter([], [], s=5 + 95 * part_of, c="0.8", edgecolors="0.6", label=f"{part_of:.0%}")
    ax.legend(title="cells", loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)
    return ax


def panel_umap(
    adata: Any, color: str, *, key: str = "fewer", layer: str | None = None, seed: int = 0
) -> Any:
    """Two UMAPs of the same cells: from all genes, and from the chosen ones alone.

    It needs scanpy (principal components, neighbours and UMAP are its own, with its defaults).

    Parameters
    ----------
    adata : AnnData
        Logarithms, annotated by `select_genes`; it is not changed.
    color : str
        A column of obs, such as cell types.
    key : str, default="fewer"
        The ``key_added`` of the panel.
    layer : str, default=None
        Which layer holds the logarithms; X if None.
    seed : int, default=0
        Of the UMAPs.

    Returns
    -------
    ndarray of matplotlib.axes.Axes

    Examples
    --------
    >>> import fewer
    >>> fewer.pl.panel_umap(adata, "cell_type")  # doctest: +SKIP
    """
    scanpy = import_optional("scanpy")
    genes = _ranked(adata, key).index
    pyplot = import_optional("matplotlib.pyplot")
    axes = pyplot.subplots(1, 2, figsize=(11, 4.2), layout="constrained")[1]
    titles = f"all {adata.n_vars:,} genes", f"{len(genes)} chosen genes"
    for ax, part, title in zip(axes, (adata, adata[:, genes]), titles, strict=True):
        found = part.copy()
        if layer is not None:
            found.X = found.layers[layer]
        count = min(50, found.n_vars - 1, found.n_obs - 1)
        scanpy.pp.pca(found, n_comps=count, random_state=seed)
        scanpy.pp.neighbors(found, random_state=seed)
        scanpy.tl.umap(found, random_state=seed)
        legend = "right margin" if ax is axes[-1] else "none"
        scanpy.pl.umap(found, color=color, ax=ax, show=False, title=title, legend_loc=legend)
    return axes
