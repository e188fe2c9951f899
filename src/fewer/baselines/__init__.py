"""Feature selection from the literature, each method a scikit-learn selector, and two bounds."""

from fewer.baselines._aefs import AEFS, ALPHAS
from fewer.baselines._bounds import AutoencoderBound, PCABound
from fewer.baselines._laplacian_score import LaplacianScore
from fewer.baselines._mcfs import MCFS
from fewer.baselines._pfa import PFA
from fewer.baselines._simple import Greedy, MaxVariance, PivotedQR, RandomSubset
from fewer.baselines._sweep import Sweep, sweep
from fewer.baselines._udfs import GAMMAS, UDFS

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
