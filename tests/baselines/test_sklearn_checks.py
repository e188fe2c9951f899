"""scikit-learn's own checks, all of them, for every baseline and bound."""

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from fewer.baselines import (
    AEFS,
    MCFS,
    PFA,
    UDFS,
    AutoencoderBound,
    Greedy,
    LaplacianScore,
    MaxVariance,
    PCABound,
    PivotedQR,
    RandomSubset,
)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")
@parametrize_with_checks(
    [
        AEFS(k=2, hidden=4, max_iter=10, device="cpu"),
        AutoencoderBound(k=2, epochs=2, device="cpu"),
        Greedy(k=2),
        LaplacianScore(k=2),
        MCFS(k=2),
        MaxVariance(k=2),
        PCABound(k=2),
        PFA(k=2),
        PivotedQR(k=2),
        RandomSubset(k=2),
        UDFS(k=2),
    ]
)
def test_sklearn_check(estimator, check):
    check(estimator)
