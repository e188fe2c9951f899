"""The state of an unfinished fit on disk, so that it can resume after a crash.

A folder holds ``fit.json``, which describes the fit, and one safetensors file for each part of the
state, with metadata in its header. Files are written atomically. When the fit is done the folder is
deleted.
"""

import json
import math
import os
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Union

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from fewer._files import write_text, write_whole
from fewer._stored import damaged_if, inside, misfit, parse_json, read_json, read_tensors
from fewer.distributed import is_rank0, on_rank0
from fewer.errors import FileFormatError, InputError
from fewer.train.optimize import Adam, KeepBest

__all__ = ["Checkpoint", "TrainingState", "flat_state", "released", "stored_seed", "taken_state"]

EVERY = 60.0
NOTES = "fit.json"
FORMAT = "fewer-checkpoint"
MOMENTS = ("exp_avgs", "exp_avg_sqs", "state_steps")
NAME = re.compile(r"[a-z0-9-]+\.safetensors")
DRAFT = re.compile(r"\.(fit\.json|[a-z0-9-]+\.safetensors)-\w+")

State = tuple[dict[str, Any], dict[str, Tensor]]

_LOCKED: dict[Path, int] = {}  # folders of the fits that are running in this process


class Checkpoint:
    """Where an unfinished fit is saved; only rank 0 reads and writes.

    Parameters
    ----------
    folder : path
        Created if missing.
    every : float, default=60
        Minimum number of seconds between two saves, which happen at the end of an epoch.

    Examples
    --------
    >>> import tempfile, torch
    >>> folder = Path(tempfile.mkdtemp()) / "unfinished"
    >>> checkpoint = Checkpoint(folder)
    >>> checkpoint.begin({"k": 5})
    >>> checkpoint.save("training", {"epoch": 3}, {"weight": torch.ones(2)})
    >>> Checkpoint(folder).load("training")
    ({'epoch': 3}, {'weight': tensor([1., 1.])})
    >>> checkpoint.finish()
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
    def of(cls, checkpoint: Union["Checkpoint", str, os.PathLike[str]]) -> "Checkpoint":
        """A checkpoint from a path; one that exists is returned as it is."""
        return checkpoint if isinstance(checkpoint, cls) else cls(checkpoint)  # type: ignore[arg-type]

    def part(self, name: str) -> "Checkpoint":
        """A checkpoint in a subfolder, for one of several fits."""
        return Checkpoint(self.folder / name, self.every)

    def begin(self, facts: dict[str, Any]) -> None:
        """Record what is being fitted; raise if the folder belongs to another fit.

        ``facts`` is everything that determines the result, as JSON; floats are compared to six
        digits.
        """
        on_rank0(lambda: self._begin(json.loads(json.dumps(facts))))

    def _begin(self, facts: dict[str, Any]) -> None:  # on rank 0
        stored = read_notes(self.folder)
        if stored is None:
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
                if any(self.folder.iterdir()):
                    raise InputError(
                        f"checkpoint={str(self.folder)!r} contains other files; "
                        "give an empty or a new folder"
                    )
            except OSError as error:
                problem = f"checkpoint={str(self.folder)!r} cannot be written ({error})"
                raise InputError(problem) from error
            self._lock()
            content = {"format": FORMAT, "fit": facts}
            write_text(self.folder / NOTES, json.dumps(content, indent=1))
            return
        self._lock()
        for name, value in facts.items():
            before = stored.get(name)
            if isinstance(before, float) and isinstance(value, float):
                same = math.isclose(before, value, rel_tol=1e-6)
            else:
                same = before == value
            if not same:
                raise InputError(
                    f"{self.folder} holds an unfinished fit with {name}={before!r}, not "
                    f"{value!r}: continue that fit, delete the folder, or use another"
                )

    def _lock(self) -> None:
        """Keep other runs out of the folder until `released`, or until this process ends."""
        folder = self.folder.absolute()
        try:
            import fcntl  # noqa: PLC0415 (not on every system)

            file = os.open(folder, os.O_RDONLY)
        except (ImportError, OSError):
            return
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(file)
            raise InputError(
                f"checkpoint={str(self.folder)!r} is in use by another run; wait until that has "
                "ended, or give another folder"
            ) from error
        except OSError:  # a file system without locks
            os.close(file)
        else:
            _LOCKED[folder] = file

    def due(self) -> bool:
        """Whether it is time to save the state."""
        return is_rank0() and time.monotonic() - self._last >= self.every

    def save(self, name: str, notes: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        """Save one part of the state, replacing its predecessor atomically."""
        if not is_rank0():
            return
        # copies, since safetensors refuses tensors that share memory, such as tied weights
        copies = {key: x.detach().to("cpu", copy=True).contiguous() for key, x in tensors.items()}
        header = {"format": FORMAT, "notes": json.dumps(notes)}
        path = self.folder / f"{name}.safetensors"
        write_whole(path, lambda draft: save_file(copies, draft, metadata=header))
        self._last = time.monotonic()

    def load(self, name: str) -> State | None:
        """A part of the state, on the CPU, on every rank; None if it was not saved."""
        return on_rank0(lambda: self._load(name))

    def _load(self, name: str) -> State | None:
        path = self.folder / f"{name}.safetensors"
        if not path.is_file():
            return None
        with self.reading(name):
            header, tensors = read_tensors(inside(self.folder, path.name))
            if header.get("format") != FORMAT:
                raise ValueError("not written by fewer")
            notes = parse_json(header["notes"], finite=False)
            if not isinstance(notes, dict):
                raise ValueError("its notes are not an object")
            return notes, tensors

    def reading(self, name: str) -> AbstractContextManager[None]:
        """Raise a `FileFormatError` where a stored part does not fit what it is used for."""
        path = str(self.folder / f"{name}.safetensors").replace("{", "{{").replace("}", "}}")
        return damaged_if(f"{path} is damaged ({{}}); delete it to resume from the state before it")

    def drop(self, name: str) -> None:
        """Delete a part."""
        if is_rank0():
            (self.folder / f"{name}.safetensors").unlink(missing_ok=True)

    def finish(self) -> None:
        """Delete the folder after a finished fit."""
        if is_rank0() and read_notes(self.folder) is not None:
            for path in self.folder.iterdir():
                if path.name == NOTES or NAME.fullmatch(path.name):
                    path.unlink(missing_ok=True)
                elif DRAFT.fullmatch(path.name):  # left by a process that was killed while writing
                    shutil.rmtree(path, ignore_errors=True)
            if not any(self.folder.iterdir()):
                self.folder.rmdir()


@contextmanager
def released(checkpoint: Checkpoint | str | os.PathLike[str] | None) -> Iterator[None]:
    """At the end of the block, other runs may use a folder again that `Checkpoint.begin` locked."""
    try:
        yield
    finally:
        if checkpoint is not None:
            file = _LOCKED.pop(Checkpoint.of(checkpoint).folder.absolute(), None)
            if file is not None:
                os.close(file)


def read_notes(folder: Path) -> dict[str, Any] | None:
    """What a checkpoint folder is about; None for any other folder."""
    path = folder / NOTES
    if not path.is_file():
        return None
    try:
        notes = read_json(inside(folder, NOTES))
        if notes["format"] != FORMAT or not isinstance(notes["fit"], dict):
            raise ValueError("not written by fewer")
    except (OSError, ValueError, KeyError, TypeError) as error:
        problem = f"{path} is damaged ({error}); delete {folder} to start over"
        raise FileFormatError(problem) from error
    return notes["fit"]


def stored_seed(checkpoint: Checkpoint | str | os.PathLike[str] | None) -> int | None:
    """The seed of an unfinished fit, with which a fit without a seed resumes."""
    if checkpoint is None:
        return None
    folder = Checkpoint.of(checkpoint).folder
    seed = (read_notes(folder) or {}).get("seed")
    if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int)):
        raise FileFormatError(
            f"{folder / NOTES} is damaged (its seed is {str(seed)[:40]!r}); delete {folder} to "
            "start over"
        )
    return seed


def flat_state(prefix: str, state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Tensors under names that begin with a prefix."""
    return {f"{prefix}.{name}": part for name, part in state.items()}


