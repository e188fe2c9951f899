"""Options for several processes and for work that goes on after a crash."""

import json
import os
import shlex
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

__all__ = ["Processes"]

PANEL = "Several processes, and going on"
ERROR_FILE = "TORCHELASTIC_ERROR_FILE"  # where torchrun looks for the reason of a failure
WORKER = "FEWER_WORKER"


@dataclass(frozen=True)
class Processes:
    """Options, and what follows from them."""

    devices: Annotated[
        int,
        typer.Option(
            help="Processes on this machine: one for each GPU, or as many as take a part of the "
            "rows each on the CPU.",
            min=1,
            rich_help_panel=PANEL,
        ),
    ] = 1
    nodes: Annotated[
        int,
        typer.Option(
            help="Machines; type the same command on each, with MASTER_ADDR set to the name of one "
            "of them.",
            min=1,
            rich_help_panel=PANEL,
        ),
    ] = 1
    checkpoint: Annotated[
        Path | None,
        typer.Option(
            help="Keep unfinished work in this folder; otherwise it is kept beside the panel, with "
            ".unfinished after its name. It goes when the panel is there.",
            rich_help_panel=PANEL,
            show_default=False,
        ),
    ] = None
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Go on from there, if there is any.", rich_help_panel=PANEL),
    ] = False

    @property
    def many(self) -> bool:
        """Whether more than one process was asked for."""
        return self.devices * self.nodes > 1

    @property
    def starts(self) -> bool:
        """Whether this process is to start the others, and not one of them."""
        return self.many and WORKER not in os.environ

    def kept_in(self, out: Path) -> Path:
        """Where unfinished work is kept; what is there must not be lost by mistake."""
        folder = self.checkpoint
        if folder is None:
            folder = out.absolute().with_name(f"{out.name}.unfinished")
        if WORKER in os.environ or self.resume:
            return folder
        if (folder / "fit.json").is_file():
            from fewer.errors import InputError

            raise InputError(
                f"{folder} holds unfinished work: add --resume to go on from it, or delete the "
                "folder to start anew"
            )
        return folder

    @contextmanager
    def unfinished(self, folder: Path) -> Iterator[None]:
        """Keep a folder for work that is stopped, not for input that cannot be used."""
        begun = folder.exists()
        try:
            yield
        except Exception:
            if not (begun or self.many):
                shutil.rmtree(folder, ignore_errors=True)
            raise

    def start(self, line: str) -> None:
        """Run a command of fewer in as many processes as were asked for, and wait for them."""
        from fewer.train.launch import spawn

        os.environ[WORKER] = "1"
        program = "from fewer.cli import main; main()"
        try:
            spawn(
                ["-c", program, *shlex.split(line)[1:]],
                devices=self.devices,
                nodes=self.nodes,
                hint="Type the same command with --resume to go on from the last checkpoint",
            )
        finally:
            del os.environ[WORKER]

    @contextmanager
    def worker(self) -> Iterator[None]:
        """Leave what goes wrong in a worker to the process that started it, which says it once."""
        if WORKER not in os.environ:
            yield
            return
        import warnings

        from fewer.errors import FewerError, FewerWarning

        if os.environ.get("RANK") != "0":
            warnings.simplefilter("ignore", FewerWarning)  # the first gives them too
        try:
            yield
        except (FewerError, OSError) as error:
            text = json.dumps({"message": str(error), "timestamp": int(time.time())})
            if ERROR_FILE in os.environ:
                Path(os.environ[ERROR_FILE]).write_text(text, encoding="utf-8")
            raise typer.Exit(1) from error
        except KeyboardInterrupt:
            raise typer.Exit(130) from None
