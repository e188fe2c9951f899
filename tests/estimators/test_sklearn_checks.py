"""scikit-learn's own checks, all of them, for every estimator."""

from inspect import signature

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from fewer import ColumnSubset, ConcreteAutoencoder, ConcreteClassifier, ConcreteRegressor

# two features and few epochs: the checks use tiny data, hundreds of times
OPTIONS = {"k": 2, "epochs": 10, "tries": 1, "refit_epochs": 15, "device": "cpu"}
# what they check of scores needs some more
SUPERVISED = OPTIONS | {"epochs": 20, "refit_epochs": 30, "learning_rate": 0.01, "refine": None}

# which rows are held out, and in which batch each is, depends on their number
SPLIT = "training holds out random rows, so a weight of 2 is not exactly the same as two rows"
RANDOM = {f"check_sample_weight_equivalence_on_{kind}_data": SPLIT for kind in ("dense", "sparse")}


def fits(estimator):
    return signature(estimator.fit).parameters


@pytest.mark.filterwarnings("ignore::fewer.errors.NotConvergedWarning")
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")
@parametrize_with_checks(
    [
        ConcreteAutoencoder(**OPTIONS),
        ConcreteAutoencoder(**OPTIONS, solver="gradient", refine=None),
        ColumnSubset(k=2, stall=0, device="cpu"),
        ConcreteClassifier(**SUPERVISED),
        ConcreteRegressor(**SUPERVISED),
    ],
    expected_failed_checks=lambda estimator: RANDOM if "sample_weight" in fits(estimator) else {},
)
def test_sklearn_check(estimator, check):
    check(estimator)
