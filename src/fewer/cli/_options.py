"""Arguments and options that several commands share, and what follows from them."""

import os
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any, NewType

import typer

if TYPE_CHECKING:
    import numpy as np

    from fewer.data import Source
    from fewer.panel import Panel

__all__ = [
    "CommandLine",
    "DataArgument",
    "DeviceOption",
    "ForceOption",
    "PanelArgument",
    "Reading",
    "RowGroupsOption",
    "ScaleOption",
    "SeedOption",
    "check_table_path",
    "check_unused",
    "complete_data",
    "holds_cells",
    "is_panel",
    "load_panel",
    "quoted",
    "read_column",
]

CommandLine = NewType("CommandLine", str)  # the command as the user could type it again

TABLES = (".csv", ".tsv", ".txt", ".gz", ".zst", ".parquet", ".pq", ".feather", ".arrow", ".ipc")
DATA_FILES = (*TABLES, ".npy", ".npz", ".h5", ".hdf5", ".h5ad", ".zarr")
READING = "Reading data"


# -- completion of paths in the shell ----------------------------------------------------------


def complete_data(incomplete: str) -> Iterator[str]:
    """Data files, and the folders on the way to them."""
    for path in _matching_paths(incomplete):
        if path.is_dir() or path.suffix.lower() in DATA_FILES:
            yield _completed(path, incomplete)


def complete_panel(incomplete: str) -> Iterator[str]:
    """Folders, those that hold a panel first."""
    folders = [path for path in _matching_paths(incomplete) if path.is_dir()]
    for path in sorted(folders, key=lambda path: not is_panel(path)):
        yield _completed(path, incomplete)


def _matching_paths(incomplete: str) -> list[Path]:
    folder, _, start = incomplete.rpartition("/")
    where = Path(folder or ("/" if incomplete.startswith("/") else ".")).expanduser()
    try:
        found = [path for path in where.iterdir() if path.name.startswith(start)]
    except OSError:
        return []
    return sorted(path for path in found if start.startswith(".") or not path.name.startswith("."))


def _completed(path: Path, incomplete: str) -> str:
    """The path as the user began it: a tilde stays a tilde."""
    folder, slash, _ = incomplete.rpartition("/")
    return f"{folder}{slash}{path.name}" + ("/" if path.is_dir() else "")


# -- arguments and options ---------------------------------------------------------------------

DataArgument = Annotated[
    str,
    typer.Argument(
        help="A CSV or TSV (also .gz, .zst), Parquet, Feather, .npy, .npz, HDF5, zarr or .h5ad "
        "file, a folder of such files, or a quoted glob pattern.",
        autocompletion=complete_data,
        show_default=False,
    ),
]
PanelArgument = Annotated[
    Path,
    typer.Argument(
        help="A panel folder written by fewer select.",
        autocompletion=complete_panel,
        show_default=False,
    ),
]
ScaleOption = Annotated[
    str,
    typer.Option(
        help="standard: standardise features, so that all count equally. none: features count by "
        "their variance."
    ),
]
RowGroupsOption = Annotated[
    str | None,
    typer.Option(help="A column of group labels; rows of one group are held out together."),
]
SeedOption = Annotated[int, typer.Option(help="Random seed.")]
DeviceOption = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1 or mps.")]
ForceOption = Annotated[bool, typer.Option("--force", help="Overwrite existing files.")]


