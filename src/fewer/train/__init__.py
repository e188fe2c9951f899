"""How it is learned: gradient training, exact decoders, stopping."""

from fewer.train.assignment import distinct_features
from fewer.train.gradient import GradientFit, fit_gradient
from fewer.train.least_squares import fit_linear
from fewer.train.settings import GradientSettings

__all__ = [
    "GradientFit",
    "GradientSettings",
    "distinct_features",
    "fit_gradient",
    "fit_linear",
]
