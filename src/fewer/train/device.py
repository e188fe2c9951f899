"""Device, precision and random state of training."""

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import torch

from fewer.data.moments import tf32
from fewer.distributed import world_size
from fewer.errors import InputError

__all__ = ["enough_memory", "float64_device", "pick_device", "pick_precision", "products", "seeded"]

_LOCK = threading.RLock()


def pick_device(device: str | torch.device) -> torch.device:
    """Resolve "auto" to CUDA, MPS or CPU, whichever is available, and check any other name."""
    if device == "auto":
        if torch.cuda.is_available():
            device = "cuda"
        else:
            return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        if not isinstance(device, (str, torch.device)):
            raise RuntimeError("not the name of a device")
        found = torch.device(device)
        torch.empty(1, device=found)
        if found.type == "cuda" and found.index is None and world_size() > 1:
            # with its number: threads that read ahead would use the first GPU
            found = torch.device("cuda", torch.cuda.current_device())
    except (RuntimeError, AssertionError) as error:
        first = str(error).splitlines()[0]
        raise InputError(
            f"device={str(device)!r} cannot be used here ({first}); use 'auto' or 'cpu'"
        ) from error
    return found


def pick_precision(precision: str, device: torch.device) -> str:
    """Resolve "auto" to "bfloat16" on CUDA where that is fast, to "float32" elsewhere."""
    if precision != "auto":
        return precision
    fast = device.type == "cuda" and torch.cuda.is_bf16_supported()
    return "bfloat16" if fast else "float32"


def products(precision: str) -> AbstractContextManager[None]:
    """Whether CUDA multiplies float32 matrices in tf32 inside the block: not if "float32"."""
    return tf32(precision != "float32")


def float64_device(device: torch.device) -> torch.device:
    """The same device, or the CPU if it does not support float64 (MPS)."""
    return torch.device("cpu") if device.type == "mps" else device


@contextmanager
def enough_memory(device: torch.device, batch_size: int) -> Iterator[None]:
    """Raise an error with a remedy if the memory of the device runs out inside the block."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise InputError(
            f"batch_size={batch_size} does not fit into the memory of {device}; lower batch_size "
            "or the widths of the decoder, or use device='cpu'"
        ) from error


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[torch.Generator]:
    """Seed torch inside the block and restore the caller's random state after it.

    Yields a CPU generator for the order of rows. Layers use torch's global generator, so only one
    thread at a time may enter. Inside, the default dtype is float32 and gradients are enabled.
    """
    devices = [device] if device.type == "cuda" else []
    with _LOCK, torch.random.fork_rng(devices=devices), torch.enable_grad():
        default = torch.get_default_dtype()
        torch.set_default_dtype(torch.float32)
        torch.manual_seed(seed)
        try:
            yield torch.Generator().manual_seed(seed)
        finally:
            torch.set_default_dtype(default)
