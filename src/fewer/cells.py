"""Cells as rows: which matrix of an AnnData is read, and in which units.

Counts become logarithms, the same way for a panel and for new cells.
"""

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from fewer._checks import check_choice, check_number, find_names, join_names
from fewer._optional import import_optional
from fewer.data import ColumnView, Source, moments, read_blocks
from fewer.data import open as open_any
from fewer.data.arrays import open_hdf5_file
from fewer.data.columns import match_columns
from fewer.data.counts import NormalizedCounts, counting_noise, looks_like_counts
from fewer.data.h5ad import is_annotated, known_values
from fewer.data.measured import Calibration, MeasuredCounts
from fewer.data.on_disk import damaged
from fewer.errors import InputError, TypeInputError, warn

SETTINGS = "cells"  # the key of a panel's settings with the units that it was made from
PLATFORM = {"counts": "log1p"}  # what a panel for a platform is made from
COUNTING = "counting"  # what the noise of a panel is, where it was estimated from counts


class GenePanel(Protocol):
    """What is needed of a panel to read cells in its units."""

    settings: dict[str, Any]
    reconstructor: Any

    @property
    def k(self) -> int: ...
    @property
    def d(self) -> int: ...
    @property
    def names(self) -> list[str] | None: ...
    @property
    def features(self) -> list[Any]: ...


