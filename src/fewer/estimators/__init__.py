"""The scikit-learn faces of fewer; no mathematics lives here."""

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
