"""Choose genes of an AnnData, annotate it with them, and impute those not measured."""

import os
import shutil
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from functools import partial
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fewer import __version__
from fewer._checks import check_choice, check_suffix, find_names, join_names
from fewer._files import check_path, write_whole
from fewer._optional import import_optional
from fewer.anndata.large import select_in_stages
from fewer.anndata.likelihood import with_count_decoder
from fewer.anndata.platform import Platform, select_for_platform
from fewer.anndata.studies import Studies
from fewer.cells import (
    COUNTING,
    SETTINGS,
    as_annotated,
    describe_units,
    gene_names,
    obs_column,
    open_cells,
    record_units,
)
from fewer.data import ColumnView, Source, moments, read_blocks
from fewer.data.arrays import hdf5_to_write, open_hdf5_file
from fewer.data.counts import BatchCentered, NormalizedCounts, counting_noise
from fewer.data.h5ad import create_matrix, is_annotated
from fewer.errors import InputError, TypeInputError, warn
from fewer.panel import Panel
from fewer.report.summarise import gains_of
from fewer.selection import select
from fewer.train.training_data import check_weights

RECONSTRUCT = 0.8  # a few genes tell a type; its expression takes many
RESULT = "fewer"  # the layer that `impute` writes unless told otherwise
MOST_HELD_OUT = 10  # studies or batches that are held out one at a time


