"""How it is learned: by gradient, in closed form; exact decoders; constraints."""

from fewer.train.assignment import distinct_features, obeying_features
from fewer.train.checkpoint import Checkpoint
from fewer.train.closed_form import SelectorFit, fit_closed_form
from fewer.train.covariance import fit_covariance
from fewer.train.fit import Fit
from fewer.train.gradient import fit_gradient
from fewer.train.held_out_swaps import HeldOut, held_out_swaps
from fewer.train.least_squares import fit_linear
from fewer.train.network_swaps import network_swaps
from fewer.train.nodes import nodes_for
from fewer.train.proxy import fit_surrogate
from fewer.train.random_features import fit_random_features
from fewer.train.settings import TrainingConfig

__all__ = [
    "Checkpoint",
    "Fit",
    "HeldOut",
    "SelectorFit",
    "TrainingConfig",
    "distinct_features",
    "fit_closed_form",
    "fit_covariance",
    "fit_gradient",
    "fit_linear",
    "fit_random_features",
    "fit_surrogate",
    "held_out_swaps",
    "network_swaps",
    "nodes_for",
    "obeying_features",
]
