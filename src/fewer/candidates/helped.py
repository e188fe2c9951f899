"""Trainings of `fewer.select` that all processes do together, led by the first.

Settings go to the others as values; functions among them, such as a decoder of the user's own,
are the same in every process, since every process runs the same script.
"""

import tempfile
from collections.abc import Callable
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fewer.constraints import Constraints
from fewer.data import Moments, Source
from fewer.data.helpers import lead_with_help, with_help
from fewer.data.processes import Team, alone
from fewer.nn import Loss, MeasuredDecoder, make_loss
from fewer.panel import Panel
from fewer.train import Checkpoint, Fit, TrainingConfig, fit_gradient

__all__ = ["gradient_fit", "led_panel", "trained_together"]

Train = Callable[..., MeasuredDecoder]


def gradient_fit(
    source: Source,
    stats: Moments,
    settings: TrainingConfig,
    *,
    loss: Loss,
    seed: int,
    constraints: Constraints,
    targets: Tensor | None = None,
    out: int | None = None,
    groups: NDArray | None = None,
) -> Fit:
    """`fewer.train.fit_gradient` in all processes; the rule must be that of the selection."""

    def work(source: Source, **sent: Any) -> Fit:
        return fit_gradient(
            source,
            stats,
            settings,
            loss=loss,
            seed=seed,
            targets=targets,
            out=out,
            constraints=constraints,
            groups=groups,
        )

    return with_help(
        "gradient_fit",
        work,
        source,
        stats=asdict(stats),
        settings=_sent(settings),
        loss=loss.name,
        seed=seed,
        targets=targets,
        out=out,
        groups=_numbered(groups),
    )


def trained_together(
    train: Train,
    source: Source,
    columns: NDArray[np.int64],
    settings: TrainingConfig,
    loss: Loss,
    seed: int,
    *,
    groups: NDArray | None = None,
    **more: Any,
) -> MeasuredDecoder:
    """Train a decoder, by ``train``, in all processes; ``more`` goes to it as it is."""

    def work(source: Source, **sent: Any) -> MeasuredDecoder:
        return train(source, columns, settings, loss, seed, groups=groups, **more)

    return with_help(
        "trained_together",
        work,
        source,
        columns=columns,
        settings=_sent(settings),
        loss=loss.name,
        seed=seed,
        groups=_numbered(groups),
        **more,
    )


def led_panel(
    team: Team,
    work: Callable[[], Panel],
    base: Source,
    settings: TrainingConfig,
    constraints: Constraints,
    train: Train,
) -> Panel:
    """A panel that the first process finds with the help of the others, in all of them.

    Parameters
    ----------
    team : Team
        The processes.
    work : callable
        The selection.
    base : Source
        The rows, as all have opened them.
    settings, constraints : TrainingConfig, Constraints
        Of the selection, the same in all processes.
    train : callable
        Trains a decoder on given columns.
    """
    if not team.many:
        return work()

    def fit(source: Source, *, stats: Any, settings: Any, loss: str, **sent: Any) -> None:
        wanted = _received(settings)
        fit_gradient(
            source, Moments(**stats), wanted, loss=make_loss(loss), constraints=constraints, **sent
        )

    def decoder(source: Source, *, columns: Any, settings: Any, loss: str, **sent: Any) -> None:
        train(source, columns, _received(settings), make_loss(loss), **sent)

    def _received(sent: dict[str, Any]) -> TrainingConfig:
        return replace(settings, **sent)

    found: list[Panel] = []

    def search() -> dict[str, np.ndarray]:
        found.append(work())
        return _files(found[0])

    files = lead_with_help(team, search, base, {"gradient_fit": fit, "trained_together": decoder})
    if found:
        return found[0]
    functions = {"decoder": settings.decoder} if callable(settings.decoder) else {}
    with tempfile.TemporaryDirectory(prefix="fewer-") as folder:
        for name, data in files.items():
            (Path(folder) / name).write_bytes(data.tobytes())
        return Panel.load(folder, **functions)


def _sent(settings: TrainingConfig) -> dict[str, Any]:
    """Options as values, without functions and without what concerns one process alone."""
    aside = ("device", "progress", "on_epoch")
    found = {field.name: getattr(settings, field.name) for field in fields(settings)}
    if settings.checkpoint is not None:
        found["checkpoint"] = str(Checkpoint.of(settings.checkpoint).folder)
    return {k: v for k, v in found.items() if not callable(v) and k not in aside}


def _numbered(groups: NDArray | None) -> NDArray[np.int64] | None:
    return None if groups is None else np.unique(groups, return_inverse=True)[1]


def _files(panel: Panel) -> dict[str, np.ndarray]:
    """A panel as the files that it is saved as."""
    with tempfile.TemporaryDirectory(prefix="fewer-") as folder, alone():
        panel.save(Path(folder) / "panel")
        paths = (Path(folder) / "panel").iterdir()
        return {path.name: np.frombuffer(path.read_bytes(), np.uint8) for path in paths}
