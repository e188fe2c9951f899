"""Feature selection from the literature, each method a scikit-learn selector, and two bounds."""

from fewer.baselines._aefs import AEFS, ALPHAS
from fewer.baselines._autoencoder_bound import AutoencoderBound
from fewer.baselines._greedy import Greedy
from fewer.baselines._laplacian_score import LaplacianScore
from fewer.baselines._max_variance import MaxVariance
from fewer.baselines._mcfs import MCFS
from fewer.baselines._pca_bound import PCABound
from fewer.baselines._pfa import PFA
from fewer.baselines._pivoted_qr import PivotedQR
from fewer.baselines._random_subset import RandomSubset
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
