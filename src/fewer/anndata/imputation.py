"""All genes of cells of which only those on a panel were measured."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fewer._checks import check_suffix, find_names
from fewer._files import check_path, write_whole
from fewer._optional import import_optional
from fewer.anndata.cells import SETTINGS, as_annotated, open_cells
from fewer.anndata.selection import description
from fewer.data import ColumnView, Source, read_blocks
from fewer.data.h5ad import create_matrix
from fewer.errors import InputError
from fewer.panel import Panel
from fewer.reconstructor import impute as write_imputed

__all__ = ["impute"]


def impute(
    data: Any,
    panel: Panel,
    *,
    layer: str = "fewer",
    measured_layer: str | None = None,
    counts: str = "auto",
    totals: Any = None,
    out: str | os.PathLike[str] | None = None,
    memory_limit: int | str | None = None,
) -> Any:
    """Reconstruct all genes of cells from those on a panel.

    Values are in the units of the panel (``panel.settings["cells"]["units"]``): counts are
    normalised as those were that it was made from. Genes on the panel keep their measured values.

    Parameters
    ----------
    data : AnnData or path of an .h5ad file
        Cells. Where they have all genes that the panel was made from, the result is a new layer
        of them. Where they have only some, the genes on the panel among them, it is a new
        AnnData with all genes, and the same obs.
    panel : Panel
        From `select_genes`, or `Panel.load`.
    layer : str, default="fewer"
        Name of the layer with the result.
    measured_layer : str, default=None
        Layer with the measured values; None is that which the panel was made from, where
        ``data`` have it, and X elsewhere.
    counts, totals, memory_limit
        As in `open_cells`.
    out : path, default=None
        Write the result to this .h5ad file, block by block, together with all else that ``data``
        hold, so that it need not fit into memory. Needed for paths and backed objects.

    Returns
    -------
    AnnData or path
        What holds the result: ``data`` itself, the new AnnData, or ``out``.

    Examples
    --------
    >>> import anndata, numpy as np
    >>> from fewer.anndata import impute, select_genes
    >>> rng = np.random.default_rng(0)
    >>> rows = rng.normal(size=(60, 2)) @ rng.normal(size=(2, 5))
    >>> train, test = anndata.AnnData(X=rows[:50]), anndata.AnnData(X=rows[50:])
    >>> panel = select_genes(train, 2, validation=0.2, random_state=0)
    >>> measured = test[:, panel.features].copy()
    >>> np.allclose(impute(measured, panel).X, test.X, atol=1e-5)
    True
    """
    cells = as_annotated(data)
    path = None if out is None else Path(out)
    if path is not None:
        check_suffix(path, (".h5ad",))
        check_path(path)
    if path is None and cells.isbacked:
        raise InputError(
            "these cells are on disk, and so is the result: say out='imputed.h5ad', or read them "
            "into memory first (to_memory())"
        )
    if path is not None and cells.isbacked and cells.is_view:
        raise InputError(
            "this is a part of cells on disk, and the file can only be copied as a whole; give "
            "all cells, or read the part into memory first (to_memory())"
        )
    source = open_cells(
        cells,
        like=panel,
        layer=measured_layer,
        counts=counts,
        totals=totals,
        memory_limit=memory_limit,
    )
    if panel.names is None:
        raise InputError("this panel knows no names of genes; make one with select_genes")
    whole = source.shape[1] == panel.d
    measured = ColumnView(source, panel.indices) if whole else source
    measured.row_width = max(measured.row_width, panel.d)  # of what comes out of each block
    if not whole:
        if path is None:
            return _new_object(cells, panel, measured)
        write_imputed(panel.reconstructor, measured, path)
        return path
    columns = find_names(
        cells.var_names,
        panel.names,
        "the panel does not know {} genes of the AnnData",
        "; give those that it was made from, as in adata[:, panel.names].copy()",
    )
    if layer == measured_layer or layer == panel.settings.get(SETTINGS, {}).get("layer"):
        raise InputError(f"layer={layer!r} holds the measured values; give the result another name")
    if path is None:
        cells.layers[layer] = _dense(panel, measured)[:, columns]
        return cells
    return _file_with_layer(cells, path, layer, panel, measured, columns)


def _blocks(panel: Panel, measured: Source) -> Iterator[tuple[slice, NDArray]]:
    """All genes, some cells at a time; what was measured stays as it is."""
    for rows, x in read_blocks(measured):
        yield rows, panel.reconstructor.decode(x.numpy())


def _dense(panel: Panel, measured: Source) -> NDArray[np.float32]:
    found = np.empty((measured.shape[0], panel.d), dtype=np.float32)
    for rows, values in _blocks(panel, measured):
        found[rows] = values
    return found


def _new_object(cells: Any, panel: Panel, measured: Source) -> Any:
    anndata, pandas = import_optional("anndata"), import_optional("pandas")
    # text as Python's own objects, which every version of anndata can write
    names = pandas.Index(np.array(panel.names, dtype=object), dtype=object)
    selected = np.isin(np.arange(panel.d), panel.indices)
    found = anndata.AnnData(
        X=_dense(panel, measured),
        obs=cells.obs.copy(),
        var=pandas.DataFrame({"fewer_selected": selected}, index=names),
        obsm={name: cells.obsm[name] for name in cells.obsm},
    )
    found.uns["fewer"] = description(panel)
    return found


def _file_with_layer(
    cells: Any, path: Path, layer: str, panel: Panel, measured: Source, columns: list[int]
) -> Path:
    """All that the cells hold, and the result as a layer beside it."""
    h5py = import_optional("h5py")

    def write(draft: Path) -> None:
        if cells.isbacked:
            shutil.copyfile(cells.filename, draft)
        else:
            cells.write_h5ad(draft)
        with h5py.File(draft, "r+") as file:
            layers = file.require_group("layers")
            layers.attrs.update({"encoding-type": "dict", "encoding-version": "0.1.0"})
            if layer in layers:
                del layers[layer]
            matrix = create_matrix(layers, layer, cells.shape, np.float32)
            for rows, values in _blocks(panel, measured):
                matrix[rows] = values[:, columns]

    return write_whole(path, write)
