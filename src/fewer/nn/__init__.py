"""Modules: the selector layer, temperature schedules, decoders and losses."""

from fewer.nn import schedule
from fewer.nn.concrete import ConcreteNetwork, ConcreteSelector, gumbel_noise, relaxed_choice
from fewer.nn.decoder import MeasuredDecoder, build_decoder
from fewer.nn.losses import LOSSES, Loss, make_loss

__all__ = [
    "LOSSES",
    "ConcreteNetwork",
    "ConcreteSelector",
    "Loss",
    "MeasuredDecoder",
    "build_decoder",
    "gumbel_noise",
    "make_loss",
    "relaxed_choice",
    "schedule",
]
