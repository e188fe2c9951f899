"""Small predictors of classes that learn from a wide one."""

from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fewer.data import RowView, moments, read_blocks
from fewer.data.batches import Batches
from fewer.data.source import array_source
from fewer.nn import MeasuredDecoder
from fewer.train.network import train_decoders
from fewer.train.training_data import TrainingData, prepare

__all__ = ["WIDTH", "distil"]

WIDTH, DROPOUT = 512, 0.3  # of the hidden layer of the wide network
COPIES, NOISE = 3, 0.2  # of the rows, with noise in units of the spread of each feature
BLOCK = 8192  # rows that are predicted at a time
EFFORT = 1.4  # the rows are more, which makes training longer anyway


@torch.no_grad()
def distil(
    data: TrainingData,
    columns: NDArray[np.int64],
    seed: int,
    *,
    tuned: float | None = None,
    width: int = WIDTH,
) -> MeasuredDecoder:
    """Train the configured network on the probabilities that a wide one predicts.

    A label says which class a row is; the prediction of a wide network also says which classes it
    might have been, for rows between the given ones as well (Hinton, Vinyals and Dean, 2015). So
    the training rows are repeated with noise; held-out rows keep their values and their labels.

    Parameters
    ----------
    data : TrainingData
        Rows with classes as targets, and how to train.
    columns : array of int
        Measured columns, ascending.
    seed, tuned
        As in `train_decoders`, but one for the only panel.
    width : int, default=512
        Hidden units of the wide network.
    """
    assert data.targets is not None
    # untuned: smoothed probabilities are what is to be learned
    wide = replace(data.config, decoder=(width,), dropout=DROPOUT)
    teacher = train_decoders(replace(data, config=wide, valid=None), [columns], seed + 1)[0]
    fill = torch.from_numpy(data.stats.mean[columns])
    x = _values(data, data.train, columns, fill)
    generator = torch.Generator().manual_seed(seed)
    noise = [torch.randn(x.shape, generator=generator, dtype=x.dtype) for _ in range(COPIES - 1)]
    near = torch.cat([x, *(x + NOISE * x.std(0) * part for part in noise)])
    source = array_source(near.numpy())
    index = data.train.index
    pupil = prepare(
        source,
        moments(source),
        replace(data.config, dropout=0.0, validation_fraction=0.0),
        data.loss,
        seed,
        targets=data.targets[index].repeat(COPIES),
        out=data.out,
        weights=None if data.weights is None else data.weights[index].repeat(COPIES),
    )
    likely = torch.cat([teacher(part) for part in near.split(BLOCK)])
    valid = None
    if data.valid is not None:
        index = data.valid.index
        valid = Batches(
            array_source(_values(data, data.valid, columns, fill).numpy()),
            np.arange(len(index)),
            mean=torch.from_numpy(pupil.stats.mean),
            center=pupil.center,
            scale=pupil.scale,
            targets=data.targets[index],
            weights=None if data.weights is None else data.weights[index],
            device=data.device,
        )
    pupil = replace(pupil, train=pupil.train.with_targets(likely.float()), valid=valid)
    own = None if tuned is None else [tuned]
    return train_decoders(pupil, [np.arange(len(columns))], seed, tuned=own, effort=EFFORT)[0]


def _values(data: TrainingData, rows: Batches, columns: NDArray, fill: Tensor) -> Tensor:
    """Measured values of some rows, with the mean in place of missing ones."""
    blocks = read_blocks(RowView(data.source, rows.index))
    x = torch.cat([x[:, columns] for _, x in blocks])
    return torch.where(torch.isnan(x), fill, x)
