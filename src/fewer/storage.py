"""Panels and estimators as folders: JSON for descriptions, safetensors for arrays, no pickle."""

import json
import math
import os
import shutil
from collections.abc import Iterator, Mapping, Set
from contextlib import contextmanager
from dataclasses import fields
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, nn

from fewer import __version__
from fewer._checks import join_names
from fewer._files import replacing_folder
from fewer._stored import damaged_if, inside, misfit, read_json, read_tensors, require_array
from fewer.distributed import is_rank0
from fewer.errors import FileFormatError, InputError, TypeInputError
from fewer.nn import MeasuredDecoder
from fewer.nn.decoder import hidden_widths, skip_connected

__all__ = [
    "Tensors",
    "damaged_where_unfit",
    "describe_labels",
    "describe_parameters",
    "describe_record",
    "read_folder",
    "require",
    "require_weights",
    "restore_columns",
    "restore_decoder",
    "restore_labels",
    "restore_parameters",
    "restore_record",
    "write_folder",
]

VERSION = 2
TENSORS = "tensors.safetensors"
LABEL_KINDS = "biufUO"
MOST_LABELS = 64 * 2**20  # bytes of class labels
# names of version 1 of the format
_EVIDENCE_1 = {
    "made": "created",
    "shares": "explained",
    "likeness": "related_correlation",
    "stands_for": "represents",
    "rebuilt": "reconstructed",
}
_TARGET_1 = {"one": "single_output"}


# -- folders -----------------------------------------------------------------------------------


def write_folder(
    path: str | os.PathLike[str],
    meta: dict[str, Any],
    tensors: dict[str, Tensor],
    *,
    kind: str = "estimator",
) -> None:
    """Write a folder: all of it appears, or none.

    A folder that was saved before is replaced, but only if it holds nothing else. Of several
    ranks only rank 0 writes.
    """
    if not is_rank0():
        return
    target, name = _folder(path).resolve(), f"{kind}.json"
    _refuse_foreign(target, kind, {name, TENSORS})
    meta = {"format": f"fewer-{kind}", "version": VERSION, "fewer": __version__, **meta}
    text = json.dumps(meta, indent=1, allow_nan=False)
    # copies, since safetensors refuses tensors that share memory, such as tied weights
    copies = {
        key: part.detach().clone(memory_format=torch.contiguous_format)
        for key, part in tensors.items()
    }
    try:
        with replacing_folder(target) as fresh:
            (fresh / name).write_text(text + "\n", encoding="utf-8")
            save_file(copies, fresh / TENSORS)
            # safetensors lets only the owner read it, whatever the umask says
            shutil.copymode(fresh / name, fresh / TENSORS)
    except (OSError, SafetensorError) as error:
        raise InputError(
            f"{target} cannot be written ({error}); make room, or choose another path"
        ) from error


class Tensors(dict[str, Tensor]):
    """Tensors by name, which notes those that were used: a file with others is refused."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        super().__init__(tensors)
        self.used: set[str] = set()

    def __getitem__(self, name: str) -> Tensor:
        self.used.add(name)
        return super().__getitem__(name)


def read_folder(
    path: str | os.PathLike[str], *, kind: str = "estimator"
) -> tuple[dict[str, Any], Tensors]:
    """Read a folder that `write_folder` wrote, in this version or an earlier one."""
    folder, name = _folder(path), f"{kind}.json"
    if not (folder / name).is_file():
        raise FileFormatError(f"{folder} is not a saved {kind}: it has no {name}")
    with damaged_if(f"{_braced(folder / name)} is damaged ({{}}); save it again"):
        meta = read_json(inside(folder, name))
    if not isinstance(meta, dict) or meta.get("format") != f"fewer-{kind}":
        raise FileFormatError(f"{folder / name} was not written by fewer")
    version = meta.get("version")
    if isinstance(version, bool) or not isinstance(version, int) or version < 1:
        raise FileFormatError(
            f"{folder / name} is damaged (its version is {version!r}, not a number from 1 to "
            f"{VERSION}); save it again"
        )
    if version > VERSION:
        raise FileFormatError(
            f"{folder} has format version {version}, written by fewer {meta.get('fewer')}; "
            f"this is fewer {__version__}, which reads up to {VERSION}: upgrade fewer"
        )
    with damaged_if(f"{_braced(folder / TENSORS)} is missing or damaged ({{}}); save it again"):
        tensors = read_tensors(inside(folder, TENSORS))[1]
    if version < 2:
        with damaged_where_unfit(path):
            meta, tensors = _upgrade(meta, tensors)
    return meta, Tensors(tensors)


def _upgrade(
    meta: dict[str, Any], tensors: dict[str, Tensor]
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """What version 1 of the format wrote, under today's names."""
    for part, names in (("evidence", _EVIDENCE_1), ("target", _TARGET_1)):
        if isinstance(meta.get(part), dict):
            meta[part] = {names.get(key, key): value for key, value in meta[part].items()}
    renamed = {f"evidence.{old}": f"evidence.{new}" for old, new in _EVIDENCE_1.items()}
    for name, value in meta.pop("numbers", {}).items():  # of baselines
        meta[name.removesuffix("_")] = value
    return meta, {renamed.get(name, name): part for name, part in tensors.items()}


