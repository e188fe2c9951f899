"""Which device to use, and randomness that leaves the caller's alone."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from fewer.errors import InputError

__all__ = ["float64_device", "pick_device", "seeded", "use_mixed"]

_TURN = threading.RLock()


def pick_device(device: str | torch.device) -> torch.device:
    """Turn "auto" into CUDA, MPS or CPU, whichever is there, and check any other name.

    Examples
    --------
    >>> pick_device("cpu")
    device(type='cpu')
    """
    if device == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        if not isinstance(device, (str, torch.device)):
            raise RuntimeError("not the name of a device")
        found = torch.device(device)
        torch.empty(1, device=found)
    except (RuntimeError, AssertionError) as error:
        first = str(error).splitlines()[0]
        raise InputError(
            f"device={str(device)!r} cannot be used here ({first}); use 'auto' or 'cpu'"
        ) from error
    return found


def use_mixed(precision: str, device: torch.device) -> bool:
    """Whether decoders run in mixed precision: on CUDA by default, anywhere when asked.

    Examples
    --------
    >>> use_mixed("auto", torch.device("cpu"))
    False
    """
    if precision == "auto":
        return device.type == "cuda" and torch.cuda.is_bf16_supported()
    return precision == "bfloat16"


def float64_device(device: torch.device) -> torch.device:
    """Where to factorise: the same device, or the CPU where it has no float64 (MPS).

    Examples
    --------
    >>> float64_device(torch.device("mps"))
    device(type='cpu')
    """
    return torch.device("cpu") if device.type == "mps" else device


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[torch.Generator]:
    """Seed torch inside the block and give back the caller's random state after it.

    Yields a CPU generator for the order of rows; layers use torch's global one, so threads take
    turns. Whatever the caller has set, float32 and gradients are on inside.

    Examples
    --------
    >>> with seeded(0, torch.device("cpu")):
    ...     first = torch.rand(1)
    >>> with seeded(0, torch.device("cpu")):
    ...     bool(first == torch.rand(1))
    True
    """
    devices = [device] if device.type == "cuda" else []
    with _TURN, torch.random.fork_rng(devices=devices), torch.enable_grad():
        default = torch.get_default_dtype()
        torch.set_default_dtype(torch.float32)
        torch.manual_seed(seed)
        try:
            yield torch.Generator().manual_seed(seed)
        finally:
            torch.set_default_dtype(default)
