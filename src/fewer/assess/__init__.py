"""What is in the data, and how good a choice is: error against k, methods, lists of features."""

from fewer.assess.comparison import METHODS, Comparison, compare
from fewer.assess.curve import Curve, curve
from fewer.assess.inspection import Inspection, inspect
from fewer.assess.scorecard import Scorecard, score
from fewer.assess.scoring import FeatureScore, score_features
from fewer.assess.stability import Stability, stability
from fewer.checks import Check, Drift, Finding

__all__ = [
    "METHODS",
    "Check",
    "Comparison",
    "Curve",
    "Drift",
    "FeatureScore",
    "Finding",
    "Inspection",
    "Scorecard",
    "Stability",
    "compare",
    "curve",
    "inspect",
    "score",
    "score_features",
    "stability",
]