def _folder(path: Any) -> Path:
    if not isinstance(path, (str, os.PathLike)):
        raise TypeInputError(f"path={path!r} must be the name of a folder, such as 'panel/'")
    return Path(path)


def _refuse_foreign(target: Path, kind: str, ours: set[str]) -> None:
    if not target.exists():
        return
    held = sorted(item.name for item in target.iterdir()) if target.is_dir() else None
    if held is None or (held and f"{kind}.json" not in held):
        raise InputError(f"{target} exists and is not a saved {kind}; choose another path")
    if others := [name for name in held if name not in ours]:
        raise InputError(
            f"{target} holds more than a saved {kind}: {join_names(others, quoted=False)}; saving "
            "replaces the whole folder, so choose another path or move these away"
        )


def require(meta: dict[str, Any], kinds: dict[Any, Any], path: str | os.PathLike[str]) -> None:
    """Refuse a description that is not of a kind, as `fewer._stored.misfit` writes kinds."""
    if reason := misfit(meta, kinds):
        raise FileFormatError(f"{path} is damaged ({reason}); save it again")


@contextmanager
def damaged_where_unfit(
    path: str | os.PathLike[str], tensors: Tensors | None = None
) -> Iterator[None]:
    """Turn errors from parts that do not fit together into a `FileFormatError`.

    With ``tensors``, those that the block has not used are an error, too.
    """
    message = f"the tensors in {_braced(path)} do not fit its description ({{}}); save it again"
    with damaged_if(message, InputError):
        yield
    if tensors is not None and (others := sorted(set(tensors) - tensors.used)):
        raise FileFormatError(
            f"{path} has tensors that do not belong there: {join_names(others)}; load it with the "
            "version of fewer that wrote it, or save it again"
        )


def _braced(path: str | os.PathLike[str]) -> str:
    """A path that can be part of a format string."""
    return os.fspath(path).replace("{", "{{").replace("}", "}}")


# -- options ----------------------------------------------------------------------------------


def describe_parameters(parameters: dict[str, Any]) -> dict[str, Any]:
    """Parameters of an estimator as JSON; functions by name only, since code is not stored."""
    return {name: _describe(name, value) for name, value in parameters.items()}


def restore_parameters(
    stored: dict[str, Any], given: dict[str, Any], optional: tuple[str, ...]
) -> dict[str, Any]:
    """Parameters from JSON and functions from the caller; ``optional`` functions may be missing."""
    functions = [
        name for name, value in stored.items() if isinstance(value, dict) and "function" in value
    ]
    for name in given:
        if name not in functions:
            raise InputError(
                f"load(path, {name}=...): only options that were functions can be passed, here "
                f"{', '.join(functions) or 'none'}; change others with set_params after loading"
            )
    found: dict[str, Any] = {}
    for name, value in stored.items():
        if name in given:
            found[name] = given[name]
        elif name in functions and name not in optional:
            raise InputError(
                f"{name} was the function {value['function']}, which is not stored: "
                f"pass it again as load(path, {name}=...)"
            )
        else:
            with damaged_if(f"the stored option {name!r} cannot be read ({{}}); save it again"):
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
        return None  # its state has changed since the fit
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
    """The Python equivalent of values of NumPy, torch, pandas and polars."""
    if isinstance(value, (np.generic, np.ndarray)):
        return value.tolist()
    if isinstance(value, torch.device):
        return str(value)
    if isinstance(value, Set):
        return sorted(value, key=str)
    if name == "costs" and hasattr(value, "to_dict"):
        return value.to_dict()
    for method in ("tolist", "to_list"):  # of pandas, whose categories only know the former, polars
        if hasattr(value, method):
            return getattr(value, method)()
    return value


def _restore(value: Any) -> Any:
    if isinstance(value, dict) and "mapping" in value:
        return {_restore(key): _restore(item) for key, item in value["mapping"]}
    if isinstance(value, dict) and "number" in value:
        return float(value["number"])
    if not isinstance(value, list):
        return value
    if value and all(isinstance(item, bool) for item in value):
        return np.array(value, dtype=bool)  # a mask over the features
    # nested ones too: tuples can be labels of groups, and keys
    return tuple(_restore(item) for item in value)


# -- parts of a model --------------------------------------------------------------------------


def require_weights(spec: Any, k: int, out: int, tensors: Tensors, prefix: str) -> None:
    """Refuse layers that a description merely claims, before memory is taken for them."""
    if callable(spec):
        return
    hidden = () if isinstance(spec, str) else hidden_widths(spec)
    claimed = sum(a * b for a, b in pairwise((k, *hidden, out)))
    held = sum(tensors[name].numel() for name in tensors if name.startswith(f"{prefix}."))
    if claimed > held:
        raise ValueError(f"{claimed:,} weights of {prefix!r} are described, {held:,} are there")


