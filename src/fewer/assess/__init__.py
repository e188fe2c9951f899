"""How good a choice of features is: error against k, methods side by side, a list of features."""

from fewer.assess.comparison import METHODS, Comparison, compare
from fewer.assess.curve import Curve, curve
from fewer.assess.scoring import FeatureScore, score_features

__all__ = [
    "METHODS",
    "Comparison",
    "Curve",
    "FeatureScore",
    "compare",
    "curve",
    "score_features",
]