def open_cells(
    data: Any,
    *,
    like: GenePanel | None = None,
    layer: str | None = None,
    counts: str = "auto",
    target_sum: float = 1e4,
    totals: Any = None,
    gene_symbols: str | None = None,
    memory_limit: int | str | None = None,
) -> Source:
    """Cells as rows of numbers that a panel can be made from, or that fit a panel.

    Nothing is made dense as a whole: sparse counts stay sparse, and files are read in blocks.

    Parameters
    ----------
    data : AnnData or path of an .h5ad file
        In memory or backed.
    like : Panel, default=None
        A panel from `select_genes`: give the genes that it was made from, in its units, as far as
        ``data`` have them; those on the panel are needed.
    layer : str, default=None
        Which layer to read; X if None. With ``like`` None is the layer that the panel was made
        from, where ``data`` have it.
    counts : {"auto", "log1p", "none"}, default="auto"
        "log1p": values are counts; divide them by the total of their cell, multiply by
        ``target_sum``, take log(1 + x). "none": take values as they are. "auto": "log1p" where
        all values that are looked at are whole numbers from 0 on, "none" elsewhere, with a
        warning where that is for a few values only. Nothing but 0 and 1 are counts only for a
        panel that was made from counts.
    target_sum : float, default=1e4
        What the counts of each cell sum to before the logarithm; that of ``like`` if given.
    totals : array of length n or name of an obs column, default=None
        All counts of each cell, where ``data`` do not have all genes that the panel was made
        from. Without them totals are estimated from the genes that they have, with a warning. A
        count that is missing (NaN) in some cells is not part of their totals, which are estimated
        from the other genes.
    gene_symbols : str, default=None
        A column of var with the names of the genes; the index of var if None. With ``like`` None
        is the column that the panel was made with, where ``data`` have it. Of genes with the
        same name, all but the first are called by name and index.
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
    names = gene_names(cells, gene_symbols, like)
    data = cells.filename if isinstance(cells, CellFile) else cells
    source = open_any(data, layer=layer, memory_limit=memory_limit)
    source.names = names
    if not source.shape[0]:
        raise InputError("the data have no cells; give at least one")
    if totals is not None:
        totals = _totals(cells, totals, source.shape[0])
    return in_units(source, like=like, counts=counts, target_sum=target_sum, totals=totals)


def cells_like(panel: GenePanel, data: Any) -> Any:
    """An AnnData, or the path of one, as a source in the units of a gene panel; else as given.

    A source is given in the panel's units, so one of raw counts is refused.
    """
    made = panel.settings.get(SETTINGS)
    if made is None and "platform" not in panel.settings:
        return data
    if isinstance(data, Source):
        if (made is None or made["counts"] == "log1p") and looks_like_counts(data):
            raise InputError(
                "these are raw counts, but the panel reads another unit; open them with "
                "fewer.anndata.open_cells(path, like=panel), or give the path itself"
            )
        return data
    if is_annotated(data):
        return open_cells(data, like=panel)
    path = os.fspath(data) if isinstance(data, (str, os.PathLike)) else ""
    if not str(path).lower().endswith(".h5ad"):
        return data
    if Path(path).expanduser().is_file():
        return open_cells(path, like=panel)
    return in_units(open_any(data), like=panel)  # an address, or nothing


class CellFile:
    """The members of an AnnData needed here; a backed one would read all layers into memory."""

    isbacked, is_view = True, False

    def __init__(self, path: Path) -> None:
        self.filename = path
        with open_hdf5_file(path) as file:
            try:
                self.layers = list(file.get("layers", ()))
                read = import_optional("anndata").io.read_elem
                self.obs, self.var = read(file["obs"]), read(file["var"])
            except (KeyError, OSError, RuntimeError) as error:
                raise damaged(str(path), error) from error

    @property
    def var_names(self) -> Any:
        """Names of the genes."""
        return self.var.index

    @property
    def shape(self) -> tuple[int, int]:
        """Cells and genes."""
        return len(self.obs), len(self.var_names)


def gene_names(cells: Any, column: str | None = None, like: GenePanel | None = None) -> list[str]:
    """Names of the genes: the index of var, or a column of it; see `open_cells`."""
    if column is None and like is not None:
        made = like.settings.get(SETTINGS, {}).get("gene_symbols")
        column = made if made in cells.var else None
    index = [str(name) for name in cells.var_names]
    if column is None:
        return index
    if column not in cells.var:
        have = join_names([str(name) for name in cells.var], 12) or "no columns"
        raise InputError(f"gene_symbols={column!r} is not in var, which has {have}")
    found: dict[str, None] = {}
    for name, own in zip(known_values(cells.var[column]), index, strict=True):
        label = own if name is None else str(name)
        found[f"{label} ({own})" if label in found else label] = None
    return list(found)


def as_annotated(data: Any) -> Any:
    """An AnnData as it is; for a path, a `CellFile`.

    Of a SpatialData its only table, of a MuData its modality "rna".
    """
    kind = type(data).__name__
    if kind in ("SpatialData", "MuData"):
        parts = dict(data.tables if kind == "SpatialData" else data.mod)
        name = next(iter(parts), None) if len(parts) == 1 else "rna"
        if name not in parts:
            where = "tables" if kind == "SpatialData" else "mod"
            have = join_names([str(each) for each in parts], 12) or "none"
            raise InputError(
                f"this {kind} has several parts to choose from, or none ({have}); give one of "
                f"them, as in data.{where}['name']"
            )
        data = parts[name]
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
    return column.to_numpy() if column.dtype.kind in "biuf" else known_values(column)


def _totals(data: Any, totals: Any, n: int) -> np.ndarray:
    name = totals if isinstance(totals, str) else None
    found = obs_column(data, name, "totals") if name else np.asarray(totals)
    if found.shape != (n,) or found.dtype.kind not in "iuf" or not (found > 0).all():
        raise InputError(
            f"totals must be {n} numbers above 0, one for each cell; they have shape "
            f"{found.shape} and type {found.dtype}"
        )
    return found


# -- units -------------------------------------------------------------------------------------


def in_units(
    source: Source,
    *,
    like: GenePanel | None = None,
    counts: str = "auto",
    target_sum: float = 1e4,
    totals: np.ndarray | None = None,
) -> Source:
    """Stored rows in the units that a panel is, or was, made from; see `open_cells`."""
    check_choice("counts", counts, ("auto", "log1p", "none"))
    check_number("target_sum", target_sum, above=0)
    if like is None:
        if not _are_counts(source, counts, None):
            return source
        return NormalizedCounts(source, target_sum, totals)
    if "platform" in like.settings:
        if not _are_counts(source, counts, PLATFORM):
            raise InputError("this panel is for measured counts, but these are not whole numbers")
        calibration = Calibration.restore(like.settings["platform"], like.k)
        return MeasuredCounts(_genes_of(source, like, only_panel=True), calibration)
    genes = _genes_of(source, like)
    made = like.settings.get(SETTINGS)
    if made is None or not _are_counts(source, counts, made):
        return genes  # a panel of fewer.select takes values as they are
    size, whole = made.get("target_sum", target_sum), genes.shape[1] == like.d
    shares = _shares(genes, like)
    if totals is None and not whole:
        if shares is None:
            totals = _estimated(genes, like, made)
        else:
            _warn_of_totals(genes, like, float(np.nansum(shares)))
    return NormalizedCounts(genes, size, totals, shares=shares, whole=whole)


def describe_units(source: Source) -> dict[str, Any]:
    """What the settings of a panel say about the values that it was, or will be, made from."""
    while isinstance(source, ColumnView):
        source = source.source
    if not isinstance(source, NormalizedCounts):
        return {"counts": "none", "units": "as in the data"}
    units = f"log(1 + counts per {source.target_sum:,.10g})"
    return {"counts": "log1p", "target_sum": source.target_sum, "units": units}


def record_units(panel: GenePanel, source: Source, **more: Any) -> None:
    """Record in a panel what it was made from: units, ``more``, and the genes' shares of counts."""
    found = describe_units(source)
    while isinstance(source, ColumnView):
        source = source.source
    at = {str(name): j for j, name in enumerate(source.names or ())}
    if isinstance(source, NormalizedCounts) and all(str(name) in at for name in panel.features):
        mean = moments(source.source).mean
        share = np.append(mean / mean.sum(), np.nan)
        shares = share[[at.get(str(name), -1) for name in panel.names or ()]]
        panel.reconstructor = replace(panel.reconstructor, shares=shares)
        found["panel_share"] = float(share[[at[str(name)] for name in panel.features]].sum())
    panel.settings[SETTINGS] = found | more


