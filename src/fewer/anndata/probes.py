"""What can be probed: limits of a spatial assay as constraints of a panel, and its gene list."""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fewer._checks import check_number, check_suffix, find_names, join_names
from fewer._files import write_whole
from fewer._optional import import_optional
from fewer.cells import as_annotated, gene_names, obs_column, open_cells
from fewer.data import read_blocks
from fewer.data.counts import FEW_FRACTIONS
from fewer.errors import InputError, warn
from fewer.panel import Panel

__all__ = ["probe_limits", "write_gene_list"]

CROWDING = "crowding"


def probe_limits(
    data: Any,
    *,
    markers: Mapping[str, Iterable[str]] | None = None,
    at_least: Mapping[str, int] | int | None = None,
    similar: Any = None,
    least_mean: float = 0.0,
    most_mean: float = np.inf,
    most_counts: float = np.inf,
    detection: float = 0.0,
    crowding: float | None = None,
    groupby: str | None = None,
    probes: Any = None,
    least_probes: float = 1.0,
    costs: Any = None,
    budget: float | None = None,
    exclude: Iterable[str] = (),
    layer: str | None = None,
    gene_symbols: str | None = None,
) -> dict[str, Any]:
    """Turn the limits of an assay into options of `select_genes`.

    A panel obeys them exactly, or is refused with the ones that contradict each other. Expression
    is measured on raw counts, in one pass, of genes that no other limit excludes.

    Parameters
    ----------
    data : AnnData or path of an .h5ad file
        Raw counts, in X or ``layer``.
    markers : mapping from cell type to genes, default=None
        Known markers. Those that the data lack are left out, with a warning.
    at_least : mapping from cell type to int, or int for every type, default=None
        How many markers of a type must be on the panel: ``{"CD8 T": 2}``.
    similar : str, list of lists, or path, default=None
        Paralogues and genes whose probes would bind each other's transcripts: at most one of each
        family is chosen. A column of var, lists of genes, or a file with gene and family.
    least_mean, most_mean : float
        Genes whose mean count per cell is outside are excluded.
    most_counts : float
        Genes with more counts than this in any cell are excluded.
    detection : float, default=0.0
        Genes that fewer than this fraction of the cells express are excluded.
    crowding : float, default=None
        Most counts per cell that the genes of the panel have together, on average: spots that
        overlap cannot be told apart. It becomes a cost with a budget.
    groupby : str, default=None
        A column of obs: ``crowding`` holds in each of its groups, not only on average.
    probes : str, path or mapping, default=None
        How many probes (or which score) each gene can have: a column of var, or a file or mapping
        of gene and number.
    least_probes : float, default=1.0
        Genes with fewer ``probes``, or without a number, are excluded.
    costs, budget : str, path or mapping; float
        Cost of each gene, in the same forms, and the most that the panel may cost. Genes without
        a cost are excluded.
    exclude : list of genes, default=()
        Further genes that must not be chosen.
    layer : str, default=None
        Which layer holds the counts; X if None.
    gene_symbols : str, default=None
        A column of var with the names of the genes, as in `open_cells`.

    Returns
    -------
    dict
        Options for `select_genes` and `fewer.select`: ``exclude``, ``sets``, ``at_least``,
        ``at_most``, ``costs`` and ``budget``, as far as they are needed.

    Examples
    --------
    >>> import anndata, numpy as np
    >>> from fewer.anndata import probe_limits, select_genes
    >>> counts = np.random.default_rng(0).poisson(np.linspace(0.01, 5, 20), size=(200, 20))
    >>> cells = anndata.AnnData(X=counts.astype(np.float32))
    >>> cells.var_names = [f"g{j}" for j in range(20)]
    >>> limits = probe_limits(cells, detection=0.5, crowding=9, similar=[["g15", "g16", "g17"]])
    >>> limits["exclude"]
    ['g0', 'g1', 'g2']
    >>> panel = select_genes(cells, 3, validation=0.2, random_state=0, **limits)
    >>> bool(counts[:, panel.indices].sum(1).mean() <= 9)
    True
    """
    cells = as_annotated(data)
    names = gene_names(cells, gene_symbols)
    if isinstance(exclude, str):
        raise InputError(f"exclude={exclude!r} is text; give a list of genes, [{exclude!r}]")
    excluded = [str(name) for name in exclude]
    strangers = [name for name in excluded if name not in names]
    if strangers:
        raise InputError(f"exclude has genes that the data lack: {join_names(strangers)}")
    fits = ~np.isin(names, excluded)
    options: dict[str, Any] = {}
    if probes is not None:
        check_number("least_probes", least_probes)
        fits &= _per_gene(cells, names, probes, "probes") >= least_probes
    price = None
    if costs is not None:
        price = _per_gene(cells, names, costs, "costs")
        fits &= np.isfinite(price)  # what has no price cannot be ordered
    bounds = {"least_mean": least_mean, "most_mean": most_mean, "most_counts": most_counts}
    for name, value in (bounds | {"detection": detection}).items():
        check_number(name, value if np.isfinite(value) else 0.0)
    known, unbounded = None, {"least_mean": 0.0, "most_mean": np.inf, "most_counts": np.inf}
    if crowding is not None or detection or bounds != unbounded:
        known = _expression(cells, layer, groupby)
        fits &= (known.mean >= least_mean) & (known.mean <= most_mean)
        fits &= (known.most <= most_counts) & (known.detected >= detection)
    if not fits.any():
        raise InputError("these limits leave no gene that can be probed; relax one of them")
    options["exclude"] = [name for name, good in zip(names, fits, strict=True) if not good]
    options |= _sets(cells, names, markers, at_least, similar)
    budgets: dict[str, tuple[NDArray[np.float64], float]] = {}
    if price is not None:
        if budget is None:
            raise InputError("costs need budget=, the most that the panel may cost")
        budgets["costs"] = np.where(np.isfinite(price), price, 0.0), budget
    if crowding is not None and known is not None:
        check_number("crowding", crowding, above=0)
        budgets |= {name: (mean, crowding) for name, mean in known.by_group.items()}
    if budgets:
        options["costs"] = {name: cost for name, (cost, _) in budgets.items()}
        options["budget"] = {name: most for name, (_, most) in budgets.items()}
    return options


