"""Column subset selection: k of d features, from their covariance alone."""

from fewer.search.greedy import ClassErrors, GreedyPath, greedy
from fewer.search.objective import residual
from fewer.search.subset import SearchResult, search
from fewer.search.swap import SwapResult, swap

__all__ = [
    "ClassErrors",
    "GreedyPath",
    "SearchResult",
    "SwapResult",
    "greedy",
    "residual",
    "search",
    "swap",
]