@dataclass(frozen=True)
class Reading:
    """Options of every command that reads data."""

    ignore: Annotated[
        list[str],
        typer.Option(
            help="Columns that are not features, comma-separated; can be repeated. Text columns "
            "are never features.",
            rich_help_panel=READING,
        ),
    ] = field(default_factory=list)
    dataset: Annotated[
        str | None,
        typer.Option(
            help="Name of the array in an .npz, HDF5 or zarr file.", rich_help_panel=READING
        ),
    ] = None
    layer: Annotated[
        str | None, typer.Option(help="Layer of an AnnData file.", rich_help_panel=READING)
    ] = None
    delimiter: Annotated[
        str | None,
        typer.Option(
            help="Delimiter of a text file; detected automatically.", rich_help_panel=READING
        ),
    ] = None
    header: Annotated[
        bool | None,
        typer.Option(
            "--header/--no-header",
            help="Whether the first line of a text file holds column names; detected "
            "automatically.",
            rich_help_panel=READING,
        ),
    ] = None
    counts: Annotated[
        str,
        typer.Option(
            help="Counts in an .h5ad file: log1p reads them as log(1 + counts per 10,000), none "
            "reads values as they are, auto uses log1p where all values are whole numbers.",
            rich_help_panel=READING,
        ),
    ] = "auto"
    memory_limit: Annotated[
        str | None,
        typer.Option(
            help="Memory for rows, such as 2GB; a quarter of the machine's by default.",
            rich_help_panel=READING,
        ),
    ] = None

    def open(
        self, data: Any, *, metadata: tuple[str | None, ...] = (), warn_of_text: bool = True
    ) -> "Source":
        """A source of the features, with the named metadata columns beside them."""
        from fewer.data import open as open_any
        from fewer.data.open import open_with_metadata

        names = [name for name in metadata if name is not None]
        options = self.options()
        with warnings.catch_warnings():
            if not warn_of_text:
                warnings.filterwarnings("ignore", ".*were ignored")
            if names:
                return open_with_metadata(data, names, **options)
            return open_any(data, **options)

    def open_features(
        self, data: Any, *, metadata: tuple[str | None, ...] = (), keep: tuple[str, ...] = ()
    ) -> "Source":
        """As `open`, without features that are empty or, unless in ``keep``, number the rows."""
        import numpy as np

        from fewer._checks import join_names
        from fewer.data import ColumnView, moments
        from fewer.data.columns import without_empty
        from fewer.data.open import counts_rows
        from fewer.distributed import open_together
        from fewer.errors import warn

        source = open_together(lambda: self._in_units(data, self.open(data, metadata=metadata)))
        source, stats = without_empty(source, moments(source))
        counting = counts_rows(source, stats.minimum, stats.maximum)
        labels = source.names or []
        gone = [labels[j] for j in np.flatnonzero(counting) if labels and labels[j] not in keep]
        if not gone or len(gone) == len(labels):
            return source
        warn(
            f"ignored columns that only number the rows ({len(gone)}): {join_names(gone)}; "
            "include= keeps them"
        )
        part = ColumnView(source, np.array([j for j, x in enumerate(labels) if x not in gone]))
        part.metadata_columns = (*source.metadata_columns, *gone)
        return part

    def open_for(
        self, panel: "Panel", data: Any, *, metadata: tuple[str | None, ...] = ()
    ) -> "Source":
        """Rows for a panel: as `open`, with cells in the units that the panel was made from."""
        source = self.open(data, metadata=metadata, warn_of_text=False)
        return self._in_units(data, source, panel)

    def record_units(self, panel: "Panel", data: Any, source: "Source") -> None:
        """Record the units of a panel of cells in its settings, so that new cells get the same."""
        if holds_cells(data):
            from fewer.anndata.cells import SETTINGS, describe_units

            layer = {} if self.layer is None else {"layer": self.layer}
            panel.settings[SETTINGS] = describe_units(source, panel) | layer

    def _in_units(self, data: Any, source: "Source", panel: "Panel | None" = None) -> "Source":
        if not holds_cells(data):
            return source
        from fewer.anndata.cells import in_units

        return in_units(source, like=panel, counts=self.counts)

    def options(self) -> dict[str, Any]:
        """Keyword arguments for `fewer.data.open`."""
        found: dict[str, Any] = {
            "dataset": self.dataset,
            "layer": self.layer,
            "delimiter": {"tab": "\t", r"\t": "\t"}.get(self.delimiter or "", self.delimiter),
            "header": self.header,
            "memory_limit": self.memory_limit,
        }
        names = [name.strip() for text in self.ignore for name in text.split(",")]
        found["ignore"] = [name for name in names if name]
        return {name: value for name, value in found.items() if value not in (None, [])}


def holds_cells(data: Any) -> bool:
    """Whether this is an AnnData file, whose counts need normalising."""
    return str(data).lower().endswith(".h5ad")


def read_column(source: "Source", name: str | None) -> "np.ndarray | None":
    """A metadata column as text, such as the labels of row groups."""
    import numpy as np

    from fewer.data.reading import read_metadata

    if name is None:
        return None
    parts = [part.column(name).to_pylist() for part in read_metadata(source) if part is not None]
    return np.array([str(value) for part in parts for value in part])


# -- panels and output files -------------------------------------------------------------------


def is_panel(path: str | Path) -> bool:
    """Whether a folder holds a saved panel."""
    return (Path(path) / "panel.json").is_file()


def load_panel(path: Path) -> "Panel":
    """The panel in a folder."""
    from fewer.errors import InputError
    from fewer.panel import Panel

    if not path.exists():
        raise InputError(
            f"there is no panel {path}; create one with fewer select DATA --out {path}"
        )
    return Panel.load(path)


def check_unused(path: Path, force: bool) -> None:
    """Refuse, before any work, to overwrite a file or to write one where that is impossible."""
    from fewer.errors import InputError

    if path.is_dir():
        raise InputError(f"{path} is a folder; name a file in it")
    if path.exists() and not force:
        raise InputError(f"{path} exists; choose another name, or overwrite it with --force")
    check_parent(path)


def check_table_path(path: Path, option: str, force: bool) -> None:
    """As `check_unused`, for a table that is written as CSV or JSON."""
    from fewer.errors import InputError

    check_unused(path, force)
    if path.suffix.lower() not in (".csv", ".json"):
        raise InputError(f"{option} {path} ends in {path.suffix!r}; use .csv or .json")


def check_parent(path: Path) -> None:
    """Refuse a path that cannot be created."""
    from fewer.errors import InputError

    folder = path.absolute().parent
    while not folder.exists():  # it will be created
        folder = folder.parent
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder; choose another path than {path}")
    if not os.access(folder, os.W_OK):
        raise InputError(f"no permission to write to {folder}; choose another path than {path}")


def quoted(path: Path | str) -> str:
    """A path as it can be typed in a shell."""
    return quote(str(path))
