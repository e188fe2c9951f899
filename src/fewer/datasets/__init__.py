"""The benchmark data sets, with splits that keep groups together: ``load("mice").split()``."""

from fewer.datasets.catalogue import NAMES
from fewer.datasets.dataset import Dataset, Split
from fewer.datasets.loader import load

__all__ = ["NAMES", "Dataset", "Split", "load"]