def select_genes(
    data: Any,
    k: int | None = None,
    *,
    layer: str | None = None,
    groupby: str | None = None,
    batch_key: str | None = None,
    genes: str = "shared",
    study_weights: Any = None,
    cell_type_key: str | None = None,
    cell_weights: Any = None,
    weights: Any = None,
    likelihood: str | None = None,
    platform: Platform | None = None,
    include: Any = (),
    exclude: Any = (),
    counts: str = "auto",
    target_sum: float = 1e4,
    gene_symbols: str | None = None,
    scale: str = "none",
    noise: Any = "auto",
    random_state: Any = None,
    inplace: bool = True,
    key_added: str = "fewer",
    memory_limit: int | str | None = None,
    **options: Any,
) -> Panel:
    """Choose the genes from which the others are best reconstructed.

    Raw counts are detected automatically and become log(1 + counts per 10,000) as they are read;
    sparse matrices stay sparse and files stay on disk. `impute` does the same to new cells.

    Parameters
    ----------
    data : AnnData or path of an .h5ad file, or several
        In memory, backed, or with a matrix in Dask, dense or sparse, whose rows stay in the
        cluster. A path is only read. A list, or a mapping from names, is of several
        studies: each is normalised by its own totals, study means are subtracted as those of
        batches are, and whole studies are held out, one at a time if there are no more than 10.
    k : int, default=None
        How many genes; None with ``costs`` and ``budget`` spends the budget.
    layer, counts, target_sum, gene_symbols, memory_limit
        As in `open_cells`.
    groupby : str, default=None
        A column of obs, such as cell types. One panel for both: to tell its groups apart, rare ones
        counting as much as others (``panel.predict`` names the group of a cell;
        ``panel.target.held_out`` is the accuracy), and to reconstruct all genes, which counts
        ``reconstruct=0.8``; 0 is nothing. From counts, further genes for a group that the panel
        already separates well are worth little. A column of fractions is predicted as a number,
        with a warning.
    batch_key : str, default=None
        A column of obs. Batch means are subtracted before choosing, so that no gene is chosen for
        batch effects; and whole batches are held out, so that the score is that of an unseen
        batch. Scores are of the variance within batches. New cells need no batch. Of several
        studies, such as donors: the batches of all of them.
    genes : {"shared", "all"}, default="shared"
        Of several studies: the genes that all have, or all genes, where a gene that a study lacks
        counts as missing in its cells.
    study_weights : "equal" or mapping from name of study to weight, default=None
        How much each cell of a study counts in choice, decoder and score; "equal" gives all
        studies the same total weight. By default all cells count the same.
    cell_type_key : str, default=None
        A column of obs whose groups all count the same, however few cells they have: a type with
        50 cells as much as one with 5,000. Also of a numeric column, whose values are labels.
    cell_weights : array of length n, or name of an obs column, default=None
        How much each cell counts in choice, decoder and score; at least 0. Several weights of a
        cell are multiplied. They are in the covariance, so that the search stays exact. Cells
        cannot be weighted together with ``likelihood`` or ``platform``.
    weights : mapping, array or name of a var column, default=None
        How much the error of each gene counts: ``{"RP*": 0, "CD8A": 5}`` by name or pattern, 1
        for the others.
    likelihood : {"poisson", "nb"}, default=None
        Decode by Poisson or negative-binomial regression of the counts on the genes that a linear
        decoder chooses, instead of least squares on logarithms. Reconstructions keep their units:
        ``np.expm1`` of them are expected counts per ``target_sum``. ``panel.settings["counts"]``
        has the explained deviance and the median correlation of genes in held-out cells.
        ``panel.held_out`` is the explained variance of logarithms by this decoder; that by least
        squares, ``panel.settings["counts"]["linear_held_out"]``, is usually higher, since a
        logarithm of expected counts is more than an expected logarithm.
    platform : Platform, default=None
        The instrument that the panel is for, ``Platform(efficiency=0.2, lost=5)``: genes are
        chosen, and the decoder is fitted, for what it would measure of these cells. `impute` and
        `open_cells` then take raw counts of the panel, of any depth; what panel genes would read
        in full is estimated, too. Not with ``groupby``, batches or several studies.
    include, exclude : lists of genes, default=()
        Genes that must be on the panel, and genes that must not be, such as
        ``adata.var_names[adata.var_names.str.startswith("MT-")]``.
    scale : {"none", "standard"}, default="none"
        "none": genes count by their variance, so that faint ones, whose values are mostly noise,
        count little. "standard": every gene counts the same.
    noise : "auto", None or as in `fewer.select`, default="auto"
        "auto": counts are judged by the expression behind them. How much of the variance of each
        gene is counting noise follows from random halves of the counts; genes are not chosen for
        reproducing their own noise, `impute` denoises them, too, and scores are of the expression
        (``panel.settings["protocol"]`` says so: "against the signal"). Of more than 5,000 genes,
        of several studies, where counts are missing (with a warning), with a ``k`` that is not a
        number (such as "auto"), and with ``likelihood``, ``platform``, ``robust_to``, another
        ``loss`` or a network, all is of what is measured. None: as measured.
    inplace : bool, default=True
        Whether to `annotate` the AnnData.
    key_added : str, default="fewer"
        Prefix of the names of annotations.
    random_state : int, RandomState or None, default=None
        Makes the result reproducible.
    **options
        As in `fewer.select`: decoder (linear by default), costs, budget, groups, strategies,
        time_limit, ...

    Returns
    -------
    Panel
        ``panel.settings["cells"]`` holds its units.

    Notes
    -----
    Genes chosen for reconstruction often tell groups apart as well as those chosen by ``groupby``:
    on 700 blood cells of ten types neither was better (``benchmarks/single_cell.py``).

    Examples
    --------
    >>> import anndata, numpy as np
    >>> from fewer.anndata import impute, select_genes
    >>> rng = np.random.default_rng(0)
    >>> programs = rng.gamma(1.0, size=(300, 2)) @ rng.gamma(1.0, size=(2, 12))
    >>> cells = anndata.AnnData(X=rng.poisson(10 * programs).astype(np.float32))
    >>> panel = select_genes(cells, 3, random_state=0)
    >>> panel.settings["cells"]["units"]
    'log(1 + counts per 10,000)'
    >>> cells.var["fewer_selected"].sum(), sorted(cells.var["fewer_rank"].dropna())
    (np.int64(3), [1.0, 2.0, 3.0])
    >>> impute(cells, panel).layers["fewer"].shape
    (300, 12)
    """
    renamed = {"target": "groupby", "row_groups": "batch_key", "sample_weight": "cell_weights"}
    for name, instead in renamed.items():
        if name in options:
            raise InputError(f"{name}= is called {instead}= here, and names a column of obs")
    _check_names(options)
    reading: dict[str, Any] = {
        "layer": layer,
        "counts": counts,
        "target_sum": target_sum,
        "gene_symbols": gene_symbols,
        "memory_limit": memory_limit,
    }
    cells: Any
    if isinstance(data, (list, tuple, Mapping)):
        cells = Studies(data, genes)
        source, batches = cells.open(**reading), cells.labels(batch_key)
        rows: Source = BatchCentered(source, batches)
        if len(set(batches)) <= MOST_HELD_OUT:
            options.setdefault("validation", len(set(batches)))  # each is held out once
        if likelihood is not None:
            raise InputError("likelihood is for a single study; give one, or leave it out")
    else:
        cells = as_annotated(data)
        source = rows = open_cells(cells, **reading)
        batches = None if batch_key is None else _batches(cells, batch_key)
        rows = source if batches is None else BatchCentered(source, batches)
        if study_weights is not None:
            raise InputError("study_weights are for several studies; give a list of them")
    parts = cells.parts if isinstance(cells, Studies) else {"AnnData": cells}
    sources = cells.sources if isinstance(cells, Studies) else [source]
    source.description = f"{_said(cells)}, {describe_units(sources[0])['units']}"
    options["sample_weight"] = _cell_weights(cells, study_weights, cell_type_key, cell_weights)
    if options["sample_weight"] is not None and (likelihood or platform) is not None:
        raise InputError("cells cannot be weighted together with likelihood or platform")
    groups = None if groupby is None else _groups(cells, groupby)
    if groupby is not None:
        options = {"reconstruct": RECONSTRUCT, "strategies": ["search"]} | options
    options |= {"decoder": "linear"} if options.get("decoder", "auto") == "auto" else {}
    choose = select_in_stages if platform is None else partial(_for_platform, platform)
    panel = choose(
        rows,
        k,
        target=groups,
        row_groups=batches,
        include=include.to_list() if hasattr(include, "to_list") else include,
        exclude=exclude.to_list() if hasattr(exclude, "to_list") else exclude,
        weights=_gene_weights(parts, weights, source, gene_symbols),
        scale=scale,
        noise=_noise(source, noise, k, options | {"other": likelihood or platform}),
        random_state=random_state,
        **options,
    )
    if likelihood is not None:
        panel = with_count_decoder(
            panel,
            source,
            likelihood,
            int(panel.settings["seed"]),
            validation=options.get("validation"),
            batches=batches,
        )
    counted = isinstance(noise, str) and panel.reconstructor.noise is not None
    asked: dict[str, Any] = {
        "layer": layer,
        "groupby": groupby,
        "batch_key": batch_key,
        "cell_type_key": cell_type_key,
        "gene_symbols": gene_symbols,
        "studies": cells.described if isinstance(cells, Studies) else None,
        "noise": COUNTING if counted else None,
    }
    whole = [one for one in sources if {*panel.features} <= {*(one.names or ())}]
    known = {name: value for name, value in asked.items() if value is not None}
    record_units(panel, (whole or sources)[0], **known)
    for part in parts.values() if inplace else ():
        if is_annotated(part) and {*panel.features} <= {*gene_names(part, gene_symbols)}:
            annotate(part, panel, key_added=key_added)
    return panel


