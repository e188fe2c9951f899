"""The data of a command: how they are read, and which columns stand beside the features."""

import warnings
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fewer.cli.paths import complete_data

if TYPE_CHECKING:
    import numpy as np

    from fewer.data import Source
    from fewer.panel import Panel

__all__ = ["DataArgument", "Reading", "column_beside", "holds_cells"]

DataArgument = Annotated[
    str,
    typer.Argument(
        help="CSV, TSV (also .gz, .zst), Parquet, Feather, .npy, .npz, HDF5, zarr or .h5ad: a "
        "file, a folder of files, or a pattern in quotes.",
        autocompletion=complete_data,
        show_default=False,
    ),
]
PANEL = "How data are read"


@dataclass(frozen=True)
class Reading:
    """Options of every command that reads data."""

    leave_out: Annotated[
        list[str],
        typer.Option(
            help="Columns that are no features, with commas between; can be repeated. Columns "
            "of text are left out in any case.",
            rich_help_panel=PANEL,
        ),
    ] = field(default_factory=list)
    dataset: Annotated[
        str | None,
        typer.Option(help="Which array of an .npz, HDF5 or zarr file.", rich_help_panel=PANEL),
    ] = None
    layer: Annotated[
        str | None, typer.Option(help="Which layer of an AnnData.", rich_help_panel=PANEL)
    ] = None
    delimiter: Annotated[
        str | None,
        typer.Option(help="Between values of a text file; found by itself.", rich_help_panel=PANEL),
    ] = None
    header: Annotated[
        bool | None,
        typer.Option(
            "--header/--no-header",
            help="Whether the first line of a text file names its columns; found by itself.",
            rich_help_panel=PANEL,
        ),
    ] = None
    counts: Annotated[
        str,
        typer.Option(
            help="Cells of an .h5ad: log1p takes log(1 + counts per 10,000), none takes values as "
            "they are, auto the first where they are whole numbers.",
            rich_help_panel=PANEL,
        ),
    ] = "auto"
    memory_limit: Annotated[
        str | None,
        typer.Option(
            help="Memory for rows, such as 2GB; a quarter of the machine's if not given.",
            rich_help_panel=PANEL,
        ),
    ] = None

    def open(
        self, data: Any, *, beside: tuple[str | None, ...] = (), tell: bool = True
    ) -> "Source":
        """A source of the features, with some columns read beside them.

        Without ``tell``, nothing is said of columns that are not numbers: for data whose features
        are known by name.
        """
        from fewer.data import open as open_any
        from fewer.data import open_beside

        names = [name for name in beside if name is not None]
        options = self.options()
        with warnings.catch_warnings():
            if not tell:
                warnings.filterwarnings("ignore", ".*were left out")
            return open_beside(data, names, **options) if names else open_any(data, **options)

    def open_features(
        self, data: Any, *, beside: tuple[str | None, ...] = (), keep: tuple[str, ...] = ()
    ) -> "Source":
        """As `open`, without features that are empty or, unless kept, only number the rows."""
        import numpy as np

        from fewer.data import ColumnView, moments, without_empty
        from fewer.data.columns import join_names
        from fewer.data.scanning import counts_rows
        from fewer.errors import warn
        from fewer.train.launch import opened_together

        source = opened_together(lambda: self._in_units(data, self.open(data, beside=beside)))
        source, stats = without_empty(source, moments(source))
        counting = counts_rows(source, stats.minimum, stats.maximum)
        labels = source.names or []
        gone = [labels[j] for j in np.flatnonzero(counting) if labels and labels[j] not in keep]
        if not gone or len(gone) == len(labels):
            return source
        warn(
            f"columns that only number the rows were left out ({len(gone)}): {join_names(gone)}; "
            "include= keeps them"
        )
        part = ColumnView(source, np.array([j for j, x in enumerate(labels) if x not in gone]))
        part.left_out = (*source.left_out, *gone)
        return part

    def open_for(
        self, panel: "Panel", data: Any, *, beside: tuple[str | None, ...] = ()
    ) -> "Source":
        """Rows for a panel: as `open`, and cells in the units that it was made from."""
        return self._in_units(data, self.open(data, beside=beside, tell=False), panel)

    def keep_units(self, panel: "Panel", data: Any, source: "Source") -> None:
        """Let a panel of cells say which units it is in, so that new cells get the same."""
        if holds_cells(data):
            from fewer.anndata.units import SETTINGS, describe_units

            layer = {} if self.layer is None else {"layer": self.layer}
            panel.settings[SETTINGS] = describe_units(source, panel) | layer

    def _in_units(self, data: Any, source: "Source", panel: "Panel | None" = None) -> "Source":
        if not holds_cells(data):
            return source
        from fewer.anndata.units import in_units

        return in_units(source, like=panel, counts=self.counts)

    def options(self) -> dict[str, Any]:
        """What `fewer.data.open` is to be told."""
        found: dict[str, Any] = {
            "dataset": self.dataset,
            "layer": self.layer,
            "delimiter": {"tab": "\t", r"\t": "\t"}.get(self.delimiter or "", self.delimiter),
            "header": self.header,
            "memory_limit": self.memory_limit,
        }
        names = [name.strip() for text in self.leave_out for name in text.split(",")]
        found["leave_out"] = [name for name in names if name]
        return {name: value for name, value in found.items() if value not in (None, [])}


def holds_cells(data: Any) -> bool:
    """Whether this is a file of cells, whose counts want normalising."""
    return str(data).lower().endswith(".h5ad")


def column_beside(source: "Source", name: str | None) -> "np.ndarray | None":
    """A column that was read beside the features, such as labels of groups of rows."""
    import numpy as np

    from fewer.data import read_aside

    if name is None:
        return None
    parts = [part.column(name).to_pylist() for part in read_aside(source) if part is not None]
    return np.array([str(value) for part in parts for value in part])