def noise_of(panel: GenePanel, rows: Source) -> np.ndarray | None:
    """Counting noise of the panel's genes in new cells, which may be read deeper or less deep.

    None for a panel whose noise is not that of counting, and where the new values are not counts,
    with a warning: what is then known is the noise of the cells that the panel was made from.
    """
    if panel.settings.get(SETTINGS, {}).get("noise") != COUNTING:
        return None
    cells, columns = rows, np.arange(panel.d)
    while isinstance(cells, ColumnView):
        columns = cells.columns[columns]
        cells = cells.source
    found = counting_noise(cells) if isinstance(cells, NormalizedCounts) else None
    if found is not None:
        return found[columns]
    warn(
        "these rows are not counts, so how much of their variance is counting noise is unknown: "
        "they are scored as if cells had as many counts as those that the panel was made from. "
        "Give raw counts, as an AnnData or an .h5ad file"
    )
    return None


def _are_counts(source: Source, counts: str, made: Mapping[str, Any] | None) -> bool:
    if counts != "auto":
        return counts == "log1p"
    found = looks_like_counts(source, binary=made is not None and made["counts"] == "log1p")
    if found and made is not None and made["counts"] == "none":
        raise InputError(
            "these values are counts, but the panel was made from values that were not; "
            "normalise them as those were, or open them with fewer.anndata.open_cells, which reads "
            "another layer=, or takes them as they are (counts='none')"
        )
    return found


def _genes_of(source: Source, panel: GenePanel, *, only_panel: bool = False) -> Source:
    """The genes that the panel was made from and the source has, among them those on the panel."""
    names, have = [str(name) for name in panel.names or ()], {*(source.names or ())}
    if not only_panel and all(name in have for name in names):
        return match_columns(source, names, panel.d, "the panel")
    on_panel = find_names(
        panel.features,
        source.names or (),
        "the data lack {} genes on the panel",
        "; add them, with NaN where they were not measured",
    )
    if only_panel:
        return ColumnView(source, np.array(on_panel))
    known = find_names([name for name in names if name in have], source.names or (), "{}")
    return ColumnView(source, np.array(known))


def _shares(genes: Source, panel: GenePanel) -> np.ndarray | None:
    """What share of all counts each of these genes had in the cells that the panel was made from.

    None for panels of earlier versions, which know that of the whole panel.
    """
    known: np.ndarray | None = panel.reconstructor.shares
    if known is None or panel.names is None or genes.shape[1] == panel.d:
        return known
    share = dict(zip(panel.names, known, strict=True))
    return np.array([share[name] for name in genes.names or ()])


def _warn_of_totals(genes: Source, panel: GenePanel, share: float) -> None:
    """Say that totals of cells are estimated from some genes, and from which."""
    had = f"they had {share:.1%} of all counts in the cells that the panel was made from"
    if genes.shape[1] == panel.k:
        warn(
            f"only the {panel.k} genes on the panel were measured, so the total of each cell is "
            f"estimated: {had}. Give totals= where they are known"
        )
        return
    have = {*(genes.names or ())}
    lacking = [name for name in panel.names or () if name not in have]
    warn(
        f"the data lack {len(lacking):,} of the {panel.d:,} genes that the panel was made from "
        f"({join_names(lacking)}), so the total of each cell is estimated from the others: {had}. "
        "Give totals= where they are known"
    )


def _estimated(genes: Source, panel: GenePanel, made: Mapping[str, Any]) -> np.ndarray:
    """Totals from the genes on a panel, of which only the fraction of all counts is known."""
    fraction = made.get("panel_share")
    if not fraction:
        raise InputError(
            "the cells lack genes that the panel was made from, so their totals are unknown; give "
            "totals= to fewer.anndata.open_cells or impute"
        )
    genes = ColumnView(genes, np.array(find_names(panel.features, genes.names or (), "{}")))
    _warn_of_totals(genes, panel, fraction)
    sums = [x.nansum(1).numpy() for _, x in read_blocks(genes)]
    return np.concatenate(sums) / fraction
