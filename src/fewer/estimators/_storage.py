"""Fitted estimators as folders: JSON for what can be read, safetensors for numbers, no pickle."""

import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from fewer import __version__
from fewer.errors import FileFormatError, InputError

__all__ = ["describe_parameters", "read_folder", "restore_parameters", "write_folder"]

VERSION = 1
TENSORS = "tensors.safetensors"


def write_folder(
    path: str | os.PathLike[str],
    meta: dict[str, Any],
    tensors: dict[str, torch.Tensor],
    *,
    kind: str = "estimator",
) -> None:
    """Write a folder under a temporary name, then rename it: all of it appears, or none."""
    target, name = Path(path), f"{kind}.json"
    if target.exists() and not (target / name).is_file() and not _is_empty(target):
        raise InputError(f"{target} exists and is not a saved {kind}; choose another path")
    target.parent.mkdir(parents=True, exist_ok=True)
    meta = {"format": f"fewer-{kind}", "version": VERSION, "fewer": __version__, **meta}
    scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        fresh = scratch / "new"
        fresh.mkdir()
        text = json.dumps(meta, indent=1, allow_nan=False)
        (fresh / name).write_text(text + "\n", encoding="utf-8")
        save_file({key: part.contiguous() for key, part in tensors.items()}, fresh / TENSORS)
        if target.exists():
            target.rename(scratch / "old")
        fresh.rename(target)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def read_folder(
    path: str | os.PathLike[str], *, kind: str = "estimator"
) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """Read a folder that `write_folder` wrote, refusing anything else."""
    folder, name = Path(path), f"{kind}.json"
    if not (folder / name).is_file():
        raise FileFormatError(f"{folder} is not a saved {kind}: it has no {name}")
    try:
        meta = json.loads((folder / name).read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise FileFormatError(f"{folder / name} is damaged ({error}); save it again") from error
    if not isinstance(meta, dict) or meta.get("format") != f"fewer-{kind}":
        raise FileFormatError(f"{folder / name} was not written by fewer")
    if meta["version"] > VERSION:
        raise FileFormatError(
            f"{folder} has format version {meta['version']}, written by fewer {meta['fewer']}; "
            f"this is fewer {__version__}, which reads up to {VERSION}: upgrade fewer"
        )
    try:
        return meta, load_file(folder / TENSORS)
    except Exception as error:  # safetensors has no public exception of its own
        raise FileFormatError(
            f"{folder / TENSORS} is missing or damaged ({error}); save it again"
        ) from error


def describe_parameters(parameters: dict[str, Any]) -> dict[str, Any]:
    """Estimator parameters as JSON; functions are only named, since code is not stored."""
    return {name: _describe(name, value) for name, value in parameters.items()}


def restore_parameters(
    stored: dict[str, Any], given: dict[str, Any], optional: tuple[str, ...]
) -> dict[str, Any]:
    """Parameters from JSON, with the functions that the caller hands in again.

    Those in ``optional`` matter only for training and become None when they are not given.
    """
    found = {}
    for name, value in stored.items():
        if name in given:
            found[name] = given[name]
        elif isinstance(value, dict) and "function" in value:
            if name not in optional:
                raise InputError(
                    f"{name} was the function {value['function']}, which is not stored: "
                    f"pass it again as load(path, {name}=...)"
                )
            found[name] = None
        elif isinstance(value, dict) and "mapping" in value:
            found[name] = dict(value["mapping"])
        else:
            found[name] = tuple(value) if isinstance(value, list) else value
    return found


def _describe(name: str, value: Any) -> Any:
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, np.random.RandomState):
        return None  # its state has moved on; a number would not bring it back
    if callable(value):
        kind = value if hasattr(value, "__qualname__") else type(value)
        return {"function": f"{kind.__module__}.{kind.__qualname__}"}
    if isinstance(value, Mapping):
        pairs = [[_describe(name, key), _describe(name, item)] for key, item in value.items()]
        return {"mapping": pairs}
    if isinstance(value, (list, tuple, np.ndarray)):
        return [_describe(name, item) for item in value]
    raise InputError(f"{name}={value!r} cannot be saved; use numbers, strings, lists or mappings")


def _is_empty(folder: Path) -> bool:
    return folder.is_dir() and not any(folder.iterdir())
