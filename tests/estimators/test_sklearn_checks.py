"""scikit-learn's own checks, all of them, for every estimator."""

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from fewer import ColumnSubset, ConcreteAutoencoder, ConcreteClassifier, ConcreteRegressor

# two features and few epochs: the checks use tiny data, hundreds of times
OPTIONS = {"k": 2, "epochs": 20, "tries": 1, "refit_epochs": 30, "device": "cpu"}


@pytest.mark.filterwarnings("ignore::fewer.errors.NotConvergedWarning")
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")
@parametrize_with_checks(
    [
        ConcreteAutoencoder(**OPTIONS),
        ConcreteAutoencoder(**OPTIONS, solver="gradient"),
        ColumnSubset(k=2, stall=0, device="cpu"),
        ConcreteClassifier(**OPTIONS, learning_rate=0.01),
        ConcreteRegressor(**OPTIONS, learning_rate=0.01),
    ]
)
def test_sklearn_check(estimator, check):
    check(estimator)
