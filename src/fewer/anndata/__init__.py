"""Genes of an AnnData: choose them, and impute those that were not measured.

A panel for cells is one of `fewer.select`, on logarithms: raw counts are detected automatically and
normalised as they are read, anything else is taken as it is.
"""

from fewer.anndata.platform import Platform
from fewer.anndata.probes import probe_limits, write_gene_list
from fewer.anndata.selection import annotate, impute, select_genes
from fewer.cells import open_cells

__all__ = [
    "Platform",
    "annotate",
    "impute",
    "open_cells",
    "probe_limits",
    "select_genes",
    "write_gene_list",
]
