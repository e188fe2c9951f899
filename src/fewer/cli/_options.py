"""Arguments and options that several commands share, and what follows from them."""

import shlex
import warnings
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from glob import escape
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    import numpy as np

    from fewer.data import Source
    from fewer.panel import Panel


class CommandLine(str):
    """The command as the user could type it again, and its options that are not defaults."""

    options: dict[str, Any]

    def __new__(cls, text: str, options: dict[str, Any]) -> "CommandLine":
        """Attach the options to the text."""
        self = super().__new__(cls, text)
        self.options = options
        return self

    def selecting(self, k: int, **more: Any) -> str:
        """The ``fewer select`` that reads the same data in the same way."""
        options = {name: self.options[name] for name in SHARED if name in self.options} | more
        words = ["fewer", "select", str(self.options["data"]), "-k", str(k)]
        for name, value in options.items():
            flag = f"--{'no-' if value is False else ''}{name.replace('_', '-')}"
            for one in value if isinstance(value, list) else [value]:
                words += [flag] if isinstance(one, bool) else [flag, str(one)]
        return shlex.join([*words, "--out", "panel/"])


TABLES = (".csv", ".tsv", ".txt", ".parquet", ".pq", ".feather", ".arrow", ".ipc", ".xlsx", ".xlsm")
SHARED = (  # options that `fewer select` has too, and that decide which panel it makes
    *("ignore", "dataset", "query", "layer", "delimiter", "header", "missing", "counts"),
    *("memory_limit", "scale", "row_groups", "seed", "target", "target_kind"),
    *("validation", "holdout", "holdout_column"),
)
PACKED = (".gz", ".bz2", ".zst", ".zip")
DATABASES = (".sqlite", ".sqlite3", ".db", ".duckdb")
TABLE_OUTPUT = (".csv", ".json")
DATA_FILES = (*TABLES, *PACKED, *DATABASES, ".npy", ".npz", ".h5", ".hdf5", ".h5ad", ".zarr")
reading_option = partial(typer.Option, rich_help_panel="Reading data")
holding_option = partial(typer.Option, rich_help_panel="Search and validation")


KINDS_OF_ONE = ("auto", "class", "number", "count", "ordinal")
TargetKind = Annotated[
    str,
    typer.Option(
        help="Kind of --target: class, number, count or ordinal. By default, text and whole "
        "numbers are classes, and other numbers are numbers.",
        show_default=False,
    ),
]


def check_kind(target: str | None, kind: str) -> str:
    """The kind of a single target of these commands, which needs one."""
    from fewer.errors import InputError

    if kind not in KINDS_OF_ONE:
        raise InputError(f"--target-kind {kind}: use {', '.join(KINDS_OF_ONE)}")
    if target is None and kind != "auto":
        raise InputError("--target-kind requires --target")
    return kind


# -- completion of paths in the shell ----------------------------------------------------------


def complete_data(incomplete: str) -> list[str]:
    """Data files, and the folders on the way to them."""
    found = _matching_paths(incomplete)
    return [text for text, path in found if path.is_dir() or path.suffix.lower() in DATA_FILES]


def complete_panel(incomplete: str) -> list[str]:
    """Folders, those that hold a panel first."""
    folders = [pair for pair in _matching_paths(incomplete) if pair[1].is_dir()]
    return [text for text, _ in sorted(folders, key=lambda pair: not is_panel(pair[1]))]


def _matching_paths(incomplete: str) -> Iterator[tuple[str, Path]]:
    """Paths, each with the text that completes what the user began: a tilde stays a tilde."""
    folder, slash, start = incomplete.rpartition("/")
    where = Path(folder or slash or ".").expanduser()
    for path in sorted(where.glob(f"{escape(start)}*")):
        if start.startswith(".") or not path.name.startswith("."):
            yield f"{folder}{slash}{path.name}" + ("/" if path.is_dir() else ""), path


# -- arguments and options ---------------------------------------------------------------------

