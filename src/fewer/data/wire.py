"""Values as bytes, on their way from one process to another; no pickle."""

import json
from typing import Any

import numpy as np
import torch
from torch import Tensor

__all__ = ["pack", "unpack"]


def pack(value: Any) -> bytes:
    """A line of JSON, then the arrays that it speaks of.

    Parameters
    ----------
    value : tensors, arrays, devices and what JSON holds, nested in lists, tuples and dicts

    Examples
    --------
    >>> import numpy as np
    >>> unpack(pack({"columns": np.array([2, 5]), "error": (0.5, None)}))
    {'columns': array([2, 5]), 'error': (0.5, None)}
    """
    arrays: list[np.ndarray] = []
    text = json.dumps(_outline(value, arrays)).encode()
    return b"\n".join([text, b"".join(array.tobytes() for array in arrays)])


def unpack(data: bytes) -> Any:
    """What `pack` was given; tensors are on the CPU."""
    text, _, rest = data.partition(b"\n")
    at = 0

    def built(part: Any) -> Any:
        nonlocal at
        if isinstance(part, list):
            return [built(item) for item in part]
        if not isinstance(part, dict):
            return part
        ((kind, inner),) = part.items()
        if kind == "dict":
            return {built(k): built(v) for k, v in inner}
        if kind == "tuple":
            return tuple(built(item) for item in inner)
        if kind in ("tensor", "device"):
            return _device(inner) if kind == "device" else torch.from_numpy(built(inner))
        dtype, shape = np.dtype(inner[0]), inner[1]
        count = int(np.prod(shape, dtype=np.int64))
        found = np.frombuffer(rest, dtype, count, at).reshape(shape).copy()
        at += found.nbytes
        return found

    return built(json.loads(text))


def _device(kind: str) -> torch.device:
    """The device of that kind which this process has taken."""
    if kind == "cuda":
        return torch.device(kind, torch.cuda.current_device())
    return torch.device(kind)


def _outline(value: Any, arrays: list[np.ndarray]) -> Any:
    if isinstance(value, Tensor):
        return {"tensor": _outline(value.detach().cpu().numpy(), arrays)}
    if isinstance(value, torch.device):
        return {"device": value.type}  # each process has one of its own
    if isinstance(value, np.ndarray):
        arrays.append(np.ascontiguousarray(value))
        return {"array": [value.dtype.str, list(value.shape)]}
    if isinstance(value, dict):
        return {"dict": [[_outline(k, arrays), _outline(v, arrays)] for k, v in value.items()]}
    if isinstance(value, (list, tuple)):
        items = [_outline(item, arrays) for item in value]
        return {"tuple": items} if isinstance(value, tuple) else items
    return value.item() if isinstance(value, np.generic) else value