def _check_names(options: dict[str, Any]) -> None:
    """Refuse options that neither `select_genes` nor `fewer.select` has."""
    own = [name for name in signature(select_genes).parameters if name != "options"]
    known = [*own, *signature(select).parameters]
    for name in options:
        if name not in known:
            close = get_close_matches(name, known, 1)
            hint = f"; did you mean {close[0]}=?" if close else ""
            raise TypeInputError(f"select_genes has no option {name}={hint}")


def _noise(source: Source, noise: Any, k: Any, options: dict[str, Any]) -> Any:
    """What select is told of the noise: of counts, that of counting, where it can be used."""
    if not isinstance(noise, str):
        return noise
    check_choice("noise", noise, ("auto",))
    linear = options.get("decoder", "linear") == "linear"
    usable = (
        linear and not options.get("robust_to") and (k is None or isinstance(k, (int, np.integer)))
    )
    usable = usable and options["other"] is None and options.get("loss", "mse") == "mse"
    if not usable or not isinstance(source, NormalizedCounts):
        return None
    if moments(source.source).has_missing:
        warn(
            "some counts are missing (NaN), so all is as measured: counting noise is taken into "
            "account only where cells are complete. Fill missing counts in, leave out cells or "
            "genes that have any, or say noise=None"
        )
        return None
    return counting_noise(source)


