"""Fitted estimators as folders: JSON for what can be read, safetensors for numbers, no pickle."""

import json
import math
import os
import shutil
import tempfile
from collections.abc import Mapping, Set
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from fewer import __version__
from fewer.errors import FileFormatError, InputError, TypeInputError
from fewer.train.launch import leads

__all__ = [
    "describe_parameters",
    "read_folder",
    "require",
    "restore_parameters",
    "write_folder",
]

VERSION = 1
TENSORS = "tensors.safetensors"
_JSON = {dict: "an object", list: "a list", int: "a whole number", str: "text"}


def write_folder(
    path: str | os.PathLike[str],
    meta: dict[str, Any],
    tensors: dict[str, torch.Tensor],
    *,
    kind: str = "estimator",
) -> None:
    """Write a folder under a temporary name, then rename it: all of it appears, or none.

    A folder that was saved before is replaced, but only if it holds nothing else. Of several
    processes only the first writes.
    """
    if not leads():
        return
    target, name = _folder(path).resolve(), f"{kind}.json"
    _refuse_foreign(target, kind, {name, TENSORS})
    target.parent.mkdir(parents=True, exist_ok=True)
    meta = {"format": f"fewer-{kind}", "version": VERSION, "fewer": __version__, **meta}
    scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    fresh, old = scratch / "new", scratch / "old"
    try:
        fresh.mkdir()
        text = json.dumps(meta, indent=1, allow_nan=False)
        (fresh / name).write_text(text + "\n", encoding="utf-8")
        # copies, since safetensors refuses tensors that share memory, such as tied weights
        copies = {
            key: part.detach().clone(memory_format=torch.contiguous_format)
            for key, part in tensors.items()
        }
        save_file(copies, fresh / TENSORS)
        if target.exists():
            target.rename(old)
        fresh.rename(target)
    finally:
        if old.exists() and fresh.exists():
            old.rename(target)  # the new one is not in place; if this fails too, both stay
        shutil.rmtree(scratch, ignore_errors=True)


def _folder(path: Any) -> Path:
    if not isinstance(path, (str, os.PathLike)):
        raise TypeInputError(f"path={path!r} must be the name of a folder, such as 'panel/'")
    return Path(path)


def read_folder(
    path: str | os.PathLike[str], *, kind: str = "estimator"
) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """Read a folder that `write_folder` wrote, refusing anything else."""
    folder, name = _folder(path), f"{kind}.json"
    if not (folder / name).is_file():
        raise FileFormatError(f"{folder} is not a saved {kind}: it has no {name}")
    try:
        meta = json.loads((folder / name).read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise FileFormatError(f"{folder / name} is damaged ({error}); save it again") from error
    if not isinstance(meta, dict) or meta.get("format") != f"fewer-{kind}":
        raise FileFormatError(f"{folder / name} was not written by fewer")
    version = meta.get("version")
    if isinstance(version, bool) or not isinstance(version, int):
        raise FileFormatError(
            f"{folder / name} is damaged (its version is {version!r}, not a number); save it again"
        )
    if version > VERSION:
        raise FileFormatError(
            f"{folder} has format version {version}, written by fewer {meta.get('fewer')}; "
            f"this is fewer {__version__}, which reads up to {VERSION}: upgrade fewer"
        )
    try:
        return meta, load_file(folder / TENSORS)
    except Exception as error:  # safetensors has no public exception of its own
        raise FileFormatError(
            f"{folder / TENSORS} is missing or damaged ({error}); save it again"
        ) from error


def require(meta: dict[str, Any], kinds: dict[str, type], path: str | os.PathLike[str]) -> None:
    """Refuse a description that lacks a key, or has a value of another kind there."""
    for key, kind in kinds.items():
        if not isinstance(meta.get(key), kind) or isinstance(meta[key], bool):
            found = repr(meta[key])[:40] if key in meta else "missing"
            raise FileFormatError(
                f"{path} is damaged ({key!r} is {found}; it must be {_JSON[kind]}); save it again"
            )


def describe_parameters(parameters: dict[str, Any]) -> dict[str, Any]:
    """Estimator parameters as JSON; functions are only named, since code is not stored."""
    return {name: _describe(name, value) for name, value in parameters.items()}


def restore_parameters(
    stored: dict[str, Any], given: dict[str, Any], optional: tuple[str, ...]
) -> dict[str, Any]:
    """Parameters from JSON, with the functions that the caller hands in again.

    Those in ``optional`` matter only for training and become None when they are not given.
    """
    functions = [name for name, value in stored.items() if _is_function(value)]
    for name in given:
        if name not in functions:
            wanted = f"only {', '.join(functions)}" if functions else "none, since all are stored"
            raise InputError(
                f"load(path, {name}=...): folders lack nothing but functions, so it takes them "
                f"alone, here {wanted}; change other options with set_params after loading"
            )
    found = {}
    for name, value in stored.items():
        if name in given:
            found[name] = given[name]
        elif name in functions and name not in optional:
            raise InputError(
                f"{name} was the function {value['function']}, which is not stored: "
                f"pass it again as load(path, {name}=...)"
            )
        else:
            found[name] = None if name in functions else _restore(value)
    return found


def _describe(name: str, value: Any) -> Any:
    value = _plain(name, value)
    if isinstance(value, float) and not math.isfinite(value):
        # JSON has neither; NaN is a label that says "no group"
        return None if math.isnan(value) else {"number": str(value)}
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
    if isinstance(value, (list, tuple, range)):
        return [_describe(name, item) for item in value]
    raise InputError(f"{name}={value!r} cannot be saved; use numbers, strings, lists or mappings")


def _plain(name: str, value: Any) -> Any:
    """Python's own number, list or mapping in place of NumPy's, torch's, pandas' or polars'."""
    if isinstance(value, (np.generic, np.ndarray)):
        return value.tolist()
    if isinstance(value, torch.device):
        return str(value)
    if isinstance(value, Set):
        return sorted(value, key=str)
    if name == "costs" and hasattr(value, "to_dict"):
        return value.to_dict()
    return value.to_list() if hasattr(value, "to_list") else value


def _restore(value: Any) -> Any:
    if isinstance(value, dict) and "mapping" in value:
        return {_restore(key): _restore(item) for key, item in value["mapping"]}
    if isinstance(value, dict) and "number" in value:
        return float(value["number"])
    if not isinstance(value, list):
        return value
    if value and all(isinstance(item, bool) for item in value):
        return np.array(value, dtype=bool)  # a mask over the features
    # tuples inside too: they can be labels of groups, and keys
    return tuple(_restore(item) for item in value)


def _is_function(value: Any) -> bool:
    return isinstance(value, dict) and "function" in value


def _refuse_foreign(target: Path, kind: str, ours: set[str]) -> None:
    if not target.exists():
        return
    held = sorted(item.name for item in target.iterdir()) if target.is_dir() else None
    if held is None or (held and f"{kind}.json" not in held):
        raise InputError(f"{target} exists and is not a saved {kind}; choose another path")
    others = [name for name in held if name not in ours]
    if others:
        more = ", ..." if len(others) > 5 else ""
        raise InputError(
            f"{target} holds more than a saved {kind}: {', '.join(others[:5])}{more}; saving "
            "replaces the whole folder, so choose another path or move these away"
        )
