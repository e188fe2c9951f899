"""Cells as rows: which matrix of an AnnData is read, and in which units."""

import os
from pathlib import Path
from typing import Any

import numpy as np

from fewer._optional import import_optional
from fewer.anndata.units import SETTINGS, in_units
from fewer.data import Source
from fewer.data import open as open_any
from fewer.data.annotated import is_annotated
from fewer.data.columns import join_names
from fewer.data.hdf5_zarr import damaged, open_hdf5_file
from fewer.errors import InputError, TypeInputError
from fewer.panel import Panel

__all__ = ["CellFile", "as_annotated", "obs_column", "open_cells"]


def open_cells(
    data: Any,
    *,
    like: Panel | None = None,
    layer: str | None = None,
    counts: str = "auto",
    target_sum: float = 1e4,
    totals: Any = None,
    memory_limit: int | str | None = None,
) -> Source:
    """Cells as rows of numbers that a panel can be made from, or that fit a panel.

    Nothing is made dense as a whole: sparse counts stay sparse, and files are read in blocks.

    Parameters
    ----------
    data : AnnData or path of an .h5ad file
        In memory or backed.
    like : Panel, default=None
        Give values in the units of this panel, from `select_genes`, and its genes alone. Where
        ``data`` have only some of its genes, those on the panel.
    layer : str, default=None
        Which layer to read; X if None. With ``like`` None is the layer that the panel was made
        from, where ``data`` have it.
    counts : {"auto", "log1p", "none"}, default="auto"
        "log1p": values are counts; divide them by the total of their cell, multiply by
        ``target_sum``, take log(1 + x). "none": take values as they are. "auto": the first where
        all values that are looked at are whole numbers, the second elsewhere.
    target_sum : float, default=1e4
        What the counts of each cell sum to before the logarithm; that of ``like`` if given.
    totals : array of length n or name of an obs column, default=None
        All counts of each cell, where ``data`` do not have all genes that the panel was made
        from. Without them totals are estimated from the genes on the panel, with a warning.
    memory_limit : int or str, default=None
        As in `fewer.data.open`.

    Returns
    -------
    Source
        For `Panel.score`, `Panel.reconstruct`, `Panel.predict`, `fewer.select`, and any estimator.

    Examples
    --------
    >>> import anndata, numpy as np
    >>> from fewer.anndata import open_cells
    >>> cells = anndata.AnnData(X=np.array([[1, 3], [5, 5]]))
    >>> open_cells(cells, target_sum=4).rows(slice(2)).expm1()
    tensor([[1., 3.],
            [2., 2.]])
    """
    cells = as_annotated(data)
    if like is not None and layer is None:
        made = like.settings.get(SETTINGS, {}).get("layer")
        layer = made if made in cells.layers else None
    data = cells.filename if isinstance(cells, CellFile) else cells
    source = open_any(data, layer=layer, memory_limit=memory_limit)
    if totals is not None:
        totals = _totals(cells, totals, source.shape[0])
    return in_units(source, like=like, counts=counts, target_sum=target_sum, totals=totals)


class CellFile:
    """What an .h5ad file says of its cells and genes; its matrices stay on disk.

    It has those members of an AnnData that are needed here. A backed AnnData would read all
    layers into memory.
    """

    isbacked, is_view = True, False

    def __init__(self, path: Path) -> None:
        self.filename = path
        with open_hdf5_file(path) as file:
            try:
                self.layers = list(file.get("layers", ()))
                read = import_optional("anndata").io.read_elem
                self.obs, self.var_names = read(file["obs"]), read(file["var"]).index
            except (KeyError, OSError, RuntimeError) as error:
                raise damaged(str(path), error) from error

    @property
    def shape(self) -> tuple[int, int]:
        """Cells and genes."""
        return len(self.obs), len(self.var_names)


def as_annotated(data: Any) -> Any:
    """An AnnData, or what is as good as one for a path."""
    if is_annotated(data) or isinstance(data, CellFile):
        return data
    if not isinstance(data, (str, os.PathLike)):
        raise TypeInputError(
            f"data are a {type(data).__name__}; give an AnnData or the path of an .h5ad file, or "
            "use fewer.select, which takes anything else"
        )
    path = Path(data).expanduser()
    if path.suffix.lower() != ".h5ad" or not path.is_file():
        why = "is not an .h5ad file" if path.is_file() else "is not there"
        raise InputError(f"{str(data)!r} {why}; give an AnnData or the path of an .h5ad file")
    return CellFile(path)


def obs_column(data: Any, name: str, what: str) -> np.ndarray:
    """A column of obs as an array; None where there is no value."""
    if name not in data.obs:
        have = join_names(list(data.obs), 12) or "no columns"
        raise InputError(f"{what}={name!r} is not in obs, which has {have}")
    column = data.obs[name]
    if column.dtype.kind in "biuf":
        return column.to_numpy()
    known = column.astype(object)
    return known.where(known.notna(), None).to_numpy()


def _totals(data: Any, totals: Any, n: int) -> np.ndarray:
    name = totals if isinstance(totals, str) else None
    found = obs_column(data, name, "totals") if name else np.asarray(totals)
    if found.shape != (n,) or found.dtype.kind not in "iuf" or not (found > 0).all():
        raise InputError(
            f"totals must be {n} numbers above 0, one for each cell; they have shape "
            f"{found.shape} and type {found.dtype}"
        )
    return found