def annotate(data: Any, panel: Panel, *, key_added: str = "fewer") -> None:
    """Write a panel into an AnnData: which genes, their rank and gain, how it was made.

    Everything can be written to an .h5ad file. A panel that was made elsewhere, or loaded, can be
    written too, where the genes have the same names.

    Parameters
    ----------
    data : AnnData
        Gets ``var["fewer_selected"]``; ``var["fewer_rank"]``, 1 for the most useful gene, and
        ``var["fewer_gain"]``, the fraction of the variance that each adds to those before it,
        NaN for other genes; and ``uns["fewer"]``, whose "gain" says of what the variance is: of a
        panel with ``groupby``, of the groups and of all genes, by their weights.
    panel : Panel
        The panel.
    key_added : str, default="fewer"
        Prefix of these names.

    Examples
    --------
    >>> import anndata, numpy as np
    >>> from fewer.anndata import annotate, select_genes
    >>> cells = anndata.AnnData(X=np.random.default_rng(0).normal(size=(50, 4)))
    >>> panel = select_genes(cells, 2, validation=0.2, inplace=False, random_state=0)
    >>> annotate(cells, panel, key_added="small")
    >>> list(cells.var), cells.uns["small"]["k"]
    (['small_selected', 'small_rank', 'small_gain'], 2)
    """
    names = gene_names(data, like=panel)
    found = find_names(panel.features, names, "the AnnData lacks {} genes of the panel")
    genes, n = np.array(found), data.n_vars
    selected, rank, gain = np.zeros(n, dtype=bool), np.full(n, np.nan), np.full(n, np.nan)
    selected[genes] = True
    known = panel.evidence
    if known is not None:
        ranked = genes[np.searchsorted(panel.indices, known.order)]
        rank[ranked], gain[ranked] = np.arange(1, panel.k + 1), known.gains
    data.var[f"{key_added}_selected"] = selected
    data.var[f"{key_added}_rank"] = rank
    data.var[f"{key_added}_gain"] = gain
    data.uns[key_added] = description(panel)


def description(panel: Panel) -> dict[str, Any]:
    """What ``uns`` holds about a panel: plain text, numbers and arrays."""
    found: dict[str, Any] = {
        "features": np.array([str(name) for name in panel.features], dtype=object),
        "k": panel.k,
        "held_out": float(panel.held_out),
        "gain": gains_of(panel),
        "winner": str(panel.settings.get("winner", "")),
        "seed": int(panel.settings.get("seed", 0)),
        "version": __version__,
    }
    if panel.target is not None:
        found["held_out_groups"] = float(panel.target.held_out)
    return found | dict(panel.settings.get(SETTINGS, {}))


def _for_platform(platform: Platform, rows: Source, k: int | None, **options: Any) -> Panel:
    if options.pop("row_groups", None) is not None:
        raise InputError("platform cannot be combined with batches or several studies")
    return select_for_platform(rows, k, platform, **options)


def _said(cells: Any) -> str:
    """What the cells are from, for reports."""
    if isinstance(cells, Studies):
        return f"{len(cells.parts)} studies"
    return "AnnData" if is_annotated(cells) else str(cells.filename.name)


def _batches(data: Any, name: str) -> NDArray:
    labels = _labels(data, name, "batch_key", "batch")
    if len(set(labels)) < 2:
        raise InputError(f"batch_key={name!r} has one batch only, {str(labels[0])!r}; leave it out")
    return labels


