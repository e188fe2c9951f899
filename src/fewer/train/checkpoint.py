"""An unfinished fit on disk, so that what was trained is not lost with the process.

A folder holds ``fit.json``, which says what is being fitted, and one safetensors file for each part
of the state, with its description in the file's header: a file is whole or not there. When the
fit is done the folder goes.
"""

import json
import os
import re
import tempfile
import time
from pathlib import Path
from typing import Any, Union

from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from fewer.distributed import is_rank0, on_rank0
from fewer.errors import FileFormatError, InputError

__all__ = ["Checkpoint", "stored_seed"]

EVERY = 60.0
NOTES = "fit.json"
FORMAT = "fewer-checkpoint"
NAME = re.compile(r"[a-z0-9-]+\.safetensors")

State = tuple[dict[str, Any], dict[str, Tensor]]


class Checkpoint:
    """Where an unfinished fit is kept; of several ranks only rank 0 reads and writes.

    Parameters
    ----------
    folder : path
        Made if it is not there.
    every : float, default=60
        Seconds between two states at least; a state is taken at the end of an epoch.

    Examples
    --------
    >>> import tempfile, torch
    >>> folder = Path(tempfile.mkdtemp()) / "unfinished"
    >>> kept = Checkpoint(folder)
    >>> kept.begin({"k": 5})
    >>> kept.save("training", {"epoch": 3}, {"weight": torch.ones(2)})
    >>> Checkpoint(folder).load("training")
    ({'epoch': 3}, {'weight': tensor([1., 1.])})
    >>> kept.finish()
    >>> folder.exists()
    False
    """

    def __init__(self, folder: str | os.PathLike[str], every: float = EVERY) -> None:
        if not isinstance(folder, (str, os.PathLike)) or not os.fspath(folder):
            raise InputError(f"checkpoint={folder!r} must be the path of a folder")
        self.folder, self.every = Path(folder), every
        self._last = time.monotonic()

    def __repr__(self) -> str:
        return f"Checkpoint({str(self.folder)!r}, every={self.every:g})"

    @classmethod
    def of(cls, wanted: Union["Checkpoint", str, os.PathLike[str]]) -> "Checkpoint":
        """The same, from a path or one of these."""
        return wanted if isinstance(wanted, cls) else cls(wanted)  # type: ignore[arg-type]

    def part(self, name: str) -> "Checkpoint":
        """A checkpoint inside this one, for a fit that is part of a longer piece of work."""
        return Checkpoint(self.folder / name, self.every)

    def begin(self, facts: dict[str, Any]) -> None:
        """Say what is being fitted; refuse to go on from something else.

        Parameters
        ----------
        facts : dict from str to what JSON holds
            All that decides the result; numbers that agree to six digits count as the same.
        """
        on_rank0(lambda: self._begin(json.loads(json.dumps(facts))))

    def _begin(self, facts: dict[str, Any]) -> None:
        stored = read_notes(self.folder)
        if stored is None:
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
                if any(self.folder.iterdir()):
                    raise InputError(
                        f"checkpoint={str(self.folder)!r} is a folder with other things in it; "
                        "name one that is empty or not there yet"
                    )
                text = json.dumps({"format": FORMAT, "fit": facts}, indent=1)
                _replace(self.folder / NOTES, text.encode())
            except OSError as error:
                raise InputError(
                    f"checkpoint={str(self.folder)!r} cannot be written ({error})"
                ) from error
            return
        for name, value in facts.items():
            if not _same(stored.get(name), value):
                raise InputError(
                    f"{self.folder} holds an unfinished fit with {name}={stored.get(name)!r}, not "
                    f"{value!r}: go on with that one, delete the folder, or name another"
                )

    def due(self) -> bool:
        """Whether it is time for this process to write down its state."""
        return is_rank0() and time.monotonic() - self._last >= self.every

    def save(self, name: str, notes: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        """Keep one part of the state; the one before it stays until this one is whole."""
        if not is_rank0():
            return
        handle, scratch = tempfile.mkstemp(dir=self.folder, prefix=".part-")
        os.close(handle)
        try:
            # copies, since safetensors refuses tensors that share memory, such as tied weights
            copies = {
                key: part.detach().to("cpu", copy=True).contiguous()
                for key, part in tensors.items()
            }
            save_file(copies, scratch, metadata={"format": FORMAT, "notes": json.dumps(notes)})
            os.replace(scratch, self.folder / f"{name}.safetensors")
        except BaseException:
            Path(scratch).unlink(missing_ok=True)
            raise
        self._last = time.monotonic()

    def load(self, name: str) -> State | None:
        """A part of the state, on the CPU, on every rank; None if it was not kept."""
        return on_rank0(lambda: self._load(name))

    def _load(self, name: str) -> State | None:
        path = self.folder / f"{name}.safetensors"
        if not path.is_file():
            return None
        try:
            with safe_open(path, framework="pt") as file:
                header = file.metadata() or {}
                if header.get("format") != FORMAT:
                    raise ValueError("not written by fewer")
                tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
            return json.loads(header["notes"]), tensors
        except Exception as error:  # safetensors has no public exception of its own
            raise FileFormatError(
                f"{path} is damaged ({error}); delete it to start anew from the part before"
            ) from error

    def drop(self, name: str) -> None:
        """Forget a part."""
        if is_rank0():
            (self.folder / f"{name}.safetensors").unlink(missing_ok=True)

    def finish(self) -> None:
        """Delete what was kept: the fit is done."""
        if is_rank0() and read_notes(self.folder) is not None:
            for path in self.folder.iterdir():
                if path.name == NOTES or NAME.fullmatch(path.name) or path.match(".part-*"):
                    path.unlink(missing_ok=True)
            if not any(self.folder.iterdir()):
                self.folder.rmdir()


def read_notes(folder: Path) -> dict[str, Any] | None:
    """What a checkpoint folder is about; None if it is none."""
    path = folder / NOTES
    if not path.is_file():
        return None
    try:
        notes = json.loads(path.read_text(encoding="utf-8"))
        if notes["format"] != FORMAT or not isinstance(notes["fit"], dict):
            raise ValueError("not written by fewer")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise FileFormatError(
            f"{path} is damaged ({error}); delete {folder} to start anew"
        ) from error
    return notes["fit"]


def stored_seed(checkpoint: Checkpoint | str | os.PathLike[str] | None) -> int | None:
    """The seed of an unfinished fit, which a fit without a seed of its own goes on with.

    Examples
    --------
    >>> stored_seed(None) is None
    True
    """
    if checkpoint is None:
        return None
    return (read_notes(Checkpoint.of(checkpoint).folder) or {}).get("seed")


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return abs(one - other) <= 1e-6 * max(abs(one), abs(other))
    return one == other


def _replace(path: Path, data: bytes) -> None:
    handle, scratch = tempfile.mkstemp(dir=path.parent, prefix=".part-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.replace(scratch, path)
    except BaseException:
        Path(scratch).unlink(missing_ok=True)
        raise


def flat_state(prefix: str, state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Tensors under names that begin with a prefix.

    Examples
    --------
    >>> import torch
    >>> list(flat_state("network", {"bias": torch.ones(1)}))
    ['network.bias']
    """
    return {f"{prefix}.{name}": part for name, part in state.items()}


def taken_state(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors whose names begin with a prefix, under their own names."""
    start = f"{prefix}."
    return {
        name.removeprefix(start): part for name, part in tensors.items() if name.startswith(start)
    }