def _sets(
    cells: Any, names: list[str], markers: Any, at_least: Any, similar: Any
) -> dict[str, Any]:
    """Markers of which at least so many, and families of which at most one gene is chosen."""
    have, sets, most = set(names), {}, {}
    least: dict[str, int] = {}
    if markers is not None and at_least is None:
        raise InputError(
            "markers need at_least=, how many of each cell type must be on the panel, such as 1"
        )
    if at_least is not None:
        if markers is None:
            raise InputError(f"at_least={at_least!r} needs markers=, the genes of each cell type")
        asked = at_least if isinstance(at_least, Mapping) else dict.fromkeys(markers, at_least)
        for kind, count in asked.items():
            if kind not in markers:
                raise InputError(
                    f"at_least has {kind!r}, but markers are of {join_names(list(markers), 12)}"
                )
            if isinstance(markers[kind], str):
                raise InputError(
                    f"markers of {kind!r} are text, {markers[kind]!r}; give a list of genes"
                )
            genes = [str(gene) for gene in markers[kind]]
            lacking = [gene for gene in genes if gene not in have]
            if lacking:
                warn(f"the data lack {join_names(lacking)}, markers of {kind}: left out")
            sets[str(kind)] = [gene for gene in genes if gene in have]
            least[str(kind)] = count
    for number, genes in enumerate(_families(cells, names, similar)):
        own = [gene for gene in dict.fromkeys(genes) if gene in have]
        if len(own) > 1:
            name = f"similar {number + 1}: {own[0]}, ..."
            sets[name], most[name] = own, 1
    found = {"sets": sets, "at_least": least, "at_most": most}
    return {name: value for name, value in found.items() if value}


def _families(cells: Any, names: list[str], similar: Any) -> list[list[str]]:
    if similar is None:
        return []
    if not isinstance(similar, (str, os.PathLike)):
        families = list(similar)
        for family in families:
            if isinstance(family, str):
                raise InputError(
                    f"similar has {family!r}, which is no list; give a list of lists of genes, "
                    "one for each family"
                )
        return [[str(gene) for gene in family] for family in families]
    table: dict[str, list[str]] = {}
    for gene, family in _column(cells, names, similar, "similar").items():
        if family is not None and family == family:  # noqa: PLR0124 (NaN)
            table.setdefault(str(family), []).append(gene)
    return list(table.values())


def _per_gene(cells: Any, names: list[str], given: Any, what: str) -> NDArray[np.float64]:
    """A number for each gene; NaN where there is none."""
    pandas = import_optional("pandas")
    named = isinstance(given, (str, os.PathLike))
    table = _column(cells, names, given, what) if named else {str(g): v for g, v in given.items()}
    values = [table.get(name, np.nan) for name in names]
    try:
        return pandas.to_numeric(pandas.Series(values, dtype=object)).to_numpy(np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"{what}={given!r} has values that are not numbers ({error})") from error


def _column(cells: Any, names: list[str], given: Any, what: str) -> dict[str, Any]:
    """A column of var, or a file of two columns, as a dictionary from gene to value."""
    if isinstance(given, str) and given in cells.var:
        return dict(zip(names, cells.var[given].tolist(), strict=True))
    if not os.path.isfile(given):
        have = join_names([str(name) for name in cells.var], 12) or "no columns"
        raise InputError(f"{what}={str(given)!r} is neither a file nor in var, which has {have}")
    table = import_optional("pandas").read_csv(given, sep=None, engine="python")
    if table.shape[1] != 2:
        raise InputError(f"{what}={str(given)!r} has {table.shape[1]} columns; give gene and value")
    return dict(zip(table.iloc[:, 0].astype(str), table.iloc[:, 1].tolist(), strict=True))


