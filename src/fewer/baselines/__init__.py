"""Feature selection from the literature, each method a scikit-learn selector, and two bounds."""

from fewer.baselines._aefs import AEFS, ALPHAS
from fewer.baselines._bounds import AutoencoderBound, PCABound
from fewer.baselines._graph import GAMMAS, MCFS, UDFS, LaplacianScore
from fewer.baselines._simple import PFA, Greedy, MaxVariance, PivotedQR, RandomSubset
from fewer.baselines._sweep import Sweep, sweep

__all__ = [
    "AEFS",
    "ALPHAS",
    "GAMMAS",
    "MCFS",
    "PFA",
    "UDFS",
    "AutoencoderBound",
    "Greedy",
    "LaplacianScore",
    "MaxVariance",
    "PCABound",
    "PivotedQR",
    "RandomSubset",
    "Sweep",
    "sweep",
]
