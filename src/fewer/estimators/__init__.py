"""The scikit-learn estimators: thin wrappers without mathematics."""

from fewer.estimators._column_subset import ColumnSubset
from fewer.estimators._concrete import (
    ConcreteAutoencoder,
    ConcreteClassifier,
    ConcreteRegressor,
)
from fewer.estimators._parameters import PAPER
from fewer.estimators.selector import FeatureSelector

__all__ = [
    "PAPER",
    "ColumnSubset",
    "ConcreteAutoencoder",
    "ConcreteClassifier",
    "ConcreteRegressor",
    "FeatureSelector",
]