def _cell_weights(
    cells: Any, study_weights: Any, cell_type_key: str | None, cell_weights: Any
) -> NDArray[np.float64] | None:
    """The weight of each cell, or None where all count the same."""
    found = np.ones(cells.shape[0])
    if cell_weights is not None:
        given = cell_weights
        if isinstance(given, str):
            given = obs_column(cells, given, "cell_weights")
        found = found * check_weights(given, len(found), "cell_weights")
    if study_weights is not None:
        found *= cells.weights(study_weights)
    if cell_type_key is not None:
        labels = _labels(cells, cell_type_key, "cell_type_key", "type")
        kinds, kind = np.unique(labels, return_inverse=True)
        if 2 * len(kinds) > len(found):
            raise InputError(
                f"cell_type_key={cell_type_key!r} has {len(kinds)} values in {len(found)} cells, "
                "so it is not a type; name a column of labels"
            )
        total = np.bincount(kind, weights=found)
        if len(kinds) < 2 or not total.all():
            why = "has one group only" if len(kinds) < 2 else "has a group whose cells weigh 0"
            raise InputError(f"cell_type_key={cell_type_key!r} {why}; leave it out or fix it")
        found /= total[kind]
    return None if np.ptp(found) == 0 else found


def _gene_weights(
    parts: Mapping[str, Any], name: Any, source: Source, gene_symbols: str | None
) -> Any:
    """Weights as given; of a column of var, those of the first study that has the gene."""
    if not isinstance(name, str):
        return name
    known: dict[str, float] = {}
    for part in parts.values():
        if name not in part.var:
            have = join_names([str(each) for each in part.var], 12) or "no columns"
            raise InputError(f"weights={name!r} is not in var, which has {have}")
        values = part.var[name].to_numpy()
        if values.dtype.kind not in "biuf":
            raise InputError(f"weights={name!r} is a column of {values.dtype}, not of numbers")
        for gene, value in zip(gene_names(part, gene_symbols), values, strict=True):
            known.setdefault(gene, float(value))
    return np.array([known[str(gene)] for gene in source.names or ()])


def _labels(data: Any, name: str, option: str, what: str) -> NDArray:
    found = obs_column(data, name, option)
    if any(value is None or value != value for value in found.tolist()):  # noqa: PLR0124 (NaN)
        raise InputError(f"{option}={name!r}: some cells have no {what}; drop them or name one")
    return np.array([str(value) for value in found])


def _groups(data: Any, name: str) -> Any:
    found = obs_column(data, name, "groupby")
    if found.dtype.kind == "f":
        warn(
            f"groupby={name!r} is a column of numbers, so its values are predicted, not groups; "
            f"for groups, make it text: adata.obs[{name!r}].astype(str)"
        )
    if found.dtype.kind != "O":
        return found
    missing = sum(value is None for value in found)
    if missing:
        raise InputError(
            f"groupby={name!r}: {missing} cells have no group; give those that have, as in "
            f"adata[adata.obs[{name!r}].notna()]"
        )
    return [str(value) for value in found]


# -- imputation --------------------------------------------------------------------------------