def restore_decoder(
    net: nn.Module, prefix: str, tensors: dict[str, Tensor], link: str | None
) -> MeasuredDecoder:
    """Load the state that was stored under a prefix into a decoder around ``net``."""
    start = f"{prefix}."
    state = {name.removeprefix(start): tensors[name] for name in tensors if name.startswith(start)}
    for name, part in state.items():
        if part.is_floating_point() and not torch.isfinite(part).all():
            raise ValueError(f"{start}{name} holds NaN or infinite values")
    parts: dict[str, Any] = {
        name: state[name].clone() for name in ("fill", "out_center", "out_scale", "offset")
    }
    k = len(parts["fill"])
    if isinstance(net, nn.Sequential) and isinstance(last := net[-1], nn.Linear):
        weight = state.get(f"net.{len(net) - 1}.weight")
        if weight is not None and weight.shape[-1] == last.in_features + k:
            net = skip_connected(net)
    for name in ("fill", "center", "scale"):
        require_array(start + name, state[name].numpy(), (k,), "f")
    require_array(f"{start}order", state["order"].numpy(), (k,), "i")
    require_array(f"{start}log_inputs", state["log_inputs"].numpy(), (), "b")
    if not torch.equal(state["order"].sort().values, torch.arange(k)):
        raise ValueError(f"{start}order is not an order of {k} inputs")
    if (state["scale"] == 0).any():
        raise ValueError(f"{start}scale is 0")
    decoder = MeasuredDecoder(net.double(), link=link, **parts)
    decoder.load_state_dict(state)
    decoder.double().eval()
    with torch.no_grad():
        inputs = decoder.fill[None]
        if decoder(inputs).shape != net(decoder.inputs(inputs)).shape:
            raise ValueError(f"the scales of {prefix!r} are not those of its outputs")
    return decoder


def restore_columns(
    stored: list[Any], d: int, path: str | os.PathLike[str], name: str = "columns"
) -> NDArray[np.int64]:
    """Chosen columns, checked."""
    whole = all(isinstance(j, int) and not isinstance(j, bool) and 0 <= j < d for j in stored)
    if not stored or not whole or sorted(set(stored)) != stored:
        raise FileFormatError(
            f"{path} is damaged ({name!r} must be numbers from 0 to {d - 1}, ascending); "
            "save it again"
        )
    return np.array(stored, dtype=np.int64)


def describe_labels(classes: NDArray) -> tuple[list[Any], str]:
    """Class labels as JSON, and their dtype."""
    labels = classes.tolist()
    plain = all(isinstance(label, (bool, int, float, str)) for label in labels)
    if classes.dtype.kind not in LABEL_KINDS or not plain:
        raise InputError(
            f"class labels of type {classes.dtype} cannot be saved; use numbers or strings"
        )
    return labels, classes.dtype.str


def restore_labels(labels: list[Any], dtype: str) -> NDArray:
    """The labels that `describe_labels` described."""
    if reason := misfit(labels, [(bool, int, float, str)], "classes"):
        raise ValueError(reason)
    kind = np.dtype(dtype)
    if kind.kind not in LABEL_KINDS:
        raise FileFormatError(f"class labels of type {kind} are not known")
    if len(labels) * kind.itemsize > MOST_LABELS:
        raise ValueError(f"{len(labels)} class labels of {kind.itemsize:,} bytes each")
    if not labels or len(set(labels)) < len(labels):
        raise ValueError("class labels are missing or repeated")
    return np.array(labels, dtype=kind)


def describe_record(record: Any, prefix: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Split a dataclass into JSON values and tensors, the latter named with a prefix."""
    parts = {field.name: getattr(record, field.name) for field in fields(record)}
    arrays = {name: part for name, part in parts.items() if isinstance(part, np.ndarray)}
    words = {name: part for name, part in parts.items() if name not in arrays}
    return words, {f"{prefix}.{name}": torch.from_numpy(part) for name, part in arrays.items()}


def restore_record(
    cls: type, words: dict[str, Any], tensors: dict[str, Tensor], prefix: str
) -> Any:
    """The dataclass that `describe_record` described; unknown fields are ignored."""
    names = {field.name for field in fields(cls)}
    if not isinstance(words, dict):
        raise ValueError(f"{prefix!r} is {str(words)[:40]}; it must be an object")
    parts = {name: part for name, part in words.items() if name in names}
    for name in names:
        if f"{prefix}.{name}" in tensors:
            parts[name] = tensors[f"{prefix}.{name}"].numpy()
    try:
        return cls(**parts)
    except TypeError as error:  # a part is missing
        raise KeyError(str(error)) from error