DataArgument = Annotated[
    str,
    typer.Argument(
        help="A CSV or TSV (also .gz, .bz2, .zst, .zip), Parquet, Feather, Excel, SQLite, DuckDB, "
        ".npy, .npz, HDF5, zarr or .h5ad file, a folder of such files, a quoted glob pattern, a "
        "URL such as s3://bucket/data.csv, or - for standard input.",
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
SCALE = (
    "standard: standardise features, so that all have equal weight. none: weight features by their "
    "variance."
)
SEED = "Random seed; the same seed holds out the same rows in every command."
ROW_GROUPS = "Column of group labels, such as patients; rows of a group are held out together."
DEVICE = "auto, cpu, cuda, cuda:1 or mps."
ForceOption = Annotated[bool, typer.Option("--force", help="Overwrite existing files.")]


@dataclass(frozen=True)
class Reading:
    """Options of every command that reads data."""

    ignore: Annotated[
        list[str] | None,
        reading_option(
            help="Columns that are not features: comma-separated names, a file with one name per "
            "line, or a pattern such as 'meta_*'; can be repeated. Text columns are never "
            "features."
        ),
    ] = None
    dataset: Annotated[
        str | None,
        reading_option(
            help="Name of an array in an .npz, HDF5 or zarr file, a sheet in an Excel file, or a "
            "table in a database."
        ),
    ] = None
    query: Annotated[
        str | None, reading_option(help="SELECT statement for an SQLite or DuckDB file.")
    ] = None
    layer: Annotated[str | None, reading_option(help="Layer of an AnnData file.")] = None
    delimiter: Annotated[
        str | None, reading_option(help="Delimiter of a text file; detected automatically.")
    ] = None
    header: Annotated[
        bool | None,
        reading_option(
            "--header/--no-header",
            help="Whether the first line of a text file holds column names; detected "
            "automatically.",
        ),
    ] = None
    missing: Annotated[
        list[str] | None,
        reading_option(
            help="Additional codes for missing values, comma-separated, such as '9999,off'; a "
            "value with a comma goes in double quotes, as in '\"n,a\",9999'. Empty cells, NA, NaN, "
            "null, ?, -, -- and n/a are always missing."
        ),
    ] = None
    counts: Annotated[
        str,
        reading_option(
            help="Counts in an .h5ad file: log1p transforms them to log(1 + counts per 10,000), "
            "none reads values unchanged, auto uses log1p if all values are whole numbers."
        ),
    ] = "auto"
    memory_limit: Annotated[
        str | None,
        reading_option(help="Memory for rows, such as 2GB; a quarter of the machine's by default."),
    ] = None

    def open(
        self,
        data: Any,
        *,
        metadata: tuple[str | None, ...] = (),
        warn_of_text: bool = True,
        panel: "Panel | None" = None,
        ignore: Sequence[str] = (),
    ) -> "Source":
        """A source of the features, with the named metadata columns."""
        from fewer.data import open as open_any
        from fewer.data.open import open_with_metadata

        names = [name for name in metadata if name is not None]
        options = self.options(data, panel)
        if ignore:
            options["ignore"] = list(dict.fromkeys([*options.get("ignore", ()), *ignore]))
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
        self,
        panel: "Panel",
        data: Any,
        *,
        metadata: tuple[str | None, ...] = (),
        measured: bool = False,
    ) -> "Source":
        """Rows for a panel: as `open`, with cells in the units that the panel was made from.

        Columns that are not among its features may hold anything, nor need features that are not
        on the panel be numbers if only what was ``measured`` is read.
        """
        known = panel.features if measured else panel.names or ()
        columns, wanted = self.columns(data) or (), {str(name) for name in known}
        others = [name for name in columns if name not in wanted]
        if len(others) == len(columns):
            others = []
        source = self.open(data, metadata=metadata, warn_of_text=False, panel=panel, ignore=others)
        return self._in_units(data, source, panel)

    def record(self, panel: "Panel", data: Any, source: "Source") -> None:
        """Record what new rows must be read like: words for missing values, units of cells."""
        if self.missing:
            panel.settings["missing"] = self._words()
        if holds_cells(data):
            from fewer.cells import record_units

            layer = {} if self.layer is None else {"layer": self.layer}
            record_units(panel, source, **layer)

    def _in_units(self, data: Any, source: "Source", panel: "Panel | None" = None) -> "Source":
        if not holds_cells(data):
            return source
        from fewer.cells import in_units

        return in_units(source, like=panel, counts=self.counts)

    def options(self, data: Any, panel: "Panel | None" = None) -> dict[str, Any]:
        """Keyword arguments for `fewer.data.open`; a panel knows which words mean missing."""
        found: dict[str, Any] = {
            "dataset": self.dataset,
            "query": self.query,
            "layer": self.layer,
            "delimiter": self._delimiter(),
            "header": self.header,
            "memory_limit": self.memory_limit,
        }
        if self.ignore:
            from fewer.cli import _parsing as parse

            names = self.columns(data)
            found["ignore"] = [str(x) for x in parse.features(self.ignore, names, "--ignore")]
        found["missing"] = self._words()
        if panel is not None and not found["missing"]:
            found["missing"] = list(panel.settings.get("missing", ()))
        return {name: value for name, value in found.items() if value not in (None, [])}

    def columns(self, data: Any) -> list[str] | None:
        """All columns of a file that holds a table; None of anything else."""
        from fewer.data.open import column_names

        return column_names(data, self.dataset, self.query, self._delimiter(), self.header)

    def _delimiter(self) -> str | None:
        return {"tab": "\t", r"\t": "\t"}.get(self.delimiter or "", self.delimiter)

    def _words(self) -> list[str]:
        from fewer.cli import _parsing as parse

        return [word for text in self.missing or () for word in parse.split_values(text)]


@dataclass(frozen=True)
class HeldOut:
    """Options that say which rows are held out."""

    validation: Annotated[
        str,
        holding_option(
            help="Rows to hold out: auto, a fraction such as 0.2, a number of folds such as 5, "
            "time for rows in time order (train on the past), or blocks of neighbouring rows."
        ),
    ] = "auto"
    holdout: Annotated[
        str | None,
        holding_option(
            help="A file with the rows to hold out, such as the latest ones, instead of "
            "--validation.",
            autocompletion=complete_data,
        ),
    ] = None
    holdout_column: Annotated[
        str | None,
        holding_option(
            help="A column that says which rows to hold out: 1, true, yes or test, instead of "
            "--validation."
        ),
    ] = None

    def check(self) -> None:
        """Refuse several answers."""
        named = sum(x is not None for x in (self.holdout, self.holdout_column))
        if named + (self.validation != "auto") > 1:
            raise typer.BadParameter("give one of --validation, --holdout and --holdout-column")

    def paths(self, data: str) -> Any:
        """The data, with the file of held-out rows at the end."""
        return data if self.holdout is None else [data, self.holdout]

    def rows(self, source: "Source", reading: Reading) -> Any:
        """What ``validation=`` is: as typed, or which rows a file or a column names."""
        import numpy as np

        from fewer._checks import NO, YES, join_names
        from fewer.cli import _parsing as parse
        from fewer.errors import InputError

        if self.holdout is not None:
            last = reading.open(self.holdout, warn_of_text=False).shape[0]
            return np.arange(source.shape[0]) >= source.shape[0] - last
        if self.holdout_column is None:
            return parse.validation(self.validation)
        labels: Any = read_column(source, self.holdout_column)
        held, trained = (*YES, "test"), (*NO, "train", "", "none")
        words = [text.strip().lower() for text in labels]
        unknown = list(dict.fromkeys(word for word in words if word not in {*held, *trained}))
        if unknown:
            raise InputError(
                f"--holdout-column {self.holdout_column} holds {join_names(unknown)}; use "
                f"{join_names(held)} for rows to hold out and {join_names(trained, 6)} for others"
            )
        return np.array([word in held for word in words])


def holds_cells(data: Any) -> bool:
    """Whether this is an AnnData file, whose counts may need normalising."""
    return str(data).lower().endswith(".h5ad")


def read_column(source: "Source", name: str | None) -> "np.ndarray | None":
    """A metadata column as text, such as the labels of row groups."""
    import numpy as np

    return None if name is None else np.array([str(x) for x in text_columns(source)[name]])


def text_columns(source: "Source", leave_out: Collection[str] = ()) -> dict[str, list[Any]]:
    """The metadata columns of all rows."""
    from fewer.data.source import read_metadata

    found: dict[str, list[Any]] = {}
    for part in read_metadata(source):
        titles = part.column_names if part is not None else ()
        for title in (one for one in titles if one not in leave_out):
            found.setdefault(title, []).extend(part.column(title).to_pylist())
    return found


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


def check_unused(path: Path | None, force: bool, suffixes: tuple[str, ...] = ()) -> None:
    """Refuse, before any work, to overwrite a file or to write to a path that cannot be written."""
    from fewer._checks import check_suffix
    from fewer._files import check_path
    from fewer.errors import InputError

    if path is None:
        return
    check_path(path)
    if path.exists() and not force:
        raise InputError(f"{path} exists; choose another name, or overwrite it with --force")
    if suffixes:
        check_suffix(path, suffixes)


@dataclass(frozen=True)
class Constraints:
    """Options of commands whose panels obey constraints."""

    include: Annotated[
        list[str] | None, typer.Option(help="Features that every panel must include.")
    ] = None
    exclude: Annotated[list[str] | None, typer.Option(help="Features that no panel may have.")] = (
        None
    )
    costs: Annotated[
        Path | None, typer.Option(help="A file with two columns: feature and cost.")
    ] = None
    budget: Annotated[
        list[str] | None,
        typer.Option(help="Maximum cost; for several, NAME=100, which can be repeated."),
    ] = None
    groups: Annotated[
        Path | None,
        typer.Option(help="A file with two columns: feature and group, measured together."),
    ] = None
    sets: Annotated[
        Path | None,
        typer.Option(help="A file with two columns: feature and set, for the next two options."),
    ] = None
    at_least: Annotated[
        list[str] | None,
        typer.Option(help="How many features of a set there must be: NAME=2, or 2 for every set."),
    ] = None
    at_most: Annotated[
        list[str] | None, typer.Option(help="How many features of a set there may be.")
    ] = None

    def arguments(self, names: list[str] | None) -> dict[str, Any]:
        """Keyword arguments for functions of `fewer.assess`."""
        from fewer.cli import _parsing as parse

        budget = parse.budget(self.budget or [])
        return {
            "include": parse.features(self.include or (), names, "--include"),
            "exclude": parse.features(self.exclude or (), names, "--exclude"),
            "costs": parse.costs(self.costs, names, budget),
            "budget": budget,
            "groups": parse.groups(self.groups, names),
            **parse.sets(self.sets, names, self.at_least or [], self.at_most or []),
        }