@dataclass(frozen=True, eq=False)
class _Expression:
    """Counts of each gene: mean, largest, fraction of cells that have any, and mean by group."""

    mean: NDArray[np.float64]
    most: NDArray[np.float64]
    detected: NDArray[np.float64]
    by_group: dict[str, NDArray[np.float64]]


def _expression(cells: Any, layer: str | None, groupby: str | None) -> _Expression:
    source = open_cells(cells, layer=layer, counts="none")
    n, d = source.shape
    labels = np.full(n, CROWDING)
    if groupby is not None:
        labels = np.array([f"{CROWDING}: {kind}" for kind in obs_column(cells, groupby, "groupby")])
    kinds, code = np.unique(labels, return_inverse=True)
    sums, most, detected = np.zeros((len(kinds), d)), np.zeros(d), np.zeros(d)
    fractions = seen = 0
    for rows, block in read_blocks(source):
        x = block.numpy()
        fractions += int((x != np.rint(x)).sum())
        seen += int((x != 0).sum())
        if not np.isfinite(x).all() or x.min() < 0 or fractions > FEW_FRACTIONS * seen:
            raise InputError("limits of expression need raw counts; name their layer with layer=")
        np.maximum(most, x.max(axis=0), out=most)
        detected += (x > 0).sum(axis=0)
        one = code[rows]
        for kind in np.unique(one):
            sums[kind] += x[one == kind].sum(axis=0, dtype=np.float64)
    cells_of = np.bincount(code, minlength=len(kinds))
    means = dict(zip(map(str, kinds), sums / cells_of[:, None], strict=True))
    return _Expression(sums.sum(axis=0) / n, most, detected / n, means)


def write_gene_list(
    panel: Panel,
    path: str | os.PathLike[str],
    *,
    data: Any = None,
    ids: str | None = None,
    columns: Sequence[str] = (),
) -> Path:
    """Write the genes of a panel as a CSV file to order probes from, most useful first.

    The design portals of Xenium, MERSCOPE and CosMx start from a list of gene symbols or Ensembl
    ids; copy or rename the columns as theirs asks.

    Parameters
    ----------
    panel : Panel
        From `select_genes`.
    path : path
        A .csv file: gene, id, rank, gain, and ``columns``.
    data : AnnData or path of an .h5ad file, default=None
        Where ``ids`` and ``columns`` are from.
    ids : str, default=None
        The column of var with Ensembl ids; the index of var if None.
    columns : list of str, default=()
        Further columns of var.

    Returns
    -------
    Path

    Examples
    --------
    >>> import anndata, numpy as np, tempfile
    >>> from fewer.anndata import select_genes, write_gene_list
    >>> cells = anndata.AnnData(X=np.random.default_rng(0).normal(size=(50, 4)))
    >>> cells.var["gene_ids"] = ["ENSG1", "ENSG2", "ENSG3", "ENSG4"]
    >>> panel = select_genes(cells, 2, validation=0.2, random_state=0)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = write_gene_list(panel, folder + "/genes.csv", data=cells, ids="gene_ids")
    ...     path.read_text().splitlines()[0]
    'gene,id,rank,gain'
    """
    out = Path(path)
    check_suffix(out, (".csv",))
    known = panel.evidence
    order = list(panel.indices) if known is None else [int(j) for j in known.order]
    gains = [None] * len(order) if known is None else [float(gain) for gain in known.gains]
    at = {int(j): str(name) for j, name in zip(panel.indices, panel.features, strict=True)}
    further: dict[str, dict[str, Any]] = {}
    if data is None and (ids is not None or columns):
        raise InputError("ids and columns are columns of var; give data= as well")
    if data is not None:
        cells = as_annotated(data)
        names = gene_names(cells, like=panel)
        find_names([*at.values()], names, "the data lack {} genes of the panel")
        for title, column in {"id": ids, **{name: name for name in columns}}.items():
            if column is not None and column not in cells.var:
                have = join_names([str(name) for name in cells.var], 12) or "no columns"
                raise InputError(f"{column!r} is not in var, which has {have}")
            values = cells.var_names if column is None else cells.var[column].tolist()
            further[title] = dict(zip(names, values, strict=True))
    rows = []
    for rank, (j, gain) in enumerate(zip(order, gains, strict=True), start=1):
        own = {title: table[at[j]] for title, table in further.items()}
        rows.append({"gene": at[j], "id": own.pop("id", at[j]), "rank": rank, "gain": gain, **own})
    table = import_optional("pandas").DataFrame(rows)
    return write_whole(out, lambda draft: table.to_csv(draft, index=False))
