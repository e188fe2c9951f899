"""The scikit-learn faces of fewer; no mathematics lives here."""

from fewer.estimators._autoencoder import ConcreteAutoencoder
from fewer.estimators._classifier import ConcreteClassifier
from fewer.estimators._column_subset import ColumnSubset
from fewer.estimators._presets import PAPER
from fewer.estimators._regressor import ConcreteRegressor

__all__ = [
    "PAPER",
    "ColumnSubset",
    "ConcreteAutoencoder",
    "ConcreteClassifier",
    "ConcreteRegressor",
]
