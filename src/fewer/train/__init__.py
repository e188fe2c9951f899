"""Training: selectors by gradient or in closed form, and decoders for given columns."""

from fewer.train.checkpoint import Checkpoint
from fewer.train.closed_form import SelectorFit, fit_closed_form, fit_random_features
from fewer.train.config import TrainingConfig
from fewer.train.gradient import choose_by_gradient, fit_gradient
from fewer.train.linear import fit_linear
from fewer.train.network import train_decoder, train_decoders
from fewer.train.surrogate import network_swaps
from fewer.train.swaps import HeldOut, held_out_swaps
from fewer.train.training_data import Fit, prepare

__all__ = [
    "Checkpoint",
    "Fit",
    "HeldOut",
    "SelectorFit",
    "TrainingConfig",
    "choose_by_gradient",
    "fit_closed_form",
    "fit_gradient",
    "fit_linear",
    "fit_random_features",
    "held_out_swaps",
    "network_swaps",
    "prepare",
    "train_decoder",
    "train_decoders",
]