def taken_state(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors whose names begin with a prefix, without it."""
    at = len(prefix) + 1
    return {name[at:]: part for name, part in tensors.items() if name.startswith(f"{prefix}.")}


@dataclass
class TrainingState:
    """A network in training, and everything that its next epoch depends on."""

    network: nn.Module
    optimizer: Adam
    best: KeepBest
    generator: torch.Generator  # of the order of rows
    device: torch.device
    noise: torch.Generator | None = None  # of the selector, if not torch's own
    history: list[dict[str, Any]] = field(default_factory=list)

    def save(self, checkpoint: Checkpoint, name: str, **notes: Any) -> None:
        """Save the state after an epoch."""
        tensors = flat_state("network", self.network.state_dict())
        tensors |= {"order": self.generator.get_state(), "random": torch.get_rng_state()}
        if self.device.type == "cuda":
            tensors["cuda"] = torch.cuda.get_rng_state(self.device)
        if self.noise is not None:
            tensors[f"noise-{self.device.type}"] = self.noise.get_state()
        if self.best.state is not None:
            tensors |= flat_state("best", self.best.state)
        for at, group in enumerate(self.optimizer.groups):
            for moment in MOMENTS:
                parts = {str(i): part for i, part in enumerate(group[moment])}
                tensors |= flat_state(f"adam.{at}.{moment}", parts)
        notes |= {
            "history": self.history,
            "best": [self.best.loss, self.best.since],
            "rates": self.optimizer.rates,
        }
        checkpoint.save(name, notes, tensors)

    @torch.no_grad()
    def restore(self, state: State) -> None:
        """Restore a saved state."""
        notes, tensors = state
        for name, part in tensors.items():
            if part.is_floating_point() and part.isnan().any():
                raise ValueError(f"{name} holds NaN")
        self.network.load_state_dict(taken_state("network", tensors))
        self.generator.set_state(tensors["order"])
        # ranks share a generator for the noise; a single process uses torch's own
        kind = self.device.type
        own = "cuda" if kind == "cuda" else "random"
        shared = tensors.get(f"noise-{kind}", tensors.get(own))
        torch.set_rng_state(tensors["random"])
        if shared is not None:  # None if it was saved on another kind of device
            if self.noise is not None:
                self.noise.set_state(shared)
            elif kind == "cuda":
                torch.cuda.set_rng_state(shared, self.device)
            else:
                torch.set_rng_state(shared)
        for at, group in enumerate(self.optimizer.groups):
            for moment in MOMENTS:
                stored = taken_state(f"adam.{at}.{moment}", tensors)
                for i, part in enumerate(group[moment]):
                    part.copy_(stored[str(i)])
        rates = [float(rate) for rate in notes["rates"]]
        if len(rates) != len(self.optimizer.rates) or not all(map(math.isfinite, rates)):
            raise ValueError(f"learning rates {rates}")
        self.optimizer.rates[:] = rates
        loss, since = notes["best"]
        self.best.loss, self.best.since = float(loss), int(since)
        best, wanted = taken_state("best", tensors), self.network.state_dict()
        if best and {name: part.shape for name, part in best.items()} != {
            name: part.shape for name, part in wanted.items()
        }:
            raise ValueError("the best state is not one of this network")
        self.best.state = {name: part.to(self.device) for name, part in best.items()} or None
        if reason := misfit(notes["history"], [{str: (float, bool, str, None)}], "history"):
            raise ValueError(reason)
        self.history[:] = notes["history"]
