"""The asked-for decoder, trained on the columns of a panel."""

from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fewer.constraints import resolve
from fewer.data import Source, moments
from fewer.nn import Loss, MeasuredDecoder
from fewer.train import TrainingConfig
from fewer.train.device import seeded
from fewer.train.problem import prepare
from fewer.train.refit import refit_decoder

__all__ = ["train_decoder"]


def train_decoder(
    part: Source,
    columns: NDArray[np.int64],
    settings: TrainingConfig,
    loss: Loss,
    seed: int,
    targets: Tensor | None = None,
    out: int | None = None,
    groups: NDArray | None = None,
    seconds: float | None = None,
) -> MeasuredDecoder:
    """The decoder that ``settings`` ask for, trained on these columns by all ranks together.

    What is measured is known: where the rows themselves are the target, the network spends
    nothing on these columns.
    """
    settings = replace(settings, k=len(columns))
    constraints = resolve(None, part.shape[1], len(columns), include=columns)
    problem = prepare(part, moments(part), settings, loss, seed, targets, out, constraints, groups)
    known = torch.from_numpy(columns)
    if targets is None:
        loss = problem.loss.apart_from(known.to(problem.device))
        problem = replace(problem, loss=loss)
    with seeded(seed, problem.device) as generator:
        decoder, history = refit_decoder(
            problem,
            nn.Identity(),
            columns,
            conflicts=0,
            generator=generator,
            groups=groups,
            seconds=seconds,
        )
    decoder = decoder.cpu().double().eval()
    decoder.known = known if targets is None else None
    if history and history[0]["val_loss"] is not None:
        decoder.epochs = min(history, key=lambda row: row["val_loss"])["trained"]
    return decoder
