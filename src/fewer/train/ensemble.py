"""Predictors of a target that are the mean of several networks, and are one network."""

from dataclasses import dataclass, replace
from statistics import median

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fewer.data import RowView, read_blocks
from fewer.nn import MeasuredDecoder
from fewer.nn.decoder import averaged, without_norms
from fewer.train.last_layer import best_factors
from fewer.train.network import train_decoders
from fewer.train.training_data import TrainingData

__all__ = ["Ensemble", "train_ensemble"]


@dataclass(frozen=True)
class Ensemble:
    """Networks with these hidden layers, of which the outputs are averaged."""

    hidden: tuple[int, ...]
    members: int

    @property
    def widths(self) -> tuple[int, ...]:
        """Hidden layers of the network that all members are together."""
        return tuple(self.members * width for width in self.hidden)


def train_ensemble(
    data: TrainingData,
    columns: NDArray[np.int64],
    ensemble: Ensemble,
    seed: int,
    *,
    seconds: float | None = None,
    tuned: float | None = None,
    effort: float = 1.0,
) -> MeasuredDecoder:
    """Train networks from different weights, as one, and average their outputs before the link.

    What networks get wrong depends on the weights that they start from, so that the mean of
    several is better than each (Lakshminarayanan, Pritzel and Blundell, 2017). With classes, the
    mean is calibrated on held-out rows, not its members.

    Parameters
    ----------
    data : TrainingData
        Rows with a target, and how to train; the layers are those of ``ensemble``.
    columns : array of int
        Measured columns, ascending.
    ensemble : Ensemble
        The networks.
    seed, seconds, tuned, effort
        As in `train_decoders`, but one for the only panel.
    """
    data = replace(data, config=replace(data.config, decoder=ensemble.hidden))
    classes = data.loss.smoothing > 0
    held, given = data.valid, None if tuned is None or classes else [tuned] * ensemble.members
    found = train_decoders(
        replace(data, valid=None) if classes else data,  # they train to the end
        [columns] * ensemble.members,
        seed,
        seconds=seconds,
        tuned=given,
        effort=effort,
        distinct=True,
    )
    decoder = found[0]
    with torch.no_grad():
        decoder.net = averaged([without_norms(one.net) for one in found]).double()
    epochs = [one.epochs for one in found if one.epochs is not None]
    decoder.epochs = round(median(epochs)) if epochs else None
    if classes:
        if held is not None:
            tuned = _factor(decoder, data, columns, held.index)
        last = decoder.net[-1]
        assert isinstance(last, nn.Linear)
        with torch.no_grad():
            last.weight.mul_(tuned or 1.0)
            last.bias.mul_(tuned or 1.0)
        decoder.tuned = tuned
    else:
        factors = [one.tuned for one in found if one.tuned is not None]
        decoder.tuned = median(factors) if 2 * len(factors) > len(found) else None
    return decoder.eval()


@torch.no_grad()
def _factor(
    decoder: MeasuredDecoder, data: TrainingData, columns: NDArray[np.int64], rows: NDArray
) -> float:
    """What to multiply outputs with so that the classes of these rows are most likely."""
    assert data.targets is not None
    blocks = read_blocks(RowView(data.source, rows))
    logits: Tensor = torch.cat([decoder.net(decoder.inputs(x[:, columns])) for _, x in blocks])
    weights = logits.new_ones(len(rows)) if data.weights is None else data.weights[rows].double()
    classes = data.targets[rows].long().cpu()
    return best_factors(logits[None], classes[None, :, None], weights.cpu())[0]
