"""How good a choice is: error against k, methods side by side, a bare list of features."""

from fewer.assess.comparing import METHODS, Comparison, compare
from fewer.assess.curve import Curve, curve
from fewer.assess.listed import FeatureScore, score_features

__all__ = [
    "METHODS",
    "Comparison",
    "Curve",
    "FeatureScore",
    "compare",
    "curve",
    "score_features",
]
