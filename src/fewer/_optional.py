"""Libraries that only some sources need, loaded when one does."""

import sys
from importlib import import_module
from typing import Any

from fewer._threads import reapply
from fewer.errors import MissingExtraError

__all__ = ["import_optional"]

EXTRAS = {
    "pyarrow": ("tables", "CSV, Parquet, Feather, Excel and SQLite files"),
    "h5py": ("stores", "HDF5 and .h5ad files"),
    "zarr": ("stores", "zarr arrays"),
    "anndata": ("anndata", "AnnData objects and their files"),
    "pandas": ("anndata", "AnnData objects and data frames"),
    "dask": ("dask", "Dask arrays and tables"),
    "distributed": ("dask", "Dask clusters"),
    "openpyxl": ("excel", "Excel files"),
    "duckdb": ("duckdb", "DuckDB files"),
    "fsspec": ("remote", "addresses such as s3:// and https://"),
    "onnx": ("onnx", "ONNX files"),
    "starlette": ("serve", "HTTP services"),
    "uvicorn": ("serve", "HTTP services"),
    "tensorboard": ("tensorboard", "training curves in TensorBoard"),
}


def import_optional(module: str) -> Any:
    """The module, or an error that says what to install."""
    known = module in sys.modules
    try:
        found = import_module(module)
    except ModuleNotFoundError as error:
        library = module.split(".", maxsplit=1)[0]
        if error.name is None or error.name.split(".")[0] != library:
            raise
        if library not in EXTRAS:  # what no extra has, such as scanpy
            raise MissingExtraError(
                f"this needs {library}, which is not installed: pip install {library}"
            ) from error
        extra, what = EXTRAS[library]
        raise MissingExtraError(
            f"{what} need {library}, which is not installed: pip install 'fewer[{extra}]'"
        ) from error
    if not known:
        reapply()  # it may have threads of its own
    return found