def impute(
    data: Any,
    panel: Panel,
    *,
    layer: str = RESULT,
    measured_layer: str | None = None,
    counts: str = "auto",
    totals: Any = None,
    denoise: bool = True,
    out: str | os.PathLike[str] | None = None,
    memory_limit: int | str | None = None,
) -> Any:
    """Reconstruct all genes of cells from those on a panel.

    Values are in the units of the panel (``panel.settings["cells"]["units"]``): counts are
    normalised as those were that it was made from. Of a panel from counts, they are expected
    expression, of the genes on the panel, too; others keep the measured values of these.

    Parameters
    ----------
    data : AnnData or path of an .h5ad file
        Cells. Where they have all genes that the panel was made from, the result is a new layer
        of them. Where they have only some, the genes on the panel among them, it is a new
        AnnData with all genes, and the same obs, obsm, obsp and uns.
    panel : Panel
        From `select_genes`, or `Panel.load`.
    layer : str, default="fewer"
        Name of the layer with the result; there must be none of this name but the default.
    measured_layer : str, default=None
        Layer with the measured values; None is that which the panel was made from, where
        ``data`` have it, and X elsewhere.
    counts, totals, memory_limit
        As in `open_cells`.
    denoise : bool, default=True
        Whether genes on a panel from counts are replaced by their expected expression; False
        keeps what was measured.
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
    on_panel = find_names(panel.features, source.names or (), "the data lack {} genes on the panel")
    measured = ColumnView(source, panel.indices if whole else np.array(on_panel))
    measured.row_width = max(measured.row_width, panel.d)  # of what comes out of each block
    if not whole:
        if path is None:
            found = _new_object(cells, panel)
            found.X = _dense(panel, measured, denoise)
            return found
        return _file_of_all_genes(cells, path, panel, measured, denoise)
    columns = find_names(
        gene_names(cells, like=panel),
        panel.names,
        "the panel does not know {} genes of the AnnData",
        "; give those that it was made from, as in adata[:, panel.names].copy()",
    )
    if layer == measured_layer or layer == panel.settings.get(SETTINGS, {}).get("layer"):
        raise InputError(f"layer={layer!r} holds the measured values; give the result another name")
    if layer != RESULT and layer in cells.layers:
        raise InputError(f"there is a layer={layer!r}; give the result another name, or delete it")
    if path is None:
        cells.layers[layer] = _dense(panel, measured, denoise)[:, columns]
        return cells
    return _file_with_layer(cells, path, layer, panel, measured, columns, denoise)


def _blocks(panel: Panel, measured: Source, denoise: bool) -> Iterator[tuple[slice, NDArray]]:
    """All genes, some cells at a time; what was measured stays as it is, or is denoised."""
    for rows, x in read_blocks(measured):
        yield rows, panel.reconstructor.decode(x.numpy(), denoise=denoise)


def _dense(panel: Panel, measured: Source, denoise: bool) -> NDArray[np.float32]:
    found = np.empty((measured.shape[0], panel.d), dtype=np.float32)
    for rows, values in _blocks(panel, measured, denoise):
        found[rows] = values
    return found


def _new_object(cells: Any, panel: Panel) -> Any:
    """All genes of a panel, and what is known of the cells; the values are still to come."""
    anndata, pandas = import_optional("anndata"), import_optional("pandas")
    # text as Python's own objects, which every version of anndata can write
    names = pandas.Index(np.array(panel.names, dtype=object), dtype=object)
    selected = np.isin(np.arange(panel.d), panel.indices)
    return anndata.AnnData(
        obs=cells.obs.copy(),
        var=pandas.DataFrame({"fewer_selected": selected}, index=names),
        obsm=_of_cells(cells, "obsm"),
        obsp=_of_cells(cells, "obsp"),
        uns=_of_cells(cells, "uns") | {"fewer": description(panel)},
    )


def _of_cells(cells: Any, part: str) -> dict[str, Any]:
    """What obsm, obsp or uns hold."""
    if is_annotated(cells):
        found = getattr(cells, part)
        return {name: found[name] for name in found}
    with open_hdf5_file(cells.filename) as file:
        read = import_optional("anndata").io.read_elem
        return dict(read(file[part])) if part in file else {}


def _file_of_all_genes(
    cells: Any, path: Path, panel: Panel, measured: Source, denoise: bool
) -> Path:
    """The new object, with its values written block by block."""

    def write(draft: Path) -> None:
        found = _new_object(cells, panel)
        with hdf5_to_write(draft) as (file, _):
            import_optional("anndata.io").write_elem(file, "/", found)
        with hdf5_to_write(draft, "r+") as (file, check):
            if "X" in file:
                del file["X"]
            matrix = create_matrix(file, "X", found.shape, np.float32)
            for rows, values in _blocks(panel, measured, denoise):
                matrix[rows] = values
                check()

    return write_whole(path, write)


def _file_with_layer(
    cells: Any,
    path: Path,
    layer: str,
    panel: Panel,
    measured: Source,
    columns: list[int],
    denoise: bool,
) -> Path:
    """All that the cells hold, and the result as a layer beside it."""

    def write(draft: Path) -> None:
        if cells.isbacked:
            shutil.copyfile(cells.filename, draft)
        else:
            with hdf5_to_write(draft) as (file, _):
                import_optional("anndata.io").write_elem(file, "/", cells)
        with hdf5_to_write(draft, "r+") as (file, check):
            layers = file.require_group("layers")
            layers.attrs.update({"encoding-type": "dict", "encoding-version": "0.1.0"})
            if layer in layers:
                del layers[layer]
            matrix = create_matrix(layers, layer, cells.shape, np.float32)
            for rows, values in _blocks(panel, measured, denoise):
                matrix[rows] = values[:, columns]
                check()

    return write_whole(path, write)
