"""The benchmark data sets, with splits that hold up: ``load("mice").split()``."""

from fewer.datasets.catalogue import NAMES
from fewer.datasets.dataset import Dataset
from fewer.datasets.loader import load
from fewer.datasets.split import Split

__all__ = ["NAMES", "Dataset", "Split", "load"]
