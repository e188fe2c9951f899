"""What is in the data, and how good a choice is: error against k, methods, lists of features."""

from fewer.assess.comparison import METHODS, Comparison, compare
from fewer.assess.curve import Curve, curve
from fewer.assess.inspection import Inspection, inspect
from fewer.assess.scoring import FeatureScore, score_features

__all__ = [
    "METHODS",
    "Comparison",
    "Curve",
    "FeatureScore",
    "Inspection",
    "compare",
    "curve",
    "inspect",
    "score_features",
]
